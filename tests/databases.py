"""Databases for tests on one PostgreSQL: prepared once, emptied after each test, made again only if one was changed.

Copying a template creates and removes some three hundred files; deleting a handful of rows is ten times as quick.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import asyncpg

#: How long emptying may wait for what a test left behind before the database is given up instead.
EMPTYING_TIMEOUT_MS = 5_000


def with_database(dsn: str, name: str) -> str:
    """The same server, another database."""
    parts = urlsplit(dsn)
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{parts.netloc}/{name}{query}"


class Administrator:
    """Runs statements on a thread and event loop of its own, so that a fixture never meets the loop of a test."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connections: dict[str, asyncpg.Connection] = {}
        self._runner = asyncio.Runner()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="postgres-administrator")

    def execute(self, statement: str, database: str = "") -> None:
        """Run statements on a connection that is kept, to the server's own database or another."""
        self.run(self._execute(statement, database))

    def fetch(self, statement: str, database: str) -> list[Any]:
        """The rows of one statement."""
        rows: list[Any] = self.run(self._fetch(statement, database))
        return rows

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine here."""
        return self._thread.submit(lambda: self._runner.run(work)).result()

    def leave(self, database: str) -> None:
        """Close the connection to a database."""
        self.run(self._leave(database))

    def close(self) -> None:
        """Give up the connections and the thread."""
        for database in list(self._connections):
            self.leave(database)
        self._thread.submit(self._runner.close).result()
        self._thread.shutdown()

    async def _connection(self, database: str) -> asyncpg.Connection:
        found = self._connections.get(database)
        # A test may have restarted the server.
        if found is None or found.is_closed():
            dsn = with_database(self._dsn, database) if database else self._dsn
            found = self._connections[database] = await asyncpg.connect(dsn)
        return found

    async def _execute(self, statement: str, database: str) -> None:
        await (await self._connection(database)).execute(statement)

    async def _fetch(self, statement: str, database: str) -> list[Any]:
        rows: list[Any] = await (await self._connection(database)).fetch(statement)
        return rows

    async def _leave(self, database: str) -> None:
        connection = self._connections.pop(database, None)
        if connection is not None:
            await connection.close()


class Shelf:
    """Databases with all tables and no rows, each used by one test at a time."""

    def __init__(self, administrator: Administrator, template: str, strategy: str = "") -> None:
        self._administrator = administrator
        self._template = template
        self._strategy = strategy
        self._idle: list[str] = []
        self._shape = administrator.fetch(_SHAPE, template)
        self._emptying = self._statements()
        # Nobody may be connected to a database that is copied.
        administrator.leave(template)

    @contextlib.contextmanager
    def lent(self) -> Iterator[str]:
        """The name of a database, back on the shelf after the block."""
        name = self._idle.pop() if self._idle else self._made()
        try:
            yield name
        finally:
            if self._emptied(name):
                self._idle.append(name)
            else:
                self._dropped(name)

    def close(self) -> None:
        """Drop them all."""
        while self._idle:
            self._dropped(self._idle.pop())

    def _made(self) -> str:
        name = f"ff_test_{secrets.token_hex(8)}"
        self._administrator.execute(f"CREATE DATABASE {name} TEMPLATE {self._template} {self._strategy}")
        return name

    def _dropped(self, name: str) -> None:
        self._administrator.leave(name)
        self._administrator.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def _emptied(self, name: str) -> bool:
        """Whether it is again as it was made; one whose tables a test has changed is not."""
        try:
            if self._administrator.fetch(_SHAPE, name) != self._shape:
                return False
            self._administrator.execute(self._emptying, name)
        except (asyncpg.PostgresError, OSError):
            return False
        return True

    def _statements(self) -> str:
        fetch = self._administrator.fetch
        tables = [row[0] for row in fetch(_TABLES, self._template)]
        statements = [_LEFT_BEHIND, "SET session_replication_role = replica"]
        statements.append(f"SET statement_timeout = {EMPTYING_TIMEOUT_MS}")
        for table in tables:
            statements.append(f"DELETE FROM {table}")
            rows = [
                json.loads(row[0]) for row in fetch(f"SELECT to_jsonb(each)::text FROM {table} each", self._template)
            ]
            if rows:
                text = json.dumps(rows).replace("'", "''")
                statements.append(
                    f"INSERT INTO {table} SELECT * FROM jsonb_populate_recordset(NULL::{table}, '{text}'::jsonb)"
                )
        statements += [
            f"SELECT setval('{name}', {last}, {'true' if called else 'false'})"
            for name, last, called in fetch(_SEQUENCES, self._template)
        ]
        return ";\n".join(statements)


_TABLES = "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
_SEQUENCES = """
SELECT format('%I.%I', schemaname, sequencename), coalesce(last_value, start_value), last_value IS NOT NULL
FROM pg_sequences WHERE schemaname = 'public'"""
#: Every change of a table, index or function gives its row another transaction.
_SHAPE = """
SELECT md5(string_agg(oid::text || xmin::text, ',' ORDER BY oid)) FROM pg_class WHERE oid >= 16384
UNION ALL SELECT md5(string_agg(oid::text || xmin::text, ',' ORDER BY oid)) FROM pg_proc WHERE oid >= 16384
UNION ALL SELECT string_agg(nspname, ',' ORDER BY nspname) FROM pg_namespace WHERE nspname NOT LIKE 'pg_%temp%'
"""
_LEFT_BEHIND = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"""
