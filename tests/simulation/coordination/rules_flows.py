"""Growing graphs, cancelling them, and submitting whole ones."""

from __future__ import annotations

import uuid
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from flowfabric.model.operations.flows import AllOf, AnyOf, FlowEdge, FlowGraph, OnSatisfied, Quorum
from tests.simulation.coordination.domains import (
    BOUND,
    BUDGETS,
    EDGE,
    FLOW,
    FLOW_IDS,
    MEMBER,
    NODE,
    ODD_POLICY,
    POLICY,
    REF,
    REVISION,
    SHAPE,
    SUBMITTED,
    operation,
)
from tests.simulation.coordination.machine import Machine
from tests.simulation.domains import LANE, queued, running, some


def policy_of(document: dict[str, Any]) -> Any:
    """The Python type of a policy."""
    if document["kind"] == "all_of":
        return AllOf()
    mode = OnSatisfied(document["on_satisfied"])
    return AnyOf(mode) if document["kind"] == "any_of" else Quorum(document["k"], mode)


async def sorted_members(answer: Any) -> Any:
    """The order of members in an answer is open."""
    found = await answer
    return replace(found, member_execution_ids=tuple(sorted(found.member_execution_ids)))


def grows(machine: Any) -> bool:
    return len(machine.oracle.rows) < 9


def staged(machine: Any) -> bool:
    return any(not edge.applied for edge in machine.oracle.edges.values())


def live(machine: Any) -> bool:
    return any(flow.state == "open" for flow in machine.oracle.flows.values())


def at_work(machine: Any) -> list[str]:
    """Live flows of which some member runs."""
    oracle = machine.oracle
    rows = [row for row in oracle.rows.values() if row.phase == "active" and row.id in oracle.member_of]
    flows = dict.fromkeys(oracle.member_of[row.id] for row in rows)
    return [flow_id for flow_id in flows if oracle.flows[flow_id].state == "open"]


def backlog(machine: Any) -> bool:
    return any(flow.backlog for flow in machine.oracle.flows.values())


class Flows(Machine):
    """Operations on flows."""

    def start(self, items: Any, shape: Any, policies: Any, refs: int) -> None:
        """A flow that is made step by step, and another that has no members yet; or just executions."""
        if self.theme in ("signals", "budgets"):
            for slot, item in enumerate(items[: 3 if self.theme == "signals" else 4]):
                self.create_one({**item, "slot": 0, "name": self.name(slot)})
            return
        for flow_id in FLOW_IDS[:2]:
            self.make_flow(flow_id)
        names = [self.name(slot) for slot in range(4)]
        for name, item in zip(names, items, strict=True):
            self.create_one({**item, "slot": 0, "name": name})
            self.join(FLOW_IDS[0], name)
        for down in sorted({down for _, down in shape}):
            self.policy(FLOW_IDS[0], names[down], policies[down])
        for number, (up, down) in enumerate(shape):
            ref = "result" if refs >> number & 1 else None
            edge_id = str(uuid.UUID(int=number + 1, version=4))
            self.stage(FLOW_IDS[0], edge_id, names[up], names[down], ref, 0)
            self.apply_edge(FLOW_IDS[0], edge_id, names[up], names[down])

    def arguments(self, item: dict[str, Any]) -> dict[str, Any]:
        given = {"namespace": "north", "idempotency_key": None, "tags": None, **item}
        name, bound = given.pop("name", None), BOUND[given.pop("bound", 0)]
        if bound and self.theme in ("budgets", "everything"):
            given["policy"] = {**(given["policy"] or {}), **bound}
        found = super().arguments(given)
        return found if name is None else {**found, "execution_id": name}

    # -- steps ---------------------------------------------------------------------------------------------------

    def make_flow(self, flow_id: str) -> None:
        """The second one hands a budget on to its members."""
        handed = (BUDGETS[0],) if flow_id == FLOW_IDS[1] else ()
        self.do(
            "create_flow",
            lambda e: e.create_flow(flow_id=flow_id, flow_kind="dag", namespace="north", budget_ids=handed),
            lambda: self.oracle.create_flow(flow_id, "dag", "north", handed),
        )

    def join(self, flow_id: str, name: str) -> None:
        self.do(
            "add_execution_to_flow",
            lambda e: e.add_execution_to_flow(flow_id=flow_id, execution_id=name),
            lambda: self.oracle.add_execution_to_flow(flow_id, name, self.partition(flow_id)),
        )

    def policy(self, flow_id: str, down: str, policy: dict[str, Any]) -> None:
        def call(engine: Any) -> Any:
            return engine.set_edge_group_policy(flow_id=flow_id, downstream_execution_id=down, policy=policy_of(policy))

        self.do("set_edge_group_policy", call, lambda: self.oracle.set_policy(flow_id, down, policy))

    def stage(self, flow_id: str, edge_id: str, up: str, down: str, ref: str | None, off: int) -> None:
        self.flush()
        flow = self.oracle.flows.get(flow_id)
        revision = max((flow.revision if flow else 0) + off, 0)
        self.named_edges.append((flow_id, edge_id, up, down))
        self.do(
            "stage_dependency_edge",
            lambda e: e.stage_dependency_edge(
                flow_id=flow_id,
                edge_id=edge_id,
                upstream_execution_id=up,
                downstream_execution_id=down,
                data_passing_ref=ref,
                expected_graph_revision=revision,
            ),
            lambda: self.oracle.stage(flow_id, edge_id, up, down, ref, revision),
        )

    def apply_edge(self, flow_id: str, edge_id: str, up: str, down: str) -> None:
        self.do(
            "apply_dependency_to_child",
            lambda e: e.apply_dependency_to_child(
                flow_id=flow_id,
                edge_id=edge_id,
                upstream_execution_id=up,
                downstream_execution_id=down,
                graph_revision=0,
            ),
            lambda: self.oracle.apply(flow_id, edge_id, down),
        )

    # -- growing -------------------------------------------------------------------------------------------------

    @operation("graph", 1, flow=FLOW)
    def create_flow(self, flow: int) -> None:
        self.make_flow(FLOW_IDS[flow % 2])

    @operation("graph", 2, grows, flow=FLOW, item=NODE)
    def new_member(self, flow: int, item: dict[str, Any]) -> None:
        name = self.fresh(flow)
        self.create_one({**item, "slot": 0, "name": name})
        self.join(FLOW_IDS[flow], name)

    @operation("graph", 1, grows, flow=FLOW, item=NODE)
    def stranger(self, flow: int, item: dict[str, Any]) -> None:
        """An execution of its own."""
        self.create_one({**item, "slot": 0, "name": self.fresh(flow)})

    @operation("graph", 1, flow=FLOW, number=MEMBER)
    def add_member(self, flow: int, number: int) -> None:
        strangers = [each for each in self.oracle.rows if each not in self.oracle.member_of]
        name = strangers[number % len(strangers)] if strangers and number < 5 else self.member(FLOW_IDS[flow], number)
        self.join(FLOW_IDS[flow], name)

    @operation(
        "graph",
        4,
        live,
        flow=FLOW,
        up=MEMBER,
        down=MEMBER,
        ref=REF,
        off=REVISION,
        again=st.sampled_from((None, None, None, None, 0)),
        applied=st.sampled_from((True, True, True, False)),
        policy=st.one_of(st.none(), POLICY),
    )
    def link(
        self,
        flow: int,
        up: int,
        down: int,
        ref: str | None,
        off: int,
        again: int | None,
        applied: bool,
        policy: dict[str, Any] | None,
    ) -> None:
        """An edge between two members, rather from the older to the younger."""
        flow_id = FLOW_IDS[flow]
        low, high = (up, down) if (up + down) % 5 == 0 else sorted((up, down))
        names = (self.member(flow_id, low), self.member(flow_id, high))
        number = len(self.named_edges) + 1 if again is None else again + 1
        edge_id = str(uuid.UUID(int=number, version=4))
        if policy is not None:
            self.policy(flow_id, names[1], policy)
        self.stage(flow_id, edge_id, *names, ref, off)
        if applied:
            self.apply_edge(flow_id, edge_id, *names)

    @operation("graph", 2, staged, number=EDGE)
    def apply(self, number: int) -> None:
        waiting = [edge for edge in self.oracle.edges.values() if not edge.applied]
        if waiting and number < 12:
            edge = waiting[number % len(waiting)]
            self.apply_edge(edge.flow, edge.id, edge.up, edge.down)
        elif self.named_edges:
            self.apply_edge(*self.named_edges[number % len(self.named_edges)])

    @operation("graph", 1, flow=FLOW, down=MEMBER, policy=ODD_POLICY)
    def set_policy(self, flow: int, down: int, policy: dict[str, Any]) -> None:
        self.policy(FLOW_IDS[flow], self.member(FLOW_IDS[flow], down), policy)

    @operation(
        "graph",
        2,
        lambda machine: len(machine.oracle.flows) < 4,
        which=st.integers(0, 1),
        items=st.lists(NODE, min_size=4, max_size=4),
        shape=SHAPE,
        refs=st.integers(0, 15),
        policies=st.lists(st.one_of(st.none(), POLICY), min_size=4, max_size=4),
        back=st.sampled_from((False, False, False, False, True)),
    )
    def submit(self, which: int, items: Any, shape: Any, refs: int, policies: Any, back: bool) -> None:
        """A whole graph in one call; twice, it may be another graph under the same id."""
        flow_id, partition = SUBMITTED[which], self.partition(SUBMITTED[which])
        pairs = [*shape, shape[-1][::-1]] if back else shape
        edges = [
            (str(uuid.UUID(int=n + 1, version=4)), f"n{up}", f"n{down}", "result" if refs >> n & 1 else None)
            for n, (up, down) in enumerate(pairs)
        ]
        nodes = {
            f"n{n}": {**self.arguments({**item, "slot": 0}), "execution_id": self.submitted_name(partition, which, n)}
            for n, item in enumerate(items)
        }
        groups = {f"n{n}": policy for n, policy in enumerate(policies) if policy is not None}
        graph = FlowGraph(
            nodes,
            [FlowEdge(up, down, ref, edge_id=edge_id) for edge_id, up, down, ref in edges],
            {name: policy_of(policy) for name, policy in groups.items()},
            flow_id,
            "dag",
            "north",
        )
        self.do(
            "submit_flow", lambda e: e.submit_flow(graph), lambda: self.oracle.submit(flow_id, nodes, edges, groups)
        )

    def submitted_name(self, partition: int, which: int, number: int) -> str:
        return f"{{fp:{partition}}}:{uuid.UUID(int=10**12 - 100 * which - number, version=4)}"

    @operation(
        "end",
        8,
        some(queued),
        lane=LANE,
        ends=st.lists(st.sampled_from((True, True, True, False)), min_size=2, max_size=4),
    )
    def labour(self, lane: str, ends: list[bool]) -> None:
        """A worker that succeeds more often than not."""
        for good in ends:
            self.flush()
            known = len(self.handles)
            self.claim_lane(lane, ("eu", "gpu"), ("w2", "w2-a"), 5_000, 1)
            if len(self.handles) == known:
                return
            if good:
                self.complete(0, b"made")
            else:
                self.fail(0, "permanent", "")

    @operation("graph", 3, some(running), item=NODE, pick=MEMBER, waits=st.sampled_from((True, True, False)))
    def delegate(self, item: dict[str, Any], pick: int, waits: bool) -> None:
        """A holder adds a member to its own flow, and an edge from it to itself, and waits."""
        self.flush()
        live = [each for each in self.handles if self.oracle.holds(each[1])]
        if not live:
            return
        handle, held = live[pick % len(live)]
        flow_id = self.oracle.member_of.get(held.execution_id)
        if flow_id not in FLOW_IDS[:2] or not grows(self):
            return
        name = self.fresh(FLOW_IDS.index(flow_id))
        self.create_one({**item, "slot": 0, "name": name})
        self.join(flow_id, name)
        edge_id = str(uuid.UUID(int=len(self.named_edges) + 1, version=4))
        self.stage(flow_id, edge_id, name, held.execution_id, None, 0)
        self.apply_edge(flow_id, edge_id, name, held.execution_id)
        if waits:
            self.do("wait_children", lambda e: e.wait_children(handle), lambda: self.oracle.wait_children(held))

    # -- tearing down --------------------------------------------------------------------------------------------

    def torn(self, number: int) -> str:
        """A flow to cancel, rather one that is at work."""
        found = at_work(self)
        return found[number % len(found)] if found and number < 6 else FLOW_IDS[number % 3]

    @operation("tear", 3, at_work, number=MEMBER, policy=st.sampled_from(("cancel_all", "cancel_pending", "flow_only")))
    def cancel_flow(self, number: int, policy: str) -> None:
        self.flush()
        flow_id = self.torn(number)
        self.do(
            "cancel_flow",
            lambda e: sorted_members(e.cancel_flow(flow_id, policy)),
            lambda: self.oracle.cancel_flow(flow_id, policy),
        )

    @operation("tear", 1, at_work, number=MEMBER, policy=st.sampled_from(("cancel_all", "whatever")))
    def cancel_flow_header(self, number: int, policy: str) -> None:
        self.flush()
        flow_id = self.torn(number)
        self.do(
            "cancel_flow_header",
            lambda e: sorted_members(e.cancel_flow_header(flow_id=flow_id, reason="stop", cancellation_policy=policy)),
            lambda: self.oracle.cancel_flow_header(flow_id, policy, "stop"),
        )

    @operation("tear", 2, backlog, flow=MEMBER, number=MEMBER)
    def acknowledge(self, flow: int, number: int) -> None:
        waiting = [each.id for each in self.oracle.flows.values() if each.backlog]
        flow_id = waiting[flow % len(waiting)] if waiting else FLOW_IDS[flow % 3]
        left = self.oracle.flows[flow_id].backlog if waiting else None
        name = left[number % len(left)] if left and number < 6 else self.member(flow_id, number)
        self.do(
            "ack_cancel_member",
            lambda e: e.ack_cancel_member(flow_id, name),
            lambda: self.oracle.ack_cancel_member(flow_id, name),
        )
