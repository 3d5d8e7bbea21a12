"""``flowfabric db`` and ``flowfabric doctor``."""

from __future__ import annotations

import asyncio
from typing import Any

from cyclopts import App as Group

from flowfabric.cli.application import OK, PROBLEMS, application, out, say_json
from flowfabric.cli.stores import Json, Url, on_store
from flowfabric.model.results import Applied
from flowfabric.sdk.app import App

db = Group(name="db", help="The database: bring its tables up to date, see what is there.")
application.command(db)


@db.command
def migrate(*, url: Url = None) -> int:
    """Bring the tables up to date. Repeating it changes nothing."""
    done = on_store(url, lambda app: app.engine.prepare())
    out().print(done.description if isinstance(done, Applied) else "up to date")
    return OK


@db.command
def check(*, url: Url = None, json: Json = False) -> int:
    """Say which store it is, and whether it answers."""

    async def look(app: App) -> Any:
        await app.engine.ping()
        return await app.engine.capabilities()

    found = on_store(url, look)
    if json:
        say_json({"store": found.family, "version": found.version})
    else:
        out().print(f"{found.family} {found.version}: answers, tables are up to date")
    return OK


@application.command
def doctor(*, url: Url = None, json: Json = False) -> int:
    """Look through a live store for what must not be: leases nobody renews, work nobody serves, runs that are stuck."""
    found = on_store(url, _problems)
    if json:
        say_json({"ok": not found, "problems": found})
        return PROBLEMS if found else OK
    console = out()
    for each in found:
        console.print(f"[yellow]•[/yellow] {each}")
    if not found:
        console.print("[green]ok[/green]  nothing is stuck")
    return PROBLEMS if found else OK


async def _problems(app: App) -> list[str]:
    engine = app.engine
    found: list[str] = []
    now = await engine.now_ms()
    late = await engine.list_expired_leases(as_of=max(now - 60_000, 0))
    if late.entries:
        oldest = (now - late.entries[0].expires_at_ms) // 1000
        found.append(
            f"{len(late.entries)} leases ran out more than a minute ago, the oldest {oldest} s: no process runs "
            "timers. Start a worker or a server"
        )
    cursor = None
    while True:
        page = await engine.list_lanes(cursor, 500)
        for lane in page.lanes:
            waiting = await engine.scan_eligible_executions(lane, limit=1)
            if waiting:
                why = await engine.explain(waiting[0])
                if why.gate.value in ("waiting_for_worker", "missing_capability"):
                    since = (now - why.since_ms) // 1000
                    if since > 60:
                        found.append(f"lane {lane}: {waiting[0]} has waited {since} s. {why.sentence}")
        cursor = page.next_cursor
        if cursor is None:
            break
        await asyncio.sleep(0)
    return found
