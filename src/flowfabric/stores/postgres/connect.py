"""Connections that notice when the server's machine has gone, and that lead to a server which takes writes."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import asyncpg

#: What the driver raises.
DRIVER_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
#: How long one statement may take, a commit included. Migrations have no limit.
STATEMENT_S = 60.0
#: How long connecting may take.
CONNECT_S = 10.0
#: A machine that vanishes sends nothing, so it is asked: after this many seconds of silence, again after so many, so
#: many times. What it does not acknowledge within the milliseconds ends the connection.
KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}
#: For every connection. After a fail-over the former primary may be there still, and read-only.
OPTIONS: dict[str, Any] = {"command_timeout": STATEMENT_S, "target_session_attrs": "read-write"}


async def connect(dsn: str, *, timeout: float = CONNECT_S, **options: Any) -> Any:
    """A connection to a server that takes writes."""
    connection = await asyncpg.connect(dsn, timeout=timeout, **OPTIONS | options)
    await keep_alive(connection)
    return connection


@contextlib.asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[Any]:
    """A connection for the block, on which statements may take as long as they need."""
    connection = await connect(dsn, timeout=30, command_timeout=None)
    try:
        yield connection
    finally:
        await connection.close(timeout=CONNECT_S)


async def keep_alive(connection: Any) -> None:
    """Have the operating system notice that the other side has gone."""
    channel = connection._transport.get_extra_info("socket")
    if channel is None or channel.family not in (socket.AF_INET, socket.AF_INET6):
        return
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:
            channel.setsockopt(socket.IPPROTO_TCP, option, value)
