"""``flowfabric worker`` and ``flowfabric check``."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Annotated

import msgspec
from cyclopts import Parameter

from flowfabric.cli.application import OK, PROBLEMS, application, load_app, out, say_json
from flowfabric.sdk.app import App
from flowfabric.sdk.checking import Report

Target = Annotated[str, Parameter(help="The app: module:name, or path/to/file.py:name.")]
Url = Annotated[str | None, Parameter(help="Another store than the app's own.")]


@application.command
def worker(
    app: Target,
    *,
    lane: Annotated[tuple[str, ...], Parameter(help="Lanes to serve; the app's own if none is given.")] = (),
    concurrency: Annotated[int, Parameter(help="Attempts that run at once.")] = 64,
    capability: Annotated[tuple[str, ...], Parameter(help="What this worker can do (a task's needs=).")] = (),
    name: Annotated[str | None, Parameter(help="The worker's name in lists and logs.")] = None,
    drain_seconds: Annotated[float, Parameter(help="How long running attempts may finish after SIGTERM.")] = 30.0,
    url: Url = None,
    metrics: Annotated[str | None, Parameter(help="Answer /metrics here, such as 127.0.0.1:9101.")] = None,
    verbose: Annotated[bool, Parameter(help="Say more.")] = False,
) -> int:
    """Run tasks and workflows until told to stop. SIGTERM finishes what runs; a second one stops at once."""
    from flowfabric.sdk.worker.worker import run_worker

    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    run_worker(
        _at(load_app(app), url),
        lanes=lane or None,
        concurrency=concurrency,
        capabilities=capability,
        name=name,
        drain_grace=timedelta(seconds=drain_seconds),
        metrics_address=metrics,
    )
    return OK


@application.command
def check(app: Target, *, url: Url = None, json: Annotated[bool, Parameter(help="Answer as JSON.")] = False) -> int:
    """Compare what runs under way remember with what the code calls. Exit code 3 if a deploy would surprise them."""
    report = asyncio.run(_check(_at(load_app(app), url)))
    if json:
        say_json({"ok": report.ok, **msgspec.to_builtins(report, enc_hook=str)})
        return OK if report.ok else PROBLEMS
    console = out()
    for finding in report.findings:
        console.print(f"[yellow]remembered, not called[/yellow]  {finding}", soft_wrap=True)
    for kind, runs in report.unknown.items():
        console.print(f"[yellow]unknown workflow[/yellow]  {kind}: {runs} under way, and nothing here can run them")
    if report.ok:
        console.print(f"[green]ok[/green]  {report.runs} runs under way remember only what the code calls")
    return OK if report.ok else PROBLEMS


async def _check(app: App) -> Report:
    from flowfabric.sdk.checking import check as compare

    async with app:
        return await compare(app)


def _at(app: App, url: str | None) -> App:
    if url is not None:
        app.url = url
    return app
