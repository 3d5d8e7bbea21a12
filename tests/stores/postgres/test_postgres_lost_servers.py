"""A PostgreSQL server whose machine vanishes without a word, or that becomes a standby, is left for a living one."""

from __future__ import annotations

import asyncio
import socket
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from flowfabric import Transport
from flowfabric.engine import Engine
from flowfabric.stores.postgres import connect, notify
from tests.databases import Administrator
from tests.forwarder import Forwarder
from tests.servers import LOOPBACK


def through(dsn: str, door: Forwarder) -> str:
    """The same database behind a door."""
    parts = urlsplit(dsn)
    return parts._replace(netloc=f"{parts.username}@{LOOPBACK}:{door.port}").geturl()


async def test_every_connection_notices_that_the_other_side_has_gone(postgres_dsn: str) -> None:
    async with (
        Forwarder(urlsplit(postgres_dsn).port) as door,
        await Engine.open(through(postgres_dsn, door)) as engine,
        engine.store.raw() as reader,
    ):
        await engine.create_execution()
        [writer] = engine.store._writers
        listener = await notify._connect(through(postgres_dsn, door))
        for each in (writer, reader._con, listener):
            channel = each._transport.get_extra_info("socket")
            assert channel.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert channel.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
            assert each._config.command_timeout == connect.STATEMENT_S
        await listener.close()


async def test_a_server_that_falls_silent_costs_one_statement(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connect.OPTIONS, "command_timeout", 0.5)
    async with (
        Forwarder(urlsplit(postgres_dsn).port) as door,
        await Engine.open(through(postgres_dsn, door)) as engine,
    ):
        await engine.create_execution()
        door.freeze()
        with pytest.raises(Transport, match="outcome unknown"):
            await engine.create_execution()
        with pytest.raises(Transport):
            await engine.ping()
        await engine.create_execution()
        await engine.ping()


async def test_a_listener_that_hears_nothing_any_more_connects_again(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "ASK_EVERY_S", 0.05)
    monkeypatch.setattr(notify, "ANSWER_S", 0.5)
    async with Forwarder(urlsplit(postgres_dsn).port) as door:
        wakeups = notify.Wakeups(through(postgres_dsn, door))
        heard = wakeups.heard()
        assert await anext(heard) is None
        door.freeze()
        assert await asyncio.wait_for(anext(heard), 30) is None, "what was missed is looked for"
        sender: Any = await asyncpg.connect(postgres_dsn)
        await sender.execute(f"SELECT pg_notify('{notify.CHANNEL}', 'topic')")
        assert await asyncio.wait_for(anext(heard), 30) == "topic"
        await sender.close()
        await wakeups.close()
        await heard.aclose()


async def test_a_primary_that_has_become_a_standby_is_left(postgres_dsn: str) -> None:
    async with await Engine.open(postgres_dsn) as engine:
        await engine.create_execution()
        demoted = "SET default_transaction_read_only = on"
        [writer] = engine.store._writers
        await writer.execute(demoted)
        await engine.create_execution()
        assert writer.is_closed()
        async with engine.store.raw() as reader:
            await reader.execute(demoted)
        with pytest.raises(Transport, match="it is a standby"):
            await engine.ping()
        await engine.ping()


async def test_a_standby_is_not_opened(postgres_dsn: str, postgres_administrator: Administrator) -> None:
    async with await Engine.open(postgres_dsn):
        pass
    name = urlsplit(postgres_dsn).path[1:]
    postgres_administrator.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with pytest.raises(Transport, match="cannot open the database"):
        await Engine.open(postgres_dsn)
    postgres_administrator.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = off")
