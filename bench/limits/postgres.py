"""PostgreSQL limits: one statement per operation, for one call or for up to 200 of them.

Each statement writes the columns that the engine writes, on the tables that our migrations make. Nothing is checked:
no fence, no version, no policy.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, Self

import asyncpg

from bench.limits.batcher import MAX_BATCH, Batcher
from bench.shape import INSTANCE, LANE, LEASE_MS, NAMESPACE, NEW_COLUMNS, PAYLOAD, RAW_FIELDS, RESULT, WORKER, now_ms
from flowfabric.ascending import ascending_uuid

CONNECTIONS = 2
#: As the engine's own connections: plans by key whatever the statistics say, made once.
SETTINGS = {
    "application_name": "bench-limit",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}

CREATE = f"""
INSERT INTO ff_exec_core ({NEW_COLUMNS})
SELECT $1::smallint, new.execution_id, '{LANE}', 0, 'submitted', 'unowned', 'eligible_now', 'waiting', 'pending', 0,
       $2::bigint, 0, '{NAMESPACE}', $2::bigint, 0, 0, new.payload, new.raw_fields::jsonb
FROM unnest($3::uuid[], $4::bytea[], $5::text[]) AS new(execution_id, payload, raw_fields)
"""

CLAIM = f"""
WITH picked AS (
    SELECT partition_key, execution_id FROM ff_exec_core
    WHERE lane_id = '{LANE}' AND requirement_key = '' AND claimable
    ORDER BY priority DESC, fair_rank, created_at_ms, execution_id LIMIT $1 FOR UPDATE SKIP LOCKED),
core AS (
    UPDATE ff_exec_core e SET lifecycle_phase = 'active', ownership_state = 'leased',
        eligibility_state = 'not_applicable', public_state = 'running', attempt_state = 'running_attempt',
        blocking_reason = NULL, started_at_ms = $2::bigint, total_attempt_count = 1, last_mutation_at_ms = $2::bigint
    FROM picked WHERE e.partition_key = picked.partition_key AND e.execution_id = picked.execution_id
    RETURNING e.partition_key, e.execution_id),
attempt AS (
    INSERT INTO ff_attempt (partition_key, execution_id, attempt_index, worker_id, worker_instance_id, lease_epoch,
        lease_expires_at_ms, started_at_ms, attempt_id, lease_id, attempt_type)
    SELECT partition_key, execution_id, 0, '{WORKER}', '{INSTANCE}', 1, $2::bigint + {LEASE_MS}, $2::bigint,
        gen_random_uuid()::text, gen_random_uuid()::text, 'initial' FROM core),
event AS (
    INSERT INTO ff_lease_event (partition_key, execution_id, lease_id, event_type, occurred_at_ms, namespace,
        worker_instance_id)
    SELECT partition_key, execution_id::text, 'pg:' || execution_id::text || ':0:1', 'acquired', $2::bigint,
        '{NAMESPACE}', '{INSTANCE}' FROM core)
SELECT partition_key, execution_id FROM core
"""

COMPLETE = f"""
WITH done AS MATERIALIZED (
    SELECT * FROM unnest($1::smallint[], $2::uuid[], $3::integer[], $4::bytea[])
    AS done(partition_key, execution_id, attempt_index, result)),
core AS (
    UPDATE ff_exec_core e SET lifecycle_phase = 'terminal', ownership_state = 'unowned',
        eligibility_state = 'not_applicable', public_state = 'completed', attempt_state = 'attempt_terminal',
        terminal_at_ms = $5::bigint, terminal_outcome = 'success', last_mutation_at_ms = $5::bigint,
        result = done.result
    FROM done WHERE e.partition_key = done.partition_key AND e.execution_id = done.execution_id),
attempt AS (
    UPDATE ff_attempt a SET worker_instance_id = NULL, last_instance_id = a.worker_instance_id,
        lease_expires_at_ms = NULL, attempt_timeout_at_ms = NULL,
        outcome = 'success', terminal_at_ms = $5::bigint
    FROM done WHERE a.partition_key = done.partition_key AND a.execution_id = done.execution_id
        AND a.attempt_index = done.attempt_index),
lease AS (
    INSERT INTO ff_lease_event (partition_key, execution_id, lease_id, event_type, occurred_at_ms, namespace,
        worker_instance_id, revoked_by)
    SELECT partition_key, execution_id::text, 'pg:' || execution_id::text || ':0:1', 'revoked', $5::bigint,
        '{NAMESPACE}', '{INSTANCE}', 'backend' FROM done)
INSERT INTO ff_completion_event (partition_key, execution_id, outcome, namespace, occurred_at_ms, dispatched_at_ms)
SELECT partition_key, execution_id, 'success', '{NAMESPACE}', $5::bigint, $5::bigint FROM done
"""

RENEW = f"""
WITH held AS MATERIALIZED (
    SELECT * FROM unnest($1::smallint[], $2::uuid[], $3::integer[])
    AS held(partition_key, execution_id, attempt_index)),
attempt AS (
    UPDATE ff_attempt a SET lease_expires_at_ms = $4::bigint + {LEASE_MS}, renewed_at_ms = $4::bigint
    FROM held WHERE a.partition_key = held.partition_key AND a.execution_id = held.execution_id
        AND a.attempt_index = held.attempt_index)
INSERT INTO ff_lease_event (partition_key, execution_id, lease_id, event_type, occurred_at_ms, namespace,
    worker_instance_id)
SELECT partition_key, execution_id::text, 'pg:' || execution_id::text || ':0:1', 'renewed', $4::bigint,
    '{NAMESPACE}', '{INSTANCE}' FROM held
"""

Key = tuple[int, uuid.UUID]


def _columns(keys: list[Key]) -> tuple[list[int], list[uuid.UUID], list[int]]:
    return [key[0] for key in keys], [key[1] for key in keys], [0] * len(keys)


async def connect(dsn: str) -> Any:
    """A connection that plans as the engine's do."""
    return await asyncpg.connect(dsn, server_settings=SETTINGS, max_cached_statement_lifetime=0)


class Statements:
    """The four statements on one connection."""

    def __init__(self, connection: Any, partition: int) -> None:
        self._connection = connection
        self._partition = partition

    async def create(self, payloads: list[bytes]) -> list[None]:
        """Store executions."""
        ids = [uuid.UUID(ascending_uuid()) for _ in payloads]
        raw = [RAW_FIELDS] * len(payloads)
        await self._connection.execute(CREATE, self._partition, now_ms(), ids, payloads, raw)
        return [None] * len(payloads)

    async def claim(self, wanted: list[None]) -> list[Key | None]:
        """Take as many executions as are wanted, or all there are."""
        rows = await self._connection.fetch(CLAIM, len(wanted), now_ms())
        found: list[Key | None] = [(row[0], row[1]) for row in rows]
        return found + [None] * (len(wanted) - len(found))

    async def complete(self, keys: list[Key]) -> list[None]:
        """End executions."""
        await self._connection.execute(COMPLETE, *_columns(keys), [RESULT] * len(keys), now_ms())
        return [None] * len(keys)

    async def renew(self, keys: list[Key]) -> list[None]:
        """Prolong leases."""
        await self._connection.execute(RENEW, *_columns(keys), now_ms())
        return [None] * len(keys)

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()


class OneByOne:
    """One statement per operation, nothing shared: the yardstick of a lone caller."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements

    @classmethod
    async def open(cls, dsn: str, partition: int) -> Self:
        """Connect."""
        return cls(Statements(await connect(dsn), partition))

    async def create(self) -> None:
        """One new execution."""
        await self._statements.create([PAYLOAD])

    async def claim(self) -> Key | None:
        """The next execution."""
        return (await self._statements.claim([None]))[0]

    async def complete(self, claimed: Key) -> None:
        """End it."""
        await self._statements.complete([claimed])

    async def close(self) -> None:
        """Disconnect."""
        await self._statements.close()


class Coalesced:
    """Callers share statements: up to 200 calls each, two connections."""

    def __init__(self, connections: list[Statements]) -> None:
        self._connections = connections
        self._batcher = Batcher(self._flush, len(connections))
        self._batcher.start()

    @classmethod
    async def open(cls, dsn: str, partition: int) -> Self:
        """Connect twice."""
        return cls([Statements(await connect(dsn), partition) for _ in range(CONNECTIONS)])

    async def _flush(self, runner: int, kind: str, arguments: list[Any]) -> list[Any]:
        answers: list[Any] = await getattr(self._connections[runner], kind)(arguments)
        return answers

    async def create(self) -> None:
        """One new execution."""
        await self._batcher.call("create", PAYLOAD)

    async def claim(self) -> Key | None:
        """The next execution."""
        claimed: Key | None = await self._batcher.call("claim", None)
        return claimed

    async def complete(self, claimed: Key) -> None:
        """End it."""
        await self._batcher.call("complete", claimed)

    async def renew(self, claimed: Key) -> None:
        """Prolong its lease."""
        await self._batcher.call("renew", claimed)

    async def close(self) -> None:
        """Disconnect."""
        await self._batcher.close()
        await asyncio.gather(*(connection.close() for connection in self._connections))


class Batches(Coalesced):
    """No callers at all: 200 lifecycles at a time on each connection."""

    async def lifecycles(self, runner: int) -> int:
        """Run one batch from creation to completion."""
        statements = self._connections[runner]
        await statements.create([PAYLOAD] * MAX_BATCH)
        keys = [key for key in await statements.claim([None] * MAX_BATCH) if key is not None]
        await statements.complete(keys)
        return len(keys)
