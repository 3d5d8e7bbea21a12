"""Rows for the memory store, and small ways to write, load and ask."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from flowfabric.core.batch.view import View
from flowfabric.model import states as lit
from flowfabric.model.decisions import (
    Act,
    Claimable,
    Decision,
    Get,
    Need,
    Select,
    insert,
)
from flowfabric.model.events import LeaseEvent
from flowfabric.model.records.executions import Attempt, Execution, Grant, Worker
from flowfabric.model.records.streams import FrameRow, StreamHead
from flowfabric.stores import questions as ask
from flowfabric.stores.memory import MemoryStore

NOW = 1_000_000
FLOW = str(UUID(int=77))


# --------------------------------------------------------------------------------------------------------------- makers


class NoVersions:
    def version(self, kind: Any, key: Any) -> int | None:
        return None


NO_VERSIONS = NoVersions()


def uuid_of(number: int) -> str:
    return str(UUID(int=number))


def wire(number: int, partition: int = 0) -> str:
    return f"{{fp:{partition}}}:{uuid_of(number)}"


def execution(number: int, partition: int = 0, **fields: Any) -> Execution:
    plain: dict[str, Any] = {
        "flow_id": None,
        "lane_id": "default",
        "required_capabilities": (),
        "attempt_index": 0,
        "lifecycle_phase": lit.RUNNABLE,
        "ownership_state": lit.UNOWNED,
        "eligibility_state": lit.ELIGIBLE_NOW,
        "public_state": lit.PUBLIC_WAITING,
        "attempt_state": lit.ATTEMPT_PENDING,
        "blocking_reason": None,
        "priority": 0,
        "created_at_ms": NOW,
        "terminal_at_ms": None,
        "deadline_at_ms": None,
        "started_at_ms": None,
        "lease_reclaim_count": 0,
        "delay_until_ms": None,
        "policy": None,
        "namespace": "main",
        "instance_tag": None,
        "last_mutation_at_ms": None,
        "total_attempt_count": 0,
        "retry_count": 0,
    }
    return Execution(wire(number, partition), partition, uuid_of(number), **(plain | fields))


def running(number: int, attempt_index: int = 0, **fields: Any) -> Execution:
    states: dict[str, Any] = {
        "lifecycle_phase": lit.ACTIVE,
        "eligibility_state": lit.NOT_APPLICABLE,
        "attempt_index": attempt_index,
    }
    return execution(number, **(states | fields))


def attempt(number: int, attempt_index: int = 0, partition: int = 0, **fields: Any) -> Attempt:
    return Attempt(wire(number, partition), partition, uuid_of(number), attempt_index, **fields)


def grant(number: int, grant_id: bytes, expires_at_ms: int, kind: str = lit.GRANT_CLAIM) -> Grant:
    return Grant(0, grant_id, uuid_of(number), kind, "w", "w-1", None, None, "[]", None, None, 10, NOW, expires_at_ms)


def frame(number: int, attempt_index: int, ts_ms: int, seq: int, mode: str = "durable") -> FrameRow:
    text = f'{{"n":{ts_ms}}}'
    return FrameRow(wire(number), 0, uuid_of(number), attempt_index, ts_ms, seq, text, mode, ts_ms)


def head(number: int, attempt_index: int = 0, **fields: Any) -> StreamHead:
    return StreamHead(wire(number), 0, uuid_of(number), attempt_index, **fields)


def worker(instance: str, heartbeat_ms: int, namespace: str = "main", ttl_ms: int = 10) -> Worker:
    return Worker(namespace, instance, "w", ("default",), "", heartbeat_ms, ttl_ms, 0)


def lease_event(at: int) -> LeaseEvent:
    return LeaseEvent(0, uuid_of(1), None, lit.LEASE_ACQUIRED, at, None, None)


# -------------------------------------------------------------------------------------------------------------- helpers


async def commit(store: MemoryStore, *acts: Any, events: tuple[Any, ...] = ()) -> None:
    """Fold the acts as a batch would, and commit them; bare records are inserted."""
    decision = Decision(None, tuple(act if isinstance(act, Act) else insert(act) for act in acts), events)
    view = View()
    view.fold(decision)
    async with store.transaction() as transaction:
        assert await transaction.commit(view.writes(), NO_VERSIONS) is None
    store.check_indexes()


async def load(store: MemoryStore, *needs: Need) -> View:
    view = View()
    async with store.transaction() as transaction:
        await transaction.load(needs, view)
    return view


async def find(store: MemoryStore, kind: Any, key: Any) -> Any:
    return (await load(store, Get(kind, key))).get(kind, key)


class Catcher(View):
    """Shows what a store answered before the view makes anything of it."""

    keys: list[Any]

    def put_selected(self, need: Select, keys: list[Any]) -> None:
        self.keys = keys
        super().put_selected(need, keys)

    def put_claimable(self, need: Claimable, keys: list[str]) -> None:
        self.keys = keys
        super().put_claimable(need, keys)


async def caught(store: MemoryStore, need: Need) -> Catcher:
    view = Catcher()
    async with store.transaction() as transaction:
        await transaction.load([need], view)
    return view


async def select(store: MemoryStore, kind: Any, **equal: Any) -> list[Any]:
    view = await caught(store, Select(kind, tuple(equal), tuple(equal.values())))
    found = [view.get(kind, key) for key in view.keys]
    assert view.select(kind, **equal) == found
    return found


async def claim_ids(store: MemoryStore, *capabilities: str, lane_id: str = "default", limit: int = 10) -> list[str]:
    view = await caught(store, Claimable(lane_id, frozenset(capabilities), limit))
    for key in view.keys:
        core = view.execution(key)
        assert core is not None
        view.attempt(key, core.attempt_index)
    return view.keys


async def due(store: MemoryStore, what: str, now: int = NOW, limit: int = 100, **fields: Any) -> list[str]:
    answer: list[str] = await store.query(ask.Due(what, now, limit, **fields))
    return answer
