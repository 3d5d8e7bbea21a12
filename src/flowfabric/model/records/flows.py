"""Records of flows: their members' edges, what is counted of them, and who is still to be cancelled."""

from __future__ import annotations

from msgspec import Struct


class Flow(Struct, gc=False):
    """The header of a flow (``ff_flow_core``)."""

    partition: int
    flow_id: str
    graph_revision: int
    public_flow_state: str
    created_at_ms: int
    terminal_at_ms: int | None
    raw_fields: str

    @property
    def key(self) -> tuple[int, str]:
        return (self.partition, self.flow_id)


class Edge(Struct, gc=False):
    """One dependency between two members of a flow (``ff_edge``)."""

    partition: int
    flow_id: str
    edge_id: str
    upstream: str
    downstream: str
    policy: str
    policy_version: int = 0
    #: ``pending`` while it is only staged, ``applied`` while it counts, then how it was resolved.
    edge_state: str = "pending"
    applied_at_ms: int | None = None
    resolved_at_ms: int | None = None

    @property
    def key(self) -> tuple[int, str, str]:
        return (self.partition, self.flow_id, self.edge_id)


class EdgeGroup(Struct, gc=False):
    """Policy and counters of all edges into one member (``ff_edge_group``)."""

    partition: int
    flow_id: str
    downstream: str
    policy: str
    k_target: int = 0
    success_count: int = 0
    fail_count: int = 0
    skip_count: int = 0
    running_count: int = 0
    group_state: str = "pending"
    satisfied_at_ms: int | None = None
    #: How many edges have been applied; ``None`` in rows written by hand, where the counters tell.
    applied_count: int | None = None
    cancel_siblings_pending_flag: bool = False
    #: Bare UUIDs of upstream members that are still to be cancelled.
    cancel_siblings_pending_members: tuple[str, ...] = ()
    cancel_siblings_reason: str | None = None

    @property
    def key(self) -> tuple[int, str, str]:
        return (self.partition, self.flow_id, self.downstream)


class PendingCancelGroup(Struct, gc=False):
    """A group whose losers are still to be cancelled (``ff_pending_cancel_groups``)."""

    partition: int
    flow_id: str
    downstream: str
    enqueued_at_ms: int

    @property
    def key(self) -> tuple[int, str, str]:
        return (self.partition, self.flow_id, self.downstream)


class FlowCounts(Struct, gc=False):
    """Members of a flow counted by state (``ff_flow_summary``)."""

    partition: int
    flow_id: str
    total_members: int
    sampled_members: int
    members_completed: int
    members_failed: int
    members_cancelled: int
    members_expired: int
    members_skipped: int
    members_active: int
    members_suspended: int
    members_waiting: int
    members_delayed: int
    members_rate_limited: int
    members_waiting_children: int
    public_flow_state: str
    last_summary_update_at: int

    @property
    def key(self) -> tuple[int, str]:
        return (self.partition, self.flow_id)


class CancelBacklog(Struct, gc=False):
    """A flow whose members still have to acknowledge their cancellation (``ff_cancel_backlog``)."""

    partition: int
    flow_id: str
    requested_at_ms: int
    requester: str
    reason: str
    grace_until_ms: int | None
    cancellation_policy: str
    status: str

    @property
    def key(self) -> tuple[int, str]:
        return (self.partition, self.flow_id)


class CancelBacklogMember(Struct, gc=False):
    """One member that has not acknowledged yet (``ff_cancel_backlog_member``)."""

    partition: int
    flow_id: str
    execution_id: str

    @property
    def key(self) -> tuple[int, str, str]:
        return (self.partition, self.flow_id, self.execution_id)
