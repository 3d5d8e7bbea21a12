"""Operators and schedulers: cancel, revoke, reprioritise, replay, block, and the worker registry."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from flowfabric.core.admission.block import BlockExecution, UnblockExecution
from flowfabric.core.executions.cancel import CancelExecution, RequestCancel
from flowfabric.core.executions.operator import ChangePriority, ReplayExecution, RevokeLease
from flowfabric.core.flows.cancel import (
    CANCEL_POLICIES,
    FLOW_CANCELLED,
    AckCancelMembers,
    CancelFlow,
    CancelFlowHeaderCommand,
    CancelFlowMembers,
    CancelledMembers,
)
from flowfabric.core.lanes.workers import HeartbeatWorker, MarkWorkerDead, RegisterWorker
from flowfabric.engine.base import EngineBase
from flowfabric.engine.checks import values
from flowfabric.engine.checks.values import cursor_of_pair, pair_of_cursor, sorted_namespaces
from flowfabric.model import states as lit
from flowfabric.model.decisions import Get
from flowfabric.model.errors import Contention, Timeout, Transport, Unavailable
from flowfabric.model.handles import Handle, shown_lease
from flowfabric.model.ids import CancelSource, ExecutionId
from flowfabric.model.limits import GONE_KEPT_MS, MAX_GONE_SHOWN, MAX_HELD_COUNTED, MAX_PAGE, MAX_REASON_BYTES
from flowfabric.model.operations.executions import (
    AlreadySatisfied,
    Blocked,
    CancelFlowHeader,
    CancelFlowResult,
    Cancelled,
    Cancelling,
    GoneWorkerEntry,
    Marked,
    NotRegistered,
    PriorityChanged,
    Refreshed,
    Registered,
    Rejected,
    Replayed,
    Revoked,
    Unblocked,
    WorkerEntry,
    WorkerLoad,
    WorkerPage,
)
from flowfabric.model.quoting import quoted
from flowfabric.model.records.executions import GoneWorker, Worker
from flowfabric.model.records.flows import Flow
from flowfabric.model.states import PublicState
from flowfabric.stores.questions import GoneWorkers, HeldLeases, ListWorkers, SearchWorkers

_log = logging.getLogger("flowfabric.engine")

#: How ``cancel_flow`` waits: how often it looks, and how long "indefinitely" is.
CANCEL_POLL_S = 0.1
CANCEL_CEILING_MS = 300_000


class Control(EngineBase):
    """The part of the engine that operators live in."""

    async def cancel_execution(
        self,
        *,
        execution_id: ExecutionId | str,
        reason: str = "",
        source: CancelSource | str = CancelSource.OPERATOR_OVERRIDE,
        lease_id: str | None = None,
        lease_epoch: int | None = None,
        attempt_id: str | None = None,
        now: int | None = None,
    ) -> Cancelled:
        """Cancel from any state. Anyone but an operator must show the epoch of a standing lease. A ``lease_id`` is
        compared as well: the one inside the handle, or the one that ``describe_execution`` shows."""
        answer: Cancelled = await self._submit(
            CancelExecution(
                values.execution_id(execution_id),
                values.reason(reason),
                values.text(source, "source"),
                None if lease_epoch is None else values.saturating(lease_epoch, "lease_epoch", 0, 2**63 - 1),
                values.optional_time_ms(now, "now"),
                values.lease_id(lease_id, "lease_id"),
            )
        )
        return answer

    async def request_cancel(self, *, execution_id: ExecutionId | str, reason: str = "") -> Cancelled | Cancelling:
        """Ask an execution to cancel. If it has started and its policy has ``cancel_grace_ms``, its code has that long
        to clean up; then it is cancelled. Any other is cancelled at once. Asking again changes nothing."""
        answer: Cancelled | Cancelling = await self._submit(
            RequestCancel(values.execution_id(execution_id), values.reason(reason))
        )
        return answer

    async def revoke_lease(
        self,
        *,
        execution_id: ExecutionId | str,
        worker_instance_id: str = "",
        expected_lease_id: str | None = None,
        reason: str = "",
    ) -> Revoked | AlreadySatisfied:
        """Take a lease away; the work goes back to the queue at once."""
        answer: Revoked | AlreadySatisfied = await self._submit(
            RevokeLease(
                values.execution_id(execution_id),
                values.optional_text(expected_lease_id, "expected_lease_id"),
                values.text(worker_instance_id, "worker_instance_id"),
                values.reason(reason),
            )
        )
        return answer

    async def give_back(self, handle: Handle, reason: str = "") -> Revoked | AlreadySatisfied:
        """The holder puts its execution back into the queue. The attempt goes on elsewhere under its own number;
        neither a failure nor a lost worker is counted."""
        held = self._payload(handle)
        answer: Revoked | AlreadySatisfied = await self._submit(
            RevokeLease(
                held.execution_id,
                shown_lease(self.store.shown, held),
                held.worker_instance_id,
                values.reason(reason),
                held.lease_id,
            )
        )
        return answer

    async def change_priority(
        self,
        *,
        execution_id: ExecutionId | str,
        new_priority: int,
        lane_id: str | None = None,
        now: int | None = None,
    ) -> PriorityChanged:
        """Move a waiting execution in its lane; the stored lane is the one that counts."""
        answer: PriorityChanged = await self._submit(
            ChangePriority(
                values.execution_id(execution_id), values.priority(new_priority), values.optional_time_ms(now, "now")
            )
        )
        return answer

    async def replay_execution(
        self,
        *,
        execution_id: ExecutionId | str,
        states: Iterable[PublicState | str] | None = None,
        now: int | None = None,
    ) -> Replayed:
        """Run an ended execution again, under the same attempt index. With ``states``, only if it has ended in one of
        them: it may have been replayed, and have succeeded, since somebody looked."""
        answer: Replayed = await self._submit(
            ReplayExecution(
                values.execution_id(execution_id),
                values.optional_time_ms(now, "now"),
                frozenset(
                    text
                    for each in values.few(() if states is None else states, "states")
                    for text in lit.stored_public_states(PublicState(values.public_state(each)))
                ),
            )
        )
        return answer

    # -- admission -----------------------------------------------------------------------------------------------

    async def block_execution_for_admission(
        self, *, execution_id: ExecutionId | str, reason: str, detail: str = "", now: int | None = None
    ) -> Blocked | Rejected:
        """Keep a runnable execution from being claimed."""
        answer: Blocked | Rejected = await self._submit(
            BlockExecution(
                values.execution_id(execution_id),
                values.text(reason, "reason"),
                values.text(detail, "detail", MAX_REASON_BYTES),
            )
        )
        return answer

    async def block_route(
        self, *, execution_id: ExecutionId | str, detail: str = "", now: int | None = None
    ) -> Blocked | Rejected:
        """Keep an execution out of the queue until a worker that can run it registers."""
        return await self.block_execution_for_admission(
            execution_id=execution_id, reason=lit.WAITING_FOR_CAPABLE_WORKER, detail=detail, now=now
        )

    async def unblock_execution(
        self,
        *,
        execution_id: ExecutionId | str,
        expected_blocking_reason: str = "",
        partition: int | None = None,
        lane_id: str | None = None,
        now: int | None = None,
    ) -> Unblocked:
        """Let a blocked execution go."""
        answer: Unblocked = await self._submit(
            UnblockExecution(
                values.execution_id(execution_id), values.text(expected_blocking_reason, "expected_blocking_reason")
            )
        )
        return answer

    # -- flows ---------------------------------------------------------------------------------------------------

    async def cancel_flow_header(
        self, *, flow_id: str, reason: str = "", cancellation_policy: str, now: int | None = None
    ) -> CancelFlowHeader.Cancelled | CancelFlowHeader.AlreadyTerminal:
        """Cancel a flow and every member, leaving a backlog to be acknowledged member by member."""
        flow = values.flow_id(flow_id)
        answer: CancelFlowHeader.Cancelled | CancelFlowHeader.AlreadyTerminal = await self._submit(
            CancelFlowHeaderCommand(
                self._flow_partition(flow),
                flow,
                values.reason(reason),
                values.text(cancellation_policy, "cancellation_policy"),
                values.optional_time_ms(now, "now"),
            )
        )
        return answer

    async def ack_cancel_member(self, flow_id: str, execution_id: ExecutionId | str) -> None:
        """A member's cancellation is done. Silent, and safe to repeat."""
        flow = values.flow_id(flow_id)
        await self._submit(
            AckCancelMembers(self._flow_partition(flow), flow, (str.__str__(values.execution_id(execution_id)),))
        )

    async def cancel_flow(
        self, flow_id: str, policy: str = "cancel_all", wait_ms: int | None = 0, reason: str = ""
    ) -> CancelFlowResult.Cancelled | CancelFlowResult.CancellationScheduled:
        """Cancel a flow with the members its policy names (``cancel_all``, ``cancel_pending``, ``flow_only``).

        ``wait_ms=0`` does not wait, ``None`` waits as long as it takes, up to five minutes. A large flow is cancelled
        in several steps; if one of them cannot be made now, the rest is done by a timer.
        """
        flow = values.flow_id(flow_id)
        if str(policy) not in CANCEL_POLICIES:
            raise values.invalid(f"policy: {quoted(str(policy))} is not one of {', '.join(CANCEL_POLICIES)}")
        ceiling = CANCEL_CEILING_MS if wait_ms is None else min(values.time_ms(wait_ms, "wait_ms"), CANCEL_CEILING_MS)
        partition = self._flow_partition(flow)
        found: CancelledMembers = await self._submit(
            CancelFlow(partition, flow, str(policy), values.reason(reason) or FLOW_CANCELLED)
        )
        ids = dict.fromkeys(found.execution_ids)
        answer: CancelFlowResult.Cancelled | CancelFlowResult.CancellationScheduled
        try:
            while found.after is not None:
                found = await self._submit(CancelFlowMembers(partition, flow, found.after))
                ids.update(dict.fromkeys(found.execution_ids))
            answer = CancelFlowResult.Cancelled(found.policy, tuple(ids))
        except (Contention, Transport, Unavailable) as error:
            _log.warning("cancel_flow: %s: the rest is left to a timer: %s", flow, error)
            answer = CancelFlowResult.CancellationScheduled(found.policy, len(ids), tuple(ids))
        if ceiling:
            await self._until_cancelled(partition, flow, ceiling)
        return answer

    async def await_flow_cancelled(self, flow_id: str, wait_ms: int | None = None) -> None:
        """Wait until a flow that was cancelled has no member left to cancel, as ``cancel_flow`` does."""
        flow = values.flow_id(flow_id)
        ceiling = CANCEL_CEILING_MS if wait_ms is None else min(values.time_ms(wait_ms, "wait_ms"), CANCEL_CEILING_MS)
        # Another process may end the wait.
        self._listen()
        await self._until_cancelled(self._flow_partition(flow), flow, ceiling)

    async def _until_cancelled(self, partition: int, flow: str, ceiling_ms: int) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ceiling_ms / 1000
        while True:
            found = (await self._view(Get(Flow, (partition, flow)))).get(Flow, (partition, flow))
            if found is None or found.public_flow_state == lit.CANCELLED:
                return
            if loop.time() >= deadline:
                raise Timeout("cancel_flow", ceiling_ms)
            await asyncio.sleep(CANCEL_POLL_S)

    # -- workers -------------------------------------------------------------------------------------------------

    async def register_worker(
        self,
        *,
        worker_id: str,
        worker_instance_id: str,
        lanes: Iterable[str],
        capabilities: Iterable[str] = (),
        liveness_ttl_ms: int = 60_000,
        namespace: str = "default",
        now: int | None = None,
        slots: int | None = None,
    ) -> Registered | Refreshed:
        """Announce a worker process that runs ``slots`` executions at once; work that waited for its capabilities is
        let go at once."""
        answer: Registered | Refreshed = await self._submit(
            RegisterWorker(
                values.text(namespace, "namespace"),
                values.text(worker_instance_id, "worker_instance_id", empty=False),
                values.text(worker_id, "worker_id", empty=False),
                tuple(values.lane(lane, "lanes") for lane in values.sequence(lanes, "lanes")),
                values.capability_list(capabilities),
                values.ttl_ms(liveness_ttl_ms, "liveness_ttl_ms"),
                None if slots is None else values.integer(slots, "slots", 0, 2**31 - 1),
            )
        )
        await self._worker_arrived()
        return answer

    async def _worker_arrived(self) -> None:
        """Overridden by the timers, which know how to let blocked work go."""

    async def heartbeat_worker(
        self, *, worker_instance_id: str, namespace: str = "default", now: int | None = None
    ) -> Refreshed | NotRegistered:
        """A worker process is still there."""
        answer: Refreshed | NotRegistered = await self._submit(
            HeartbeatWorker(
                values.text(namespace, "namespace"), values.text(worker_instance_id, "worker_instance_id", empty=False)
            )
        )
        return answer

    async def mark_worker_dead(
        self, *, worker_instance_id: str, namespace: str = "default", reason: str = "", now: int | None = None
    ) -> Marked | NotRegistered:
        """A worker process is gone; its leases run out by themselves."""
        answer: Marked | NotRegistered = await self._submit(
            MarkWorkerDead(
                values.text(namespace, "namespace"),
                values.text(worker_instance_id, "worker_instance_id", empty=False),
                values.text(reason, "reason"),
            )
        )
        return answer

    async def list_workers(
        self, *, namespace: str | None = None, after: str | None = None, limit: int | None = None
    ) -> WorkerPage:
        """Live workers of a namespace by instance id."""
        if namespace is None:
            raise Unavailable("list_workers without a namespace")
        size = values.integer(MAX_PAGE if limit is None else limit, "limit", 0, MAX_PAGE)
        position = values.optional_text(after, "after")
        found = await self._ask(ListWorkers(values.text(namespace, "namespace"), position, size, await self.now_ms()))
        entries = tuple(map(_entry, found))
        return WorkerPage(entries, entries[-1].worker_instance_id if entries and len(entries) == size else None)

    async def search_workers(
        self, *, namespaces: Iterable[str] | None = None, cursor: str | None = None, limit: int = 100
    ) -> WorkerPage:
        """Live workers of these namespaces, or of all, by namespace and instance id."""
        size = values.integer(limit, "limit", 1, MAX_PAGE)
        wanted = SearchWorkers(await self.now_ms(), size + 1, sorted_namespaces(namespaces), pair_of_cursor(cursor))
        found: list[Worker] = await self._ask(wanted)
        entries = tuple(map(_entry, found[:size]))
        return WorkerPage(entries, cursor_of_pair(found[size - 1].key) if len(found) > size else None)

    async def read_worker_load(self, *, namespaces: Iterable[str] | None = None) -> WorkerLoad:
        """How many executions of these namespaces, or of all, each worker instance holds, and which workers have gone
        within a day."""
        own, now = sorted_namespaces(namespaces), await self.now_ms()
        held: dict[str, int] = await self._ask(HeldLeases(now, MAX_HELD_COUNTED, own))
        gone: list[GoneWorker] = await self._ask(GoneWorkers(now - GONE_KEPT_MS, MAX_GONE_SHOWN, own))
        return WorkerLoad(held, tuple(map(_gone_entry, gone)), GONE_KEPT_MS)


def _entry(worker: Worker) -> WorkerEntry:
    return WorkerEntry(
        worker.worker_id,
        worker.worker_instance_id,
        worker.namespace,
        worker.lanes,
        tuple(worker.capabilities_csv.split(",")) if worker.capabilities_csv else (),
        worker.last_heartbeat_ms,
        worker.liveness_ttl_ms,
        worker.registered_at_ms,
        worker.slots,
    )


def _gone_entry(worker: GoneWorker) -> GoneWorkerEntry:
    return GoneWorkerEntry(
        worker.worker_id,
        worker.worker_instance_id,
        worker.namespace,
        worker.lanes,
        tuple(worker.capabilities_csv.split(",")) if worker.capabilities_csv else (),
        worker.last_heartbeat_ms,
        worker.registered_at_ms,
        worker.gone_at_ms,
        worker.reason,
        worker.slots,
    )
