"""Commands about what surrounds runs: questions, lanes, workers, schedules, budgets, flows."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import msgspec
from cyclopts import App as Group
from cyclopts import Parameter

from flowfabric.cli.application import OK, Misused, application, out, say_json
from flowfabric.cli.stores import Json, Namespace, RunId, Url, coloured, moment, on_store, show_table
from flowfabric.sdk.app import App

lanes = Group(name="lanes", help="Lanes: list them, pause, drain, close, resume, share between keys.")
schedules = Group(name="schedules", help="Schedules: list them, pause, resume, trigger, delete.")
application.command(lanes)
application.command(schedules)

LaneName = Annotated[str, Parameter(help="The lane.")]
ScheduleName = Annotated[str, Parameter(help="The schedule's name.")]
Reason = Annotated[str, Parameter(help="Why, for the record.")]


# -- questions -------------------------------------------------------------------------------------------------------


@application.command
def asks(
    run: Annotated[str | None, Parameter(help="Only those of this run.")] = None, *, url: Url = None, json: Json = False
) -> int:
    """Questions that wait for an answer."""
    found = on_store(url, lambda app: app.asks(run))
    if json:
        say_json([{"id": each.id, "run": each.run_id, "question": each.question, "of": each.of} for each in found])
        return OK
    show_table(
        ("question", "asked of", "needs", "shown", "id"),
        (
            (each.question, ", ".join(each.of) or "whoever has the link", str(each.need), _short(each.show), each.id)
            for each in found
        ),
        "nobody is asked anything",
    )
    return OK


def _short(value: Any, most: int = 60) -> str:
    text = "" if value is None else msgspec.json.encode(value).decode()
    return text if len(text) <= most else text[: most - 1] + "…"


@application.command
def approve(
    link: Annotated[str, Parameter(help="The link an approver was given, or the id of a question.")],
    answer: Annotated[str, Parameter(help="The answer as JSON: true, false, or an object.")] = "true",
    *,
    by: Annotated[str | None, Parameter(help="Who answers, if a question's id is given.")] = None,
    url: Url = None,
) -> int:
    """Answer a question."""
    try:
        value = msgspec.json.decode(answer)
    except msgspec.DecodeError:
        raise Misused(f"{answer}: the answer is JSON, such as true or '{{\"ok\": true}}'") from None

    async def give(app: App) -> None:
        if not link.startswith("{fp:"):
            await app.answer(link, value, identity=by or "")
            return
        found = [each for each in await app.asks() if each.id == link]
        if not found:
            raise Misused(f"{link}: no such question is open; `flowfabric asks` lists them")
        await found[0].answer(value, by=by)

    on_store(url, give)
    out().print("answered")
    return OK


# -- lanes -----------------------------------------------------------------------------------------------------------


@lanes.default
def list_lanes(*, url: Url = None, json: Json = False) -> int:
    """Every lane ever used, with its state."""

    async def read(app: App) -> list[Any]:
        found: list[Any] = []
        cursor = None
        while True:
            page = await app.engine.list_lanes(cursor, 500)
            described = [await app.engine.describe_lane(name) for name in page.lanes]
            found += [each for each in described if each is not None]
            cursor = page.next_cursor
            if cursor is None:
                return found

    found = on_store(url, read)
    if json:
        say_json(msgspec.to_builtins(found, enc_hook=str))
        return OK
    show_table(
        ("lane", "state", "since", "why", "shared by"),
        (
            (
                each.lane_id,
                str(each.state),
                moment(each.state_changed_at_ms),
                each.state_reason or "",
                each.fair_by or "",
            )
            for each in found
        ),
        "no lane has been used",
    )
    return OK


@lanes.command
def pause(lane: LaneName, *, reason: Reason = "", url: Url = None) -> int:
    """Take new work in, but hand none out."""
    return _lane(url, lane, lambda control: control.pause(reason), "paused")


@lanes.command
def drain(lane: LaneName, *, reason: Reason = "", url: Url = None) -> int:
    """Hand out what is there, but take nothing new in."""
    return _lane(url, lane, lambda control: control.drain(reason), "draining")


@lanes.command
def close(lane: LaneName, *, reason: Reason = "", url: Url = None) -> int:
    """Neither take in nor hand out."""
    return _lane(url, lane, lambda control: control.close(reason), "closed")


@lanes.command
def resume(lane: LaneName, *, url: Url = None) -> int:
    """Take in and hand out again."""
    return _lane(url, lane, lambda control: control.resume(), "active")


@lanes.command
def share(
    lane: LaneName,
    by: Annotated[str, Parameter(help="A tag's name, namespace, or nothing.")],
    *,
    url: Url = None,
) -> int:
    """Let the values of a tag take turns, so that a flood from one delays no other."""
    return _lane(url, lane, lambda control: control.share(None if by == "nothing" else by), f"shared by {by}")


def _lane(url: str | None, name: str, act: Callable[[Any], Coroutine[Any, Any, None]], told: str) -> int:
    on_store(url, lambda app: act(app.lane_control(name)))
    out().print(f"{name}: {told}")
    return OK


# -- workers, schedules, budgets, flows ------------------------------------------------------------------------------


@application.command
def workers(*, namespace: Namespace = "default", url: Url = None, json: Json = False) -> int:
    """Workers that have been heard of lately."""
    found = on_store(url, lambda app: app.engine.list_workers(namespace=namespace)).entries
    if json:
        say_json(msgspec.to_builtins(found, enc_hook=str))
        return OK
    show_table(
        ("worker", "lanes", "can", "last heard"),
        (
            (
                each.worker_instance_id,
                ", ".join(each.lanes),
                ", ".join(each.capabilities),
                moment(each.last_heartbeat_ms),
            )
            for each in found
        ),
        f"no worker is registered in namespace {namespace}",
    )
    return OK


@schedules.default
def list_schedules(*, namespace: Namespace = "default", url: Url = None, json: Json = False) -> int:
    """The schedules of a namespace."""
    found = on_store(url, lambda app: app.engine.list_schedules(namespace, None, 1_000)).schedules
    if json:
        say_json(msgspec.to_builtins(found, enc_hook=str))
        return OK
    show_table(
        ("schedule", "starts", "next", "state"),
        (
            (each.schedule_id, each.execution_kind, moment(each.next_at_ms), "paused" if each.paused else "active")
            for each in found
        ),
        f"no schedules in namespace {namespace}",
    )
    return OK


@schedules.command(name="pause")
def pause_schedule(name: ScheduleName, *, namespace: Namespace = "default", url: Url = None) -> int:
    """Start nothing until it is resumed."""
    on_store(url, lambda app: app.schedules.pause(name), namespace)
    out().print(f"{name}: paused")
    return OK


@schedules.command(name="resume")
def resume_schedule(name: ScheduleName, *, namespace: Namespace = "default", url: Url = None) -> int:
    """Go on with the next slot."""
    on_store(url, lambda app: app.schedules.resume(name), namespace)
    out().print(f"{name}: active")
    return OK


@schedules.command
def trigger(name: ScheduleName, *, namespace: Namespace = "default", url: Url = None) -> int:
    """Start one now, out of turn."""
    run = on_store(url, lambda app: app.schedules.trigger(name), namespace)
    out().print(f"{name}: started {run.id}" if run is not None else f"{name}: its last run has not ended")
    return OK


@schedules.command
def delete(name: ScheduleName, *, namespace: Namespace = "default", url: Url = None) -> int:
    """Forget it. What it has started goes on."""
    on_store(url, lambda app: app.schedules.delete(name), namespace)
    out().print(f"{name}: deleted")
    return OK


@application.command
def budgets(*, url: Url = None, json: Json = False) -> int:
    """Budgets, with what is spent and reserved of their limits."""

    async def read(app: App) -> list[Any]:
        found: list[Any] = []
        cursor = None
        while True:
            page = await app.engine.list_budgets(cursor, 500)
            found += page.budgets
            cursor = page.next_cursor
            if cursor is None:
                return found

    found = on_store(url, read)
    if json:
        say_json(msgspec.to_builtins(found, enc_hook=str))
        return OK
    show_table(
        ("budget", "scope", "of", "spent", "reserved", "limit", "breaches"),
        (
            (
                each.budget_id,
                f"{each.scope_type}:{each.scope_id}".strip(":"),
                name,
                str(each.usage.get(name, 0)),
                str(each.reserved.get(name, 0)),
                str(limit or "none"),
                str(each.breach_count),
            )
            for each in found
            for name, limit in each.hard_limits.items()
        ),
        "there are no budgets",
    )
    return OK


@application.command
def flows(run: RunId, *, url: Url = None, json: Json = False) -> int:
    """The tree of runs that a run has started, or that its flow joins."""

    async def read(app: App) -> list[Any]:
        flow_id = await app.engine.resolve_execution_flow_id(run)
        if flow_id is None:
            raise Misused(f"{run}: it has started nothing and belongs to no flow")
        page = await app.engine.search_executions(flow_id=flow_id, limit=1_000)
        return list(reversed(page.executions))

    found = on_store(url, read)
    if json:
        say_json(msgspec.to_builtins(found, enc_hook=str))
        return OK
    console = out()
    for position, each in enumerate(found):
        branch = "└─" if position == len(found) - 1 else "├─"
        mark = "[bold]" if str(each.execution_id) == run else ""
        console.print(f"{branch} {mark}{each.execution_kind}{'[/bold]' if mark else ''}  ", end="")
        console.print(f"{coloured(each.public_state.value)}  {each.execution_id}")
    return OK
