"""Budgets: what they allow, what was charged, and how they are reset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from flowfabric.core.admission import charge, idle
from flowfabric.core.admission.charge import Counters, apply, breached, first_breach, levels, soft_breach, wake
from flowfabric.core.batch.view import View
from flowfabric.core.context import Context, saturate
from flowfabric.core.executions.cancel import cancelled
from flowfabric.core.executions.terminal import current_attempt
from flowfabric.core.ownership import owners
from flowfabric.model import states as lit
from flowfabric.model.decisions import NAMING, Act, Change, Decision, Drop, Get, GetFull, Need, Select, change, insert
from flowfabric.model.errors import LimitReached, NotFound, Validation, ValidationKind
from flowfabric.model.limits import MAX_BUDGET_DEPTH, MAX_COUNTED_DIMENSIONS
from flowfabric.model.operations.budgets import (
    AlreadyApplied,
    BudgetTerms,
    CreateBudgetResult,
    HardBreach,
    LimitsSet,
    Ok,
    Reset,
    read_caps,
    read_terms,
)
from flowfabric.model.ownership import owned_name, shown_id
from flowfabric.model.records.budgets import Budget, BudgetSpend, BudgetUsage
from flowfabric.model.records.executions import Execution

#: Waiting executions one commit cancels for a budget; the rest follows at once.
CANCELLED_AT_ONCE = 100
_encode = msgspec.json.Encoder().encode


class CreateBudget(Struct, gc=False):
    """A budget to define, for a namespace or for the operator. The names of its dimensions are the keys of both limits;
    its parent is named as its owner would name it."""

    partition: int
    budget_id: str
    namespace: str | None
    scope_type: str
    scope_id: str
    enforcement_mode: str
    terms: BudgetTerms
    parent_budget_id: str | None
    #: Whether it stays when nothing uses it.
    kept: bool = True

    def needs(self) -> tuple[Need, ...]:
        return owners.needs(Budget, self.budget_id, self.namespace)


def create_budget(command: CreateBudget, view: View, context: Context) -> Decision:
    """A new budget with counters at 0; one that exists stays as it is, for a while at least, and so do those above."""
    shown = shown_id(command.budget_id)
    found = owners.found(view.get, Budget, command.budget_id, command.namespace)
    if found is not None:
        return Decision(CreateBudgetResult.AlreadySatisfied(shown), idle.wanted(found, context.now, command.kept))
    chain: list[Budget] = []
    if command.parent_budget_id is not None:
        if shown_id(command.parent_budget_id) == shown:
            raise Validation(ValidationKind.INVALID_INPUT, "parent_budget_id: a budget cannot be its own parent")
        chain = levels(view, command.parent_budget_id, command.namespace)
        if len(chain) >= MAX_BUDGET_DEPTH:
            raise Validation(
                ValidationKind.INVALID_INPUT,
                f"parent_budget_id: {len(chain) + 1} levels, at most {MAX_BUDGET_DEPTH} are allowed",
            )
    now, interval = context.now, command.terms.reset_interval_ms
    budget = Budget(
        command.partition,
        command.budget_id,
        _encode(command.terms).decode(),
        now,
        now,
        command.scope_type,
        command.scope_id,
        command.enforcement_mode,
        next_reset_at_ms=saturate(now + interval) if interval else None,
        ancestor_ids=",".join(each.budget_id for each in chain),
        namespace=command.namespace,
        idle_check_at_ms=None if command.kept else idle.next_look(Budget, now),
    )
    stay = [act for each in chain for act in idle.wanted(each, now, kept=False)]
    counters = [
        insert(BudgetUsage(command.partition, command.budget_id, dimension, updated_at_ms=now))
        for dimension in sorted(command.terms.hard_limits)
    ]
    return Decision(CreateBudgetResult.Created(shown), (insert(budget), *counters, *stay))


class SetBudgetLimits(Struct, gc=False):
    """New limits for some dimensions; the others keep theirs."""

    budget_id: str
    namespace: str | None
    hard_limits: Mapping[str, int]
    soft_limits: Mapping[str, int]

    def needs(self) -> tuple[Need, ...]:
        return owners.needs(Budget, self.budget_id, self.namespace)


def set_budget_limits(command: SetBudgetLimits, view: View, context: Context) -> Decision:
    """Limits as given; what a raised one makes room for goes on at once. They were set by hand, so the budget stays."""
    budget = _named(command, view)
    terms = read_terms(budget.policy_json)
    hard = terms.hard_limits | dict(command.hard_limits)
    soft = terms.soft_limits | dict(command.soft_limits)
    if len(hard.keys() | soft.keys()) > MAX_COUNTED_DIMENSIONS:
        raise LimitReached("MAX_COUNTED_DIMENSIONS", MAX_COUNTED_DIMENSIONS)
    changed = msgspec.structs.replace(terms, hard_limits=hard, soft_limits=soft)
    wake(view, (budget,))
    if changed == terms and budget.idle_check_at_ms is None:
        return Decision(LimitsSet(shown_id(budget.budget_id), hard, soft))
    acts = (change(budget, policy_json=_encode(changed).decode(), updated_at_ms=context.now, idle_check_at_ms=None),)
    return Decision(LimitsSet(shown_id(budget.budget_id), hard, soft), acts)


def _named(command: SetBudgetLimits | ResetBudget, view: View) -> Budget:
    budget = owners.found(view.get, Budget, command.budget_id, command.namespace)
    if budget is None:
        raise NotFound("budget")
    return budget


class ReportUsage(Struct, gc=False):
    """Something was used. ``optional`` is charged only for dimensions the budget defines. With an execution, the budget
    is named as that execution names it, else as the namespace does."""

    budget_id: str
    namespace: str | None
    amounts: dict[str, int]
    optional: dict[str, int]
    key: str
    execution_id: str | None = None

    def needs(self) -> tuple[Need, ...]:
        return _payer_needs(self)


def report_usage(command: ReportUsage, view: View, context: Context) -> Decision:
    """Charged at every level, or refused as a whole by the first hard limit; a refusal may be tried again."""
    chain = _payer(command, view)
    if command.key and charge.remembered(view, chain[0], command.key, context.now) is not None:
        return Decision(AlreadyApplied())
    amounts = command.amounts
    if command.optional:
        terms = read_terms(chain[0].policy_json)
        defined = terms.hard_limits.keys() | terms.soft_limits.keys()
        amounts = {name: amount for name, amount in command.optional.items() if name in defined} | amounts
    return _charged(view, context, chain, dict(sorted(amounts.items())), command.key)


def _payer_needs(command: ReportUsage | RecordSpend | ReleaseBudget) -> tuple[Need, ...]:
    """Without an execution, the budget by its name; with one, whatever that means there."""
    if command.execution_id is None:
        return owners.needs(Budget, command.budget_id, command.namespace)
    return (Get(Execution, command.execution_id), Get(Budget, command.budget_id))


def _payer(command: ReportUsage | RecordSpend, view: View) -> list[Budget]:
    """The budget that is charged, with those above it."""
    return levels(view, *_naming(command, view))


def _naming(command: ReportUsage | RecordSpend | ReleaseBudget, view: View) -> tuple[str, str | None]:
    execution = None if command.execution_id is None else view.execution(command.execution_id)
    if execution is None:
        return command.budget_id, command.namespace
    return owners.as_named_by(execution, command.budget_id), execution.namespace


def _charged(view: View, context: Context, chain: list[Budget], amounts: dict[str, int], key: str) -> Decision:
    counters = Counters(view, context.now)
    counters.load(chain, amounts)
    counters.make_room(chain, amounts)
    breach = first_breach(counters, chain, amounts)
    if breach is not None:
        return Decision(breach[1], (breached(view, *breach, context.now),))
    apply(counters, chain, amounts)
    soft, acts = soft_breach(counters, chain, amounts)
    if key:
        acts += (charge.remember(view, chain[0], key, context.now, {"outcome": "applied"}),)
    return Decision(soft or Ok(), (*counters.acts(), *acts))


class RecordSpend(Struct, gc=False):
    """An execution spends, on a ledger from which it can be given back."""

    budget_id: str
    namespace: str | None
    execution_id: str
    uuid: str
    amounts: dict[str, int]
    key: str

    def needs(self) -> tuple[Need, ...]:
        return _payer_needs(self)


def record_spend(command: RecordSpend, view: View, context: Context) -> Decision:
    """As ``report_usage``, and each amount is added to the execution's ledger. The ledger goes with the execution: of
    one that does not exist there is none, and what it has spent stays charged."""
    chain = _payer(command, view)
    if command.key and charge.remembered(view, chain[0], command.key, context.now) is not None:
        return Decision(AlreadyApplied())
    keys = [(chain[0].partition, chain[0].budget_id, command.uuid, dimension) for dimension in command.amounts]
    if view.execution(command.execution_id) is None:
        keys = []
    view.require(Get(BudgetSpend, key) for key in keys)
    rows = tuple(_spent(view, chain, key, command.amounts[key[3]], context.now) for key in keys)
    decision = _charged(view, context, chain, dict(sorted(command.amounts.items())), command.key)
    if not isinstance(decision.result, HardBreach):
        decision.acts += rows
    return decision


def _spent(view: View, chain: list[Budget], key: tuple[int, str, str, str], amount: int, now: int) -> Act:
    row = view.get(BudgetSpend, key)
    budget = chain[0]
    shares: dict[str, list[int]] = {} if row is None else msgspec.json.decode(row.levels)
    for level in chain[1:]:
        share = shares.get(level.budget_id)
        kept = share[0] if share is not None and share[1] == level.reset_count else 0
        shares[level.budget_id] = [kept + amount, level.reset_count]
    before = row.delta_total if row is not None and row.reset_count == budget.reset_count else 0
    spent = BudgetSpend(*key, before + amount, now, budget.reset_count, _encode(shares).decode())
    return Change(spent, None if row is None else ("delta_total", "updated_at_ms", "reset_count", "levels"))


class ReleaseBudget(Struct, gc=False):
    """Give back what an execution has on its ledger."""

    budget_id: str
    namespace: str | None
    execution_id: str
    uuid: str

    def needs(self) -> tuple[Need, ...]:
        return _payer_needs(self)


def release_budget(command: ReleaseBudget, view: View, context: Context) -> Decision:
    """The counters without what the execution spent since their last reset; a second time changes nothing."""
    budget = owners.found(view.get, Budget, *_naming(command, view))
    if budget is None:
        return Decision()
    chain = charge.chain(view, budget)
    rows = view.select(BudgetSpend, partition=budget.partition, budget_id=budget.budget_id, uuid=command.uuid)
    if not rows:
        return Decision()
    counters = Counters(view, context.now)
    counters.load(chain, [row.dimensions_key for row in rows])
    for row in rows:
        shares: dict[str, list[int]] = msgspec.json.decode(row.levels)
        shares[budget.budget_id] = [row.delta_total, row.reset_count]
        for level in chain:
            amount, reset_count = shares.get(level.budget_id, (0, 0))
            if amount and reset_count == level.reset_count:
                counters.add(level, row.dimensions_key, spent=-amount)
    wake(view, chain)
    return Decision(None, (*counters.acts(), *(Drop(row) for row in rows)))


class ResetBudget(Struct, gc=False):
    """Start over. ``scheduled`` does so only if the time has come."""

    budget_id: str
    namespace: str | None
    scheduled: bool

    def needs(self) -> tuple[Need, ...]:
        return owners.needs(Budget, self.budget_id, self.namespace)


def reset_budget(command: ResetBudget, view: View, context: Context) -> Decision:
    """Counters at 0 and the next reset one interval from now, however many were missed. Reservations stay."""
    budget = _named(command, view)
    now = context.now
    if command.scheduled and (budget.next_reset_at_ms is None or budget.next_reset_at_ms > now):
        return Decision(Reset(budget.next_reset_at_ms or 0))
    terms = read_terms(budget.policy_json)
    interval = terms.reset_interval_ms
    following = saturate(now + interval) if interval else None
    acts: list[Act] = [
        change(
            budget,
            last_breach_at_ms=None,
            last_breach_dim=None,
            next_reset_at_ms=following,
            last_reset_at_ms=now,
            reset_count=budget.reset_count + 1,
            breached_at_ms=None,
            updated_at_ms=now,
        )
    ]
    acts += [
        change(row, current_value=0, granted_value=_still_granted(row, terms), last_reset_at_ms=now, updated_at_ms=now)
        for row in view.select(BudgetUsage, partition=budget.partition, budget_id=budget.budget_id)
    ]
    wake(view, (budget,))
    return Decision(Reset(following or 0), tuple(acts))


def _still_granted(row: BudgetUsage, terms: BudgetTerms) -> int:
    """What open reservations hold beyond the limit; the rest of what was granted has been spent and is forgotten."""
    limit = terms.hard_limits.get(row.dimensions_key, 0)
    return min(row.granted_value, max(row.reserved_value - limit, 0)) if limit else 0


class ReconcileBudget(Struct, gc=False):
    """Look whether a budget is over a limit, and go on with what was begun there."""

    budget_id: str

    def needs(self) -> tuple[Need, ...]:
        return (Get(Budget, self.budget_id),)


def reconcile_budget(command: ReconcileBudget, view: View, context: Context) -> Decision:
    """``breached_at_ms`` while it is over; for people, because every claim and charge looks for itself."""
    budget = view.get(Budget, command.budget_id)
    if budget is None:
        return Decision(0)
    if budget.cancelling_since_ms is not None:
        view.follow(charge.CANCEL_PENDING, budget.budget_id)
    if budget.next_reset_at_ms is not None or (over := _is_over(budget, view)) == (budget.breached_at_ms is not None):
        return Decision(0)
    return Decision(1, (change(budget, breached_at_ms=context.now if over else None),))


def usage_of(budget: Budget) -> Select:
    """The counters of a budget."""
    return Select(BudgetUsage, ("partition", "budget_id"), (budget.partition, budget.budget_id))


def is_unsettled(budget: Budget, view: View) -> bool:
    """Whether reconciling a budget would do anything, as far as its counters in a view tell."""
    if budget.cancelling_since_ms is not None:
        return True
    if budget.next_reset_at_ms is not None:
        return False
    try:
        return _is_over(budget, view) != (budget.breached_at_ms is not None)
    except Validation:
        return True  # the command says what is wrong


def _is_over(budget: Budget, view: View) -> bool:
    """Whether a counter is over its limit."""
    limits = dict(read_caps(budget.policy_json))
    rows = view.select(BudgetUsage, partition=budget.partition, budget_id=budget.budget_id)
    return any(
        row.current_value > limits[row.dimensions_key] + row.granted_value
        for row in rows
        if row.dimensions_key in limits
    )


class CancelPending(Struct, gc=False):
    """Cancel executions that wait for a worker and name a budget that was breached."""

    budget_id: str

    def needs(self) -> tuple[Need, ...]:
        return (Get(Budget, self.budget_id),)


def cancel_pending(command: CancelPending, view: View, context: Context) -> Decision:
    """Some of them; the mark on the budget stays until none is left, so that a timer can take over."""
    budget = view.get(Budget, command.budget_id)
    if budget is None or budget.cancelling_since_ms is None:
        return Decision(0)
    found = _naming_it(view, budget)
    waiting = [each for each in found if each.lifecycle_phase in lit.WAITING_PHASES]
    view.require(GetFull(each.execution_id) for each in waiting)
    wakes: list[Any] = []
    then: list[Any] = []
    for each in waiting:
        execution = view.full(each.execution_id)
        if execution is None:
            continue
        attempt = current_attempt(view, execution)
        done = cancelled(
            view,
            context,
            execution,
            attempt,
            None,
            reason=f"budget {shown_id(budget.budget_id)} is exhausted",
            by="budget",
            revoked_by=lit.BY_OPERATOR,
        )
        view.fold(done)
        wakes += done.wakes
        then += done.then
    if len(found) >= CANCELLED_AT_ONCE:
        view.follow(charge.CANCEL_PENDING, budget.budget_id)
        acts: tuple[Act, ...] = ()
    else:
        wake(view, (budget,))
        acts = (change(budget, cancelling_since_ms=None),)
    return Decision(len(waiting), acts, (), tuple(wakes), tuple(then))


def _naming_it(view: View, budget: Budget) -> list[Execution]:
    """Executions that name a budget by one of its names and mean it."""
    plain = shown_id(budget.budget_id)
    names = {plain} if budget.namespace is None else {plain, owned_name(plain, budget.namespace)}
    found: dict[str, Execution] = {}
    for name in sorted(names):
        for each in view.listed(NAMING, name, CANCELLED_AT_ONCE):
            meant = owners.found(view.get, Budget, name, each.namespace)
            if meant is not None and meant.budget_id == budget.budget_id:
                found[each.execution_id] = each
    return list(found.values())
