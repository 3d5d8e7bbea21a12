"""Ports that stay free between being chosen and being used, and while a server is down to be started again.

A port that the system hands out is anybody's again once its socket is closed: another test's server, or the near end
of any connection, takes it in between. So each process keeps a block of ports to itself, outside the range that the
system hands out; a lock shows that a block is in use, and vanishes with the process.
"""

import contextlib
import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import IO

LOOPBACK = "127.0.0.1"
FIRST = 12_000
BLOCK = 100
BLOCKS = 200
#: Kept open: closing one would give its block away.
_LOCKS: list[IO[str]] = []


def free_port() -> int:
    """A port that nothing listens on, and that no other process of the tests chooses while this one lives."""
    ports = _ports()
    for _ in range(BLOCK):
        port = next(ports)
        with contextlib.suppress(OSError), socket.socket() as probe:
            # As servers do: connections of an earlier server that are only fading away do not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((LOOPBACK, port))
            return port
    raise RuntimeError(f"all {BLOCK} ports of this process are in use: some test leaves its servers running")


@cache
def _ports() -> Iterator[int]:
    first = _own_block()
    return (first + number % BLOCK for number in count())


def _own_block() -> int:
    folder = Path(tempfile.gettempdir()) / f"flowfabric-test-ports-{os.geteuid()}"
    folder.mkdir(exist_ok=True)
    for number in range(BLOCKS):
        lock = (folder / str(number)).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            continue
        _LOCKS.append(lock)
        return FIRST + number * BLOCK
    raise RuntimeError(f"more than {BLOCKS} processes run tests at once")
