"""Typed events with their cursors, and the cursor's bytes and text.

A cursor names a place in one outbox: everything before it has been delivered or was not asked for, everything after it
has not. To consumers it is opaque; they keep the cursor of the last event they have processed.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from flowfabric.model import events as rows, states as lit
from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.ids import ExecutionId, canonical_uuid

_PREFIX: Final = 0x02
_CURSOR = struct.Struct(">Bq")
#: The cursor of subscriptions that begin with the next event.
TAIL: Final = b""


def cursor_at(event_id: int) -> bytes:
    """The place right behind an event."""
    return _CURSOR.pack(_PREFIX, event_id)


def event_id_of(cursor: bytes) -> int:
    """The event a cursor stands behind; ``Validation(INVALID_INPUT)`` for anything that is no cursor of this store."""
    if len(cursor) != _CURSOR.size or cursor[0] != _PREFIX:
        raise _no_cursor(f"{len(cursor)} bytes that are not a cursor of this store")
    event_id: int = _CURSOR.unpack(cursor)[1]
    if event_id < 0:
        raise _no_cursor(f"event id {event_id} is below zero")
    return event_id


def cursor_to_text(cursor: bytes) -> str:
    """A cursor as text, for URLs and JSON: base64url without padding."""
    return base64.urlsafe_b64encode(cursor).rstrip(b"=").decode()


def cursor_from_text(text: str) -> bytes:
    """The cursor of such a text."""
    if not isinstance(text, str):
        raise _no_cursor(f"expected text, got {type(text).__name__}")
    try:
        found = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise _no_cursor("not base64url text") from None
    if cursor_to_text(found) != text:
        raise _no_cursor("not base64url text without padding")
    if found:
        event_id_of(found)
    return found


def _no_cursor(why: str) -> Validation:
    return Validation(
        ValidationKind.INVALID_INPUT, f"cursor: {why}; pass the cursor of an event, or empty bytes to start now"
    )


class EventFamily(StrEnum):
    """The outboxes one can follow. There is no order between them."""

    COMPLETION = "completion"
    LEASE_HISTORY = "lease_history"
    SIGNAL_DELIVERY = "signal_delivery"
    OPERATOR_EVENT = "operator_event"
    INSTANCE_TAGS = "instance_tags"


# -- completions ---------------------------------------------------------------------------------------------------


class CompletionOutcome:
    """How an execution ended."""

    class Success(Struct, frozen=True):
        """It completed."""

    class Failure(Struct, frozen=True):
        """It failed for good."""

    class Cancelled(Struct, frozen=True):
        """It was cancelled."""

    class Other(Struct, frozen=True):
        """Anything else: ``expired``, ``skipped``, or ``resumable`` for a wake-up that ends nothing."""

        text: str


AnyOutcome: TypeAlias = (
    CompletionOutcome.Success | CompletionOutcome.Failure | CompletionOutcome.Cancelled | CompletionOutcome.Other
)
_OUTCOMES: Mapping[str, AnyOutcome] = {
    lit.ENDED_SUCCESS: CompletionOutcome.Success(),
    lit.ENDED_FAILED: CompletionOutcome.Failure(),
    "failure": CompletionOutcome.Failure(),
    lit.ENDED_CANCELLED: CompletionOutcome.Cancelled(),
}


class CompletionEvent(Struct, frozen=True):
    """An execution ended."""

    cursor: bytes
    execution_id: ExecutionId
    outcome: AnyOutcome
    at: int


# -- leases --------------------------------------------------------------------------------------------------------


class LeaseHistoryEvent:
    """A lease began, went on or ended."""

    class Acquired(Struct, frozen=True):
        """A worker got the lease."""

        cursor: bytes
        execution_id: ExecutionId
        at: int
        lease_id: str | None
        worker_instance_id: str | None

    class Renewed(Struct, frozen=True):
        """Its holder renewed the lease."""

        cursor: bytes
        execution_id: ExecutionId
        at: int
        lease_id: str | None
        worker_instance_id: str | None

    class Expired(Struct, frozen=True):
        """The lease ran out."""

        cursor: bytes
        execution_id: ExecutionId
        at: int
        lease_id: str | None
        prev_owner: str | None

    class Reclaimed(Struct, frozen=True):
        """Another worker continues under a lease of its own."""

        cursor: bytes
        execution_id: ExecutionId
        at: int
        new_lease_id: str | None
        new_owner: str | None

    class Revoked(Struct, frozen=True):
        """The lease ended early: taken away by ``operator`` or ``reconciler``, or given back (``backend``)."""

        cursor: bytes
        execution_id: ExecutionId
        at: int
        lease_id: str | None
        revoked_by: str


AnyLeaseEvent: TypeAlias = (
    LeaseHistoryEvent.Acquired
    | LeaseHistoryEvent.Renewed
    | LeaseHistoryEvent.Expired
    | LeaseHistoryEvent.Reclaimed
    | LeaseHistoryEvent.Revoked
)


# -- signals -------------------------------------------------------------------------------------------------------


class SignalDeliveryEffect:
    """What a signal did."""

    class Satisfied(Struct, frozen=True):
        """It met the condition somebody waited for."""

    class Buffered(Struct, frozen=True):
        """It waits for a waitpoint that is not active yet."""

    class Deduped(Struct, frozen=True):
        """It had been delivered before."""

    class Other(Struct, frozen=True):
        """Anything else, such as ``appended_to_waitpoint`` or ``no_op``."""

        text: str


AnyEffect: TypeAlias = (
    SignalDeliveryEffect.Satisfied
    | SignalDeliveryEffect.Buffered
    | SignalDeliveryEffect.Deduped
    | SignalDeliveryEffect.Other
)
_EFFECTS: Mapping[str, AnyEffect] = {
    "satisfied": SignalDeliveryEffect.Satisfied(),
    "resume_condition_satisfied": SignalDeliveryEffect.Satisfied(),
    "buffered": SignalDeliveryEffect.Buffered(),
    "buffered_for_pending_waitpoint": SignalDeliveryEffect.Buffered(),
    "deduped": SignalDeliveryEffect.Deduped(),
}


class SignalDeliveryEvent(Struct, frozen=True):
    """A signal was accepted."""

    cursor: bytes
    execution_id: ExecutionId
    signal_id: str
    waitpoint_id: str | None
    source_identity: str | None
    effect: AnyEffect
    at: int


# -- operators and tags --------------------------------------------------------------------------------------------


class OperatorEvent(Struct, frozen=True):
    """An operator acted on an execution, a flow (then ``flow_id`` is set), a lane (then ``lane_id`` is) or a schedule
    (then ``schedule_id`` is)."""

    cursor: bytes
    execution_id: ExecutionId | None
    flow_id: str | None
    lane_id: str | None
    event_type: str
    details: dict[str, Any] | None
    at: int
    schedule_id: str | None = None


class InstanceTagEvent:
    """The instance tag of an execution was touched."""

    class Attached(Struct, frozen=True):
        """The execution carries this tag from now on."""

        cursor: bytes
        execution_id: ExecutionId
        tag: str
        at: int

    class Cleared(Struct, frozen=True):
        """The execution no longer carries this tag."""

        cursor: bytes
        execution_id: ExecutionId
        tag: str
        at: int


AnyTagEvent: TypeAlias = InstanceTagEvent.Attached | InstanceTagEvent.Cleared
AnyEvent: TypeAlias = CompletionEvent | AnyLeaseEvent | SignalDeliveryEvent | OperatorEvent | AnyTagEvent


class EventBatch(Struct, frozen=True):
    """What one bounded read brought: events, the cursor to go on from, and whether more is waiting already."""

    events: tuple[AnyEvent, ...]
    cursor: bytes
    more: bool


# -- from rows -----------------------------------------------------------------------------------------------------


def _text(value: Any, name: str) -> str:
    if type(value) is not str:
        raise ValueError(f"{name}: expected text, found {value!r:.80}")
    return value


def _time(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"time: expected a number, found {value!r:.80}")
    return value


def _completion(event_id: int, row: rows.CompletionEvent) -> CompletionEvent:
    text = _text(row.outcome, "outcome")
    outcome = _OUTCOMES.get(text) or CompletionOutcome.Other(text)
    return CompletionEvent(
        cursor_at(event_id), ExecutionId.of(row.partition, row.uuid), outcome, _time(row.occurred_at_ms)
    )


def _lease(event_id: int, row: rows.LeaseEvent) -> AnyLeaseEvent | None:
    found = cursor_at(event_id), ExecutionId.of(row.partition, row.uuid), _time(row.occurred_at_ms), row.lease_id
    match row.event_type:
        case lit.LEASE_ACQUIRED:
            return LeaseHistoryEvent.Acquired(*found, row.worker_instance_id)
        case lit.LEASE_RENEWED:
            return LeaseHistoryEvent.Renewed(*found, row.worker_instance_id)
        case lit.LEASE_EXPIRED:
            return LeaseHistoryEvent.Expired(*found, row.worker_instance_id)
        case lit.LEASE_RECLAIMED:
            return LeaseHistoryEvent.Reclaimed(*found, row.worker_instance_id)
        case lit.LEASE_ENDED:
            return LeaseHistoryEvent.Revoked(*found, row.revoked_by or lit.BY_HOLDER)
    return None


def _signal(event_id: int, row: rows.SignalEvent) -> SignalDeliveryEvent:
    text = _text(row.effect, "effect")
    return SignalDeliveryEvent(
        cursor_at(event_id),
        ExecutionId.of(row.partition, row.uuid),
        _text(row.signal_id, "signal_id"),
        row.waitpoint_id,
        row.source_identity,
        _EFFECTS.get(text) or SignalDeliveryEffect.Other(text),
        _time(row.occurred_at_ms),
    )


#: Operator events whose subject is a flow, and the beginnings of those whose subject is a lane or a schedule.
_FLOW_EVENTS = frozenset({"flow_cancel_requested"})
_LANE_EVENTS = "lane_"
_SCHEDULE_EVENTS = "schedule_"


def _operator(event_id: int, row: rows.OperatorEvent) -> OperatorEvent:
    kind = _text(row.event_type, "event_type")
    details = None if row.details is None else msgspec.json.decode(row.details)
    if details is not None and not isinstance(details, dict):
        raise ValueError("details: not an object")
    execution_id = flow_id = lane_id = schedule_id = None
    if kind.startswith(_LANE_EVENTS):
        lane_id = _text(row.subject, "execution_id")
    elif kind.startswith(_SCHEDULE_EVENTS):
        schedule_id = _text(row.subject, "execution_id")
    elif kind in _FLOW_EVENTS:
        flow_id = canonical_uuid(row.subject)
        if flow_id is None:
            raise ValueError(f"execution_id: {row.subject!r:.80} is not the id of a flow")
    else:
        execution_id = ExecutionId.of(row.partition, row.subject)
    at = _time(row.occurred_at_ms)
    return OperatorEvent(cursor_at(event_id), execution_id, flow_id, lane_id, kind, details, at, schedule_id)


def _tag(event_id: int, row: rows.InstanceTagEvent) -> AnyTagEvent | None:
    found = (
        cursor_at(event_id),
        ExecutionId.of(row.partition, row.uuid),
        _text(row.tag, "tag"),
        _time(row.occurred_at_ms),
    )
    match row.event_type:
        case lit.TAG_ATTACHED:
            return InstanceTagEvent.Attached(*found)
        case lit.TAG_CLEARED:
            return InstanceTagEvent.Cleared(*found)
    return None


#: Family -> the row that is stored, and the event it is shown as: ``None`` for a type this release does not know;
#: ``ValueError``, ``TypeError`` or ``msgspec.DecodeError`` for a row that cannot be read.
SHOWN: Mapping[EventFamily, tuple[Any, Callable[[int, Any], Any]]] = {
    EventFamily.COMPLETION: (rows.CompletionEvent, _completion),
    EventFamily.LEASE_HISTORY: (rows.LeaseEvent, _lease),
    EventFamily.SIGNAL_DELIVERY: (rows.SignalEvent, _signal),
    EventFamily.OPERATOR_EVENT: (rows.OperatorEvent, _operator),
    EventFamily.INSTANCE_TAGS: (rows.InstanceTagEvent, _tag),
}
