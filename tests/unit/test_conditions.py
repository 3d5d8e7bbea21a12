"""The evaluator against a naive one, and against itself with everything that does not count left out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from flowfabric.conditions import (
    AllOf,
    AnyOf,
    ByName,
    Count,
    CountKind,
    Effect,
    OperatorOnly,
    Single,
    TimeoutOnly,
    Wildcard,
)
from flowfabric.core.suspension.waits import Terms, dump, read_terms
from flowfabric.model.conditions import (
    COUNTING,
    Heard,
    Unreadable,
    effect_of,
    matches,
    required_names,
    satisfied,
    with_signal,
)
from flowfabric.model.records.executions import Suspension

KEYS, NAMES, PEOPLE = ("a", "b", "c"), ("go", "no"), ("alice", "bob")

matchers = st.one_of(st.builds(ByName, st.sampled_from(NAMES)), st.just(Wildcard()))
singles = st.builds(Single, st.sampled_from(KEYS), matchers)
counts = st.builds(
    Count,
    st.integers(1, 4),
    st.sampled_from(CountKind),
    st.lists(st.sampled_from(KEYS), min_size=1, max_size=3, unique=True).map(tuple),
    st.none() | matchers,
)
leaves = st.one_of(singles, counts, st.just(OperatorOnly()), st.just(TimeoutOnly()))
conditions = st.recursive(
    leaves,
    lambda inner: st.sampled_from([AllOf, AnyOf]).flatmap(
        lambda kind: st.builds(kind, st.lists(inner, max_size=3).map(tuple))
    ),
    max_leaves=5,
)
heard = st.tuples(
    st.sampled_from(KEYS),
    st.builds(
        Heard,
        signal_id=st.uuids().map(str),
        signal_name=st.sampled_from(NAMES),
        source_type=st.sampled_from(("user", "bot")),
        source_identity=st.sampled_from(PEOPLE),
    ),
)
histories = st.lists(heard, max_size=12)


def naive(condition: Any, history: list[tuple[str, Heard]]) -> bool:
    """The table of conditions, word for word, over the whole history."""
    if isinstance(condition, Single):
        return [
            1 for key, signal in history if key == condition.waitpoint_key and takes(condition.matcher, signal)
        ] != []
    if isinstance(condition, AllOf):
        return len(condition.members) > 0 and not [1 for member in condition.members if not naive(member, history)]
    if isinstance(condition, AnyOf):
        return [1 for member in condition.members if naive(member, history)] != []
    if isinstance(condition, Count):
        found = set()
        for key, signal in history:
            if key in condition.waitpoints and (condition.matcher is None or takes(condition.matcher, signal)):
                found.add(
                    {
                        "DistinctWaitpoints": key,
                        "DistinctSignals": signal.signal_id,
                        "DistinctSources": f"{signal.source_type}/{signal.source_identity}",
                    }[condition.count_kind.value]
                )
        return len(found) >= condition.n
    return False


def takes(matcher: Any, signal: Heard) -> bool:
    return isinstance(matcher, Wildcard) or matcher.name == signal.signal_name


def grouped(history: list[tuple[str, Heard]]) -> dict[str, list[Heard]]:
    found: dict[str, list[Heard]] = {}
    for key, signal in history:
        found.setdefault(key, []).append(signal)
    return found


@given(conditions, histories)
def test_as_the_naive_one(condition: Any, history: list[tuple[str, Heard]]) -> None:
    assert satisfied(condition, grouped(history)) == naive(condition, history)


@given(conditions, histories)
def test_what_does_not_count_can_be_forgotten(condition: Any, history: list[tuple[str, Heard]]) -> None:
    """Effects worked out from counting signals alone are those of the whole history, signal by signal."""
    counting: Any = {}
    for position, (key, signal) in enumerate(history):
        before = grouped(history[:position])
        effect = effect_of(condition, before, key, signal)
        assert effect_of(condition, counting, key, signal) is effect
        if effect in COUNTING:
            counting = with_signal(counting, key, signal)
        if effect is Effect.SATISFIED:
            break
        assert not satisfied(condition, counting)


@given(conditions, histories)
def test_effects(condition: Any, history: list[tuple[str, Heard]]) -> None:
    for position, (key, signal) in enumerate(history):
        before = history[:position]
        effect = effect_of(condition, grouped(before), key, signal)
        assert (effect is Effect.SATISFIED) == (
            naive(condition, history[: position + 1]) and matches(condition, key, signal)
        )
        composite = isinstance(condition, AllOf | AnyOf | Count)
        assert (effect is Effect.NO_OP) == (not composite and not matches(condition, key, signal))
        if effect in (Effect.NOT_IN_CONDITION, Effect.MATCHER_FAILED):
            assert not matches(condition, key, signal)
        if effect in (Effect.APPENDED, Effect.DUPLICATE):
            assert matches(condition, key, signal)
        if effect is Effect.DUPLICATE:
            assert naive(condition, history[: position + 1]) == naive(condition, before)
        if effect is Effect.SATISFIED:
            return


@given(conditions)
def test_a_condition_survives_its_text(condition: Any) -> None:
    row = Suspension(0, "u", "s", 0, None, None, condition=dump(Terms(condition)))
    assert read_terms(row).condition == condition


def test_an_empty_list_is_never_satisfied() -> None:
    signal = Heard("1", "go", "user", "alice")
    for condition in (AllOf(()), AnyOf(()), Unreadable(), OperatorOnly(), TimeoutOnly()):
        assert not satisfied(condition, {"a": [signal]})


@pytest.mark.parametrize(
    ("condition", "names"),
    [
        (Single("a"), ()),
        (Single("a", ByName("x")), ("x",)),
        (Single("b", ByName("x")), ()),
        (AllOf((Single("a", ByName("y")), Count(1, CountKind.DISTINCT_SIGNALS, ("a",), ByName("x")))), ("x", "y")),
        (OperatorOnly(), ("__operator_only__",)),
        (TimeoutOnly(), ("__timeout_only__",)),
    ],
)
def test_required_names(condition: Any, names: tuple[str, ...]) -> None:
    assert required_names(condition, "a") == names


def test_names_are_exact() -> None:
    signal = Heard("1", "Go", "user", "alice")
    assert not satisfied(Single("a", ByName("go")), {"a": [signal]})
    assert satisfied(Single("a", ByName("Go")), {"a": [signal]})


def test_the_texts_of_the_wire() -> None:
    assert [kind.value for kind in CountKind] == ["DistinctWaitpoints", "DistinctSignals", "DistinctSources"]
    assert msgspec.json.encode(Count(2, CountKind.DISTINCT_SOURCES, ("a",), ByName("x"))) == (
        b'{"type":"Count","n":2,"count_kind":"DistinctSources","waitpoints":["a"],'
        b'"matcher":{"type":"ByName","name":"x"}}'
    )
