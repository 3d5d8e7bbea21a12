"""Quotas: how often in a sliding window, and how many at once.

Whoever admits or releases holds the lock of the policy's row, so that no two admissions take the same place.
"""

from __future__ import annotations

from msgspec import Struct

from flowfabric.core.charging import LET_GO_QUOTA
from flowfabric.core.context import Context, saturate
from flowfabric.core.view import View
from flowfabric.model import literals as lit
from flowfabric.model.budget_records import QuotaAdmitted, QuotaPolicy, QuotaWindow
from flowfabric.model.budgets import (
    AdmissionResult,
    Admitted,
    AlreadyAdmitted,
    ConcurrencyExceeded,
    CreateQuotaPolicyResult,
    RateExceeded,
)
from flowfabric.model.changes import Act, Change, Decision, Drop, Get, Need, Recent, change, insert
from flowfabric.model.records import Execution

#: The window of a policy that names none.
DEFAULT_WINDOW_MS = 60_000
#: ``admitted_at_ms`` of an execution whose guard has to be asked whether it takes a slot, because the numbers it was
#: admitted by were not the policy's.
BY_OTHER_NUMBERS = 0


class Terms(Struct, frozen=True, gc=False):
    """The numbers an admission is judged by; 0 means no limit."""

    window_ms: int
    rate_limit: int
    concurrency_cap: int


def window_ms(seconds: int) -> int:
    """The length of a window; none given means a minute."""
    return min(seconds, 2**50) * 1_000 or DEFAULT_WINDOW_MS


def stored_terms(policy: QuotaPolicy) -> Terms:
    """The numbers of a policy as it is stored."""
    length = window_ms(policy.requests_per_window_seconds)
    return Terms(length, policy.max_requests_per_window, policy.active_concurrency_cap)


class CreateQuotaPolicy(Struct, gc=False):
    """A quota policy to define."""

    partition: int
    quota_policy_id: str
    window_seconds: int
    max_requests_per_window: int
    max_concurrent: int

    def needs(self) -> tuple[Need, ...]:
        return (Get(QuotaPolicy, self.quota_policy_id),)


def create_quota_policy(command: CreateQuotaPolicy, view: View, context: Context) -> Decision:
    """A new policy with no slot taken; one that exists stays as it is."""
    if view.get(QuotaPolicy, command.quota_policy_id) is not None:
        return Decision(CreateQuotaPolicyResult.AlreadySatisfied(command.quota_policy_id))
    return Decision(CreateQuotaPolicyResult.Created(command.quota_policy_id), (insert(_new(command, context.now)),))


def _new(command: CreateQuotaPolicy, now: int) -> QuotaPolicy:
    return QuotaPolicy(
        command.partition,
        command.quota_policy_id,
        command.window_seconds,
        command.max_requests_per_window,
        command.max_concurrent,
        0,
        now,
        now,
    )


class CheckAdmission(Struct, gc=False):
    """Ask for admission by the caller's numbers. They define the policy if there is none, and never change one."""

    policy: CreateQuotaPolicy
    dimension: str
    execution_id: str
    jitter_ms: int

    def needs(self) -> tuple[Need, ...]:
        return (
            Get(Execution, self.execution_id),
            Get(QuotaPolicy, self.policy.quota_policy_id),
            Get(QuotaAdmitted, (self.policy.partition, self.policy.quota_policy_id, self.execution_id)),
        )


def check_admission(command: CheckAdmission, view: View, context: Context) -> Decision:
    """Admitted and counted, or the reason why not; nothing is recorded for a request that is not admitted."""
    given = command.policy
    policy = view.get(QuotaPolicy, given.quota_policy_id)
    terms = Terms(window_ms(given.window_seconds), given.max_requests_per_window, given.max_concurrent)
    acts: list[Act] = []
    if policy is None:
        policy = _new(given, context.now)
        acts.append(insert(policy))
    execution = view.execution(command.execution_id)
    result, more = admission(view, context, policy, terms, command.execution_id, command.dimension)
    if isinstance(result, RateExceeded):
        result = RateExceeded(result.retry_after_ms + command.jitter_ms)
    if isinstance(result, Admitted) and execution is not None and execution.quota_policy_id == policy.quota_policy_id:
        usual = (terms.concurrency_cap > 0) == (policy.active_concurrency_cap > 0)
        more += (change(execution, admitted_at_ms=context.now if usual else BY_OTHER_NUMBERS),)
    return Decision(result, (*acts, *more))


def admission(
    view: View,
    context: Context,
    policy: QuotaPolicy,
    terms: Terms,
    execution_id: str,
    dimension: str = "",
    *,
    in_window: bool = True,
) -> tuple[AdmissionResult, tuple[Act, ...]]:
    """The outcome for one execution, and what it changes if it is admitted. ``in_window`` says whether the admission is
    written into the window; a policy without a rate never looks there."""
    now = context.now
    guard = view.get(QuotaAdmitted, (policy.partition, policy.quota_policy_id, execution_id))
    if guard is not None and guard.expires_at_ms > now:
        return AlreadyAdmitted(), ()
    refusal = full(view, context, policy, terms, guard, dimension)
    if refusal is not None:
        return refusal, ()
    acts: list[Act] = []
    counted = terms.concurrency_cap > 0
    entry = QuotaWindow(
        policy.partition, policy.quota_policy_id, dimension, now, execution_id, saturate(now + terms.window_ms)
    )
    admitted = QuotaAdmitted(*entry.key[:2], execution_id, now, entry.expires_at_ms, dimension, counted)
    if guard is None:
        acts.append(insert(admitted))
    else:
        # An execution has one entry: a later admission replaces the earlier.
        acts += (Drop(_entry(guard)), Change(admitted, ("admitted_at_ms", "expires_at_ms", "dimension", "counted")))
    if in_window:
        acts.append(insert(entry))
    fields: dict[str, object] = {}
    taken = policy.active_concurrency - _slots(guard) + counted
    if taken != policy.active_concurrency:
        fields["active_concurrency"] = taken
    if policy.waiting_since_ms is not None and terms.rate_limit > 0 and policy.next_room_at_ms is None:
        # Whoever waits must not wait longer than the window is full.
        oldest = view.recent(_recent(policy, terms, dimension))[1]
        fields["next_room_at_ms"] = saturate((now if oldest is None else oldest) + terms.window_ms)
    if fields:
        acts.append(change(policy, updated_at_ms=now, **fields))
    return Admitted(), tuple(acts)


def full(
    view: View,
    context: Context,
    policy: QuotaPolicy,
    terms: Terms,
    guard: QuotaAdmitted | None = None,
    dimension: str = "",
) -> RateExceeded | ConcurrencyExceeded | None:
    """Why nobody, or nobody but the owner of the guard, can be admitted now."""
    now = context.now
    if terms.rate_limit > 0:
        count, oldest = view.recent(_recent(policy, terms, dimension))
        if guard is not None and guard.dimension == dimension and guard.admitted_at_ms > now - terms.window_ms:
            count -= 1
        if count >= terms.rate_limit:
            return RateExceeded(max(0, (now if oldest is None else oldest) + terms.window_ms - now))
    if terms.concurrency_cap > 0 and policy.active_concurrency - _slots(guard) >= terms.concurrency_cap:
        return ConcurrencyExceeded()
    return None


def room(view: View, policy: QuotaPolicy, terms: Terms) -> int:
    """How many more could be admitted now."""
    free = 2**31
    if terms.rate_limit > 0:
        free = min(free, terms.rate_limit - view.recent(_recent(policy, terms, ""))[0])
    if terms.concurrency_cap > 0:
        free = min(free, terms.concurrency_cap - policy.active_concurrency)
    return max(free, 0)


def _recent(policy: QuotaPolicy, terms: Terms, dimension: str) -> Recent:
    return Recent(policy.partition, policy.quota_policy_id, dimension, terms.window_ms)


def recent_need(policy: QuotaPolicy) -> Recent:
    """What a claim under this policy looks at."""
    return _recent(policy, stored_terms(policy), "")


def _slots(guard: QuotaAdmitted | None) -> int:
    return int(guard is not None and guard.counted)


def _entry(guard: QuotaAdmitted) -> QuotaWindow:
    key = (guard.partition, guard.quota_policy_id, guard.dimension, guard.admitted_at_ms, guard.execution_id)
    return QuotaWindow(*key)


class ReleaseAdmission(Struct, gc=False):
    """Give a slot back. ``only_ended`` leaves it to an execution that may still need it."""

    quota_policy_id: str
    execution_id: str
    only_ended: bool

    def needs(self) -> tuple[Need, ...]:
        return (Get(Execution, self.execution_id), Get(QuotaPolicy, self.quota_policy_id))


def release_admission(command: ReleaseAdmission, view: View, context: Context) -> Decision:
    """The guard is gone, and its slot if it had one; the request stays in the window. Safe to repeat."""
    execution = view.execution(command.execution_id)
    policy = view.get(QuotaPolicy, command.quota_policy_id)
    if policy is None:
        return Decision(False)
    guard = view.get(QuotaAdmitted, (policy.partition, policy.quota_policy_id, command.execution_id))
    if guard is None:
        return Decision(False)
    if command.only_ended:
        going_on = execution is not None and execution.lifecycle_phase not in lit.ENDED_PHASES
        if going_on or guard.expires_at_ms > context.now:
            return Decision(False)
    acts: list[Act] = [Drop(guard)]
    if execution is not None and execution.quota_policy_id == policy.quota_policy_id:
        acts.append(change(execution, admitted_at_ms=None))
    if guard.counted:
        acts.append(change(policy, active_concurrency=max(0, policy.active_concurrency - 1), updated_at_ms=context.now))
        wake(view, policy)
    return Decision(True, tuple(acts))


def wake(view: View, policy: QuotaPolicy) -> None:
    """One slot is free: whoever waits for it goes on right after the commit."""
    if policy.waiting_since_ms is not None:
        view.follow(LET_GO_QUOTA, policy.quota_policy_id, 1)


def give_back(view: View, context: Context, execution: Execution) -> None:
    """An execution that ends leaves its quota. Folded at once: others of the same decision may leave it too."""
    assert execution.quota_policy_id is not None
    policy = view.get(QuotaPolicy, execution.quota_policy_id)
    if policy is None:
        return
    if execution.admitted_at_ms is None:
        # It may have been let go and never been claimed: its place is for the next one.
        if execution.eligibility_state not in lit.ROOM_BLOCKS:
            wake(view, policy)
        return
    guard = QuotaAdmitted(policy.partition, policy.quota_policy_id, execution.execution_id, 0, 0)
    counted = policy.active_concurrency_cap > 0
    if execution.admitted_at_ms == BY_OTHER_NUMBERS:
        counted = bool(_slots(view.get(QuotaAdmitted, guard.key)))
    acts: list[Act] = [Drop(guard)]
    if counted:
        taken = max(0, policy.active_concurrency - 1)
        acts.append(change(policy, active_concurrency=taken, updated_at_ms=context.now))
    wake(view, policy)
    view.fold(Decision(None, tuple(acts)))


class ReconcileQuota(Struct, gc=False):
    """Count the slots of a policy again."""

    quota_policy_id: str

    def needs(self) -> tuple[Need, ...]:
        return (Get(QuotaPolicy, self.quota_policy_id),)


def reconcile_quota(command: ReconcileQuota, view: View, context: Context) -> Decision:
    """As many slots are taken as there are guards that take one."""
    policy = view.get(QuotaPolicy, command.quota_policy_id)
    if policy is None:
        return Decision(0)
    guards = view.select(QuotaAdmitted, partition=policy.partition, quota_policy_id=policy.quota_policy_id)
    taken = sum(guard.counted for guard in guards)
    if taken == policy.active_concurrency:
        return Decision(0)
    if taken < policy.active_concurrency and policy.waiting_since_ms is not None:
        view.follow(LET_GO_QUOTA, policy.quota_policy_id)
    return Decision(1, (change(policy, active_concurrency=taken, updated_at_ms=context.now),))
