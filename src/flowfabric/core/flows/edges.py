"""One edge and one group: what they store, how they count, and what a group's counters mean under its policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

from flowfabric.core.batch.view import View
from flowfabric.core.documents import dump_document, parse_document
from flowfabric.model import states as lit
from flowfabric.model.decisions import Change, Get, Need, change
from flowfabric.model.operations.flows import (
    AllOf,
    AnyOf,
    EdgePolicy,
    EdgeState,
    GroupState,
    OnSatisfied,
    Quorum,
    k_target,
    policy_text,
    read_edge_policy,
)
from flowfabric.model.records.executions import Execution
from flowfabric.model.records.flows import Edge, EdgeGroup
from flowfabric.model.remembering import remembered_by_text

SUCCESS_ONLY = "success_only"


def edge_document(dependency_kind: str, data_passing_ref: str | None, now: int) -> str:
    """What is stored of an edge once and for all; what moves stands in columns."""
    return dump_document(
        {
            "dependency_kind": dependency_kind,
            "satisfaction_condition": "all_required",
            "data_passing_ref": data_passing_ref,
            "created_at_ms": now,
            "created_by": "engine",
            "staged_at_ms": now,
        }
    )


def passes_data(edge: Edge) -> bool:
    """Whether the upstream's result goes to the downstream."""
    return bool(_reference(edge.policy))


@remembered_by_text(1_024)
def _reference(policy: str) -> object:
    return parse_document(policy, "ff_edge.policy").get("data_passing_ref")


def new_group(partition: int, flow_id: str, downstream: str, policy: EdgePolicy, applied: int = 0) -> EdgeGroup:
    """A group that waits for ``applied`` edges."""
    return EdgeGroup(
        partition,
        flow_id,
        downstream,
        policy_text(policy),
        k_target(policy),
        running_count=applied,
        applied_count=applied,
    )


def applied_total(group: EdgeGroup) -> int:
    """How many edges count in a group."""
    return resolved_total(group) + group.running_count if group.applied_count is None else group.applied_count


def resolved_total(group: EdgeGroup) -> int:
    """How many edges of a group have been counted one way or the other."""
    return group.success_count + group.fail_count + group.skip_count


def is_waiting(group: EdgeGroup | None) -> bool:
    """Whether a member has to wait for its group."""
    return (
        group is not None
        and group.group_state == GroupState.PENDING
        and (group.running_count > 0 or applied_total(group) > resolved_total(group))
    )


def waits_for_members(view: View, execution: Execution) -> bool:
    """Whether members that an execution depends on are still at work."""
    if execution.flow_id is None:
        return False
    return is_waiting(view.get(EdgeGroup, (execution.partition, execution.flow_id, execution.uuid)))


def group_needs(executions: Iterable[Execution]) -> Iterator[Need]:
    """What ``waits_for_members`` looks at, for several executions at once."""
    return (
        Get(EdgeGroup, (each.partition, each.flow_id, each.uuid)) for each in executions if each.flow_id is not None
    )


class Verdict(Struct, frozen=True):
    """Where a group stands after a count, and whether its firing ends the members that are left."""

    state: GroupState
    cancels_rest: bool = False


def verdict(group: EdgeGroup) -> Verdict:
    """What the counters mean under the policy."""
    policy = read_edge_policy(group.policy)
    total = applied_total(group)
    good, bad = group.success_count, group.fail_count + group.skip_count
    match policy:
        case AllOf():
            done, dead = total > 0 and good == total, bad >= 1
        case AnyOf():
            done, dead = good >= 1, total > 0 and bad >= total
        case Quorum(k=k):
            done, dead = good >= k, total - bad < k
    cancels = not isinstance(policy, AllOf) and policy.on_satisfied == OnSatisfied.CANCEL_REMAINING
    if done:
        return Verdict(GroupState.SATISFIED, cancels)
    return Verdict(GroupState.IMPOSSIBLE, cancels) if dead else Verdict(GroupState.PENDING)


def resolved(edge: Edge, outcome: str, now: int) -> Change:
    """The edge with its upstream's end written on it."""
    state = EdgeState.SATISFIED if outcome == lit.ENDED_SUCCESS else EdgeState.IMPOSSIBLE
    return change(edge, edge_state=str(state), resolved_at_ms=now)


def counted(group: EdgeGroup, outcome: str) -> dict[str, Any] | None:
    """The counters that move with one resolution; ``None`` if every edge was counted before."""
    if resolved_total(group) >= applied_total(group):
        return None
    fields: dict[str, Any] = {"running_count": max(group.running_count - 1, 0)}
    if outcome == lit.ENDED_SUCCESS:
        fields["success_count"] = group.success_count + 1
    elif outcome == lit.ENDED_SKIPPED:
        fields["skip_count"] = group.skip_count + 1
    else:
        fields["fail_count"] = group.fail_count + 1
    return fields
