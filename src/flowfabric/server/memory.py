"""Large buffers go back to the system as soon as they are freed.

The C library raises the size from which it does so whenever a large buffer is freed, up to 32 MiB. A server that has
made many large answers would then keep the memory of all of them, torn to pieces by small objects. A size that is set
stays.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys

#: Bytes from which on a buffer is mapped on its own.
LARGE_BYTES = 131_072
_M_MMAP_THRESHOLD = -3


def return_large_buffers() -> None:
    """Ask the C library for it. One that does not know the setting (musl, macOS) needs no asking."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
