"""Admission: what an execution names must have room before it is claimed; what was kept back continues when it has.

Budgets are tested first, then the quota. A row that is denied is blocked with its reason, so that it does not stand in
the way of those behind it; the mark on the budget or quota says that somebody waits. Whatever makes room there lets
some go, first in claim order first, never more than fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct

from flowfabric.core.admission import charge, quotas
from flowfabric.core.admission.block import BLOCKS
from flowfabric.core.batch.graph_view import Missing
from flowfabric.core.batch.view import View
from flowfabric.core.context import Context, saturate
from flowfabric.core.flows.edges import group_needs, waits_for_members
from flowfabric.core.leases.grants import stale_grants
from flowfabric.core.ownership import owners
from flowfabric.model import states as lit
from flowfabric.model.decisions import BLOCKED, Act, Change, Decision, Drop, Get, Need, Peek, Slots, change
from flowfabric.model.errors import Validation
from flowfabric.model.operations.budgets import OnHardLimit, RateExceeded, read_caps, read_terms
from flowfabric.model.ownership import is_meant, is_name, places, shown_id
from flowfabric.model.records.budgets import Budget, BudgetUsage, QuotaAdmitted, QuotaPolicy
from flowfabric.model.records.executions import Execution
from flowfabric.model.remembering import remembered_by_text

_Gate = TypeVar("_Gate", Budget, QuotaPolicy)

#: Rows one claim blocks before it gives the others of its batch a turn; the caller goes on from there.
DENIED_AT_ONCE = 500
#: Candidates looked at ahead of those wanted, once one has been denied.
_AHEAD = 64
#: Executions let go by one commit.
LET_GO_AT_ONCE = 32


class Denial(NamedTuple):
    """Who keeps an execution back, and why."""

    gate: str
    reason: str
    detail: str
    #: When a sliding window will have room.
    room_at_ms: int | None = None


class Unfinished(list[object]):
    """Nothing was found yet, but not everything was looked at: ask again."""


@remembered_by_text(8_192)
def named_budgets(budget_ids: str) -> tuple[str, ...]:
    """The budgets an execution names; what is no name names none."""
    return tuple(filter(is_name, budget_ids.split(",")))


def is_bound(execution: Execution) -> bool:
    """Whether admission has anything to test."""
    return execution.budget_ids is not None or execution.quota_policy_id is not None


# -- what a test looks at ----------------------------------------------------------------------------------------------


class Bound(NamedTuple):
    """What an execution that may be claimed soon is bound by."""

    execution_id: str
    budget_ids: str | None
    quota_policy_id: str | None
    namespace: str | None
    admitted_at_ms: int | None = None


def companions(view: View, executions: Iterable[Execution | Bound]) -> list[Need]:
    """What testing these executions needs and the batch has not loaded, as far as it is known by now."""
    needs: dict[Need, None] = {}
    looked_at: set[tuple[str, str | None]] = set()
    for execution in executions:
        if execution.budget_ids is not None:
            named = (execution.budget_ids, execution.namespace)
            if named not in view.looked_at:
                looked_at.add(named)
        if execution.quota_policy_id is not None:
            _count_on(view, execution, needs)
    for budget_ids, namespace in looked_at:
        for name in named_budgets(budget_ids):
            _look_at(view, name, namespace, needs)
    missing = [need for need in needs if not view.has(need)]
    if not missing:
        view.looked_at |= looked_at
    return missing


def _look_at(view: View, name: str, namespace: str | None, needs: dict[Need, None]) -> None:
    for level in _levels(view, name, namespace, needs):
        for dimension, _ in _capped(level):
            needs[Peek(BudgetUsage, (level.partition, level.budget_id, dimension))] = None


def _levels(view: View, name: str, namespace: str | None, needs: dict[Need, None]) -> Iterator[Budget]:
    """The levels that are loaded; those that are not become needs."""
    budget = _if_loaded(view, Peek, Budget, name, namespace, needs)
    if budget is None:
        return
    yield budget
    for each in charge.ancestors(budget):
        needs[Peek(Budget, each)] = None
        if view.has(Peek(Budget, each)) and (above := view.peek(Budget, each)) is not None:
            yield above


def _if_loaded(
    view: View, asking: Any, kind: type[_Gate], name: str, namespace: str | None, needs: dict[Need, None]
) -> _Gate | None:
    """What a name means, if that is known by now; places to look at become needs, up to the one where it is."""
    for place in places(name, namespace):
        need = asking(kind, place)
        needs[need] = None
        if not view.has(need):
            return None
        record: Any = view.peek(kind, place) if asking is Peek else view.get(kind, place)
        if record is not None and is_meant(record.namespace, name, namespace):
            return record  # type: ignore[no-any-return]
    return None


def _capped(budget: Budget) -> tuple[tuple[str, int], ...]:
    try:
        return read_caps(budget.policy_json)
    except Validation:
        return ()


def _count_on(view: View, execution: Execution | Bound, needs: dict[Need, None]) -> None:
    assert execution.quota_policy_id is not None
    policy = _if_loaded(view, Get, QuotaPolicy, execution.quota_policy_id, execution.namespace, needs)
    if policy is not None:
        if execution.admitted_at_ms == quotas.BY_GUARD:
            needs[Get(QuotaAdmitted, (policy.partition, policy.quota_policy_id, execution.execution_id))] = None
        if policy.max_requests_per_window > 0:
            needs[quotas.recent_need(policy)] = None
        if policy.active_concurrency_cap > 0:
            needs[Slots(policy.quota_policy_id)] = None


def prepare(view: View, executions: Iterable[Execution]) -> None:
    """Miss everything that testing these executions needs at once."""
    needs = companions(view, executions)
    if needs:
        raise Missing(*needs)


# -- testing -----------------------------------------------------------------------------------------------------------


def _levels_named(view: View, execution: Execution) -> Iterator[tuple[Budget, Budget]]:
    """The budgets an execution names, each followed by those above it, and each with the one that was named."""
    if execution.budget_ids is None:
        return
    for name in named_budgets(execution.budget_ids):
        budget = owners.found(view.peek, Budget, name, execution.namespace)
        if budget is None:
            continue
        yield budget, budget
        if budget.ancestor_ids:
            for each in charge.ancestors(budget):
                above = view.peek(Budget, each)
                if above is not None and charge.is_above(above, budget):
                    yield above, budget


def _denied_by_budget(view: View, execution: Execution) -> Denial | None:
    for level, named in _levels_named(view, execution):
        why = exhausted(view, level)
        if why is not None:
            shown = shown_id(level.budget_id)
            if level.namespace != named.namespace:
                # How much others have spent of the operator's budget is not for the namespace below it to know.
                shown, why = shown_id(named.budget_id), f"{why.partition(_USED_UP)[0]}{_USED_UP}{_ABOVE}"
            return Denial(level.budget_id, lit.WAITING_FOR_BUDGET, f"budget {shown}: {why}")
    return None


def exhausted(view: View, budget: Budget) -> str | None:
    """Why a budget admits nobody; ``None`` if it does."""
    try:
        terms = read_terms(budget.policy_json)
    except Validation as error:
        return str(error.detail)
    if not charge.refuses(budget, terms):
        return None
    if terms.on_hard_limit == OnHardLimit.ASK:
        return None  # an execution held back here could never ask
    if budget.cancelling_since_ms is not None:
        return "breached; its waiting executions are being cancelled"
    for dimension, limit in read_caps(budget.policy_json):
        row = view.peek(BudgetUsage, (budget.partition, budget.budget_id, dimension))
        if row is not None and row.current_value + row.reserved_value >= limit + row.granted_value:
            return f"{dimension}{_USED_UP}({row.current_value} spent, {row.reserved_value} reserved of {limit})"
    return None


#: How the details of a block are worded, so that they can be read again.
_USED_UP, _IN_THE_WINDOW = " is used up ", " admissions in the window"
_ABOVE = "in a parent budget"


def exhausted_dimension(detail: str | None) -> str | None:
    """The dimension of a budget that a block's detail names, if one is used up."""
    before, found, _ = (detail or "").partition(_USED_UP)
    return before.partition(": ")[2] if found else None


def is_rate(detail: str | None) -> bool:
    """Whether a block's detail names a quota's rate, not its concurrency."""
    return (detail or "").endswith(_IN_THE_WINDOW)


def _denied_by_quota(view: View, context: Context, execution: Execution) -> Denial | None:
    """As ``check_admission`` would answer, without taking a place."""
    policy = _policy(view, execution)
    if policy is None:
        return None
    guard = quotas.guard_of(view, policy, execution)
    if guard is not None and guard.expires_at_ms > context.now:
        return None
    refusal = quotas.full(view, context, policy, quotas.stored_terms(policy), () if guard is None else (guard,))
    return None if refusal is None else _quota_denial(context, policy, refusal)


def _policy(view: View, execution: Execution) -> QuotaPolicy | None:
    """The policy an execution is tested by: one that exists and limits something."""
    policy = quotas.named_policy(view, execution)
    if policy is None or (policy.max_requests_per_window == 0 and policy.active_concurrency_cap == 0):
        return None
    return policy


def _quota_denial(context: Context, policy: QuotaPolicy, refusal: object) -> Denial:
    name = policy.quota_policy_id
    if isinstance(refusal, RateExceeded):
        detail = f"quota {shown_id(name)}: {policy.max_requests_per_window}{_IN_THE_WINDOW}"
        return Denial(name, lit.WAITING_FOR_QUOTA, detail, saturate(context.now + refusal.retry_after_ms))
    taken = f"quota {shown_id(name)}: {policy.active_concurrency_cap} slots are taken"
    return Denial(name, lit.WAITING_FOR_QUOTA, taken)


def would_deny(view: View, context: Context, execution: Execution) -> Denial | None:
    """Who would keep an execution back if it were claimed now; nobody takes a place by asking."""
    return _denied_by_budget(view, execution) or _denied_by_quota(view, context, execution)


def admit(
    view: View, context: Context, execution: Execution, following: Sequence[Execution] = ()
) -> quotas.Entry | None:
    """The place that an execution takes if it may be claimed now, for the caller to fold. If it may not, the block it
    meets is folded. ``following`` are those that will be tested next."""
    denial = _denied_by_budget(view, execution) if execution.budget_ids is not None else None
    if denial is not None:
        _hold(view, denial.gate, following)
        _block(view, context, execution, denial)
        return None
    entry = quotas.FREE
    policy = _policy(view, execution)
    if policy is not None:
        found = quotas.admit_claim(view, context, policy, execution)
        if not isinstance(found, quotas.Entry):
            _block(view, context, execution, _quota_denial(context, policy, found))
            return None
        entry = found
    if execution.budget_ids is not None:
        _pace(view, execution)
    return entry


def _hold(view: View, budget_id: str, following: Sequence[Execution] = ()) -> None:
    """Look again with the budget held, so that a commit that makes room comes after the block, and sees it. If it must
    be asked for, so is what will block the following."""
    needs = _holding(view, budget_id)
    if all(map(view.has, needs)):
        return
    for execution in following:
        denial = _denied_by_budget(view, execution)
        if denial is not None:
            needs += _holding(view, denial.gate)
    view.require(dict.fromkeys(needs))


def _holding(view: View, budget_id: str) -> list[Need]:
    budget = view.peek(Budget, budget_id)
    needs: list[Need] = [Get(Budget, budget_id)]
    if budget is not None:
        needs += [Get(BudgetUsage, (budget.partition, budget_id, dimension)) for dimension, _ in _capped(budget)]
    return needs


def _pace(view: View, execution: Execution) -> None:
    """Somebody was admitted where others wait: another one may follow. So they go one by one as they are claimed,
    until there is no room."""
    for level, _ in _levels_named(view, execution):
        if level.waiting_since_ms is not None:
            view.follow(charge.LET_GO_BUDGET, level.budget_id, 1)


def _block(view: View, context: Context, execution: Execution, denial: Denial) -> None:
    acts: list[Act] = [_blocked(execution, denial, context.now)]
    if execution.eligibility_state == lit.PENDING_CLAIM:
        acts += [Drop(grant) for grant in stale_grants(view, execution, context.now)]
    acts += _marked(view, context, denial)
    view.fold(Decision(None, tuple(acts)))


def _blocked(execution: Execution, denial: Denial, now: int) -> Change:
    eligibility, public_state = BLOCKS[denial.reason]
    by_quota = denial.reason == lit.WAITING_FOR_QUOTA
    also = {"quota_policy_id": denial.gate} if by_quota and execution.quota_policy_id != denial.gate else {}
    return change(
        execution,
        **also,
        lifecycle_phase=lit.RUNNABLE,
        ownership_state=lit.UNOWNED,
        eligibility_state=eligibility,
        public_state=public_state,
        blocking_reason=denial.reason,
        blocking_detail=denial.detail,
        blocked_by=denial.gate,
        last_mutation_at_ms=now,
    )


def _marked(view: View, context: Context, denial: Denial) -> tuple[Act, ...]:
    """The mark that somebody waits, where it is not there yet."""
    if denial.reason == lit.WAITING_FOR_BUDGET:
        budget = view.get(Budget, denial.gate)
        if budget is None or budget.waiting_since_ms is not None:
            return ()
        return (change(budget, waiting_since_ms=context.now),)
    policy = view.get(QuotaPolicy, denial.gate)
    if policy is None:
        return ()
    fields: dict[str, object] = {} if policy.waiting_since_ms is not None else {"waiting_since_ms": context.now}
    if fields and policy.active_concurrency_cap > 0:
        # Executions end without a look at the policy: one that ended meanwhile has not seen that somebody waits.
        view.follow(charge.LET_GO_QUOTA, policy.quota_policy_id)
    due, before = denial.room_at_ms, policy.next_room_at_ms
    if due is not None and (before is None or before <= context.now or due < before):
        fields["next_room_at_ms"] = due
    return (change(policy, **fields),) if fields else ()


class Look:
    """The next executions in claim order that are admitted, each with the place it takes. The caller folds what
    it makes of each before it takes the next. After ``DENIED_AT_ONCE`` the look ends early; ``unfinished`` says that it
    found nothing by then."""

    def __init__(
        self,
        view: View,
        context: Context,
        queue: tuple[str, frozenset[str], frozenset[str] | None],
        limit: int,
        first: list[Execution] | None = None,
    ) -> None:
        self._view = view
        self._first = first
        self._context = context
        #: Lane, capabilities, namespaces.
        self._queue = queue
        self._limit = limit
        self.unfinished = False

    def __iter__(self) -> Iterator[tuple[Execution, quotas.Entry]]:
        view, limit = self._view, self._limit
        given = denied = 0
        while given < limit:
            found = self._first
            self._first = None
            if found is None:
                lane_id, able, namespaces = self._queue
                found = view.claimable(lane_id, able, limit - given + (_AHEAD if denied else 0), namespaces)
            if not found:
                return
            self._prepare(found)
            for execution in found:
                if given == limit:
                    break
                entry = admit(view, self._context, execution, found) if is_bound(execution) else quotas.FREE
                if entry is not None:
                    given += 1
                    yield execution, entry
                elif (denied := denied + 1) == DENIED_AT_ONCE:
                    self.unfinished = given == 0
                    return

    def _prepare(self, found: list[Execution]) -> None:
        bound = [each for each in found if is_bound(each)]
        if companions(self._view, bound):
            # Other claims of this batch will take what it has just made claimable: ask for all of that together.
            fresh = [each for each in self._view.fresh_in(self._queue[0]) if is_bound(each)]
            prepare(self._view, [*bound, *fresh])


# -- letting go --------------------------------------------------------------------------------------------------------


class LetGo(Struct, gc=False):
    """A budget or quota may have room: let those go who wait for it, at most ``limit``."""

    #: ``charge.LET_GO_BUDGET`` or ``charge.LET_GO_QUOTA``.
    kind: str
    gate: str
    limit: int | None = None

    def needs(self) -> tuple[Need, ...]:
        return (Get(Budget if self.kind == charge.LET_GO_BUDGET else QuotaPolicy, self.gate),)


def let_go(command: LetGo, view: View, context: Context) -> Decision:
    """Claimable again, the first in claim order first, as many as there is room for; how many."""
    budget = view.get(Budget, command.gate) if command.kind == charge.LET_GO_BUDGET else None
    policy = view.get(QuotaPolicy, command.gate) if command.kind == charge.LET_GO_QUOTA else None
    places = _places(view, budget, policy)
    if command.limit is not None:
        places = min(places, command.limit)
    number = min(places, LET_GO_AT_ONCE)
    waiting: list[Execution] = []
    found: list[Execution] = []
    if number > 0:
        # The gate is held by now, and with it everybody who could block another one.
        found = view.listed(BLOCKED, command.gate, LET_GO_AT_ONCE + 1)
        waiting = [each for each in found if _waits_for(each, command.gate)]
        prepare(view, waiting[:number])
        view.require(group_needs(waiting[:number]))
    freed = sum(_let_one_go(view, context, each, waiting[:number]) for each in waiting[:number])
    left = [each for each in found if _waits_for(view.execution(each.execution_id), command.gate)]
    nobody_left = number > 0 and len(found) <= LET_GO_AT_ONCE and not left
    acts = _cleared(view, context, budget, policy, nobody_left)
    # Those who went to wait elsewhere left their places to others; and there may be more slots than one commit fills.
    elsewhere = len(waiting[:number]) - freed - sum(each in left for each in waiting[:number])
    if not nobody_left and (elsewhere or (freed and policy is not None and places > number)):
        view.follow(command.kind, command.gate, None if command.limit is None else command.limit - freed)
    return Decision(freed, acts)


def _waits(execution: Execution) -> bool:
    return execution.lifecycle_phase in lit.WAITING_PHASES and execution.eligibility_state in lit.ROOM_BLOCKS


def _waits_for(execution: Execution | None, gate: str) -> bool:
    return execution is not None and execution.blocked_by == gate and _waits(execution)


def _places(view: View, budget: Budget | None, policy: QuotaPolicy | None) -> int:
    """How many could go. Nobody knows what each of them will spend of a budget: one unit at least."""
    if policy is not None:
        if policy.max_requests_per_window == 0 and policy.active_concurrency_cap == 0:
            return LET_GO_AT_ONCE
        return quotas.room(view, policy, quotas.stored_terms(policy))
    if budget is None:
        return LET_GO_AT_ONCE  # a definition that is gone keeps nobody back
    view.require(Get(BudgetUsage, (budget.partition, budget.budget_id, name)) for name, _ in _capped(budget))
    if exhausted(view, budget) is not None:
        return 0
    if not charge.refuses(budget, read_terms(budget.policy_json)):
        return LET_GO_AT_ONCE
    return min((_left(view, budget, *each) for each in _capped(budget)), default=LET_GO_AT_ONCE)


def _left(view: View, budget: Budget, dimension: str, limit: int) -> int:
    row = view.get(BudgetUsage, (budget.partition, budget.budget_id, dimension))
    return limit if row is None else limit + row.granted_value - row.current_value - row.reserved_value


def _let_one_go(view: View, context: Context, execution: Execution, following: Sequence[Execution] = ()) -> bool:
    """Claimable, or blocked by what else keeps it back, a budget, a quota or other members: then it waits there."""
    denial = would_deny(view, context, execution)
    if denial is not None:
        if denial.gate != execution.blocked_by:
            if denial.reason == lit.WAITING_FOR_BUDGET:
                _hold(view, denial.gate, following)
            _block(view, context, execution, denial)
        return False
    held = waits_for_members(view, execution)
    freed = change(
        execution,
        ownership_state=lit.UNOWNED,
        eligibility_state=lit.BLOCKED_BY_DEPENDENCIES if held else lit.ELIGIBLE_NOW,
        public_state=lit.PUBLIC_WAITING_CHILDREN if held else lit.PUBLIC_WAITING,
        blocking_reason=lit.WAITING_FOR_CHILDREN if held else lit.WAITING_FOR_WORKER,
        blocking_detail=None,
        blocked_by=None,
        last_mutation_at_ms=context.now,
    )
    view.fold(Decision(None, (freed,)))
    return not held


def _cleared(
    view: View, context: Context, budget: Budget | None, policy: QuotaPolicy | None, nobody_left: bool
) -> tuple[Act, ...]:
    if budget is not None:
        if not nobody_left or budget.waiting_since_ms is None:
            return ()
        return (change(budget, waiting_since_ms=None),)
    if policy is None:
        return ()
    due: int | None = None
    if not nobody_left and policy.max_requests_per_window > 0:
        need = quotas.recent_need(policy)
        oldest = view.recent(need)[1]
        due = None if oldest is None else saturate(oldest + need.window_ms)
        if due is not None and due <= context.now:
            due = context.now + 1
    waits = None if nobody_left else policy.waiting_since_ms
    if (waits, due) == (policy.waiting_since_ms, policy.next_room_at_ms):
        return ()
    return (change(policy, waiting_since_ms=waits, next_room_at_ms=due),)


class LetBlockedGo(Struct, gc=False):
    """Look again at one execution that a budget or quota blocks; a timer asks."""

    execution_id: str

    def needs(self) -> tuple[Need, ...]:
        return (Get(Execution, self.execution_id),)


def let_blocked_go(command: LetBlockedGo, view: View, context: Context) -> Decision:
    """Claimable if everything it names has room."""
    execution = view.execution(command.execution_id)
    if execution is None or not _waits(execution):
        return Decision(0)
    prepare(view, (execution,))
    return Decision(int(_let_one_go(view, context, execution)))
