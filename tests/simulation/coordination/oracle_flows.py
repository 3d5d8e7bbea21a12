"""The oracle's flows: graphs, groups, and what the end of a member sets in motion."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

from tests.simulation.coordination.model import ALL_OF, FLOW_ENDED, Edge, Flow, Group
from tests.simulation.model import ANY, WAITING, Held, Refused, Row
from tests.simulation.oracle.oracle import Oracle
from tests.simulation.oracle.oracle_control import BLOCKS


class Flows(Oracle):
    """Members, edges and groups. Ends are queued and worked off by ``settle``, one edge after the other."""

    def __init__(self, shown: str, now: int, grace: int) -> None:
        super().__init__(shown, now, grace)
        self.flows: dict[str, Flow] = {}
        #: The flow of each member, for ever.
        self.member_of: dict[str, str] = {}
        self.edges: dict[tuple[str, str], Edge] = {}
        self.groups: dict[tuple[str, str], Group] = {}
        self.payloads: dict[str, bytes] = {}
        #: Budgets that a flow hands on to its members.
        self.flow_budgets: dict[str, tuple[str, ...]] = {}
        self.ends: deque[tuple[Row, str]] = deque()
        #: The public states the engine shows, for what the specification leaves to the order of a timer.
        self.observed: dict[str, str] = {}
        self.replayed: list[Row] = []
        #: Situations that examples are meant to get into.
        self.met: Counter[str] = Counter()
        #: Whether the whole flow is being torn down, so that nobody is left to move.
        self.teardown = False

    # -- graphs --------------------------------------------------------------------------------------------------

    def create(self, item: dict[str, Any]) -> Any:
        answer = super().create(item)
        if answer[0] == "Created":
            self.payloads[item["execution_id"]] = item.get("input_payload", b"")
        return answer

    def flow(self, flow_id: str) -> Flow:
        if flow_id not in self.flows:
            raise Refused("NotFound", "flow")
        return self.flows[flow_id]

    def _open(self, flow: Flow) -> None:
        if flow.state in FLOW_ENDED:
            raise Refused("State", "flow_already_terminal")

    def create_flow(self, flow_id: str, kind: str, namespace: str, budgets: tuple[str, ...] = ()) -> Any:
        if flow_id in self.flows:
            return ("AlreadySatisfied", {"flow_id": flow_id})
        self.flow_budgets[flow_id] = budgets
        self.flows[flow_id] = Flow(flow_id, kind, namespace, self.now, self.now)
        return ("Created", {"flow_id": flow_id})

    def add_execution_to_flow(self, flow_id: str, execution_id: str, partition: int) -> Any:
        """``partition`` is the flow's."""
        flow = self.flow(flow_id)
        self._open(flow)
        self.row(execution_id)
        if not execution_id.startswith(f"{{fp:{partition}}}"):
            raise Refused("Validation", "invalid_input")
        member_of = self.member_of.get(execution_id)
        if member_of == flow_id:
            return ("AlreadyMember", {"execution_id": execution_id, "node_count": flow.nodes})
        if member_of is not None:
            raise Refused("Conflict", "execution_already_in_flow")
        self.member_of[execution_id] = flow_id
        flow.nodes += 1
        flow.revision += 1
        flow.mutated = self.now
        return ("Added", {"execution_id": execution_id, "new_node_count": flow.nodes})

    def stage(self, flow_id: str, edge_id: str, up: str, down: str, ref: str | None, expected: int) -> Any:
        if up == down:
            raise Refused("Conflict", "self_referencing_edge")
        flow = self.flow(flow_id)
        self._open(flow)
        if flow.revision != expected:
            raise Refused("Contention", "stale_graph_revision")
        if self.member_of.get(up) != flow_id or self.member_of.get(down) != flow_id:
            raise Refused("State", "execution_not_in_flow")
        if (flow_id, edge_id) in self.edges:
            raise Refused("Conflict", "dependency_already_exists")
        if up in self._reachable(flow_id, down):
            raise Refused("Conflict", "cycle_detected")
        self.edges[(flow_id, edge_id)] = Edge(edge_id, flow_id, up, down, ref, self.now)
        flow.revision += 1
        flow.edges += 1
        flow.mutated = self.now
        return ("Staged", {"edge_id": edge_id, "new_graph_revision": flow.revision})

    def _reachable(self, flow_id: str, start: str) -> set[str]:
        found, ahead = {start}, [start]
        while ahead:
            node = ahead.pop()
            following = {edge.down for edge in self.edges.values() if (edge.flow, edge.up) == (flow_id, node)}
            ahead += following - found
            found |= following
        return found

    def into(self, flow_id: str, down: str) -> list[Edge]:
        """Every edge into a member, by id."""
        found = [edge for edge in self.edges.values() if (edge.flow, edge.down) == (flow_id, down)]
        return sorted(found, key=lambda edge: edge.id)

    def set_policy(self, flow_id: str, down: str, policy: dict[str, Any]) -> Any:
        if policy.get("k") == 0:
            raise Refused("Validation", "invalid_input")
        self.flow(flow_id)
        group = self.groups.get((flow_id, down))
        if group is not None and group.policy == policy:
            return ("AlreadySet", {})
        if self.into(flow_id, down):
            raise Refused("Validation", "invalid_input")
        if group is None:
            self.groups[(flow_id, down)] = Group(policy)
        else:
            group.policy = policy
        return ("Set", {})

    def apply(self, flow_id: str, edge_id: str, down: str) -> Any:
        row = self.row(down)
        if self.member_of.get(down) not in (None, flow_id):
            raise Refused("Conflict", "execution_already_in_flow")
        edge = self.edges.get((flow_id, edge_id))
        if edge is None or edge.down != down:
            raise Refused("Validation", "invalid_input")
        if edge.applied:
            return ("AlreadyApplied", {})
        edge.state = "applied"
        group = self.groups.setdefault((flow_id, down), Group(dict(ALL_OF)))
        group.running += 1
        if group.state == "satisfied" and group.policy["kind"] == "all_of":
            # All of them means all of them: a member that adds work for itself waits again.
            group.state = "pending"
            self.met["work added to a member that had all it waited for"] += 1
        if group.state == "pending":
            self._gate(row)
        upstream = self.rows.get(edge.up)
        if upstream is not None and upstream.over:
            # Its end was dispatched long ago: nothing else would ever resolve this edge.
            self._resolve(edge, upstream, upstream.outcome or "")
            self.met[f"edge from an ended parent: {edge.state}"] += 1
            self.settle()
        return ("Applied", {"unsatisfied_count": group.running})

    def submit(self, flow_id: str, nodes: dict[str, Any], edges: list[Any], groups: dict[str, Any]) -> Any:
        """``nodes`` by name, ``edges`` as ``(id, up, down, ref)``, ``groups`` by the name of the child."""
        names = {name: item["execution_id"] for name, item in nodes.items()}
        if any(up == down for _, up, down, _ in edges):
            raise Refused("Conflict", "self_referencing_edge")
        if _has_cycle([(up, down) for _, up, down, _ in edges]):
            raise Refused("Conflict", "cycle_detected")
        answer = ("FlowSubmitted", {"flow_id": flow_id, "execution_ids": names})
        if flow_id in self.flows:
            if any(self.member_of.get(each) != flow_id for each in names.values()):
                raise Refused("Validation", "invalid_input")
            return answer
        if any(each in self.rows for each in names.values()):
            raise Refused("Validation", "invalid_input")
        size = (len(nodes), len(edges))
        self.flows[flow_id] = Flow(flow_id, "dag", "north", self.now, self.now, "open", sum(size), *size)
        for item in nodes.values():
            self.create(item)
            self.member_of[item["execution_id"]] = flow_id
        for name in {down for _, _, down, _ in edges} | groups.keys():
            self.groups[(flow_id, names[name])] = Group(groups.get(name, ALL_OF))
        for edge_id, up, down, ref in edges:
            self.edges[(flow_id, edge_id)] = Edge(edge_id, flow_id, names[up], names[down], ref, self.now, "applied")
            self.groups[(flow_id, names[down])].running += 1
            self._gate(self.rows[names[down]])
        return answer

    def _gate(self, row: Row) -> None:
        elsewhere = row.eligibility in {eligibility for eligibility, _ in BLOCKS.values()}
        if row.phase in WAITING and not elsewhere:
            row.state("runnable", "unowned", "blocked_by_dependencies", row.attempt_state, "waiting_children")
            row.blocking = "waiting_for_children"
            row.drop_grants("claim")

    def waits_for_others(self, row: Row) -> bool:
        """Whether edges into a member are open that still matter."""
        flow_id = self.member_of.get(row.id)
        group = self.groups.get((flow_id or "", row.id))
        if flow_id is None or group is None or group.state != "pending":
            return False
        return any(edge.open for edge in self.into(flow_id, row.id))

    # -- ends ----------------------------------------------------------------------------------------------------

    def completion_event(self, row: Row, outcome: str) -> None:
        found = (row.uuid, outcome, self.now, row.namespace, self._tag(row), self.member_of.get(row.id))
        self.events.append(("completion", *found))

    def end(self, row: Row, public: str, outcome: str) -> None:
        super().end(row, public, outcome)
        if not self.teardown and row.id in self.member_of:
            self.ends.append((row, outcome))

    def settle(self) -> None:
        """Work off everything that ends have set in motion."""
        while self.ends:
            row, outcome = self.ends.popleft()
            flow_id = self.member_of[row.id]
            leaving = [edge for edge in self.edges.values() if (edge.flow, edge.up) == (flow_id, row.id)]
            for edge in sorted(leaving, key=lambda edge: edge.id):
                if edge.open:
                    self._resolve(edge, row, outcome)

    def _resolve(self, edge: Edge, upstream: Row, outcome: str) -> None:
        """Count one edge; when that decides the group, move the child and the losers."""
        group, child = self.groups[(edge.flow, edge.down)], self.rows.get(edge.down)
        edge.state = "satisfied" if outcome == "success" else "impossible"
        group.succeeded += outcome == "success"
        group.skipped += outcome == "skipped"
        group.failed += outcome not in ("success", "skipped")
        group.running = max(group.running - 1, 0)
        passes = outcome == "success" and edge.ref and upstream.result is not None
        if passes and child is not None and not child.over:
            assert upstream.result is not None
            self.payloads[edge.down] = upstream.result
            self.met["data passed"] += 1
        if group.state == "pending":
            self._judge(edge.flow, edge.down, upstream.id)
        else:
            self.met["counted after the group had fired"] += 1

    def _judge(self, flow_id: str, down: str, last: str) -> None:
        """A group that is decided moves its child, and its losers but the one that ended last."""
        group, child, into = self.groups[(flow_id, down)], self.rows.get(down), self.into(flow_id, down)
        if group.state == "pending":
            group.state = group.verdict(sum(each.applied for each in into))
        if group.state == "pending":
            return
        self.met[f"{group.policy['kind']} {group.policy.get('on_satisfied', '')} {group.state}"] += 1
        if child is not None and group.state == "satisfied":
            self._release_child(child)
        if child is not None and group.state == "impossible" and not child.over:
            self.skip(child)
        if group.policy.get("on_satisfied") == "cancel_remaining":
            for each in {each.up: each for each in into if each.open and each.up != last}.values():
                loser = self.rows.get(each.up)
                if loser is not None and not loser.over:
                    self.met[f"loser cancelled while {loser.phase}"] += 1
                    self.cancel_row(loser, f"sibling_quorum_{group.state}", "engine")

    def _release_child(self, row: Row) -> None:
        if row.phase != "runnable" or row.eligibility != "blocked_by_dependencies":
            return
        if row.delay is not None and row.delay > self.now:
            row.state("runnable", "unowned", "not_eligible_until_time", row.attempt_state, "delayed")
            self.met["let go before its own time"] += 1
        else:
            row.state("runnable", "unowned", "eligible_now", row.attempt_state, "waiting")
            row.blocking, row.delay = "waiting_for_worker", None

    def skip(self, row: Row) -> None:
        """A member that can never run."""
        attempt = row.current
        self.met[f"skipped while {row.phase}"] += 1
        began = attempt is not None and row.attempt_state in ("running_attempt", "attempt_interrupted")
        if attempt is not None and row.leased:
            if row.ownership == "leased":
                self.lease_event(row, "revoked", row.index, attempt.epoch, ANY)
            attempt.take("skipped", self.now)
        elif attempt is not None:
            attempt.release("skipped", ANY)
        self.end(row, "skipped", "skipped")
        row.attempt_state = "attempt_terminal" if began else "none"

    def run_timer(self, name: str) -> int:
        """Which row a timer meets first is open: one that ends may take others with it."""
        own = {"execution_deadline": "expired", "attempt_timeout": "expired", "lease_expiry": "failed"}.get(name)
        self.rows = dict(sorted(self.rows.items(), key=lambda each: self.observed.get(each[0]) != own))
        return super().run_timer(name)

    def _before(self, row: Row | None) -> None:
        """What others set in motion comes first, unless the engine shows that it met this row before them."""
        if row is None or self.observed.get(row.id) not in ("expired", "failed"):
            self.settle()

    def mark_lease_expired(self, row: Row | None) -> str:
        self._before(row)
        return super().mark_lease_expired(row)

    def _attempt_timeout(self, row: Row) -> bool:
        self._before(row)
        return super()._attempt_timeout(row)

    def _deadline(self, row: Row) -> bool:
        self._before(row)
        return super()._deadline(row)

    def unblock_execution(self, execution_id: str, expected: str) -> Any:
        answer = super().unblock_execution(execution_id, expected)
        row = self.rows[execution_id]
        if not self.waits_for_others(row):
            return answer
        self.met["let go, but members are at work"] += 1
        self._gate(row)
        return ("Unblocked", {"execution_id": execution_id, "public_state": "waiting_children"})

    def unblock_admissible(self) -> int:
        """Those who have members to wait for are not let go by this."""
        done = 0
        for row in self.rows.values():
            if row.eligibility in ("blocked_by_budget", "blocked_by_quota"):
                done += self.unblock_execution(row.id, "")[1]["public_state"] == "waiting"
        return done

    def _complete(self, row: Row, payload: bytes | None) -> None:
        row.result = payload
        super()._complete(row, payload)

    def cancel_row(self, row: Row, reason: str, by: str) -> None:
        self.teardown = by == "flow_cascade"
        super().cancel_row(row, reason, by)
        self.teardown = False

    def wait_children(self, handle: Held) -> None:
        super().wait_children(handle)
        row = self.rows[handle.execution_id]
        if self.waits_for_others(row):
            self.met["a holder waits for members"] += 1
            row.state("runnable", "unowned", "blocked_by_dependencies", "attempt_interrupted", "waiting_children")
            row.blocking = "waiting_for_children"

    def replay_execution(self, execution_id: str) -> Any:
        row = self.row(execution_id)
        flow_id = self.member_of.get(execution_id)
        skipped = row.public == "skipped" or (row.current is not None and row.current.outcome == "skipped")
        answer = super().replay_execution(execution_id)
        if flow_id is None or not skipped:
            return answer
        self.events.pop()
        edges, group = self.into(flow_id, execution_id), self.groups.get((flow_id, execution_id))
        found = 1 if edges and group is not None else 0
        if group is not None and edges:
            group.failed = group.skipped = group.running = 0
            group.state = "pending"
            for edge in edges:
                edge.state = "applied" if edge.state == "impossible" else edge.state
        row.state("runnable", "unowned", "blocked_by_dependencies", "pending_replay_attempt", "waiting_children")
        self.replayed.append(row)
        self.met["a skipped member replayed"] += 1
        self.operator_event(row, "replayed", {"branch": "skipped_flow_member", "groups_reset": found})
        return ("Replayed", {"public_state": "waiting_children"})

    def reconcile(self) -> Any:
        """The timer that finds blocked members whose parents have ended, however that came."""
        for row in list(self.rows.values()):
            if row.eligibility == "blocked_by_dependencies":
                self._look_again(row, ("success", "failed", "cancelled", "expired", "skipped"))
        return ANY

    def _look_again(self, row: Row, outcomes: tuple[str, ...]) -> None:
        """Count edges of a blocked member whose parents have ended so, and judge its group if all are counted."""
        flow_id = self.member_of.get(row.id)
        if flow_id is None or row.over:
            return
        edges, group = self.into(flow_id, row.id), self.groups.get((flow_id, row.id))
        for edge in edges:
            upstream = self.rows.get(edge.up)
            if edge.open and upstream is not None and upstream.over and upstream.outcome in outcomes:
                self._resolve(edge, upstream, upstream.outcome or "")
        if row.eligibility != "blocked_by_dependencies":
            return
        if group is None or not any(edge.applied for edge in edges):
            self._release_child(row)
        elif not any(edge.open for edge in edges):
            self._judge(flow_id, row.id, "")
        self.settle()

    def follow_up(self) -> None:
        """What goes on by itself once everybody has been answered."""
        waiting, self.replayed = self.replayed, []
        for row in waiting:
            # Those that did not succeed get a moment to be replayed too.
            self._look_again(row, ("success",))

    # -- cancelling flows ----------------------------------------------------------------------------------------

    def members(self, flow_id: str) -> list[Row]:
        return [row for row in self.rows.values() if self.member_of.get(row.id) == flow_id]

    def _end_flow(self, flow: Flow, policy: str, reason: str) -> None:
        flow.state, flow.policy, flow.reason = "cancelled", policy, reason
        flow.ended = self.now if flow.ended is None else flow.ended
        flow.mutated = self.now

    def _cancel_member(self, row: Row, reason: str, by: str) -> None:
        self.teardown = True
        self.end(row, "cancelled", "cancelled")
        self.teardown = False
        row.phase, row.eligibility, row.attempt_state = "cancelled", "cancelled", "cancelled"
        row.cancelled_by, row.cancel_reason = by, reason

    def cancel_flow(self, flow_id: str, policy: str) -> Any:
        flow = self.flow(flow_id)
        if flow.state == "cancelled":
            return ("Cancelled", {"cancellation_policy": flow.policy, "member_execution_ids": ANY})
        self._end_flow(flow, policy, "flow_cancelled")
        phases = {"flow_only": (), "cancel_all": (*WAITING, "active", "suspended"), "cancel_pending": WAITING}[policy]
        chosen = [row for row in self.members(flow_id) if row.phase in phases]
        for row in chosen:
            self.met[f"{policy} of a member {row.phase}"] += 1
            attempt = row.current
            if attempt is not None and row.leased:
                self.lease_event(row, "revoked", row.index, attempt.epoch, ANY)
                attempt.take(None, ANY)
            elif attempt is not None:
                attempt.outcome = None
            self._cancel_member(row, "flow_cancelled", "cancel_flow")
        ids = sorted(row.id for row in chosen)
        return ("Cancelled", {"cancellation_policy": policy, "member_execution_ids": ids})

    def cancel_flow_header(self, flow_id: str, policy: str, reason: str) -> Any:
        flow = self.flow(flow_id)
        if flow.state in FLOW_ENDED:
            left = flow.backlog or [row.id for row in self.members(flow_id)]
            fields = {"stored_cancellation_policy": flow.policy, "stored_cancel_reason": flow.reason}
            return ("AlreadyTerminal", {**fields, "member_execution_ids": sorted(left)})
        self._end_flow(flow, policy, reason)
        chosen = [row for row in self.members(flow_id) if not row.over]
        for row in chosen:
            if row.current is not None and row.leased:
                row.current.take(ANY, ANY)
            self._cancel_member(row, reason, "cancel_flow_header")
        ids = sorted(row.id for row in chosen)
        flow.backlog = list(ids)
        details = {"flow_id": flow_id, "cancellation_policy": policy, "reason": reason, "member_count": len(ids)}
        self.events.append(("operator", flow_id, "flow_cancel_requested", details, self.now, flow.namespace, None))
        return ("Cancelled", {"cancellation_policy": policy, "member_execution_ids": ids})

    def ack_cancel_member(self, flow_id: str, execution_id: str) -> None:
        flow = self.flows.get(flow_id)
        if flow is not None and flow.backlog is not None:
            flow.backlog = [each for each in flow.backlog if each != execution_id] or None


def _has_cycle(edges: list[tuple[str, str]]) -> bool:
    """Whether some nodes are left when those without edges into them are taken away, again and again."""
    while edges:
        downs = {down for _, down in edges}
        left = [(up, down) for up, down in edges if up in downs]
        if len(left) == len(edges):
            return True
        edges = left
    return False
