"""The stored wait of an execution, and the two ways it is over: resumed, or ended with the execution."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
from msgspec import Raw, Struct

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context, saturate
from flowfabric.model import states as lit
from flowfabric.model.conditions import Heard, Hearing, ResumeCondition, Unreadable
from flowfabric.model.decisions import Act, Change, Drop, Need, Select, change
from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.operations.suspension import ResumePolicy, SuspensionRequester
from flowfabric.model.records.executions import Execution, Signal, Suspension, Waitpoint

PENDING, OPEN = lit.WAITPOINT_PENDING, lit.WAITPOINT_OPEN
CLOSED, EXPIRED = lit.WAITPOINT_CLOSED, lit.WAITPOINT_EXPIRED
OPEN_STATES = lit.LIVE_WAITPOINTS
#: Where the signal that a timeout makes up is kept.
TIMEOUT_KEY = "__timeout__"

# Why a waitpoint is closed.
PROACTIVE_CLOSE = "proactive_close"
NEVER_COMMITTED = "never_committed"
RESUMED = "resumed"
TIMED_OUT = "timed_out_auto_resume"


class Terms(Struct, frozen=True, gc=False):
    """The document of a suspension: the condition, how to go on, and the waitpoints it owns, the primary one first."""

    condition: ResumeCondition
    resume_policy: ResumePolicy = ResumePolicy()
    requested_by: str = SuspensionRequester.WORKER
    continuation_metadata_pointer: str | None = None
    waitpoints: tuple[str, ...] = ()


class _StoredTerms(Struct, gc=False):
    condition: Raw = Raw(b"null")
    resume_policy: Raw = Raw(b"{}")
    requested_by: str = SuspensionRequester.WORKER
    continuation_metadata_pointer: str | None = None
    waitpoints: tuple[str, ...] = ()


_decode_terms = msgspec.json.Decoder(_StoredTerms).decode
_decode_condition: msgspec.json.Decoder[ResumeCondition] = msgspec.json.Decoder(ResumeCondition)
_decode_policy = msgspec.json.Decoder(ResumePolicy).decode
_decode_heard = msgspec.json.Decoder(dict[str, tuple[Heard, ...]]).decode


def dump(document: object) -> str:
    """The text to store for a document."""
    return msgspec.json.encode(document).decode()


def read_terms(suspension: Suspension) -> Terms:
    """The suspension's terms. A later release or people may have written them: a condition that cannot be read here is
    ``Unreadable``."""
    try:
        stored = _decode_terms(suspension.condition)
    except (msgspec.MsgspecError, RecursionError):
        return Terms(Unreadable())
    try:
        condition = _decode_condition.decode(stored.condition)
    except (msgspec.MsgspecError, RecursionError):
        condition = Unreadable()
    try:
        policy = _decode_policy(stored.resume_policy)
    except (msgspec.MsgspecError, RecursionError):
        policy = ResumePolicy()
    return Terms(condition, policy, stored.requested_by, stored.continuation_metadata_pointer, stored.waitpoints)


def read_heard(suspension: Suspension) -> Hearing:
    """The signals that count towards the condition so far."""
    try:
        return _decode_heard(suspension.member_map)
    except msgspec.MsgspecError as error:
        raise Validation(ValidationKind.CORRUPTION, f"ff_suspension_current.member_map: {error}") from None


def heard_of(signal: Signal) -> Heard:
    """A recorded signal as conditions see it."""
    return Heard(
        signal.signal_id,
        signal.signal_name,
        signal.source_type,
        signal.source_identity,
        signal.signal_category,
        signal.correlation_id,
        signal.accepted_at_ms,
    )


def is_open(suspension: Suspension | None) -> bool:
    """Whether somebody still waits under it."""
    return suspension is not None and suspension.closed_at_ms is None


def closed(waitpoint: Waitpoint, now: int, reason: str) -> Change:
    """The waitpoint takes no more signals."""
    return change(waitpoint, state=CLOSED, closed_at_ms=now, close_reason=reason)


def has_waits(execution: Execution) -> bool:
    """Whether a suspension or a waitpoint may belong to the execution."""
    return execution.signal_count is not None or execution.lifecycle_phase == lit.SUSPENDED


def last_sequence(execution: Execution) -> int:
    """The number of its last signal. A replay starts counting from zero again; the numbers continue."""
    return (execution.earlier_signals or 0) + (execution.signal_count or 0)


def waits_dropped(view: View, execution: Execution, now: int, reason: str) -> tuple[Act, ...]:
    """An execution that ends leaves no suspension and no open waitpoint. One that never had any pays nothing."""
    if not has_waits(execution):
        return ()
    acts: list[Act] = []
    suspension = view.get(Suspension, (execution.partition, execution.uuid))
    if suspension is not None:
        acts.append(Drop(suspension))
    acts += [closed(waitpoint, now, reason) for waitpoint in live_waitpoints(view, execution.partition, execution.uuid)]
    return tuple(acts)


def live_waitpoints(view: View, partition: int, uuid: str, states: Collection[str] = OPEN_STATES) -> list[Waitpoint]:
    """Waitpoints in these states, which are few, whatever an execution has left behind."""
    view.require(live_needs(partition, uuid, states))
    found = [each for state in states for each in view.select(Waitpoint, partition=partition, uuid=uuid, state=state)]
    return sorted(found, key=lambda each: each.key)


def live_needs(partition: int, uuid: str, states: Collection[str] = OPEN_STATES) -> list[Need]:
    """What these are read by."""
    return [Select(Waitpoint, ("partition", "uuid", "state"), (partition, uuid, state)) for state in sorted(states)]


class Closing(Struct, gc=False):
    """How a suspension ends: why, and by which signals."""

    reason: str = RESUMED
    delay_ms: int = 0
    closer_signal_id: str | None = None
    heard: Hearing | None = None


def resumed(
    view: View, context: Context, execution: Execution, suspension: Suspension | None, closing: Closing, **also: object
) -> tuple[Change, ...]:
    """A suspended execution can be claimed again, now or after a delay; ``also`` names further fields of it.

    The suspension stays, closed, so that the next holder sees what woke it. An execution that is not suspended stays
    as it is.
    """
    now = context.now
    acts: list[Change] = []
    if execution.lifecycle_phase == lit.SUSPENDED:
        delayed = closing.delay_ms > 0
        acts.append(
            change(
                execution,
                lifecycle_phase=lit.RUNNABLE,
                ownership_state=lit.UNOWNED,
                eligibility_state=lit.NOT_ELIGIBLE_UNTIL_TIME if delayed else lit.ELIGIBLE_NOW,
                public_state=lit.PUBLIC_DELAYED if delayed else lit.PUBLIC_RESUMABLE,
                attempt_state=lit.ATTEMPT_INTERRUPTED,
                blocking_reason=lit.WAITING_FOR_RESUME_DELAY if delayed else lit.WAITING_FOR_WORKER,
                delay_until_ms=saturate(now + closing.delay_ms) if delayed else None,
                last_mutation_at_ms=now,
                **also,
            )
        )
    elif also:
        acts.append(change(execution, last_mutation_at_ms=now, **also))
    if suspension is not None:
        acts.append(change(suspension, **closed_fields(now, closing)))
    acts += [
        closed(waitpoint, now, closing.reason)
        for waitpoint in owned_waitpoints(view, execution, suspension)
        if waitpoint.state == OPEN
    ]
    return tuple(acts)


def closed_fields(now: int, closing: Closing) -> dict[str, object]:
    """What changes in a suspension that is over."""
    fields: dict[str, object] = {
        "closed_at_ms": now,
        "close_reason": closing.reason,
        "closer_signal_id": closing.closer_signal_id,
    }
    if closing.heard is not None:
        fields["member_map"] = dump(closing.heard)
        fields["satisfied_set"] = dump([signal.signal_id for signals in closing.heard.values() for signal in signals])
    return fields


def owned_waitpoints(view: View, execution: Execution, suspension: Suspension | None) -> Sequence[Waitpoint]:
    """The waitpoints of a suspension; all live ones of the execution if it names none. A parked one has none."""
    if suspension is not None and suspension.wake_after is not None:
        return ()
    named = read_terms(suspension).waitpoints if suspension is not None else ()
    if not named:
        return live_waitpoints(view, execution.partition, execution.uuid)
    found = view.many(Waitpoint, [(execution.partition, each) for each in named])
    return [waitpoint for waitpoint in found if waitpoint is not None]
