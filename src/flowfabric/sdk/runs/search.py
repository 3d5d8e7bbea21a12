"""Search runs, and act on all that match."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from flowfabric.model.errors import State
from flowfabric.model.reads.search import ExecutionSummary
from flowfabric.model.states import PublicState
from flowfabric.sdk.errors import ENDED, BadOptions
from flowfabric.sdk.options import tag_key
from flowfabric.sdk.runs.run import Run

if TYPE_CHECKING:
    from flowfabric.sdk.app import App

#: Runs looked at together.
_PAGE: Final = 200


class Runs:
    """The runs of an app that match: ``async for run in app.runs(state="failed"): …``.

    Newest first, and none twice. Runs that start during the iteration are not included, except now and then one whose
    start was still being stored when the iteration came past its place, or that has an id of your own and starts in the
    very millisecond that the iteration has reached.
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
            raise BadOptions(f"state: {state!r} is not one of {', '.join(PublicState)}", option="state")
        if limit is not None and (type(limit) is not int or limit < 0):
            raise BadOptions(f"limit: {limit!r} is not a whole number of at least 1", option="limit")
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
        cursor = None
        while left is None or left > 0:
            page = await self._app.engine.search_executions(
                namespaces=(self._app.namespace,),
                lane_id=self._lane,
                states=() if self._state is None else (self._state,),
                execution_kind=self._name,
                tag=next(iter(self._tags.items()), None),
                cursor=cursor,
                limit=_PAGE,
            )
            for line in await self._fitting(page.executions):
                if left is not None:
                    if left == 0:
                        return
                    left -= 1
                definition = self._app.definitions.get(line.execution_kind)
                yield Run(self._app, line.execution_id, None if definition is None else definition.signature)
            cursor = page.next_cursor
            if cursor is None:
                return

    async def _fitting(self, lines: Sequence[ExecutionSummary]) -> list[ExecutionSummary]:
        """Those that carry all tags and are runs: questions and the like are not."""
        found = [line for line in lines if not line.execution_kind.startswith("$")]
        if len(self._tags) < 2 or not found:
            return found
        contexts = await self._app.engine.read_execution_contexts([line.execution_id for line in found])
        wanted = self._tags.items()
        return [line for line in found if (its := contexts.get(line.execution_id)) and wanted <= its.tags.items()]

    async def all(self) -> list[Run[Any]]:
        """All of them, as a list."""
        return [run async for run in self]

    async def count(self) -> int:
        """How many there are; the store counts them."""
        if self._limit == 0:
            return 0
        found = await self._app.engine.count_executions(
            namespaces=(self._app.namespace,),
            lane_id=self._lane,
            states=() if self._state is None else (self._state,),
            execution_kind=self._name,
            tags=self._tags,
            leaving_out="$",
        )
        return found if self._limit is None else min(found, self._limit)

    async def cancel(self, reason: str = "", *, dry_run: bool = False) -> list[Run[Any]]:
        """Cancel those that have not ended, and return them. ``dry_run`` only returns them."""
        found = await self._open()
        if not dry_run:
            for run in found:
                await run.cancel(reason)
        return found

    async def terminate(self, reason: str = "", *, dry_run: bool = False) -> list[Run[Any]]:
        """End those that have not ended at once, and return them. ``dry_run`` only returns them."""
        found = await self._open()
        if not dry_run:
            for run in found:
                await run.terminate(reason)
        return found

    async def _open(self) -> list[Run[Any]]:
        return [run for run in await self.all() if await run.status() not in ENDED]

    async def replay(self, *, dry_run: bool = False) -> list[Run[Any]]:
        """Replay those that have failed or expired, and return them. ``dry_run`` only returns them."""
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
