"""Looking at what a store holds, without going through the operation under test."""

from __future__ import annotations

import json
from typing import Any

from flowfabric import ClaimPolicy, Created, Handle
from flowfabric.engine import Engine
from flowfabric.model.changes import GetFull, Select
from flowfabric.model.events import CompletionEvent, InstanceTagEvent, LeaseEvent, OperatorEvent
from flowfabric.model.ids import ExecutionId
from flowfabric.model.records import Attempt, Execution
from flowfabric.stores.schema import OUTBOXES

START_MS = 1_800_000_000_000


class ManualClock:
    """A clock for ``Engine.open(clock=…)`` that tests move by hand."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, milliseconds: int) -> int:
        """Let time pass."""
        self.now_ms += milliseconds
        return self.now_ms


def policy(instance: str = "w1-i1", worker: str = "w1", ttl_ms: int = 30_000, **more: Any) -> ClaimPolicy:
    """A claim policy with defaults that tests share."""
    return ClaimPolicy(worker, instance, ttl_ms, **more)


async def create(engine: Engine, **arguments: Any) -> ExecutionId:
    """A new execution's id; fails if it was not new."""
    answer = await engine.create_execution(**{"execution_kind": "op", "input_payload": b"in", **arguments})
    assert isinstance(answer, Created), answer
    return answer.execution_id


async def claimed(engine: Engine, instance: str = "w1-i1", ttl_ms: int = 30_000, **arguments: Any) -> Handle:
    """A new execution on a lane of its own, claimed."""
    lane = arguments.setdefault("lane_id", "lane-of-one")
    await create(engine, **arguments)
    capabilities = arguments.get("capabilities", ())
    handle = await engine.claim(lane, capabilities, policy(instance, ttl_ms=ttl_ms))
    assert handle is not None
    return handle


def id_of(handle: Handle) -> ExecutionId:
    """The execution a handle is for."""
    from flowfabric.model.handles import decode

    return ExecutionId.parse(decode(handle.opaque)[1].execution_id)


class Probe:
    """Rows and events as they are stored."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def execution(self, execution_id: str) -> Execution:
        """The whole row, every field loaded."""
        view = await self._engine._view(GetFull(execution_id))
        found = view.full(execution_id)
        assert found is not None, f"no row for {execution_id}"
        return found

    async def raw_fields(self, execution_id: str) -> dict[str, Any]:
        """The row's document."""
        return json.loads((await self.execution(execution_id)).raw_fields)

    async def select(self, kind: Any, **equal: Any) -> list[Any]:
        """Records of any kind by field values, in key order."""
        view = await self._engine._view(Select(kind, tuple(equal), tuple(equal.values())))
        return view.select(kind, **equal)

    async def attempts(self, execution_id: str) -> list[Attempt]:
        """Every attempt row of an execution, by index."""
        identity = ExecutionId.parse(execution_id)
        return await self.select(Attempt, partition=identity.partition, uuid=identity.uuid_text)

    async def events(self, kind: Any, execution_id: str | None = None) -> list[Any]:
        """Events of one outbox in order; of one execution (or flow UUID) if given."""
        found = await self._all_events(kind)
        if execution_id is None:
            return found
        bare = execution_id.rpartition(":")[2]
        return [event for event in found if (event.subject if kind is OperatorEvent else event.uuid) == bare]

    async def lease_events(self, execution_id: str) -> list[str]:
        """The types of an execution's lease events, in order."""
        return [event.event_type for event in await self.events(LeaseEvent, execution_id)]

    async def completions(self, execution_id: str) -> list[str]:
        """The outcomes of an execution's completion events, in order."""
        return [event.outcome for event in await self.events(CompletionEvent, execution_id)]

    async def operator_events(self, execution_id: str) -> list[tuple[str, Any]]:
        """Types and details of the operator events of an execution or flow."""
        return [
            (event.event_type, None if event.details is None else json.loads(event.details))
            for event in await self.events(OperatorEvent, execution_id)
        ]

    async def snapshot(self) -> dict[str, Any]:
        """Everything that could change by mistake: executions, attempts and the number of events, for comparison."""
        engine = self._engine
        found: dict[str, Any] = {}
        for partition in range(engine.partitions.flow):
            for execution_id in (await engine.list_executions(partition, limit=1000)).executions:
                found[execution_id] = (await self.execution(execution_id), await self.attempts(execution_id))
        for kind in (LeaseEvent, CompletionEvent, OperatorEvent, InstanceTagEvent):
            found[kind.__name__] = len(await self.events(kind))
        return found

    async def _all_events(self, kind: Any) -> list[Any]:
        store = self._engine.store
        if store.label == "memory":
            return [event for _, event in store.events(kind)]
        table = OUTBOXES[kind]
        columns = ", ".join(
            f"CAST({column.name} AS text)"
            if column.type in ("uuid", "json") and store.label == "postgres"
            else column.name
            for column in table.columns
        )
        sql = f"SELECT {columns} FROM {table.name} ORDER BY event_id"
        if store.label == "postgres":
            async with store.raw() as connection:
                rows = await connection.fetch(sql)
        else:
            rows = store.raw().execute(sql).fetchall()
        return [kind(*map(_plain, row)) for row in rows]


def _plain(value: Any) -> Any:
    if isinstance(value, bytes) and len(value) == 16:
        text = value.hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
    return value
