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
from flowfabric.cli.starting import placed
from flowfabric.cli.stores import NOWHERE, Where
from flowfabric.cli.terminal import Misused, say, say_json, say_line
from flowfabric.sdk.app import App
from flowfabric.sdk.checking import Report

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
        Parameter(help="Lanes to serve; the app's own if none is given.", negative=(), show_default=False),
    ] = (),
    concurrency: Annotated[int, Parameter(help="Attempts that run at once.")] = 64,
    capability: Annotated[
        tuple[str, ...],
        Parameter(help="What this worker can do (a task's needs=).", negative=(), show_default=False),
    ] = (),
    name: Annotated[str | None, Parameter(help="The worker's name in lists and logs.")] = None,
    drain_seconds: Annotated[float, Parameter(help="How long running attempts may finish after SIGTERM.")] = 30.0,
    metrics: Annotated[str | None, Parameter(help="Answer /metrics here, such as 127.0.0.1:9101.")] = None,
    verbose: Annotated[
        bool, Parameter(name=("--verbose", "-v"), negative=(), help="Say more.", show_default=False)
    ] = False,
    where: Where = NOWHERE,
) -> int:
    """Run tasks and workflows until told to stop.

    SIGTERM or Ctrl-C finishes what runs; a second one stops at once. With --json, one line of JSON says on standard
    output what it serves; logs go to standard error as always.
    """
    from flowfabric.sdk.worker.worker import run_worker

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
    """Say before a deploy whether it would surprise runs under way.

    Compares what they remember with what the code calls. Exit code 3 if something does not fit.
    """
    report = asyncio.run(_check(placed(load_app(app), where)))
    if where.json:
        say_json({"ok": report.ok, **msgspec.to_builtins(report, enc_hook=str)})
        return OK if report.ok else PROBLEMS
    for finding in report.findings:
        say(f"[yellow]remembered, not called[/yellow]  {escape(str(finding))}")
    for kind, runs in report.unknown.items():
        say(f"[yellow]unknown workflow[/yellow]  {escape(kind)}: {runs} under way, and nothing here can run them")
    if report.ok:
        say(f"[green]ok[/green]  {report.runs} runs under way remember only what the code calls")
    return OK if report.ok else PROBLEMS


async def _check(app: App) -> Report:
    from flowfabric.sdk.checking import check as compare

    async with app:
        return await compare(app)
