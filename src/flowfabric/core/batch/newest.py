"""How late it is at least, from the records that a batch is decided upon: times of one execution never run backwards,
whichever process writes them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from flowfabric.core.batch.view import View
from flowfabric.model.limits import CLOCK_STEP_MS
from flowfabric.model.records.executions import Attempt, Execution, Suspension


def written_ms(view: View) -> int:
    """The newest time that a process has written into executions of the batch: it had heard the store's clock."""
    return max((at for at in _of_executions(view.loaded(Execution)) if at is not None), default=0)


def newest_ms(view: View, now: int) -> int:
    """The newest time at which something happened to an execution of the batch; 0 if nothing did. A time further ahead
    than clocks differ is no clue: the store's clock was set right since, or somebody wrote the row by hand."""
    times = chain(
        _of_executions(view.decided_upon(Execution)),
        _of_attempts(view.decided_upon(Attempt)),
        _of_suspensions(view.decided_upon(Suspension)),
    )
    most = now + CLOCK_STEP_MS
    return max((at for at in times if at is not None and at <= most), default=0)


def _of_executions(found: list[Execution]) -> Iterator[int | None]:
    for each in found:
        yield each.created_at_ms
        yield each.terminal_at_ms
        if each.started_at_ms is not None:
            yield each.started_at_ms
            # Before it starts this may be what a caller said.
            yield each.last_mutation_at_ms


def _of_attempts(found: list[Attempt]) -> Iterator[int | None]:
    for each in found:
        yield each.started_at_ms
        yield each.terminal_at_ms


def _of_suspensions(found: list[Suspension]) -> Iterator[int | None]:
    for each in found:
        yield each.suspended_at_ms
        yield each.closed_at_ms
