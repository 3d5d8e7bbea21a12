"""The effect of an act before it is done: asks the rules themselves and keeps nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.core.documents import parse_document
from flowfabric.core.executions.cancel import CancelExecution, RequestCancel, cancel_execution, request_cancel
from flowfabric.core.executions.cancel_request import is_asked
from flowfabric.core.executions.operator import (
    ChangePriority,
    ReplayExecution,
    RevokeLease,
    change_priority,
    replay_execution,
    revoke_lease,
)
from flowfabric.core.executions.terminal import current_attempt
from flowfabric.core.explain.times import spoken
from flowfabric.core.leases import lease
from flowfabric.core.leases.fence import OPERATOR_OVERRIDE
from flowfabric.core.workflows.orphans import AT_ONCE
from flowfabric.model import states as lit
from flowfabric.model.counting import counted
from flowfabric.model.decisions import Decision
from flowfabric.model.errors import Contention, NotFound, State, StateKind, Validation
from flowfabric.model.ids import ExecutionId
from flowfabric.model.operations.executions import Cancelled, Cancelling, Replayed, Revoked
from flowfabric.model.operations.workflows import Step, StepOutcome
from flowfabric.model.policy import read_policy
from flowfabric.model.reads.preview import Foreseen, Preview
from flowfabric.model.records.executions import Execution
from flowfabric.model.states import PublicState

#: What names of steps begin with that stand for no call.
_MARK = "!"


def preview(execution_id: str, view: View, context: Context) -> Preview:
    """What each act would do now."""
    execution = view.full(execution_id)
    if execution is None:
        raise NotFound("execution", execution_id)
    steps = sorted(
        view.select(Step, partition=execution.partition, uuid=execution.uuid), key=lambda step: step.sequence
    )
    failed = [step.name for step in steps if step.outcome != StepOutcome.OK and not step.name.startswith(_MARK)]
    kept = sum(step.outcome == StepOutcome.OK and not step.name.startswith(_MARK) for step in steps)
    return Preview(
        ExecutionId.unchecked(execution_id),
        _cancel(execution, view, context),
        _terminate(execution, view, context),
        _replay(execution, view, context, kept),
        _fork(bool(steps)),
        _priority(execution, view, context),
        _revoke(execution, view, context),
        failed[-1] if failed else None,
    )


def _decided(rule: Callable[[Any, View, Context], Decision], command: Any, view: View, context: Context) -> Any:
    """What a rule would answer: its result, or the error that it refuses with."""
    try:
        return rule(command, view, context).result
    except (Contention, State, Validation) as refusal:
        return refusal
    finally:
        # A rule made of several steps folds them: the next one is to see what is stored, and so is another round.
        view.restart()


def _holder(execution: Execution, view: View) -> str | None:
    attempt = current_attempt(view, execution)
    return attempt.worker_instance_id if attempt is not None and lease.is_live(attempt) else None


def _cancel(execution: Execution, view: View, context: Context) -> Foreseen:
    match _decided(request_cancel, RequestCancel(execution.execution_id, ""), view, context):
        case Cancelling(until=until):
            left = spoken(max(until - context.now, 0))
            if is_asked(execution):
                return Foreseen(True, f"It was already asked to cancel and has {left} left to clean up.")
            return Foreseen(True, f"It gets {left} to clean up. Then it is cancelled, whether or not it is done.")
        case Cancelled() if execution.lifecycle_phase not in lit.ENDED_PHASES:
            return Foreseen(True, _at_once(execution, view))
    return Foreseen(False, _has_ended(execution))


def _at_once(execution: Execution, view: View, ends: str = "It ends now.") -> str:
    holder = _holder(execution, view)
    if holder is not None:
        found = f"{ends} It is running on {holder}, whose result will be ignored."
    elif execution.total_attempt_count:
        found = "It ends now, without cleaning up."
    else:
        found = "It ends now. It has not started, so there is nothing to clean up."
    return found + _others(execution, view)


def _others(execution: Execution, view: View) -> str:
    """What becomes of those that it has started, and of those that wait for it."""
    if execution.flow_id is None:
        return ""
    found = ""
    members = view.live_members(execution.partition, execution.flow_id, "", AT_ONCE)
    children = sum((each.parent, each.namespace) == (execution.uuid, execution.namespace) for each in members)
    if children:
        found += f" {counted(children, 'child', 'children')} that it started {_be(children)} cancelled too."
    if view.unresolved(execution.partition, execution.flow_id, execution.uuid):
        found += " Executions that depend on it are skipped or continue, depending on their edges."
    return found


def _be(count: int) -> str:
    return "is" if count == 1 else "are"


def _terminate(execution: Execution, view: View, context: Context) -> Foreseen:
    command = CancelExecution(execution.execution_id, "", OPERATOR_OVERRIDE, None, None)
    found = _decided(cancel_execution, command, view, context)
    if isinstance(found, Cancelled) and execution.lifecycle_phase not in lit.ENDED_PHASES:
        return Foreseen(True, _at_once(execution, view, "It ends now, without cleaning up."))
    return Foreseen(False, _has_ended(execution))


def _has_ended(execution: Execution) -> str:
    return f"It has already ended: {execution.public_state}."


def _replay(execution: Execution, view: View, context: Context, kept: int) -> Foreseen:
    found = _decided(replay_execution, ReplayExecution(execution.execution_id, None), view, context)
    most = read_policy(execution.policy).max_replay_count
    match found:
        case Replayed(public_state=state):
            used = parse_document(execution.raw_fields, "raw_fields").get("replay_count", 0)
            told = f"Replay {int(str(used)) + 1 if str(used).isdigit() else 1} of {most}."
            return Foreseen(True, f"{_again(execution, state, kept)} {told}")
        case State(kind=StateKind.MAX_REPLAYS_EXHAUSTED):
            return Foreseen(False, f"No replays left: it has used all {most}. Fork it, or start a new run.")
        case State(kind=StateKind.EXECUTION_NOT_TERMINAL) if execution.lifecycle_phase in lit.ENDED_PHASES:
            return Foreseen(False, "A cancelled execution cannot be replayed. Fork it, or start a new run.")
        case State(kind=StateKind.EXECUTION_NOT_TERMINAL):
            return Foreseen(False, "It has not ended yet.")
    return Foreseen(False, str(found))


def _again(execution: Execution, state: PublicState, kept: int) -> str:
    if state == PublicState.WAITING_CHILDREN:
        return "It waits for the executions that it depends on again, and runs when they succeed."
    lost = " Its result is discarded." if execution.public_state == lit.PUBLIC_COMPLETED else ""
    if not kept:
        return f"It runs again from the start, with the same id and input.{lost}"
    steps = f"{counted(kept, 'recorded step')} {_be(kept)}"
    return f"It continues where it stopped: {steps} kept and not run again.{lost}"


def _fork(any_steps: bool) -> Foreseen:
    if not any_steps:
        return Foreseen(False, "It has no recorded steps.")
    return Foreseen(
        True,
        "A new execution starts with the steps recorded before the one you choose and continues from there. "
        "This execution does not change.",
    )


def _priority(execution: Execution, view: View, context: Context) -> Foreseen:
    command = ChangePriority(execution.execution_id, execution.priority, None)
    if isinstance(_decided(change_priority, command, view, context), Contention):
        return Foreseen(False, "Only an execution waiting in its lane can change its priority.")
    return Foreseen(
        True, f"It waits in lane {execution.lane_id} with priority {execution.priority}. Higher priorities run first."
    )


def _revoke(execution: Execution, view: View, context: Context) -> Foreseen:
    found = _decided(revoke_lease, RevokeLease(execution.execution_id, None, "", ""), view, context)
    if not isinstance(found, Revoked):
        return Foreseen(False, "No worker holds it.")
    holder = _holder(execution, view)
    again = (
        f"It goes back to lane {execution.lane_id} at once"
        if execution.lifecycle_phase == lit.ACTIVE
        else "It stays as it is"
    )
    return Foreseen(True, f"{holder} loses the lease, and its result will be ignored. {again}.")
