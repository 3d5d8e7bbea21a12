"""A store with its engines, on a clock that stands still, and ways to look at everything it holds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from enum import Enum
from typing import Any

from msgspec import Struct

from flowfabric.engine import Engine
from flowfabric.engine.engine import open_store
from flowfabric.model.decisions import GetFull, Select
from flowfabric.model.errors import EngineError
from flowfabric.model.events import CompletionEvent, InstanceTagEvent, LeaseEvent, OperatorEvent
from flowfabric.model.handles import Handle, decode
from flowfabric.model.records.executions import Attempt, Execution, Grant
from flowfabric.model.records.streams import FrameRow
from flowfabric.model.waitpoint_tokens import revealed
from flowfabric.stores.questions import CountRows
from flowfabric.stores.sql.schema import OUTBOXES, TABLES, split_wire
from tests import valkey_rows
from tests.contract.probe import START_MS, ManualClock
from tests.simulation.model import ANY, Held, Row

#: Fields of answers that nobody can foresee.
UNFORESEEN = frozenset({"grant_key", "partition_key", "attempt_id", "detail"})
#: ``(execution, its attempts, its grants)``.
Rows = tuple[Execution, list[Attempt], list[Grant]]


class World:
    """One store for a whole test, emptied for every example. A store that lasts gets two engines, as two processes."""

    def __init__(self, url: str) -> None:
        self.runner = asyncio.Runner()
        self.clock = ManualClock()
        self.url = url
        self.engines: list[Engine] = []
        self._stores: list[Any] = []
        self._raw: Any = None
        self._seen: dict[Any, int] = {}

    def reset(self, grace_ms: int) -> None:
        """An empty store, new engines, the clock back at its start."""
        self.run(self._reset(grace_ms))

    async def _reset(self, grace_ms: int) -> None:
        for engine in self.engines:
            await engine._batcher.close()
        self.clock.now_ms = START_MS
        if self.url.startswith("memory:"):
            self._stores = [await open_store(self.url, clock=self.clock)]
        elif not self._stores:
            self._stores = [await open_store(self.url, single_node=True, clock=self.clock) for _ in range(2)]
            if self.label == "sqlite":
                # Nobody pulls the plug here.
                for connection in (self.raw, *(store._writer for store in self._stores)):
                    connection.execute("PRAGMA synchronous = OFF")
        await self._empty()
        self.engines = [Engine(store, reclaim_grace_ms=grace_ms) for store in self._stores]
        self._seen = dict.fromkeys(OUTBOXES, 0)

    async def _empty(self) -> None:
        tables = [table.name for table in (*TABLES.values(), *OUTBOXES.values())]
        if self.label == "sqlite":
            for table in (*tables, "ff_execution_capabilities"):
                self.raw.execute(f"DELETE FROM {table}")
        elif self.label == "postgres":
            async with self.store.raw() as connection:
                await connection.execute("; ".join(f"DELETE FROM {table}" for table in tables))
        elif self.label == "valkey":
            await valkey_rows.empty(*self._stores)

    def close(self) -> None:
        """Let go of everything."""
        for engine in self.engines:
            self.run(engine.close())
        self.runner.close()

    def run(self, work: Any) -> Any:
        # The runner itself would set up signal handling anew each time.
        return self.runner.get_loop().run_until_complete(work)

    @property
    def store(self) -> Any:
        return self._stores[0]

    @property
    def label(self) -> str:
        return self.store.label

    @property
    def raw(self) -> Any:
        """A plain SQLite connection."""
        if self._raw is None:
            self._raw = self.store.raw()
        return self._raw

    # -- calling -------------------------------------------------------------------------------------------------

    def call(self, engine: Engine, calls: Iterable[Callable[[Engine], Awaitable[Any]]]) -> list[Any]:
        """Answers of calls made at the same moment, in order; an error is an answer."""

        async def one(call: Callable[[Engine], Awaitable[Any]]) -> Any:
            try:
                return await call(engine)
            except EngineError as error:
                return error

        async def together() -> list[Any]:
            return await asyncio.gather(*map(one, calls))

        return self.run(together())

    # -- looking -------------------------------------------------------------------------------------------------

    def look(self, ids: Iterable[str]) -> tuple[dict[str, Rows], list[Any]]:
        """Every stored row of these executions, and the events written since the last look."""

        async def both() -> tuple[dict[str, Rows], list[Any]]:
            return await self._rows(list(ids)), await self._new_events()

        return self.run(both())

    async def _rows(self, ids: list[str]) -> dict[str, Rows]:
        needs: list[Any] = []
        for each in ids:
            owner = split_wire(each)
            needs += [GetFull(each), *(Select(kind, ("partition", "uuid"), owner) for kind in (Attempt, Grant))]
        view = await self.engines[0]._view(*needs)
        found = {}
        for each in ids:
            execution = view.full(each)
            if execution is not None:
                partition, uuid = split_wire(each)
                owned = [view.select(kind, partition=partition, uuid=uuid) for kind in (Attempt, Grant)]
                found[each] = (execution, *owned)
        return found

    def phases(self) -> dict[str, int]:
        """How many executions there are in each phase, as the store counts them."""
        return self.run(self.store.query(CountRows()))

    def frames(self) -> list[tuple[str, int, int, int]]:
        """``(execution, attempt, time, number)`` of every stored frame."""
        return self.run(self._frames())

    async def _frames(self) -> list[tuple[str, int, int, int]]:
        if self.label == "memory":
            return sorted((each.uuid, *key[1:]) for key, each in self.store._tables.all(FrameRow).items())
        if self.label == "valkey":
            frames = (await valkey_rows.contents(self.store, FrameRow))[FrameRow]
            return sorted((each.uuid, *key[1:]) for key, each in frames.items())
        uuid = "CAST(execution_id AS text)" if self.label == "postgres" else "execution_id"
        sql = f"SELECT {uuid}, attempt_index, ts_ms, seq FROM ff_stream_frame"
        if self.label == "sqlite":
            rows = self.raw.execute(sql).fetchall()
        else:
            async with self.store.raw() as connection:
                rows = await connection.fetch(sql)
        return sorted((_text_of(row[0]), *tuple(row)[1:]) for row in rows)

    async def _new_events(self) -> list[Any]:
        """Each outbox in its order."""
        found = []
        for kind, rows in (await self._all_events()).items():
            ids = [event_id for event_id, _ in rows]
            assert ids == sorted(set(ids)), f"I19: {kind.__name__} ids {ids}"
            self._seen[kind] = max([self._seen[kind], *ids])
            found += [event for _, event in rows]
        return found

    async def _all_events(self) -> dict[Any, list[tuple[int, Any]]]:
        if self.label == "valkey":
            return await valkey_rows.events(self.store, self._seen)
        return {kind: await self._events(kind, after) for kind, after in self._seen.items()}

    async def _events(self, kind: Any, after: int) -> list[tuple[int, Any]]:
        if self.label == "memory":
            return self.store.events(kind, after)
        columns = ", ".join(self._column(column) for column in OUTBOXES[kind].columns)
        sql = f"SELECT event_id, {columns} FROM {OUTBOXES[kind].name} WHERE event_id > {after} ORDER BY event_id"
        if self.label == "sqlite":
            rows = self.raw.execute(sql).fetchall()
        else:
            async with self.store.raw() as connection:
                rows = await connection.fetch(sql)
        return [(row[0], kind(*map(_text_of, tuple(row)[1:]))) for row in rows]

    def _column(self, column: Any) -> str:
        as_text = self.label == "postgres" and column.type in ("uuid", "json")
        return f"CAST({column.name} AS text)" if as_text else column.name


def _text_of(value: Any) -> Any:
    if isinstance(value, bytes) and len(value) == 16:
        text = value.hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
    return value


# -- the engine's answers and rows in the oracle's words -------------------------------------------------------------


def plain(answer: Any) -> Any:
    """An engine's answer as the oracle says it."""
    if isinstance(answer, EngineError):
        return (type(answer).__name__, str(answer.kind))
    if isinstance(answer, Handle):
        payload = decode(answer.opaque)[1]
        return Held(
            str(answer.kind),
            payload.execution_id,
            payload.attempt_index,
            payload.lease_epoch,
            payload.lease_ttl_ms,
            payload.lane_id,
            payload.worker_instance_id,
        )
    if isinstance(answer, Enum):
        return answer.value
    if isinstance(answer, str):
        return str.__str__(revealed(answer))
    if isinstance(answer, list | tuple):
        return [plain(each) for each in answer]
    if isinstance(answer, Struct):
        hidden = UNFORESEEN | ({"lease_id"} if type(answer).__name__ == "Claimed" else set())
        names = [name for name in answer.__struct_fields__ if name not in hidden]
        return (type(answer).__name__, {name: plain(getattr(answer, name)) for name in names})
    return answer


def picture_of_rows(rows: Rows) -> dict[str, Any]:
    """Stored rows, field by field."""
    execution, attempts, grants = rows
    raw = json.loads(execution.raw_fields)
    return {
        "namespace": execution.namespace,
        "lane": execution.lane_id,
        "needs": tuple(execution.required_capabilities),
        "priority": execution.priority,
        "created": execution.created_at_ms,
        "phase": execution.lifecycle_phase,
        "ownership": execution.ownership_state,
        "eligibility": execution.eligibility_state,
        "public": execution.public_state,
        "attempt_state": execution.attempt_state,
        "blocking": execution.blocking_reason,
        "delay": execution.delay_until_ms,
        "deadline": execution.deadline_at_ms,
        "index": execution.attempt_index,
        "started": execution.started_at_ms,
        "ended": execution.terminal_at_ms,
        "outcome": execution.terminal_outcome,
        "result": execution.result,
        "retries": execution.retry_count,
        "reclaims": execution.lease_reclaim_count,
        "replays": raw.get("replay_count", 0),
        "total": execution.total_attempt_count,
        "cancelled_by": execution.cancelled_by,
        "cancel_reason": execution.cancellation_reason,
        "progress": {name: raw[name] for name in ("progress_pct", "progress_message") if name in raw},
        "tags": raw["tags"],
        "attempts": {
            each.attempt_index: {
                "epoch": each.lease_epoch,
                "worker": each.worker_id,
                "instance": each.worker_instance_id,
                "expires": each.lease_expires_at_ms,
                "began": each.started_at_ms,
                "ended": each.terminal_at_ms,
                "outcome": each.outcome,
                "type": each.attempt_type,
                "timeout_at": each.attempt_timeout_at_ms,
                "retry_at": each.retry_at_ms,
                "identity": each.attempt_id,
                "lease": each.lease_id,
            }
            for each in attempts
        },
        "grants": sorted(
            (each.kind, each.worker_id, each.worker_instance_id, each.issued_at_ms, each.expires_at_ms)
            for each in grants
        ),
    }


#: Fields that are called the same in a picture and in the oracle's row.
ALIKE = (
    *("namespace", "lane", "priority", "created", "phase", "ownership", "eligibility", "public", "attempt_state"),
    *("blocking", "delay", "deadline", "index", "started", "ended", "outcome", "result", "retries", "reclaims"),
    *("replays", "total", "cancelled_by", "cancel_reason", "progress", "tags"),
)


def picture_of_model(row: Row) -> dict[str, Any]:
    """The same of the oracle's row."""
    found = {name: getattr(row, name) for name in ALIKE}
    found["needs"] = tuple(sorted(row.needs))
    found["attempts"] = {index: {**vars(each), "identity": ANY, "lease": ANY} for index, each in row.attempts.items()}
    found["grants"] = sorted(tuple(grant) for grant in row.grants)
    return found


def picture_of_event(event: Any) -> tuple[Any, ...]:
    """An event as the oracle writes it."""
    if isinstance(event, InstanceTagEvent):
        return ("tag", event.uuid, event.event_type, event.tag, event.occurred_at_ms, event.namespace)
    behind = (event.namespace, event.instance_tag)
    if isinstance(event, LeaseEvent):
        lease = (event.uuid, event.event_type, event.lease_id, event.occurred_at_ms, event.worker_instance_id)
        return ("lease", *lease, *behind)
    if isinstance(event, CompletionEvent):
        return ("completion", event.uuid, event.outcome, event.occurred_at_ms, *behind)
    assert isinstance(event, OperatorEvent)
    details = json.loads(event.details or "null")
    return ("operator", event.subject, event.event_type, details, event.occurred_at_ms, *behind)


def differences(found: Any, wanted: Any, where: str = "") -> list[str]:
    """Where two pictures differ, as lines to read."""
    if found == wanted:
        return []
    if isinstance(found, dict) and isinstance(wanted, dict):
        lines = []
        for key in sorted(found.keys() | wanted.keys(), key=str):
            lines += differences(found.get(key, "(absent)"), wanted.get(key, "(absent)"), f"{where}.{key}")
        return lines
    return [f"{where}: engine {found!r}, oracle {wanted!r}"]
