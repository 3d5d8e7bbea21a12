"""``flowfabric doctor``: what must not be in a live store, what it means and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter
from msgspec import Struct
from rich.markup import escape

from flowfabric.cli import filters
from flowfabric.cli.application import OK, OPERATING, PROBLEMS, application, command
from flowfabric.cli.store_option import NOWHERE, Where, durability_document, durability_shown, on_store
from flowfabric.cli.terminal import progress, say, say_json, shortened, span
from flowfabric.model.counting import counted
from flowfabric.model.errors import Validation
from flowfabric.model.reads.examine import PROMISES, Promise, Violation
from flowfabric.model.reads.explain import Gate
from flowfabric.sdk.app import App
from flowfabric.stores.sqlite.permissions import exposed_files, remedy

if TYPE_CHECKING:
    from flowfabric.stores.valkey.durability import Durability

#: What is late by more than this is stuck.
LATE_MS = 60_000
#: Ended executions may wait that long for a turn to be deleted, beside other work.
RETENTION_LATE_MS = 15 * 60_000
#: Examples that are shown of each kind of finding.
_SHOWN = 5
_UNKNOWN = Promise("stored data is consistent", "Report it")
_TIMERS = (
    "No process is running timers: start a worker (`flowfabric worker module:app`) or a server (`flowfabric server`)"
)
_TRIMMING = f"{_TIMERS}. If some are running, look for errors of `retention_trimmer` in their logs"
_NOBODY = (Gate.WAITING_FOR_WORKER, Gate.MISSING_CAPABILITY, Gate.ROUTE)


class Finding(Struct, frozen=True):
    """Something that must not be."""

    #: ``broken``: rows break a promise; ``stuck``: something does not move; ``exposed``: others may see too much.
    kind: str
    code: str
    subject: str
    problem: str
    do: str


@command(
    application,
    group=OPERATING,
    shows=("flowfabric doctor", "flowfabric doctor --quick", "flowfabric doctor --json | jq '.findings[].do'"),
)
def doctor(
    *,
    quick: Annotated[
        bool, Parameter(negative=(), help="Look only for stuck work, not at every row.", show_default=False)
    ] = False,
    where: Where = NOWHERE,
) -> int:
    """Check a live store for broken invariants and stuck work.

    Checks every execution, stream, flow, budget, quota and event against the engine's guarantees, while it runs; then
    looks for expired leases, lanes without workers, overdue timers and files that others can read. For Valkey, shows
    what a commit survives. Changes nothing. Exit code 3 if it finds a problem.
    """

    async def look(app: App) -> tuple[int, list[Finding], Durability | None]:
        looked, found = (0, []) if quick else await _examined(app, where.json)
        broken = len(found)
        try:
            async for each in _stuck(app):
                found.append(each)
        except Validation:
            # What cannot be read may end a search, and the examination has told of it.
            if not broken:
                raise
        return looked, found, None if where.is_server else app.engine.durability

    looked, found, durability = on_store(where, look)
    found += [] if where.is_server else _exposed(where.address())
    if durability is not None and not where.json:
        say(f"[dim]valkey[/dim]  {escape(durability_shown(durability))}")
    if where.json:
        document = {"ok": not found, "looked": looked, "findings": msgspec.to_builtins(found)}
        say_json(document | durability_document(durability))
    elif found:
        _explain(found)
    else:
        kept = "" if quick else f"{counted(looked, 'row', 'rows and events')} are consistent, "
        say(f"[green]ok[/green]  {kept}nothing is stuck")
    return PROBLEMS if found else OK


async def _examined(app: App, json: bool) -> tuple[int, list[Finding]]:
    found: list[Finding] = []
    looked = 0
    page = await app.engine.examine()
    rows = (page.executions or 0) + (page.events or 0)
    with progress("examining", rows or None, json) as advance:
        while True:
            looked += page.looked
            found += map(_broken, page.violations)
            advance(looked)
            if page.next_cursor is None:
                return looked, found
            page = await app.engine.examine(page.next_cursor)


def _broken(violation: Violation) -> Finding:
    promise = PROMISES.get(violation.invariant, _UNKNOWN)
    return Finding("broken", violation.invariant, violation.subject, violation.detail, promise.advice)


def _exposed(url: str) -> list[Finding]:
    """Files that others may read."""
    files = exposed_files(url)
    problem = "other users of this machine can open it, and it holds payloads and signing keys"
    return [Finding("exposed", "readable_by_others", files[0], problem, f"Run `{remedy(files)}`")] if files else []


async def _stuck(app: App) -> AsyncIterator[Finding]:
    engine = app.engine
    now = await engine.server_time_ms()
    late = await engine.list_expired_leases(as_of=max(now - LATE_MS, 0))
    if late.entries:
        oldest = span(now - late.entries[0].expires_at_ms)
        problem = (
            f"{counted(len(late.entries), 'lease')} expired long ago, the first {oldest} ago, and no timer handled it"
        )
        yield Finding("stuck", "late_leases", str(late.entries[0].execution_id), problem, _TIMERS)
    for depth in await engine.queue_depths():
        if depth.oldest_age_ms > LATE_MS:
            async for each in _unserved(app, depth.lane_id, depth.waiting, depth.oldest_age_ms):
                yield each
    late_ms = (await engine.read_pulse()).retention_late_ms
    if late_ms > RETENTION_LATE_MS:
        problem = f"ended executions are not deleted: the oldest was due {span(late_ms)} ago, so the store grows"
        yield Finding("stuck", "late_retention", "", problem, _TRIMMING)
    delayed = {"states": ["delayed"], "namespaces": None}
    async for run in filters.found(app, delayed, 200):
        why = await engine.explain(run.execution_id)
        if why.until_ms is not None and why.until_ms < now - LATE_MS:
            problem = f"it was due {span(now - why.until_ms)} ago and is still waiting"
            yield Finding("stuck", "late_start", str(run.execution_id), problem, _TIMERS)
            break


async def _unserved(app: App, lane: str, waiting: int, oldest_ms: int) -> AsyncIterator[Finding]:
    """Work that nobody takes, unless its lane is paused: then somebody wants it so."""
    question = {"lane_id": lane, "states": ["waiting"], "namespaces": None}
    async for each in filters.found(app, question, 1, builtin=True):
        why = await app.engine.explain(each.execution_id)
        if why.gate in _NOBODY:
            problem = f"{counted(waiting, 'run')} waiting, the oldest for {span(oldest_ms)}. {why.sentence}"
            do = f"Start a worker for this lane: `flowfabric worker module:app --lane {lane}`"
            yield Finding("stuck", "unserved_lane", f"lane {lane}", problem, do)


def _explain(found: list[Finding]) -> None:
    counts = Counter(each.code for each in found)
    for code, count in counts.items():
        own = [each for each in found if each.code == code]
        promise = PROMISES.get(code)
        title = f"Broken invariant {code}: {promise.says}" if promise is not None else code.replace("_", " ")
        say(f"[{'red' if own[0].kind == 'broken' else 'yellow'}]●[/] [bold]{escape(title)}[/bold]")
        for each in own[:_SHOWN]:
            say(f"  {escape(each.subject)}  {escape(shortened(each.problem, 240))}")
        if count > _SHOWN:
            say(f"  [dim]… and {count - _SHOWN:,} more; --json has them all[/dim]")
        say(f"  [cyan]→[/cyan] {escape(own[0].do)}.")
    say(f"\n{counted(len(found), 'finding')}")
