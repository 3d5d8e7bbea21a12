"""What the ported acceptance tests share: plain SQL on either database, records by key on Valkey, and the set-up the
originals repeat."""

from __future__ import annotations

import json
import threading
import time
import uuid
from typing import Any

from flowfabric import BackendTag, ExecutionId
from flowfabric.engine import Engine
from flowfabric.model.records.streams import FrameRow, StreamSummary
from tests.contract.probe import Probe
from tests.contract.seeding import alter_attempt, bare_execution, seed


def now_ms() -> int:
    """The wall clock, as the originals read it."""
    return time.time_ns() // 1_000_000


def uuid_like() -> str:
    """A name nobody else uses: time in nanoseconds and thread."""
    return f"{time.time_ns()}-ThreadId({threading.get_ident()})"


def creation(execution_id: ExecutionId, lane_id: str) -> dict[str, Any]:
    """The arguments with which the originals create an execution."""
    return {
        "execution_id": execution_id,
        "namespace": "default",
        "lane_id": lane_id,
        "execution_kind": "op",
        "input_payload": b"hello",
        "payload_encoding": None,
        "priority": 0,
        "creator_identity": "test",
        "idempotency_key": None,
        "tags": {},
        "policy": None,
        "delay_until": None,
        "execution_deadline_at": None,
        "partition_id": 0,
        "now": now_ms(),
    }


class Database:
    """Plain SQL on an engine's database, through the driver and past the engine.

    Statements are written once, with ``?1`` marks; UUIDs are given as ``uuid.UUID``.
    """

    def __init__(self, engine: Engine) -> None:
        self._store = engine.store
        self.is_postgres = engine.backend_label == "postgres"
        self._sqlite = None if self.is_postgres else self._store.raw()

    @property
    def tag(self) -> BackendTag:
        """The tag of every handle minted on this database."""
        return BackendTag.POSTGRES if self.is_postgres else BackendTag.SQLITE

    @property
    def json_object(self) -> str:
        """The function that builds a JSON object from names and values."""
        return "jsonb_build_object" if self.is_postgres else "json_object"

    # -- statements ----------------------------------------------------------------------------------------------

    async def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Every row."""
        if self._sqlite is None:
            async with self._store.raw() as connection:
                return [tuple(row) for row in await connection.fetch(sql.replace("?", "$"), *values)]
        blobs = [value.bytes if isinstance(value, uuid.UUID) else value for value in values]
        return self._sqlite.execute(sql, blobs).fetchall()

    async def execute(self, sql: str, *values: Any) -> None:
        """Change rows, committed at once."""
        await self.rows(sql, *values)

    async def row(self, sql: str, *values: Any) -> tuple[Any, ...]:
        """The first row, which must exist."""
        found = await self.rows(sql, *values)
        assert found, f"no row: {sql}"
        return found[0]

    async def value(self, sql: str, *values: Any) -> Any:
        """The first column of the first row, which must exist."""
        return (await self.row(sql, *values))[0]

    # -- executions ----------------------------------------------------------------------------------------------

    async def column(self, execution_id: ExecutionId, name: str) -> Any:
        """A column of ``ff_exec_core``."""
        return await self.value(
            f"SELECT {name} FROM ff_exec_core WHERE partition_key = ?1 AND execution_id = ?2",
            execution_id.partition,
            execution_id.uuid,
        )

    async def attempt_column(self, execution_id: ExecutionId, attempt_index: int, name: str) -> Any:
        """A column of ``ff_attempt``."""
        return await self.value(
            f"SELECT {name} FROM ff_attempt WHERE partition_key = ?1 AND execution_id = ?2 AND attempt_index = ?3",
            execution_id.partition,
            execution_id.uuid,
            attempt_index,
        )

    async def raw_field(self, execution_id: ExecutionId, name: str) -> Any:
        """A member of ``raw_fields``; ``None`` if absent."""
        if self.is_postgres:
            found = await self.column(execution_id, f"raw_fields -> '{name}'")
            return None if found is None else json.loads(found)
        return await self.column(execution_id, f"json_extract(raw_fields, '$.{name}')")

    async def raw_field_type(self, execution_id: ExecutionId, name: str) -> str | None:
        """The JSON type of a member of ``raw_fields``: ``None`` if absent, ``'null'`` if an explicit null."""
        if self.is_postgres:
            return await self.column(execution_id, f"jsonb_typeof(raw_fields -> '{name}')")
        return await self.column(execution_id, f"json_type(raw_fields, '$.{name}')")

    async def seed_runnable(
        self, execution_id: ExecutionId, lane_id: str, capabilities: tuple[str, ...], priority: int = 0
    ) -> None:
        """A runnable, eligible row that asks for capabilities, where the database keeps them."""
        columns, marks, values = "", "", [execution_id.partition, execution_id.uuid, lane_id, priority]
        if self.is_postgres:
            columns, marks = ", required_capabilities", ", ?5"
            values.append(list(capabilities))
        await self.execute(
            f"""
            INSERT INTO ff_exec_core (
                partition_key, execution_id, lane_id, attempt_index,
                lifecycle_phase, ownership_state, eligibility_state,
                public_state, attempt_state, priority, created_at_ms{columns}
            ) VALUES (?1, ?2, ?3, 0,
                      'runnable', 'unowned', 'eligible_now',
                      'pending', 'initial', ?4, 1{marks})
            """,
            *values,
        )
        if not self.is_postgres:
            for capability in capabilities:
                await self.execute(
                    "INSERT INTO ff_execution_capabilities (execution_id, capability) VALUES (?1, ?2)",
                    execution_id.uuid,
                    capability,
                )

    async def lease_events(self, execution_id: ExecutionId) -> list[str]:
        """The types of an execution's lease events, in order."""
        found = await self.rows(
            "SELECT event_type FROM ff_lease_event WHERE execution_id = ?1 ORDER BY event_id ASC",
            str(execution_id.uuid),
        )
        return [event_type for (event_type,) in found]

    async def expire_lease(self, execution_id: ExecutionId, attempt_index: int, at_ms: int) -> None:
        """Let a lease run out at a time of one's own choosing."""
        await self.execute(
            "UPDATE ff_attempt SET lease_expires_at_ms = ?1 "
            "WHERE partition_key = ?2 AND execution_id = ?3 AND attempt_index = ?4",
            at_ms,
            execution_id.partition,
            execution_id.uuid,
            attempt_index,
        )

    async def frames(self, execution_id: ExecutionId) -> int:
        """How many frames of its first attempt there are."""
        return await self.value(
            "SELECT COUNT(*) FROM ff_stream_frame WHERE partition_key = ?1 AND execution_id = ?2 AND attempt_index = 0",
            execution_id.partition,
            execution_id.uuid,
        )

    async def summary(self, execution_id: ExecutionId) -> tuple[str, int]:
        """The summary of its first attempt's stream, and its version."""
        document, version = await self.row(
            "SELECT document_json, version FROM ff_stream_summary "
            "WHERE partition_key = ?1 AND execution_id = ?2 AND attempt_index = 0",
            execution_id.partition,
            execution_id.uuid,
        )
        return document, version


class KeyedDatabase:
    """The same questions where there is no SQL: records are looked at, and put there, past the engine's operations."""

    tag = BackendTag.VALKEY

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._probe = Probe(engine)

    async def column(self, execution_id: ExecutionId, name: str) -> Any:
        """A field of an execution."""
        return getattr(await self._probe.execution(execution_id), name)

    async def attempt_column(self, execution_id: ExecutionId, attempt_index: int, name: str) -> Any:
        """A field of an attempt."""
        return getattr((await self._probe.attempts(execution_id))[attempt_index], name)

    async def raw_field(self, execution_id: ExecutionId, name: str) -> Any:
        """A member of ``raw_fields``; ``None`` if absent."""
        return (await self._probe.raw_fields(execution_id)).get(name)

    async def raw_field_type(self, execution_id: ExecutionId, name: str) -> str | None:
        """The type of a member of ``raw_fields``; ``None`` if absent."""
        found = await self._probe.raw_fields(execution_id)
        return type(found[name]).__name__ if name in found else None

    async def seed_runnable(
        self, execution_id: ExecutionId, lane_id: str, capabilities: tuple[str, ...], priority: int = 0
    ) -> None:
        """A runnable, eligible record that asks for capabilities."""
        fields = {"lane_id": str.__str__(lane_id), "required_capabilities": capabilities, "priority": priority}
        states = {"public_state": "pending", "attempt_state": "initial", "created_at_ms": 1}
        await seed(self._engine, bare_execution(self._engine, execution_id, **fields, **states))

    async def lease_events(self, execution_id: ExecutionId) -> list[str]:
        """The types of an execution's lease events, in order."""
        return await self._probe.lease_events(execution_id)

    async def expire_lease(self, execution_id: ExecutionId, attempt_index: int, at_ms: int) -> None:
        """Let a lease run out at a time of one's own choosing."""
        await alter_attempt(self._engine, execution_id, attempt_index, lease_expires_at_ms=at_ms)

    async def frames(self, execution_id: ExecutionId) -> int:
        """How many frames of its first attempt there are."""
        own = {"partition": execution_id.partition, "uuid": execution_id.uuid_text}
        return sum(each.attempt_index == 0 for each in await self._probe.select(FrameRow, **own))

    async def summary(self, execution_id: ExecutionId) -> tuple[str, int]:
        """The summary of its first attempt's stream, and its version."""
        own = {"partition": execution_id.partition, "uuid": execution_id.uuid_text}
        [found] = [each for each in await self._probe.select(StreamSummary, **own) if each.attempt_index == 0]
        return found.document_json, found.version


def is_number(value: Any, expected: int) -> bool:
    """Whether a value is this whole number, not a text, a float or a boolean that looks like it."""
    return type(value) is int and value == expected
