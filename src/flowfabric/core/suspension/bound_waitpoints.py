"""The waitpoints of a suspension: fresh ones with their tokens, and one that was created before with what it heard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.core.suspension import waits
from flowfabric.core.suspension.signing import minted, signing_key
from flowfabric.model.conditions import (
    COUNTING,
    AllOf,
    AnyOf,
    ByName,
    Count,
    CountKind,
    Effect,
    Hearing,
    ResumeCondition,
    Single,
    TimeoutOnly,
    effect_of,
    keys_of,
    leaves,
    matches,
    required_names,
    with_signal,
)
from flowfabric.model.decisions import Act, Change, Get
from flowfabric.model.errors import (
    Conflict,
    ConflictKind,
    Contention,
    ContentionKind,
    State,
    StateKind,
    Validation,
    ValidationKind,
)
from flowfabric.model.limits import MAX_COMPOSITE_DEPTH
from flowfabric.model.operations.suspension import ResumePolicy, SuspensionRequester, TimeoutBehavior
from flowfabric.model.records.executions import Execution, Signal, SigningKey, Suspension, Waitpoint


class Wait(Struct, gc=False):
    """What an execution is to wait for. The first waitpoint is the primary one."""

    suspension_id: str
    waitpoints: tuple[Binding, ...]
    condition: ResumeCondition
    reason_code: str
    requested_by: str = SuspensionRequester.WORKER
    resume_policy: ResumePolicy = ResumePolicy()
    timeout_at_ms: int | None = None
    timeout_behavior: str = TimeoutBehavior.FAIL
    continuation_metadata_pointer: str | None = None


class Bound(NamedTuple):
    """The waitpoints of a suspension as they will be stored, and what was heard on them before."""

    rows: tuple[Waitpoint, ...]
    #: For each row the fields that change; ``None`` if it is new.
    fields: tuple[tuple[str, ...] | None, ...]
    heard: Hearing
    #: The signal that satisfied the condition before anybody waited for it.
    closer: str | None
    key: tuple[Act, ...]

    @property
    def acts(self) -> tuple[Act, ...]:
        stored = (Change(row, fields) for row, fields in zip(self.rows, self.fields, strict=True))
        return (*self.key, *stored)


def bound_waitpoints(view: View, context: Context, execution: Execution, wait: Wait, entropy: bytes) -> Bound:
    """The waitpoints, checked and minted."""
    if waits.is_open(view.get(Suspension, (execution.partition, execution.uuid))):
        raise State(StateKind.ALREADY_SUSPENDED, f"execution {execution.execution_id}")
    key, new_key = signing_key(view, entropy, context.now)
    found = view.many(Waitpoint, [(execution.partition, each.waitpoint_id) for each in wait.waitpoints])
    primary = wait.waitpoints[0]
    if primary.waitpoint_key is None:
        pending = _pending(view, found[0], execution, context.now)
        others = wait.waitpoints[1:]
        check_keys([pending.waitpoint_key, *(each.waitpoint_key or "" for each in others)], wait.condition)
        fresh = _fresh(execution, wait, key, others, found[1:], context.now)
        heard, matched, closer = _replayed(view, execution, pending, wait.condition)
        activated: dict[str, Any] = {
            "state": waits.OPEN,
            "activated_at_ms": context.now,
            "expires_at_ms": None,
            "required_signal_names": required_names(wait.condition, pending.waitpoint_key),
            "matched_signal_count": matched,
        }
        rows = (replace(pending, **activated), *fresh)
        return Bound(rows, (tuple(activated), *[None] * len(fresh)), heard, closer, new_key)
    fresh = _fresh(execution, wait, key, wait.waitpoints, found, context.now)
    return Bound(fresh, (None,) * len(fresh), {}, None, new_key)


def _fresh(
    execution: Execution,
    wait: Wait,
    key: SigningKey,
    bindings: Sequence[Binding],
    found: Sequence[Waitpoint | None],
    now: int,
) -> tuple[Waitpoint, ...]:
    """New waitpoints with their tokens."""
    seen: set[str] = set()
    for binding, stored in zip(bindings, found, strict=True):
        if stored is not None or binding.waitpoint_id in seen:
            raise Conflict(ConflictKind.WAITPOINT_ALREADY_EXISTS, f"waitpoint {binding.waitpoint_id}")
        seen.add(binding.waitpoint_id)
    return tuple(
        new_waitpoint(
            execution,
            key,
            binding.waitpoint_id,
            binding.waitpoint_key or "",
            now,
            state=waits.OPEN,
            activated_at_ms=now,
            required_signal_names=required_names(wait.condition, binding.waitpoint_key or ""),
        )
        for binding in bindings
    )


def new_waitpoint(
    execution: Execution, key: SigningKey, waitpoint_id: str, waitpoint_key: str, now: int, **fields: Any
) -> Waitpoint:
    """A waitpoint of the execution's current attempt, with its token."""
    return Waitpoint(
        execution.partition,
        waitpoint_id,
        execution.uuid,
        closed_at_ms=None,
        close_reason=None,
        token_kid=key.kid,
        token=minted(key, execution.execution_id, waitpoint_id).reveal(),
        created_at_ms=now,
        waitpoint_key=waitpoint_key,
        attempt_index=execution.attempt_index,
        **fields,
    )


def _is_known(view: View, stored: Waitpoint, execution: Execution) -> bool:
    """Whether a waitpoint is of no other namespace than the execution; those of others are as good as unknown."""
    if stored.uuid == execution.uuid:
        return True
    owner_id = f"{{fp:{stored.partition}}}:{stored.uuid}"
    view.require((Get(Execution, owner_id),))
    owner = view.execution(owner_id)
    return owner is None or owner.namespace == execution.namespace


def _pending(view: View, stored: Waitpoint | None, execution: Execution, now: int) -> Waitpoint:
    """A waitpoint that was created before, if this execution may suspend on it."""
    if stored is None or not _is_known(view, stored, execution):
        raise Contention(ContentionKind.WAITPOINT_NOT_FOUND)
    where = f"waitpoint {stored.waitpoint_id}"
    if stored.uuid != execution.uuid or stored.attempt_index not in (None, execution.attempt_index):
        raise Validation(ValidationKind.INVALID_WAITPOINT_FOR_EXECUTION, where)
    if stored.state != waits.PENDING:
        raise State(StateKind.WAITPOINT_NOT_PENDING, f"{where} is {stored.state}")
    if stored.expires_at_ms is not None and stored.expires_at_ms <= now:
        raise State(StateKind.PENDING_WAITPOINT_EXPIRED, where)
    if not stored.token:
        raise Validation(ValidationKind.WAITPOINT_NOT_TOKEN_BOUND, where)
    return stored


def _replayed(
    view: View, execution: Execution, pending: Waitpoint, condition: ResumeCondition
) -> tuple[Hearing, int, str | None]:
    """Signals that came early, judged in the order they came: those that count, how many match, and which satisfied."""
    if not pending.signal_count:
        return {}, 0, None
    early = view.select(Signal, partition=execution.partition, uuid=execution.uuid, waitpoint_id=pending.waitpoint_id)
    heard: Hearing = {}
    matched = 0
    closer: str | None = None
    for signal in sorted(early, key=lambda each: each.sequence):
        said = waits.heard_of(signal)
        matched += matches(condition, pending.waitpoint_key, said)
        if closer is not None:
            continue
        effect = effect_of(condition, heard, pending.waitpoint_key, said)
        if effect in COUNTING:
            heard = with_signal(heard, pending.waitpoint_key, said)
        if effect is Effect.SATISFIED:
            closer = signal.signal_id
    return heard, matched, closer


# -- whether a condition and the waitpoints bound to it make sense together ------------------------------------------
# Needs no storage.

#: How far behind the store's clock a timeout may lie: clocks of callers differ.
PAST_GRACE_MS = 600_000


class Binding(Struct, frozen=True, gc=False):
    """A waitpoint to wait on: a fresh one with its key, or (without a key) one that was created before."""

    waitpoint_id: str
    waitpoint_key: str | None


def _refused(detail: str) -> Validation:
    return Validation(ValidationKind.INVALID_INPUT, detail)


def check_wait(bindings: Sequence[Binding], condition: ResumeCondition, timeout_at_ms: int | None, now: int) -> None:
    """Every check that needs nothing stored, in order; the first failure is the one that is told."""
    _check_bindings(bindings, condition)
    if bindings[0].waitpoint_key is not None:
        check_keys([binding.waitpoint_key or "" for binding in bindings], condition)
    if isinstance(condition, TimeoutOnly) and timeout_at_ms is None:
        raise _refused("timeout_only_without_deadline")
    matchers = [leaf.matcher for leaf in leaves(condition)]
    if any(isinstance(matcher, ByName) and not matcher.name for matcher in matchers):
        raise _refused("resume_condition: empty signal name (use Wildcard instead)")
    if timeout_at_ms is not None and timeout_at_ms + PAST_GRACE_MS < now:
        raise _refused("timeout_at_in_past")
    nodes = list(_nodes(condition, 1, ""))
    for check in (_empty_members, _zero_count, _no_waitpoints, _too_many_wanted):
        for node, _, _ in nodes:
            check(node)
    for _, depth, path in nodes:
        if depth > MAX_COMPOSITE_DEPTH:
            raise too_deep(depth, path)


def _check_bindings(bindings: Sequence[Binding], condition: ResumeCondition) -> None:
    if not bindings:
        raise _refused("waitpoints_empty")
    primary = bindings[0].waitpoint_key
    if primary is not None and isinstance(condition, Single) and condition.waitpoint_key != primary:
        raise _refused("waitpoint_key_mismatch")
    if primary == "":
        raise _refused("waitpoint_binding_empty_key at waitpoints[0]")
    for position, binding in enumerate(bindings[1:], 1):
        if binding.waitpoint_key == "":
            raise _refused(f"additional_waitpoint_binding_empty_key at waitpoints[{position}]")
    for position, binding in enumerate(bindings[1:], 1):
        if binding.waitpoint_key is None:
            raise _refused(f"additional_waitpoint_binding_must_be_fresh at waitpoints[{position}]")


def check_keys(keys: Sequence[str], condition: ResumeCondition) -> None:
    """Every key the condition names is bound, and of several bindings none is idle."""
    named = [key for leaf in leaves(condition) for key in keys_of(leaf)]
    for key in named:
        if key not in keys:
            raise _refused(f"referenced_waitpoint_key_missing_binding: {key}")
    if len(keys) > 1:
        for key in keys:
            if key not in named:
                raise _refused(f"extra_binding_not_referenced_by_condition: {key}")


def too_deep(depth: int, path: str) -> Validation:
    """The error for a condition that nests too deeply."""
    return _refused(f"depth {depth} exceeds cap {MAX_COMPOSITE_DEPTH} at {path}")


def _nodes(condition: ResumeCondition, depth: int, path: str) -> Iterator[tuple[ResumeCondition, int, str]]:
    yield condition, depth, path or "root"
    if isinstance(condition, AllOf | AnyOf):
        for position, member in enumerate(condition.members):
            below = f"{path}.members[{position}]" if path else f"members[{position}]"
            yield from _nodes(member, depth + 1, below)


def _empty_members(node: ResumeCondition) -> None:
    if isinstance(node, AllOf | AnyOf) and not node.members:
        raise _refused("allof_empty_members" if isinstance(node, AllOf) else "anyof_empty_members")


def _zero_count(node: ResumeCondition) -> None:
    if isinstance(node, Count) and node.n == 0:
        raise _refused("count_n_zero")


def _no_waitpoints(node: ResumeCondition) -> None:
    if isinstance(node, Count) and not node.waitpoints:
        raise _refused("count_waitpoints_empty")


def _too_many_wanted(node: ResumeCondition) -> None:
    if (
        isinstance(node, Count)
        and node.count_kind == CountKind.DISTINCT_WAITPOINTS
        and node.n > len(set(node.waitpoints))
    ):
        raise _refused("count_exceeds_waitpoint_set")
