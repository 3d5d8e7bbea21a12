"""Looking at what a store holds, without going through the operation under test."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from flowfabric import ClaimPolicy, Created, EngineError, Handle, HandlePayload, LeaseFence
from flowfabric.engine import Engine
from flowfabric.model.decisions import GetFull, Select
from flowfabric.model.events import CompletionEvent, LeaseEvent, OperatorEvent
from flowfabric.model.handles import decode, encode
from flowfabric.model.ids import ExecutionId
from flowfabric.model.records.executions import Attempt, Execution, Grant, SigningKey
from flowfabric.stores.event_questions import ReadEvents
from flowfabric.stores.sql.schema import OUTBOXES, TABLES
from flowfabric.stores.valkey.codec import shape_of, unpacked_wide
from flowfabric.stores.valkey.keys import LASTING

START_MS = 1_800_000_000_000

#: For tests that open a second engine on the same rows or write them by hand: a store in memory belongs to one engine.
shared_stores_only = pytest.mark.parametrize("store_url", ["sqlite", "postgres", "valkey"], indirect=True)

#: For what people do with SQL.
sql_stores_only = pytest.mark.parametrize("store_url", ["sqlite", "postgres"], indirect=True)

#: ``Probe.stored`` of an execution somebody runs, and of one that waits to be continued.
RUNNING = ("active", "leased", "not_applicable", "running_attempt", "running", None)
INTERRUPTED = ("runnable", "unowned", "eligible_now", "attempt_interrupted", "waiting", "waiting_for_worker")


def needing(*capabilities: str) -> dict[str, Any]:
    """An execution policy that asks for these capabilities."""
    return {"routing_requirements": {"required_capabilities": list(capabilities)}}


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
    capabilities = arguments.pop("capabilities", ())
    await create(engine, **arguments)
    handle = await engine.claim(lane, capabilities, policy(instance, ttl_ms=ttl_ms))
    assert handle is not None
    return handle


def id_of(handle: Handle) -> ExecutionId:
    """The execution a handle is for."""
    return ExecutionId.parse(payload_of(handle).execution_id)


def payload_of(handle: Handle) -> HandlePayload:
    """What a handle says."""
    return decode(handle.opaque)[1]


@contextlib.asynccontextmanager
async def unchanged(probe: Probe) -> AsyncIterator[None]:
    """Whatever the block does, no row and no event is different after it."""
    before = await probe.snapshot()
    yield
    after = await probe.snapshot()
    for table, rows in before.items():
        assert after[table] == rows, f"{table} changed"


@contextlib.asynccontextmanager
async def refused(
    probe: Probe, family: type[EngineError], kind: Any = None, detail: str | None = None
) -> AsyncIterator[pytest.ExceptionInfo[EngineError]]:
    """The block fails with this family, kind and (exact) detail, and changes nothing."""
    async with unchanged(probe):
        with pytest.raises(family) as caught:
            yield caught
    if kind is not None:
        assert caught.value.kind == kind, caught.value
    if detail is not None:
        assert caught.value.detail == detail


def forged(handle: Handle, **changes: Any) -> Handle:
    """The handle with some of its eight fields replaced, as anybody could who has seen one."""
    tag, payload = decode(handle.opaque)
    return Handle(handle.backend, handle.kind, encode(tag, replace(payload, **changes)))


def fence_of(handle: Handle, **changes: Any) -> LeaseFence:
    """The fence triple of the lease a handle stands for."""
    payload = payload_of(handle)
    return replace(LeaseFence(payload.lease_id, payload.lease_epoch, payload.attempt_id), **changes)


class Probe:
    """Rows and events as they are stored."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sqlite: Any = None

    async def execution(self, execution_id: str) -> Execution:
        """The whole row, every field loaded."""
        view = await self._engine._view(GetFull(execution_id))
        found = view.full(execution_id)
        assert found is not None, f"no row for {execution_id}"
        return found

    async def state(self, execution_id: str) -> str:
        """Phase, ownership, eligibility, attempt state and public state as stored, separated by " / "."""
        row = await self.execution(execution_id)
        parts = (row.lifecycle_phase, row.ownership_state, row.eligibility_state, row.attempt_state, row.public_state)
        return " / ".join(parts)

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

    async def stored(self, execution_id: str) -> tuple[str | None, ...]:
        """Stored literals: phase, ownership, eligibility, attempt state, public state, blocking reason."""
        row = await self.execution(execution_id)
        return (
            row.lifecycle_phase,
            row.ownership_state,
            row.eligibility_state,
            row.attempt_state,
            row.public_state,
            row.blocking_reason,
        )

    async def vector(self, execution_id: str) -> tuple[str, ...]:
        """The state vector a reader sees, in the order of ``stored`` and with the terminal outcome behind it."""
        info = await self._engine.read_execution_info(execution_id)
        assert info is not None, f"no row for {execution_id}"
        found = info.state_vector
        assert info.public_state == found.public_state
        return (
            found.lifecycle_phase.value,
            found.ownership_state.value,
            found.eligibility_state.value,
            found.attempt_state.value,
            found.public_state.value,
            found.blocking_reason.value,
            found.terminal_outcome.value,
        )

    async def grants(self, execution_id: str) -> list[Grant]:
        """Every grant on an execution."""
        identity = ExecutionId.parse(execution_id)
        return await self.select(Grant, partition=identity.partition, uuid=identity.uuid_text)

    async def grant_key(self, grant: Grant) -> str:
        """The key a stored grant must have, worked out from the one signing key there is."""
        [key] = await self.select(SigningKey, active=True)
        reclaim = grant.kind == "reclaim"
        tag, expires = f"{{fp:{grant.partition}}}", grant.expires_at_ms
        message = f"{key.kid}:{tag}|{grant.uuid}|{grant.worker_id}|{grant.worker_instance_id}|{expires}"
        digest = hmac.new(key.secret, (message + "|reclaim" * reclaim).encode(), hashlib.sha256).hexdigest()
        prefix = self._engine.store.shown + ":reclaim" * reclaim
        return f"{prefix}:{tag}:{grant.uuid}:{expires}:{key.kid}:{digest}"

    async def attempt_policies(self, execution_id: str) -> list[Any]:
        """The policy snapshots of an execution's attempts, by index."""
        store = self._engine.store
        if store.label == "memory":
            stored = [store._tables.find(Attempt, each.key).policy for each in await self.attempts(execution_id)]
        elif store.label == "valkey":
            key = store.keys.wide(Attempt, "policy")
            fields = [shape_of(Attempt).field(each.key) for each in await self.attempts(execution_id)]
            found = [await store.connection.command("HGET", key, field) for field in fields]
            stored = [unpacked_wide("policy", value) for value in found]
        else:
            uuid = ExecutionId.parse(execution_id).uuid_text
            where = f"execution_id = '{uuid}'" if store.label == "postgres" else f"hex(execution_id) = '{hexed(uuid)}'"
            sql = f"SELECT CAST(policy AS text) FROM ff_attempt WHERE {where} ORDER BY attempt_index"
            stored = [row[0] for row in await self._fetch(sql)]
        return [None if text is None else json.loads(text) for text in stored]

    def lease_id(self, execution_id: str, attempt_index: int, lease_epoch: int) -> str:
        """A lease id as people and events see it."""
        bare = execution_id.rpartition(":")[2]
        return f"{self._engine.store.shown}:{bare}:{attempt_index}:{lease_epoch}"

    async def snapshot(self) -> dict[str, Any]:
        """Everything that is stored, table by table, for comparison."""
        store = self._engine.store
        if store.label == "memory":
            found = {table.name: dict(store._tables.all(kind)) for kind, table in TABLES.items()}
            return found | {table.name: store.events(kind) for kind, table in OUTBOXES.items()}
        if store.label == "valkey":
            return await self._valkey_contents()
        names = [table.name for table in (*TABLES.values(), *OUTBOXES.values())]
        if store.label == "postgres":
            rows = await self._fetch(
                " UNION ALL ".join(f"SELECT '{name}', to_jsonb(t)::text FROM {name} t" for name in names)
            )
            return {name: sorted(row[1] for row in rows if row[0] == name) for name in names}
        names.append("ff_execution_capabilities")
        return {name: sorted(map(repr, await self._fetch(f"SELECT * FROM {name}"))) for name in names}

    async def _valkey_contents(self) -> dict[str, Any]:
        """Records and events table by table, and everything else together."""
        store = self._engine.store
        ask = store.connection.command
        found = {table.name: await _hash(ask, store.keys.rows(kind)) for kind, table in TABLES.items()}
        for kind, table in OUTBOXES.items():
            found[table.name] = await ask("XRANGE", store.keys.log(kind), "-", "+")
        ways = {b"set": ("SMEMBERS",), b"zset": ("ZRANGE", 0, -1)}
        others: dict[bytes, Any] = {}
        # Numbers of events, and names of runs that are listed for good, tell of what was.
        known = {store.keys.meta, *(store.keys.names(family) for family in LASTING), *map(store.keys.rows, TABLES)}
        for key in set(await ask("KEYS", store.keys.every())) - known:
            kind = await ask("TYPE", key)
            if kind == b"hash":
                others[key] = await _hash(ask, key)
            elif kind in ways:
                command, *bounds = ways[kind]
                others[key] = sorted(await ask(command, key, *bounds))
        return found | {"others": others}

    async def _fetch(self, sql: str) -> list[Any]:
        store = self._engine.store
        if store.label == "postgres":
            async with store.raw() as connection:
                return await connection.fetch(sql)
        if self._sqlite is None:
            self._sqlite = store.raw()
        return self._sqlite.execute(sql).fetchall()

    async def _all_events(self, kind: Any) -> list[Any]:
        store = self._engine.store
        if store.label == "memory":
            return [event for _, event in store.events(kind)]
        if store.label == "valkey":
            return [event for _, event in (await store.query(ReadEvents(kind, 0, None, 1_000_000))).rows]
        table = OUTBOXES[kind]
        columns = ", ".join(
            f"CAST({column.name} AS text)"
            if column.type in ("uuid", "json") and store.label == "postgres"
            else column.name
            for column in table.columns
        )
        rows = await self._fetch(f"SELECT {columns} FROM {table.name} ORDER BY event_id")
        return [kind(*map(_plain, row)) for row in rows]


async def _hash(ask: Any, key: bytes) -> list[tuple[bytes, bytes]]:
    found = await ask("HGETALL", key)
    return sorted(zip(found[::2], found[1::2], strict=True))


def hexed(uuid: str) -> str:
    """A UUID as SQLite's ``hex`` shows it."""
    return uuid.replace("-", "").upper()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes) and len(value) == 16:
        text = value.hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
    return value


async def until(condition: Callable[[], bool]) -> None:
    """Let the engine work until something holds."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    pytest.fail("it never came to that")
