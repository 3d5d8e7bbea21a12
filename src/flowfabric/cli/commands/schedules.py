"""``flowfabric schedules``."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from cyclopts import App as Commands, Parameter
from rich.markup import escape

from flowfabric.cli.application import OK, OPERATING, application, command, examples
from flowfabric.cli.store_option import NOWHERE, Namespace, Where, on_store
from flowfabric.cli.terminal import moment, say_json, show_table, told
from flowfabric.sdk.app import App
from flowfabric.sdk.paging import pages

schedules = Commands(
    name="schedules",
    help="Schedules: list them, pause, resume, trigger, delete.",
    help_epilogue=examples("flowfabric schedules", "flowfabric schedules trigger 'nightly report'"),
    group=OPERATING,
    group_commands="Commands",
)
application.command(schedules)

ScheduleName = Annotated[str, Parameter(help="The schedule's name.")]


@schedules.default
def list_schedules(*, namespace: Namespace = "default", where: Where = NOWHERE) -> int:
    """List the schedules of a namespace."""

    async def read(app: App) -> list[Any]:
        listing = pages(lambda cursor: app.engine.list_schedules(namespace, cursor, 500))
        return [each async for page in listing for each in page.schedules]

    found = on_store(where, read, namespace)
    if where.json:
        say_json(msgspec.to_builtins(found, enc_hook=str))
        return OK
    show_table(
        ("schedule", "starts", "next", "state"),
        (
            (
                escape(each.schedule_id),
                escape(each.execution_kind),
                moment(each.next_at_ms),
                "[yellow]paused[/yellow]" if each.paused else "[green]active[/green]",
            )
            for each in found
        ),
        f"no schedules in namespace {escape(namespace)}: define one with @app.cron(…) or @app.every(…), then start a "
        "worker",
    )
    return OK


@command(schedules, "pause", shows=("flowfabric schedules pause 'nightly report'",))
def pause_schedule(name: ScheduleName, /, *, namespace: Namespace = "default", where: Where = NOWHERE) -> int:
    """Start no runs until it is resumed."""
    on_store(where, lambda app: app.schedules.pause(name), namespace)
    return told(f"{escape(name)}: paused", {"schedule": name, "is": "paused"}, where.json)


@command(schedules, "resume", shows=("flowfabric schedules resume 'nightly report'",))
def resume_schedule(name: ScheduleName, /, *, namespace: Namespace = "default", where: Where = NOWHERE) -> int:
    """Continue with the next slot."""
    on_store(where, lambda app: app.schedules.resume(name), namespace)
    return told(f"{escape(name)}: active", {"schedule": name, "is": "active"}, where.json)


@command(schedules, shows=("flowfabric schedules trigger 'nightly report'",))
def trigger(name: ScheduleName, /, *, namespace: Namespace = "default", where: Where = NOWHERE) -> int:
    """Start a run now, outside the schedule."""
    run = on_store(where, lambda app: app.schedules.trigger(name), namespace)
    started = None if run is None else run.id
    sentence = f"started {started}" if started else "not started: its last run has not ended"
    return told(f"{escape(name)}: {escape(sentence)}", {"schedule": name, "started": started}, where.json)


@command(schedules, shows=("flowfabric schedules delete 'nightly report'",))
def delete(name: ScheduleName, /, *, namespace: Namespace = "default", where: Where = NOWHERE) -> int:
    """Delete a schedule. Runs it started continue."""
    on_store(where, lambda app: app.schedules.delete(name), namespace)
    return told(f"{escape(name)}: deleted", {"schedule": name, "is": "deleted"}, where.json)
