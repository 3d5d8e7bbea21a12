"""The memory store against a dictionary: any sequence of batches leaves what it says."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from hypothesis import given, settings, strategies as st
from msgspec import UNSET

from flowfabric.core.batch.candidates import claim_order
from flowfabric.model import states as lit
from flowfabric.model.decisions import (
    Change,
    Drop,
    PurgeExecution,
    change,
    insert,
)
from flowfabric.model.records.executions import (
    EXECUTION_WIDE_FIELDS,
    Attempt,
    Execution,
    Grant,
)
from flowfabric.stores.memory import MemoryStore
from tests.unit.stores.memory_rows import (
    FLOW,
    NOW,
    attempt,
    claim_ids,
    commit,
    due,
    execution,
    find,
    grant,
    select,
    wire,
)

# -------------------------------------------------------------------------------------------------- anything, any order

_PHASES = (lit.SUBMITTED, lit.RUNNABLE, lit.ACTIVE, lit.TERMINAL)
_ELIGIBILITY = (lit.ELIGIBLE_NOW, lit.PENDING_CLAIM, lit.BLOCKED_BY_ROUTE, lit.NOT_APPLICABLE)
_REQUIRED = ((), ("gpu",), ("disk", "gpu"))


def _some_state(chance: random.Random) -> dict[str, Any]:
    def some_time() -> int | None:
        return chance.choice((None, NOW - 1, NOW, NOW + 1))

    return {
        "lifecycle_phase": chance.choice(_PHASES),
        "eligibility_state": chance.choice(_ELIGIBILITY),
        "priority": chance.randrange(3),
        "lane_id": chance.choice(("default", "other")),
        "required_capabilities": chance.choice(_REQUIRED),
        "delay_until_ms": some_time(),
        "deadline_at_ms": some_time(),
        "terminal_at_ms": some_time(),
        "attempt_index": chance.randrange(2),
        "flow_id": chance.choice((None, FLOW)),
    }


def _some_act(chance: random.Random, records: dict[Any, Any]) -> Any:
    number = chance.randrange(1, 9)
    times: dict[str, Any] = {
        "lease_expires_at_ms": chance.choice((None, NOW, NOW + 1)),
        "lease_epoch": chance.randrange(9),
    }
    fresh: Any = chance.choice(
        (
            execution(number, created_at_ms=number % 3, **_some_state(chance)),
            attempt(number, chance.randrange(2), **times),
            grant(number, bytes([chance.randrange(4), number]), chance.choice((0, NOW - 1, NOW + 1))),
        )
    )
    known = records.get((type(fresh), fresh.key))
    if known is None:
        return insert(fresh)
    if chance.random() < 0.3:
        return Drop(known)
    if isinstance(known, Execution):
        if chance.random() < 0.1:
            return PurgeExecution(known.execution_id, 0, known.uuid)
        return change(known, **_some_state(chance))
    return change(known, **times) if isinstance(known, Attempt) else change(known, expires_at_ms=fresh.expires_at_ms)


def _fold(records: dict[Any, Any], act: Any) -> None:
    """What an act means, said as plainly as possible."""
    if isinstance(act, PurgeExecution):
        for key in [key for key, record in records.items() if record.uuid == act.uuid]:
            del records[key]
    elif isinstance(act, Drop):
        del records[type(act.record), act.record.key]
    else:
        records[type(act.record), act.record.key] = act.record


def _expected_claims(records: dict[Any, Any], capabilities: set[str]) -> list[str]:
    def is_open(each: Execution) -> bool:
        if lit.is_claimable(each.lifecycle_phase, each.eligibility_state):
            return True
        expiries = [r.expires_at_ms for r in records.values() if type(r) is Grant and r.uuid == each.uuid]
        waits = each.eligibility_state == lit.PENDING_CLAIM and each.lifecycle_phase in lit.WAITING_PHASES
        return waits and bool(expiries) and all(0 < expiry <= NOW for expiry in expiries)

    cores = [record for record in records.values() if type(record) is Execution]
    found = [
        each for each in cores if each.lane_id == "default" and capabilities.issuperset(each.required_capabilities)
    ]
    return [each.execution_id for each in sorted(filter(is_open, found), key=claim_order)]


def _expected_floor(records: dict[Any, Any], each: Execution) -> int:
    attempts = [r for r in records.values() if type(r) is Attempt and r.uuid == each.uuid]
    return max((r.lease_epoch for r in attempts if r.attempt_index < each.attempt_index), default=0)


async def _compare(store: MemoryStore, records: dict[Any, Any]) -> None:
    store.check_indexes()
    for capabilities in (set[str](), {"gpu"}, {"gpu", "disk"}):
        assert await claim_ids(store, *capabilities, limit=99) == _expected_claims(records, capabilities)
    cores = [record for record in records.values() if type(record) is Execution]
    for each in cores:
        stored = await find(store, Execution, each.execution_id)
        assert stored.epoch_floor == _expected_floor(records, each)
        assert (stored.priority, stored.delay_until_ms) == (each.priority, each.delay_until_ms)
    delayed = {each.execution_id for each in cores if each.delay_until_ms is not None and each.delay_until_ms <= NOW}
    assert set(await due(store, "delayed_promoter")) == delayed
    leased = {
        each.execution_id
        for each in cores
        if (held := records.get((Attempt, (each.execution_id, each.attempt_index)))) is not None
        and held.lease_expires_at_ms == NOW
    }
    assert set(await due(store, "lease_expiry")) == leased
    members = [each.execution_id for each in cores if each.flow_id == FLOW]
    assert [each.execution_id for each in await select(store, Execution, partition=0, flow_id=FLOW)] == sorted(members)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 5))
def test_any_sequence_of_batches_leaves_what_it_says(seed: int, batch_size: int) -> None:
    async def story() -> None:
        chance, records = random.Random(seed), dict[Any, Any]()
        store = MemoryStore(clock=lambda: NOW)
        for _ in range(15):
            acts: list[Any] = []
            for _ in range(batch_size):
                act = _some_act(chance, records)
                if any(isinstance(each, PurgeExecution) for each in acts):
                    break
                _fold(records, act)
                acts.append(act)
            await commit(store, *acts)
            await _compare(store, records)

    asyncio.run(story())


def test_unset_is_never_stored() -> None:
    async def story() -> None:
        store = MemoryStore(clock=lambda: NOW)
        await commit(store, execution(1), attempt(1))
        await commit(store, Change(execution(1), EXECUTION_WIDE_FIELDS), Change(attempt(1), ("policy",)))
        for record in (await find(store, Execution, wire(1)), await find(store, Attempt, (wire(1), 0))):
            assert all(getattr(record, field) is not UNSET for field in record.__struct_fields__)

    asyncio.run(story())
