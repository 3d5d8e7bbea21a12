"""What is printed at the end: the sum, the life of one execution, and whether every promise was kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from demo.checks import Check, Checker
from demo.plan import FEATURED, JOBS
from demo.rows import epoch_of
from demo.scenario import Story
from demo.screen import STATES
from flowfabric.model.events import LeaseEvent

SHOWN_VIOLATIONS = 10


def print_summary(console: Console, story: Story, checker: Checker) -> None:
    """How each kind of work ended, and who did it."""
    endings = ("completed", "failed", "cancelled", "expired")
    table = _table("what came of it")
    for heading in ("work", "all", *endings, "attempts", "leases"):
        table.add_column(heading, justify="left" if heading == "work" else "right")
    for kind in dict.fromkeys(job.kind for job in JOBS):
        found = [stored.execution for job, stored in checker.jobs if job.kind == kind]
        counts = [sum(execution.public_state == ending for execution in found) for ending in endings]
        cells = [
            Text(str(count) if count else "", STATES[ending]) for ending, count in zip(endings, counts, strict=True)
        ]
        attempts = sum(execution.total_attempt_count for execution in found)
        leases = sum(event.event_type == "acquired" for each in found for event in checker.leases.get(each.uuid, ()))
        table.add_row(kind, str(len(found)), *cells, str(attempts), str(leases))
    console.print(table)
    done = ", ".join(f"{worker.name} {worker.done}" for worker in story.board.workers)
    console.print(f"  Attempts brought to an end: {done}.\n", highlight=False)


def _table(title: str) -> Table:
    return Table(box=box.SIMPLE_HEAD, collapse_padding=True, title=title, title_justify="left", title_style="bold")


class Line(NamedTuple):
    """One line of an execution's life."""

    at_ms: int
    what: str
    worker: str
    epoch: str
    note: str
    style: str = ""


def print_timeline(console: Console, checker: Checker) -> None:
    """The life of the execution that changed hands, from the outboxes."""
    execution = next(stored.execution for job, stored in checker.jobs if job == FEATURED)
    table = _table(f"the life of {FEATURED.title}, {execution.execution_id}")
    for heading in ("after", "event", "worker", "epoch", ""):
        table.add_column(heading, justify="right" if heading in ("after", "epoch") else "left")
    lines = [
        Line(execution.created_at_ms, "created", "", "", f"priority {FEATURED.priority}, needs {FEATURED.needs[0]!r}"),
        *_lease_lines(checker.leases[execution.uuid]),
        *(
            Line(event.occurred_at_ms, "ended", "", "", event.outcome, "bold green")
            for event in checker.ends[execution.uuid]
        ),
    ]
    for line in lines:
        after = f"{(line.at_ms - execution.created_at_ms) / 1000:.3f} s"
        table.add_row(after, line.what, line.worker, line.epoch, line.note, style=line.style)
    console.print(table)
    console.print("  The refused call of the killed worker is not in it: a refusal changes nothing.\n", highlight=False)


def _lease_lines(events: list[LeaseEvent]) -> Iterator[Line]:
    """The lease history in words; renewals in a row become one line."""
    renewals, lost = 0, ""
    for position, event in enumerate(events):
        at_ms, worker, epoch = event.occurred_at_ms, event.worker_instance_id or "", str(epoch_of(event))
        if event.event_type == "renewed":
            renewals += 1
            if position + 1 == len(events) or events[position + 1].event_type != "renewed":
                yield Line(at_ms, "renewed", worker, epoch, f"{renewals} times", "dim")
                renewals = 0
        elif event.event_type == "expired":
            lost = epoch
            yield Line(at_ms, "lease lost", worker, epoch, "not renewed; back in the queue", "red")
        elif event.event_type == "acquired" and lost:
            yield Line(at_ms, "lease begins", worker, epoch, f"taken over; epoch {lost} is void", "green")
        elif event.event_type == "acquired":
            yield Line(at_ms, "lease begins", worker, epoch, "")
        else:
            yield Line(at_ms, "lease ends", worker, epoch, "given back with the result")


def print_checks(console: Console, checks: list[Check]) -> None:
    """Every promise, kept or broken."""
    console.print("[bold]checked in the stored rows[/]\n")
    table = Table.grid(padding=(0, 2))
    for promise, violations in checks:
        table.add_row("", Text("broken", "bold red") if violations else Text("held", "green"), promise)
        for violation in violations[:SHOWN_VIOLATIONS]:
            table.add_row("", "", Text(violation, "red"))
        if len(violations) > SHOWN_VIOLATIONS:
            table.add_row("", "", Text(f"… and {len(violations) - SHOWN_VIOLATIONS} more", "red"))
    console.print(table)


def print_verdict(console: Console, story: Story, checks: list[Check]) -> int:
    """The last lines, and the exit code."""
    broken = sum(bool(check.violations) for check in checks)
    told = f"[bold red]{broken} of {len(checks)} promises were broken[/]" if broken else "[bold]Everything held.[/]"
    console.print(f"\n{told} {len(JOBS)} executions and one flow in {story.board.elapsed_s:.1f} s.", highlight=False)
    console.print("How a worker looks in code: demo/worker.py. Where to go on: docs/engine.md.", highlight=False)
    return 1 if broken else 0
