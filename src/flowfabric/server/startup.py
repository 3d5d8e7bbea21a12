"""A store that is not there yet when a server starts: for a while it is waited for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from flowfabric.model.errors import Transport, TransportKind
from flowfabric.stores.protocol import Conflict, Outdated

_log = logging.getLogger("flowfabric.server")
#: Seconds before the second try; they double from try to try, up to the longest.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
#: What may have passed a moment later, as an upgrade that is under way may have. A wrong password, a replica and wrong
#: settings have not.
PASSING = frozenset({TransportKind.TRANSPORT, TransportKind.TIMEOUT, TransportKind.BUSY_LOADING})

T = TypeVar("T")


async def patiently(opened: Callable[[], Awaitable[T]], patience_s: float) -> T:
    """What ``opened`` answers; it is called again for so many seconds while what hinders it may pass."""
    loop = asyncio.get_running_loop()
    deadline, pause = loop.time() + patience_s, FIRST_PAUSE_S
    while True:
        try:
            return await opened()
        except (Transport, Conflict) as error:
            if not _passing(error) or loop.time() + pause > deadline:
                raise
            _log.warning("the store cannot be opened yet: %s; retrying in %g s", error, pause)
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)


def _passing(error: Transport | Conflict) -> bool:
    return isinstance(error, Conflict | Outdated) or error.kind in PASSING
