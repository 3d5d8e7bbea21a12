"""Reads the stored rows back, beside the engine's own operations: what counts is what is in the database."""

from __future__ import annotations

import uuid
from collections import defaultdict
from typing import Any, NamedTuple

from flowfabric import ExecutionId
from flowfabric.core.batch.view import View
from flowfabric.engine import Engine
from flowfabric.model.decisions import GetFull, Select
from flowfabric.model.events import LeaseEvent, OperatorEvent
from flowfabric.model.records.executions import Attempt, Execution, Grant
from flowfabric.stores.sql.schema import OUTBOXES


class Stored(NamedTuple):
    """An execution with everything that belongs to it."""

    execution: Execution
    attempts: list[Attempt]
    grants: list[Grant]


class Rows:
    """A plain SQLite connection to the engine's database, and the store's own way of reading records."""

    def __init__(self, engine: Engine) -> None:
        self._store = engine.store
        self._connection = engine.store.raw()

    def counts(self) -> dict[str, int]:
        """How many executions are in each public state."""
        return dict(self._connection.execute("SELECT public_state, count(*) FROM ff_exec_core GROUP BY public_state"))

    async def executions(self) -> dict[ExecutionId, Stored]:
        """Every execution, by id."""
        found = self._connection.execute("SELECT partition_key, execution_id FROM ff_exec_core").fetchall()
        ids = [ExecutionId.of(partition, uuid.UUID(bytes=raw)) for partition, raw in found]
        return {execution_id: await self._stored(execution_id) for execution_id in ids}

    async def _stored(self, execution_id: ExecutionId) -> Stored:
        where = {"partition": execution_id.partition, "uuid": execution_id.uuid_text}
        selects = (Select(kind, tuple(where), tuple(where.values())) for kind in (Attempt, Grant))
        view = View()
        await self._store.read([GetFull(execution_id), *selects], view)
        execution = view.full(execution_id)
        assert execution is not None
        return Stored(execution, view.select(Attempt, **where), view.select(Grant, **where))

    def events(self, kind: Any) -> dict[str, list[Any]]:
        """The outbox of a kind, by UUID, oldest first."""
        table = OUTBOXES[kind]
        columns = ", ".join(column.name for column in table.columns)
        found: dict[str, list[Any]] = defaultdict(list)
        for row in self._connection.execute(f"SELECT {columns} FROM {table.name} ORDER BY event_id"):
            event = kind(*(str(uuid.UUID(bytes=each)) if isinstance(each, bytes) else each for each in row))
            found[event.subject if kind is OperatorEvent else event.uuid].append(event)
        return found

    def frames(self, execution_id: ExecutionId) -> list[tuple[int, int]]:
        """Positions of the frames of an execution's streams, in the order they were stored."""
        found = self._connection.execute(
            "SELECT ts_ms, seq FROM ff_stream_frame WHERE execution_id = ? ORDER BY rowid", (execution_id.uuid.bytes,)
        )
        return [(ts_ms, seq) for ts_ms, seq in found]


def epoch_of(event: LeaseEvent) -> int:
    """The epoch is the last part of the lease id that people see."""
    return int((event.lease_id or "0").rpartition(":")[2])
