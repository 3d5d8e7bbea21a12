"""Where benchmarks work: on the disk, in fresh databases, in a directory that is gone afterwards."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Self

import asyncpg

from bench import ROOT
from bench.databases import Database, PostgresDatabase, SqliteDatabase, ValkeyDatabase
from tests.servers import PostgreSQL, Valkey

#: On the disk of the repository, whatever the usual temporary directory is made of.
PARENT = ROOT / "bench" / "results"
PREFIX = "scratch-"
OWNER = "owner"
TEMPLATE = "bench_template"
#: Where a Valkey server keeps its log of writes.
VALKEY_LOG = "appendonlydir"


class ValkeyServer(Valkey):
    """A server that begins with the data of another one."""

    def __init__(self, template: Path | None, *arguments: str) -> None:
        self._template = template
        # The log is never rewritten in the middle of a window.
        super().__init__("--auto-aof-rewrite-percentage", "0", *arguments)

    def prepare(self) -> None:
        super().prepare()
        if self._template is not None:
            shutil.copytree(self._template / VALKEY_LOG, self.directory / VALKEY_LOG)


class Places:
    """All databases of one run. Servers start when the first case needs them; everything is gone at the end."""

    def __init__(self) -> None:
        PARENT.mkdir(parents=True, exist_ok=True)
        _remove_leftovers()
        self.directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=PARENT))
        # The lock goes with this process, however it ends: the next run then removes what it left behind.
        self._owner = (self.directory / OWNER).open("w")
        fcntl.flock(self._owner, fcntl.LOCK_EX)
        self.server: PostgreSQL | None = None
        self.postgres_version = self.valkey_version = ""
        self._made = 0
        self._sqlite: SqliteDatabase | None = None
        self._postgres: PostgresDatabase | None = None
        #: A server that was prepared and stopped, and the partition of its lane.
        self._valkey: tuple[ValkeyServer, int] | None = None
        self._valkeys: dict[Database, ValkeyServer] = {}

    async def database(self, store: str) -> Database:
        """A fresh database, copied from one that was prepared once."""
        make: dict[str, Callable[[], Awaitable[Database]]] = {
            "sqlite": self._sqlite_database,
            "postgres": self._postgres_database,
            "valkey": self.valkey_database,
        }
        self._made += 1
        return await make[store]()

    def let_go(self, but: Collection[Database]) -> None:
        """Give back the memory of databases that nobody uses any more."""
        for database in [each for each in self._valkeys if each not in but]:
            self._valkeys.pop(database).close()

    async def _sqlite_database(self) -> SqliteDatabase:
        if self._sqlite is None:
            template = SqliteDatabase(self.directory / "template.sqlite")
            await template.prepare()
            self._sqlite = template
        path = self.directory / f"bench-{self._made}.sqlite"
        shutil.copyfile(self._sqlite.path, path)
        return SqliteDatabase(path)

    async def _postgres_database(self) -> PostgresDatabase:
        if self.server is None:
            # In this thread, although it blocks: the server ends with the thread that has started it.
            self.server = PostgreSQL(durable=True)
        assert self.server.process is not None
        process, address = self.server.process.pid, self.server.dsn.removesuffix("postgres")
        connection = await asyncpg.connect(self.server.dsn)
        try:
            if self._postgres is None:
                self.postgres_version = await connection.fetchval("SHOW server_version")
                await connection.execute(f"CREATE DATABASE {TEMPLATE}")
                template = PostgresDatabase(address + TEMPLATE, process)
                await template.prepare()
                self._postgres = template
            name = f"bench_{self._made}"
            await connection.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
        finally:
            await connection.close()
        return PostgresDatabase(address + name, process, self._postgres.partition)

    async def valkey_database(self, *settings: str) -> ValkeyDatabase:
        """A server of its own, with further settings."""
        if self._valkey is None:
            template = self._started(None, 0)
            await template.prepare()
            await template.compact()
            self.valkey_version = (await template.facts())["valkey_version"]
            server = self._valkeys.pop(template)
            server.stop()
            self._valkey = server, template.partition
        server, partition = self._valkey
        return self._started(server.directory, partition, *settings)

    def _started(self, data: Path | None, partition: int, *settings: str) -> ValkeyDatabase:
        # In this thread, although it blocks: a server ends with the thread that has started it.
        server = ValkeyServer(data, *settings)
        assert server.process is not None
        found = ValkeyDatabase(server.url, server.process.pid, partition)
        self._valkeys[found] = server
        return found

    @property
    def valkey_directory(self) -> Path | None:
        """Where Valkey servers write, if there were any."""
        return None if self._valkey is None else self._valkey[0].directory

    def close(self) -> None:
        """Stop the servers and remove all files."""
        if self.server is not None:
            self.server.close()
        self.let_go(but=())
        if self._valkey is not None:
            self._valkey[0].close()
        shutil.rmtree(self.directory, ignore_errors=True)
        self._owner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _remove_leftovers() -> None:
    """Remove what killed runs left behind."""
    for directory in PARENT.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), (directory / OWNER).open("r+") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
