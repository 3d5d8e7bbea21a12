"""How records map to tables: one description that every SQL store follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowfabric.model.decisions import Key
from flowfabric.model.records.executions import Attempt, Execution
from flowfabric.model.records.streams import FrameRow, StreamHead, StreamSummary
from flowfabric.stores.tables import budgets, executions, flows, lanes_and_access, outboxes, streams, suspension
from flowfabric.stores.tables.shape import Table

_TOPICS = (executions, flows, suspension, streams, budgets, lanes_and_access)
TABLES: Mapping[Any, Table] = {table.kind: table for topic in _TOPICS for table in topic.TABLES}
OUTBOXES: Mapping[Any, Table] = {table.kind: table for table in outboxes.TABLES}

#: Tables that hold rows of one execution, children first, with the column that names it.
EXECUTION_SCOPED = (
    "ff_stream_frame",
    "ff_stream_summary",
    "ff_stream_meta",
    "ff_claim_grant",
    "ff_suspension_current",
    "ff_waitpoint_pending",
    "ff_signal",
    "ff_step",
    "ff_past_lease",
    "ff_attempt",
    "ff_budget_reservation",
    "ff_budget_ask",
    "ff_debounce",
)
#: Tables that name an execution in rows of their own partition: the table, and how it spells the execution.
EXECUTION_NAMED = (
    ("ff_budget_usage_by_exec", "uuid"),
    ("ff_quota_admitted", "wire"),
)

#: What its signals used up goes by the execution's waitpoints, so it goes before them.
DROP_SIGNAL_KEYS = (
    "DELETE FROM ff_signal_dedup WHERE partition_key = {} AND waitpoint_id IN "
    "(SELECT w.waitpoint_id FROM ff_waitpoint_pending w WHERE w.partition_key = {} AND w.execution_id = {})"
)

#: Tables that hold rows of one flow.
FLOW_SCOPED = (
    "ff_edge",
    "ff_edge_group",
    "ff_pending_cancel_groups",
    "ff_cancel_dispatch_outbox",
    "ff_cancel_backlog_member",
    "ff_cancel_backlog",
    "ff_flow_summary",
    "ff_flow_core",
)

_WIRE_KEYED = frozenset({Execution, Attempt, StreamHead, StreamSummary, FrameRow})


def split_wire(execution_id: str) -> tuple[int, str]:
    """Partition and bare UUID of an execution id."""
    close = execution_id.index("}")
    return int(execution_id[4:close]), execution_id[close + 2 :]


def key_values(kind: Any, key: Key) -> tuple[Any, ...]:
    """The values of the primary key's columns, in the order of ``Table.key``."""
    if kind not in _WIRE_KEYED:
        return key if isinstance(key, tuple) else (key,)
    if isinstance(key, tuple):
        return (*split_wire(key[0]), *key[1:])
    return split_wire(key)


def is_wire_keyed(kind: Any) -> bool:
    """Whether records of a kind begin with the wire id, which no column holds."""
    return kind in _WIRE_KEYED
