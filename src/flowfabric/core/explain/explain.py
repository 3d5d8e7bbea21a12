"""Why an execution is not running: the same looks that claims and timers take, put into words."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec import structs

from flowfabric.core.admission import admit
from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.core.explain.questions import asked, budget_name, is_named, question_sentence
from flowfabric.core.explain.times import at, spoken
from flowfabric.core.flows.edges import applied_total
from flowfabric.core.leases.decline import declined, instances
from flowfabric.core.leases.grants import live_grant
from flowfabric.core.suspension.waits import live_waitpoints
from flowfabric.model import states as lit
from flowfabric.model.counting import counted
from flowfabric.model.decisions import Get, Peek
from flowfabric.model.errors import NotFound, Validation
from flowfabric.model.ids import ExecutionId
from flowfabric.model.operations.budgets import read_caps
from flowfabric.model.operations.flows import AllOf, AnyOf, EdgeState, read_edge_policy
from flowfabric.model.ownership import shown_id
from flowfabric.model.reads.explain import (
    ExhaustedBudget,
    Explanation,
    FullQuota,
    Gate,
    GateDetail,
    LeaseHolder,
    OpenChildren,
    OpenDependencies,
    OpenSuspension,
    OpenWaitpoint,
    QueuePlace,
)
from flowfabric.model.records.budgets import Budget, BudgetUsage, QuotaPolicy
from flowfabric.model.records.executions import Attempt, Execution, Lane, Suspension, Worker
from flowfabric.model.records.flows import Edge, EdgeGroup

#: Upstream executions that are named, and members of a flow that are looked through.
MAX_NAMED, MAX_LIVE = 20, 1_000
_ENDS = {
    lit.PUBLIC_COMPLETED: "It completed.",
    lit.PUBLIC_FAILED: "It failed, with no retries left.",
    lit.PUBLIC_CANCELLED: "It was cancelled.",
    lit.PUBLIC_EXPIRED: "It expired: it passed its deadline, or an attempt took longer than its timeout.",
    lit.PUBLIC_SKIPPED: "It was skipped: its flow no longer needs it.",
}
_DELAYS = {
    lit.WAITING_FOR_RETRY_BACKOFF: (Gate.RETRY_BACKOFF, "Its last attempt failed; it retries"),
    lit.WAITING_FOR_RESUME_DELAY: (Gate.RESUME_DELAY, "It was resumed and continues"),
}


def explain(execution_id: str, view: View, context: Context, namespaces: Collection[str] | None = None) -> Explanation:
    """What an execution stands before. Whether workers could take it is for ``with_workers`` to say, and what others
    wait for that it waits for is in ``core.explain.causes``. With ``namespaces`` children of others are left out."""
    execution = view.execution(execution_id)
    if execution is None:
        raise NotFound("execution", execution_id)
    if execution.lifecycle_phase in lit.ENDED_PHASES:
        return _ended(view, execution)
    found = _before(execution, view, context, namespaces)
    return structs.replace(found, sentence=cancelling(execution, context.now) + found.sentence)


def cancelling(execution: Execution | None, now: int) -> str:
    """What every sentence about an execution starts with that was asked to cancel; nothing for any other."""
    if execution is None or execution.cancel_at_ms is None or execution.lifecycle_phase in lit.ENDED_PHASES:
        return ""
    return f"It was asked to cancel and has {spoken(max(execution.cancel_at_ms - now, 0))} left to clean up. "


def _before(execution: Execution, view: View, context: Context, namespaces: Collection[str] | None) -> Explanation:
    """What an execution that has not ended stands before."""
    execution_id = execution.execution_id
    if execution.lifecycle_phase == lit.SUSPENDED:
        return _suspended(view, context, execution, namespaces)
    if execution.lifecycle_phase == lit.ACTIVE:
        return _held(execution, view.attempt(execution_id, execution.attempt_index), context.now)
    if execution.lifecycle_phase in lit.WAITING_PHASES:
        return _waiting(view, context, execution)
    return _unknown(execution)


def _said(
    execution: Execution,
    gate: Gate,
    sentence: str,
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    detail: GateDetail = None,
) -> Explanation:
    since = since_ms if since_ms is not None else execution.last_mutation_at_ms
    return Explanation(
        ExecutionId.unchecked(execution.execution_id),
        gate,
        sentence,
        execution.lane_id,
        execution.created_at_ms if since is None else since,
        until_ms,
        detail,
    )


def _unknown(execution: Execution) -> Explanation:
    where = f"phase {execution.lifecycle_phase!r}, eligibility {execution.eligibility_state!r}"
    return _said(execution, Gate.UNKNOWN, f"Its stored state is not one this engine writes: {where}.")


def _ended(view: View, execution: Execution) -> Explanation:
    full = view.full(execution.execution_id)
    sentence = _ENDS.get(execution.public_state, "It has ended.")
    reason = None
    if full is not None:
        cancelled = execution.public_state == lit.PUBLIC_CANCELLED
        reason = full.cancellation_reason if cancelled else full.last_failure_message
    if isinstance(reason, str) and reason and execution.public_state != lit.PUBLIC_COMPLETED:
        sentence = f"{sentence[:-1]} ({reason})."
    return _said(execution, Gate.TERMINAL, sentence, since_ms=execution.terminal_at_ms)


# -- held ----------------------------------------------------------------------------------------------------------


def _held(execution: Execution, attempt: Attempt | None, now: int) -> Explanation:
    instance = None if attempt is None else attempt.worker_instance_id
    expires = None if attempt is None else attempt.lease_expires_at_ms
    holder = LeaseHolder("" if attempt is None else attempt.worker_id or "", instance or "", expires)
    if execution.ownership_state == lit.LEASE_REVOKED:
        return _said(execution, Gate.LEASE_EXPIRED, "Its lease was revoked; it is waiting for a worker.", detail=holder)
    lost = execution.ownership_state == lit.LEASE_EXPIRED_RECLAIMABLE
    if attempt is None or (not instance and not lost):
        return _unknown(execution)
    if lost or (expires is not None and expires <= now):
        sentence = f"The lease of worker {instance} expired; a timer will return it to the queue."
        return _said(execution, Gate.LEASE_EXPIRED, sentence, since_ms=expires, detail=holder)
    sentence = f"It is running on worker {instance}."
    return _said(execution, Gate.RUNNING, sentence, since_ms=attempt.started_at_ms, until_ms=expires, detail=holder)


def _suspended(view: View, context: Context, execution: Execution, namespaces: Collection[str] | None) -> Explanation:
    suspension = view.get(Suspension, (execution.partition, execution.uuid))
    if suspension is None:
        return _unknown(execution)
    if suspension.wake_after is not None:
        return _parked(view, context, execution, suspension, namespaces)
    waitpoints = tuple(
        OpenWaitpoint(each.waitpoint_id, each.waitpoint_key, each.required_signal_names, each.signal_count)
        for each in live_waitpoints(view, execution.partition, execution.uuid)
    )
    reason = suspension.reason_code or execution.blocking_reason or lit.WAITING_FOR_SIGNAL
    until = suspension.timeout_at_ms
    question = asked(view, execution, suspension, reason)
    if question is not None:
        sentence = question_sentence(question, until, context.now)
    else:
        names = sorted({name for each in waitpoints for name in each.required_signals})
        wanted = f" It needs {', '.join(names)}." if names else ""
        sentence = f"It is suspended ({reason.replace('_', ' ')}) until it is signalled.{wanted}"
        if until is not None:
            sentence += f" Without a signal it times out at {at(until, context.now)}."
    return _said(
        execution,
        Gate.SUSPENDED,
        sentence,
        since_ms=suspension.suspended_at_ms,
        until_ms=until,
        detail=OpenSuspension(reason, waitpoints, until, question),
    )


def _parked(
    view: View,
    context: Context,
    execution: Execution,
    suspension: Suspension,
    namespaces: Collection[str] | None,
) -> Explanation:
    """A durable function: asleep, or waiting for what it has started."""
    since, until = suspension.suspended_at_ms, suspension.timeout_at_ms
    more_needed = abs(suspension.wake_after or 0)
    if not more_needed or execution.flow_id is None:
        sentence = "It is sleeping." if until is None else f"It is sleeping until {at(until, context.now)}."
        return _said(execution, Gate.ASLEEP, sentence, since_ms=since, until_ms=until)
    members = view.live_members(execution.partition, execution.flow_id, "", MAX_LIVE)
    own = [each for each in members if each.parent == execution.uuid]
    children = [each for each in own if namespaces is None or each.namespace in namespaces]
    named = tuple(each.execution_id for each in children[:MAX_NAMED])
    what = {0: "executions it started", 1: "an execution it started"}.get(
        len(children), f"{len(children)} executions it started"
    )
    wake = "" if until is None else f", until {at(until, context.now)}"
    detail = OpenChildren(named, more_needed, len(children))
    sentence = f"It is waiting for {what}{wake}."
    return _said(execution, Gate.CHILDREN, sentence, since_ms=since, until_ms=until, detail=detail)


# -- waiting -------------------------------------------------------------------------------------------------------


def _waiting(view: View, context: Context, execution: Execution) -> Explanation:
    if execution.blocking_reason == lit.PAUSED_BY_FLOW_CANCEL:
        return _said(execution, Gate.FLOW_CANCELLED, "Its flow is being cancelled.")
    match execution.eligibility_state:
        case lit.ELIGIBLE_NOW:
            return _claimable(view, context, execution)
        case lit.PENDING_CLAIM:
            return _promised(view, context, execution)
        case lit.NOT_ELIGIBLE_UNTIL_TIME:
            return _delayed(view, execution, context.now)
        case lit.BLOCKED_BY_DEPENDENCIES:
            return _dependent(view, execution)
        case lit.BLOCKED_BY_BUDGET:
            return _without_budget(view, execution, execution.blocked_by)
        case lit.BLOCKED_BY_QUOTA:
            return _without_quota(view, context, execution, execution.blocked_by)
        case lit.BLOCKED_BY_ROUTE:
            needs = ", ".join(execution.required_capabilities)
            offering = f" that offers {needs}" if needs else ""
            return _said(execution, Gate.ROUTE, f"It is waiting for a worker{offering} to register.")
        case lit.BLOCKED_BY_OPERATOR:
            return _said(execution, Gate.OPERATOR, f"An operator blocked it{_why(view, execution)}.")
        case lit.BLOCKED_BY_LANE_STATE:
            sentence = f"It is blocked by the state of lane {execution.lane_id}{_why(view, execution)}."
            return _said(execution, Gate.LANE_STATE, sentence)
        case _:
            return _unknown(execution)


def _why(view: View, execution: Execution) -> str:
    full = view.full(execution.execution_id)
    detail = None if full is None else full.blocking_detail
    return f": {detail}" if isinstance(detail, str) and detail else ""


def _promised(view: View, context: Context, execution: Execution) -> Explanation:
    grant = live_grant(view, execution, lit.GRANT_CLAIM, context.now)
    if grant is None:
        return _claimable(view, context, execution)
    holder = LeaseHolder(grant.worker_id, grant.worker_instance_id, grant.expires_at_ms or None)
    return _said(
        execution,
        Gate.GRANTED,
        f"It is granted to worker {grant.worker_instance_id}, which has not claimed it yet.",
        since_ms=grant.issued_at_ms,
        until_ms=grant.expires_at_ms or None,
        detail=holder,
    )


def _claimable(view: View, context: Context, execution: Execution) -> Explanation:
    lane = view.get(Lane, execution.lane_id)
    if lane is not None and lane.state in lit.WITHHOLDING_LANES:
        gate = Gate.LANE_PAUSED if lane.state == lit.LANE_PAUSED else Gate.LANE_DISABLED
        reason = f" ({lane.state_reason})" if lane.state_reason else ""
        sentence = f"Lane {execution.lane_id} is {lane.state}{reason}: it starts nothing until it is resumed."
        return _said(execution, gate, sentence, since_ms=lane.state_changed_at_ms)
    if admit.is_bound(execution):
        admit.prepare(view, [execution])
        denial = admit.would_deny(view, context, execution)
        if denial is not None and denial.reason == lit.WAITING_FOR_BUDGET:
            return _without_budget(view, execution, denial.gate)
        if denial is not None:
            return _without_quota(view, context, execution, denial.gate, denial.room_at_ms)
    return _said(execution, Gate.WAITING_FOR_WORKER, "It is waiting for a worker.")


def _delayed(view: View, execution: Execution, now: int) -> Explanation:
    if execution.blocking_reason == lit.WAITING_FOR_CAPABLE_WORKER:
        return _declined(view, execution, now)
    gate, sentence = _DELAYS.get(execution.blocking_reason or "", (Gate.DELAYED, "It is delayed and starts"))
    due = execution.delay_until_ms
    if due is None or due <= now:
        sentence += " as soon as a timer fires; it is due"
    else:
        sentence += f" in {spoken(due - now)}"
    return _said(execution, gate, f"{sentence}.", until_ms=due)


def _declined(view: View, execution: Execution, now: int) -> Explanation:
    """Offered again to workers, after some have declined it."""
    past = declined(view, execution)
    asked = instances(past)
    reason = f" ({past[-1].reason})" if past and past[-1].reason else ""
    due = execution.delay_until_ms
    again = "now" if due is None or due <= now else f"in {spoken(due - now)}"
    sentence = (
        f"{counted(len(asked), 'worker')} declined it, because their code does not include it{reason}; it is offered "
        f"again {again}. Declined by {', '.join(asked[:MAX_NAMED])}."
    )
    return _said(execution, Gate.DELAYED, sentence, since_ms=past[0].ended_at_ms if past else None, until_ms=due)


def _dependent(view: View, execution: Execution) -> Explanation:
    if execution.flow_id is None:
        return _unknown(execution)
    group = view.get(EdgeGroup, (execution.partition, execution.flow_id, execution.uuid))
    if group is None:
        return _unknown(execution)
    incoming = {"partition": execution.partition, "flow_id": execution.flow_id, "downstream": execution.uuid}
    edges = view.first(MAX_NAMED, Edge, **incoming, edge_state=str(EdgeState.APPLIED))
    open_ids = tuple(ExecutionId.of(edge.partition, edge.upstream) for edge in edges)
    policy = read_edge_policy(group.policy)
    total = applied_total(group)
    match policy:
        case AllOf():
            name, needed = "all_of", total
        case AnyOf():
            name, needed = "any_of", 1
        case _:
            name, needed = "quorum", policy.k
    left = max(needed - group.success_count, 0)
    detail = OpenDependencies(name, needed, group.success_count, group.fail_count, group.skip_count, open_ids, total)
    sentence = f"It is waiting for {left} more of {counted(total, 'execution')} it depends on ({name})."
    return _said(execution, Gate.DEPENDENCIES, sentence, detail=detail)


def _without_budget(view: View, execution: Execution, budget_id: str | None) -> Explanation:
    if budget_id is None:
        return _said(execution, Gate.BUDGET, f"It is waiting for a budget{_why(view, execution)}.")
    view.require((Peek(Budget, budget_id),))
    budget = view.peek(Budget, budget_id)
    if budget is None:
        return _said(execution, Gate.BUDGET, f"It is waiting for budget {shown_id(budget_id)}, which no longer exists.")
    if not is_named(view, execution, budget):
        # How much others have spent of the operator's budget is not for the namespace below it to know.
        return _said(execution, Gate.BUDGET, "It is waiting for room in a parent budget.")
    detail = _scarce(view, budget)
    state = "has room again; it continues soon"
    if detail.dimension is not None:
        state = f"is used up: {detail.spent} spent and {detail.reserved} reserved of {detail.limit} {detail.dimension}"
    sentence = f"Budget {budget_name(budget)} {state}."
    return _said(execution, Gate.BUDGET, sentence, until_ms=budget.next_reset_at_ms, detail=detail)


def _scarce(view: View, budget: Budget) -> ExhaustedBudget:
    try:
        capped = read_caps(budget.policy_json)
    except Validation:
        capped = ()
    name = budget.scope_id if budget.scope_type == lit.SCOPE_NAMED else ""
    view.require(Peek(BudgetUsage, (budget.partition, budget.budget_id, dimension)) for dimension, _ in capped)
    for dimension, limit in capped:
        usage = view.peek(BudgetUsage, (budget.partition, budget.budget_id, dimension))
        if usage is not None and usage.current_value + usage.reserved_value >= limit + usage.granted_value:
            spent, reserved = usage.current_value, usage.reserved_value
            return ExhaustedBudget(
                shown_id(budget.budget_id), dimension, spent, reserved, limit, budget.next_reset_at_ms, name
            )
    return ExhaustedBudget(shown_id(budget.budget_id), None, 0, 0, 0, budget.next_reset_at_ms, name)


def _without_quota(
    view: View, context: Context, execution: Execution, quota_id: str | None, room_at_ms: int | None = None
) -> Explanation:
    if quota_id is None:
        return _said(execution, Gate.QUOTA, f"It is waiting for a quota{_why(view, execution)}.")
    view.require((Get(QuotaPolicy, quota_id),))
    policy = view.get(QuotaPolicy, quota_id)
    if room_at_ms is None and policy is not None:
        room_at_ms = policy.next_room_at_ms
    soon = "" if room_at_ms is None else f"in {spoken(max(room_at_ms - context.now, 0))}"
    when = soon or "as soon as a slot is free"
    shown = shown_id(quota_id)
    sentence = f"Quota {shown} is full; it has room again {when}."
    return _said(execution, Gate.QUOTA, sentence, until_ms=room_at_ms, detail=FullQuota(shown, room_at_ms))


# -- workers -------------------------------------------------------------------------------------------------------


def with_workers(
    found: Explanation,
    required: Iterable[str],
    workers: Sequence[Worker],
    ahead: int | None,
    *,
    limited: bool = False,
    said_first: str = "",
) -> Explanation:
    """The explanation of an execution that waits for a worker, now that it is known who is there. ``limited`` says that
    only workers and executions of the asker's namespaces were looked at; the sentence starts with ``said_first``."""
    needs = frozenset(required)
    registered = [each for each in workers if found.lane_id in each.lanes]
    here = [frozenset(filter(None, each.capabilities_csv.split(","))) for each in registered]
    capable = sum(needs <= offered for offered in here)
    lacks = [sorted(needs - offered) for offered in here]
    nearest = min(lacks, key=lambda lacking: (len(lacking), lacking), default=[])
    place = QueuePlace(ahead, len(here), capable, () if capable else tuple(nearest))
    within, yours = (" of your namespaces", " of yours") if limited else ("", "")
    count = "many" if ahead is None else str(ahead or "none")
    before = f"{count}{yours} {'is' if ahead == 1 else 'are'} ahead of it"
    if here and not capable:
        lacking = ", ".join(nearest)
        sentence = (
            f"{counted(len(here), f'worker{within} is', f'workers{within} are')} registered for lane {found.lane_id}, "
            f"and none can run it: {lacking} is missing."
        )
        gate = Gate.MISSING_CAPABILITY
    elif not here:
        asks = f" that offers {', '.join(sorted(needs))}" if needs else ""
        sentence = f"It is waiting for a worker{asks}; none{within} is registered for lane {found.lane_id}, {before}."
        gate = Gate.WAITING_FOR_WORKER
    else:
        able = counted(capable, f"registered worker{within}", f"registered workers{within}")
        sentence = f"It is waiting for a worker: {able} could run it, {before}."
        gate = Gate.WAITING_FOR_WORKER
    sentence = said_first + sentence
    return Explanation(found.execution_id, gate, sentence, found.lane_id, found.since_ms, found.until_ms, place)


# -- for whom ------------------------------------------------------------------------------------------------------


def named(found: Explanation) -> tuple[str, ...]:
    """Other executions that an explanation names."""
    match found.detail:
        case OpenDependencies(open=ids) | OpenChildren(execution_ids=ids):
            return ids
    return ()


def without(found: Explanation, foreign: Collection[str]) -> Explanation:
    """The explanation for somebody who may not know of some executions that it names."""
    match found.detail:
        case OpenDependencies(open=ids):
            detail: GateDetail = structs.replace(found.detail, open=tuple(each for each in ids if each not in foreign))
        case _:
            return found
    return structs.replace(found, detail=detail)
