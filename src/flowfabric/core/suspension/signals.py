"""Delivering signals: authenticated first, recorded once, judged against the condition in the same commit."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context, saturate
from flowfabric.core.suspension import waits
from flowfabric.core.suspension.signing import authenticated
from flowfabric.model import states as lit
from flowfabric.model.conditions import COUNTING, Effect, Heard, Unreadable, effect_of, matches, with_signal
from flowfabric.model.counting import counted
from flowfabric.model.decisions import Act, Change, Decision, Get, Need, change, insert
from flowfabric.model.errors import (
    Contention,
    ContentionKind,
    NotFound,
    State,
    StateKind,
    Validation,
    ValidationKind,
)
from flowfabric.model.events import SignalEvent
from flowfabric.model.operations.suspension import Accepted, DeliverSignalResult
from flowfabric.model.policy import read_policy
from flowfabric.model.quoting import quoted
from flowfabric.model.records.executions import Execution, Signal, SignalDedup, SigningKey, Suspension, Waitpoint
from flowfabric.model.waitpoint_tokens import Token, parse_token


class DeliverSignal(Struct, gc=False):
    """A signal for one waitpoint, with the token that allows it. A key with ``dedup_ttl_ms`` 0 is not remembered."""

    execution_id: str
    partition: int
    uuid: str
    waitpoint_id: str
    waitpoint_token: Token
    signal_id: str
    signal_name: str
    signal_category: str
    source_type: str
    source_identity: str
    payload: bytes | None
    payload_encoding: str
    correlation_id: str | None
    idempotency_key: str
    target_scope: str
    created_at_ms: int | None
    dedup_ttl_ms: int
    resume_delay_ms: int
    #: ``None`` takes the limit of the execution's policy, 0 means none.
    max_signals: int | None
    #: Whether the signal's id was made for this call, so that nobody can have used it before.
    new_id: bool = False

    def needs(self) -> tuple[Need, ...]:
        needs: list[Need] = [
            Get(Execution, self.execution_id),
            Get(Waitpoint, (self.partition, self.waitpoint_id)),
            Get(Signal, (self.partition, self.uuid, self.signal_id)),
            Get(Suspension, (self.partition, self.uuid)),
        ]
        parts = parse_token(self.waitpoint_token)
        if parts is not None:
            needs.append(Get(SigningKey, parts.kid))
        if self.remembers:
            needs.append(Get(SignalDedup, (self.partition, self.waitpoint_id, self.idempotency_key)))
        return tuple(needs)

    @property
    def remembers(self) -> bool:
        """Whether the idempotency key counts."""
        return bool(self.idempotency_key) and self.dedup_ttl_ms > 0


def deliver_signal(command: DeliverSignal, view: View, context: Context) -> Decision:
    """Recorded once: buffered on a pending waitpoint, judged on an active one. The token comes before any state."""
    execution = view.execution(command.execution_id)
    if execution is None:
        raise NotFound("execution")
    stored = view.get(Waitpoint, (command.partition, command.waitpoint_id))
    waitpoint = stored if stored is not None and stored.uuid == execution.uuid else None
    authenticated(view, command.waitpoint_token, execution.execution_id, waitpoint, command.waitpoint_id, context.now)
    assert waitpoint is not None
    before = _delivered_before(command, view, context.now)
    if before is not None:
        return Decision(DeliverSignalResult.Duplicate(before))
    _check_open(command, execution, waitpoint, context.now)
    if waitpoint.state == waits.PENDING:
        return _accepted(command, view, context, execution, waitpoint, Effect.BUFFERED, matched=False)
    return _judged(command, view, context, execution, waitpoint)


def _delivered_before(command: DeliverSignal, view: View, now: int) -> str | None:
    """The signal that this one repeats, by its idempotency key on this waitpoint or by its id."""
    if command.remembers:
        known = view.get(SignalDedup, (command.partition, command.waitpoint_id, command.idempotency_key))
        if known is not None and known.expires_at_ms > now:
            return known.signal_id
    signal = view.get(Signal, (command.partition, command.uuid, command.signal_id))
    return None if signal is None else signal.signal_id


def _check_open(command: DeliverSignal, execution: Execution, waitpoint: Waitpoint, now: int) -> None:
    where = f"execution {execution.execution_id}, waitpoint {waitpoint.waitpoint_id}"
    if execution.lifecycle_phase in lit.ENDED_PHASES:
        raise State(StateKind.TARGET_NOT_SIGNALABLE, f"execution {execution.execution_id} is {execution.public_state}")
    if waitpoint.state == waits.CLOSED:
        raise State(StateKind.WAITPOINT_CLOSED, where)
    pending = waitpoint.state == waits.PENDING
    late = pending and waitpoint.expires_at_ms is not None and waitpoint.expires_at_ms <= now
    if late or waitpoint.state == waits.EXPIRED:
        raise State(StateKind.PENDING_WAITPOINT_EXPIRED, where)
    if waitpoint.state not in waits.OPEN_STATES:
        raise State(StateKind.WAITPOINT_NOT_OPEN, f"{where} is {waitpoint.state}")
    limit = _limit(execution) if command.max_signals is None else command.max_signals
    if limit and (execution.signal_count or 0) >= limit:
        raise Validation(
            ValidationKind.SIGNAL_LIMIT_EXCEEDED, f"{counted(limit, 'signal')}, execution {execution.execution_id}"
        )


def _limit(execution: Execution) -> int:
    return read_policy(execution.policy).max_signals_per_execution


def _judged(
    command: DeliverSignal, view: View, context: Context, execution: Execution, waitpoint: Waitpoint
) -> Decision:
    """A signal on an active waitpoint: does the condition hold with it?"""
    suspension = view.get(Suspension, (command.partition, command.uuid))
    if suspension is None or suspension.closed_at_ms is not None:
        raise Contention(ContentionKind.WAITPOINT_NOT_FOUND, f"waitpoint {waitpoint.waitpoint_id}: nothing waits on it")
    terms = waits.read_terms(suspension)
    if isinstance(terms.condition, Unreadable):
        # Recorded here, it would never count; refused, it can be delivered through a process that knows.
        raise Validation(
            ValidationKind.CORRUPTION,
            f"ff_suspension_current.condition: execution {execution.execution_id}: this release cannot read it; "
            "deliver the signal through a later one, or resume the execution by hand",
        )
    heard = waits.read_heard(suspension)
    key = waitpoint.waitpoint_key
    said = _said(command, context.now)
    effect = effect_of(terms.condition, heard, key, said)
    matched = matches(terms.condition, key, said)
    if effect in COUNTING:
        heard = with_signal(heard, key, said)
    if effect is not Effect.SATISFIED:
        noted = (change(suspension, member_map=waits.dump(heard)),) if effect in COUNTING else ()
        return _accepted(command, view, context, execution, waitpoint, effect, matched=matched, also=noted)
    delay = command.resume_delay_ms or terms.resume_policy.resume_delay_ms or 0
    closing = waits.Closing(waits.RESUMED, delay, command.signal_id, heard)
    count = (execution.signal_count or 0) + 1
    resumed = waits.resumed(view, context, execution, suspension, closing, signal_count=count)
    return _accepted(command, view, context, execution, waitpoint, effect, matched=matched, also=resumed, counted=True)


def _said(command: DeliverSignal, now: int) -> Heard:
    return Heard(
        command.signal_id,
        command.signal_name,
        command.source_type,
        command.source_identity,
        command.signal_category,
        command.correlation_id,
        now,
    )


def _accepted(
    command: DeliverSignal,
    view: View,
    context: Context,
    execution: Execution,
    waitpoint: Waitpoint,
    effect: Effect,
    *,
    matched: bool,
    also: tuple[Change, ...] = (),
    counted: bool = False,
) -> Decision:
    """The record, the counters and the event of an accepted signal. ``counted`` says ``also`` has counted it."""
    now = context.now
    count = (execution.signal_count or 0) + 1
    acts: list[Act] = [*also]
    for each in also:
        # The waitpoint may close in the same step.
        if isinstance(each.record, Waitpoint) and each.record.waitpoint_id == waitpoint.waitpoint_id:
            waitpoint = each.record
    if not counted:
        acts.append(change(execution, signal_count=count, last_mutation_at_ms=now))
    acts.append(
        change(
            waitpoint,
            signal_count=waitpoint.signal_count + 1,
            matched_signal_count=waitpoint.matched_signal_count + matched,
            last_signal_at_ms=now,
        )
    )
    acts.append(insert(_record(command, waitpoint, waits.last_sequence(execution) + 1, effect, now)))
    if command.remembers:
        acts.append(_remembered(command, view, now))
    event = SignalEvent(
        execution.partition,
        execution.uuid,
        command.signal_id,
        waitpoint.waitpoint_id,
        command.source_identity,
        now,
        execution.namespace,
        execution.instance_tag,
        effect.value,
    )
    return Decision(Accepted(command.signal_id, effect.value), tuple(acts), (event,))


def _record(command: DeliverSignal, waitpoint: Waitpoint, sequence: int, effect: Effect, now: int) -> Signal:
    return Signal(
        command.partition,
        command.uuid,
        command.signal_id,
        sequence,
        waitpoint.waitpoint_id,
        waitpoint.waitpoint_key,
        command.signal_name,
        command.signal_category,
        command.source_type,
        command.source_identity,
        command.correlation_id,
        command.idempotency_key or None,
        command.payload,
        command.payload_encoding,
        command.target_scope,
        now if command.created_at_ms is None else command.created_at_ms,
        now,
        effect.value,
    )


def _remembered(command: DeliverSignal, view: View, now: int) -> Act:
    """The idempotency key leads to this signal from now on."""
    row = SignalDedup(
        command.partition,
        command.waitpoint_id,
        command.idempotency_key,
        command.signal_id,
        saturate(now + command.dedup_ttl_ms),
    )
    stale = view.get(SignalDedup, row.key)
    if stale is None:
        return insert(row)
    return change(stale, signal_id=row.signal_id, expires_at_ms=row.expires_at_ms)


class DeliverApproval(Struct, gc=False):
    """An operator signals without having the token; the stored one is used."""

    signal: DeliverSignal
    lane_id: str

    def needs(self) -> tuple[Need, ...]:
        return self.signal.needs()


def deliver_approval(command: DeliverApproval, view: View, context: Context) -> Decision:
    """As ``deliver_signal``, once it is clear that the operator means this execution."""
    signal = command.signal
    execution = view.execution(signal.execution_id)
    if execution is None:
        raise NotFound("execution")
    if execution.lane_id != command.lane_id:
        raise Validation(
            ValidationKind.INVALID_INPUT,
            f"lane_mismatch: the execution is on lane {quoted(execution.lane_id)}, not {quoted(command.lane_id)}",
        )
    waitpoint = view.get(Waitpoint, (signal.partition, signal.waitpoint_id))
    if waitpoint is None or waitpoint.uuid != execution.uuid:
        raise NotFound("waitpoint", signal.waitpoint_id)
    if not waitpoint.token:
        raise Validation(ValidationKind.WAITPOINT_NOT_TOKEN_BOUND, f"waitpoint {waitpoint.waitpoint_id}")
    return deliver_signal(replace(signal, waitpoint_token=Token(waitpoint.token)), view, context)
