"""The servers that other tests stand on: fresh databases, crashes, and nothing left behind."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from tests.conftest import full_run
from tests.databases import with_database
from tests.ports import free_port
from tests.servers import (
    OWNER_FILE,
    SCRATCH_PREFIX,
    PostgreSQL,
    ScratchDirectory,
    Server,
    ServerError,
    Valkey,
    open_to_everybody,
    remove_leftovers,
)

ROOT = Path(__file__).resolve().parents[2]
WAIT_LIMIT_S = 30.0


# ----------------------------------------------------------------------------------------------------------- PostgreSQL


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgreSQL]:
    """A PostgreSQL that these tests may crash."""
    with PostgreSQL() as server:
        yield server


@contextlib.asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


async def setting(dsn: str, name: str) -> str:
    async with connected(dsn) as connection:
        return str(await connection.fetchval("SELECT current_setting($1)", name))


@pytest.mark.parametrize("attempt", [1, 2])
async def test_every_test_gets_an_empty_database(postgres_dsn: str, attempt: int) -> None:
    async with connected(postgres_dsn) as connection:
        tables = await connection.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")
        assert tables == 0
        await connection.execute("CREATE TABLE left_behind (attempt int)")


async def test_a_database_is_dropped_although_a_connection_is_open(
    postgres_server: PostgreSQL, request: pytest.FixtureRequest
) -> None:
    dsn = request.getfixturevalue("postgres_dsn")
    assert dsn.startswith(postgres_server.dsn.rsplit("/", 1)[0])
    connection = await asyncpg.connect(dsn)
    request.addfinalizer(connection.terminate)


def test_another_database_on_the_same_server() -> None:
    assert with_database("postgresql://ff@127.0.0.1:5432/postgres", "other") == "postgresql://ff@127.0.0.1:5432/other"
    assert with_database("postgresql:///first?host=/sockets", "other") == "postgresql:///other?host=/sockets"


async def test_committed_rows_survive_kill_9(own_postgres: PostgreSQL) -> None:
    connection = await asyncpg.connect(own_postgres.dsn)
    await connection.execute("CREATE TABLE kept (number int)")
    await connection.execute("INSERT INTO kept VALUES (1)")
    own_postgres.kill9()
    connection.terminate()
    with pytest.raises(OSError, match=r"."):
        await asyncpg.connect(own_postgres.dsn)
    own_postgres.start()
    async with connected(own_postgres.dsn) as reconnected:
        assert await reconnected.fetchval("SELECT number FROM kept") == 1


async def test_a_killed_server_starts_again_and_again(own_postgres: PostgreSQL) -> None:
    for _ in range(20 if full_run() else 3):
        own_postgres.kill9()
        own_postgres.start()
        async with connected(own_postgres.dsn) as connection:
            assert await connection.fetchval("SELECT 1") == 1


async def test_ready_is_not_believed_from_the_file_of_a_killed_server(own_postgres: PostgreSQL) -> None:
    process = own_postgres.process
    assert process is not None
    assert own_postgres.is_ready(process)
    with subprocess.Popen(["true"]) as stranger:
        assert not own_postgres.is_ready(stranger)


async def test_a_stopped_server_starts_again(own_postgres: PostgreSQL) -> None:
    own_postgres.stop()
    with pytest.raises(OSError, match=r"."):
        await asyncpg.connect(own_postgres.dsn)
    own_postgres.start()
    assert await setting(own_postgres.dsn, "jit") == "off"


async def test_only_a_durable_server_waits_for_the_disk(own_postgres: PostgreSQL) -> None:
    assert await setting(own_postgres.dsn, "fsync") == "off"
    with PostgreSQL(durable=True) as durable:
        assert await setting(durable.dsn, "fsync") == "on"
        assert await setting(durable.dsn, "synchronous_commit") == "on"


# --------------------------------------------------------------------------------------------------------------- Valkey


def ask(server: Valkey, command: str) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), 5) as connection:
        connection.sendall(f"{command}\r\n".encode())
        return connection.recv(1024)


def test_valkey_keeps_what_it_acknowledged_over_kill_9() -> None:
    with Valkey() as server:
        assert ask(server, "SET kept yes") == b"+OK\r\n"
        server.kill9()
        server.start()
        assert ask(server, "GET kept") == b"$3\r\nyes\r\n"


def test_valkey_takes_further_arguments() -> None:
    with Valkey("--maxclients", "77") as server:
        assert b"77" in ask(server, "CONFIG GET maxclients")


# ------------------------------------------------------------------------------------------------- nothing left behind


def test_a_closed_server_leaves_nothing_behind() -> None:
    with Valkey() as server:
        process, directory = server.process, server.directory
        assert directory.is_dir()
    assert process is not None
    assert process.returncode is not None
    assert not directory.exists()


def test_a_server_that_cannot_start_says_why_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    directories: list[Path] = []

    class Broken(Server):
        def command(self) -> list[str]:
            directories.append(self.directory)
            return [sys.executable, "-c", "print('the reason')"]

        def is_ready(self, process: subprocess.Popen[bytes]) -> bool:
            return False

    monkeypatch.setattr("tests.servers.START_TIMEOUT_S", 0.5)
    with pytest.raises(ServerError, match="the reason"):
        Broken()
    assert directories
    assert not directories[0].exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent died")
@pytest.mark.parametrize("kind", ["PostgreSQL", "Valkey"])
async def test_servers_end_when_the_run_is_killed(kind: str) -> None:
    program = f"from tests.servers import *; s = {kind}(); print(s.port, s.directory, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        port, directory = run.stdout.readline().split()
        socket.create_connection(("127.0.0.1", int(port)), 5).close()
        run.send_signal(signal.SIGKILL)
        run.wait()
    await until_refused(int(port))
    await asyncio.to_thread(remove_as_if_old, Path(directory))
    assert not Path(directory).exists()


async def until_refused(port: int) -> None:
    deadline = time.monotonic() + WAIT_LIMIT_S
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 5).close()
        except OSError:
            return
        await asyncio.sleep(0.05)
    pytest.fail(f"something still listens on port {port}")


def remove_as_if_old(directory: Path) -> None:
    os.utime(directory, (0, 0))
    remove_leftovers(directory.parent)


def test_a_directory_in_use_is_no_leftover() -> None:
    scratch = ScratchDirectory(in_memory=False)
    try:
        remove_as_if_old(scratch.path)
        assert (scratch.path / OWNER_FILE).exists()
    finally:
        scratch.remove()
    assert not scratch.path.exists()
    assert scratch.path.name.startswith(SCRATCH_PREFIX)


def test_copied_programs_can_be_run_by_everybody(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "program"
    program.parent.mkdir(mode=0o700)
    program.touch(mode=0o700)
    data = tmp_path / "bin" / "data"
    data.touch(mode=0o600)
    open_to_everybody(tmp_path)
    modes = [path.stat().st_mode & 0o777 for path in (program.parent, program, data)]
    assert modes == [0o755, 0o755, 0o644]


# ---------------------------------------------------------------------------------------------------------------- ports


def test_another_server_on_the_port_is_not_taken_for_ours() -> None:
    with Valkey(in_memory=True) as server, subprocess.Popen(["sleep", "60"]) as other:
        assert server.process is not None
        try:
            assert server.is_ready(server.process)
            assert not server.is_ready(other)
        finally:
            other.kill()


def test_ports_of_two_processes_differ() -> None:
    ask = "from tests.ports import free_port; print(*(free_port() for _ in range(50)))"
    said = subprocess.run([sys.executable, "-c", ask], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    assert not {int(port) for port in said.split()} & {free_port() for _ in range(50)}
