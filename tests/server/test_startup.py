"""A server whose Valkey is not there yet waits for it; one that will never do is refused at once."""

from __future__ import annotations

import asyncio
import logging

import pytest

from flowfabric.model.errors import Transport, TransportKind
from flowfabric.server import ServerConfig, startup
from flowfabric.server.serving import open_engine
from flowfabric.server.startup import PASSING, patiently
from flowfabric.stores.protocol import Conflict
from flowfabric.stores.valkey.connection import suitable_version
from tests.servers import LOOPBACK, Valkey
from tests.stores.valkey.test_failover import asked

SECRET = "ab" * 32


def config(url: str) -> ServerConfig:
    return ServerConfig(store_url=url, hmac_secret=SECRET)


def waits(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "retrying in" in each.getMessage()]


@pytest.fixture(autouse=True)
def heard(caplog: pytest.LogCaptureFixture) -> None:
    """What a server says while it waits."""
    caplog.set_level(logging.WARNING, "flowfabric.server")


async def test_a_server_that_starts_before_its_valkey(caplog: pytest.LogCaptureFixture) -> None:
    with Valkey() as valkey:
        valkey.stop()
        opening = asyncio.create_task(open_engine(config(valkey.url.replace("valkey://", "valkey://me:canary@"))))
        async with asyncio.timeout(60):
            while not waits(caplog):  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.01)
        assert f"cannot connect to valkey://{LOOPBACK}:{valkey.port}/0" in waits(caplog)[0]
        assert "canary" not in caplog.text
        valkey.start()
        with pytest.raises(Transport) as caught:
            await opening
        assert caught.value.kind == TransportKind.AUTH, "there is no such account: that does not pass"
        async with await open_engine(config(valkey.url)) as engine:
            assert (await engine.list_waitpoint_hmac_kids()).current_kid == "k1"


async def test_what_does_not_pass_is_refused_at_once(caplog: pytest.LogCaptureFixture) -> None:
    with Valkey("--appendonly", "no") as valkey:
        await asked(valkey, "CONFIG", "SET", "requirepass", "secret")
        place = f"{LOOPBACK}:{valkey.port}/0"
        for url, said in (
            (f"valkey://{place}", "the server wants a password"),
            (f"valkey://:wrong@{place}", "refused the user or the password"),
            (f"valkey://:secret@{place}", "appendonly no"),
        ):
            with pytest.raises(Transport, match=said):
                await open_engine(config(url))
    with Valkey("--replicaof", LOOPBACK, "1") as replica, pytest.raises(Transport, match="read-only replica"):
        await open_engine(config(replica.url))
    assert waits(caplog) == []


@pytest.mark.parametrize("kind", TransportKind)
async def test_only_what_may_pass_is_tried_again(
    kind: TransportKind, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(startup, "FIRST_PAUSE_S", 0.0)
    tries: list[int] = []

    async def third_time() -> str:
        tries.append(len(tries))
        if len(tries) < 3:
            raise Transport("valkey", kind, "not yet")
        return "open"

    if kind in PASSING:
        assert await patiently(third_time, 60) == "open"
        assert len(waits(caplog)) == 2
    else:
        with pytest.raises(Transport, match="not yet"):
            await patiently(third_time, 60)
        assert waits(caplog) == []


async def test_a_server_that_is_being_upgraded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(startup, "FIRST_PAUSE_S", 0.0)
    versions = iter(["7.0.15", "7.1.0", "7.2.0"])

    async def opened() -> str:
        return suitable_version({"valkey_version": next(versions)})

    assert await patiently(opened, 60) == "7.2.0"
    assert len(waits(caplog)) == 2
    assert "needs 7.2 or newer" in waits(caplog)[0]


async def test_patience_ends(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def never() -> None:
        raise Conflict("another process was quicker")

    with pytest.raises(Conflict):
        await patiently(never, 0)
    assert waits(caplog) == []
    monkeypatch.setattr(startup, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(startup, "LONGEST_PAUSE_S", 0.03)
    with pytest.raises(Conflict):
        await patiently(never, 0.1)
    pauses = [each.rpartition("retrying in ")[2] for each in waits(caplog)]
    assert pauses == ["0.01 s", "0.02 s", "0.03 s", "0.03 s"][: len(pauses)]
