"""Whether a condition and the waitpoints bound to it make sense together. Needs no storage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from flowfabric.model.conditions import (
    AllOf,
    AnyOf,
    ByName,
    Count,
    CountKind,
    ResumeCondition,
    Single,
    TimeoutOnly,
    keys_of,
    leaves,
)
from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.limits import MAX_COMPOSITE_DEPTH

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
