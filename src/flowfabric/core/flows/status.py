"""Flows that are over: counting their members for people, and deleting what nobody needs any more.

A flow is over when it was cancelled, or when it has had members and none of them is live. Nothing marks the second in
the flow's row: it follows from the members, and a replayed member makes the flow go on.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.core.documents import parse_document
from flowfabric.core.flows.build import number
from flowfabric.model import states as lit
from flowfabric.model.decisions import Change, Decision, Get, Need, PurgeFlow, insert
from flowfabric.model.records.executions import Execution
from flowfabric.model.records.flows import Flow, FlowCounts
from flowfabric.model.states import PublicState, canonical_public_state

#: Public state -> the column it is counted in.
_COUNTED: Mapping[PublicState, str] = {
    PublicState.COMPLETED: "members_completed",
    PublicState.FAILED: "members_failed",
    PublicState.CANCELLED: "members_cancelled",
    PublicState.EXPIRED: "members_expired",
    PublicState.SKIPPED: "members_skipped",
    PublicState.ACTIVE: "members_active",
    PublicState.SUSPENDED: "members_suspended",
    PublicState.WAITING: "members_waiting",
    PublicState.RESUMABLE: "members_waiting",
    PublicState.DELAYED: "members_delayed",
    PublicState.RATE_LIMITED: "members_rate_limited",
    PublicState.WAITING_CHILDREN: "members_waiting_children",
}
_ENDED = ("members_completed", "members_failed", "members_cancelled", "members_expired", "members_skipped")
_BAD = ("members_failed", "members_cancelled", "members_expired")
_WAITING = ("members_suspended", "members_delayed", "members_rate_limited", "members_waiting_children")
#: Flow states that a later look can only find again, unless a member is replayed.
FINAL_STATES = ("completed", "failed")


def flow_state(counts: Mapping[str, int], total: int) -> str:
    """What the members together look like."""
    if total == 0:
        return "open"
    if sum(counts[name] for name in _ENDED) == total:
        return "failed" if any(counts[name] for name in _BAD) else "completed"
    if counts["members_active"]:
        return "running"
    return "blocked" if any(counts[name] for name in _WAITING) else "open"


#: All that a flow can be seen to be.
FLOW_STATES = ("open", "running", "blocked", "completed", "failed", "cancelled")
#: What the end of its founder makes of a flow.
_FOUNDED = {
    PublicState.COMPLETED: "completed",
    PublicState.FAILED: "failed",
    PublicState.EXPIRED: "failed",
    PublicState.CANCELLED: "cancelled",
    PublicState.SKIPPED: "cancelled",
}


def state_seen(flow: Flow, founder: str | None, states: Mapping[str, int]) -> str:
    """What people are told that a flow is. One that was founded ends as its founder does, whatever became of the
    children; any other is what its members together look like, unless it was cancelled."""
    if founder is not None and (end := _FOUNDED.get(canonical_public_state(founder))) is not None:
        return end
    if flow.public_flow_state in lit.ENDED_FLOW_STATES:
        return flow.public_flow_state if flow.public_flow_state in FLOW_STATES else "completed"
    counts, total = _counts(states)
    return flow_state(counts, total)


def _counts(states: Mapping[str, int]) -> tuple[dict[str, int], int]:
    counts = dict.fromkeys(_COUNTED.values(), 0)
    for state, count in states.items():
        counts[_COUNTED[canonical_public_state(state)]] += count
    return counts, sum(states.values())


class ProjectFlow(Struct, gc=False):
    """Store how many members of a flow were seen in each public state."""

    partition: int
    flow_id: str
    states: dict[str, int]

    def needs(self) -> tuple[Need, ...]:
        # The flow's own row is read so that no member can join meanwhile.
        return (Get(FlowCounts, (self.partition, self.flow_id)), Get(Flow, (self.partition, self.flow_id)))


def project_flow(command: ProjectFlow, view: View, context: Context) -> Decision:
    """A line for dashboards, written when it differs from the last one. Nothing is decided upon it."""
    counts, total = _counts(command.states)
    fresh = FlowCounts(
        command.partition,
        command.flow_id,
        total_members=total,
        sampled_members=total,
        **counts,
        public_flow_state=flow_state(counts, total),
        last_summary_update_at=context.now,
    )
    if fresh.public_flow_state in FINAL_STATES and any(
        _COUNTED[canonical_public_state(each.public_state)] not in _ENDED
        for each in view.live_members(*fresh.key, "", 1)
    ):
        # A member has joined or been replayed since they were counted. An end that was stored would never be looked at
        # again, and keep the flow's members for ever.
        return Decision(False)
    before = view.get(FlowCounts, fresh.key)
    if before is None:
        return Decision(True, (insert(fresh),))
    fields = tuple(name for name in fresh.__struct_fields__ if getattr(fresh, name) != getattr(before, name))
    if fields in ((), ("last_summary_update_at",)):
        return Decision(False)
    return Decision(True, (Change(fresh, fields),))


def is_over(view: View, partition: int, flow_id: str) -> bool:
    """Whether nothing can happen in a flow any more, unless somebody replays a member."""
    flow = view.get(Flow, (partition, flow_id))
    if flow is None or flow.public_flow_state in lit.ENDED_FLOW_STATES:
        return True
    return not view.live_members(partition, flow_id, "", 1)


class RemoveFlow(Struct, gc=False):
    """Delete a flow that is over, once no member is left and ``retention_ms`` have passed."""

    partition: int
    flow_id: str
    retention_ms: int

    def needs(self) -> tuple[Need, ...]:
        return (Get(Flow, (self.partition, self.flow_id)),)


def remove_flow(command: RemoveFlow, view: View, context: Context) -> Decision:
    """Gone with its edges and groups. One that never had a member is kept until somebody cancels it."""
    flow = view.get(Flow, (command.partition, command.flow_id))
    if flow is None:
        return Decision(False)
    if flow.public_flow_state in lit.ENDED_FLOW_STATES:
        if flow.terminal_at_ms is not None and flow.terminal_at_ms > context.now - command.retention_ms:
            return Decision(False)
    elif not number(parse_document(flow.raw_fields, "ff_flow_core.raw_fields").get("node_count")):
        return Decision(False)
    if view.first(1, Execution, partition=flow.partition, flow_id=flow.flow_id):
        return Decision(False)
    return Decision(True, (PurgeFlow(flow.partition, flow.flow_id),))
