"""Putting rows into a store without the operation that usually makes them, the same way on every store."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from flowfabric.core.batch.view import View
from flowfabric.engine import Engine
from flowfabric.engine.record_cache import HeldRecords
from flowfabric.model.decisions import Act, Decision, Drop, Get, GetFull, change, insert
from flowfabric.model.ids import ExecutionId
from flowfabric.model.partitions import flow_partition
from flowfabric.model.records.executions import Attempt, Execution, Record
from flowfabric.model.records.flows import Edge, EdgeGroup, Flow
from flowfabric.stores.sql.schema import OUTBOXES
from flowfabric.stores.valkey.keys import log_field
from tests.contract.probe import START_MS


async def _commit(engine: Engine, needs: list[Any], decide: Callable[[View], list[Act]]) -> None:
    store: Any = engine.store

    async def batch() -> None:
        view = View()
        async with store.transaction() as transaction:
            await transaction.load(needs, view)
            view.fold(Decision(None, tuple(decide(view))))
            await transaction.commit(view.writes(), HeldRecords())

    await store.run(batch)
    # What the engine has in mind is older than what is stored now.
    engine._held.forget()


async def seed(engine: Engine, *records: Record) -> None:
    """Insert records as they are."""
    await _commit(engine, [], lambda view: [insert(record) for record in records])


async def overwrite(engine: Engine, kind: type[Any], key: Any, **fields: Any) -> None:
    """Overwrite fields of any record."""

    def decide(view: View) -> list[Act]:
        found: Any = view.get(kind, key)
        assert found is not None, f"no {kind.__name__} {key}"
        return [change(found, **fields)]

    await _commit(engine, [Get(kind, key)], decide)


async def alter(engine: Engine, execution_id: str, **fields: Any) -> None:
    """Overwrite fields of an execution."""

    def decide(view: View) -> list[Act]:
        found = view.full(execution_id)
        assert found is not None, f"no row for {execution_id}"
        return [change(found, **fields)]

    await _commit(engine, [GetFull(execution_id)], decide)


async def alter_attempt(engine: Engine, execution_id: str, attempt_index: int = 0, **fields: Any) -> None:
    """Overwrite fields of an attempt."""
    key = (str.__str__(execution_id), attempt_index)

    def decide(view: View) -> list[Act]:
        found = view.get(Attempt, key)
        assert found is not None, f"no attempt {key}"
        return [change(found, **fields)]

    await _commit(engine, [Get(Attempt, key)], decide)


async def remove(engine: Engine, kind: Any, key: Any) -> None:
    """Delete one record of any kind."""

    def decide(view: View) -> list[Act]:
        found = view.get(kind, key)
        assert found is not None, f"no {kind.__name__} {key}"
        return [Drop(found)]

    await _commit(engine, [Get(kind, key)], decide)


async def lose_events(engine: Engine, kind: Any, after: int) -> None:
    """Let a log end at a number, as if the server had never seen what came behind it."""
    store: Any = engine.store
    table = OUTBOXES[kind].name
    delete = f"DELETE FROM {table} WHERE event_id > {after}"
    if store.label == "memory":
        log = store._outboxes
        log._rows[kind] = [row for row in log._rows[kind] if row[0] <= after]
        log._last[kind] = after
    elif store.label == "sqlite":
        connection = store.raw()
        connection.execute(delete)
        connection.execute(f"UPDATE sqlite_sequence SET seq = {after} WHERE name = '{table}'")
    elif store.label == "postgres":
        async with store.raw() as connection:
            await connection.execute(delete)
            await connection.execute(f"SELECT setval(pg_get_serial_sequence('{table}', 'event_id'), {after})")
    else:
        key = store.keys.log(kind)
        rows = await store.connection.command("XRANGE", key, "-", f"{after}-0")
        await store.connection.commands(
            ("DEL", key),
            *(("XADD", key, number, *values) for number, values in rows),
            ("HSET", store.keys.meta, log_field(kind, "last"), after),
            read_only=False,
        )


def flow_of(engine: Engine, state: str = "open", flow_id: str | None = None, **raw: Any) -> Flow:
    """A flow's row; ``raw`` goes to its document."""
    flow_id = flow_id or str(uuid.uuid4())
    return Flow(flow_partition(flow_id, engine.partitions), flow_id, 0, state, START_MS, None, json.dumps(raw))


def member_id(engine: Engine, flow: Flow) -> ExecutionId:
    """A fresh id in the flow's partition."""
    return ExecutionId.for_flow(flow.flow_id, engine.partitions)


async def member(engine: Engine, flow: Flow, **arguments: Any) -> ExecutionId:
    """A fresh execution that belongs to the flow; a lane of its own by default, so that it can be claimed by it."""
    execution_id = member_id(engine, flow)
    arguments.setdefault("lane_id", f"member-{execution_id.uuid_text[-8:]}")
    await engine.create_execution(execution_id=execution_id, **arguments)
    await alter(engine, execution_id, flow_id=flow.flow_id)
    return execution_id


def lane_of(execution_id: ExecutionId) -> str:
    """The lane of a ``member``."""
    return f"member-{execution_id.uuid_text[-8:]}"


def edge(flow: Flow, upstream: ExecutionId, downstream: ExecutionId, policy: str = "{}") -> Edge:
    """One dependency."""
    return Edge(flow.partition, flow.flow_id, str(uuid.uuid4()), upstream.uuid_text, downstream.uuid_text, policy)


def group(flow: Flow, downstream: ExecutionId, **counts: Any) -> EdgeGroup:
    """The counters of all edges into one member."""
    return EdgeGroup(flow.partition, flow.flow_id, downstream.uuid_text, "{}", **counts)


def bare_execution(engine: Engine, execution_id: ExecutionId, **fields: Any) -> Execution:
    """A row as a person would write it with SQL: state columns, and nothing else."""
    row = Execution(
        str.__str__(execution_id), execution_id.partition, execution_id.uuid_text, None, "default", (), 0,
        "runnable", "unowned", "eligible_now", "waiting", "pending", None, 0, START_MS, None, None, None, 0, None,
        None, None, None, None, 0, 0, raw_fields="{}",
    )  # fmt: skip
    return replace(row, **fields)
