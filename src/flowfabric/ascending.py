"""Ids that ascend: what this process makes later sorts behind what it made before, also within a millisecond.

An id holds 48 bits of milliseconds, a counter of 32 bits and 36 random bits, in the form of a version 7 UUID. Among
work of equal age the order of the ids is the order of the queue, and rows inserted together stand together in every
index.
"""

from __future__ import annotations

import os
import threading
import time

_COUNTER_BITS = 32
_lock = threading.Lock()
#: Milliseconds and counter of the last id. A clock that is set back holds up the milliseconds, not the order.
_last = [0]


def ascending_uuid() -> str:
    """A new UUID, behind all that this process has made before."""
    with _lock:
        _last[0] = place = max(_last[0] + 1, time.time_ns() // 1_000_000 << _COUNTER_BITS)
    head, tail = f"{place >> 20:015x}", f"{place & 0xFFFFF:05x}"
    return f"{head[:8]}-{head[8:12]}-7{head[12:]}-80{tail[:2]}-{tail[2:]}{os.urandom(5).hex()[1:]}"


def ascending_bytes(count: int = 1) -> bytes:
    """So many new UUIDs, 16 bytes each, in order."""
    with _lock:
        first = max(_last[0] + 1, time.time_ns() // 1_000_000 << _COUNTER_BITS)
        _last[0] = first + count - 1
    noise = os.urandom(5 * count)
    found = []
    for number in range(count):
        place = first + number
        times = (place >> _COUNTER_BITS) << 80 | 7 << 76 | ((place >> 20) & 0xFFF) << 64
        rest = 0x80 << 56 | (place & 0xFFFFF) << 36 | int.from_bytes(noise[5 * number : 5 * number + 5], "big") >> 4
        found.append((times | rest).to_bytes(16, "big"))
    return b"".join(found)
