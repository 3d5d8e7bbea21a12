"""Outboxes: what has happened, for subscribers."""

from __future__ import annotations

from flowfabric.model.events import CompletionEvent, InstanceTagEvent, LeaseEvent, OperatorEvent, SignalEvent
from flowfabric.stores.tables.shape import BIG, INT, JSON, SMALL, TEXT, UUID, Column, Table

#: In the lease, operator and tag outboxes the id column is text; in the completion outbox it is a UUID.
TABLES = (
    Table(
        LeaseEvent,
        "ff_lease_event",
        (
            Column("partition", "partition_key", INT),
            Column("uuid", "execution_id", TEXT),
            Column("lease_id", "lease_id", TEXT),
            Column("event_type", "event_type", TEXT),
            Column("occurred_at_ms", "occurred_at_ms", BIG),
            Column("namespace", "namespace", TEXT),
            Column("instance_tag", "instance_tag", TEXT),
            Column("worker_instance_id", "worker_instance_id", TEXT),
            Column("revoked_by", "revoked_by", TEXT),
        ),
        ("event_id",),
    ),
    Table(
        CompletionEvent,
        "ff_completion_event",
        (
            Column("partition", "partition_key", SMALL),
            Column("uuid", "execution_id", UUID),
            Column("flow_id", "flow_id", UUID),
            Column("outcome", "outcome", TEXT),
            Column("namespace", "namespace", TEXT),
            Column("instance_tag", "instance_tag", TEXT),
            Column("occurred_at_ms", "occurred_at_ms", BIG),
            Column("dispatched_at_ms", "dispatched_at_ms", BIG),
        ),
        ("event_id",),
    ),
    Table(
        OperatorEvent,
        "ff_operator_event",
        (
            Column("partition", "partition_key", INT),
            Column("subject", "execution_id", TEXT),
            Column("event_type", "event_type", TEXT),
            Column("details", "details", JSON),
            Column("occurred_at_ms", "occurred_at_ms", BIG),
            Column("namespace", "namespace", TEXT),
            Column("instance_tag", "instance_tag", TEXT),
        ),
        ("event_id",),
    ),
    Table(
        SignalEvent,
        "ff_signal_event",
        (
            Column("partition", "partition_key", INT),
            Column("uuid", "execution_id", TEXT),
            Column("signal_id", "signal_id", TEXT),
            Column("waitpoint_id", "waitpoint_id", TEXT),
            Column("source_identity", "source_identity", TEXT),
            Column("occurred_at_ms", "delivered_at_ms", BIG),
            Column("namespace", "namespace", TEXT),
            Column("instance_tag", "instance_tag", TEXT),
            Column("effect", "effect", TEXT),
        ),
        ("event_id",),
    ),
    Table(
        InstanceTagEvent,
        "ff_instance_tag_event",
        (
            Column("partition", "partition_key", INT),
            Column("uuid", "execution_id", TEXT),
            Column("tag", "tag", TEXT),
            Column("event_type", "event_type", TEXT),
            Column("occurred_at_ms", "occurred_at_ms", BIG),
            Column("namespace", "namespace", TEXT),
        ),
        ("event_id",),
    ),
)
