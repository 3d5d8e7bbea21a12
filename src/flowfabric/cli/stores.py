"""What commands share that look at a store: which one, how to open it, and how lines are laid out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

from cyclopts import Parameter
from rich.table import Table

from flowfabric.cli.application import Misused, out
from flowfabric.sdk.app import App

T = TypeVar("T")

Url = Annotated[str | None, Parameter(name=("--url", "-u"), help="The store; FF_URL if it is not given.")]
Json = Annotated[bool, Parameter(name="--json", negative=(), help="Answer as JSON.")]
Namespace = Annotated[str, Parameter(name=("--namespace", "-n"), help="The namespace.")]
RunId = Annotated[str, Parameter(help="The run's id, {fp:…}:….")]

_COLOURS = {
    "completed": "green",
    "failed": "red",
    "expired": "red",
    "cancelled": "yellow",
    "skipped": "yellow",
    "active": "cyan",
    "suspended": "blue",
}


def on_store(url: str | None, act: Callable[[App], Coroutine[Any, Any, T]], namespace: str = "default") -> T:
    """Open the store, do something there, close it."""
    where = url or os.environ.get("FF_URL")
    if not where:
        raise Misused("which store? Say --url sqlite:///work.db (or postgresql://…), or set FF_URL")

    async def opened() -> T:
        async with App(where, namespace=namespace) as app:
            return await act(app)

    return asyncio.run(opened())


def moment(at_ms: int | None) -> str:
    """A time as people read it."""
    if at_ms is None:
        return "–"
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def coloured(state: str) -> str:
    """A state in its colour."""
    colour = _COLOURS.get(state)
    return f"[{colour}]{state}[/{colour}]" if colour else state


def show_table(titles: Sequence[str], rows: Iterable[Sequence[str]], nothing: str) -> None:
    """Lines in columns, or a sentence that says there are none."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, overflow="fold")
    count = 0
    for row in rows:
        table.add_row(*row)
        count += 1
    if count:
        out().print(table)
    else:
        out().print(nothing)
