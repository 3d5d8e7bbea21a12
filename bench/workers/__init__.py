"""Programs that run in processes of their own, started by ``bench.processes``."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import msgspec


def answer(message: Any) -> None:
    """Write one line to the benchmark."""
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


async def next_order() -> Any | None:
    """The next line from the benchmark; nothing when it is over."""
    line = await asyncio.to_thread(sys.stdin.buffer.readline)
    return msgspec.json.decode(line) if line else None
