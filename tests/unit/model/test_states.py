"""The state model: literals, readings of stored texts, derivations and legal combinations."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from itertools import product

import pytest
from hypothesis import given, strategies as st

from flowfabric.model import states
from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.states import (
    AttemptLifecycle,
    AttemptState,
    BlockingReason,
    EligibilityState,
    LifecyclePhase,
    OwnershipState,
    PublicState,
    StateVector,
    TerminalOutcome,
    derive_public_state,
    derive_terminal_outcome,
    legal,
)


def test_every_enum_value_is_its_name() -> None:
    enums = [
        LifecyclePhase, OwnershipState, EligibilityState, BlockingReason, TerminalOutcome, AttemptState, PublicState,
        AttemptLifecycle, states.AttemptType, states.LaneState,
    ]  # fmt: skip
    assert [len(enum) for enum in enums] == [5, 4, 9, 17, 6, 7, 12, 7, 5, 4]
    for enum in enums:
        for member in enum:
            assert member.value == member.name.lower()


def test_constants_are_plain_texts() -> None:
    constants = {name: value for name, value in vars(states).items() if name.isupper() and not name.startswith("_")}
    assert len(constants) > 80
    assert {type(value) for value in constants.values()} == {str, frozenset}


READINGS: list[tuple[Callable[[str], StrEnum], str, type[StrEnum], dict[str, str]]] = [
    (states.canonical_phase, "lifecycle_phase", LifecyclePhase,
     {"cancelled": "terminal", "pending": "runnable", "eligible": "runnable", "blocked": "runnable"}),
    (states.canonical_ownership, "ownership_state", OwnershipState, {"released": "unowned"}),
    (states.canonical_eligibility, "eligibility_state", EligibilityState,
     {"pending_claim": "eligible_now", "cancelled": "not_applicable"}),
    (states.canonical_public_state, "public_state", PublicState,
     {"running": "active", "claimed": "active", "pending": "waiting", "success": "completed"}),
    (states.canonical_attempt_state, "attempt_state", AttemptState,
     {"pending": "pending_first_attempt", "initial": "pending_first_attempt", "pending_claim": "pending_first_attempt",
      "running": "running_attempt", "cancelled": "attempt_terminal", "terminated": "attempt_terminal",
      "terminal_failed": "attempt_terminal"}),
    (states.canonical_blocking_reason, "blocking_reason", BlockingReason, {"": "none"}),
]  # fmt: skip


@pytest.mark.parametrize(("read", "column", "enum", "aliases"), READINGS, ids=[row[1] for row in READINGS])
def test_stored_literals(
    read: Callable[[str], StrEnum], column: str, enum: type[StrEnum], aliases: dict[str, str]
) -> None:
    for member in enum:
        assert read(str(member)) is member
    for text, canonical in aliases.items():
        assert read(text) is enum(canonical)
    for unknown in ("Nonsense", "ACTIVE"):
        with pytest.raises(Validation) as caught:
            read(unknown)
        assert caught.value.kind is ValidationKind.CORRUPTION
        assert column in caught.value.detail
        assert unknown in caught.value.detail


def test_null_blocking_reason_and_attempt_outcomes() -> None:
    assert states.canonical_blocking_reason(None) is BlockingReason.NONE
    assert states.canonical_attempt_outcome("failure") == "failed"
    assert states.canonical_attempt_outcome("anything") == "anything"
    assert states.canonical_attempt_outcome(None) is None


@pytest.mark.parametrize(
    ("phase", "eligibility", "outcome", "stored", "derived"),
    [
        ("terminal", "not_applicable", "success", None, "completed"),
        ("terminal", "not_applicable", "failed", None, "failed"),
        ("terminal", "not_applicable", "cancelled", None, "cancelled"),
        ("terminal", "not_applicable", "expired", None, "expired"),
        ("terminal", "not_applicable", "skipped", None, "skipped"),
        ("terminal", "not_applicable", "none", None, "failed"),
        ("cancelled", "cancelled", "none", None, "cancelled"),
        ("suspended", "not_applicable", "none", None, "suspended"),
        ("active", "not_applicable", "none", None, "active"),
        ("runnable", "eligible_now", "none", None, "waiting"),
        ("runnable", "eligible_now", "none", "resumable", "resumable"),
        ("runnable", "pending_claim", "none", "resumable", "resumable"),
        ("runnable", "not_eligible_until_time", "none", "resumable", "delayed"),
        ("runnable", "not_eligible_until_time", "none", None, "delayed"),
        ("runnable", "blocked_by_dependencies", "none", None, "waiting_children"),
        ("runnable", "blocked_by_budget", "none", None, "rate_limited"),
        ("runnable", "blocked_by_quota", "none", None, "rate_limited"),
        ("runnable", "blocked_by_route", "none", None, "waiting"),
        ("runnable", "blocked_by_lane_state", "none", None, "waiting"),
        ("runnable", "blocked_by_operator", "none", None, "waiting"),
        ("runnable", "not_applicable", "none", None, "waiting"),
        ("submitted", "eligible_now", "none", None, "waiting"),
        ("submitted", "not_eligible_until_time", "none", None, "delayed"),
    ],
)
def test_public_state(phase: str, eligibility: str, outcome: str, stored: str | None, derived: str) -> None:
    assert derive_public_state(phase, eligibility, outcome, stored) is PublicState(derived)


@given(st.text(), st.text(), st.text(), st.none() | st.text())
def test_public_state_never_raises(phase: str, eligibility: str, outcome: str, stored: str | None) -> None:
    assert derive_public_state(phase, eligibility, outcome, stored) in PublicState


@pytest.mark.parametrize(
    ("phase", "attempt", "raw", "public", "derived"),
    [
        ("active", "success", "success", "completed", "none"),
        ("runnable", "failed", None, None, "none"),
        ("cancelled", "success", "failed", "completed", "cancelled"),
        ("terminal", "success", "failed", "failed", "success"),
        ("terminal", "failed", None, None, "failed"),
        ("terminal", "failure", None, None, "failed"),
        ("terminal", "cancelled", None, None, "cancelled"),
        ("terminal", "expired", None, None, "expired"),
        ("terminal", "skipped", None, None, "skipped"),
        ("terminal", None, "expired", "failed", "expired"),
        ("terminal", "retry", "none", "completed", "success"),
        ("terminal", None, None, "success", "success"),
        ("terminal", None, "", "cancelled", "cancelled"),
        ("terminal", None, None, "running", "none"),
        ("terminal", None, None, None, "none"),
        ("terminal", "waiting_children", "odd", "odd", "none"),
    ],
)
def test_terminal_outcome(phase: str, attempt: str | None, raw: str | None, public: str | None, derived: str) -> None:
    assert derive_terminal_outcome(phase, attempt, raw, public) is TerminalOutcome(derived)


def vector(phase: str, ownership: str, eligibility: str, attempt: str, outcome: str, public: str = "") -> StateVector:
    return StateVector(
        LifecyclePhase(phase),
        OwnershipState(ownership),
        EligibilityState(eligibility),
        BlockingReason.NONE,
        TerminalOutcome(outcome),
        AttemptState(attempt),
        PublicState(public) if public else derive_public_state(phase, eligibility, outcome),
    )


def test_consistency() -> None:
    good = vector("runnable", "unowned", "eligible_now", "pending_first_attempt", "none")
    assert good.is_consistent()
    assert vector("runnable", "unowned", "eligible_now", "attempt_interrupted", "none", "resumable").is_consistent()
    assert not vector("active", "leased", "not_applicable", "running_attempt", "none", "waiting").is_consistent()
    assert not vector("active", "leased", "not_applicable", "running_attempt", "none", "resumable").is_consistent()


BLOCKS = [str(state) for state in EligibilityState if state is not EligibilityState.NOT_APPLICABLE]
LEGAL = {
    *product(["submitted"], ["unowned"], BLOCKS[:2], ["pending_first_attempt"], ["none"]),
    *product(
        ["runnable"], ["unowned"], BLOCKS,
        ["pending_first_attempt", "pending_retry_attempt", "pending_replay_attempt", "attempt_interrupted"], ["none"],
    ),
    ("active", "leased", "not_applicable", "running_attempt", "none"),
    ("active", "lease_expired_reclaimable", "not_applicable", "attempt_interrupted", "none"),
    ("active", "lease_revoked", "not_applicable", "attempt_interrupted", "none"),
    ("suspended", "unowned", "not_applicable", "attempt_interrupted", "none"),
    *product(
        ["terminal"], ["unowned"], ["not_applicable"], ["attempt_terminal", "none", "pending_first_attempt"],
        ["success", "failed", "cancelled", "expired", "skipped"],
    ),
}  # fmt: skip


def test_legal_is_exactly_the_table() -> None:
    every = product(LifecyclePhase, OwnershipState, EligibilityState, AttemptState, TerminalOutcome)
    found = {tuple(map(str, row)) for row in every if legal(vector(*row))}
    assert found == LEGAL


def test_attempt_lifecycle_ends() -> None:
    assert [str(life) for life in AttemptLifecycle if life.is_terminal] == [
        "ended_success", "ended_failure", "ended_cancelled", "interrupted_reclaimed",
    ]  # fmt: skip
