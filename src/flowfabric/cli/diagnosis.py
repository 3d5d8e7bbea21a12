"""``flowfabric doctor``."""

from __future__ import annotations

import asyncio

from flowfabric.cli.application import OK, OPERATING, PROBLEMS, application, command
from flowfabric.cli.stores import NOWHERE, Where, on_store
from flowfabric.cli.terminal import say, say_json
from flowfabric.sdk.app import App


@command(application, group=OPERATING, shows=("flowfabric doctor", "flowfabric doctor --json"))
def doctor(*, where: Where = NOWHERE) -> int:
    """Look through a live store for what must not be, and explain it."""
    found = on_store(where, _problems)
    if where.json:
        say_json({"ok": not found, "problems": found})
        return PROBLEMS if found else OK
    for each in found:
        say(f"[yellow]•[/yellow] {each}")
    if not found:
        say("[green]ok[/green]  nothing is stuck")
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
