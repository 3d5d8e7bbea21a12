"""Work that computes for long, beside the event loop: everybody else goes on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

_T = TypeVar("_T")
#: Things that may be gone through on the loop in one go: more of them take longer than anybody should wait.
MOST_AT_ONCE: Final = 5_000


async def worked(size: int, work: Callable[[], _T]) -> _T:
    """What the work gives, which goes through so many things. Nothing that it looks at may change meanwhile."""
    return work() if size <= MOST_AT_ONCE else await asyncio.to_thread(work)


async def others_turn(position: int) -> None:
    """Let others have their turn now and then, on the way through many things."""
    if position % MOST_AT_ONCE == MOST_AT_ONCE - 1:
        await asyncio.sleep(0)
