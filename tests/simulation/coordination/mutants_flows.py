"""Planted bugs in flows."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from flowfabric.core.batch.view import View
from flowfabric.core.executions import cancel, end, operator
from flowfabric.core.flows import build, cancel as flow_cancel, cascade, edges
from flowfabric.core.flows.cancel import AckCancelMembers, CancelFlow, CancelFlowHeaderCommand
from flowfabric.core.leases import hold
from flowfabric.model import states as lit
from flowfabric.model.decisions import Change
from flowfabric.model.events import CompletionEvent, LeaseEvent, OperatorEvent
from flowfabric.model.operations.flows import GroupState
from flowfabric.model.records.executions import Attempt
from flowfabric.model.records.flows import CancelBacklog, Edge, EdgeGroup, Flow
from tests.simulation.coordination.mutating import around, edited, mutant, without_drops, without_events, without_fields


def _verdict(monkeypatch: Any, change: Any) -> None:
    old = edges.verdict
    monkeypatch.setattr(edges, "verdict", lambda group: change(old, group))


@mutant
def any_of_needs_all(monkeypatch: Any) -> None:
    def judged(old: Any, group: Any) -> Any:
        if '"any_of"' in group.policy and group.success_count < edges.applied_total(group):
            found = old(group)
            return edges.Verdict(GroupState.PENDING) if found.state is GroupState.SATISFIED else found
        return old(group)

    _verdict(monkeypatch, judged)


@mutant
def all_of_waits_for_the_rest_before_it_gives_up(monkeypatch: Any) -> None:
    def judged(old: Any, group: Any) -> Any:
        found = old(group)
        left = edges.applied_total(group) - edges.resolved_total(group)
        early = found.state is GroupState.IMPOSSIBLE and '"all_of"' in group.policy and left
        return edges.Verdict(GroupState.PENDING) if early else found

    _verdict(monkeypatch, judged)


@mutant
def quorum_one_short(monkeypatch: Any) -> None:
    def judged(old: Any, group: Any) -> Any:
        if '"quorum"' in group.policy and group.success_count == group.k_target - 1 > 0:
            return edges.Verdict(GroupState.SATISFIED)
        return old(group)

    _verdict(monkeypatch, judged)


@mutant
def group_fires_twice(monkeypatch: Any) -> None:
    old = cascade.Cascade.judge

    def judge(self: Any, group: Any, child: Any, fields: Any, acts: Any) -> None:
        old(self, replace(group, group_state=str(GroupState.PENDING)), child, fields, acts)

    monkeypatch.setattr(cascade.Cascade, "judge", judge)


@mutant
def skip_does_not_ripple(monkeypatch: Any) -> None:
    old = cascade.Cascade.follow

    def follow(self: Any, execution: Any, outcome: str, result: Any, event: Any = None) -> Any:
        end = old(self, execution, outcome, result, event)
        if outcome == "skipped":
            self._level.remove(end)
            event.dispatched_at_ms = self._context.now
        return end

    monkeypatch.setattr(cascade.Cascade, "follow", follow)


@mutant
def skip_counts_as_a_failure(monkeypatch: Any) -> None:
    old = edges.counted
    monkeypatch.setattr(
        edges, "counted", lambda group, outcome: old(group, "failed" if outcome == "skipped" else outcome)
    )


@mutant
def siblings_go_on(monkeypatch: Any) -> None:
    monkeypatch.setattr(cascade.Cascade, "_cancel_rest", lambda self, *given: None)


@mutant
def losers_of_an_impossible_group_go_on(monkeypatch: Any) -> None:
    old = cascade.Cascade._cancel_rest

    def cancel_rest(self: Any, partition: int, flow_id: str, uuid: str, state: Any) -> None:
        if state is GroupState.SATISFIED:
            old(self, partition, flow_id, uuid, state)

    monkeypatch.setattr(cascade.Cascade, "_cancel_rest", cancel_rest)


@mutant
def let_run_cancels(monkeypatch: Any) -> None:
    def judged(old: Any, group: Any) -> Any:
        found = old(group)
        fired = found.state is not GroupState.PENDING and '"all_of"' not in group.policy
        return edges.Verdict(found.state, True) if fired else found

    _verdict(monkeypatch, judged)


@mutant
def data_is_not_passed(monkeypatch: Any) -> None:
    monkeypatch.setattr(edges, "passes_data", lambda edge: False)


@mutant
def data_is_passed_unasked(monkeypatch: Any) -> None:
    monkeypatch.setattr(edges, "passes_data", lambda edge: True)


@mutant
def applied_child_stays_claimable(monkeypatch: Any) -> None:
    monkeypatch.setattr(build, "_gated", lambda *given: [])


@mutant
def edge_from_an_ended_parent_waits(monkeypatch: Any) -> None:
    class Idle(cascade.Cascade):
        def resolve(self, edge: Any, end: Any) -> None:
            pass

    monkeypatch.setattr(build, "Cascade", Idle)


@mutant
def cycle_not_seen(monkeypatch: Any) -> None:
    monkeypatch.setattr(View, "descendants", lambda *given: frozenset())


@mutant
def stale_revision_accepted(monkeypatch: Any) -> None:
    def stage(old: Any, command: Any, view: Any, context: Any) -> Any:
        flow = view.get(Flow, (command.partition, command.flow_id))
        if flow is not None:
            command = replace(command, expected_graph_revision=flow.graph_revision)
        return old(command, view, context)

    around(monkeypatch, build.StageDependencyEdge, stage)


@mutant
def header_leaves_the_lease(monkeypatch: Any) -> None:
    edited(monkeypatch, CancelFlowHeaderCommand, without_fields(Attempt, "lease_epoch"))


@mutant
def header_is_not_announced(monkeypatch: Any) -> None:
    edited(monkeypatch, CancelFlowHeaderCommand, without_events(OperatorEvent))


@mutant
def members_end_in_silence(monkeypatch: Any) -> None:
    edited(monkeypatch, CancelFlow, without_events(CompletionEvent))


@mutant
def revoked_members_in_silence(monkeypatch: Any) -> None:
    edited(monkeypatch, CancelFlow, without_events(LeaseEvent))


@mutant
def last_acknowledgement_leaves_the_header(monkeypatch: Any) -> None:
    edited(monkeypatch, AckCancelMembers, without_drops(CancelBacklog))


@mutant
def cancel_pending_takes_running_members(monkeypatch: Any) -> None:
    def chosen(member: Any, policy: str) -> bool:
        return policy != "flow_only" and member.lifecycle_phase not in lit.ENDED_PHASES

    monkeypatch.setattr(flow_cancel, "_is_chosen", chosen)


@mutant
def replay_keeps_the_resolved_marks(monkeypatch: Any) -> None:
    def edit(decision: Any) -> Any:
        kept = [act for act in decision.acts if not (isinstance(act, Change) and isinstance(act.record, Edge))]
        return replace(decision, acts=tuple(kept))

    edited(monkeypatch, operator.ReplayExecution, edit)


@mutant
def replay_keeps_the_failures(monkeypatch: Any) -> None:
    edited(monkeypatch, operator.ReplayExecution, without_fields(EdgeGroup, "fail_count"))


@mutant
def holders_never_wait(monkeypatch: Any) -> None:
    monkeypatch.setattr(hold, "waits_for_members", lambda view, execution: False)


@mutant
def cancelled_members_move_nobody(monkeypatch: Any) -> None:
    def concluded(*given: Any, **named: Any) -> Any:
        return end.concluded(*given, **{**named, "with_flow": True})

    monkeypatch.setattr(cancel, "concluded", concluded)
