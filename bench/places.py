"""Where benchmarks work: on the disk, in fresh databases, in a directory that is gone afterwards."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
from pathlib import Path
from typing import Self

import asyncpg

from bench import ROOT
from bench.databases import Database, PostgresDatabase, SqliteDatabase
from tests.servers import PostgreSQL

#: On the disk of the repository, whatever the usual temporary directory is made of.
PARENT = ROOT / "bench" / "results"
PREFIX = "scratch-"
OWNER = "owner"
TEMPLATE = "bench_template"


class Places:
    """All databases of one run. The server starts when the first case needs it; everything is gone at the end."""

    def __init__(self) -> None:
        PARENT.mkdir(parents=True, exist_ok=True)
        _remove_leftovers()
        self.directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=PARENT))
        # The lock goes with this process, however it ends: the next run then removes what it left behind.
        self._owner = (self.directory / OWNER).open("w")
        fcntl.flock(self._owner, fcntl.LOCK_EX)
        self.server: PostgreSQL | None = None
        self.postgres_version = ""
        self._made = 0
        self._sqlite: SqliteDatabase | None = None
        self._postgres: PostgresDatabase | None = None

    async def database(self, store: str) -> Database:
        """A fresh database, copied from one that was prepared once."""
        self._made += 1
        if store == "sqlite":
            return await self._sqlite_database()
        return await self._postgres_database()

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

    def close(self) -> None:
        """Stop the server and remove all files."""
        if self.server is not None:
            self.server.close()
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
