"""The error tree: every kind has a code, a class and a sentence, and survives copying."""

from __future__ import annotations

import copy
import pickle
from enum import StrEnum

import pytest

from flowfabric.model.errors import (
    Bug,
    BugKind,
    Conflict,
    ConflictKind,
    Contention,
    ContentionKind,
    Contextual,
    EngineError,
    ErrorClass,
    LimitReached,
    NotFound,
    RequiresDevMode,
    ResourceExhausted,
    State,
    StateKind,
    StreamBackpressure,
    StreamDisconnected,
    Timeout,
    Transport,
    TransportKind,
    Unavailable,
    Validation,
    ValidationKind,
)
from flowfabric.model.errors.kinds import SENTENCES

KIND_ENUMS: tuple[type[StrEnum], ...] = (
    ValidationKind,
    ContentionKind,
    ConflictKind,
    StateKind,
    BugKind,
    TransportKind,
)
KINDS = [kind for enum in KIND_ENUMS for kind in enum]

SAMPLES: list[EngineError] = [
    NotFound("execution", "{fp:0}:x"),
    Validation(ValidationKind.INVALID_INPUT, "fence_required"),
    Validation(kind=ValidationKind.CORRUPTION, detail="policy: not JSON"),
    Contention(
        ContentionKind.EXECUTION_NOT_ACTIVE,
        terminal_outcome="success",
        lease_epoch=3,
        lifecycle_phase="terminal",
        attempt_id="a-1",
    ),
    Conflict(ConflictKind.ROTATION_CONFLICT, kid="k2"),
    Conflict(ConflictKind.DEPENDENCY_ALREADY_EXISTS, existing={"edge_id": "e"}),
    State(StateKind.STALE_LEASE, "epoch 2"),
    Bug(BugKind.ATTEMPT_NOT_IN_CREATED_STATE, "attempt 0"),
    Transport("postgres", TransportKind.TIMEOUT, ConnectionError("gone")),
    RequiresDevMode(),
    Unavailable("op"),
    ResourceExhausted("stream_ops", 64, 250),
    LimitReached("MAX_FLOW_NODES", 100_000),
    Timeout("cancel_flow", 5000),
    StreamDisconnected(b"\x01"),
    StreamBackpressure(),
    Contextual("renew", Transport("valkey", TransportKind.CLUSTER, "MOVED")),
]


def test_the_kinds_are_those_of_the_tables() -> None:
    counts = [len(enum) for enum in KIND_ENUMS]
    assert counts == [26, 18, 9, 35, 2, 9]
    assert [str(member) for member in ErrorClass] == [
        "terminal", "retryable", "cooperative", "informational", "advisory", "bug", "expected", "soft_error",
    ]  # fmt: skip


def test_every_kind_has_one_text_and_one_sentence() -> None:
    assert len({str(kind) for kind in KINDS}) == len(KINDS)
    assert set(SENTENCES) == set(KINDS)
    for kind in KINDS:
        assert kind.value == kind.name.lower()
        happened, advice = SENTENCES[kind]
        assert not happened.endswith(".")
        assert advice.endswith(".")


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_errors_survive_copying_and_pickling(error: EngineError) -> None:
    for twin in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert type(twin) is type(error)
        assert str(twin) == str(error)
        assert (twin.kind, twin.code, twin.detail, twin.error_class) == (
            error.kind, error.code, error.detail, error.error_class,
        )  # fmt: skip


def test_the_sentence_says_what_happened_and_what_to_do() -> None:
    text = str(Validation(ValidationKind.INVALID_INPUT, "fence_required"))
    assert text == "invalid_input: an argument was refused (fence_required). Correct the argument and call again."
    assert "{fp:0}:x" in str(SAMPLES[0])
    not_active = str(SAMPLES[3])
    for fact in ("terminal_outcome=success", "lease_epoch=3", "lifecycle_phase=terminal", "attempt_id=a-1"):
        assert fact in not_active
    assert "FF_DEV_MODE=1" in str(RequiresDevMode())
    assert "single_node=True" in str(RequiresDevMode())
    assert str(SAMPLES[-1]).startswith("cluster: renew: valkey: ")


def test_codes() -> None:
    assert NotFound("execution").code == "execution_not_found"
    assert NotFound("quota_policy").code == "quota_policy_not_found"
    assert Validation(ValidationKind.INVALID_POLICY_JSON, "malformed").code == "invalid_policy_json"
    assert Transport("pg", TransportKind.AUTH).code == "auth"
    assert RequiresDevMode().kind is TransportKind.PROTOCOL
    assert RequiresDevMode().code == "requires_dev_mode"
    assert Unavailable("x").code == "unavailable"
    assert ResourceExhausted("p", 1).code == "resource_exhausted"
    codes = [error.code for error in SAMPLES if not isinstance(error, Contextual)]
    assert len(set(codes)) == len(codes)


def test_contention_is_retryable_with_finer_hints() -> None:
    for kind in ContentionKind:
        error = Contention(kind)
        assert error.error_class is ErrorClass.RETRYABLE
        assert error.retryable
    assert Contention(ContentionKind.EXECUTION_NOT_ACTIVE).hint == "terminal"
    assert Contention(ContentionKind.EXECUTION_NOT_ELIGIBLE).hint == "informational"
    assert Contention(ContentionKind.NO_ACTIVE_LEASE).hint == "informational"
    assert Contention(ContentionKind.USE_CLAIM_RESUMED_EXECUTION).hint == "retryable_elsewhere"
    assert Contention(ContentionKind.CLAIM_GRANT_EXPIRED).hint == "retryable_new_grant"
    assert Contention(ContentionKind.RETRY_EXHAUSTED).hint == "retryable"
    assert Validation(ValidationKind.INVALID_OFFSET, "9").hint == "retryable"
    assert not Validation(ValidationKind.INVALID_OFFSET, "9").retryable


def test_state_classes_follow_the_table() -> None:
    by_class = {kind: State(kind).error_class for kind in StateKind}
    assert by_class[StateKind.BUDGET_EXCEEDED] is ErrorClass.COOPERATIVE
    informational = {kind for kind, found in by_class.items() if found is ErrorClass.INFORMATIONAL}
    assert len(informational) == 15
    assert {StateKind.DUPLICATE_SIGNAL, StateKind.GRANT_ALREADY_EXISTS, StateKind.BUDGET_SOFT_EXCEEDED} <= informational
    assert by_class[StateKind.LEASE_EXPIRED] is ErrorClass.TERMINAL


def test_other_classes() -> None:
    retryable = {kind for kind in TransportKind if Transport("pg", kind).retryable}
    assert retryable == {
        TransportKind.TRANSPORT, TransportKind.TIMEOUT, TransportKind.CLUSTER, TransportKind.BUSY_LOADING,
    }  # fmt: skip
    assert Bug(BugKind.ATTEMPT_NOT_IN_CREATED_STATE, "").error_class is ErrorClass.BUG
    assert ResourceExhausted("p", 1).retryable
    assert StreamBackpressure().error_class is ErrorClass.INFORMATIONAL
    for error in (NotFound("flow"), Unavailable("x"), Timeout("x", 1), StreamDisconnected("c")):
        assert error.error_class is ErrorClass.TERMINAL


def test_a_transport_keeps_its_cause() -> None:
    cause = ConnectionError("gone")
    error = Transport("postgres", TransportKind.TRANSPORT, cause)
    assert error.__cause__ is cause
    assert error.detail == "ConnectionError: gone"
    assert "postgres" in str(error)


def test_context_takes_the_class_of_what_it_wraps_and_wraps_few() -> None:
    assert Contextual("claim", ResourceExhausted("p", 2)).retryable
    assert not Contextual("claim", Unavailable("x")).retryable
    assert Contextual("claim", Timeout("x", 1)).code == "operation_timeout"
    with pytest.raises(TypeError):
        Contextual("claim", State(StateKind.TERMINAL))


def test_a_code_is_said_once() -> None:
    doubled = (
        Validation(ValidationKind.INVALID_TOKEN, "invalid_token"),
        Validation(ValidationKind.INVALID_INPUT, "invalid_input: state: expected one of active"),
        Contention(ContentionKind.LEASE_CONFLICT, "lease_conflict: x"),
        Transport("sqlite", TransportKind.OTHER, "other: disk"),
        Contextual("opening", Transport("sqlite", TransportKind.OTHER, "other: disk")),
        Contextual("outer", Contextual("inner", Unavailable("op"))),
    )
    for error in doubled:
        assert str(error).startswith(f"{error.code}: ")
        assert f"{error.code}: " not in str(error)[1:], str(error)
    assert "()" not in str(doubled[0])
    assert "state: expected one of active" in str(doubled[1])
