"""Timers of flows: they repair what a lost command left undone, count members, and remove flows that are over."""

from __future__ import annotations

import asyncio
import logging

from flowfabric.core.executions.cancel import CancelExecution
from flowfabric.core.flows.cancel import CANCELLING, AckCancelMembers, CancelFlowMembers
from flowfabric.core.flows.cascade import CancelSiblings, DispatchCompletion
from flowfabric.core.flows.reconcile import ReconcileSiblings, SettleDependencies
from flowfabric.core.flows.status import ProjectFlow, RemoveFlow
from flowfabric.core.leases.fence import OPERATOR_OVERRIDE
from flowfabric.engine.timers.executions import Timers
from flowfabric.model.decisions import Get
from flowfabric.model.errors import Bug, Contention, ContentionKind, EngineError, NotFound, Validation
from flowfabric.model.operations.flows import CascadeOutcome, SiblingsCancelled
from flowfabric.model.records.flows import CancelBacklog
from flowfabric.stores.questions import (
    BacklogDue,
    BacklogMembers,
    CountMembers,
    Due,
    EmptyFlows,
    OpenFlows,
    PendingGroups,
    StuckMembers,
)

_log = logging.getLogger("flowfabric.timers")

#: How old an end must be before a timer carries it on: until then the process that made it is about to do so.
STALE_MS = 15_000
#: Members of one cancelled flow that one tick cancels.
BACKLOG_STEP = 500
#: Waiting members and flows that one tick looks at.
WINDOW = 1_000
#: Flows whose members one statement counts.
COUNTED_TOGETHER = 100


class FlowTimers(Timers):
    """The part of the engine that keeps flows going when something was lost."""

    #: Where the next tick goes on looking.
    _stuck_after: str | None = None
    _projected_after: tuple[int, str] | None = None
    _removed_after: tuple[int, str] | None = None

    async def _tick_dependency_reconciler(self, limit: int) -> int:
        wanted, before = self._filter, await self.now_ms() - STALE_MS
        ends = await self._ask(Due("undispatched", before, limit, wanted.namespace, wanted.instance_tag))
        done = await self._submit_all("dependency_reconciler", ends, DispatchCompletion)
        question = StuckMembers(self._stuck_after, WINDOW, wanted.namespace, wanted.instance_tag)
        stuck, self._stuck_after = await self._ask(question)
        return done + await self._submit_all("dependency_reconciler", stuck, SettleDependencies)

    async def _tick_edge_cancel_dispatcher(self, limit: int) -> int:
        keys = await self._ask(PendingGroups(True, limit))
        answers = await asyncio.gather(*(self._submit(CancelSiblings(*key)) for key in keys), return_exceptions=True)
        return sum(_counted("edge_cancel_dispatcher", key, answer) for key, answer in zip(keys, answers, strict=True))

    async def _tick_edge_cancel_reconciler(self, limit: int) -> int:
        keys = await self._ask(PendingGroups(False, limit))
        answers = await asyncio.gather(*(self._submit(ReconcileSiblings(*key)) for key in keys), return_exceptions=True)
        for key, answer in zip(keys, answers, strict=True):
            _counted("edge_cancel_reconciler", key, answer)
        return sum(isinstance(answer, str) and answer != "no_op" for answer in answers)

    # -- cancelled flows -----------------------------------------------------------------------------------------

    async def _tick_cancel_reconciler(self, limit: int) -> int:
        due = await self._ask(BacklogDue(await self.now_ms(), limit))
        done = 0
        for key in due:
            try:
                done += await self._finish_cancelling(key)
            except EngineError as error:
                _log.warning("cancel_reconciler: %s: %s", key, error)
        return done

    async def _finish_cancelling(self, key: tuple[int, str]) -> int:
        header = (await self._view(Get(CancelBacklog, key))).get(CancelBacklog, key)
        if header is not None and header.status == CANCELLING:
            step = await self._submit(CancelFlowMembers(*key, after=""))
            return len(step.execution_ids)
        members = await self._ask(BacklogMembers(*key, BACKLOG_STEP))
        reason = "" if header is None else header.reason
        commands = [CancelExecution(each, reason, OPERATOR_OVERRIDE, None, None) for each in members]
        answers = await asyncio.gather(*map(self._submit, commands), return_exceptions=True)
        over = tuple(each for each, answer in zip(members, answers, strict=True) if is_acknowledged(each, answer))
        # With nobody to acknowledge this still removes a header that has no members.
        await self._submit(AckCancelMembers(*key, over))
        return len(over)

    # -- counting and removing -----------------------------------------------------------------------------------

    async def _tick_flow_projector(self, limit: int) -> int:
        flows = await self._ask(OpenFlows(self._projected_after, limit))
        self._projected_after = flows[-1] if len(flows) == limit else None
        written = 0
        for start in range(0, len(flows), COUNTED_TOGETHER):
            counts = await self._ask(CountMembers(tuple(flows[start : start + COUNTED_TOGETHER])))
            commands = [ProjectFlow(partition, flow_id, states) for (partition, flow_id), states in counts.items()]
            answers = await asyncio.gather(*map(self._submit, commands), return_exceptions=True)
            written += sum(_counted("flow_projector", key, answer) for key, answer in zip(counts, answers, strict=True))
        return written

    async def _remove_empty_flows(self, retention_ms: int) -> None:
        empty, self._removed_after = await self._ask(EmptyFlows(self._removed_after, WINDOW))
        commands = [RemoveFlow(partition, flow_id, retention_ms) for partition, flow_id in empty]
        answers = await asyncio.gather(*map(self._submit, commands), return_exceptions=True)
        for key, answer in zip(empty, answers, strict=True):
            _counted("retention_trimmer", key, answer)


def _counted(timer: str, key: tuple[object, ...], answer: object) -> int:
    """What a command did; an error is told and tried again at the next tick."""
    if isinstance(answer, BaseException):
        if not isinstance(answer, EngineError):
            raise answer
        _log.warning("%s: %s: %s", timer, key, answer)
        return 0
    if isinstance(answer, CascadeOutcome):
        return answer.resolved
    if isinstance(answer, SiblingsCancelled):
        return answer.taken
    return answer if isinstance(answer, int) else 0


def is_acknowledged(execution_id: str, answer: object) -> bool:
    """Whether cancelling a member is done with, by what its cancellation answered."""
    if not isinstance(answer, BaseException):
        return True
    if isinstance(answer, Validation | Bug):
        _log.warning("cancel_reconciler: %s: gave up: %s", execution_id, answer)
        return True
    if isinstance(answer, NotFound):
        return True
    return isinstance(answer, Contention) and answer.kind is ContentionKind.EXECUTION_NOT_ACTIVE
