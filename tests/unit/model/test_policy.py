"""The execution policy: what is refused, how it is spelled when stored, and how rules read it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, strategies as st

from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.policy import (
    ExecutionPolicy,
    ExponentialBackoff,
    FallbackPolicy,
    FallbackTier,
    FixedBackoff,
    PolicyView,
    RetryPolicy,
    RoutingRequirements,
    StreamPolicy,
    SuspensionPolicy,
    TimeoutPolicy,
    backoff_delay_ms,
    parse_policy,
    read_policy,
    read_retry_policy,
)

ONES = "11111111-1111-4111-8111-111111111111"
TWOS = "22222222-2222-4222-8222-222222222222"
DEFAULTS = {
    "priority": 0,
    "max_reclaim_count": 100,
    "max_replay_count": 10,
    "budget_ids": [],
    "max_signals_per_execution": 10_000,
}


def stored(value: Any) -> dict[str, Any]:
    text = parse_policy(value)
    assert text is not None
    document = json.loads(text)
    assert isinstance(document, dict)
    return document


def test_no_policy_is_none() -> None:
    assert parse_policy(None) is None
    assert read_policy(None) == PolicyView()


@pytest.mark.parametrize("empty", [ExecutionPolicy(), {}, "{}", b"{}"])
def test_a_default_policy_has_exactly_five_members(empty: Any) -> None:
    assert stored(empty) == DEFAULTS
    assert list(stored(empty)) == list(DEFAULTS)


def test_a_full_policy() -> None:
    policy = ExecutionPolicy(
        priority=5,
        delay_until=17,
        retry_policy=RetryPolicy(5, FixedBackoff(250), ("infra_crash",)),
        timeout_policy=TimeoutPolicy(attempt_timeout_ms=30_000, execution_deadline_ms=60_000),
        max_reclaim_count=7,
        suspension_policy=SuspensionPolicy(1000, "cancel"),
        fallback_policy=FallbackPolicy((FallbackTier("p", "m"), FallbackTier("p", "n", 5))),
        max_replay_count=2,
        budget_ids=(ONES.upper(), TWOS),
        quota_policy_id=TWOS,
        routing_requirements=RoutingRequirements(frozenset({"gpu", "arm"}), isolation_level="vm"),
        dedup_window_ms=5,
        stream_policy=StreamPolicy(retention_maxlen=9, retention_ttl_ms=8),
        max_signals_per_execution=0,
    )
    document = stored(policy)
    assert document == {
        "priority": 5,
        "delay_until": 17,
        "retry_policy": {
            "max_retries": 5,
            "backoff": {"type": "fixed", "delay_ms": 250},
            "retryable_categories": ["infra_crash"],
        },
        "timeout_policy": {"attempt_timeout_ms": 30_000, "execution_deadline_ms": 60_000, "max_reclaim_count": 100},
        "max_reclaim_count": 7,
        "suspension_policy": {"default_timeout_ms": 1000, "timeout_behavior": "cancel"},
        "fallback_policy": {
            "tiers": [{"provider": "p", "model": "m"}, {"provider": "p", "model": "n", "timeout_ms": 5}]
        },
        "max_replay_count": 2,
        "budget_ids": [ONES, TWOS],
        "quota_policy_id": TWOS,
        "routing_requirements": {"required_capabilities": ["arm", "gpu"], "isolation_level": "vm"},
        "dedup_window_ms": 5,
        "stream_policy": {"durability_mode": "buffered", "retention_maxlen": 9, "retention_ttl_ms": 8},
        "max_signals_per_execution": 0,
    }
    view = read_policy(parse_policy(policy))
    assert view == PolicyView(
        retry_policy=RetryPolicy(5, FixedBackoff(250), ("infra_crash",)),
        attempt_timeout_ms=30_000,
        execution_deadline_ms=60_000,
        max_reclaim_count=7,
        max_replay_count=2,
        dedup_window_ms=5,
        required_capabilities=("arm", "gpu"),
        retention_maxlen=9,
        retention_ttl_ms=8,
        max_signals_per_execution=0,
        budget_ids=(ONES, TWOS),
        quota_policy_id=TWOS,
        suspension_policy=SuspensionPolicy(1000, "cancel"),
    )


def test_partial_objects_get_their_defaults() -> None:
    retry = stored({"retry_policy": {"max_retries": 5}})["retry_policy"]
    assert retry == {
        "max_retries": 5,
        "backoff": {
            "type": "exponential", "initial_delay_ms": 1000, "max_delay_ms": 60_000, "multiplier": 2.0, "jitter": False,
        },
        "retryable_categories": [],
    }  # fmt: skip
    timeout = stored({"timeout_policy": {"attempt_timeout_ms": 30_000}})["timeout_policy"]
    assert timeout == {"attempt_timeout_ms": 30_000, "max_reclaim_count": 100}


def test_unknown_members_are_kept_and_null_means_unset() -> None:
    document = stored({"zeta": None, "alpha": {"x": [1]}, "retry_policy": None, "stream_policy": {"new": 1}})
    assert document["alpha"] == {"x": [1]}
    assert document["zeta"] is None
    assert "retry_policy" not in document
    assert document["stream_policy"]["new"] == 1
    odd = {"type": "linear", "step": 3}
    assert stored({"retry_policy": {"backoff": odd}})["retry_policy"]["backoff"] == odd


def test_one_spelling_for_one_policy() -> None:
    one = parse_policy('{"zeta": 1, "priority": 3, "alpha": 2}')
    assert one == parse_policy({"alpha": 2, "zeta": 1, "priority": 3})
    assert one == parse_policy(one)


def test_unhashable_typed_policies_are_taken_too() -> None:
    typed = ExecutionPolicy(routing_requirements=RoutingRequirements(["b", "a"]))
    assert stored(typed)["routing_requirements"] == {"required_capabilities": ["a", "b"]}


def test_a_reclaim_cap_in_the_timeout_policy_counts_unless_the_top_level_says_otherwise() -> None:
    nested = {"timeout_policy": {"max_reclaim_count": 5}}
    assert stored(nested)["max_reclaim_count"] == 5
    assert stored({**nested, "max_reclaim_count": 100})["max_reclaim_count"] == 100
    assert stored(ExecutionPolicy(timeout_policy=TimeoutPolicy(max_reclaim_count=5)))["max_reclaim_count"] == 5
    typed = ExecutionPolicy(max_reclaim_count=7, timeout_policy=TimeoutPolicy(max_reclaim_count=5))
    assert stored(typed)["max_reclaim_count"] == 7


def test_numbers_saturate() -> None:
    document = stored({"priority": 2**40, "max_replay_count": 2**70, "dedup_window_ms": 10**30})
    assert document["priority"] == 2**31 - 1
    assert document["max_replay_count"] == 2**32 - 1
    assert document["dedup_window_ms"] == 2**64 - 1
    assert stored({"priority": -(2**40)})["priority"] == -(2**31)
    assert read_policy('{"dedup_window_ms": 18446744073709551615}').dedup_window_ms == 2**63 - 1


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "nope",
        "[]",
        "null",
        b"\xff",
        '{"a":' * 3000,
        {"x": object()},
        {"priority": "1"},
        {"priority": True},
        {"max_replay_count": -1},
        {"max_replay_count": 1.5},
        {"retry_policy": []},
        {"retry_policy": {"max_retries": "3"}},
        {"retry_policy": {"backoff": "fixed"}},
        {"retry_policy": {"backoff": {"type": "fixed", "delay_ms": -1}}},
        {"retry_policy": {"backoff": {"type": "exponential", "multiplier": "2"}}},
        {"retry_policy": {"backoff": {"type": "exponential", "multiplier": -2}}},
        {"retry_policy": {"backoff": {"type": "exponential", "jitter": 1}}},
        {"retry_policy": {"retryable_categories": [1]}},
        {"timeout_policy": {"attempt_timeout_ms": "x"}},
        {"budget_ids": "x"},
        {"budget_ids": ["x"]},
        {"quota_policy_id": "x"},
        {"fallback_policy": {"tiers": [{"provider": "p"}]}},
        {"stream_policy": 1},
        {"retry_policy": 1, "routing_requirements": {"required_capabilities": [""]}},
    ],
)
def test_malformed(bad: Any) -> None:
    with pytest.raises(Validation) as caught:
        parse_policy(bad)
    assert caught.value.kind is ValidationKind.INVALID_POLICY_JSON
    assert re.match(r"malformed: \w", caught.value.detail)
    if isinstance(bad, dict) and "no JSON form" not in caught.value.detail:
        assert any(f"policy.{name}" in caught.value.detail for name in bad)


@pytest.mark.parametrize("routing", [[], "gpu", 1, None])
def test_routing_must_be_an_object(routing: Any) -> None:
    with pytest.raises(Validation) as caught:
        parse_policy({"routing_requirements": routing})
    assert caught.value.kind is ValidationKind.INVALID_POLICY_JSON
    assert caught.value.detail == "routing_requirements:not_object"


@pytest.mark.parametrize(
    ("tokens", "problem"),
    [
        ("gpu", "not_array"),
        (None, "not_array"),
        ({"gpu": True}, "not_array"),
        (7, "not_array"),
        ([1], "non_string_token"),
        ([None], "non_string_token"),
        ([""], "empty_token"),
        (["a,b"], "comma_in_token"),
        (["a b"], "control_or_whitespace"),
        ([str(number) for number in range(257)], "too_many_tokens"),
        (["x" * 4097], "too_many_bytes"),
    ],
)
def test_requirements_fail_closed(tokens: Any, problem: str) -> None:
    with pytest.raises(Validation) as caught:
        parse_policy({"routing_requirements": {"required_capabilities": tokens}})
    assert caught.value.kind is ValidationKind.INVALID_CAPABILITIES
    assert caught.value.detail == f"required:{problem}"


def test_requirements_may_be_any_collection() -> None:
    for tokens in (["b", "a", "b"], ("b", "a"), {"a", "b"}):
        document = stored({"routing_requirements": {"required_capabilities": tokens}})
        assert document["routing_requirements"] == {"required_capabilities": ["a", "b"]}
    assert stored({"routing_requirements": {}})["routing_requirements"] == {"required_capabilities": []}


def test_the_view_of_an_empty_object() -> None:
    view = read_policy("{}")
    assert view == PolicyView()
    assert view.max_reclaim_count is None
    assert (view.max_replay_count, view.dedup_window_ms, view.retention_maxlen) == (10, 86_400_000, 10_000)
    assert read_policy("{}") is view


def test_the_view_is_tolerant() -> None:
    view = read_policy('{"retry_policy": 1, "timeout_policy": [], "max_replay_count": "x", "budget_ids": [1, "b"]}')
    assert view.retry_policy == RetryPolicy()
    assert view.attempt_timeout_ms is None
    assert view.max_replay_count == 10
    assert view.budget_ids == ("b",)
    assert read_policy('{"timeout_policy": {"max_reclaim_count": 5}}').max_reclaim_count == 5
    assert read_policy('{"max_reclaim_count": 2, "timeout_policy": {"max_reclaim_count": 5}}').max_reclaim_count == 2
    assert read_policy('{"max_reclaim_count": 3.0}').max_reclaim_count == 3
    assert read_policy('{"suspension_policy": {}}').suspension_policy == SuspensionPolicy()
    for odd in ("1", '{"required_capabilities": "gpu"}', '{"required_capabilities": [1]}'):
        unmatched = read_policy(f'{{"routing_requirements": {odd}}}').required_capabilities
        assert unmatched == (",",)


@pytest.mark.parametrize("text", ["", "x", "[]", "1", "null"])
def test_stored_text_that_is_no_object_is_corruption(text: str) -> None:
    with pytest.raises(Validation) as caught:
        read_policy(text)
    assert caught.value.kind is ValidationKind.CORRUPTION
    assert "policy" in caught.value.detail


def test_a_retry_policy_by_itself() -> None:
    assert read_retry_policy("") is None
    assert read_retry_policy("{}") == RetryPolicy()
    assert read_retry_policy('{"max_retries": 1, "backoff": {"type": "fixed"}}') == RetryPolicy(1, FixedBackoff(1000))
    for bad in ("x", "[]"):
        with pytest.raises(Validation) as caught:
            read_retry_policy(bad)
        assert caught.value.kind is ValidationKind.INVALID_POLICY_JSON


@pytest.mark.parametrize(
    ("backoff", "expected"),
    [
        (None, ExponentialBackoff()),
        ({"type": "fixed", "delay_ms": 5}, FixedBackoff(5)),
        ({"type": "exponential"}, ExponentialBackoff(1000, 60_000, 2.0, False)),
        ({"type": "exponential", "initial_delay_ms": 1, "max_delay_ms": 2, "multiplier": 3, "jitter": True},
         ExponentialBackoff(1, 2, 3, True)),
        ({"type": "linear", "delay_ms": 7}, FixedBackoff(1000)),
        ({"delay_ms": 7}, FixedBackoff(1000)),
        ("x", FixedBackoff(1000)),
    ],
)  # fmt: skip
def test_stored_backoff(backoff: Any, expected: Any) -> None:
    policy = read_policy(json.dumps({"retry_policy": {"backoff": backoff}})).retry_policy
    assert policy is not None
    assert policy.backoff == expected


def test_backoff_delays() -> None:
    default = ExponentialBackoff()
    assert [backoff_delay_ms(default, count, 1.0) for count in range(8)] == [
        1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000,
    ]  # fmt: skip
    assert backoff_delay_ms(ExponentialBackoff(100, 10**9, 1.5), 3, 1.0) == 337
    assert backoff_delay_ms(default, 10**9, 1.0) == 60_000
    assert backoff_delay_ms(ExponentialBackoff(0, 5, 2.0), 10**9, 1.0) == 0
    assert backoff_delay_ms(ExponentialBackoff(1000, 5000, 0.5), 10**9, 1.0) == 0
    assert backoff_delay_ms(ExponentialBackoff(1000, 10**30, 10.0), 10**6, 1.0) == 2**63 - 1
    assert backoff_delay_ms(FixedBackoff(7), 10**9, 0.5) == 7
    assert backoff_delay_ms(FixedBackoff(2**64), 0, 0.5) == 2**63 - 1
    assert backoff_delay_ms(ExponentialBackoff(1000, 60_000, 2.0, True), 0, 0.5) == 500
    assert backoff_delay_ms(ExponentialBackoff(1000, 60_000, 2.0, False), 0, 0.5) == 1000


@given(st.integers(0, 2**64), st.integers(0, 2**64), st.floats(0, 1e308), st.integers(0, 2**40), st.floats(0.5, 1.0))
def test_backoff_never_overflows(first: int, most: int, multiplier: float, count: int, jitter: float) -> None:
    delay = backoff_delay_ms(ExponentialBackoff(first, most, multiplier, True), count, jitter)
    assert 0 <= delay <= min(most, 2**63 - 1)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
members = st.sampled_from([*DEFAULTS, "retry_policy", "timeout_policy", "routing_requirements", "stream_policy", "x"])


@given(st.dictionaries(members, json_values))
def test_parse_refuses_or_settles(document: dict[str, Any]) -> None:
    refusal, text = None, None
    try:
        text = parse_policy(document)
    except Validation as error:
        refusal = error.kind
    assert refusal in (None, ValidationKind.INVALID_POLICY_JSON, ValidationKind.INVALID_CAPABILITIES)
    assert parse_policy(text) == text
    read_policy(text)


@given(st.dictionaries(members, json_values))
def test_reading_takes_every_object(document: dict[str, Any]) -> None:
    read_policy(json.dumps(document))
