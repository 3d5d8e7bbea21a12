"""Resume conditions, and the one function that says whether one is satisfied.

A condition is a small tree. ``Single`` waits for one signal on one waitpoint, ``Count`` for several distinct ones,
``AllOf`` for all of its members; ``OperatorOnly`` and ``TimeoutOnly`` are never met by a signal. Judging is pure: it
looks at signals in the order they were accepted, by waitpoint key, and at nothing else.

What is stored may have been written by a later release. Whatever of it is not known here, a node or a field, makes the
whole condition unreadable: no signal may be judged by half of a condition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final, TypeAlias

from msgspec import Struct


class ByName(Struct, frozen=True, tag="ByName", forbid_unknown_fields=True):
    """Matches signals of exactly this name."""

    name: str


class Wildcard(Struct, frozen=True, tag="Wildcard", forbid_unknown_fields=True):
    """Matches every signal."""


Matcher: TypeAlias = ByName | Wildcard


class CountKind(StrEnum):
    """What ``Count`` counts: each of these once."""

    DISTINCT_WAITPOINTS = "DistinctWaitpoints"
    DISTINCT_SIGNALS = "DistinctSignals"
    DISTINCT_SOURCES = "DistinctSources"


class Single(Struct, frozen=True, tag="Single", forbid_unknown_fields=True):
    """Some signal on this waitpoint matches."""

    waitpoint_key: str
    matcher: Matcher = Wildcard()


class AllOf(Struct, frozen=True, tag="AllOf", forbid_unknown_fields=True):
    """Every member is satisfied."""

    members: tuple[ResumeCondition, ...]


class AnyOf(Struct, frozen=True, tag="AnyOf", forbid_unknown_fields=True):
    """Some member is satisfied."""

    members: tuple[ResumeCondition, ...]


class Count(Struct, frozen=True, tag="Count", forbid_unknown_fields=True):
    """At least ``n`` distinct satisfiers on the listed waitpoints. "Any of" is ``n=1``."""

    n: int
    count_kind: CountKind
    waitpoints: tuple[str, ...]
    matcher: Matcher | None = None


class OperatorOnly(Struct, frozen=True, tag="OperatorOnly", forbid_unknown_fields=True):
    """Never satisfied by a signal: only ``resume_execution`` goes on."""


class TimeoutOnly(Struct, frozen=True, tag="TimeoutOnly", forbid_unknown_fields=True):
    """Never satisfied by a signal: only the timeout goes on."""


class Unreadable(Struct, frozen=True, tag="Unreadable"):
    """A stored condition that this release does not know. Signals for it are refused."""


ResumeCondition: TypeAlias = Single | AllOf | AnyOf | Count | OperatorOnly | TimeoutOnly | Unreadable
Leaf: TypeAlias = Single | Count


class Heard(Struct, frozen=True, gc=False):
    """A recorded signal, as far as conditions look at it."""

    signal_id: str
    signal_name: str
    source_type: str
    source_identity: str
    signal_category: str = ""
    correlation_id: str | None = None
    accepted_at: int = 0


#: Signals by waitpoint key, each list in the order of acceptance.
Hearing: TypeAlias = Mapping[str, Sequence[Heard]]


class Effect(StrEnum):
    """What a signal did."""

    SATISFIED = "resume_condition_satisfied"
    APPENDED = "appended_to_waitpoint"
    NO_OP = "no_op"
    NOT_IN_CONDITION = "signal_ignored_not_in_condition"
    MATCHER_FAILED = "signal_ignored_matcher_failed"
    DUPLICATE = "appended_to_waitpoint_duplicate"
    BUFFERED = "buffered_for_pending_waitpoint"


def satisfied(condition: ResumeCondition, heard: Hearing) -> bool:
    """Whether the condition holds."""
    match condition:
        case Single(waitpoint_key=key, matcher=matcher):
            return any(accepts(matcher, signal) for signal in heard.get(key, ()))
        case AllOf(members=members):
            return bool(members) and all(satisfied(member, heard) for member in members)
        case AnyOf(members=members):
            return any(satisfied(member, heard) for member in members)
        case Count():
            return len(satisfiers(condition, heard)) >= max(condition.n, 1)
        case _:
            return False


def accepts(matcher: Matcher | None, signal: Heard) -> bool:
    """Whether a matcher takes the signal."""
    return not isinstance(matcher, ByName) or matcher.name == signal.signal_name


def satisfiers(count: Count, heard: Hearing) -> dict[object, Heard]:
    """The distinct satisfiers of a count, each by what makes it distinct."""
    found: dict[object, Heard] = {}
    for key in count.waitpoints:
        for signal in heard.get(key, ()):
            if accepts(count.matcher, signal):
                found.setdefault(_distinct(count.count_kind, key, signal), signal)
    return found


def _distinct(kind: CountKind, key: str, signal: Heard) -> object:
    if kind == CountKind.DISTINCT_WAITPOINTS:
        return key
    if kind == CountKind.DISTINCT_SIGNALS:
        return signal.signal_id
    return (signal.source_type, signal.source_identity)


def leaves(condition: ResumeCondition) -> Iterator[Leaf]:
    """The nodes that look at signals."""
    if isinstance(condition, AllOf | AnyOf):
        for member in condition.members:
            yield from leaves(member)
    elif isinstance(condition, Single | Count):
        yield condition


def keys_of(leaf: Leaf) -> tuple[str, ...]:
    """The waitpoint keys a node looks at."""
    return (leaf.waitpoint_key,) if isinstance(leaf, Single) else leaf.waitpoints


def matches(condition: ResumeCondition, key: str, signal: Heard) -> bool:
    """Whether some node looks at this waitpoint and takes the signal."""
    return any(key in keys_of(leaf) and accepts(leaf.matcher, signal) for leaf in leaves(condition))


def effect_of(condition: ResumeCondition, heard: Hearing, key: str, signal: Heard) -> Effect:
    """What one more signal does, after those that were heard before it."""
    looking = [leaf for leaf in leaves(condition) if key in keys_of(leaf)]
    taking = [leaf for leaf in looking if accepts(leaf.matcher, signal)]
    if not isinstance(condition, AllOf | AnyOf | Count):
        return Effect.SATISFIED if taking else Effect.NO_OP
    if not looking:
        return Effect.NOT_IN_CONDITION
    if not taking:
        return Effect.MATCHER_FAILED
    if satisfied(condition, with_signal(heard, key, signal)):
        return Effect.SATISFIED
    return Effect.APPENDED if any(_is_news(leaf, heard, key, signal) for leaf in taking) else Effect.DUPLICATE


def with_signal(heard: Hearing, key: str, signal: Heard) -> Hearing:
    """What was heard, and one signal more."""
    return {**heard, key: (*heard.get(key, ()), signal)}


def _is_news(leaf: Leaf, heard: Hearing, key: str, signal: Heard) -> bool:
    """Whether the signal gives a node a satisfier it did not have."""
    if isinstance(leaf, Single):
        return not satisfied(leaf, heard)
    return _distinct(leaf.count_kind, key, signal) not in satisfiers(leaf, heard)


#: Effects of signals that count. Others change no later judgement, so nobody has to remember them.
COUNTING: Final = frozenset({Effect.SATISFIED, Effect.APPENDED})

#: What ``required_signal_names`` says of conditions that no signal meets.
OPERATOR_SENTINEL: Final = "__operator_only__"
TIMEOUT_SENTINEL: Final = "__timeout_only__"


def required_names(condition: ResumeCondition, key: str) -> tuple[str, ...]:
    """The signal names a waitpoint waits for, sorted; none means any name."""
    if isinstance(condition, OperatorOnly):
        return (OPERATOR_SENTINEL,)
    if isinstance(condition, TimeoutOnly):
        return (TIMEOUT_SENTINEL,)
    names = {
        leaf.matcher.name for leaf in leaves(condition) if key in keys_of(leaf) and isinstance(leaf.matcher, ByName)
    }
    return tuple(sorted(names))
