"""Connections to Valkey: what is called, what is lost, what is refused, and what is said about it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import libvalkey
import pytest

from flowfabric import ClaimPolicy
from flowfabric.engine import Engine
from flowfabric.model.errors import Transport, TransportKind
from flowfabric.stores.protocol import Conflict
from flowfabric.stores.valkey import connection as connections
from flowfabric.stores.valkey.address import parse
from flowfabric.stores.valkey.connection import READERS, WRITERS, Connection, suitable_version
from flowfabric.stores.valkey.errors import BY_WORD, refusal
from tests.ports import LOOPBACK, free_port
from tests.servers import Valkey

LIBRARY = """#!lua name=test_{0}
local function write(name, body) redis.register_function('test_{0}_' .. name, body) end
local function read(name, body)
  redis.register_function{{function_name='test_{0}_' .. name, flags={{'no-writes'}}, callback=body}}
end
local function turn(milliseconds)
  local last = os.clock() + milliseconds / 1000
  while os.clock() < last do end
end
write('set', function(keys, args) redis.call('SET', keys[1], args[1]) return #args end)
write('slow_set', function(keys, args)
  redis.call('SET', keys[1], args[1]) turn(tonumber(args[2])) return 1
end)
read('get', function(keys, args) return redis.call('GET', keys[1]) end)
read('turn', function(keys, args) turn(tonumber(args[1])) return redis.call('GET', keys[1]) end)
read('release', function(keys, args) return '{0}' end)
"""
PREFIX = "test_1_"


def library(release: str = "1") -> str:
    return LIBRARY.format(release)


@contextlib.asynccontextmanager
async def opened(
    url: str, release: str = "1", on_change: Callable[[], None] = lambda: None
) -> AsyncIterator[Connection]:
    functions = f"test_{release}_"
    connection = await Connection.open(parse(url), library(release), functions_prefix=functions, on_change=on_change)
    try:
        yield connection
    finally:
        await connection.close()


@contextlib.contextmanager
def refused(kind: TransportKind, said: str) -> Any:
    """What is inside is refused with these words."""
    with pytest.raises(Transport, match=said) as caught:
        yield
    assert (caught.value.kind, caught.value.backend) == (kind, "valkey")


async def write(connection: Connection, key: bytes, value: bytes) -> Any:
    return await connection.call("set", [key], [value], read_only=False)


async def read(connection: Connection, key: bytes) -> Any:
    return await connection.call("get", [key], [], read_only=True)


async def again_and_again(call: Callable[[], Awaitable[Any]]) -> None:
    """Until it is refused, and not only in the way of another."""
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(Conflict):
                await call()


@pytest.fixture
def key() -> bytes:
    """A key that only this test uses."""
    return secrets.token_hex(8).encode()


# --------------------------------------------------------------------------------------------------------------- calls


async def test_calls_carry_bytes_both_ways(valkey_server: Any, key: bytes) -> None:
    value = bytes(range(256)) * 1000
    async with opened(valkey_server.url) as connection:
        assert await write(connection, key, value) == 1
        assert await read(connection, key) == value
        assert await connection.command("STRLEN", key) == len(value)
        assert await connection.commands(("SET", key, 5), ("INCR", key), read_only=False) == [b"OK", 6]
        assert connection.server_version[0].isdigit()


async def test_a_command_can_follow_on_the_same_wire(valkey_server: Any, key: bytes) -> None:
    async with opened(valkey_server.url) as connection:
        then = (("CLIENT", "ID"), ("GET", key))
        one, _, seen = await connection.call("set", [key], [b"v"], read_only=False, then=then)
        assert (one, seen) == (1, b"v")
        with pytest.raises(Transport, match=r"outcome unknown: .*WRONGTYPE"):
            await connection.call("set", [key], [b"v"], read_only=False, then=(("LLEN", key),))


async def test_many_calls_at_the_same_time_share_a_few_wires(valkey_server: Any, key: bytes) -> None:
    async with opened(valkey_server.url) as connection:
        keys = [key + b"%d" % number for number in range(100)]
        await asyncio.gather(*(write(connection, each, each) for each in keys))
        assert await asyncio.gather(*(read(connection, each) for each in keys)) == keys
        assert len(connection._wires) <= READERS + WRITERS


async def test_long_reads_do_not_take_the_wires_of_commits(key: bytes) -> None:
    async with server({b"FCALL_RO": None, b"FCALL": 7}) as url, opened(url) as connection:
        reads = [asyncio.create_task(read(connection, key)) for _ in range(READERS + 1)]
        assert await write(connection, key, b"v") == 7
        await connection.close()
        assert all(isinstance(each, Transport) for each in await asyncio.gather(*reads, return_exceptions=True))


async def test_a_cancelled_call_leaves_no_answer_to_the_next(valkey_server: Any, key: bytes) -> None:
    async with opened(valkey_server.url) as connection:
        await write(connection, key, b"v")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(connection.call("turn", [key], [b"50"], read_only=True), 0.01)
        assert await connection.call("release", [], [], read_only=True) == b"1"


async def test_a_closed_connection_is_gone_and_says_so() -> None:
    with Valkey() as server:
        async with opened(server.url) as connection, opened(server.url) as other:
            await asyncio.gather(*(connection.command("PING") for _ in range(5)))
            await connection.close()
            assert not connection._wires
            clients = (await other.command("CLIENT", "LIST")).splitlines()
            assert len(clients) == len(other._wires)
            with refused(TransportKind.TRANSPORT, "the connection is closed"):
                await write(connection, b"k", b"v")


# ----------------------------------------------------------------------------------------------------------- functions


async def test_libraries_of_two_releases_live_side_by_side() -> None:
    with Valkey() as server:
        async with opened(server.url) as old, opened(server.url, "2") as new, opened(server.url):
            assert await old.call("release", [], [], read_only=True) == b"1"
            assert await new.call("release", [], [], read_only=True) == b"2"
            assert len(await new.command("FUNCTION", "LIST")) == 2


async def test_functions_that_were_thrown_away_are_brought_again(key: bytes) -> None:
    with Valkey() as server:
        async with opened(server.url) as connection:
            for _ in range(2):
                await connection.command("FUNCTION", "FLUSH", read_only=False)
                calls = (write(connection, key, b"v") for _ in range(4))
                assert await asyncio.gather(*calls) == [1] * 4
            await connection.command("FUNCTION", "FLUSH", read_only=False)
            assert await read(connection, key) == b"v"
            with refused(TransportKind.SCRIPT_NOT_LOADED, "has lost FlowFabric's functions"):
                await connection.call("no_such_function", [], [], read_only=True)


async def test_a_call_meant_for_another_server_is_not_sent(key: bytes) -> None:
    with Valkey() as server:
        async with opened(server.url) as connection:
            before = connection.identity
            await connection.call("set", [key], [b"one"], read_only=False, under=before)
            server.stop()
            await asyncio.wait([wire.closed for wire in connection._wires])
            server.start()
            for _ in range(2):
                with pytest.raises(Conflict, match="another server"):
                    await connection.call("set", [key], [b"two"], read_only=False, under=before)
            assert await read(connection, key) == b"one"
            assert connection.identity != before
            await connection.call("set", [key], [b"two"], read_only=False, under=connection.identity)
            wires = set(connection._wires)
            connection.doubt()
            assert await read(connection, key) == b"two"
            assert wires.isdisjoint(connection._wires), "who answers was asked anew"


async def test_a_library_must_have_a_name_and_be_one() -> None:
    with pytest.raises(ValueError, match="#!lua name="):
        await Connection.open(parse("valkey://nowhere"), "return 1")
    with Valkey() as server:
        with refused(TransportKind.OTHER, "the server said: ERR Error compiling"):
            await Connection.open(parse(server.url), "#!lua name=broken\nno such language")
        async with opened(server.url):
            with refused(TransportKind.OTHER, "the server said: ERR Function test_1_.* already exists"):
                await Connection.open(parse(server.url), library().replace("name=test_1", "name=other"))


# ------------------------------------------------------------------------------------------------------------- refusals


async def test_passwords() -> None:
    with Valkey() as server:
        host = f"{LOOPBACK}:{server.port}"
        async with opened(server.url) as connection:
            await connection.command("CONFIG", "SET", "requirepass", "secret", read_only=False)
        async with opened(f"valkey://:secret@{host}") as connection, opened(f"valkey://default:secret@{host}"):
            assert await connection.command("PING") == b"PONG"
        with refused(TransportKind.AUTH, "write valkey://user:password@host"):
            await Connection.open(parse(f"valkey://{host}"), library())
        for account in ("me:mistaken", ":mistaken", "me"):
            with refused(TransportKind.AUTH, "refused the user or the password"):
                await Connection.open(parse(f"valkey://{account}@{host}"), library())
    with Valkey() as server, refused(TransportKind.AUTH, "has a password and the server has none"):
        await Connection.open(parse(f"valkey://:mistaken@{LOOPBACK}:{server.port}"), library())


async def test_rights(key: bytes) -> None:
    with Valkey() as server:
        async with opened(server.url) as connection:
            await write(connection, b"mine:" + key, b"v")
            rules = ("on", ">pw", "~mine:*", "+@all", "-function", "-client")
            await connection.command("ACL", "SETUSER", "me", *rules, read_only=False)
        # Somebody else has loaded the functions; the account need not even see them.
        async with opened(f"valkey://me:pw@{LOOPBACK}:{server.port}") as connection:
            assert await read(connection, b"mine:" + key) == b"v"
            with refused(TransportKind.AUTH, r"lacks a permission.*\. The server said: NOPERM"):
                await read(connection, key)


WRITING = ("hset", "hsetnx", "hincrby", "hdel", "zadd", "zrem", "sadd", "srem", "xadd", "xdel", "publish")


async def test_a_right_that_a_commit_needs() -> None:
    """An account that lacks one is refused when the store is opened, not in the middle of a commit."""
    with Valkey() as server:
        url = f"valkey://me:pw@{LOOPBACK}:{server.port}"
        async with opened(server.url) as connection:
            await connection.command("ACL", "SETUSER", "me", "on", ">pw", "~*", "&*", "+@all", read_only=False)
            async with await Engine.open(url):
                keys = await connection.command("KEYS", "*")
            for command in WRITING:
                await connection.command("ACL", "SETUSER", "me", f"-{command}", read_only=False)
                with pytest.raises(Transport, match=r"lacks a permission"):
                    await Engine.open(url)
                await connection.command("ACL", "SETUSER", "me", f"+{command}", read_only=False)
            async with await Engine.open(url) as engine:
                assert sorted(await connection.command("KEYS", "*")) == sorted(keys), "trying leaves nothing behind"
                await engine.create_execution(lane_id="lane")
                # Taken away later, it may stop a commit half way: then nobody says that nothing has happened.
                await connection.command("ACL", "SETUSER", "me", "-xadd", read_only=False)
                with pytest.raises(Transport, match="outcome unknown") as caught:
                    await engine.claim("lane", (), ClaimPolicy("w", "w-1", 30_000))
                assert caught.value.kind is TransportKind.TRANSPORT


async def test_versions_never_come_again(valkey_url: str) -> None:
    """The counter in them runs out after some billions of commits; then it begins again under another name."""
    async with await Engine.open(valkey_url) as engine:
        store = engine.store
        store._commits = 2**32 - 3
        seen = {store._message().version for _ in range(6)}
        assert len(seen) == 6
        store._commits = 2**32 - 2
        for _ in range(3):
            await engine.create_execution(lane_id="lane")


async def test_a_replica_is_refused(key: bytes) -> None:
    with Valkey() as primary:
        async with opened(primary.url) as connection:
            with Valkey("--replicaof", LOOPBACK, str(primary.port)) as replica:
                with refused(TransportKind.CLUSTER, "read-only replica: use the primary in the store URL"):
                    await Connection.open(parse(replica.url), library())
                await connection.command("REPLICAOF", LOOPBACK, replica.port, read_only=False)
                # The wire was opened while it was a primary; later ones are not opened at all.
                for _ in range(2):
                    with refused(TransportKind.CLUSTER, "read-only replica"):
                        await write(connection, key, b"v")
                assert not connection._idle


async def test_a_server_without_memory(key: bytes) -> None:
    with Valkey() as server:
        async with opened(server.url) as connection:
            await write(connection, key, b"v")
            await connection.command("CONFIG", "SET", "maxmemory", "1", read_only=False)
            with refused(TransportKind.OTHER, "nothing was written: .* raise its maxmemory"):
                await write(connection, key, b"w")
            assert await read(connection, key) == b"v"


async def test_a_server_that_cannot_save(key: bytes) -> None:
    with Valkey("--save", "3600 1") as server:
        (server.directory / "dump.rdb").mkdir()
        async with opened(server.url) as connection:
            await write(connection, key, b"v")
            await connection.command("BGSAVE", read_only=False)
            with refused(TransportKind.OTHER, "nothing was written: .* cannot save to its disk"):
                await again_and_again(lambda: write(connection, key, b"w"))
        server.kill9()  # it would not stop without having saved


async def test_a_busy_server_and_a_killed_function(key: bytes) -> None:
    with Valkey("--busy-reply-threshold", "10") as server:
        async with opened(server.url) as connection:
            await connection.command("PING")
            long = asyncio.create_task(connection.call("turn", [key], [b"60000"], read_only=True))
            with refused(TransportKind.TIMEOUT, "keeps the server busy; .* FUNCTION KILL"):
                await again_and_again(lambda: connection.command("GET", key))
            await connection.command("FUNCTION", "KILL", read_only=False)
            with refused(TransportKind.TIMEOUT, "stopped before it wrote anything"):
                await long
            assert await write(connection, key, b"v") == 1


async def test_a_value_of_another_program(valkey_server: Any, key: bytes) -> None:
    async with opened(valkey_server.url) as connection:
        await connection.command("RPUSH", key, "theirs", read_only=False)
        with refused(TransportKind.PROTOCOL, "another program uses one of FlowFabric's keys"):
            await read(connection, key)


async def test_a_cluster(key: bytes) -> None:
    with Valkey("--cluster-enabled", "yes", "--cluster-port", str(free_port())) as server:
        async with opened(server.url) as connection:
            with refused(TransportKind.CLUSTER, "cluster .* is down"):
                await write(connection, key, b"v")
        with refused(TransportKind.PROTOCOL, "only database 0|does not have this database"):
            await Connection.open(parse(server.url.removesuffix("0") + "3"), library())


async def test_a_database_that_is_not_there(valkey_server: Any) -> None:
    with refused(TransportKind.PROTOCOL, "does not have this database"):
        await Connection.open(parse(valkey_server.url.removesuffix("0") + "99999"), library())


async def test_a_server_without_free_connections() -> None:
    async def full(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"-ERR max number of clients reached\r\n")
        await reader.read(1)

    async with server_of(full) as url:
        with refused(TransportKind.OTHER, "raise its maxclients"):
            await Connection.open(parse(url), library())


async def test_a_server_that_is_loading_is_waited_for(key: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with Valkey("--key-load-delay", "200") as server:
        async with opened(server.url) as connection:
            await connection.commands(*(("SET", b"%s%d" % (key, number), "v") for number in range(3000)))
            server.stop()
            await asyncio.wait([wire.closed for wire in connection._wires])
            starting = asyncio.create_task(asyncio.to_thread(server.start))
            with pytest.raises(Conflict):
                await write(connection, key, b"v")  # it does not even listen
            with (
                monkeypatch.context() as patched,
                refused(TransportKind.BUSY_LOADING, "still reading its data from the disk"),
            ):
                patched.setattr(connections, "LOADING_TIMEOUT_S", 0.0)
                await again_and_again(lambda: write(connection, key, b"v"))
            assert await write(connection, key, b"v") == 1
            await starting


def test_every_word_has_a_sentence_of_its_own() -> None:
    for word, (kind, sentence) in BY_WORD.items():
        error = refusal(f"{word} some text of the server's")
        assert (error.kind, error.word) == (kind, word)
        assert error.detail == f"{sentence}. The server said: {word} some text of the server's"
    assert refusal("MOVED 3999 127.0.0.1:6381").kind is TransportKind.PROTOCOL
    assert len(refusal(f"ERR wrong {'x' * 10_000}").detail) < 400


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "9.1.2"}, "9.1.2"),
        ({"redis_version": "7.2.4", "server_name": "valkey"}, "7.2.4"),
        ({"valkey_version": "7.2.0-rc1"}, "7.2.0-rc1"),
        ({"valkey_version": "10.0.0"}, "10.0.0"),
    ],
)
def test_versions_that_will_do(facts: dict[str, str], found: str) -> None:
    assert suitable_version(facts) == found


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"redis_version": "7.4.1"}, "the server is Redis 7.4.1; FlowFabric needs Valkey 7.2 or newer"),
        ({"redis_version": "7.0.9", "server_name": "valkey"}, "the server is Valkey 7.0.9; .* 7.2 or newer"),
        ({"redis_version": "7.2.4", "server_name": "other"}, "the server is Redis 7.2.4"),
        ({}, "the server is something else"),
    ],
)
async def test_versions_that_will_not_do(facts: dict[str, str], said: str) -> None:
    info = "\r\n".join(f"{name}:{value}" for name, value in facts.items()).encode()
    async with server({b"INFO": info}) as url:
        with refused(TransportKind.PROTOCOL, said):
            await Connection.open(parse(url), library())


# ---------------------------------------------------------------------------------------------------------- lost wires


async def test_a_server_that_is_killed_in_a_call_and_comes_back(key: bytes) -> None:
    changes: list[str] = []
    with Valkey() as server:
        async with opened(server.url, on_change=lambda: changes.append("changed")) as connection:
            before = connection.identity
            await asyncio.gather(*(write(connection, key, b"v") for _ in range(3)))
            writing = asyncio.create_task(connection.call("slow_set", [key], [b"w", b"60000"], read_only=False))
            reading = asyncio.create_task(connection.call("turn", [key], [b"60000"], read_only=True))
            await asyncio.sleep(0)  # they are on their way
            server.kill9()
            with refused(TransportKind.TRANSPORT, "connection lost during commit, outcome unknown: "):
                await writing
            with refused(TransportKind.TRANSPORT, "Connect call failed"):
                await reading
            with pytest.raises(Conflict, match="cannot connect: "):
                await write(connection, key, b"v")
            with refused(TransportKind.TRANSPORT, "Connect call failed"):
                await read(connection, key)
            assert changes == []
            server.start()
            answering = asyncio.create_task(read(connection, key))
            answering.add_done_callback(lambda _: changes.append("answered"))
            assert await answering == b"v"
            assert changes == ["changed", "answered"]
            assert connection.identity != before
            assert await write(connection, key, b"x") == 1
            assert changes == ["changed", "answered"]


async def test_nothing_to_connect_to(monkeypatch: pytest.MonkeyPatch) -> None:
    with Valkey() as server:
        url = server.url
    with refused(TransportKind.TRANSPORT, f"cannot connect to {url}: "):
        await Connection.open(parse(url), library())
    with refused(TransportKind.TRANSPORT, "cannot connect to valkey://nowhere.invalid:6379/0: "):
        await Connection.open(parse("valkey://nowhere.invalid"), library())
    monkeypatch.setattr(connections, "CONNECT_TIMEOUT_S", 0.05)
    async with server_of(silent) as url:
        with refused(TransportKind.TRANSPORT, "did not respond within 0.05 s"):
            await Connection.open(parse(url), library())


async def test_a_read_is_made_again_when_its_wire_is_lost(key: bytes) -> None:
    closes = ConnectionResetError()
    async with server({b"FCALL_RO": closes, b"FCALL": closes}) as url, opened(url) as connection:
        with refused(TransportKind.TRANSPORT, "the server closed the connection"):
            await read(connection, key)
        assert CALLS.pop(url) == [b"FCALL_RO", b"FCALL_RO"]
        with refused(TransportKind.TRANSPORT, "outcome unknown: the server closed the connection"):
            await write(connection, key, b"v")
        assert CALLS.pop(url) == [b"FCALL"]


async def test_a_server_that_falls_silent(key: bytes) -> None:
    async with server({b"FCALL_RO": None, b"FCALL": None}) as url, opened(url) as connection:
        with refused(TransportKind.TIMEOUT, "did not respond within 0.05 s"):
            await connection.call("get", [key], [], read_only=True, timeout_s=0.05)
        assert CALLS.pop(url) == [b"FCALL_RO"]
        with refused(TransportKind.TRANSPORT, "outcome unknown: the server did not respond within 0.05 s"):
            await connection.call("set", [key], [b"v"], read_only=False, timeout_s=0.05)
        assert CALLS.pop(url) == [b"FCALL"]


async def test_something_else_that_answers() -> None:
    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()

    async with server_of(web) as url:
        with refused(TransportKind.TRANSPORT, "the server is not Valkey"):
            await Connection.open(parse(url), library())


async def test_another_server_takes_over(key: bytes) -> None:
    changes: list[str] = []
    with Valkey() as old, Valkey() as new:
        async with (
            switch(old) as (url, turn_to),
            opened(url, on_change=lambda: changes.append("changed")) as connection,
        ):
            await write(connection, key, b"old")
            async with opened(new.url) as other:
                await write(other, key, b"new")
            reading = asyncio.create_task(connection.call("turn", [key], [b"400"], read_only=True))
            turn_to(new)
            wires = [await connection._opened() for _ in range(2)]
            assert changes == ["changed"]
            # What the old server says now is too late, and so is what it has said and nobody has read yet.
            assert await reading == b"new"
            assert await read(connection, key) == b"new"
            assert changes == ["changed"]
            for wire in wires:
                wire.abort()


# ----------------------------------------------------------------------------------------------------------------- TLS


async def test_encrypted(tmp_path: Path, key: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, private = make_certificate(tmp_path)
    settings = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    settings.load_cert_chain(certificate, private)
    with Valkey() as server:
        async with switch(server, settings) as (plain, _):
            url = plain.replace("valkey://", "valkeys://")
            async with opened(f"{url}?tls_ca={certificate}") as connection:
                await asyncio.gather(*(write(connection, key, b"v" * 200_000) for _ in range(4)))
                assert await read(connection, key) == b"v" * 200_000
                server.kill9()
                with pytest.raises((Transport, Conflict)):
                    await write(connection, key, b"w")
                server.start()
                assert await read(connection, key) == b"v" * 200_000
            with refused(TransportKind.PROTOCOL, "name the server's authority with tls_ca"):
                await Connection.open(parse(url), library())
        monkeypatch.setattr(connections, "CONNECT_TIMEOUT_S", 0.05)
        with refused(
            TransportKind.TRANSPORT, "did not respond within 0.05 s; check the port, and whether the server uses TLS"
        ):
            await Connection.open(parse(f"valkeys://{LOOPBACK}:{server.port}"), library())


async def test_a_server_that_wants_to_know_who_calls(tmp_path: Path) -> None:
    certificate, private = make_certificate(tmp_path)
    settings = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    settings.load_cert_chain(certificate, private)
    settings.load_verify_locations(certificate)
    settings.verify_mode = ssl.CERT_REQUIRED
    with Valkey() as server:
        async with switch(server, settings) as (plain, _):
            url = f"{plain.replace('valkey://', 'valkeys://')}?tls_ca={certificate}"
            async with opened(f"{url}&tls_cert={certificate}&tls_key={private}") as connection:
                assert await connection.command("PING") == b"PONG"
            with pytest.raises(Transport):
                await Connection.open(parse(url), library())


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate for this machine that vouches for itself, and its key."""
    certificate, private = directory / "certificate.pem", directory / "key.pem"
    what = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=test"]
    files = ["-keyout", str(private), "-out", str(certificate)]
    subprocess.run(
        ["openssl", "req", *what, "-days", "2", "-addext", f"subjectAltName=IP:{LOOPBACK}", *files],
        check=True,
        capture_output=True,
    )
    return certificate, private


# ------------------------------------------------------------------------------------------- servers made for the tests

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
#: Calls that servers of ``server`` have taken, by their address.
CALLS: dict[str, list[bytes]] = {}
VALKEY = b"valkey_version:9.0.0\r\nrole:master\r\nrun_id:1\r\nmaster_replid:1\r\n"


@contextlib.asynccontextmanager
async def server_of(handler: Handler, settings: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """The address of a server that handles connections like this."""
    tasks: set[asyncio.Task[Any]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await handler(reader, writer)
        finally:
            tasks.discard(task)
            writer.transport.abort()

    listening = await asyncio.start_server(handle, LOOPBACK, 0, ssl=settings)
    try:
        yield f"valkey://{LOOPBACK}:{listening.sockets[0].getsockname()[1]}/0"
    finally:
        listening.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Hears and says nothing."""
    await reader.read()


@contextlib.asynccontextmanager
async def server(answers: dict[bytes, Any]) -> AsyncIterator[str]:
    """A server that answers commands with these numbers, texts, silences (``None``) and interruptions (errors)."""
    known = {b"INFO": VALKEY, b"FUNCTION": 1, **answers}
    urls: list[str] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = libvalkey.Reader(notEnoughData=parse)
        while data := await reader.read(65536):
            parser.feed(data)
            while (command := parser.gets()) is not parse:
                if command[0].startswith(b"FCALL"):
                    CALLS.setdefault(urls[0], []).append(command[0])
                answer = known.get(command[0], 1)
                if isinstance(answer, Exception):
                    return
                if answer is not None:
                    writer.write(b":%d\r\n" % answer if isinstance(answer, int) else bulk(answer))

    async with server_of(handle) as url:
        urls.append(url)
        try:
            yield url
        finally:
            CALLS.pop(url, None)


def bulk(text: bytes) -> bytes:
    """A text as the protocol spells it."""
    return b"$%d\r\n%s\r\n" % (len(text), text)


@contextlib.asynccontextmanager
async def switch(
    first: Valkey, settings: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[str, Callable[[Valkey], None]]]:
    """An address that leads to one server, and can be turned to another for connections that come then."""
    target = [first]

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, ahead = await asyncio.open_connection(LOOPBACK, target[0].port)
        pumps = [asyncio.create_task(pump(reader, ahead)), asyncio.create_task(pump(behind, writer))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ahead.transport.abort()
            for task in pumps:
                task.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    def turn_to(other: Valkey) -> None:
        target[0] = other

    async with server_of(handle, settings) as url:
        yield url, turn_to
