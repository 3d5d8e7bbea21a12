"""Lists of executions as people see them."""

from __future__ import annotations

from msgspec import Struct

from flowfabric.model.ids import ExecutionId, FlowId
from flowfabric.model.states import PublicState


class ExecutionSummary(Struct, frozen=True):
    """One line of a list."""

    execution_id: ExecutionId
    namespace: str
    lane_id: str
    execution_kind: str
    public_state: PublicState
    priority: int
    created_at: int
    started_at: int | None
    completed_at: int | None
    current_attempt_index: int
    flow_id: FlowId | None
    blocking_reason: str | None


class QueueDepth(Struct, frozen=True):
    """What can be claimed in a lane right now, and how long the oldest of it has been there."""

    lane_id: str
    waiting: int
    oldest_age_ms: int


class SearchPage(Struct, frozen=True):
    """What was found, newest first; ``next_cursor`` leads on, ``None`` says there is no more."""

    executions: tuple[ExecutionSummary, ...]
    next_cursor: str | None
