"""Published events: one struct per outbox row, written in the transaction of the change it tells of."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct


class LeaseEvent(Struct, gc=False):
    """A lease began, went on or ended (``ff_lease_event``)."""

    partition: int
    uuid: str
    lease_id: str | None
    event_type: str
    occurred_at_ms: int
    namespace: str | None
    instance_tag: str | None
    worker_instance_id: str | None = None
    revoked_by: str | None = None


class CompletionEvent(Struct, gc=False):
    """An execution ended (``ff_completion_event``)."""

    partition: int
    uuid: str
    flow_id: str | None
    outcome: str
    namespace: str | None
    instance_tag: str | None
    occurred_at_ms: int
    dispatched_at_ms: int | None


class OperatorEvent(Struct, gc=False):
    """An operator acted (``ff_operator_event``); ``subject`` is the bare UUID of an execution or a flow."""

    partition: int
    subject: str
    event_type: str
    details: str | None
    occurred_at_ms: int
    namespace: str | None
    instance_tag: str | None


class SignalEvent(Struct, gc=False):
    """A signal was accepted (``ff_signal_event``); ``effect`` says what it did."""

    partition: int
    uuid: str
    signal_id: str
    waitpoint_id: str | None
    source_identity: str | None
    occurred_at_ms: int
    namespace: str | None
    instance_tag: str | None
    effect: str


class InstanceTagEvent(Struct, gc=False):
    """The instance tag of an execution was set (``ff_instance_tag_event``)."""

    partition: int
    uuid: str
    tag: str
    event_type: str
    occurred_at_ms: int
    namespace: str | None


Event: TypeAlias = LeaseEvent | CompletionEvent | OperatorEvent | SignalEvent | InstanceTagEvent
