"""``flowfabric events``."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from cyclopts import Parameter

from flowfabric.cli.application import LOOKING, OK, application, command
from flowfabric.cli.store_option import NOWHERE, Where, on_store
from flowfabric.cli.terminal import Misused, say_line
from flowfabric.model.errors import StreamGap
from flowfabric.model.reads.subscriptions import EventFamily, cursor_at
from flowfabric.sdk.app import App

_LOOK_AGAIN_S = 0.5


@command(
    application,
    group=LOOKING,
    shows=("flowfabric events", "flowfabric events lease_history --follow", "flowfabric events -l 5 | jq .outcome"),
)
def events(
    family: Annotated[str, Parameter(help="The family of events: " + ", ".join(EventFamily) + ".")] = "completion",
    /,
    *,
    follow: Annotated[
        bool, Parameter(name=("--follow", "-f"), negative=(), help="Keep waiting for new events.", show_default=False)
    ] = False,
    limit: Annotated[int, Parameter(name=("--limit", "-l"), help="Print the last N events.")] = 50,
    where: Where = NOWHERE,
) -> int:
    """Print events as JSON lines, oldest first.

    The output is the same with and without --json.
    """
    families = {each.value: each for each in EventFamily}
    if family not in families:
        raise Misused(f"{family}: expected one of {', '.join(families)}")

    async def read(app: App) -> int:
        cursor = cursor_at(0)
        kept: list[Any] = []
        while True:
            try:
                batch = await app.engine.read_events(families[family], cursor)
            except StreamGap as gap:
                cursor = gap.oldest  # older ones are past their retention
                continue
            kept = [*kept, *batch.events]
            kept = kept[-limit:] if limit > 0 else []
            cursor = batch.cursor
            if batch.events:
                continue
            break
        for event in kept:
            say_line(event)
        while follow:
            batch = await app.engine.read_events(families[family], cursor)
            for event in batch.events:
                say_line(event)
            cursor = batch.cursor
            if not batch.events:
                await asyncio.sleep(_LOOK_AGAIN_S)
        return OK

    return on_store(where, read)
