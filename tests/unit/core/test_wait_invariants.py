"""The invariants of waiting find what they are for: each broken promise, planted in rows that were sound."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from flowfabric.conditions import Single
from flowfabric.core.invariants.waits import check_waits
from flowfabric.core.suspension.waits import Terms, dump
from flowfabric.model.conditions import Heard
from flowfabric.model.records.executions import Attempt, Execution, Signal, Suspension, Waitpoint
from tests.unit.core.test_invariants import ID, UUID, execution

ROW = execution(
    lifecycle_phase="suspended", ownership_state="unowned", public_state="suspended", signal_count=1,
    attempt_state="attempt_interrupted",
)  # fmt: skip
ATTEMPT = Attempt(ID, 0, UUID, 1, None, None, 3, outcome="attempt_interrupted")
TERMS = Terms(Single("a"), waitpoints=("w1",))
SUSPENSION = Suspension(0, UUID, "s", 1_000, None, "why", condition=dump(TERMS), attempt_index=1)
OPEN = Waitpoint(0, "w1", UUID, "active", None, None, waitpoint_key="a", signal_count=0)
OLD = Waitpoint(0, "w0", UUID, "closed", 900, "resumed", waitpoint_key="a", signal_count=1)


def signal(name: str = "1", waitpoint: str = "w0", sequence: int = 1, **fields: Any) -> Signal:
    row = Signal(0, UUID, name, sequence, waitpoint, "a", "go", "", "", "", None, None, None, "json", "", 1, 1, "no_op")
    return replace(row, **fields)


Rows = tuple[Execution, Attempt, Suspension | None, list[Waitpoint], list[Signal]]
SOUND: Rows = (ROW, ATTEMPT, SUSPENSION, [OPEN, OLD], [signal()])


def broken(**changes: Any) -> set[str]:
    names = ("row", "attempt", "suspension", "waitpoints", "signals")
    rows = {**dict(zip(names, SOUND, strict=True)), **changes}
    return {each.invariant for each in check_waits(*(rows[name] for name in names))}


def test_sound_rows() -> None:
    assert broken() == set()
    ended = replace(ROW, lifecycle_phase="terminal")
    assert broken(row=ended, suspension=None, waitpoints=[replace(OLD)], signals=[signal()]) == set()


SIGNALLED = [signal(), signal("2", "w1", 2, effect="resume_condition_satisfied")]
TWO = replace(ROW, signal_count=2)


@pytest.mark.parametrize(
    ("changes", "invariant"),
    [
        ({"suspension": None}, "I27"),
        ({"row": replace(ROW, lifecycle_phase="runnable")}, "I27"),
        ({"attempt": replace(ATTEMPT, worker_instance_id="w")}, "I27"),
        ({"attempt": replace(ATTEMPT, lease_expires_at_ms=9)}, "I27"),
        ({"attempt": replace(ATTEMPT, outcome=None)}, "I27"),
        ({"row": replace(ROW, lifecycle_phase="terminal"), "waitpoints": [OLD]}, "I29"),
        ({"row": replace(ROW, lifecycle_phase="terminal"), "suspension": None}, "I29"),
        ({"waitpoints": [OPEN, OLD, replace(OPEN, waitpoint_id="w2")]}, "I29"),
        ({"waitpoints": [OPEN, replace(OLD, close_reason=None)]}, "I29"),
        ({"waitpoints": [OPEN, replace(OLD, closed_at_ms=None)]}, "I29"),
        ({"signals": []}, "I28"),
        ({"signals": [signal(), signal("2", "lost", 2)]}, "I28"),
        ({"row": replace(ROW, signal_count=5)}, "I28"),
        ({"row": TWO, "waitpoints": [replace(OPEN, signal_count=1), OLD], "signals": SIGNALLED}, "I29"),
        (
            {
                "row": TWO,
                "waitpoints": [replace(OPEN, signal_count=1), OLD],
                "signals": [signal(), signal("2", "w1", 2)],
            },
            "I28",
        ),
        ({"suspension": replace(SUSPENSION, member_map=dump({"a": [Heard("9", "go", "", "")]}))}, "I28"),
        (
            {
                "row": replace(ROW, lifecycle_phase="runnable", signal_count=1),
                "suspension": replace(SUSPENSION, closed_at_ms=5, closer_signal_id="9"),
            },
            "I28",
        ),
    ],
)
def test_each_broken_promise_is_found(changes: dict[str, Any], invariant: str) -> None:
    assert invariant in broken(**changes)


def test_two_that_satisfied() -> None:
    signals = [*SIGNALLED, signal("3", "w1", 3, effect="resume_condition_satisfied")]
    assert "I29" in broken(
        row=replace(ROW, lifecycle_phase="runnable", signal_count=3),
        suspension=replace(SUSPENSION, closed_at_ms=5, closer_signal_id="2"),
        waitpoints=[replace(OPEN, state="closed", closed_at_ms=5, close_reason="resumed", signal_count=2), OLD],
        signals=signals,
    )
