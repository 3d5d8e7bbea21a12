"""``flowfabric lanes``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import msgspec
from cyclopts import App as Commands, Parameter
from rich.markup import escape

from flowfabric.cli.application import OK, OPERATING, application, command, examples
from flowfabric.cli.store_option import NOWHERE, Reason, Where, on_store
from flowfabric.cli.terminal import age, say_json, show_table, span, told
from flowfabric.model.counting import counted
from flowfabric.sdk.app import App
from flowfabric.sdk.paging import pages

lanes = Commands(
    name="lanes",
    help="Lanes: list, pause, drain, close, resume, share fairly.",
    help_epilogue=examples("flowfabric lanes", "flowfabric lanes pause reports --reason 'the database is moving'"),
    group=OPERATING,
    group_commands="Commands",
)
application.command(lanes)

LaneName = Annotated[str, Parameter(help="The lane.")]


@lanes.default
def list_lanes(*, where: Where = NOWHERE) -> int:
    """List all lanes, with their state and waiting runs."""

    async def read(app: App) -> tuple[list[Any], dict[str, Any]]:
        listing = pages(lambda cursor: app.engine.list_lanes(cursor, 500))
        described = [await app.engine.describe_lane(name) async for page in listing for name in page.lanes]
        depths = await app.engine.queue_depths()
        return [each for each in described if each is not None], {each.lane_id: each for each in depths}

    found, depths = on_store(where, read)
    if where.json:
        waiting = {name: msgspec.to_builtins(each, enc_hook=str) for name, each in depths.items()}
        say_json([msgspec.to_builtins(each, enc_hook=str) | {"queue": waiting.get(each.lane_id)} for each in found])
        return OK
    show_table(
        ("lane", "state", "since", "ready", "shared by", "why"),
        (
            (
                escape(each.lane_id),
                _state(str(each.state)),
                age(each.state_changed_at_ms),
                _ready(depths.get(each.lane_id)),
                escape(each.fair_by or ""),
                escape(each.state_reason or ""),
            )
            for each in found
        ),
        "no lanes yet: a lane is created by its first run",
    )
    return OK


def _state(state: str) -> str:
    return f"[green]{state}[/green]" if state == "active" else f"[yellow]{escape(state)}[/yellow]"


def _ready(depth: Any) -> str:
    return "–" if depth is None else f"{counted(depth.waiting, 'run')}, oldest {span(depth.oldest_age_ms)}"


@command(lanes, shows=("flowfabric lanes pause reports --reason 'the database is moving'",))
def pause(lane: LaneName, /, *, reason: Reason = "", where: Where = NOWHERE) -> int:
    """Accept new runs, but start none."""
    return _lane(where, lane, lambda control: control.pause(reason), "paused")


@command(lanes, shows=("flowfabric lanes drain reports",))
def drain(lane: LaneName, /, *, reason: Reason = "", where: Where = NOWHERE) -> int:
    """Start the waiting runs, but accept no new ones."""
    return _lane(where, lane, lambda control: control.drain(reason), "draining")


@command(lanes, shows=("flowfabric lanes close reports",))
def close(lane: LaneName, /, *, reason: Reason = "", where: Where = NOWHERE) -> int:
    """Accept no new runs, and start none."""
    return _lane(where, lane, lambda control: control.close(reason), "closed")


@command(lanes, shows=("flowfabric lanes resume reports",))
def resume(lane: LaneName, /, *, where: Where = NOWHERE) -> int:
    """Accept and start runs again."""
    return _lane(where, lane, lambda control: control.resume(), "active")


@command(lanes, shows=("flowfabric lanes share reports tenant", "flowfabric lanes share reports nothing"))
def share(
    lane: LaneName,
    by: Annotated[str, Parameter(help="A tag key, 'namespace', or 'nothing' to stop sharing.")],
    /,
    *,
    where: Where = NOWHERE,
) -> int:
    """Let the values of a tag take turns, so that many runs of one value do not delay the others."""
    return _lane(where, lane, lambda control: control.share(None if by == "nothing" else by), f"shared by {by}")


def _lane(where: Where, name: str, act: Callable[[Any], Coroutine[Any, Any, None]], state: str) -> int:
    on_store(where, lambda app: act(app.lane_control(name)))
    return told(f"{escape(name)}: {escape(state)}", {"lane": name, "is": state}, where.json)
