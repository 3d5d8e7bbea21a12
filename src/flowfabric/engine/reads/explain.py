"""Looking at executions to say why they wait, and whether what is stored about them makes sense."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from flowfabric.core.batch.graph_view import Missing
from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.core.executions.operator import ReplayExecution
from flowfabric.core.explain import causes, explain, preview
from flowfabric.core.invariants.executions import unsound
from flowfabric.core.leases import grant_keys
from flowfabric.engine.base import EngineBase
from flowfabric.engine.checks import values
from flowfabric.engine.checks.values import sorted_namespaces
from flowfabric.model.decisions import Get, Need
from flowfabric.model.errors import Bug, BugKind
from flowfabric.model.ids import ExecutionId
from flowfabric.model.limits import MAX_PAGE, MAX_REASON_BYTES, MAX_ROUNDS
from flowfabric.model.operations.executions import GrantCheck
from flowfabric.model.reads.explain import Explanation, Gate
from flowfabric.model.reads.preview import Preview
from flowfabric.model.records.executions import Execution, Worker
from flowfabric.stores.questions import ListExecutions, LiveWorkers, ScanEligible, SearchWorkers

_log = logging.getLogger("flowfabric.timers")
_Answer = TypeVar("_Answer")

#: Partitions one tick of the reconciler walks through at most.
_PARTITIONS_PER_TICK = 64
_MAX_WORKERS = 10_000


class Explaining(EngineBase):
    """The part of the engine that looks and tells."""

    _reconciled: tuple[int, str | None] = (0, None)

    async def explain(self, execution_id: ExecutionId | str, *, namespaces: Iterable[str] | None = None) -> Explanation:
        """Why an execution is not running: the gate it stands before, since when, until when, and one sentence. If it
        waits for other executions, the chain is followed to what the last one waits for. With ``namespaces``
        executions and workers of others are neither named nor counted.

        Looks at what is committed and changes nothing. Unknown ids are refused with ``NotFound``.
        """
        identity, own = values.execution_id(execution_id), sorted_namespaces(namespaces)
        context = self._settings.context(await self.now_ms())
        view = await self._view(Get(Execution, identity))
        first = await self._judged(view, lambda: explain.explain(identity, view, context, own))
        foreign = await self._foreign(explain.named(first), own)
        workers = _Workers(self, context.now, own)
        chain = [await workers.placed(explain.without(first, foreign), view)]
        while len(chain) < causes.MAX_LINKS and causes.is_followed(chain[-1]):
            following = await self._next(chain, view, context, own, workers)
            if following is None:
                break
            chain.append(following)
        chain[-1] = await workers.queued(chain[-1], view)
        return await self._judged(view, lambda: causes.told(chain, view, context.now))

    async def preview_actions(self, execution_id: ExecutionId | str) -> Preview:
        """What cancelling, terminating, replaying, forking, moving or taking away an execution would do to it now.

        Looks at what is committed and changes nothing. Unknown ids are refused with ``NotFound``.
        """
        identity = values.execution_id(execution_id)
        context = self._settings.context(await self.now_ms())
        command = ReplayExecution(identity, None)
        return await self._look(lambda view: preview.preview(identity, view, context), *command.needs())

    async def _next(
        self,
        chain: list[Explanation],
        view: View,
        context: Context,
        own: tuple[str, ...] | None,
        workers: _Workers,
    ) -> Explanation | None:
        """The execution to follow among those that the last link waits for."""
        seen = {str(each.execution_id) for each in chain}
        looked = await self._judged(view, lambda: causes.looked_at(chain[-1], seen, view, context, own))
        found = causes.telling([await workers.placed(each, view) for each in looked])
        if found is None:
            return None
        return explain.without(found, await self._foreign(explain.named(found), own))

    async def verify_grant(self, grant_key: str, *, worker_id: str, worker_instance_id: str) -> GrantCheck:
        """What a grant key is worth in the hands of a worker. Looking does not use it up."""
        text = values.text(grant_key, "grant_key", MAX_REASON_BYTES)
        worker = (
            values.text(worker_id, "worker_id", empty=False),
            values.text(worker_instance_id, "worker_instance_id", empty=False),
        )
        context = self._settings.context(await self.now_ms())
        return await self._look(lambda view: grant_keys.verify(text, worker, view, context))

    async def _look(self, judge: Callable[[View], _Answer], *needs: Need) -> _Answer:
        """The answer of something that looks through a view, as often as it misses something."""
        view = await self._view(*needs)
        return await self._judged(view, lambda: judge(view))

    async def _judged(self, view: View, judge: Callable[[], _Answer]) -> _Answer:
        for _ in range(MAX_ROUNDS):
            try:
                return judge()
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
                _log.error("execution %s is inconsistent: %s", execution_id, again)
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


class _Workers:
    """Who could take what waits for a worker. The workers are read once, when they are first needed."""

    def __init__(self, engine: Explaining, now: int, own: tuple[str, ...] | None) -> None:
        self._engine = engine
        self._now = now
        self._own = own
        self._alive: list[Worker] | None = None

    async def placed(self, found: Explanation, view: View, ahead: int | None = None) -> Explanation:
        """The explanation, with the workers that could run it."""
        if found.gate not in (Gate.WAITING_FOR_WORKER, Gate.MISSING_CAPABILITY):
            return found
        if self._alive is None:
            own = self._own
            question = (
                LiveWorkers(self._now, _MAX_WORKERS) if own is None else SearchWorkers(self._now, _MAX_WORKERS, own)
            )
            self._alive = await self._engine._ask(question)
        execution = view.execution(found.execution_id)
        required = () if execution is None else execution.required_capabilities
        said = explain.cancelling(execution, self._now)
        limited = self._own is not None
        return explain.with_workers(found, required, self._alive, ahead, limited=limited, said_first=said)

    async def queued(self, found: Explanation, view: View) -> Explanation:
        """The same with its place in the queue."""
        if found.gate not in (Gate.WAITING_FOR_WORKER, Gate.MISSING_CAPABILITY):
            return found
        queue: list[str] = await self._engine._ask(ScanEligible(found.lane_id, None, MAX_PAGE, self._now, self._own))
        identity = str(found.execution_id)
        return await self.placed(found, view, queue.index(identity) if identity in queue else None)
