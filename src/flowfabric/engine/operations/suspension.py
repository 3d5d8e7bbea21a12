"""Suspending executions and going on with them: what workers and operators call."""

from __future__ import annotations

import os
from typing import Any

from flowfabric.core.leases.fence import Fence, check_fence
from flowfabric.core.leases.lease import refusal
from flowfabric.core.suspension import waits
from flowfabric.core.suspension.pending_waitpoints import CloseWaitpoint, CreateWaitpoint
from flowfabric.core.suspension.resume import ResumeExecution
from flowfabric.core.suspension.suspend import Suspend
from flowfabric.engine.base import EngineBase
from flowfabric.engine.checks import values, waits as wait_checks
from flowfabric.model.conditions import matches
from flowfabric.model.decisions import Get, Select
from flowfabric.model.errors import NotFound, State, StateKind, Validation, ValidationKind
from flowfabric.model.handles import Handle, HandleKind, HandlePayload
from flowfabric.model.ids import ExecutionId, LeaseFence
from flowfabric.model.limits import MAX_PAGE
from flowfabric.model.operations.suspension import (
    PendingWaitpoint,
    Resumed,
    ResumeSignal,
    ResumeTrigger,
    SuspendArgs,
    Suspended,
    SuspendOutcome,
    WaitpointEntry,
    WaitpointPage,
)
from flowfabric.model.quoting import quoted
from flowfabric.model.records.executions import Attempt, Execution, Signal, Suspension, Waitpoint
from flowfabric.model.waitpoint_tokens import Token, fingerprint
from flowfabric.stores.questions import ListWaitpoints

DEFAULT_PAGE = 100


class Suspensions(EngineBase):
    """The part of the engine that lets executions wait."""

    async def suspend(self, handle: Handle, args: SuspendArgs) -> Suspended | SuspendOutcome.AlreadySatisfied:
        """Give up the lease until the condition holds; the same attempt goes on later.

        ``AlreadySatisfied`` means that signals which came early were enough: the lease is kept, go on with the handle.
        With an idempotency key the call may be repeated after a lost reply and gets the first answer again.
        """
        handle = values.handle(handle)
        if handle.kind is HandleKind.SUSPENDED:
            raise State(StateKind.ALREADY_SUSPENDED, "the handle belongs to a suspended execution")
        payload = self._payload(handle)
        return await self._suspend(ExecutionId.unchecked(payload.execution_id), payload, handle.kind, None, args)

    async def suspend_by_triple(
        self, execution_id: ExecutionId | str, fence: LeaseFence, args: SuspendArgs
    ) -> Suspended | SuspendOutcome.AlreadySatisfied:
        """``suspend`` for callers that know the lease but hold no handle."""
        identity = values.execution_id(execution_id)
        given = values.fence(fence)
        check_fence(Fence(identity, 0, given, overridable=False))
        return await self._suspend(identity, None, HandleKind.FRESH, given, args)

    async def _suspend(
        self,
        identity: ExecutionId,
        payload: HandlePayload | None,
        kind: HandleKind,
        fence: LeaseFence | None,
        args: SuspendArgs,
    ) -> Suspended | SuspendOutcome.AlreadySatisfied:
        self._check_open()
        wait, key = wait_checks.wait(args, await self.now_ms())
        uuid = identity.uuid_text
        answer: Suspended | SuspendOutcome.AlreadySatisfied = await self._submit(
            Suspend(
                str.__str__(identity),
                identity.partition,
                uuid,
                payload,
                kind,
                fence,
                wait,
                f"{uuid}:{key}" if key else "",
                os.urandom(32),
            )
        )
        return answer

    async def resume_execution(
        self,
        *,
        execution_id: ExecutionId | str,
        trigger_type: ResumeTrigger | str = ResumeTrigger.OPERATOR,
        resume_delay_ms: int = 0,
        now: int | None = None,
    ) -> Resumed:
        """Let a suspended execution go on, whatever it waits for."""
        identity = values.execution_id(execution_id)
        if values.text(trigger_type, "trigger_type") not in tuple(ResumeTrigger):
            raise values.invalid(f"trigger_type: {quoted(trigger_type)} is not one of {', '.join(ResumeTrigger)}")
        values.optional_time_ms(now, "now")
        delay = values.time_ms(resume_delay_ms, "resume_delay_ms")
        answer: Resumed = await self._submit(
            ResumeExecution(str.__str__(identity), identity.partition, identity.uuid_text, delay)
        )
        return answer

    # -- waitpoints ----------------------------------------------------------------------------------------------

    async def create_waitpoint(self, handle: Handle, waitpoint_key: str, expires_in: int) -> PendingWaitpoint:
        """A waitpoint whose token can be handed out before suspending; early signals are kept for ``UsePending``.

        ``expires_in`` is a number of milliseconds or a ``timedelta``. Each call makes a new waitpoint.
        """
        payload = self._payload(handle)
        key = values.text(waitpoint_key, "waitpoint_key")
        if not key:
            raise Validation(ValidationKind.INVALID_WAITPOINT_KEY, "waitpoint_key: must not be empty")
        answer: PendingWaitpoint = await self._submit(
            CreateWaitpoint(
                payload,
                ExecutionId.unchecked(payload.execution_id).partition,
                wait_checks.new_uuid(),
                key,
                _milliseconds(expires_in),
                os.urandom(32),
            )
        )
        return answer

    async def close_waitpoint(
        self,
        *,
        execution_id: ExecutionId | str,
        waitpoint_id: str,
        reason: str = waits.PROACTIVE_CLOSE,
        now: int | None = None,
    ) -> None:
        """Take no more signals on a waitpoint. An execution suspended on it stays suspended; safe to repeat."""
        identity = values.execution_id(execution_id)
        values.optional_time_ms(now, "now")
        await self._submit(
            CloseWaitpoint(
                identity.partition,
                identity.uuid_text,
                values.uuid(waitpoint_id, "waitpoint_id"),
                values.text(reason, "reason") or waits.PROACTIVE_CLOSE,
            )
        )

    async def read_waitpoint_token(
        self,
        partition: int,
        waitpoint_id: str,
        execution_id: ExecutionId | str | None = None,
        *,
        closed: bool = False,
    ) -> Token | None:
        """The token of an open waitpoint. This is the credential itself: give it to nobody who may not signal.

        With ``execution_id`` only a waitpoint of that execution is found. With ``closed`` one that takes no more
        signals is found too, for comparing a token with its own."""
        values.flag(closed, "closed")
        key = (values.partition(partition), values.uuid(waitpoint_id, "waitpoint_id"))
        owner = None if execution_id is None else values.execution_id(execution_id)
        waitpoint = (await self._view(Get(Waitpoint, key))).get(Waitpoint, key)
        if waitpoint is None or (owner is not None and (owner.partition, owner.uuid_text) != (key[0], waitpoint.uuid)):
            return None
        if not waitpoint.token:
            return None
        if closed:
            return Token(waitpoint.token)
        if waitpoint.state not in waits.OPEN_STATES:
            return None
        pending = waitpoint.state == waits.PENDING and waitpoint.expires_at_ms is not None
        if pending and waitpoint.expires_at_ms <= await self.now_ms():  # type: ignore[operator]
            return None
        return Token(waitpoint.token)

    async def list_pending_waitpoints(
        self, *, execution_id: ExecutionId | str, after: str | None = None, limit: int = DEFAULT_PAGE
    ) -> WaitpointPage:
        """Pending and active waitpoints of an execution, by id, without their tokens."""
        identity = values.execution_id(execution_id)
        size = min(max(values.saturating(limit, "limit", 0, MAX_PAGE), 1), MAX_PAGE)
        position = None if after is None else values.uuid(after, "after")
        if (await self._view(Get(Execution, identity))).execution(identity) is None:
            raise NotFound("execution")
        found = await self._ask(ListWaitpoints(identity.partition, identity.uuid_text, position, size + 1))
        entries = tuple(_entry(each, identity) for each in found[:size])
        return WaitpointPage(entries, entries[-1].waitpoint_id if len(found) > size else None)

    async def observe_signals(self, handle: Handle) -> tuple[ResumeSignal, ...]:
        """The signals that the last suspension of this attempt waited for, in the order they were accepted."""
        payload = self._payload(handle)
        identity = ExecutionId.unchecked(payload.execution_id)
        where = (identity.partition, identity.uuid_text)
        attempt_key = (payload.execution_id, payload.attempt_index)
        view = await self._view(Get(Execution, payload.execution_id), Get(Attempt, attempt_key), Get(Suspension, where))
        execution = view.execution(payload.execution_id)
        error = refusal(payload, execution, view.get(Attempt, attempt_key), await self.now_ms())
        if error is not None:
            raise error
        suspension = view.get(Suspension, where)
        if suspension is None or suspension.attempt_index not in (None, payload.attempt_index):
            return ()
        terms = waits.read_terms(suspension)
        asked = [{"partition": where[0], "uuid": where[1], "waitpoint_id": each} for each in terms.waitpoints]
        view = await self._view(*(Select(Signal, tuple(each), tuple(each.values())) for each in asked))
        signals = [signal for each in asked for signal in view.select(Signal, **each)]
        return tuple(_observed(terms, suspension.closer_signal_id, signals))


def _observed(terms: waits.Terms, closer: str | None, signals: list[Signal]) -> list[ResumeSignal]:
    return [
        ResumeSignal(
            signal.signal_id,
            signal.signal_name,
            signal.signal_category,
            signal.source_type,
            signal.source_identity,
            signal.correlation_id,
            signal.accepted_at_ms,
            signal.payload,
            signal.waitpoint_key,
        )
        for signal in sorted(signals, key=lambda each: each.sequence)
        if signal.signal_id == closer or matches(terms.condition, signal.waitpoint_key, waits.heard_of(signal))
    ]


def _entry(waitpoint: Waitpoint, identity: ExecutionId) -> WaitpointEntry:
    return WaitpointEntry(
        waitpoint.waitpoint_id,
        waitpoint.waitpoint_key,
        waitpoint.state,
        waitpoint.required_signal_names,
        waitpoint.created_at_ms,
        waitpoint.activated_at_ms,
        waitpoint.expires_at_ms,
        identity,
        waitpoint.token_kid,
        fingerprint(waitpoint.token),
    )


def _milliseconds(value: Any) -> int:
    if hasattr(value, "total_seconds"):
        value = int(value.total_seconds() * 1000)
    return values.time_ms(value, "expires_in")
