"""``python -m demo``: exit code 0 if everything the engine promises was kept, 1 if not."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import tempfile

from rich.console import Console

from demo.board import Board
from demo.checks import Check, Checker
from demo.flow_checks import FlowChecker
from demo.flow_scene import FlowScene
from demo.flow_screen import showing_flow
from demo.report import print_checks, print_summary, print_timeline, print_verdict
from demo.rows import Rows
from demo.scenario import Story
from demo.screen import showing
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
            print_checks(console, checks)
            more = await _flow(console, engine, rows, live=live)
            return print_verdict(console, story, [*checks, *more])


async def _flow(console: Console, engine: Engine, rows: Rows, *, live: bool) -> list[Check]:
    """The second scene; its checks."""
    console.print()
    scene = FlowScene(engine, Board())
    try:
        async with showing_flow(scene, console, live=live), asyncio.timeout(LIMIT_S):
            await scene.run()
    except TimeoutError:
        return [Check("the flow ends", [f"not after {LIMIT_S} s"])]
    checks = await FlowChecker(scene, rows).run()
    console.print()
    print_checks(console, checks)
    return checks


def main() -> int:
    """Run the demo on the terminal, or as plain lines without one."""
    with contextlib.suppress(AttributeError):
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    # What is refused here is refused on purpose, and told on the screen.
    logging.getLogger("flowfabric").addHandler(logging.NullHandler())
    live = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    console = Console(force_terminal=None if live else False, width=None if live else 100)
    try:
        return asyncio.run(run(console, live=live))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
