"""What a commit on Valkey survives: found out, said, checked, and waited for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from flowfabric.engine import Engine
from flowfabric.model.errors import Transport, TransportKind
from flowfabric.stores.valkey import durability
from flowfabric.stores.valkey.address import parse
from flowfabric.stores.valkey.connection import Connection
from flowfabric.stores.valkey.durability import Durability, call_replicated, examine
from tests.contract.probe import claimed
from tests.servers import LOOPBACK, Valkey

LIBRARY = """#!lua name=test_durability
redis.register_function('test_durability_set', function(keys, args) return redis.call('SET', keys[1], args[1]) end)
"""
#: Replicas need not wait for others to share a transfer with.
AT_ONCE = ("--repl-diskless-sync-delay", "0")
SAFE = Durability(None, True, "always", False, "noeviction", 0)


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[Connection]:
    connection = await Connection.open(parse(url), LIBRARY, functions_prefix="test_durability_")
    try:
        yield connection
    finally:
        await connection.close()


async def found(url: str) -> Durability:
    async with opened(url) as connection:
        return await examine(connection)


@contextlib.contextmanager
def refused(said: str) -> Any:
    with pytest.raises(Transport, match=said) as caught:
        yield
    assert caught.value.kind is TransportKind.PROTOCOL


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("settings", [("--appendfsync", "everysec"), ("--maxmemory-policy", "allkeys-lru")])
async def test_a_server_that_comes_back_with_other_settings(settings: tuple[str, ...]) -> None:
    """What was asked for is asked of every server that answers, not only of the first one."""
    with Valkey() as server:
        async with await Engine.open(f"{server.url}?durability=always") as engine:
            made = await engine.create_execution(lane_id="lane")
            server.kill9()
            server.arguments = settings
            server.start()
            for _ in range(2):
                with refused(r"set appendfsync always|set maxmemory-policy noeviction"):
                    await engine.create_execution(lane_id="lane")
            assert engine.durability is not None
            assert engine.durability.facts()[settings[0].removeprefix("--")] == settings[1]
            assert await engine.describe_execution(made.execution_id) is not None, "reading goes on"
            assert (await engine.list_executions(made.execution_id.partition)).executions == (made.execution_id,)
            server.kill9()
            server.arguments = ()
            server.start()
            await engine.create_execution(lane_id="lane")
            assert engine.durability == replace(SAFE, asked="always")


async def test_the_settings_are_found(valkey_server: Any, caplog: pytest.LogCaptureFixture) -> None:
    if isinstance(valkey_server, Valkey):
        assert await found(valkey_server.url) == SAFE
    SAFE.check()
    replace(SAFE, asked="always").check()
    assert SAFE.sentence() == (
        "a commit is on the server's disk before it is acknowledged: it survives crashes and power failures"
    )
    assert warnings(caplog) == []


async def test_other_settings_are_found() -> None:
    others = ("--appendfsync", "everysec", "--no-appendfsync-on-rewrite", "yes", "--maxmemory-policy", "allkeys-lru")
    with Valkey(*others) as server:
        assert await found(server.url) == Durability(None, True, "everysec", True, "allkeys-lru", 0)
    with Valkey("--appendonly", "no") as server:
        assert await found(f"{server.url}?durability=relaxed") == replace(SAFE, asked="relaxed", appendonly=False)


def test_a_second_may_be_lost_which_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    every_second = replace(SAFE, appendfsync="everysec")
    every_second.check()
    (said,) = warnings(caplog)
    assert said.startswith(
        "up to a second of acknowledged work is lost if the server or its machine fails; set appendfsync always"
    )
    assert "up to a second of acknowledged work is lost if it fails" in every_second.sentence()
    caplog.clear()
    replace(every_second, asked="relaxed").check()
    assert warnings(caplog) == []
    replace(SAFE, appendfsync="no").check()
    assert "up to half a minute" in warnings(caplog)[0]
    caplog.clear()
    replace(SAFE, pauses_in_rewrites=True).check()
    assert "no-appendfsync-on-rewrite no" in warnings(caplog)[0]


def test_a_server_that_keeps_nothing() -> None:
    forgetful = replace(SAFE, appendonly=False)
    for asked in (None, "always", "replicated"):
        with refused(r"set appendonly yes there, or accept the loss with \?durability=relaxed"):
            replace(forgetful, asked=asked).check()
    replace(forgetful, asked="relaxed").check()
    assert "it is lost when the server stops" in forgetful.sentence()


def test_a_server_that_throws_keys_away(caplog: pytest.LogCaptureFixture) -> None:
    for asked in (None, "always", "replicated"):
        for policy in ("allkeys-lru", "volatile-ttl"):
            with refused(f"maxmemory-policy {policy}: .* set maxmemory-policy noeviction there, or accept it with"):
                replace(SAFE, asked=asked, maxmemory_policy=policy).check()
    relaxed = replace(SAFE, asked="relaxed", maxmemory_policy="volatile-ttl")
    relaxed.check()
    assert warnings(caplog) == [], "no key of ours ever expires, so that it takes none"
    assert relaxed.sentence() == SAFE.sentence()
    evicting = replace(relaxed, maxmemory_policy="allkeys-lru")
    evicting.check()
    said = "a server short of memory deletes all records of a kind at once, without an error"
    assert warnings(caplog) == [f"maxmemory-policy allkeys-lru: {said}; set noeviction there"]
    assert evicting.sentence() == f"{SAFE.sentence()}; {said}"


async def test_whoever_accepts_it_works_on_a_server_that_throws_keys_away() -> None:
    with Valkey("--maxmemory-policy", "allkeys-random") as server:
        with refused("maxmemory-policy allkeys-random"):
            await Engine.open(server.url)
        async with await Engine.open(f"{server.url}?durability=relaxed") as engine:
            await engine.complete(await claimed(engine), b"")


def test_always_means_always() -> None:
    for less in (replace(SAFE, appendfsync="everysec"), replace(SAFE, pauses_in_rewrites=True)):
        with refused("durability=always: .* set appendfsync always and no-appendfsync-on-rewrite no there"):
            replace(less, asked="always").check()


async def test_settings_that_may_not_be_read(caplog: pytest.LogCaptureFixture) -> None:
    with Valkey("--maxmemory-policy", "allkeys-lru") as server:
        async with opened(server.url) as connection:
            rules = ("on", ">pw", "~*", "&*", "+@all", "-config")
            await connection.command("ACL", "SETUSER", "me", *rules, read_only=False)
        unseen = await found(f"valkey://me:pw@{LOOPBACK}:{server.port}")
    # INFO still tells whether there is a file, and what is evicted.
    assert unseen == replace(SAFE, appendfsync=None, maxmemory_policy="allkeys-lru")
    unseen = replace(unseen, maxmemory_policy="noeviction")
    assert "whether it survives a crash is not known, as the account may not read appendfsync" in unseen.sentence()
    unseen.check()
    assert warnings(caplog) == [f"{unseen.sentence()}; let it run CONFIG GET"]
    with refused("durability=always: the account may not read the server's settings"):
        replace(unseen, asked="always").check()


async def test_replicated_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    with Valkey(*AT_ONCE) as primary:
        url = f"{primary.url}?durability=replicated"
        with Valkey("--replicaof", LOOPBACK, str(primary.port)) as replica:
            async with opened(url) as connection:
                await replicas(connection, 1)
                examined = await examine(connection)
                assert (examined.replicas, examined.safe_replicas) == (1, 1)
                examined.check()
                assert "when a replica has it too and survives the loss of either machine" in examined.sentence()
                took = []
                for number in range(20):
                    began = time.monotonic()
                    answer = await call_replicated(connection, "set", [b"key"], [b"%d" % number])
                    took.append(time.monotonic() - began)
                    assert answer == b"OK"
                # Replicas tell by themselves once a second; asked at the right time, they tell at once.
                assert sorted(took)[10] < 0.5
                replica.kill9()
                with pytest.raises(Transport, match=r"outcome unknown: no replica confirmed .* within 0\.05 s") as late:
                    await call_replicated(connection, "set", [b"key"], [b"late"], timeout_s=0.05)
                assert late.value.kind is TransportKind.TRANSPORT
                assert await connection.command("GET", "key") == b"late"
        monkeypatch.setattr(durability, "PROBE_TIMEOUT_S", 0.05)
        with refused("durability=replicated: of 0 connected replicas, none has confirmed .* appendonly yes"):
            (await found(url)).check()


async def test_a_replica_without_a_file_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durability, "PROBE_TIMEOUT_S", 0.3)
    with Valkey(*AT_ONCE) as primary, Valkey("--replicaof", LOOPBACK, str(primary.port), "--appendonly", "no"):
        async with opened(f"{primary.url}?durability=replicated") as connection:
            await replicas(connection, 1)
            examined = await examine(connection)
            assert (examined.replicas, examined.safe_replicas) == (1, 0)
            with refused("of 1 connected replicas, none has confirmed"):
                examined.check()


def test_two_machines_may_fail_together() -> None:
    weak = replace(SAFE, asked="replicated", appendfsync="everysec", replicas=1, safe_replicas=1)
    assert weak.sentence().endswith("survives the loss of either machine, but not of both in the same second")


async def replicas(connection: Connection, count: int) -> None:
    """Wait until so many have caught up."""
    async with asyncio.timeout(30):
        while (await connection.commands(("SET", "a", 1), ("WAIT", count, 100), read_only=False))[1] < count:
            pass
