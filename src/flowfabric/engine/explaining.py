"""Looking at executions to say why they wait, and whether what is stored about them makes sense."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from flowfabric.core import explaining, grant_keys
from flowfabric.core.context import Context
from flowfabric.core.graphview import Missing
from flowfabric.core.soundness import unsound
from flowfabric.core.view import View
from flowfabric.engine import checks
from flowfabric.engine.base import EngineBase
from flowfabric.model.changes import Get
from flowfabric.model.errors import Bug, BugKind
from flowfabric.model.explain import Explanation, Gate
from flowfabric.model.grant_keys import GrantCheck
from flowfabric.model.ids import ExecutionId
from flowfabric.model.limits import MAX_PAGE, MAX_REASON_BYTES, MAX_ROUNDS
from flowfabric.model.records import Execution
from flowfabric.stores.questions import ListExecutions, LiveWorkers, ScanEligible

_log = logging.getLogger("flowfabric.timers")
_Answer = TypeVar("_Answer")

#: Partitions one tick of the reconciler walks through at most.
_PARTITIONS_PER_TICK = 64
_MAX_WORKERS = 10_000


class Explaining(EngineBase):
    """The part of the engine that looks and tells."""

    _reconciled: tuple[int, str | None] = (0, None)

    async def explain(self, execution_id: ExecutionId | str) -> Explanation:
        """Why an execution is not running: the gate it stands before, since when, until when, and one sentence.

        Looks at what is committed and changes nothing. Unknown ids are refused with ``NotFound``.
        """
        identity = checks.execution_id(execution_id)
        now = await self.now_ms()
        context = Context(now, self.store.tag, self.store.shown, self._settings.reclaim_grace_ms)
        found = await self._look(lambda view: explaining.explain(identity, view, context), Get(Execution, identity))
        if found.gate is not Gate.WAITING_FOR_WORKER:
            return found
        workers = await self._ask(LiveWorkers(now, _MAX_WORKERS))
        queue: list[str] = await self._ask(ScanEligible(found.lane_id, None, MAX_PAGE, now))
        view = await self._view(Get(Execution, identity))
        execution = view.execution(identity)
        required = () if execution is None else execution.required_capabilities
        ahead = queue.index(identity) if identity in queue else None
        return explaining.with_workers(found, required, workers, ahead)

    async def verify_grant(self, grant_key: str, *, worker_id: str, worker_instance_id: str) -> GrantCheck:
        """What a grant key is worth in the hands of a worker. Looking does not use it up."""
        text = checks.text(grant_key, "grant_key", MAX_REASON_BYTES)
        worker = (
            checks.text(worker_id, "worker_id", empty=False),
            checks.text(worker_instance_id, "worker_instance_id", empty=False),
        )
        context = Context(await self.now_ms(), self.store.tag, self.store.shown)
        return await self._look(lambda view: grant_keys.verify(text, worker, view, context))

    async def _look(self, judge: Callable[[View], _Answer], *needs: Get) -> _Answer:
        """The answer of something that looks through a view, as often as it misses something."""
        view = await self._view(*needs)
        for _ in range(MAX_ROUNDS):
            try:
                return judge(view)
            except Missing as missing:
                await self.store.read(missing.needs, view)
        raise Bug(BugKind.INTERNAL_ERROR, f"a look still missed records after {MAX_ROUNDS} rounds")

    async def _tick_index_reconciler(self, limit: int) -> int:
        """Look at some executions, at others each time, and log what does not make sense. Nothing is repaired."""
        violations = 0
        for execution_id in await self._sample(limit):
            needs = (Get(Execution, execution_id),)
            if await self._look(lambda view, each=execution_id: unsound(each, view), *needs) is None:  # type: ignore[misc]
                continue
            # The rows were not read at one moment: only what is still so at a second look is true.
            again = await self._look(lambda view, each=execution_id: unsound(each, view), *needs)  # type: ignore[misc]
            if again is not None:
                violations += 1
                _log.error("execution %s is not sound: %s", execution_id, again)
        return violations

    async def _sample(self, limit: int) -> list[str]:
        """The next executions in the order of partitions and ids, over and over."""
        found: list[str] = []
        partition, after = self._reconciled
        for _ in range(min(self.partitions.flow, _PARTITIONS_PER_TICK) + 1):
            page: list[str] = await self._ask(ListExecutions(partition, after, limit - len(found)))
            found += page
            if len(found) == limit:
                after = ExecutionId.unchecked(page[-1]).uuid_text
                break
            partition, after = (partition + 1) % self.partitions.flow, None
        self._reconciled = (partition, after)
        return list(dict.fromkeys(found))
