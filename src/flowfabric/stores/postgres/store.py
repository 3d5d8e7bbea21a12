"""The PostgreSQL store: connections that write, connections that read, one that listens."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any

import asyncpg

from flowfabric.model.decisions import Key, Need, PurgeExecution, Writes
from flowfabric.model.errors import EngineError, Transport, TransportKind
from flowfabric.model.handles import BackendTag
from flowfabric.model.partitions import PartitionCounts
from flowfabric.model.records.streams import StreamHead
from flowfabric.stores import migrate as migrations, questions
from flowfabric.stores.beside import worked
from flowfabric.stores.postgres.address import bad_address
from flowfabric.stores.postgres.codec import DIALECT
from flowfabric.stores.postgres.commit import Statement, statement
from flowfabric.stores.postgres.connect import DRIVER_ERRORS, OPTIONS, STATEMENT_S, connect, connected, keep_alive
from flowfabric.stores.postgres.errors import cannot_open, refusal
from flowfabric.stores.postgres.feed import PostgresFeed
from flowfabric.stores.postgres.load import Loader
from flowfabric.stores.postgres.migrate import apply_migrations, check_migrations
from flowfabric.stores.postgres.notify import Wakeups
from flowfabric.stores.protocol import Conflict, Filling, Versions
from flowfabric.stores.server_clock import ServerClock
from flowfabric.stores.sql.events import HORIZON_RISES, old_events
from flowfabric.stores.sql.questions import SqlQuestions, trims
from flowfabric.stores.sql.schema import (
    EXECUTION_NAMED,
    EXECUTION_SCOPED,
    FLOW_SCOPED,
    OUTBOXES,
    split_wire,
)

_log = logging.getLogger("flowfabric.stores.postgres")


class _Questions(SqlQuestions):
    """Keys travel as arrays."""

    def _key_table(self, execution_ids: tuple[str, ...]) -> tuple[str, list[Any]]:
        pairs = [pair for pair in map(split_wire, execution_ids) if pair[0] < 2**15]
        marks = "(SELECT * FROM unnest(?1::smallint[], ?2::uuid[]))"
        return marks, [[partition for partition, _ in pairs], [uuid for _, uuid in pairs]]


_QUESTIONS = _Questions(
    DIALECT, "e.raw_fields->'tags'->>({})::text", "pg_sequence_last_value(pg_get_serial_sequence('{}', 'event_id'))"
)
#: What deletes the rows of executions.
_DROP = (
    "DELETE FROM {} t USING unnest($1::smallint[], $2::{}[]) AS i(p, e) "
    "WHERE t.partition_key = i.p AND t.execution_id = i.e"
)
_DROP_NAMED = "DELETE FROM {} t USING unnest($1::{}[]) AS i(e) WHERE t.execution_id = i.e"
_DROP_SIGNAL_KEYS = (
    "DELETE FROM ff_signal_dedup t USING unnest($1::smallint[], $2::uuid[]) AS i(p, e), ff_waitpoint_pending w "
    "WHERE w.partition_key = i.p AND w.execution_id = i.e "
    "AND t.partition_key = w.partition_key AND t.waitpoint_id = w.waitpoint_id"
)
_CLOCK = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::float8"
#: Settings of connections that write: plans by key, made once, whatever the statistics say at the moment.
WRITER_SETTINGS = {
    "application_name": "flowfabric",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    # Starting a helper process for one row of a large queue takes longer than finding it.
    "max_parallel_workers_per_gather": "0",
    "idle_in_transaction_session_timeout": "15000",
    "lock_timeout": "10000",
}
#: How long claims are locked after one that was not has lost its race.
COMPANY_S = 5.0
#: Rows after which plans no longer change with the size of the tables.
_PLANS_SETTLED = 1 << 16
#: How long a server may take to say that it is there.
PING_S = 10.0
#: A write on a server that takes none.
READ_ONLY = "25006"
#: Whether a statement was completed is not known.
_COMPLETION_UNKNOWN = "40003"
_LOST_RACE = ("40001", "40P01", "55P03", "23505", "22012")


class Replanning:
    """Gives a statement a new text now and then while the tables grow, so that it gets a new plan.

    Plans are made once per text. One that was made when the tables were empty may compare every row with every
    argument, and would be kept until the server gathers statistics.
    """

    def __init__(self) -> None:
        self._rows = 0

    def note(self, rows: int) -> None:
        """So many rows were written."""
        self._rows += rows

    def mark(self, text: str) -> str:
        """The statement's text for tables of about this size."""
        return f"{text} -- {min(self._rows, _PLANS_SETTLED).bit_length()}"


async def _left_as_found(connection: Any) -> None:
    """Nothing: what reads from the pool changes no setting, and asyncpg's own reset costs each read a round trip."""


@contextlib.asynccontextmanager
async def _closed_unless_taken(pool: Any) -> AsyncIterator[None]:
    """Close a pool that nobody will get."""
    try:
        yield
    except BaseException:
        await pool.close()
        raise


class PostgresStore:
    """See the module's text. Open with ``PostgresStore.open``."""

    tag = BackendTag.POSTGRES
    shown = "pg"
    label = "postgres"
    holds = True
    sends_hints = False
    event_poll_s = 5.0
    numbers_without_breaks = False
    pauses = True

    def __init__(self, dsn: str, pool: Any, clock: Callable[[], int] | None, parallel: int) -> None:
        self._dsn = dsn
        self._pool = pool
        self._clock = clock
        self._server_clock = ServerClock()
        self.replanning = Replanning()
        self.parallel = parallel
        self.counts = PartitionCounts()
        self._writers: list[Any] = []
        self._wakeups = Wakeups(dsn)
        self.forget: Callable[[], None] = lambda: None
        self._closed = False
        self._in_company_until = 0.0

    @property
    def seems_alone(self) -> bool:
        """Whether no other process has lately snatched away what was about to be claimed here."""
        return time.monotonic() >= self._in_company_until

    @classmethod
    async def open(
        cls,
        dsn: str,
        *,
        partitions: PartitionCounts | None = None,
        new_partitions: PartitionCounts | None = None,
        clock: Callable[[], int] | None = None,
        pool_size: int = 10,
        parallel: int = 2,
        migrate: bool | str | None = None,
    ) -> PostgresStore:
        """Connect, bring the schema up to date and prepare for work."""
        dsn = dsn.replace("postgres://", "postgresql://", 1)
        schema = migrations.wanted(migrate)
        try:
            if schema == migrations.APPLY:
                async with connected(dsn) as connection:
                    await apply_migrations(connection, partitions or new_partitions)
            pool = await asyncpg.create_pool(
                dsn,
                min_size=0,
                max_size=pool_size,
                timeout=30,
                init=keep_alive,
                reset=_left_as_found,
                server_settings={"application_name": "flowfabric"},
                **OPTIONS,
            )
            async with _closed_unless_taken(pool), pool.acquire() as connection:
                if schema == migrations.CHECK:
                    await check_migrations(connection)
                row = await connection.fetchrow(
                    "SELECT num_flow_partitions, num_budget_partitions, num_quota_partitions FROM ff_partition_config"
                )
        except DRIVER_ERRORS as error:
            raise cannot_open(error) from error
        except ValueError:
            raise bad_address() from None
        store = cls(dsn, pool, clock, parallel)
        store.counts = PartitionCounts(*row)
        async with _closed_unless_taken(pool):
            migrations.check_counts(store.counts, partitions)
        return store

    # -- time ----------------------------------------------------------------------------------------------------

    async def server_time_ms(self) -> int:
        """The server's time."""
        if self._clock is not None:
            return self._clock()
        if not self._server_clock.good:
            async with self._reader() as connection:
                self._server_clock.heard(await connection.fetchval(_CLOCK))
        return self._server_clock.now()

    # -- batches -------------------------------------------------------------------------------------------------

    async def run(self, make: Callable[[], Coroutine[Any, Any, Any]], *, alone: bool = False) -> Any:
        """On the loop."""
        return await make()

    @contextlib.asynccontextmanager
    async def transaction(self, *, trusting: bool = False) -> AsyncIterator[_PostgresTransaction]:
        """A writing connection for the block; what was not committed is rolled back."""
        connection = await self._writer()
        transaction = _PostgresTransaction(self, connection, trusting)
        try:
            yield transaction
            await transaction.finish()
        except BaseException as error:
            await self._give_up(connection, transaction, error)
            if transaction.claims_alone:
                self._in_company_until = time.monotonic() + COMPANY_S
            if isinstance(error, EngineError | Conflict) or not isinstance(error, Exception):
                raise
            raise _translated(error, transaction.committing) from error
        else:
            self._keep(connection)

    def _keep(self, connection: Any) -> None:
        """For the next batch; unless there will be none."""
        if self._closed:
            connection.terminate()
        else:
            self._writers.append(connection)

    async def _writer(self) -> Any:
        while self._writers:
            connection = self._writers.pop()
            if not connection.is_closed():
                return connection
        try:
            return await connect(
                self._dsn,
                server_settings=WRITER_SETTINGS,
                statement_cache_size=512,
                max_cached_statement_lifetime=0,
            )
        except DRIVER_ERRORS as error:
            raise refusal(error) or Conflict(f"cannot connect: {error}") from error

    async def _give_up(self, connection: Any, transaction: _PostgresTransaction, error: BaseException) -> None:
        if getattr(error, "sqlstate", None) == READ_ONLY:
            await self._leave_server()
            connection.terminate()
        try:
            if connection.is_closed():
                return
            if isinstance(error, TimeoutError):
                # Nobody knows what it is still busy with.
                connection.terminate()
                return
            if transaction.begun:
                async with asyncio.timeout(5):
                    await connection.execute("ROLLBACK")
            self._keep(connection)
        except Exception:
            connection.terminate()
        except BaseException:
            # Cancelled while tidying up: nobody will use the connection again.
            connection.terminate()
            raise

    async def _leave_server(self) -> None:
        """Connect again before anything else: the server has become a standby, and another one takes the writes."""
        _log.warning("the PostgreSQL server no longer accepts writes; reconnecting")
        while self._writers:
            self._writers.pop().terminate()
        await self._pool.expire_connections()

    # -- reading -------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _reader(self) -> AsyncIterator[Any]:
        """A connection of the pool for the block; the driver's errors become the engine's."""
        with _errors():
            async with self._pool.acquire(timeout=STATEMENT_S) as connection:
                try:
                    yield connection
                except TimeoutError:
                    # The pool would wait for the end of what the server is still busy with, if it is there at all.
                    connection.terminate()
                    raise

    async def read(self, needs: Iterable[Need], view: Filling) -> None:
        """Committed rows, without a lock."""
        now = await self.server_time_ms()
        async with self._reader() as connection:
            await Loader(connection, {}, locked=False).load(needs, view, now)

    async def query(self, question: Any) -> Any:
        """Lists and pages."""
        if isinstance(question, questions.TrimHistory | questions.TrimAdmission):
            return await self._trim_history(question)
        asked = _QUESTIONS.compile(question)
        return asked.read(await self._fetch(_dollars(asked.sql), *asked.params))

    async def _trim_history(self, question: questions.TrimHistory | questions.TrimAdmission) -> int:
        deleted = 0
        async with self._reader() as connection:
            for outbox in OUTBOXES.values():
                if not isinstance(question, questions.TrimHistory):
                    break
                old = old_events(outbox.name, question.limit)
                deleted += await connection.fetchval(
                    _dollars(
                        f"WITH gone AS (DELETE FROM {outbox.name} WHERE event_id = ANY (ARRAY({old})) "
                        "RETURNING event_id), raised AS (INSERT INTO ff_event_horizon (outbox, trimmed_through, "
                        f"trimmed_before_ms) SELECT '{outbox.name}', max(event_id), ?1 FROM gone "
                        f"HAVING count(*) > 0 {HORIZON_RISES}) SELECT count(*) FROM gone"
                    ),
                    question.events_before_ms,
                )
            for condition, before in trims(question):
                table = condition.split()[0]
                done = await connection.execute(
                    _dollars(
                        f"DELETE FROM {table} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {condition} "
                        f"LIMIT {int(question.limit)} FOR UPDATE SKIP LOCKED))"
                    ),
                    before,
                )
                deleted += int(done.split()[-1])
        return deleted

    def feed(self, kind: Any, namespace: str | None, instance_tag: str | None) -> PostgresFeed:
        """Waits at breaks in the ids until it is certain that nothing can appear there."""
        return PostgresFeed(self._fetch, self.query, kind, namespace, instance_tag)

    async def _fetch(self, sql: str, *arguments: Any) -> list[Any]:
        async with self._reader() as connection:
            rows: list[Any] = await connection.fetch(sql, *arguments)
            return rows

    # -- other processes -----------------------------------------------------------------------------------------

    def publish(self, topics: Iterable[str], *, urgent: bool = True) -> None:
        """Notify other processes, soon and together."""
        self._wakeups.publish(topics, urgent)

    async def heard(self) -> AsyncIterator[str | None]:
        """What other processes notified."""
        async for topic in self._wakeups.heard():
            yield topic

    # -- the rest ------------------------------------------------------------------------------------------------

    def raw(self) -> Any:
        """``async with store.raw() as connection``: a plain connection, for people and tests."""
        return self._pool.acquire()

    async def prepare(self) -> tuple[int, ...]:
        """Apply missing migrations; the versions applied."""
        with _errors():
            async with connected(self._dsn) as connection:
                return await apply_migrations(connection)

    async def server_version(self) -> str:
        """The version of the server."""
        async with self._reader() as connection:
            return str(await connection.fetchval("SHOW server_version"))

    async def ping(self) -> None:
        """Fail if the server does not answer, or takes no writes."""
        with _errors():
            async with asyncio.timeout(PING_S), self._reader() as connection:
                read_only = await connection.fetchval("SHOW transaction_read_only") == "on"
        if read_only:
            await self._leave_server()
            raise Transport("postgres", TransportKind.TRANSPORT, "the server accepts no writes: it is a standby")

    async def close(self) -> None:
        """Let go of every connection."""
        if self._closed:
            return
        self._closed = True
        await self._wakeups.close()
        for connection in self._writers:
            with contextlib.suppress(Exception):
                await connection.close(timeout=5)
        with contextlib.suppress(Exception):
            async with asyncio.timeout(10):
                await self._pool.close()


class _PostgresTransaction:
    def __init__(self, store: PostgresStore, connection: Any, trusting: bool) -> None:
        self._store = store
        self._trusting = trusting
        self._connection = connection
        self._versions: dict[tuple[Any, Key], int] = {}
        self._unlocked: list[tuple[Any, Key]] = []
        self._fenced: list[tuple[Any, Key]] = []
        self.begun = False
        self.claims_alone = False
        #: From here on a lost connection leaves the outcome unknown.
        self.committing = False

    async def now(self, written_ms: int = 0) -> int:
        store = self._store
        if store._clock is not None:
            return store._clock()
        if not store._server_clock.good:
            store._server_clock.heard(await self._connection.fetchval(_CLOCK))
        return store._server_clock.now(written_ms)

    async def load(self, needs: Iterable[Need], view: Filling) -> None:
        loader = Loader(self._connection, self._versions, locked=True, mark=self._store.replanning.mark)
        left, now = list(needs), await self.now()
        if self._trusting:
            left = await loader.load_unlocked(left, view, now, self._store.seems_alone and not self.begun)
            self._unlocked += loader.unlocked
            self._fenced += loader.fenced
            self.claims_alone = self.claims_alone or loader.claimed_alone
        if left:
            await self._begin()
            await loader.load(left, view, now)

    def version(self, kind: Any, key: Key) -> int | None:
        return self._versions.get((kind, key))

    async def commit(self, writes: Writes, held: Versions) -> int | None:
        built, compiled = await worked(writes.size, lambda: self._compiled(writes, held))
        version: int | None = None
        if writes.trims or writes.purges or writes.purged_flows:
            await self._begin()
        for flow in writes.purged_flows:
            for table in FLOW_SCOPED:
                await self._connection.execute(
                    f"DELETE FROM {table} WHERE partition_key = $1 AND flow_id = $2", flow.partition, flow.flow_id
                )
        if writes.purges:
            await self._purge(writes.purges)
        if not built.empty:
            text, arguments = compiled
            text = self._store.replanning.mark(text)
            self.committing = not self.begun
            row = await self._connection.fetchrow(text, *arguments)
            self.committing = False
            version = row[1]
            self._store.replanning.note(built.rows)
            self._store._server_clock.heard(row[2])
        for key in writes.trims:
            await self._trim(key, writes)
        await self.finish()
        return version

    def _compiled(self, writes: Writes, held: Versions) -> tuple[Statement, tuple[str, list[Any]]]:
        built = statement(writes, self._versions, held, self._unlocked, self._fenced)
        return built, ("", []) if built.empty else built.compiled()

    async def _begin(self) -> None:
        if not self.begun:
            # Said first: if this is cancelled, the server may have begun all the same.
            self.begun = True
            await self._connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")

    async def finish(self) -> None:
        """Commit what was begun."""
        if self.begun:
            self.committing = True
            await self._connection.execute("COMMIT")
            self.begun = False
            self.committing = False

    async def _trim(self, key: tuple[str, int], writes: Writes) -> None:
        partition, uuid = split_wire(key[0])
        where = "partition_key = $1 AND execution_id = $2 AND attempt_index = $3"
        await self._connection.execute(
            f"DELETE FROM ff_stream_frame WHERE {where} AND (ts_ms, seq) < (SELECT ts_ms, seq FROM ff_stream_frame "
            f"WHERE {where} ORDER BY ts_ms DESC, seq DESC LIMIT 1 OFFSET $4)",
            partition,
            uuid,
            key[1],
            writes.records[StreamHead][key].frame_count - 1,
        )

    async def _purge(self, purges: list[PurgeExecution]) -> None:
        """Delete what belongs to some executions, by a statement for each table."""
        partitions, uuids = [each.partition for each in purges], [each.uuid for each in purges]
        names = [each.execution_id for each in purges]
        mark = self._store.replanning.mark
        await self._connection.execute(mark(_DROP_SIGNAL_KEYS), partitions, uuids)
        for table in (*EXECUTION_SCOPED, "ff_exec_core"):
            await self._connection.execute(mark(_DROP.format(table, "uuid")), partitions, uuids)
        await self._connection.execute(mark(_DROP.format("ff_cancel_backlog_member", "text")), partitions, names)
        for table, spelling in EXECUTION_NAMED:
            named, kind = (uuids, "uuid") if spelling == "uuid" else (names, "text")
            await self._connection.execute(mark(_DROP_NAMED.format(table, kind)), named)


def _dollars(sql: str) -> str:
    """``?1`` marks as PostgreSQL spells them."""
    return sql.replace("?", "$")


def _translated(error: Exception, committing: bool) -> Exception:
    code = getattr(error, "sqlstate", None)
    # A standby has refused the statement, so nothing was written.
    if code in _LOST_RACE or code == READ_ONLY:
        return Conflict(f"{code}: {error}")
    if code == _COMPLETION_UNKNOWN:
        return Transport("postgres", TransportKind.TRANSPORT, f"outcome unknown: {code}: {error}")
    lost = (isinstance(error, DRIVER_ERRORS) and not isinstance(error, asyncpg.PostgresError)) or (
        code is not None and (code.startswith("08") or code in ("57P01", "57P02", "57P03", "25P03"))
    )
    if isinstance(error, ValueError):
        lost = False  # a value the driver cannot send; the connection is fine
    if lost and not committing:
        return Conflict(f"connection lost: {error}")
    if lost:
        return Transport(
            "postgres", TransportKind.TRANSPORT, f"connection lost during commit, outcome unknown: {error}"
        )
    refused = refusal(error)
    if refused is not None:
        return refused
    if code is not None and code.startswith("53"):
        return Transport("postgres", TransportKind.OTHER, f"the server is out of resources: {error}")
    return Transport("postgres", TransportKind.OTHER, f"{type(error).__name__}: {error}")


@contextlib.contextmanager
def _errors() -> Any:
    """Errors of the driver as errors of the engine."""
    try:
        yield
    except EngineError:
        raise
    except DRIVER_ERRORS as error:
        found = _translated(error, True)
        raise (
            Transport("postgres", TransportKind.TRANSPORT, str(error)) if isinstance(found, Conflict) else found
        ) from error
