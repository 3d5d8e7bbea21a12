"""Invariants of a flow, judged from its stored rows alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from flowfabric.core.flows import edges as rules
from flowfabric.model import states as lit
from flowfabric.model.operations.flows import AllOf, EdgeState, GroupState, read_edge_policy
from flowfabric.model.reads.examine import Violation
from flowfabric.model.records.executions import Execution
from flowfabric.model.records.flows import Edge, EdgeGroup

#: Whether something holds, the promise it belongs to, whom it is about, and what is wrong otherwise.
_Expect: TypeAlias = Callable[[object, str, str, str], None]
_STATES = {EdgeState.SATISFIED, EdgeState.IMPOSSIBLE}


def check_flow(members: Iterable[Execution], edges: Sequence[Edge], groups: Iterable[EdgeGroup]) -> list[Violation]:
    """Which promises about a flow's graph are broken. Nothing that was committed may still be under way."""
    found: list[Violation] = []
    by_uuid = {member.uuid: member for member in members}
    by_child = {group.downstream: group for group in groups}
    incoming: dict[str, list[Edge]] = {uuid: [] for uuid in by_child}
    for edge in edges:
        incoming.setdefault(edge.downstream, []).append(edge)

    def expect(holds: object, invariant: str, subject: str, detail: str) -> None:
        if not holds:
            found.append(Violation(invariant, subject, detail))

    for uuid, into in incoming.items():
        group, child = by_child.get(uuid), by_uuid.get(uuid)
        applied = [edge for edge in into if edge.edge_state != EdgeState.PENDING]
        expect(group is not None or not applied, "I24", uuid, "edges count in a group that does not exist")
        if group is not None:
            _check_group(expect, group, applied)
        if group is not None and child is not None:
            _check_child(expect, group, child)
        for edge in applied:
            upstream = by_uuid.get(edge.upstream)
            ended = upstream is None or upstream.lifecycle_phase in lit.ENDED_PHASES
            expect((edge.edge_state in _STATES) <= ended, "I22", uuid, f"edge {edge.edge_id} resolved before its time")
            expect(
                edge.edge_state in _STATES or not ended,
                "I26",
                uuid,
                f"edge {edge.edge_id} is open, but its upstream has ended",
            )
            expect(
                (edge.resolved_at_ms is not None) == (edge.edge_state in _STATES),
                "I24",
                uuid,
                "its state and the time it was resolved at disagree",
            )
    expect(_is_acyclic(edges), "I26", "graph", "its edges form a cycle")
    return found


def _check_group(expect: _Expect, group: EdgeGroup, applied: Sequence[Edge]) -> None:
    good = sum(edge.edge_state == EdgeState.SATISFIED for edge in applied)
    bad = sum(edge.edge_state == EdgeState.IMPOSSIBLE for edge in applied)
    counted = (group.success_count, group.fail_count + group.skip_count, rules.applied_total(group))
    expect(counted == (good, bad, len(applied)), "I24", group.downstream, f"{counted} counted, {good} and {bad} found")
    verdict = rules.verdict(group).state if good + bad else GroupState.PENDING
    fired = group.group_state != GroupState.PENDING
    expect(
        fired or verdict is GroupState.PENDING,
        "I24",
        group.downstream,
        f"its edges make it {verdict}, but it has not fired",
    )
    if group.group_state == GroupState.SATISFIED and isinstance(read_edge_policy(group.policy), AllOf):
        expect(verdict is GroupState.SATISFIED, "I24", group.downstream, "satisfied, but not by all")
    expect(
        (group.satisfied_at_ms is not None) == (group.group_state == GroupState.SATISFIED),
        "I24",
        group.downstream,
        "its state and the time it was satisfied at disagree",
    )


def _check_child(expect: _Expect, group: EdgeGroup, child: Execution) -> None:
    started = child.started_at_ms is not None
    claimable = lit.is_claimable(child.lifecycle_phase, child.eligibility_state)
    if rules.is_waiting(group) and not started:
        expect(not claimable, "I22", child.uuid, "claimable before its group is satisfied")
        expect(child.lifecycle_phase != lit.ACTIVE, "I22", child.uuid, "running before its group is satisfied")
    if group.group_state == GroupState.SATISFIED:
        expect(
            child.eligibility_state != lit.BLOCKED_BY_DEPENDENCIES, "I23", child.uuid, "held back by a satisfied group"
        )
    if group.group_state == GroupState.IMPOSSIBLE:
        expect(
            child.lifecycle_phase in lit.ENDED_PHASES,
            "I23",
            child.uuid,
            "has not ended, but its group can no longer be satisfied",
        )


def _is_acyclic(edges: Iterable[Edge]) -> bool:
    following: dict[str, list[str]] = {}
    open_edges: dict[str, int] = {}
    for edge in edges:
        following.setdefault(edge.upstream, []).append(edge.downstream)
        open_edges[edge.downstream] = open_edges.get(edge.downstream, 0) + 1
        open_edges.setdefault(edge.upstream, 0)
    ready = [uuid for uuid, count in open_edges.items() if not count]
    passed = 0
    while ready:
        uuid = ready.pop()
        passed += 1
        for downstream in following.get(uuid, ()):
            open_edges[downstream] -= 1
            if not open_edges[downstream]:
                ready.append(downstream)
    return passed == len(open_edges)
