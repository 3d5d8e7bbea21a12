"""The SQLite store: one writing connection, one for reading, everything in WAL mode with durable commits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from flowfabric.model.decisions import Key, Need, Writes
from flowfabric.model.errors import Contention, ContentionKind, Transport, TransportKind, Validation, ValidationKind
from flowfabric.model.handles import BackendTag
from flowfabric.model.partitions import PartitionCounts
from flowfabric.stores import migrate as migrations, questions
from flowfabric.stores.feeds import SingleWriterFeed
from flowfabric.stores.protocol import Conflict, Filling, Versions
from flowfabric.stores.server_clock import RisingClock
from flowfabric.stores.sql.events import RAISE_HORIZON, old_events
from flowfabric.stores.sql.questions import SqlQuestions, trims
from flowfabric.stores.sql.schema import OUTBOXES
from flowfabric.stores.sqlite.codec import DIALECT, TAG_VALUE
from flowfabric.stores.sqlite.commit import apply
from flowfabric.stores.sqlite.load import load
from flowfabric.stores.sqlite.location import Location, locate
from flowfabric.stores.sqlite.permissions import make_private, warn_if_exposed

_log = logging.getLogger("flowfabric.stores.sqlite")
_QUESTIONS = SqlQuestions(DIALECT, TAG_VALUE, "(SELECT seq FROM sqlite_sequence WHERE name = '{}')")

#: How long a writer waits for another process to finish before it gives up.
LOCK_WAIT_S = 60.0
#: How often a process looks whether another one has committed.
WATCH_INTERVAL_S = 0.005
IN_MEMORY_POLL_S = 0.25
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class _WouldBlock(Exception):
    """Another process holds the write lock; waiting for it belongs in a thread."""


class SqliteStore:
    """See the module's text. Open with ``SqliteStore.open``."""

    tag = BackendTag.SQLITE
    shown = "sqlite"
    label = "sqlite"
    holds = True
    sends_hints = False
    parallel = 1
    event_poll_s = 5.0
    numbers_without_breaks = True
    pauses = False

    def __init__(self, location: Location, synchronous: str, clock: Callable[[], int] | None) -> None:
        self.location = location
        if location.in_memory:
            # Nobody tells of commits by another engine on the same database in memory.
            self.event_poll_s = IN_MEMORY_POLL_S
        self._clock = clock
        self._rising_clock = RisingClock()
        self._writer = _connect(location)
        self._reader = self._writer
        self._synchronous = synchronous
        self.counts = PartitionCounts(1, 1, 1)
        self._executor: ThreadPoolExecutor | None = None
        #: Held while the writing connection is in use, by a batch or by the deletion of old history.
        self._writing = threading.Lock()
        self._seen_version = -1
        #: Called with no argument when held records can no longer be trusted.
        self.forget: Callable[[], None] = lambda: None
        self._raw: list[sqlite3.Connection] = []
        self._closed = asyncio.Event()
        self._may_wait = False
        #: Which file was opened, by device and number.
        self._file: tuple[int, int] | None = None

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        synchronous: str = "FULL",
        clock: Callable[[], int] | None = None,
        partitions: PartitionCounts | None = None,
        new_partitions: PartitionCounts | None = None,
        migrate: bool | str | None = None,
    ) -> SqliteStore:
        """Connect, bring the schema up to date and prepare for work."""
        location = locate(url)
        schema = migrations.wanted(migrate)
        make_private(location)
        try:
            store = cls(location, synchronous, clock)
            try:
                store._prepare(schema, partitions, new_partitions)
            except Validation:
                await store.close()
                raise
        except sqlite3.Error as error:
            advice = "create its folder, and let the account of this process write there"
            cause = f"cannot open {location.identity}: {error}; {advice}"
            raise Transport("sqlite", TransportKind.OTHER, cause) from error
        warn_if_exposed(location)
        return store

    def _prepare(self, schema: str, partitions: PartitionCounts | None, if_new: PartitionCounts | None) -> None:
        writer = self._writer
        writer.execute("PRAGMA busy_timeout = 60000")
        if not self.location.in_memory:
            _use_wal(writer)
            writer.execute(f"PRAGMA synchronous = {'NORMAL' if self._synchronous == 'NORMAL' else 'FULL'}")
            writer.execute("PRAGMA wal_autocheckpoint = 4000")
        writer.execute("PRAGMA cache_size = -65536")
        writer.execute("PRAGMA temp_store = MEMORY")
        if schema == migrations.APPLY:
            _migrate(writer, partitions or if_new)
        elif schema == migrations.CHECK:
            migrations.refuse_pending("sqlite", _applied(writer))
        writer.execute("PRAGMA busy_timeout = 0")
        row = writer.execute(
            "SELECT num_flow_partitions, num_budget_partitions, num_quota_partitions FROM ff_partition_config"
        ).fetchone()
        self.counts = PartitionCounts(*row)
        migrations.check_counts(self.counts, partitions)
        if not self.location.in_memory:
            self._reader = _connect(self.location)
            self._reader.execute("PRAGMA busy_timeout = 5000")
            self._reader.execute("PRAGMA query_only = 1")
            self._file = _file_at(self.location)

    # -- time ----------------------------------------------------------------------------------------------------

    def _now(self) -> int:
        if self._clock is not None:
            return self._clock()
        return self._rising_clock.process_ms()

    async def server_time_ms(self) -> int:
        """The store's time: the process clock, kept from running backwards."""
        return self._now()

    # -- batches -------------------------------------------------------------------------------------------------

    async def run(self, make: Callable[[], Coroutine[Any, Any, Any]], *, alone: bool = False) -> Any:
        """A lone command runs at once, without a hop to the writer thread, if that is idle; a batch runs there."""
        if (self.location.in_memory or alone) and self._writing.acquire(blocking=False):
            try:
                with contextlib.suppress(_WouldBlock):
                    return _drive(make())
            finally:
                self._writing.release()
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "flowfabric-sqlite")
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._drive_patiently, make)

    def _drive_patiently(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        with self._writing:
            self._may_wait = True
            try:
                return _drive(make())
            finally:
                self._may_wait = False

    @contextlib.asynccontextmanager
    async def transaction(self, *, trusting: bool = False) -> AsyncIterator[_SqliteTransaction]:
        """The write lock, held until the end of the block."""
        writer = self._writer
        self._check_file()
        self._begin(writer)
        try:
            self._data_version()
            yield _SqliteTransaction(writer, self._now())
        except sqlite3.Error as error:
            raise _translated(error) from error
        finally:
            if writer.in_transaction:
                writer.execute("ROLLBACK")

    def _check_file(self) -> None:
        """Refuse to go on with a file that is no longer the one at its path: what is written there is lost."""
        if self._file is not None and self._file != _file_at(self.location):
            raise Transport(
                "sqlite",
                TransportKind.OTHER,
                f"{self.location.identity} was replaced or deleted while it was open, so nothing more is written to "
                "it: restart this process, and stop all that use the file before you restore or move it",
            )

    def _data_version(self) -> int:
        """What the writing connection knows of other connections' commits; held records end with a change."""
        version: int = self._writer.execute("PRAGMA data_version").fetchone()[0]
        if version != self._seen_version:
            self._seen_version = version
            self.forget()
        return version

    def _begin(self, writer: sqlite3.Connection) -> None:
        deadline = time.monotonic() + LOCK_WAIT_S
        pause = 0.0005
        while True:
            try:
                writer.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in _BUSY:
                    raise _translated(error) from error
                if not self._may_wait and not self.location.in_memory:
                    raise _WouldBlock from None
                if time.monotonic() > deadline:
                    raise Contention(ContentionKind.RETRY_EXHAUSTED, "another process holds the write lock") from error
                time.sleep(pause)
                pause = min(pause * 2, 0.02)
            else:
                return

    # -- reading -------------------------------------------------------------------------------------------------

    async def read(self, needs: Iterable[Need], view: Filling) -> None:
        """Committed rows, without a lock."""
        with _errors():
            load(self._reader, needs, view, self._now())

    async def query(self, question: Any) -> Any:
        """Lists and pages."""
        if isinstance(question, questions.TrimHistory | questions.TrimAdmission):
            with _errors():
                return await self.run(lambda: self._trim_history(question))
        if isinstance(question, questions.Integrity):
            return await asyncio.to_thread(self._integrity)
        if isinstance(question, questions.OddEnds):
            return await asyncio.to_thread(self._aside, question)
        asked = _QUESTIONS.compile(question)
        with _errors():
            return asked.read(self._reader.execute(asked.sql, asked.params).fetchall())

    def _integrity(self) -> list[str]:
        """What SQLite finds wrong with its pages; takes as long as reading the whole file."""
        with contextlib.closing(_connect(self.location)) as connection, _errors():
            found = [row[0] for row in connection.execute("PRAGMA integrity_check(20)")]
        return [] if found == ["ok"] else found

    def _aside(self, question: Any) -> Any:
        """The answer to a question that takes long, on a connection of its own."""
        asked = _QUESTIONS.compile(question)
        with contextlib.closing(_connect(self.location)) as connection, _errors():
            return asked.read(connection.execute(asked.sql, asked.params).fetchall())

    async def _trim_history(self, question: questions.TrimHistory | questions.TrimAdmission) -> int:
        deleted = 0
        async with self.transaction():
            if isinstance(question, questions.TrimHistory):
                for outbox in OUTBOXES.values():
                    deleted += self._trim_outbox(outbox.name, question)
            for condition, before in trims(question):
                table = condition.split()[0]
                deleted += self._writer.execute(
                    f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {condition} LIMIT {int(question.limit)})",
                    (before,),
                ).rowcount
            self._writer.execute("COMMIT")
        return deleted

    def _trim_outbox(self, table: str, question: questions.TrimHistory) -> int:
        old = self._writer.execute(old_events(table, question.limit), (question.events_before_ms,)).fetchall()
        if old:
            self._writer.executemany(f"DELETE FROM {table} WHERE event_id = ?", old)
            self._writer.execute(RAISE_HORIZON, (table, max(old)[0], question.events_before_ms))
        return len(old)

    def feed(self, kind: Any, namespace: str | None, instance_tag: str | None) -> SingleWriterFeed:
        """Ids become visible in their order: there is one writer."""
        return SingleWriterFeed(self.query, kind, namespace, instance_tag)

    # -- other processes -----------------------------------------------------------------------------------------

    def publish(self, topics: Iterable[str], *, urgent: bool = True) -> None:
        """Other processes on the file notice commits by themselves."""

    async def heard(self) -> AsyncIterator[str | None]:
        """``None`` whenever another process has committed to the file."""
        if self.location.in_memory:
            await self._closed.wait()
            return
        # The writing connection's data version moves only when somebody else commits. While a batch runs in the
        # writer thread the connection is not ours to ask; the batch has asked already.
        noticed = self._seen_version
        while not self._closed.is_set():
            if self._writing.acquire(blocking=False):
                try:
                    # The file may be locked for a moment, while another process puts it in order after a crash.
                    with contextlib.suppress(sqlite3.OperationalError):
                        self._data_version()
                finally:
                    self._writing.release()
            if self._seen_version != noticed:
                noticed = self._seen_version
                yield None
            await asyncio.sleep(WATCH_INTERVAL_S)

    # -- the rest ------------------------------------------------------------------------------------------------

    def raw(self) -> sqlite3.Connection:
        """A connection of its own to the same database, for people and tests. It commits by itself."""
        connection = _connect(self.location)
        connection.execute("PRAGMA busy_timeout = 60000")
        self._raw.append(connection)
        return connection

    async def prepare(self) -> tuple[int, ...]:
        """Nothing: opening has applied every migration."""
        return ()

    async def server_version(self) -> str:
        """The version of the SQLite library."""
        return sqlite3.sqlite_version

    async def ping(self) -> None:
        """Fail if the database cannot be read, or is no longer the one at its path."""
        self._check_file()
        with _errors():
            self._reader.execute("SELECT 1 FROM ff_partition_config").fetchone()

    async def close(self) -> None:
        """Let go of every connection."""
        self._closed.set()
        if self._executor is not None:
            self._executor.shutdown(wait=True)
        for connection in {id(each): each for each in (self._reader, self._writer, *self._raw)}.values():
            connection.close()


class _SqliteTransaction:
    def __init__(self, connection: sqlite3.Connection, now: int) -> None:
        self._connection = connection
        self._now = now

    async def now(self, written_ms: int = 0) -> int:
        return self._now

    async def load(self, needs: Iterable[Need], view: Filling) -> None:
        load(self._connection, needs, view, self._now)

    def version(self, kind: Any, key: Key) -> int | None:
        return None

    async def commit(self, writes: Writes, held: Versions) -> int | None:
        if writes.empty:
            self._connection.execute("ROLLBACK")
            return None
        apply(self._connection, writes)
        self._connection.execute("COMMIT")
        return None


def _connect(location: Location) -> sqlite3.Connection:
    return sqlite3.connect(location.uri, uri=True, isolation_level=None, check_same_thread=False, cached_statements=512)


def _use_wal(connection: sqlite3.Connection) -> None:
    """Turn the write-ahead log on. SQLite does not wait for others who do the same to a new file, so this does."""
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.005)
        else:
            return


def _applied(connection: sqlite3.Connection) -> dict[int, str]:
    there = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'ff_migration_annotation'").fetchone()
    if there is None:
        return {}
    return migrations.binding("sqlite", connection.execute(migrations.APPLIED).fetchall())


def _file_at(location: Location) -> tuple[int, int] | None:
    """Which file is at a path, by device and number."""
    try:
        found = os.stat(location.identity)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _migrate(connection: sqlite3.Connection, partitions: PartitionCounts | None) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS ff_migration_annotation (version INTEGER NOT NULL PRIMARY KEY, "
            "name TEXT NOT NULL, applied_at_ms INTEGER NOT NULL, backward_compatible INTEGER NOT NULL, checksum TEXT)"
        )
        applied = _applied(connection)
        for migration in migrations.pending("sqlite", applied):
            for statement in _statements(migration.sql):
                connection.execute(statement)
            connection.execute(
                "INSERT INTO ff_migration_annotation VALUES (?, ?, ?, ?, ?)",
                (
                    migration.version,
                    migration.name,
                    time.time_ns() // 1_000_000,
                    migration.backward_compatible,
                    migration.checksum,
                ),
            )
            migrations.applied(migration)
        if partitions is not None and 1 not in applied:
            connection.execute(
                "UPDATE ff_partition_config SET num_flow_partitions = ?, num_budget_partitions = ?, "
                "num_quota_partitions = ?",
                (partitions.flow, partitions.budget, partitions.quota),
            )
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _statements(script: str) -> Iterable[str]:
    """Split a script where SQLite says a statement is whole; triggers contain semicolons of their own."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if line.rstrip().endswith(";") and sqlite3.complete_statement(pending):
            yield pending
            pending = ""


def _drive(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    raise RuntimeError("a SQLite batch must not wait")


def _translated(error: sqlite3.Error) -> Exception:
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None and code & 0xFF in _BUSY:
        return Conflict("the database was busy")
    if "malformed JSON" in str(error):
        return Validation(ValidationKind.CORRUPTION, f"stored JSON cannot be read: {error}")
    if code is not None and code & 0xFF == sqlite3.SQLITE_FULL:
        return Transport("sqlite", TransportKind.OTHER, "the disk is full")
    return Transport("sqlite", TransportKind.OTHER, str(error))


@contextlib.contextmanager
def _errors() -> Any:
    """Errors of SQLite as errors of the engine, where nothing is decided that could be decided again."""
    try:
        yield
    except (sqlite3.Error, Conflict) as error:
        found = _translated(error) if isinstance(error, sqlite3.Error) else error
        if isinstance(found, Conflict):
            found = Contention(ContentionKind.RETRY_EXHAUSTED, str(found))
        raise found from error
