"""Looking through runs, and doing something with all that fit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from flowfabric.model.errors import State
from flowfabric.model.results import ExecutionInfo
from flowfabric.model.states import PublicState
from flowfabric.sdk.ends import ENDED
from flowfabric.sdk.errors import BadOptions
from flowfabric.sdk.options import tag_key
from flowfabric.sdk.run import Run

if TYPE_CHECKING:
    from flowfabric.sdk.app import App

#: Runs looked at together.
_PAGE: Final = 200


class Runs:
    """The runs of an app that fit: ``async for run in app.runs(state="failed"): …``.

    Looks through the whole store, partition by partition, and sees what is committed when it comes there; meant for
    operators and tools, not for the way of a request.
    """

    def __init__(
        self,
        app: App,
        *,
        state: PublicState | str | None = None,
        name: str | None = None,
        tags: Mapping[str, str] | None = None,
        lane: str | None = None,
        limit: int | None = None,
    ) -> None:
        if state is not None and state not in tuple(PublicState):
            raise BadOptions(f"state: {state!r} is none of {', '.join(PublicState)}", option="state")
        if limit is not None and (type(limit) is not int or limit < 0):
            raise BadOptions(f"limit: {limit!r} is not a number of runs", option="limit")
        self._app = app
        self._state = None if state is None else PublicState(state)
        self._name = name
        self._tags = {tag_key(key): value for key, value in (tags or {}).items()}
        self._lane = lane
        self._limit = limit

    def __aiter__(self) -> AsyncIterator[Run[Any]]:
        return self._found()

    async def _found(self) -> AsyncIterator[Run[Any]]:
        left = self._limit
        engine = self._app.engine
        for partition in range(engine.partitions.flow):
            cursor = None
            while left is None or left > 0:
                page = await engine.list_executions(partition, cursor, _PAGE)
                infos = await asyncio.gather(*(engine.read_execution_info(each) for each in page.executions))
                for info in infos:
                    if info is None or not await self._fits(info):
                        continue
                    if left is not None:
                        if left == 0:
                            return
                        left -= 1
                    definition = self._app.definitions.get(info.execution_kind)
                    yield Run(self._app, info.execution_id, None if definition is None else definition.signature)
                cursor = page.next_cursor
                if cursor is None:
                    break

    async def _fits(self, info: ExecutionInfo) -> bool:
        if info.namespace != self._app.namespace or info.execution_kind.startswith("$"):
            return False
        if self._state is not None and info.public_state is not self._state:
            return False
        if self._name is not None and info.execution_kind != self._name:
            return False
        if self._lane is not None and info.lane_id != self._lane:
            return False
        if not self._tags:
            return True
        tags = (await self._app.engine.read_execution_context(info.execution_id)).tags
        return self._tags.items() <= tags.items()

    async def all(self) -> list[Run[Any]]:
        """All of them."""
        return [run async for run in self]

    async def count(self) -> int:
        """How many they are."""
        return len(await self.all())

    async def cancel(self, reason: str = "", *, dry_run: bool = False) -> list[Run[Any]]:
        """Cancel those that have not ended; which they were. ``dry_run`` only looks."""
        found = [run for run in await self.all() if await run.status() not in ENDED]
        if not dry_run:
            for run in found:
                await run.cancel(reason)
        return found

    async def replay(self, *, dry_run: bool = False) -> list[Run[Any]]:
        """Run those again that have failed or expired; which they were. ``dry_run`` only looks."""
        again = (PublicState.FAILED, PublicState.EXPIRED)
        found = [run for run in await self.all() if await run.status() in again]
        if dry_run:
            return found
        replayed = []
        for run in found:
            try:
                await run.replay()
            except State:  # somebody else was first, or it has been replayed as often as it may
                continue
            replayed.append(run)
        return replayed
