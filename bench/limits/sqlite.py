"""SQLite limits: plain statements, one transaction for everything that queued, synchronous FULL.

One connection and one thread: the flush runs where the callers are, since they all wait for it anyway.
"""

from __future__ import annotations

import asyncio
import sqlite3
import uuid
from pathlib import Path
from typing import Any

from bench.limits.batcher import MAX_BATCH
from bench.shape import INSTANCE, LANE, LEASE_MS, NAMESPACE, NEW_COLUMNS, PAYLOAD, RAW_FIELDS, RESULT, WORKER, now_ms
from flowfabric.ascending import ascending_uuid

CREATE = f"""
INSERT INTO ff_exec_core ({NEW_COLUMNS})
VALUES (0, ?1, '{LANE}', 0, 'submitted', 'unowned', 'eligible_now', 'waiting', 'pending', 0, ?2, 0, '{NAMESPACE}', ?2,
        0, 0, ?3, ?4)
"""
NEXT = f"""
SELECT execution_id FROM ff_exec_core WHERE lane_id = '{LANE}' AND requirement_key = '' AND claimable
ORDER BY priority DESC, fair_rank, created_at_ms, execution_id LIMIT ?
"""
CLAIM_CORE = """
UPDATE ff_exec_core SET lifecycle_phase = 'active', ownership_state = 'leased', eligibility_state = 'not_applicable',
    public_state = 'running', attempt_state = 'running_attempt', blocking_reason = NULL, started_at_ms = ?1,
    total_attempt_count = 1, last_mutation_at_ms = ?1
WHERE partition_key = 0 AND execution_id = ?2
"""
CLAIM_ATTEMPT = f"""
INSERT INTO ff_attempt (partition_key, execution_id, attempt_index, worker_id, worker_instance_id, lease_epoch,
    lease_expires_at_ms, started_at_ms, attempt_id, lease_id, attempt_type)
VALUES (0, ?1, 0, '{WORKER}', '{INSTANCE}', 1, ?2 + {LEASE_MS}, ?2, ?3, ?4, 'initial')
"""
LEASE_EVENT = f"""
INSERT INTO ff_lease_event (partition_key, execution_id, lease_id, event_type, occurred_at_ms, namespace,
    worker_instance_id, revoked_by)
VALUES (0, ?1, 'sqlite:' || ?1 || ':0:1', ?2, ?3, '{NAMESPACE}', '{INSTANCE}', ?4)
"""
COMPLETE_CORE = """
UPDATE ff_exec_core SET lifecycle_phase = 'terminal', ownership_state = 'unowned',
    eligibility_state = 'not_applicable', public_state = 'completed', attempt_state = 'attempt_terminal',
    terminal_at_ms = ?1, terminal_outcome = 'success', last_mutation_at_ms = ?1, result = ?2
WHERE partition_key = 0 AND execution_id = ?3
"""
COMPLETE_ATTEMPT = """
UPDATE ff_attempt SET worker_instance_id = NULL, last_instance_id = worker_instance_id,
    lease_expires_at_ms = NULL, attempt_timeout_at_ms = NULL,
    outcome = 'success', terminal_at_ms = ?1
WHERE partition_key = 0 AND execution_id = ?2 AND attempt_index = 0
"""
COMPLETION_EVENT = f"""
INSERT INTO ff_completion_event (partition_key, execution_id, outcome, namespace, occurred_at_ms, dispatched_at_ms)
VALUES (0, ?1, 'success', '{NAMESPACE}', ?2, ?2)
"""
RENEW_ATTEMPT = f"""
UPDATE ff_attempt SET lease_expires_at_ms = ?1 + {LEASE_MS}, renewed_at_ms = ?1
WHERE partition_key = 0 AND execution_id = ?2 AND attempt_index = 0
"""


def connect(path: Path) -> sqlite3.Connection:
    """A connection with the settings of the engine's writer."""
    connection = sqlite3.connect(path, isolation_level=None, cached_statements=512)
    for setting in (
        "journal_mode = WAL",
        "synchronous = FULL",
        "wal_autocheckpoint = 4000",
        "cache_size = -65536",
        "temp_store = MEMORY",
        "busy_timeout = 60000",
    ):
        connection.execute(f"PRAGMA {setting}").fetchall()
    return connection


class Statements:
    """The operations on one connection, for many calls at a time. The caller begins and commits."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def create(self, payloads: list[bytes]) -> list[None]:
        """Store executions."""
        now = now_ms()
        rows = [(uuid.UUID(ascending_uuid()).bytes, now, payload, RAW_FIELDS) for payload in payloads]
        self.connection.executemany(CREATE, rows)
        return [None] * len(payloads)

    def claim(self, wanted: list[None]) -> list[bytes | None]:
        """Take as many executions as are wanted, or all there are."""
        now, run = now_ms(), self.connection.executemany
        keys = [row[0] for row in self.connection.execute(NEXT, (len(wanted),))]
        run(CLAIM_CORE, [(now, key) for key in keys])
        run(CLAIM_ATTEMPT, [(key, now, ascending_uuid(), ascending_uuid()) for key in keys])
        run(LEASE_EVENT, [(_text(key), "acquired", now, None) for key in keys])
        found: list[bytes | None] = [*keys]
        return found + [None] * (len(wanted) - len(keys))

    def complete(self, keys: list[bytes]) -> list[None]:
        """End executions."""
        now, run = now_ms(), self.connection.executemany
        run(COMPLETE_CORE, [(now, RESULT, key) for key in keys])
        run(COMPLETE_ATTEMPT, [(now, key) for key in keys])
        run(LEASE_EVENT, [(_text(key), "revoked", now, "backend") for key in keys])
        run(COMPLETION_EVENT, [(key, now) for key in keys])
        return [None] * len(keys)

    def renew(self, keys: list[bytes]) -> list[None]:
        """Prolong leases."""
        now, run = now_ms(), self.connection.executemany
        run(RENEW_ATTEMPT, [(now, key) for key in keys])
        run(LEASE_EVENT, [(_text(key), "renewed", now, None) for key in keys])
        return [None] * len(keys)


def _text(key: bytes) -> str:
    digits = key.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


class GroupCommit:
    """Callers share transactions: whatever queued is flushed and committed once."""

    def __init__(self, path: Path) -> None:
        self._statements = Statements(connect(path))
        self._queues: dict[str, list[tuple[Any, asyncio.Future[Any]]]] = {}
        self._due = False

    async def _call(self, kind: str, argument: Any) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._queues.setdefault(kind, []).append((argument, future))
        if not self._due:
            # The flush takes its turn behind the callers that are ready now: they queue first.
            self._due = True
            loop.call_soon(self._flush)
        return await future

    def _flush(self) -> None:
        queues, self._queues = self._queues, {}
        self._due = False
        execute = self._statements.connection.execute
        execute("BEGIN IMMEDIATE")
        answered: list[tuple[asyncio.Future[Any], Any]] = []
        for kind, calls in queues.items():
            answers = getattr(self._statements, kind)([argument for argument, _ in calls])
            answered += zip((future for _, future in calls), answers, strict=True)
        execute("COMMIT")
        for future, answer in answered:
            future.set_result(answer)

    async def create(self) -> None:
        """One new execution."""
        await self._call("create", PAYLOAD)

    async def claim(self) -> bytes | None:
        """The next execution."""
        claimed: bytes | None = await self._call("claim", None)
        return claimed

    async def complete(self, claimed: bytes) -> None:
        """End it."""
        await self._call("complete", claimed)

    async def renew(self, claimed: bytes) -> None:
        """Prolong its lease."""
        await self._call("renew", claimed)

    async def close(self) -> None:
        """Close the connection."""
        self._statements.connection.close()


class Batches(GroupCommit):
    """No callers at all: 200 lifecycles at a time, one transaction per operation."""

    async def lifecycles(self, _: int) -> int:
        """Run one batch from creation to completion."""
        self._in_transaction("create", [PAYLOAD] * MAX_BATCH)
        keys = [key for key in self._in_transaction("claim", [None] * MAX_BATCH) if key is not None]
        self._in_transaction("complete", keys)
        # Let the clock of the window look at the time.
        await asyncio.sleep(0)
        return len(keys)

    def _in_transaction(self, kind: str, arguments: list[Any]) -> list[Any]:
        self._statements.connection.execute("BEGIN IMMEDIATE")
        answers: list[Any] = getattr(self._statements, kind)(arguments)
        self._statements.connection.execute("COMMIT")
        return answers
