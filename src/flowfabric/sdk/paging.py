"""Lists that come page by page, read to their end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

Page = TypeVar("Page")


async def pages(ask: Callable[[Any], Awaitable[Page]], cursor: str = "next_cursor") -> AsyncIterator[Page]:
    """Every page of a list; ``ask`` is called with where to go on, first with ``None``; ``cursor`` names the field."""
    at: Any = None
    while True:
        page = await ask(at)
        yield page
        at = getattr(page, cursor)
        if at is None:
            return
