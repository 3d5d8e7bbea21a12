"""Planted bugs in creating, queueing, granting, and in what operators do."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from flowfabric.core.admission import block
from flowfabric.core.executions import create, operator
from flowfabric.core.lanes import workers as registry
from flowfabric.core.leases import claim, grants
from flowfabric.core.streams.append import AppendFrame
from flowfabric.model.decisions import Decision, TrimStream, change
from flowfabric.model.events import OperatorEvent
from flowfabric.model.operations.executions import Duplicate
from flowfabric.model.records.executions import Execution, Grant
from flowfabric.stores.keyed import entries, load
from flowfabric.stores.keyed.reads import at_once
from flowfabric.stores.sql.schema import split_wire
from tests.simulation.mutants.mutating import around, edited, mutant, without_drops, without_events, without_fields

# -- creating, queueing and granting ---------------------------------------------------------------------------------


@mutant
def duplicate_overwrites(monkeypatch: Any) -> None:
    def overwrite(old: Any, command: Any, view: Any, context: Any) -> Any:
        decision = old(command, view, context)
        stored = view.execution(command.execution_id)
        if isinstance(decision.result, Duplicate) and stored is not None:
            priority = create.clamp_priority(command.priority)
            return replace(decision, acts=(*decision.acts, change(stored, priority=priority)))
        return decision

    around(monkeypatch, create.CreateExecution, overwrite)


@mutant
def idempotency_key_ignored(monkeypatch: Any) -> None:
    around(
        monkeypatch,
        create.CreateExecution,
        lambda old, command, view, context: old(replace(command, idempotency_key=None), view, context),
    )


@mutant
def priority_not_clamped(monkeypatch: Any) -> None:
    monkeypatch.setattr(create, "clamp_priority", lambda priority: priority)


@mutant
def capabilities_ignored(monkeypatch: Any) -> None:
    around(
        monkeypatch,
        claim.Claim,
        lambda old, command, view, context: old(replace(command, capabilities=frozenset(("eu", "gpu"))), view, context),
    )


@mutant
def capabilities_ignored_by_grants(monkeypatch: Any) -> None:
    monkeypatch.setattr(grants, "missing_capabilities", lambda execution, capabilities: "")


@mutant
def priority_order_reversed(monkeypatch: Any) -> None:
    def entry(execution: Any) -> Any:
        return (execution.priority, 0, execution.created_at_ms, execution.uuid, execution.execution_id)

    for module in (entries, load):
        monkeypatch.setattr(module, "claim_entry", entry)


@mutant
def oldest_goes_last(monkeypatch: Any) -> None:
    def entry(execution: Any) -> Any:
        return (-execution.priority, 0, -execution.created_at_ms, execution.uuid, execution.execution_id)

    for module in (entries, load):
        monkeypatch.setattr(module, "claim_entry", entry)


@mutant
def promise_hides_nothing(monkeypatch: Any) -> None:
    for kind in (grants.IssueClaimGrant, grants.ClaimForWorker):
        edited(monkeypatch, kind, without_fields(Execution, "eligibility_state"))


@mutant
def expired_promise_hides_for_ever(monkeypatch: Any) -> None:
    monkeypatch.setattr(load, "forgotten_by_grants", lambda lane_id, now: at_once([]))


@mutant
def expired_promise_still_honoured(monkeypatch: Any) -> None:
    old = claim.live_grant

    def live_grant(*given: Any, **named: Any) -> Any:
        found = old(*given, **named)
        return None if found is None else replace(found, expires_at_ms=0)

    monkeypatch.setattr(claim, "live_grant", live_grant)


@mutant
def any_worker_may_redeem(monkeypatch: Any) -> None:
    def redeem(old: Any, command: Any, view: Any, context: Any) -> Any:
        partition, uuid = split_wire(command.execution_id)
        stored = view.select(Grant, partition=partition, uuid=uuid)
        worker = stored[0].worker_id if stored else command.worker_id
        return old(replace(command, worker_id=worker), view, context)

    around(monkeypatch, claim.ClaimExecution, redeem)


@mutant
def block_leaves_the_grant(monkeypatch: Any) -> None:
    edited(monkeypatch, block.BlockExecution, without_drops(Grant))


@mutant
def unblock_ignores_the_reason(monkeypatch: Any) -> None:
    around(
        monkeypatch,
        block.UnblockExecution,
        lambda old, command, view, context: old(replace(command, expected_blocking_reason=""), view, context),
    )


# -- operators, streams, workers -------------------------------------------------------------------------------------


@mutant
def replay_keeps_the_result(monkeypatch: Any) -> None:
    edited(monkeypatch, operator.ReplayExecution, without_fields(Execution, "result"))


@mutant
def replay_keeps_the_retry_count(monkeypatch: Any) -> None:
    edited(monkeypatch, operator.ReplayExecution, without_fields(Execution, "retry_count"))


@mutant
def replay_is_not_announced(monkeypatch: Any) -> None:
    edited(monkeypatch, operator.ReplayExecution, without_events(OperatorEvent))


@mutant
def priority_of_fresh_intake_changes(monkeypatch: Any) -> None:
    def also(old: Any, command: Any, view: Any, context: Any) -> Any:
        execution = view.execution(command.execution_id)
        if execution is not None and execution.lifecycle_phase == "submitted":
            view.put_loaded(Execution, command.execution_id, replace(execution, lifecycle_phase="runnable"))
        return old(command, view, context)

    around(monkeypatch, operator.ChangePriority, also)


@mutant
def frames_are_never_trimmed(monkeypatch: Any) -> None:
    def edit(decision: Decision) -> Decision:
        return replace(decision, acts=tuple(act for act in decision.acts if not isinstance(act, TrimStream)))

    edited(monkeypatch, AppendFrame, edit)


@mutant
def dead_workers_come_back(monkeypatch: Any) -> None:
    monkeypatch.setattr(registry, "is_alive", lambda worker, now: True)
