"""The referee's own eyes: a store in good order passes, and every kind of damage is seen."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowfabric import ClaimPolicy, ExecutionId, FailureClass, Frame, Handle
from flowfabric.engine import Engine
from flowfabric.model.handles import decode
from tests.chaos.ledger import Ledger
from tests.chaos.stored import read_store, result_of, violations
from tests.chaos.writer import LANE, create, lease

DAMAGE = {
    "an end without its event": "DELETE FROM ff_completion_event",
    "an event without its end": "UPDATE ff_exec_core SET lifecycle_phase = 'runnable', public_state = 'waiting', "
    "terminal_at_ms = NULL, result = NULL WHERE public_state = 'completed'",
    "two ends": "INSERT INTO ff_completion_event (partition_key, execution_id, outcome, occurred_at_ms) "
    "SELECT partition_key, execution_id, outcome, occurred_at_ms FROM ff_completion_event",
    "a torn result": "UPDATE ff_exec_core SET result = substr(result, 1, 100)",
    "a result too many": "UPDATE ff_exec_core SET result = payload WHERE lifecycle_phase = 'active'",
    "a torn input": "UPDATE ff_exec_core SET payload = x'00'",
    "a lease without its attempt": "DELETE FROM ff_attempt WHERE worker_instance_id IS NOT NULL",
    "a lease without its event": "DELETE FROM ff_lease_event WHERE event_type = 'acquired'",
    "a lease that never ended": "DELETE FROM ff_lease_event WHERE event_type = 'revoked'",
    "a lease under an old epoch": "UPDATE ff_attempt SET lease_epoch = lease_epoch - 1",
    "an owner too many": "UPDATE ff_attempt SET worker_instance_id = 'ghost'",
    "an active row nobody holds": "UPDATE ff_attempt SET worker_instance_id = NULL",
    "events out of order": "UPDATE ff_lease_event SET event_id = -event_id",
    "a lost execution": "DELETE FROM ff_exec_core",
    "a lost lane": "DELETE FROM ff_lane_registry",
    "a lost binding": "DELETE FROM ff_exec_idempotency",
    "a lost frame": "DELETE FROM ff_stream_frame",
    "a doubled frame": "INSERT INTO ff_stream_frame SELECT partition_key, execution_id, attempt_index, ts_ms + 1, seq, "
    "fields, mode, created_at_ms FROM ff_stream_frame",
    "a lost head": "DELETE FROM ff_stream_meta",
}


@pytest.fixture
async def store(tmp_path: Path) -> tuple[str, Ledger]:
    """A small store with one execution of every fate, and what its callers were told."""
    url, ledger = f"sqlite:///{tmp_path}/ff.db", Ledger()

    def note(what: str, **facts: Any) -> None:
        ledger.lines.append({"what": what, **facts})

    async with await Engine.open(url, single_node=True) as engine:
        for number in range(5):
            identity = ExecutionId.solo(LANE, engine.partitions)
            await create(engine, identity, idempotency_key=f"key-{number}")
            note("created", id=identity, key=f"key-{number}")
        handles = await engine.claim_many(LANE, (), ClaimPolicy("w", "w-1", 60_000), limit=4)
        for handle in handles:
            note("claimed", **lease(decode(handle.opaque)[1]))
        frame = await engine.append_frame(handles[0], Frame(b"a frame"))
        note("appended", frame=frame.stream_id, text="a frame", **lease(decode(handles[0].opaque)[1]))
        for handle, end in zip(handles, (complete, fail, cancel), strict=False):
            await end(engine, handle, note)
    return url, ledger


async def complete(engine: Engine, handle: Handle, note: Callable[..., None]) -> None:
    payload = decode(handle.opaque)[1]
    await engine.complete(handle, result_of(payload.execution_id, payload.lease_epoch))
    note("completed", **lease(payload))


async def fail(engine: Engine, handle: Handle, note: Callable[..., None]) -> None:
    await engine.fail(handle, "no", FailureClass.PERMANENT)
    note("failed", **lease(decode(handle.opaque)[1]))


async def cancel(engine: Engine, handle: Handle, note: Callable[..., None]) -> None:
    await engine.cancel(handle, "no")
    note("cancelled", id=decode(handle.opaque)[1].execution_id)


async def test_good_order_passes(store: tuple[str, Ledger]) -> None:
    url, ledger = store
    stored = await read_store(url)
    assert violations(stored) == []
    assert ledger.losses(stored) == []
    assert len(stored.executions) == 5


@pytest.mark.parametrize("statement", DAMAGE.values(), ids=DAMAGE.keys())
async def test_damage_is_seen(store: tuple[str, Ledger], statement: str) -> None:
    url, _ = store
    damage(url, statement)
    assert violations(await read_store(url)) != []


@pytest.mark.parametrize("what", ["created", "claimed", "appended", "completed", "failed", "cancelled"])
async def test_a_broken_word_is_seen(store: tuple[str, Ledger], what: str) -> None:
    url, ledger = store
    tables = ("exec_core", "attempt", "lease_event", "completion_event", "exec_idempotency", "stream_frame")
    for table in tables:
        damage(url, f"DELETE FROM ff_{table}")
    ledger.lines = list(ledger.about(what))
    assert len(ledger.losses(await read_store(url))) >= len(ledger.lines) > 0


async def test_a_word_given_twice_is_seen(store: tuple[str, Ledger]) -> None:
    url, ledger = store
    ledger.lines += list(ledger.about("claimed"))
    assert ledger.losses(await read_store(url)) != []


def damage(url: str, statement: str) -> None:
    """Do one thing to the store that the engine would never do."""
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    with connection:
        connection.execute(statement)
    connection.close()
