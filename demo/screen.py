"""Draws the board: in place on a terminal, as plain lines anywhere else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from rich import box
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from demo.board import Board, Happening
from demo.jobs import Attempt
from demo.plan import FEATURED, JOBS
from demo.rows import Rows
from demo.worker import Worker

DRAW_EVERY_S = 0.08
TELL_EVERY_S = 2.0
WIDEST = 144
#: From this width on the stream, which needs so many columns, stands beside the happenings.
SIDE_BY_SIDE = 136
STREAM_WIDTH = 63

#: The public states that occur here and their colours; the bar shows them in this order.
ENDED = {"completed": "green", "failed": "red", "expired": "dark_orange", "cancelled": "magenta"}
OPEN = {"running": "bright_cyan", "waiting": "yellow", "delayed": "blue"}
STATES = {**ENDED, **OPEN}
UNSEEN = "grey50"
#: Shades, so that the bar can be read without colours too.
GLYPHS = {"running": "▓", "waiting": "▒", "delayed": "░"}
WRITERS = ("bold cyan", "bold green")


@contextlib.asynccontextmanager
async def showing(board: Board, rows: Rows, console: Console, *, live: bool) -> AsyncIterator[None]:
    """Show the board while the block runs."""
    if live:
        screen = _LiveScreen(board, console)
        with Live(console=console, auto_refresh=False, get_renderable=screen.draw) as picture:
            async with _repeating(lambda: _refresh(board, rows, picture), DRAW_EVERY_S):
                yield
            _refresh(board, rows, picture)
    else:
        board.listener = lambda happening: console.print(happening_line(happening), soft_wrap=True)
        async with _repeating(lambda: _tell(board, rows, console), TELL_EVERY_S):
            yield


def _refresh(board: Board, rows: Rows, picture: Live) -> None:
    board.counts = rows.counts()
    picture.refresh()


def _tell(board: Board, rows: Rows, console: Console) -> None:
    board.counts = rows.counts()
    told = ", ".join(f"{board.counts[state]} {state}" for state in STATES if board.counts.get(state))
    console.print(f"{board.elapsed_s:5.1f} s  · {told}", soft_wrap=True, highlight=False)


@contextlib.asynccontextmanager
async def _repeating(act: Callable[[], None], every_s: float) -> AsyncIterator[None]:
    async def repeat() -> None:
        while True:
            await asyncio.sleep(every_s)
            act()

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def happening_line(happening: Happening) -> Text:
    """When, and what."""
    return Text.assemble((f"{happening.at_s:5.1f} s  ", "dim"), (happening.text, happening.style))


class _LiveScreen:
    """One picture of the board, made to fit the terminal."""

    def __init__(self, board: Board, console: Console) -> None:
        self._board = board
        self._console = console

    def draw(self) -> RenderableType:
        width = min(self._console.width, WIDEST)
        height = self._console.height
        workers = len(self._board.workers)
        # The bar, the workers and the frames around them take this much; streams and happenings share the rest.
        left = height - 1 - (5 + workers + 2)
        if width >= SIDE_BY_SIDE:
            lines = max(3, min(left - 2, 13))
            lower: RenderableType = Columns(
                (self._stream(lines, STREAM_WIDTH), self._happenings(lines, width - STREAM_WIDTH)), padding=0
            )
        else:
            stream = max(3, min((left - 4) // 2, 12))
            lower = Group(self._stream(stream, width), self._happenings(max(3, min(left - 4 - stream, 13)), width))
        return Group(self._executions(width), self._workers(width), lower)

    def _executions(self, width: int) -> Panel:
        counts = self._board.counts
        title = "[bold]FlowFabric[/]  a SQLite file, no server"
        return Panel(
            Group(_bar(counts, width - 4), _legend("open ", OPEN, counts), _legend("ended", ENDED, counts)),
            title=title,
            title_align="left",
            subtitle=f"{self._board.elapsed_s:4.1f} s",
            subtitle_align="right",
            width=width,
            box=box.ROUNDED,
            border_style="dim",
        )

    def _workers(self, width: int) -> Panel:
        table = Table.grid(padding=(0, 2))
        table.add_column(width=6)
        table.add_column(width=5, style="dim")
        table.add_column(width=8, justify="right")
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        table.expand = True
        for worker in self._board.workers:
            name = Text(worker.name, "dim strike" if worker.dead else "bold")
            done = Text(f"{worker.done:>3} done", "dim" if worker.dead else "")
            table.add_row(name, " ".join(worker.capabilities) or "–", done, _at_work(worker))
        return Panel(table, title="workers", title_align="left", width=width, box=box.ROUNDED, border_style="dim")

    def _stream(self, lines: int, width: int) -> Panel:
        shown = Text(no_wrap=True, overflow="ellipsis")
        writers = list(dict.fromkeys(writer for writer, _ in self._board.tail))
        for writer, text in self._board.tail[-lines:]:
            style = WRITERS[writers.index(writer) % len(WRITERS)]
            shown.append(f"{writer:<6} ", style).append(text + "\n")
        return _box(shown, f"stream of {FEATURED.title}, live", lines, width)

    def _happenings(self, lines: int, width: int) -> Panel:
        shown = Text(no_wrap=True, overflow="ellipsis")
        for happening in self._board.happenings[-lines:]:
            shown.append_text(happening_line(happening)).append("\n")
        return _box(shown, "happenings", lines, width)


def _box(text: Text, title: str, lines: int, width: int) -> Panel:
    text.rstrip()
    return Panel(
        text, title=title, title_align="left", width=width, height=lines + 2, box=box.ROUNDED, border_style="dim"
    )


def _bar(counts: dict[str, int], width: int) -> Text:
    """The plan as one bar; every state takes its share of the width."""
    bar = Text(no_wrap=True)
    drawn, passed = 0, 0
    for state, style in STATES.items():
        passed += counts.get(state, 0)
        until = passed * width // len(JOBS)
        bar.append(GLYPHS.get(state, "█") * (until - drawn), style)
        drawn = until
    return bar.append("·" * (width - drawn), UNSEEN)


def _legend(title: str, states: dict[str, str], counts: dict[str, int]) -> Text:
    legend = Text(f"{title}  ", "dim", no_wrap=True)
    for state, style in states.items():
        count = counts.get(state, 0)
        legend.append(f"■ {state} ", style if count else "dim").append(f"{count:<5}", "bold" if count else "dim")
    return legend


def _at_work(worker: Worker) -> Text:
    if worker.dead:
        return Text("killed", "bold red")
    attempts = [attempt for attempt in worker.attempts.values() if attempt is not None]
    if not attempts:
        return Text("waits for work", "dim")
    shown = Text()
    for attempt in attempts:
        shown.append("  " if shown else "").append_text(_doing(attempt))
    return shown


def _doing(attempt: Attempt) -> Text:
    percent = f" {attempt.percent} %" if attempt.percent else ""
    index = attempt.handle.payload.attempt_index
    return Text.assemble(attempt.job.title, (percent, "cyan"), (f" attempt {index + 1}" if index else "", "yellow"))
