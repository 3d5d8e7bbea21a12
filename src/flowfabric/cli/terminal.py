"""How commands speak: colours where a terminal shows them, tables, ages, questions, progress."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

#: Nothing is wrapped unless the output is a terminal: a line stays a line.
ENDLESS = 100_000
#: Spaces between columns, and how far a column may be squeezed.
_GAP, _NARROWEST = 2, 5
#: How long a question waits for an answer before it looks up for Ctrl-C.
_LOOK_UP_S = 0.2

_COLOURS = {
    "completed": "green",
    "failed": "red",
    "expired": "red",
    "cancelled": "yellow",
    "skipped": "yellow",
    "active": "cyan",
    "suspended": "blue",
    "waiting": "default",
    "delayed": "magenta",
    "rate_limited": "magenta",
}


class Misused(Exception):
    """Something that was typed cannot be meant; the message says what to type instead."""


def out() -> Console:
    """Where people read: colours only if a terminal shows them, and not if NO_COLOR is set."""
    console = Console(highlight=False, emoji=False)
    if not console.is_terminal:
        console = Console(highlight=False, emoji=False, width=ENDLESS)
    return console


def err() -> Console:
    """Beside the answer: what went wrong, questions, progress."""
    return Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)


def say(text: str) -> None:
    """One line with markup; the terminal wraps it, nobody else does."""
    out().print(text, soft_wrap=True)


def say_json(document: Any) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(document, enc_hook=str), indent=2).decode() + "\n")


def say_line(document: Any) -> None:
    """One line of JSON on standard output, at once."""
    sys.stdout.write(msgspec.json.encode(document, enc_hook=str).decode() + "\n")
    sys.stdout.flush()


def told(message: str, document: Any, json: bool) -> int:
    """The end of a command that has done something: a sentence, or the same as JSON."""
    if json:
        say_json(document)
    else:
        say(message)
    return 0


# -- times -----------------------------------------------------------------------------------------------------------


def moment(at_ms: int | None) -> str:
    """A time as people read it."""
    if at_ms is None:
        return "–"
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def span(milliseconds: int) -> str:
    """A length of time in its largest unit."""
    seconds = max(milliseconds, 0) / 1000
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def age(at_ms: int | None) -> str:
    """How long ago something was."""
    return "–" if at_ms is None else span(time.time_ns() // 1_000_000 - at_ms)


# -- words -----------------------------------------------------------------------------------------------------------


def coloured(state: str) -> str:
    """A state in its colour."""
    colour = _COLOURS.get(state)
    return f"[{colour}]{state}[/{colour}]" if colour else escape(state)


def shortened(text: str, most: int = 200) -> str:
    """As much of a text as fits, on one line."""
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"


def shown(data: bytes | None, most: int = 200) -> str:
    """Stored bytes as people read them."""
    return "" if data is None else shortened(data.decode("utf-8", "replace"), most)


def show_table(titles: Sequence[str], rows: Iterable[Sequence[str]], nothing: str, *, keep: str | None = None) -> None:
    """Rows in columns, or a sentence that says there are none and what to do. Cells may hold markup; the column
    ``keep`` is never cut."""
    console = out()
    found = list(rows)
    if not found:
        say(nothing)
        return
    widths = [
        max(cell_len(title), *(cell_len(Text.from_markup(row[position]).plain) for row in found))
        for position, title in enumerate(titles)
    ]
    _squeeze(widths, titles, keep, console.width)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
    for title, width in zip(titles, widths, strict=True):
        table.add_column(title, no_wrap=True, overflow="ellipsis", width=width)
    for row in found:
        table.add_row(*row)
    console.width = sum(widths) + _GAP * len(widths)
    print_trimmed(console, table)


def _squeeze(widths: list[int], titles: Sequence[str], keep: str | None, most: int) -> None:
    """Take from the widest columns what does not fit; if that is not enough, the terminal wraps."""
    narrowed = [position for position, title in enumerate(titles) if title != keep]
    while sum(widths) + _GAP * (len(widths) - 1) > most:
        widest = max(narrowed, key=lambda position: widths[position], default=None)
        if widest is None or widths[widest] <= _NARROWEST:
            return
        widths[widest] -= 1


def print_trimmed(console: Console, what: Any) -> None:
    """Print without the spaces that columns are filled up with at the end of lines."""
    with console.capture() as captured:
        console.print(what)
    sys.stdout.write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))
    sys.stdout.flush()


# -- asking, waiting -------------------------------------------------------------------------------------------------


def confirmed(question: str, yes: bool) -> bool:
    """Whether the person says yes. Without a terminal there is nobody to ask: ``--yes`` says it."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise Misused(f"{question} Pass --yes to confirm, or --dry-run to only look.")
    console = err()
    console.print(f"{question} [bold]\\[y/N][/bold] ", end="")
    # Ctrl-C just before a read begins is not seen until the read ends: look up now and then.
    while not select.select([sys.stdin], [], [], _LOOK_UP_S)[0]:
        pass
    return sys.stdin.readline().strip().lower() in ("y", "yes")


class Advance(Protocol):
    """Says how far something is; with a name for the step that was done, that one stays on the screen."""

    def __call__(self, done: int, step: str | None = None) -> None: ...


def progress(title: str, total: int | None, json: bool = False) -> AbstractContextManager[Advance]:
    """A bar on standard error while something takes its time: call it with how far it is. Only terminals see it."""
    console = err()
    if json or not console.is_terminal:
        return nullcontext(_silent)
    return _Bar(console, title, total)


def _silent(done: int, step: str | None = None) -> None:
    """Nobody looks."""


class _Bar(AbstractContextManager[Advance]):
    def __init__(self, console: Console, title: str, total: int | None) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._progress = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
        self._task = self._progress.add_task(title, total=total)

    def __enter__(self) -> Advance:
        self._progress.start()
        return self._advance

    def _advance(self, done: int, step: str | None = None) -> None:
        if step is not None:
            self._progress.console.print(f"[green]done[/green]  {escape(step)}", highlight=False)
        self._progress.update(self._task, completed=done)

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
