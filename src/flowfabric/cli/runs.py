"""Commands about runs: list, show, why, result, tail, cancel, replay, priority, events."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from flowfabric.cli.application import OK, Misused, application, out, say_json
from flowfabric.cli.stores import Json, Namespace, RunId, Url, coloured, moment, on_store, show_table
from flowfabric.model.errors import StreamGap
from flowfabric.model.search import ExecutionSummary
from flowfabric.model.subscriptions import EventFamily, cursor_at
from flowfabric.sdk.app import App
from flowfabric.sdk.options import tag_key

MOST = 10_000


@application.command(name="list")
def list_runs(
    *,
    state: Annotated[
        tuple[str, ...], Parameter(name=("--state", "-s"), help="Only in this state; may be repeated.")
    ] = (),
    kind: Annotated[str | None, Parameter(name=("--kind", "-k"), help="Only this task or workflow.")] = None,
    lane: Annotated[str | None, Parameter(help="Only in this lane.")] = None,
    tag: Annotated[str | None, Parameter(help="Only with this tag: key=value.")] = None,
    limit: Annotated[int, Parameter(name=("--limit", "-l"), help="At most so many.")] = 50,
    namespace: Namespace = "default",
    url: Url = None,
    json: Json = False,
) -> int:
    """List runs, newest first."""
    found = on_store(url, lambda app: _search(app, namespace, state, kind, lane, tag, limit), namespace)
    if json:
        say_json(msgspec.to_builtins(found, enc_hook=str))
        return OK
    show_table(
        ("run", "what", "state", "lane", "created", "waits for"),
        (
            (
                str(each.execution_id),
                each.execution_kind,
                coloured(each.public_state.value),
                each.lane_id,
                moment(each.created_at),
                (each.blocking_reason or "") if each.completed_at is None else "",
            )
            for each in found
        ),
        "no runs fit",
    )
    return OK


async def _search(
    app: App, namespace: str, states: tuple[str, ...], kind: str | None, lane: str | None, tag: str | None, limit: int
) -> list[ExecutionSummary]:
    pair = None
    if tag is not None:
        key, equals, value = tag.partition("=")
        if not equals:
            raise Misused(f"--tag {tag}: write key=value")
        pair = (tag_key(key), value)
    found: list[ExecutionSummary] = []
    cursor = None
    while len(found) < min(limit, MOST):
        page = await app.engine.search_executions(
            namespaces=[namespace],
            lane_id=lane,
            states=states,
            execution_kind=kind,
            tag=pair,
            cursor=cursor,
            limit=min(limit - len(found), 500),
        )
        found += page.executions
        cursor = page.next_cursor
        if cursor is None:
            break
    return found


@application.command
def show(run: RunId, *, url: Url = None, json: Json = False) -> int:
    """Everything about one run: state, attempts, what it remembers, what it waits for."""

    async def look(app: App) -> tuple[Any, Any, Any, Any]:
        one = app.run(run)
        info = await one.info()
        context = await app.engine.read_execution_context(run)
        return info, context, await one.steps(), await one.explain()

    info, context, steps, why = on_store(url, look)
    if json:
        document = msgspec.to_builtins(info, enc_hook=str) | {
            "execution_kind": context.execution_kind,
            "steps": msgspec.to_builtins(steps, enc_hook=str),
            "explanation": msgspec.to_builtins(why, enc_hook=str),
        }
        say_json(document)
        return OK
    console = out()
    console.print(f"[bold]{context.execution_kind}[/bold]  {info.execution_id}")
    console.print(f"state     {coloured(info.public_state.value)}")
    console.print(f"why       {why.sentence}", markup=False)
    console.print(f"created   {moment(info.created_at)}   last change {moment(info.last_mutation_at)}")
    console.print(f"attempts  {info.total_attempt_count}   lane {info.lane_id}   namespace {info.namespace}")
    if info.tags:
        console.print("tags      " + "  ".join(f"{key}={value}" for key, value in info.tags.items()), markup=False)
    if context.input_payload:
        console.print(f"input     {_shown(context.input_payload)}", markup=False)
    shown = [step for step in steps if not step.name.startswith("!")]
    for step in shown:
        mark = "[green]✓[/green]" if step.outcome == "ok" else "[red]✗[/red]"
        console.print(f"  {mark} {moment(step.recorded_at_ms)}  ", end="")
        console.print(f"{step.name}  {_shown(step.value)}", markup=False)
    return OK


def _shown(data: bytes | None, most: int = 200) -> str:
    text = "" if data is None else data.decode("utf-8", "replace")
    return text if len(text) <= most else text[: most - 1] + "…"


@application.command
def why(run: RunId, *, url: Url = None, json: Json = False) -> int:
    """Why a run is not running: what it stands before, since when, until when."""
    found = on_store(url, lambda app: app.run(run).explain())
    if json:
        say_json(msgspec.to_builtins(found, enc_hook=str))
        return OK
    console = out()
    console.print(f"[bold]{found.gate.value}[/bold]  {found.sentence}")
    console.print(f"since {moment(found.since_ms)}" + (f", until {moment(found.until_ms)}" if found.until_ms else ""))
    return OK


@application.command
def result(run: RunId, *, url: Url = None) -> int:
    """The result of a run that has completed, as it is stored."""

    async def read(app: App) -> bytes | None:
        await app.run(run).result()
        return await app.engine.get_execution_result(run)

    data = on_store(url, read)
    sys.stdout.buffer.write((data or b"null") + b"\n")
    return OK


@application.command
def tail(run: RunId, *, url: Url = None, json: Json = False) -> int:
    """Follow what a run emits, live, until it ends."""

    async def follow(app: App) -> None:
        async for frame in app.run(run).frames():
            if json:
                sys.stdout.write(msgspec.json.encode({"id": frame.id, "type": frame.type, "text": frame.text}).decode())
                sys.stdout.write("\n")
            else:
                sys.stdout.write(frame.text)
            sys.stdout.flush()
        if not json:
            sys.stdout.write("\n")

    on_store(url, follow)
    return OK


@application.command
def cancel(run: RunId, *, reason: Annotated[str, Parameter(help="Why, for the record.")] = "", url: Url = None) -> int:
    """Cancel a run, with everything it has started."""
    on_store(url, lambda app: app.run(run).cancel(reason))
    out().print(f"cancelled {run}")
    return OK


@application.command
def replay(run: RunId, *, url: Url = None) -> int:
    """Run an ended run again. A workflow goes on from the call that failed."""
    on_store(url, lambda app: app.run(run).replay())
    out().print(f"waiting again {run}")
    return OK


@application.command
def priority(run: RunId, number: Annotated[int, Parameter(help="Higher goes first.")], *, url: Url = None) -> int:
    """Change the priority of a run that waits."""
    on_store(url, lambda app: app.engine.change_priority(execution_id=run, new_priority=number))
    out().print(f"priority {number} for {run}")
    return OK


@application.command
def events(
    family: Annotated[str, Parameter(help="Of which kind: " + ", ".join(EventFamily))] = "completion",
    *,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"), negative=(), help="Wait for more.")] = False,
    limit: Annotated[int, Parameter(name=("--limit", "-l"), help="The last so many.")] = 50,
    url: Url = None,
) -> int:
    """Print events as JSON lines, oldest first."""
    families = {each.value: each for each in EventFamily}
    if family not in families:
        raise Misused(f"{family}: not one of {', '.join(families)}")

    async def read(app: App) -> int:
        cursor = cursor_at(0)
        kept: list[Any] = []
        while True:
            try:
                batch = await app.engine.read_events(families[family], cursor)
            except StreamGap as gap:
                cursor = gap.oldest  # older ones are past their retention
                continue
            kept = [*kept, *batch.events][-limit:] if not follow else list(batch.events)
            if follow:
                for event in kept:
                    _print_event(event)
                kept = []
            cursor = batch.cursor
            if not batch.events:
                if not follow:
                    break
                await asyncio.sleep(0.5)
        for event in kept:
            _print_event(event)
        return OK

    return on_store(url, read)


def _print_event(event: Any) -> None:
    sys.stdout.write(msgspec.json.encode(event, enc_hook=str).decode() + "\n")
    sys.stdout.flush()
