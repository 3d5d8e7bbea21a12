"""Invariants of the log of events: its numbers, its times, and the ends it tells of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from flowfabric.core.invariants.executions import outcome_of, replay_count
from flowfabric.model import states as lit
from flowfabric.model.counting import counted
from flowfabric.model.events import CompletionEvent, OperatorEvent
from flowfabric.model.reads.examine import Violation
from flowfabric.model.records.executions import Attempt, Execution

#: Where numbers go on higher up: the last one below, and the one that the next event comes behind.
Breaks: TypeAlias = Sequence[tuple[int, int]]


def check_bounds(log: str, trimmed: int, top: int, last: int, breaks: Breaks = (), *, dense: bool) -> list[Violation]:
    """The numbers of one log: how far it was deleted, the highest there is, and the last one handed out."""
    found: list[Violation] = []
    if top > last or trimmed > last:
        detail = (
            f"the last number handed out is {last}, but there are numbers up to {max(top, trimmed)}: readers past "
            "that number will miss new events"
        )
        found.append(Violation("I19", log, detail))
    elif dense and _across(max(top, trimmed), breaks) < last:
        found.append(Violation("I34", log, f"events {max(top, trimmed) + 1} to {last} are missing at its end"))
    return found


def _across(number: int, breaks: Breaks) -> int:
    """What the event behind a number comes behind, if the numbers break off there."""
    for end, start in breaks:
        if end == number:
            number = start
    return number


def check_numbers(log: str, after: int, numbers: Sequence[int], breaks: Breaks = ()) -> list[Violation]:
    """Events that follow a number without a break but for those that are known, where numbers are handed out so."""
    found: list[Violation] = []
    expected = after + 1
    for number in (each for each in numbers if each > after):
        if number > expected:
            expected = _across(expected - 1, breaks) + 1
        if number > expected:
            missing = f"event {expected}" if number == expected + 1 else f"events {expected} to {number - 1}"
            found.append(Violation("I34", log, f"{missing} missing"))
        expected = number + 1
    return found


def check_times(log: str, events: Iterable[tuple[int, Any]]) -> list[Violation]:
    """Numbered events of one log, in order: the times of one execution never fall. What operators did is dated as they
    said."""
    latest: dict[tuple[int, str], tuple[int, int]] = {}
    found: list[Violation] = []
    for number, event in events:
        if isinstance(event, OperatorEvent):
            continue
        about = (event.partition, getattr(event, "uuid", None) or event.subject)
        before, at = latest.get(about, (0, 0))
        if event.occurred_at_ms < at:
            detail = f"event {number} of {about[1]} has an earlier time than event {before}, which comes first"
            found.append(Violation("I19", log, detail))
        else:
            latest[about] = (number, event.occurred_at_ms)
    return found


def check_outcome(execution: Execution, attempt: Attempt | None, event: CompletionEvent) -> list[Violation]:
    """An end as it is told against the end as it was; ends before a replay are only told."""
    if execution.lifecycle_phase not in lit.ENDED_PHASES or event.occurred_at_ms != execution.terminal_at_ms:
        return []
    outcome = outcome_of(execution, attempt)
    if event.outcome == outcome:
        return []
    return [Violation("I20", execution.execution_id, f"it ended as {outcome}, and is announced as {event.outcome}")]


def check_ends(execution: Execution, told: int, last_ms: int | None, since_ms: int) -> list[Violation]:
    """How many ends of an execution the log tells of, and when the last one was. Ends before ``since_ms`` may have
    been deleted by age."""
    found: list[Violation] = []
    ended, subject = execution.lifecycle_phase in lit.ENDED_PHASES, execution.execution_id
    replays = replay_count(execution)
    if replays is not None and told > replays + ended:
        found.append(
            Violation("I8", subject, f"{counted(told, 'end')} announced, {counted(replays, 'replay')}, ended: {ended}")
        )
    over = execution.terminal_at_ms
    if ended and over is not None and over >= since_ms and last_ms != over:
        detail = "it has ended, and its end is not announced"
        if last_ms is not None:
            detail = f"it ended at {over}, and the last end announced was at {last_ms}"
        found.append(Violation("I20", subject, detail))
    return found
