"""Claiming work and holding it: what workers call."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from typing import Any

from flowfabric.ascending import ascending_bytes
from flowfabric.core.executions.cancel import CancelHeld
from flowfabric.core.executions.complete import FINAL_CLASSES, Complete, CompleteExecution, Fail, FailExecution
from flowfabric.core.leases.claim import ClaimExecution, ClaimFromResumeGrant, ClaimResumedExecution, IssueGrantAndClaim
from flowfabric.core.leases.decline import Decline
from flowfabric.core.leases.fence import Fence
from flowfabric.core.leases.grants import ClaimForWorker, IssueClaimGrant
from flowfabric.core.leases.hold import Delay, Progress, Renew, RenewLease, WaitChildren
from flowfabric.core.leases.reclaim import IssueReclaimGrant, ReclaimExecution
from flowfabric.core.streams.append import AppendFrame, AppendFrames
from flowfabric.engine.checks import frames as frame_checks, steps as step_checks, values
from flowfabric.engine.operations.claim import Claiming
from flowfabric.model.errors import EngineError
from flowfabric.model.handles import Handle
from flowfabric.model.ids import ExecutionId, LeaseFence
from flowfabric.model.limits import MAX_CLAIM, MAX_REASON_BYTES
from flowfabric.model.operations.executions import (
    Cancelled,
    Claimed,
    Completed,
    Declined,
    Delayed,
    FailOutcome,
    FailureClass,
    Granted,
    GrantIssued,
    GrantNotFound,
    LeaseRenewal,
    Moved,
    NotReclaimable,
    NoWork,
    OperatorLease,
    ReclaimCapExceeded,
    Reclaimed,
    Renewed,
    ResumeToken,
)
from flowfabric.model.operations.workflows import NewStep
from flowfabric.model.states import PublicState
from flowfabric.model.streams.frames import AppendFrameOutcome, Frame
from flowfabric.stores.questions import LiveWorkers

_MAX_WORKERS = 10_000
_CLASSES = frozenset(each.value for each in FailureClass)


class Leases(Claiming):
    """The part of the engine that workers live in."""

    # -- claiming by name ----------------------------------------------------------------------------------------

    async def claim_for_worker(
        self,
        *,
        lane_id: str,
        worker_id: str,
        worker_instance_id: str,
        worker_capabilities: Iterable[str] | None = None,
        grant_ttl_ms: int = 5_000,
        namespaces: Iterable[str] | None = None,
    ) -> Granted | NoWork:
        """A grant for the next execution this worker could run, to be redeemed with ``claim_execution``."""
        command = ClaimForWorker(
            "",
            values.text(worker_id, "worker_id", empty=False),
            values.text(worker_instance_id, "worker_instance_id", empty=False),
            values.lane(lane_id),
            values.capability_list(worker_capabilities),
            values.ttl_ms(grant_ttl_ms, "grant_ttl_ms"),
            None,
            None,
            None,
            os.urandom(32),
            values.namespaces(namespaces),
        )
        answer: Granted | NoWork = await self._claim_timed(lambda: command, lane_id)
        return answer

    async def issue_claim_grant(
        self,
        *,
        execution_id: ExecutionId | str,
        lane_id: str,
        worker_id: str,
        worker_instance_id: str,
        worker_capabilities: Iterable[str] | None = None,
        grant_ttl_ms: int = 5_000,
        partition: int | None = None,
        capability_hash: str | None = None,
        route_snapshot_json: str | None = None,
        admission_summary: str | None = None,
        now: int | None = None,
    ) -> GrantIssued:
        """Promise one execution to one worker; nobody else can claim it until the grant expires."""
        values.lane(lane_id)
        answer: GrantIssued = await self._submit(
            IssueClaimGrant(
                values.execution_id(execution_id),
                values.text(worker_id, "worker_id", empty=False),
                values.text(worker_instance_id, "worker_instance_id", empty=False),
                None,
                values.capability_list(worker_capabilities),
                values.ttl_ms(grant_ttl_ms, "grant_ttl_ms"),
                values.optional_text(capability_hash, "capability_hash"),
                values.optional_text(route_snapshot_json, "route_snapshot_json", MAX_REASON_BYTES),
                values.optional_text(admission_summary, "admission_summary", MAX_REASON_BYTES),
                os.urandom(32),
            )
        )
        return answer

    async def claim_execution(
        self,
        *,
        execution_id: ExecutionId | str,
        worker_id: str,
        worker_instance_id: str,
        lane_id: str,
        lease_id: str,
        lease_ttl_ms: int,
        attempt_id: str,
        expected_attempt_index: int = 0,
        attempt_policy_json: str = "",
        attempt_timeout_ms: int | None = None,
        execution_deadline_at: int | None = None,
        now: int | None = None,
    ) -> Claimed:
        """Redeem a claim grant. ``lease_id`` must be new, as for every lease; ``expected_attempt_index`` is
        advisory."""
        answer: Claimed = await self._submit(
            ClaimExecution(
                values.execution_id(execution_id),
                values.text(worker_id, "worker_id", empty=False),
                values.text(worker_instance_id, "worker_instance_id", empty=False),
                values.lane(lane_id),
                values.uuid(lease_id, "lease_id"),
                values.ttl_ms(lease_ttl_ms, "lease_ttl_ms"),
                values.uuid(attempt_id, "attempt_id"),
                values.json_object(attempt_policy_json, "attempt_policy_json"),
                None if attempt_timeout_ms is None else values.time_ms(attempt_timeout_ms, "attempt_timeout_ms"),
                values.optional_time_ms(execution_deadline_at, "execution_deadline_at"),
            )
        )
        return answer

    async def claim_resumed_execution(
        self,
        *,
        execution_id: ExecutionId | str,
        worker_id: str,
        worker_instance_id: str,
        lane_id: str,
        lease_id: str,
        lease_ttl_ms: int,
        current_attempt_index: int = 0,
        remaining_attempt_timeout_ms: int | None = None,
        now: int | None = None,
    ) -> Claimed:
        """Continue an interrupted attempt by name. ``lease_id`` must be new, as for every lease."""
        remaining = remaining_attempt_timeout_ms
        answer: Claimed = await self._submit(
            ClaimResumedExecution(
                values.execution_id(execution_id),
                values.text(worker_id, "worker_id", empty=False),
                values.text(worker_instance_id, "worker_instance_id", empty=False),
                values.lane(lane_id),
                values.uuid(lease_id, "lease_id"),
                values.ttl_ms(lease_ttl_ms, "lease_ttl_ms"),
                None if remaining is None else values.time_ms(remaining, "remaining_attempt_timeout_ms"),
                ascending_bytes(),
            )
        )
        return answer

    async def claim_from_resume_grant(self, token: ResumeToken) -> Handle | None:
        """Take over the newest attempt of an execution whose lease is over; ``None`` while somebody holds it."""
        checked = values.resume_token(token)
        handle: Handle | None = await self._submit(ClaimFromResumeGrant(checked, ascending_bytes(2)))
        return handle

    async def issue_grant_and_claim(
        self, *, execution_id: ExecutionId | str, lane_id: str, lease_duration_ms: int
    ) -> OperatorLease:
        """An operator takes one execution by name."""
        answer: OperatorLease = await self._submit(
            IssueGrantAndClaim(
                values.execution_id(execution_id),
                values.lane(lane_id),
                values.ttl_ms(lease_duration_ms, "lease_duration_ms"),
                ascending_bytes(2),
            )
        )
        return answer

    async def issue_reclaim_grant(
        self,
        *,
        execution_id: ExecutionId | str,
        worker_id: str,
        worker_instance_id: str,
        lane_id: str,
        grant_ttl_ms: int = 5_000,
        worker_capabilities: Iterable[str] | None = None,
        capability_hash: str | None = None,
        route_snapshot_json: str | None = None,
        admission_summary: str | None = None,
        now: int | None = None,
    ) -> Granted | NotReclaimable | ReclaimCapExceeded:
        """Let one worker take over an execution whose holder is gone."""
        answer: Granted | NotReclaimable | ReclaimCapExceeded = await self._submit(
            IssueReclaimGrant(
                values.execution_id(execution_id),
                values.text(worker_id, "worker_id", empty=False),
                values.text(worker_instance_id, "worker_instance_id", empty=False),
                values.lane(lane_id),
                values.capability_list(worker_capabilities),
                values.ttl_ms(grant_ttl_ms, "grant_ttl_ms"),
                values.optional_text(capability_hash, "capability_hash"),
                values.optional_text(route_snapshot_json, "route_snapshot_json", MAX_REASON_BYTES),
                values.optional_text(admission_summary, "admission_summary", MAX_REASON_BYTES),
                os.urandom(32),
            )
        )
        return answer

    async def reclaim_execution(
        self,
        *,
        execution_id: ExecutionId | str,
        worker_id: str,
        worker_instance_id: str,
        lane_id: str,
        lease_id: str,
        lease_ttl_ms: int,
        attempt_id: str,
        attempt_policy_json: str = "",
        max_reclaim_count: int | None = None,
        capability_hash: str | None = None,
        old_worker_instance_id: str | None = None,
        current_attempt_index: int | None = None,
    ) -> Reclaimed | NotReclaimable | ReclaimCapExceeded | GrantNotFound:
        """Use a reclaim grant: the execution goes on under a new attempt. ``lease_id`` must be new, as for every
        lease."""
        identity = values.execution_id(execution_id)
        cap = max_reclaim_count
        answer: Reclaimed | NotReclaimable | ReclaimCapExceeded | GrantNotFound = await self._submit(
            ReclaimExecution(
                identity,
                identity.partition,
                identity.uuid_text,
                values.text(worker_id, "worker_id", empty=False),
                values.text(worker_instance_id, "worker_instance_id", empty=False),
                values.lane(lane_id),
                values.uuid(lease_id, "lease_id"),
                values.ttl_ms(lease_ttl_ms, "lease_ttl_ms"),
                values.uuid(attempt_id, "attempt_id"),
                values.json_object(attempt_policy_json, "attempt_policy_json"),
                None if cap is None else values.integer(cap, "max_reclaim_count", 0, 2**32 - 1),
            )
        )
        return answer

    # -- holding -------------------------------------------------------------------------------------------------

    async def renew(self, handle: Handle) -> LeaseRenewal:
        """Keep the lease for another time to live."""
        answer: LeaseRenewal = await self._submit(Renew(self._payload(handle)))
        return answer

    async def renew_many(self, handles: Iterable[Handle]) -> list[LeaseRenewal | EngineError]:
        """Keep many leases, in as few commits as possible; for each what came of it."""
        given = list(values.sequence(handles, "handles"))
        if len(given) > MAX_CLAIM:
            raise values.invalid(f"handles: at most {MAX_CLAIM} at once, got {len(given)}")
        commands = [Renew(self._payload(handle)) for handle in given]
        return await self._submit_many(commands) if commands else []

    async def renew_lease(
        self,
        *,
        execution_id: ExecutionId | str,
        attempt_index: int,
        fence: LeaseFence | None,
        lease_ttl_ms: int,
        lease_history_grace_ms: int = 60_000,
    ) -> Renewed:
        """Keep a lease by id and fence."""
        gate = _fence(execution_id, attempt_index, fence, "", overridable=False)
        answer: Renewed = await self._submit(RenewLease(gate, values.ttl_ms(lease_ttl_ms, "lease_ttl_ms")))
        return answer

    async def progress(self, handle: Handle, percent: int | None = None, message: str | None = None) -> None:
        """Say how far the work is; what is left out stays as it was."""
        payload = self._payload(handle)
        if percent is not None:
            percent = values.integer(percent, "percent", 0, 100)
        await self._submit(Progress(payload, percent, None if message is None else values.reason(message, "message")))

    async def append_frame(self, handle: Handle, frame: Frame, number: int | None = None) -> AppendFrameOutcome:
        """Write one frame to the attempt's stream.

        With a ``number``, asking again after a lost answer writes nothing and gives the same id: numbers of a lease
        rise, and are used one after the other. A frame that ``opens`` output which was begun before (by an earlier
        holder, in an earlier attempt, at an earlier try of its step) is preceded by a restart frame.
        """
        payload = self._payload(handle)
        numbered = frame_checks.append_number(number)
        (checked,) = frame_checks.opening((frame_checks.frame(frame),), numbered)
        answer: AppendFrameOutcome = await self._submit(AppendFrame(payload, checked, numbered))
        return answer

    async def append_frames(
        self, handle: Handle, frames: Iterable[Frame], number: int | None = None
    ) -> list[AppendFrameOutcome]:
        """Write several durable frames in one step: all of them or none, in this order; ``number`` as in
        ``append_frame``, one for all of them."""
        payload = self._payload(handle)
        checked = frame_checks.durable_frames(frames)
        if not checked:
            return []
        numbered = frame_checks.append_number(number)
        answer: list[AppendFrameOutcome] = await self._submit(
            AppendFrames(payload, frame_checks.opening(checked, numbered), numbered)
        )
        return answer

    async def delay(self, handle: Handle, delay_until: int) -> None:
        """Step back until a point in time; the same attempt goes on then."""
        await self._submit(Delay(self._payload(handle), None, values.time_ms(delay_until, "delay_until")))

    async def delay_execution(
        self,
        *,
        execution_id: ExecutionId | str,
        delay_until: int,
        attempt_index: int = 0,
        fence: LeaseFence | None = None,
        source: str = "",
        now: int | None = None,
    ) -> Delayed:
        """``delay`` by id and fence, or by an operator."""
        gate = _fence(execution_id, attempt_index, fence, source)
        found = await self._submit(Delay(None, gate, values.time_ms(delay_until, "delay_until")))
        return Delayed(found, PublicState.DELAYED)

    async def decline(self, handle: Handle, reason: str = "") -> Declined:
        """Leave to other workers what this one's code does not know. The attempt goes on later, and no try is counted.
        When every live worker of the lane has declined it for ten minutes, nothing changes, and the answer says that it
        is to be failed."""
        held = self._payload(handle)
        workers = await self._ask(LiveWorkers(await self.now_ms(), _MAX_WORKERS))
        answer: Declined = await self._submit(Decline(held, values.reason(reason), tuple(workers)))
        return answer

    async def wait_children(self, handle: Handle) -> None:
        """Step back until the members this one depends on are done."""
        await self._submit(WaitChildren(self._payload(handle), None))

    async def move_to_waiting_children(
        self,
        *,
        execution_id: ExecutionId | str,
        attempt_index: int = 0,
        fence: LeaseFence | None = None,
        source: str = "",
        now: int | None = None,
    ) -> Moved:
        """``wait_children`` by id and fence, or by an operator."""
        found = await self._submit(WaitChildren(None, _fence(execution_id, attempt_index, fence, source)))
        return Moved(found, PublicState.WAITING_CHILDREN)

    # -- ending --------------------------------------------------------------------------------------------------

    async def complete(
        self,
        handle: Handle,
        payload: bytes | None = None,
        *,
        steps: Iterable[NewStep] = (),
        known_steps: int | None = None,
    ) -> None:
        """End with success. Repeated after a lost reply, the same answer.

        ``steps`` and ``known_steps`` are as for ``advance``: what a durable function did last is remembered by the
        commit that ends it.
        """
        held = self._payload(handle)
        told = step_checks.brought(ExecutionId.unchecked(held.execution_id), steps, known_steps) if steps else None
        await self._submit(Complete(held, values.payload(payload, "payload"), told))

    async def complete_execution(
        self,
        *,
        execution_id: ExecutionId | str,
        attempt_index: int = 0,
        fence: LeaseFence | None = None,
        result_payload: bytes | None = None,
        result_encoding: str | None = None,
        source: str = "",
        now: int | None = None,
    ) -> Completed:
        """``complete`` by id and fence, or by an operator."""
        gate = _fence(execution_id, attempt_index, fence, source)
        answer: Completed = await self._submit(
            CompleteExecution(gate, values.payload(result_payload, "result_payload"))
        )
        return answer

    async def fail(
        self,
        handle: Handle,
        reason: str,
        failure_class: FailureClass | str = FailureClass.TRANSIENT,
        detail: bytes | str | None = None,
    ) -> FailOutcome:
        """Give up this attempt: ``RetryScheduled`` or ``TerminalFailed``, as policy and class say.

        A non-empty ``detail`` replaces the class's name as the category that ``retryable_categories`` looks at.
        """
        payload = self._payload(handle)
        kind = values.text(failure_class, "failure_class")
        category = _category(detail) or (kind if kind in _CLASSES else FailureClass.TRANSIENT.value)
        answer: FailOutcome = await self._submit(
            Fail(payload, values.reason(reason), category, kind not in FINAL_CLASSES, _jitter())
        )
        return answer

    async def fail_execution(
        self,
        *,
        execution_id: ExecutionId | str,
        attempt_index: int = 0,
        fence: LeaseFence | None = None,
        failure_reason: str,
        failure_category: str = "",
        retry_policy_json: str = "",
        next_attempt_policy_json: str = "",
        source: str = "",
        now: int | None = None,
    ) -> FailOutcome:
        """``fail`` by id and fence; the given retry policy decides, an empty one means no retries."""
        gate = _fence(execution_id, attempt_index, fence, source)
        answer: FailOutcome = await self._submit(
            FailExecution(
                gate,
                values.reason(failure_reason, "failure_reason"),
                values.text(failure_category, "failure_category"),
                values.text(retry_policy_json, "retry_policy_json", MAX_REASON_BYTES),
                _jitter(),
            )
        )
        return answer

    async def cancel(self, handle: Handle, reason: str = "") -> Cancelled:
        """The holder cancels its own execution. Repeated after a lost reply, the same answer."""
        answer: Cancelled = await self._submit(CancelHeld(self._payload(handle), values.reason(reason)))
        return answer


def _fence(
    execution_id: Any, attempt_index: Any, fence: LeaseFence | None, source: Any, *, overridable: bool = True
) -> Fence:
    return Fence(
        values.execution_id(execution_id),
        values.integer(attempt_index, "attempt_index", 0, 2**31 - 1),
        values.fence(fence),
        values.text(source, "source"),
        overridable,
    )


def _jitter() -> float:
    """A factor for backoffs that want to be spread out."""
    return random.uniform(0.5, 1.0)


def _category(detail: bytes | str | None) -> str:
    if isinstance(detail, bytes):
        try:
            detail = detail.decode()
        except UnicodeDecodeError:
            return ""
    return "" if detail is None else values.text(detail, "detail", MAX_REASON_BYTES)
