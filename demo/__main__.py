"""``python -m demo``: exit code 0 if everything the engine promises was kept, 1 if not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile

from rich.console import Console

from demo.board import Board
from demo.checks import Checker
from demo.report import print_checks, print_summary, print_timeline
from demo.rows import Rows
from demo.screen import showing
from demo.story import Story
from flowfabric.engine import Engine

#: It takes about eleven seconds. One that has not ended by then will not end.
LIMIT_S = 60


async def run(console: Console, *, live: bool) -> int:
    """The whole demo on a database of its own; the exit code."""
    with tempfile.TemporaryDirectory(prefix="flowfabric-demo-") as folder:
        url = f"sqlite:///{folder}/demo.db"
        async with await Engine.open(url, single_node=True, timers=True) as engine:
            board = Board()
            rows = Rows(engine)
            story = Story(engine, board, rows)
            try:
                async with showing(board, rows, console, live=live), asyncio.timeout(LIMIT_S):
                    await story.run()
            except TimeoutError:
                console.print(f"[bold red]not done after {LIMIT_S} s:[/] {rows.counts()}")
                return 1
            checker = await Checker.read(story)
            console.print()
            print_summary(console, story, checker)
            print_timeline(console, checker)
            checks = checker.run()
            print_checks(console, story, checks)
            return 1 if any(check.violations for check in checks) else 0


def main() -> int:
    """Run the demo on the terminal, or as plain lines where there is none."""
    with contextlib.suppress(AttributeError):
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    live = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    console = Console(force_terminal=None if live else False, width=None if live else 100)
    try:
        return asyncio.run(run(console, live=live))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
