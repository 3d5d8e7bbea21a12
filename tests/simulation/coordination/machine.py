"""Random operations on flows and what belongs to them, on an engine and on the oracle, side by side.

The machine of single executions does the calling and comparing; this one adds members, edges and groups, and looks at
their rows as well after each step.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize

from flowfabric.model.decisions import Get, Select
from flowfabric.model.events import CompletionEvent, SignalEvent
from flowfabric.model.partitions import flow_partition
from flowfabric.model.records.flows import CancelBacklog, CancelBacklogMember, Edge, EdgeGroup, Flow
from tests.simulation.coordination.domains import ELSEWHERE, FLOW_IDS, GROUPS, NODE, POLICY, SHAPE, menu
from tests.simulation.coordination.oracle import Coordination as Oracle
from tests.simulation.rules import Model
from tests.simulation.world import differences, picture_of_event

#: Kinds of rows that belong to a flow.
OF_FLOW = (Edge, EdgeGroup, CancelBacklogMember)


class Machine(Model):
    """Calling and comparing. Rules are added by ``rules_*.py``."""

    oracle: Oracle
    #: What an example may be about.
    themes: tuple[str, ...] = ("flows", "signals", "budgets", "everything")

    @initialize(
        items=st.lists(NODE, min_size=4, max_size=4),
        shape=SHAPE,
        policies=st.lists(POLICY, min_size=4, max_size=4),
        refs=st.integers(0, 15),
        focus=st.lists(st.sampled_from(GROUPS), max_size=2, unique=True),
        theme=st.integers(0, 11),
    )
    def begin(self, items: Any, shape: Any, policies: Any, refs: int, focus: list[str], theme: int) -> None:
        self.world.reset(0)
        self.engine = self.world.engines[0]
        self.oracle = Oracle(self.world.store.shown, self.world.clock.now_ms, 0)
        self.handles, self.log, self.answers = [], [], {}
        self.lives = Counter[int]()
        self.before, self.leases = {}, {}
        self.waiting, self.burst, self.terminal = [], 1, []
        self.graphs: dict[str, Any] = {}
        self.named_edges: list[tuple[str, str, str, str]] = []
        self.theme = self.themes[theme % len(self.themes)]
        fitting = [each for each in menu() if not {each.group, each.name} & {*ELSEWHERE[self.theme]}]
        self.menu = [each for each in fitting for _ in range(each.weight * (4 if each.group in focus else 1))]
        self.starting = True
        self.start(items, shape, policies, refs)
        self.flush()
        self.starting = False
        self.compare(False)

    def start(self, items: Any, shape: Any, policies: Any, refs: int) -> None:
        """How an example begins."""

    # -- names ---------------------------------------------------------------------------------------------------

    def partition(self, flow_id: str) -> int:
        return flow_partition(flow_id, self.engine.partitions)

    def name(self, slot: int) -> str:
        """Numbers below a thousand belong to the first flow's partition, those below two thousand to the second's."""
        flow_id = FLOW_IDS[min(slot // 1000, 2)]
        return f"{{fp:{self.partition(flow_id)}}}:{uuid.UUID(int=10**9 - slot, version=4)}"

    def fresh(self, flow: int) -> str:
        """A name for a new member of a flow."""
        self.lives[flow] += 1
        return self.name(1000 * flow + 10 + self.lives[flow])

    def member(self, flow_id: str, number: int) -> str:
        """A member of a flow; now and then an execution that is none, or one that is not there."""
        members = [each for each, found in self.oracle.member_of.items() if found == flow_id]
        if number < 6 and members:
            return members[number % len(members)]
        rest = [each for each in self.oracle.rows if each not in members]
        return rest[number % len(rest)] if number == 6 and rest else self.name(3000)

    def choose(self, slot: int, fits: Any = lambda row, now: True) -> str:
        rows = list(self.oracle.rows.values())
        fitting = [row for row in rows if fits(row, self.oracle.now)]
        found = fitting if fitting and slot < 6 else rows
        return self.name(3000) if slot > 6 or not found else found[slot % len(found)].id

    # -- both sides ----------------------------------------------------------------------------------------------

    def answered(self, labels: list[str]) -> None:
        """Where the order of what one timer ends is left open, the oracle follows the engine's."""
        self.world.run(self.quiet())
        if any(label.startswith(("timer", "expire")) for label in labels):
            self.oracle.observed = self.world.run(self.states())

    async def states(self) -> dict[str, str]:
        rows = await self.world._rows(list(self.oracle.rows))
        return {each: found[0].public_state for each, found in rows.items()}

    async def quiet(self) -> None:
        """What was set in motion has come to rest."""
        for engine in self.world.engines:
            while engine._going_on:
                await asyncio.wait(engine._going_on)

    def ask(self, model: Any) -> Any:
        answer = super().ask(model)
        self.oracle.settle()
        type(self).seen.update({("met", what): times for what, times in self.oracle.met.items()})
        self.oracle.met.clear()
        return answer

    # -- comparing -----------------------------------------------------------------------------------------------

    def compare(self, refused: bool) -> None:
        if self.starting:
            return
        self.oracle.follow_up()
        self.see_who_was_let_go()
        super().compare(refused)
        for each, (execution, _, _) in self.before.items():
            found = (execution.payload, execution.flow_id)
            wanted = (self.oracle.payloads[each], self.oracle.member_of.get(each))
            self.expect(differences(found, wanted, each), "payload or flow differ")
        rows = self.world.run(self.flow_rows())
        pictures = {flow_id: self.picture_of_flow(flow_id, found) for flow_id, found in rows.items()}
        self.compare_waits(refused)
        self.compare_budgets(refused)
        wanted_flows = {flow_id: self.picture_of_oracle(flow_id) for flow_id in self.oracle.flows}
        self.expect(differences(pictures, wanted_flows), "flows differ")
        if refused:
            self.expect([] if rows == self.graphs else ["something changed"], "I15: a refusal changed a flow")
        self.graphs = rows

    def see_who_was_let_go(self) -> None:
        """Added by the rules of budgets."""

    def compare_budgets(self, refused: bool) -> None:
        """Added by the rules of budgets."""

    def compare_waits(self, refused: bool) -> None:
        """Added by the rules of signals."""

    async def flow_rows(self) -> dict[str, Any]:
        """Every row of every flow."""
        needs: list[Any] = []
        keys = {flow_id: (self.partition(flow_id), flow_id) for flow_id in (*FLOW_IDS, *self.oracle.flows)}
        for key in keys.values():
            needs += [Get(Flow, key), Get(CancelBacklog, key)]
            needs += [Select(kind, ("partition", "flow_id"), key) for kind in OF_FLOW]
        view = await self.world.engines[0]._view(*needs)
        found = {}
        for flow_id, key in keys.items():
            flow, header = view.get(Flow, key), view.get(CancelBacklog, key)
            rest = [view.select(kind, partition=key[0], flow_id=flow_id) for kind in OF_FLOW]
            if flow is not None:
                found[flow_id] = (flow, header, *rest)
        return found

    def picture_of_flow(self, flow_id: str, rows: Any) -> dict[str, Any]:
        flow, header, edges, groups, left = rows
        raw = json.loads(flow.raw_fields)
        return {
            "kind": raw["flow_kind"],
            "namespace": raw["namespace"],
            "state": flow.public_flow_state,
            "revision": flow.graph_revision,
            "nodes": raw["node_count"],
            "edges": raw["edge_count"],
            "created": flow.created_at_ms,
            "mutated": raw["last_mutation_at_ms"],
            "ended": flow.terminal_at_ms,
            "policy": raw.get("cancellation_policy"),
            "reason": raw.get("cancel_reason"),
            "backlog": sorted(each.execution_id for each in left) if header is not None else None,
            "graph": {each.edge_id: (each.upstream, each.downstream, each.edge_state) for each in edges},
            "groups": {
                each.downstream: {
                    "policy": json.loads(each.policy),
                    "succeeded": each.success_count,
                    "failed": each.fail_count,
                    "skipped": each.skip_count,
                    "running": each.running_count,
                    "state": each.group_state,
                    "losers left": each.cancel_siblings_pending_flag,
                }
                for each in groups
            },
        }

    def picture_of_oracle(self, flow_id: str) -> dict[str, Any]:
        oracle = self.oracle
        found = {name: value for name, value in vars(oracle.flows[flow_id]).items() if name != "id"}
        found["graph"] = {
            each.id: (bare(each.up), bare(each.down), each.state)
            for each in oracle.edges.values()
            if each.flow == flow_id
        }
        found["groups"] = {
            bare(down): {**vars(group), "losers left": False}
            for (owner, down), group in oracle.groups.items()
            if owner == flow_id
        }
        return found

    def compare_events(self, events: list[Any]) -> None:
        self.expect([event for event in events if undispatched(event)], "ends that nobody followed")
        found, wanted = [self.picture_of_event(event) for event in events], self.oracle.events
        self.oracle.events = []
        for outbox in {event[0] for event in found + wanted}:
            ours, theirs = ([event for event in side if event[0] == outbox] for side in (found, wanted))
            same = len(ours) == len(theirs) and all(
                [event for event in ours if event[1] == each] == [event for event in theirs if event[1] == each]
                for each in {event[1] for event in ours + theirs}
            )
            self.expect([] if same else [f"engine {ours}", f"oracle {theirs}"], f"{outbox} events differ")

    def picture_of_event(self, event: Any) -> tuple[Any, ...]:
        if isinstance(event, SignalEvent):
            about = (event.signal_id, event.waitpoint_id, event.effect, event.occurred_at_ms, event.namespace)
            return ("signal", event.uuid, *about)
        found = picture_of_event(event)
        return (*found, event.flow_id) if isinstance(event, CompletionEvent) else found


def undispatched(event: Any) -> bool:
    return isinstance(event, CompletionEvent) and event.dispatched_at_ms is None


def bare(execution_id: str) -> str:
    return execution_id.rpartition(":")[2]
