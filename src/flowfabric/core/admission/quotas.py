"""Quotas: how often in a sliding window, and how many at once.

An execution that a claim admits carries its admission itself (``admitted_at_ms``), until it ends: it holds a slot as
long as it lives, and none can leak. A caller of ``check_admission`` gets a row of its own, a guard, and a slot that
the policy counts. An admission holds the lock of the policy's row, so that no two admissions take the same place; an
execution that ends takes no lock, and those waiting for its slot are looked for after the commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.admission import idle
from flowfabric.core.admission.charge import LET_GO_QUOTA, SLOT_LEFT
from flowfabric.core.batch.view import View
from flowfabric.core.context import Context, saturate
from flowfabric.core.ownership import owners
from flowfabric.model import states as lit
from flowfabric.model.decisions import Act, Change, Decision, Drop, Get, Need, Recent, change, insert
from flowfabric.model.errors import NotFound
from flowfabric.model.operations.budgets import (
    Admitted,
    AlreadyAdmitted,
    ConcurrencyExceeded,
    CreateQuotaPolicyResult,
    RateExceeded,
)
from flowfabric.model.ownership import shown_id
from flowfabric.model.records.budgets import QuotaAdmitted, QuotaPolicy, QuotaWindow
from flowfabric.model.records.executions import Execution

#: The window of a policy that names none.
DEFAULT_WINDOW_MS = 60_000
#: ``admitted_at_ms`` of an execution that was admitted by ``check_admission``: its guard is a row of its own.
BY_GUARD = 0


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
    """A quota policy to define, for a namespace or for the operator."""

    partition: int
    quota_policy_id: str
    namespace: str | None
    window_seconds: int
    max_requests_per_window: int
    max_concurrent: int
    #: Whether it stays when nothing uses it.
    kept: bool = True
    #: Whether one that exists gets these numbers.
    update: bool = False

    def needs(self) -> tuple[Need, ...]:
        return owners.needs(QuotaPolicy, self.quota_policy_id, self.namespace)


def create_quota_policy(command: CreateQuotaPolicy, view: View, context: Context) -> Decision:
    """A new policy with no slot taken. One that exists keeps its numbers, unless it is to be updated, and stays for a
    while at least."""
    shown = shown_id(command.quota_policy_id)
    found = owners.found(view.get, QuotaPolicy, command.quota_policy_id, command.namespace)
    if found is None:
        return Decision(CreateQuotaPolicyResult.Created(shown), (insert(_new(command, context.now)),))
    fields = idle.put_off(found, context.now, command.kept)
    numbers = _other_numbers(command, view, found, context.now) if command.update else {}
    kind = CreateQuotaPolicyResult.Updated if numbers else CreateQuotaPolicyResult.AlreadySatisfied
    return Decision(kind(shown), (change(found, **fields, **numbers),) if fields or numbers else ())


def _other_numbers(command: CreateQuotaPolicy, view: View, policy: QuotaPolicy, now: int) -> dict[str, Any]:
    """What other numbers change of a policy. What was admitted before goes on to count, by the new ones."""
    given = Terms(window_ms(command.window_seconds), command.max_requests_per_window, command.max_concurrent)
    before = stored_terms(policy)
    if given == before:
        return {}
    fields: dict[str, Any] = {
        "requests_per_window_seconds": command.window_seconds,
        "max_requests_per_window": command.max_requests_per_window,
        "active_concurrency_cap": command.max_concurrent,
        "updated_at_ms": now,
    }
    if given.window_ms != before.window_ms and before.rate_limit > 0:
        # What was admitted in the window of before is forgotten at other times than what comes now.
        fields["uneven"] = True
    if policy.waiting_since_ms is not None:
        # There may be more room, or room at another time. If this process dies, a timer looks.
        view.follow(LET_GO_QUOTA, policy.quota_policy_id)
        fields["next_room_at_ms"] = now
    return fields


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
        namespace=command.namespace,
        idle_check_at_ms=None if command.kept else idle.next_look(QuotaPolicy, now),
    )


class CheckAdmission(Struct, gc=False):
    """Ask for admission by the caller's numbers. They define the policy if it does not exist, and never change one."""

    policy: CreateQuotaPolicy
    dimension: str
    execution_id: str
    jitter_ms: int

    def needs(self) -> tuple[Need, ...]:
        return (
            Get(Execution, self.execution_id),
            *self.policy.needs(),
            Get(QuotaAdmitted, (self.policy.partition, self.policy.quota_policy_id, self.execution_id)),
        )


def check_admission(command: CheckAdmission, view: View, context: Context) -> Decision:
    """Admitted and counted, or the reason why not; nothing is recorded for a request that is not admitted."""
    given, now = command.policy, context.now
    execution = view.execution(command.execution_id)
    policy = _asked_for(view, given.quota_policy_id, given.namespace, execution)
    terms = Terms(window_ms(given.window_seconds), given.max_requests_per_window, given.max_concurrent)
    acts: list[Act] = []
    if policy is None:
        policy = _new(given, now)
        acts.append(insert(policy))
    elif policy.idle_check_at_ms is not None:
        # Somebody asks by hand, and may ask again without making it.
        acts.append(change(policy, idle_check_at_ms=None))
        policy = replace(policy, idle_check_at_ms=None)
    names_it = _names(view, execution, policy)
    stored = view.get(QuotaAdmitted, (policy.partition, policy.quota_policy_id, command.execution_id))
    carried = carried_guard(policy, execution) if execution is not None and names_it else None
    guards = [guard for guard in (stored, carried) if guard is not None]
    if any(guard.expires_at_ms > now for guard in guards):
        return Decision(AlreadyAdmitted(), tuple(acts))
    refusal = full(view, context, policy, terms, guards, command.dimension)
    if isinstance(refusal, RateExceeded):
        refusal = RateExceeded(refusal.retry_after_ms + command.jitter_ms)
    if refusal is not None:
        return Decision(refusal, tuple(acts))
    # An execution has one entry: a later admission replaces the earlier.
    acts += [Drop(_entry(guard)) for guard in guards]
    entry = _new_entry(view, policy, terms, command.dimension, command.execution_id, now)
    counted = terms.concurrency_cap > 0
    admitted = QuotaAdmitted(
        *entry.key[:2], command.execution_id, entry.admitted_at_ms, entry.expires_at_ms, command.dimension, counted
    )
    renewed = ("admitted_at_ms", "expires_at_ms", "dimension", "counted")
    acts += (insert(entry), insert(admitted) if stored is None else Change(admitted, renewed))
    taken = policy.active_concurrency - _slots(stored) + counted
    acts += _pushed(view, context, policy, terms, command.dimension, taken)
    if execution is not None and names_it:
        acts.append(change(execution, admitted_at_ms=BY_GUARD, quota_policy_id=policy.quota_policy_id))
    elif execution is not None and not execution.guarded:
        acts.append(change(execution, guarded=True))
    return Decision(Admitted(), tuple(acts))


def _asked_for(view: View, name: str, namespace: str | None, execution: Execution | None) -> QuotaPolicy | None:
    """The policy that a caller names for an execution. It is the operator's or of the execution's namespace; another
    namespace's is as good as none."""
    policy = owners.found(view.get, QuotaPolicy, name, namespace)
    if policy is None and namespace is None and execution is not None:
        policy = owners.found(view.get, QuotaPolicy, name, execution.namespace)
    if policy is None or execution is None or policy.namespace in (None, execution.namespace):
        return policy
    raise NotFound("quota_policy")


def named_policy(view: View, execution: Execution) -> QuotaPolicy | None:
    """The policy that an execution names."""
    if execution.quota_policy_id is None:
        return None
    return owners.found(view.get, QuotaPolicy, execution.quota_policy_id, execution.namespace)


def _names(view: View, execution: Execution | None, policy: QuotaPolicy) -> bool:
    """Whether it is this policy that the execution names."""
    if execution is None or execution.quota_policy_id is None:
        return False
    if shown_id(execution.quota_policy_id) != shown_id(policy.quota_policy_id):
        return False
    named = named_policy(view, execution)
    return named is None or named.quota_policy_id == policy.quota_policy_id


class Entry(NamedTuple):
    """What an execution that is admitted takes along: rows to write, and when it was admitted, if that is new."""

    acts: tuple[Act, ...] = ()
    admitted_at_ms: int | None = None
    #: The name the policy is stored under, if the execution calls it by another: slots are counted by that name.
    quota_policy_id: str | None = None

    def fields(self) -> dict[str, Any]:
        """What of it stands on the execution from now on."""
        if self.admitted_at_ms is None:
            return {}
        if self.quota_policy_id is None:
            return {"admitted_at_ms": self.admitted_at_ms}
        return {"admitted_at_ms": self.admitted_at_ms, "quota_policy_id": self.quota_policy_id}


#: Of an execution that nothing has to be written for.
FREE = Entry()


def admit_claim(
    view: View, context: Context, policy: QuotaPolicy, execution: Execution
) -> Entry | RateExceeded | ConcurrencyExceeded:
    """The admission of an execution that is to be claimed, to be written with its lease; or why it has to wait."""
    now = context.now
    guard = guard_of(view, policy, execution)
    if guard is not None and guard.expires_at_ms > now:
        return FREE
    terms = stored_terms(policy)
    refusal = full(view, context, policy, terms, () if guard is None else (guard,))
    if refusal is not None:
        return refusal
    acts: list[Act] = []
    at = now
    if guard is not None:
        acts.append(Drop(_entry(guard)))
    taken = policy.active_concurrency
    if guard is not None and execution.admitted_at_ms == BY_GUARD:
        acts.append(Drop(guard))
        taken -= _slots(guard)
    if terms.rate_limit > 0:
        entry = _new_entry(view, policy, terms, "", execution.execution_id, now)
        acts.append(insert(entry))
        at = entry.admitted_at_ms
    acts += _pushed(view, context, policy, terms, "", taken)
    name = policy.quota_policy_id
    return Entry(tuple(acts), at, name if execution.quota_policy_id != name else None)


def _pushed(
    view: View, context: Context, policy: QuotaPolicy, terms: Terms, dimension: str, taken: int
) -> tuple[Act, ...]:
    """What an admission changes of the policy itself, if anything."""
    fields: dict[str, object] = {}
    if _is_odd(policy, terms) and not policy.uneven:
        fields["uneven"] = True
    if taken != policy.active_concurrency:
        fields["active_concurrency"] = taken
    if policy.waiting_since_ms is not None and terms.rate_limit > 0 and policy.next_room_at_ms is None:
        # Nobody may wait longer than the window is full.
        oldest = view.recent(_recent(policy, terms, dimension))[1]
        fields["next_room_at_ms"] = saturate((context.now if oldest is None else oldest) + terms.window_ms)
    return (change(policy, updated_at_ms=context.now, **fields),) if fields else ()


def guard_of(view: View, policy: QuotaPolicy, execution: Execution) -> QuotaAdmitted | None:
    """The admission of an execution that names the policy: a row of its own, or what it carries itself."""
    if execution.admitted_at_ms is None:
        return None
    if execution.admitted_at_ms == BY_GUARD:
        return view.get(QuotaAdmitted, (policy.partition, policy.quota_policy_id, execution.execution_id))
    return carried_guard(policy, execution)


def carried_guard(policy: QuotaPolicy, execution: Execution) -> QuotaAdmitted | None:
    """The admission that an execution carries itself, as if it were a guard."""
    at = execution.admitted_at_ms
    if not at:
        return None
    terms = stored_terms(policy)
    until = saturate(at + terms.window_ms)
    counted = terms.concurrency_cap > 0
    return QuotaAdmitted(policy.partition, policy.quota_policy_id, execution.execution_id, at, until, "", counted)


def full(
    view: View,
    context: Context,
    policy: QuotaPolicy,
    terms: Terms,
    guards: Sequence[QuotaAdmitted] = (),
    dimension: str = "",
) -> RateExceeded | ConcurrencyExceeded | None:
    """Why nobody, or nobody but the owner of the guards, can be admitted now."""
    now = context.now
    if terms.rate_limit > 0:
        count, oldest = view.recent(_recent(policy, terms, dimension))
        since = now - terms.window_ms
        count -= sum(guard.dimension == dimension and guard.admitted_at_ms > since for guard in guards)
        if count >= terms.rate_limit:
            return RateExceeded(max(0, (now if oldest is None else oldest) + terms.window_ms - now))
    if terms.concurrency_cap > 0 and in_use(view, policy) - sum(map(_slots, guards)) >= terms.concurrency_cap:
        return ConcurrencyExceeded()
    return None


def in_use(view: View, policy: QuotaPolicy) -> int:
    """How many slots are taken: by guards, and by executions that carry their admission."""
    return policy.active_concurrency + (view.slots(policy.quota_policy_id) if policy.active_concurrency_cap > 0 else 0)


def room(view: View, policy: QuotaPolicy, terms: Terms) -> int:
    """How many more could be admitted now."""
    free = 2**31
    if terms.rate_limit > 0:
        free = min(free, terms.rate_limit - view.recent(_recent(policy, terms, ""))[0])
    if terms.concurrency_cap > 0:
        free = min(free, terms.concurrency_cap - in_use(view, policy))
    return max(free, 0)


def _recent(policy: QuotaPolicy, terms: Terms, dimension: str) -> Recent:
    one_by_one = policy.uneven or _is_odd(policy, terms)
    return Recent(policy.partition, policy.quota_policy_id, dimension, terms.window_ms, one_by_one)


def _is_odd(policy: QuotaPolicy, terms: Terms) -> bool:
    """Whether admissions by these terms leave the window at other times than the policy's own, so that gaps remain."""
    return terms.window_ms != window_ms(policy.requests_per_window_seconds)


def recent_need(policy: QuotaPolicy) -> Recent:
    """What a claim under this policy looks at."""
    return _recent(policy, stored_terms(policy), "")


def _slots(guard: QuotaAdmitted | None) -> int:
    return int(guard is not None and guard.counted)


def _new_entry(
    view: View, policy: QuotaPolicy, terms: Terms, dimension: str, execution_id: str, now: int
) -> QuotaWindow:
    """The next admission. Its time is never before the last one's, whatever the clocks of the writers say."""
    newest_ms, number = view.newest(_recent(policy, terms, dimension))
    at = max(now, newest_ms)
    expires = saturate(at + terms.window_ms)
    return QuotaWindow(policy.partition, policy.quota_policy_id, dimension, at, execution_id, expires, number + 1)


def _entry(guard: QuotaAdmitted) -> QuotaWindow:
    key = (guard.partition, guard.quota_policy_id, guard.dimension, guard.admitted_at_ms, guard.execution_id)
    return QuotaWindow(*key)


class ReleaseAdmission(Struct, gc=False):
    """Give a slot back. ``only_ended`` leaves it to an execution that may still need it."""

    quota_policy_id: str
    namespace: str | None
    execution_id: str
    only_ended: bool

    def needs(self) -> tuple[Need, ...]:
        return (
            Get(Execution, self.execution_id),
            *owners.needs(QuotaPolicy, self.quota_policy_id, self.namespace),
        )


def release_admission(command: ReleaseAdmission, view: View, context: Context) -> Decision:
    """The admission is gone, and its slot if it had one; the request stays in the window. Safe to repeat."""
    execution = view.execution(command.execution_id)
    policy = _asked_for(view, command.quota_policy_id, command.namespace, execution)
    if policy is None:
        return Decision(False)
    names_it = _names(view, execution, policy)
    stored = view.get(QuotaAdmitted, (policy.partition, policy.quota_policy_id, command.execution_id))
    carried = carried_guard(policy, execution) if execution is not None and names_it else None
    if command.only_ended:
        carried = None
        going_on = execution is not None and execution.lifecycle_phase not in lit.ENDED_PHASES
        if going_on or (stored is not None and stored.expires_at_ms > context.now):
            return Decision(False)
    if stored is None and carried is None:
        return Decision(False)
    acts: list[Act] = []
    if stored is not None:
        acts += _guard_dropped(policy, stored, context.now)
    if execution is not None and names_it:
        acts.append(change(execution, admitted_at_ms=None))
    if _slots(stored) or _slots(carried):
        wake(view, policy)
    return Decision(True, tuple(acts))


def _guard_dropped(policy: QuotaPolicy, guard: QuotaAdmitted, now: int) -> tuple[Act, ...]:
    if not guard.counted:
        return (Drop(guard),)
    taken = max(0, policy.active_concurrency - 1)
    return (Drop(guard), change(policy, active_concurrency=taken, updated_at_ms=now))


def wake(view: View, policy: QuotaPolicy) -> None:
    """One slot is free: the one waiting for it continues right after the commit."""
    if policy.waiting_since_ms is not None:
        view.follow(LET_GO_QUOTA, policy.quota_policy_id, 1)


def leave_guarded(view: View, context: Context, execution: Execution) -> None:
    """An execution that ends gives back every slot that it holds by a guard, whether or not it names the quota."""
    for guard in view.select(QuotaAdmitted, execution_id=execution.execution_id):
        policy = view.get(QuotaPolicy, guard.quota_policy_id)
        if policy is not None:
            _drop_guard(view, context, policy, guard)


def _drop_guard(view: View, context: Context, policy: QuotaPolicy, guard: QuotaAdmitted) -> None:
    """Folded at once: others of the same decision may leave the quota, too."""
    view.fold(Decision(None, _guard_dropped(policy, guard, context.now)))
    wake(view, policy)


def give_back(view: View, context: Context, execution: Execution) -> None:
    """An execution that ends leaves its quota. What it carries ends with it; a guard is dropped."""
    assert execution.quota_policy_id is not None
    if execution.admitted_at_ms == BY_GUARD:
        policy = view.get(QuotaPolicy, execution.quota_policy_id)
        if policy is None:
            return
        guard = view.get(QuotaAdmitted, (policy.partition, policy.quota_policy_id, execution.execution_id))
        if guard is not None:
            _drop_guard(view, context, policy, guard)
    elif execution.admitted_at_ms is not None or execution.eligibility_state not in lit.ROOM_BLOCKS:
        # One that was never admitted may have been let go and not been claimed: its place is for the next one, too.
        view.follow(SLOT_LEFT, execution.quota_policy_id, 1)


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
