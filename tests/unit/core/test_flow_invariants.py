"""The checks of flows find what they are for: each broken promise, planted in a graph that was sound."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from flowfabric.core.invariants.flows import check_flow
from flowfabric.model.records.executions import Execution
from flowfabric.model.records.flows import Edge, EdgeGroup
from tests.unit.core.test_invariants import execution

FLOW = "00000000-0000-4000-8000-00000000000f"


def member(name: str, **fields: Any) -> Execution:
    return replace(execution(flow_id=FLOW, **fields), uuid=name, execution_id=f"{{fp:0}}:{name}")


ENDED = {"lifecycle_phase": "terminal", "eligibility_state": "not_applicable", "public_state": "completed"}
HELD = {"lifecycle_phase": "runnable", "eligibility_state": "blocked_by_dependencies", "started_at_ms": None}
READY = {"lifecycle_phase": "runnable", "eligibility_state": "eligible_now", "started_at_ms": None}


def sound() -> tuple[dict[str, Execution], dict[str, Edge], dict[str, EdgeGroup]]:
    """a has ended and b waits for a and c; d was let go by a."""
    members = {"a": member("a", **ENDED), "b": member("b", **HELD), "c": member("c"), "d": member("d", **READY)}
    edges = {
        "ab": Edge(0, FLOW, "ab", "a", "b", "{}", 0, "satisfied", 1, 2),
        "cb": Edge(0, FLOW, "cb", "c", "b", "{}", 0, "applied", 1, None),
        "ad": Edge(0, FLOW, "ad", "a", "d", "{}", 0, "satisfied", 1, 2),
        "cd": Edge(0, FLOW, "cd", "c", "d", "{}", 0, "pending", None, None),
    }
    groups = {
        "b": EdgeGroup(0, FLOW, "b", "{}", success_count=1, running_count=1, applied_count=2),
        "d": EdgeGroup(
            0, FLOW, "d", "{}", success_count=1, applied_count=1, group_state="satisfied", satisfied_at_ms=2
        ),
    }
    return members, edges, groups


def test_a_sound_flow_passes() -> None:
    members, edges, groups = sound()
    assert check_flow(members.values(), list(edges.values()), groups.values()) == []


@pytest.mark.parametrize(
    ("where", "name", "fields", "invariant"),
    [
        ("members", "b", READY, "I22"),
        ("members", "b", {"lifecycle_phase": "active"}, "I22"),
        ("members", "a", {"lifecycle_phase": "active"}, "I22"),
        ("members", "d", HELD, "I23"),
        ("groups", "d", {"group_state": "impossible", "satisfied_at_ms": None}, "I23"),
        ("groups", "b", {"success_count": 2}, "I24"),
        ("groups", "b", {"applied_count": 3}, "I24"),
        ("groups", "b", {"group_state": "satisfied", "satisfied_at_ms": 2}, "I24"),
        ("groups", "d", {"group_state": "pending", "satisfied_at_ms": None}, "I24"),
        ("groups", "d", {"satisfied_at_ms": None}, "I24"),
        ("edges", "ab", {"edge_state": "applied", "resolved_at_ms": None}, "I26"),
        ("edges", "ab", {"resolved_at_ms": None}, "I24"),
        ("edges", "cd", {"upstream": "b", "downstream": "a"}, "I26"),
    ],
)
def test_each_broken_promise_is_found(where: str, name: str, fields: dict[str, Any], invariant: str) -> None:
    members, edges, groups = sound()
    table: dict[str, Any] = {"members": members, "edges": edges, "groups": groups}[where]
    table[name] = replace(table[name], **fields)
    found = check_flow(members.values(), list(edges.values()), groups.values())
    assert invariant in {violation.invariant for violation in found}


def test_edges_that_count_nowhere() -> None:
    members, edges, groups = sound()
    del groups["b"]
    found = check_flow(members.values(), list(edges.values()), groups.values())
    assert "I24" in {violation.invariant for violation in found}
