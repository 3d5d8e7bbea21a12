"""Flows: edge policies, graphs to submit, and what the operations on flows answer.

Variants that several operations share by name are nested in the operation's result type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.ids import EdgeId, ExecutionId, FlowId
from flowfabric.model.remembering import remembered_by_text

# -- edge policies ---------------------------------------------------------------------------------------------------


class OnSatisfied(StrEnum):
    """What happens to the members that are still at work when enough of them are done."""

    CANCEL_REMAINING = "cancel_remaining"
    LET_RUN = "let_run"


class AllOf(Struct, frozen=True):
    """Every upstream has to succeed; the first that does not makes the group impossible."""


class AnyOf(Struct, frozen=True):
    """One upstream has to succeed."""

    on_satisfied: OnSatisfied = OnSatisfied.CANCEL_REMAINING


class Quorum(Struct, frozen=True):
    """``k`` upstreams have to succeed."""

    k: int
    on_satisfied: OnSatisfied = OnSatisfied.CANCEL_REMAINING


EdgePolicy: TypeAlias = AllOf | AnyOf | Quorum

ALL_OF = AllOf()


def policy_text(policy: EdgePolicy) -> str:
    """The document that is stored for a policy."""
    document: dict[str, Any]
    match policy:
        case AllOf():
            document = {"kind": "all_of"}
        case AnyOf(on_satisfied=mode):
            document = {"kind": "any_of", "on_satisfied": str(mode)}
        case Quorum(k=k, on_satisfied=mode):
            document = {"kind": "quorum", "k": k, "on_satisfied": str(mode)}
    return msgspec.json.encode(document).decode()


@remembered_by_text(256)
def read_edge_policy(text: str) -> EdgePolicy:
    """The policy in a stored document; one without a kind is ``AllOf``."""
    try:
        document = msgspec.json.decode(text or "{}")
        match document.get("kind"):
            case None | "all_of":
                return ALL_OF
            case "any_of":
                return AnyOf(OnSatisfied(document.get("on_satisfied")))
            case "quorum":
                return Quorum(int(document["k"]), OnSatisfied(document.get("on_satisfied")))
    except (msgspec.DecodeError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise Validation(ValidationKind.CORRUPTION, f"ff_edge_group.policy: {error!r}") from None
    raise Validation(ValidationKind.CORRUPTION, f"ff_edge_group.policy: unknown kind in {text}")


def k_target(policy: EdgePolicy) -> int:
    """How many successes a policy asks for, for diagnostics; 0 means all."""
    match policy:
        case AnyOf():
            return 1
        case Quorum(k=k):
            return k
        case _:
            return 0


class GroupState(StrEnum):
    """Where a group of edges stands. It fires once."""

    PENDING = "pending"
    SATISFIED = "satisfied"
    IMPOSSIBLE = "impossible"
    CANCELLED = "cancelled"


class EdgeState(StrEnum):
    """Where one edge stands: staged, counting against its child, or resolved."""

    PENDING = "pending"
    APPLIED = "applied"
    SATISFIED = "satisfied"
    IMPOSSIBLE = "impossible"


# -- graphs to submit ------------------------------------------------------------------------------------------------


class FlowEdge(Struct, frozen=True):
    """A dependency between two nodes of a graph, by their names."""

    upstream: str
    downstream: str
    #: Not empty: the upstream's result becomes the downstream's input.
    data_passing_ref: str | None = None
    dependency_kind: str = "success_only"
    edge_id: EdgeId | str | None = None


class FlowGraph(Struct, frozen=True):
    """A whole flow: nodes by name with the arguments of ``create_execution``, edges, and policies of groups by node."""

    nodes: Mapping[str, Mapping[str, Any]]
    edges: Iterable[FlowEdge | tuple[str, str]] = ()
    groups: Mapping[str, EdgePolicy] = {}
    flow_id: FlowId | str | None = None
    flow_kind: str = "dag"
    namespace: str = "default"
    budget_ids: tuple[str, ...] = ()


class FlowSubmitted(Struct, frozen=True):
    """The flow is stored, with all its members: their ids by node name."""

    flow_id: FlowId
    execution_ids: dict[str, ExecutionId]


# -- answers ---------------------------------------------------------------------------------------------------------


class CreateFlowResult:
    """Answers of ``create_flow``."""

    class Created(Struct, frozen=True):
        """The flow is new."""

        flow_id: FlowId

    class AlreadySatisfied(Struct, frozen=True):
        """The flow was there; nothing has changed."""

        flow_id: FlowId


class AddExecutionToFlowResult:
    """Answers of ``add_execution_to_flow``."""

    class Added(Struct, frozen=True):
        """The execution has joined."""

        execution_id: ExecutionId
        new_node_count: int

    class AlreadyMember(Struct, frozen=True):
        """The execution was a member; nothing has changed."""

        execution_id: ExecutionId
        node_count: int


class Staged(Struct, frozen=True):
    """The edge is stored; it counts once it is applied."""

    edge_id: EdgeId
    new_graph_revision: int


class ApplyDependencyResult:
    """Answers of ``apply_dependency_to_child``."""

    class Applied(Struct, frozen=True):
        """The child waits for the edge, with this many edges unresolved."""

        unsatisfied_count: int

    class AlreadyApplied(Struct, frozen=True):
        """The edge counted before; nothing has changed."""


class SetEdgeGroupPolicyResult:
    """Answers of ``set_edge_group_policy``."""

    class Set(Struct, frozen=True):
        """The policy is stored."""

    class AlreadySet(Struct, frozen=True):
        """The same policy was stored before."""


class ResolveDependencyResult:
    """Answers of ``resolve_dependency``."""

    class Satisfied(Struct, frozen=True):
        """The edge was counted as a success. Whether the child may run is up to its group."""

    class Impossible(Struct, frozen=True):
        """The edge was counted as a failure or a skip."""

    class AlreadyResolved(Struct, frozen=True):
        """The edge had been counted; nothing has changed."""


class CompletionPayload(Struct, frozen=True):
    """An end to be dispatched, for ``cascade_completion``."""

    execution_id: ExecutionId | str
    outcome: str = ""
    payload_bytes: bytes | None = None
    produced_at_ms: int = 0
    flow_id: FlowId | str | None = None


class CascadeOutcome(Struct, frozen=True):
    """What an end set in motion; ``synchronous`` says that nothing is left to do."""

    resolved: int
    cascaded_children: int
    synchronous: bool


class SiblingsCancelled(Struct, frozen=True):
    """What became of the losers of a group: how many were dealt with, and how many of those needed nothing."""

    taken: int = 0
    already_ended: int = 0
    not_found: int = 0


# -- reads -----------------------------------------------------------------------------------------------------------


class FlowStatus(StrEnum):
    """A flow's state for lists."""

    ACTIVE = "active"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


_STATUSES = {
    "open": FlowStatus.ACTIVE,
    "running": FlowStatus.ACTIVE,
    "blocked": FlowStatus.ACTIVE,
    "active": FlowStatus.ACTIVE,
    "completed": FlowStatus.COMPLETED,
    "failed": FlowStatus.FAILED,
    "cancelled": FlowStatus.CANCELLED,
}


def flow_status(public_flow_state: str) -> FlowStatus:
    """What a stored state means in a list."""
    return _STATUSES.get(public_flow_state, FlowStatus.UNKNOWN)


class EdgeGroupSnapshot(Struct, frozen=True):
    """All edges into one member: their policy and how far they are."""

    downstream_execution_id: ExecutionId
    policy: EdgePolicy
    total_deps: int
    satisfied_count: int
    failed_count: int
    skipped_count: int
    running_count: int
    group_state: GroupState


class FlowSnapshot(Struct, frozen=True):
    """Everything a person asks first about a flow."""

    flow_id: FlowId
    flow_kind: str
    namespace: str
    public_flow_state: str
    graph_revision: int
    node_count: int
    edge_count: int
    created_at: int
    last_mutation_at: int
    cancelled_at: int | None
    cancel_reason: str | None
    cancellation_policy: str | None
    tags: dict[str, str]
    edge_groups: tuple[EdgeGroupSnapshot, ...]


class FlowSummary(Struct, frozen=True):
    """One line of a list of flows."""

    flow_id: FlowId
    created_at: int
    status: FlowStatus


class FlowPage(Struct, frozen=True):
    """Flows of one partition, ascending by id."""

    flows: tuple[FlowSummary, ...]
    next_cursor: FlowId | None


class EdgeSnapshot(Struct, frozen=True):
    """One dependency."""

    edge_id: EdgeId
    flow_id: FlowId
    upstream_execution_id: ExecutionId
    downstream_execution_id: ExecutionId
    dependency_kind: str
    satisfaction_condition: str
    data_passing_ref: str | None
    edge_state: EdgeState
    created_at: int
    created_by: str


class Outgoing(Struct, frozen=True):
    """The edges that leave a member."""

    from_node: ExecutionId | str


class Incoming(Struct, frozen=True):
    """The edges that lead to a member."""

    to_node: ExecutionId | str


class FlowProjection(Struct, frozen=True):
    """Members of a flow counted by state, as the projector last saw them."""

    flow_id: FlowId
    public_flow_state: str
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
    last_summary_update_at: int
