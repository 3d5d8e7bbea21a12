"""``flowfabric worker`` and ``flowfabric check``."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from datetime import timedelta
from typing import Annotated

import msgspec
from cyclopts import Parameter
from rich.markup import escape

from flowfabric.cli.application import OK, OPERATING, PROBLEMS, RUNNING, application, command, load_app
from flowfabric.cli.commands.start import placed
from flowfabric.cli.run_ids import shortened
from flowfabric.cli.store_option import NOWHERE, Where
from flowfabric.cli.terminal import Misused, say, say_json, say_line
from flowfabric.sdk.app import App
from flowfabric.sdk.definitions.check import Report

Target = Annotated[str, Parameter(help="The app: module:name, or path/to/file.py:name.")]


@command(
    application,
    group=RUNNING,
    shows=(
        "flowfabric worker shop.tasks:app",
        "flowfabric worker hello.py --concurrency 8 --lane default --lane reports",
        "flowfabric worker hello.py --url https://flowfabric.example.com",
    ),
)
def worker(
    app: Target,
    /,
    *,
    lane: Annotated[
        tuple[str, ...],
        Parameter(help="Lanes to serve; by default the app's own.", negative=(), show_default=False),
    ] = (),
    concurrency: Annotated[int, Parameter(help="Attempts to run at the same time.")] = 64,
    capability: Annotated[
        tuple[str, ...],
        Parameter(help="Capabilities this worker offers (a task's needs=).", negative=(), show_default=False),
    ] = (),
    name: Annotated[str | None, Parameter(help="The worker's name in lists and logs.")] = None,
    drain_seconds: Annotated[
        float, Parameter(help="How long running attempts may take to finish after SIGTERM.")
    ] = 20.0,
    metrics: Annotated[str | None, Parameter(help="Serve /metrics at this address, such as 127.0.0.1:9101.")] = None,
    verbose: Annotated[
        bool, Parameter(name=("--verbose", "-v"), negative=(), help="Print more log lines.", show_default=False)
    ] = False,
    where: Where = NOWHERE,
) -> int:
    """Run tasks and workflows until stopped.

    SIGTERM or Ctrl-C finishes running attempts first; a second one stops at once. With --json, one line of JSON on
    standard output says what it serves; logs go to standard error.
    """
    from flowfabric.sdk.worker.program import run_worker

    speak(verbose)
    target = placed(load_app(app), where, patient=True)
    if where.json:
        say_line({"app": target.namespace, "lanes": lane or (target.lane,), "kinds": sorted(target.definitions)})
    run_worker(
        target,
        lanes=lane or None,
        concurrency=concurrency,
        capabilities=capability,
        name=name,
        drain_grace=timedelta(seconds=drain_seconds),
        metrics_address=metrics,
    )
    return OK


def speak(verbose: bool) -> None:
    """Logs go to standard error: for people, or as JSON where FF_LOG says what is wanted."""
    if text := os.environ.get("FF_LOG"):
        from flowfabric.telemetry.logs import BadFilter, configure

        try:
            configure("debug" if verbose else text, sys.stderr)
        except BadFilter as error:
            raise Misused(str(error)) from None
        return
    level = logging.DEBUG if verbose else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


@command(
    application,
    group=OPERATING,
    shows=("flowfabric check shop.tasks:app", "flowfabric check hello.py --url postgresql://… --json"),
)
def check(app: Target, /, *, where: Where = NOWHERE) -> int:
    """Show before a deploy which runs in progress it would break.

    Reads their input and recorded steps with the current code, without running it. Exit code 3 if a run would fail or
    lose something. Also lists questions that would be asked again, and calls that would be made late.
    """
    report = asyncio.run(_check(placed(load_app(app), where)))
    if where.json:
        say_json({"ok": report.ok, **msgspec.to_builtins(report, enc_hook=str)})
        return OK if report.ok else PROBLEMS
    for headline, lines in (
        ("would fail", report.failing),
        ("waits for a removed call", report.waiting),
        ("recorded, no longer called", report.findings),
    ):
        for each in lines:
            say(f"[yellow]{headline}[/yellow]  {escape(shortened(str(each)))}")
    for kind, runs in report.unknown.items():
        say(f"[yellow]unknown workflow[/yellow]  {escape(kind)}: {runs} in progress, and this code cannot run them")
    for headline, notes in (("would ask again", report.asked), ("would run in old runs", report.added)):
        for note in notes:
            say(f"[cyan]{headline}[/cyan]  {escape(shortened(str(note)))}")
    if report.ok:
        say(f"[green]ok[/green]  this code can continue all workflows in progress: {report.runs}")
    return OK if report.ok else PROBLEMS


async def _check(app: App) -> Report:
    from flowfabric.sdk.definitions.check import check as compare

    async with app:
        return await compare(app)
