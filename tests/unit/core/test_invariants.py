"""The invariants find what they are for: each broken promise, planted in rows or events that were sound."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from flowfabric.core.invariants import executions
from flowfabric.model.events import CompletionEvent, LeaseEvent, OperatorEvent
from flowfabric.model.records.executions import Attempt, Execution, Grant

NOW = 10_000
UUID = "00000000-0000-4000-8000-000000000001"
ID = f"{{fp:0}}:{UUID}"


def execution(**fields: Any) -> Execution:
    """A running execution in its second attempt."""
    sound = {
        "flow_id": None,
        "lane_id": "red",
        "required_capabilities": (),
        "attempt_index": 1,
        "lifecycle_phase": "active",
        "ownership_state": "leased",
        "eligibility_state": "not_applicable",
        "public_state": "running",
        "attempt_state": "running_attempt",
        "blocking_reason": None,
        "priority": 5,
        "created_at_ms": 1_000,
        "terminal_at_ms": None,
        "deadline_at_ms": None,
        "started_at_ms": 2_000,
        "lease_reclaim_count": 0,
        "delay_until_ms": None,
        "policy": '{"retry_policy":{"max_retries":1},"max_reclaim_count":2}',
        "namespace": "north",
        "instance_tag": None,
        "last_mutation_at_ms": 3_000,
        "total_attempt_count": 2,
        "retry_count": 1,
        "raw_fields": "{}",
        "result": None,
        "terminal_outcome": None,
        "payload": b"",
        "cancelled_by": None,
    }
    return Execution(ID, 0, UUID, **{**sound, **fields})


def attempts(**fields: Any) -> list[Attempt]:
    """The attempt that failed and the one that runs."""
    first = Attempt(ID, 0, UUID, 0, "w1", None, 1, None, 2_000, 2_500, "retry")
    return [first, replace(Attempt(ID, 0, UUID, 1, "w1", "w1-a", 2, 12_000, 3_000), **fields)]


def grant(kind: str, expires: int = NOW + 1, key: bytes = b"g") -> Grant:
    return Grant(0, key, UUID, kind, "w1", "w1-a", None, None, "[]", None, None, 1, 1, expires)


def waiting(**fields: Any) -> Execution:
    """The same execution, waiting for its second attempt."""
    states = {
        "lifecycle_phase": "runnable",
        "ownership_state": "unowned",
        "eligibility_state": "eligible_now",
        "public_state": "waiting",
        "attempt_state": "pending_retry_attempt",
        "total_attempt_count": 1,
    }
    return execution(**{**states, **fields})


def ended(**fields: Any) -> Execution:
    """The same execution, completed."""
    states = {
        "lifecycle_phase": "terminal",
        "ownership_state": "unowned",
        "public_state": "completed",
        "attempt_state": "attempt_terminal",
        "terminal_at_ms": 4_000,
        "terminal_outcome": "success",
        "result": b"r",
    }
    return execution(**{**states, **fields})


DONE = {"worker_instance_id": None, "lease_expires_at_ms": None, "outcome": "success", "terminal_at_ms": 4_000}


def found(row: Execution, tries: list[Attempt], grants: list[Grant] | None = None) -> set[str]:
    return {violation.invariant for violation in executions.check_execution(row, tries, grants or [], NOW)}


def test_sound_rows_have_no_violation() -> None:
    assert found(execution(), attempts()) == set()
    assert found(waiting(), attempts()[:1]) == set()
    assert found(waiting(eligibility_state="pending_claim"), attempts()[:1], [grant("claim")]) == set()
    assert found(ended(), attempts(**DONE)) == set()
    lost = {"ownership_state": "lease_expired_reclaimable", "attempt_state": "attempt_interrupted"}
    assert found(execution(**lost), attempts()) == set()


@pytest.mark.parametrize(
    ("broken", "row"),
    [
        ("I12", execution(lifecycle_phase="odd")),
        ("I12", execution(attempt_state="pending")),
        ("I12", execution(eligibility_state="eligible_now")),
        ("I12", execution(public_state="waiting")),
        ("I12", execution(terminal_at_ms=5_000)),
        ("I12", execution(delay_until_ms=5_000)),
        ("I10", execution(result=b"r")),
        ("I11", execution(retry_count=2)),
        ("I11", execution(lease_reclaim_count=3)),
        ("I11", execution(policy=None, lease_reclaim_count=1_001)),
        ("I11", execution(total_attempt_count=1)),
        ("I11", execution(total_attempt_count=3)),
        ("I11", execution(raw_fields='{"replay_count":11}')),
        ("I11", execution(priority=9_001)),
        ("I11", execution(attempt_index=3)),
        ("I11", execution(started_at_ms=None)),
        ("I18", execution(created_at_ms=NOW + 1)),
        ("I18", execution(started_at_ms=500)),
    ],
)
def test_broken_execution(broken: str, row: Execution) -> None:
    assert broken in found(row, attempts())


@pytest.mark.parametrize(
    ("broken", "fields"),
    [
        ("I3", {"worker_instance_id": None}),
        ("I3", {"lease_expires_at_ms": None}),
        ("I12", {"outcome": "success"}),
        ("I2", {"lease_epoch": 1}),
        ("I11", {"attempt_index": 2}),
        ("I18", {"started_at_ms": NOW + 1}),
    ],
)
def test_broken_attempt(broken: str, fields: dict[str, Any]) -> None:
    assert broken in found(execution(), attempts(**fields))


def test_broken_leases() -> None:
    first, second = attempts()
    assert "I1" in found(execution(), [replace(first, worker_instance_id="w2-a"), second])
    assert "I1" in found(waiting(), [replace(first, lease_expires_at_ms=20_000)])
    assert "I3" in found(waiting(), [replace(first, lease_expires_at_ms=20_000)])
    assert "I12" in found(waiting(eligibility_state="blocked_by_budget", public_state="rate_limited"), [first])
    assert "I18" in found(ended(terminal_at_ms=NOW + 1), attempts(**DONE))


def test_broken_grants() -> None:
    assert "I1" in found(waiting(), attempts()[:1], [grant("claim")])
    assert "I1" in found(waiting(eligibility_state="pending_claim"), attempts()[:1])
    two = [grant("reclaim"), grant("reclaim", key=b"h")]
    assert "I1" in found(execution(), attempts(), two)
    assert found(execution(), attempts(), [grant("reclaim"), grant("reclaim", NOW, b"h")]) == set()


def test_replays_are_read_from_the_document() -> None:
    assert executions.replay_count(execution(raw_fields='{"replay_count":2}')) == 2
    assert executions.replay_count(execution(raw_fields='{"replay_count":"x"}')) == 0
    assert executions.replay_count(execution(raw_fields="[]")) == 0
    assert executions.replay_count(execution(raw_fields="{")) is None
    del_raw = Execution(*(getattr(execution(), name) for name in Execution.__struct_fields__[:26]))
    assert executions.replay_count(del_raw) is None


def test_transitions() -> None:
    def moved(before: Any, after: Any) -> set[str]:
        return {violation.invariant for violation in executions.check_transition(before, after)}

    sound = (execution(), attempts())
    over = (ended(), attempts(**DONE))
    assert moved(sound, sound) == moved(sound, over) == set()
    assert "I12" in moved(sound, (execution(lane_id="blue"), attempts()))
    assert "I12" in moved(sound, (execution(started_at_ms=2_001), attempts()))
    assert "I11" in moved(sound, (execution(total_attempt_count=1), attempts()))
    assert "I11" in moved(sound, (execution(), attempts()[:1]))
    assert "I2" in moved(sound, (execution(), attempts(lease_epoch=1)))
    assert "I2" in moved((execution(), attempts(lease_id="a")), (execution(), attempts(lease_id="b")))
    assert "I6" in moved(sound, (execution(), attempts(lease_expires_at_ms=11_999)))
    assert "I8" in moved(over, sound)
    assert "I8" in moved(over, (ended(result=b"other"), attempts(**DONE)))
    replayed = waiting(raw_fields='{"replay_count":1}', total_attempt_count=2)
    assert moved(over, (replayed, attempts(**{**DONE, "outcome": None}))) == set()
    cancelled = ended(lifecycle_phase="cancelled", public_state="cancelled", result=None)
    assert "I8" in moved((cancelled, attempts(**DONE)), (replayed, attempts(**DONE)))


# -- events ----------------------------------------------------------------------------------------------------------


def lease(kind: str, index: int, epoch: int, at: int = 3_000) -> LeaseEvent:
    return LeaseEvent(0, UUID, f"memory:{UUID}:{index}:{epoch}", kind, at, "north", None)


def end(outcome: str = "success", at: int = 4_000) -> CompletionEvent:
    return CompletionEvent(0, UUID, None, outcome, "north", None, at, None)


def replay(at: int = 4_000) -> OperatorEvent:
    return OperatorEvent(0, UUID, "replayed", "{}", at, "north", None)


BEGUN = [lease("acquired", 0, 1, 2_000), lease("revoked", 0, 1, 2_500), lease("acquired", 1, 2)]
OVER = [*BEGUN, lease("renewed", 1, 2), lease("revoked", 1, 2, 4_000)]


def told(row: Execution, tries: list[Attempt], events: list[Any]) -> set[str]:
    return {violation.invariant for violation in executions.check_events(row, tries, events)}


def test_sound_logs_have_no_violation() -> None:
    other = CompletionEvent(0, "another", None, "failed", None, None, 1, None)
    assert told(execution(), attempts(), [*BEGUN, other]) == set()
    assert told(ended(), attempts(**DONE), [*OVER, end()]) == set()
    again = [*OVER, end(at=3_500), replay(3_600), end()]
    assert told(ended(), attempts(**DONE), again) == set()
    lost = execution(ownership_state="lease_expired_reclaimable", attempt_state="attempt_interrupted")
    assert told(lost, attempts(), [*BEGUN, lease("expired", 1, 2)]) == set()
    taken_over = [*BEGUN, lease("reclaimed", 1, 3)]
    assert told(execution(), attempts(lease_epoch=3), taken_over) == set()
    taken_away = [*BEGUN, lease("expired", 1, 2), lease("revoked", 1, 2)]
    assert told(waiting(), attempts()[:1], taken_away) == set()


@pytest.mark.parametrize(
    ("broken", "events"),
    [
        ("I19", [lease("acquired", 0, 1, 2_000), lease("revoked", 0, 1, 1_999), lease("acquired", 1, 2)]),
        ("I20", [*BEGUN[:2], LeaseEvent(0, UUID, "nonsense", "acquired", 3_000, None, None)]),
        ("I20", BEGUN[:2]),
        ("I20", [*BEGUN, lease("revoked", 1, 2)]),
        ("I1", [BEGUN[0], lease("acquired", 1, 2)]),
        ("I1", [*BEGUN[:2], lease("renewed", 0, 1), BEGUN[2]]),
        ("I1", [*BEGUN, lease("expired", 1, 2), lease("expired", 1, 2), lease("acquired", 1, 3)]),
        ("I2", [*BEGUN[:2], lease("acquired", 1, 1)]),
        ("I4", [*BEGUN, lease("renewed", 0, 1)]),
        ("I8", [*BEGUN, end()]),
    ],
)
def test_broken_log_of_a_running_execution(broken: str, events: list[Any]) -> None:
    assert broken in told(execution(), attempts(), events)


@pytest.mark.parametrize(
    ("broken", "events"),
    [
        ("I8", OVER),
        ("I8", [*OVER, end(), end()]),
        ("I8", [*OVER, end(at=3_900), replay(3_800), end()]),
        ("I8", [*OVER, end(at=3_000), replay(4_001), end()]),
        ("I20", [*OVER, end("failed")]),
        ("I20", [*OVER, end(at=4_001)]),
        ("I20", [*BEGUN, end()]),
    ],
)
def test_broken_log_of_an_ended_execution(broken: str, events: list[Any]) -> None:
    assert broken in told(ended(), attempts(**DONE), events)


def test_a_lease_marked_as_lost_is_in_the_log() -> None:
    lost = execution(ownership_state="lease_expired_reclaimable", attempt_state="attempt_interrupted")
    assert "I20" in told(lost, attempts(), BEGUN)


# -- all of them -----------------------------------------------------------------------------------------------------


def test_conservation() -> None:
    rows = [
        execution(),
        waiting(),
        waiting(eligibility_state="not_eligible_until_time"),
        waiting(eligibility_state="blocked_by_dependencies"),
        waiting(eligibility_state="blocked_by_operator"),
        ended(),
        ended(lifecycle_phase="suspended"),
    ]
    place = ("north", "red")
    assert executions.conservation(rows) == {
        place: {"active": 1, "ready": 1, "delayed": 1, "blocked": 2, "terminal": 1, "suspended": 1}
    }
    assert executions.check_conservation(rows, {place: 7}) == []
    assert [each.invariant for each in executions.check_conservation(rows, {place: 8})] == ["I13"]
    assert [each.invariant for each in executions.check_conservation([], {place: 1})] == ["I13"]
    for odd in (execution(lifecycle_phase="odd"), waiting(eligibility_state="not_applicable")):
        assert [each.invariant for each in executions.check_conservation([odd], {place: 1})] == ["I13"]
