"""Lanes as callers see them who are limited to namespaces: those that their namespaces use, and no others."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from flowfabric import Every, LaneState, Validation
from flowfabric.engine import Engine
from flowfabric.model.handles import Handle
from flowfabric.model.limits import MAX_NAMESPACES
from tests.contract.probe import START_MS, ManualClock, create, needing, policy
from tests.contract.suspending import asking

#: Lanes in the order of their bytes; all of them are used by ``theirs``.
LANES = ("B", "_z", "a", "a b", 'a"\\,b', "a-b", "aa", "ab", "[x")
TTL_MS = 10_000


async def visible(engine: Engine, *namespaces: str, limit: int = 100) -> list[str]:
    """All visible lanes, page by page; each of them alone must look the same."""
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = await engine.list_lanes(cursor, limit, namespaces=namespaces)
        assert len(page.lanes) == len(page.states) == len(page.reasons) == len(page.fair_by) <= limit
        found += page.lanes
        if page.next_cursor is None:
            break
        assert page.next_cursor == page.lanes[-1], "a cursor names what was shown, and nothing behind it"
        assert len(page.lanes) == limit, "only the last page is short"
        cursor = page.next_cursor
    for lane in LANES:
        assert (await engine.describe_lane(lane, namespaces=namespaces) is not None) is (lane in found)
    return found


async def crowd(engine: Engine) -> None:
    for lane in LANES:
        await create(engine, lane_id=lane, namespace="theirs")


async def taken(engine: Engine) -> Handle:
    handle = await engine.claim("a b", policy=policy(), namespaces=["mine"])
    assert handle is not None
    return handle


async def test_unfinished_executions_make_a_lane_visible(engine: Engine, clock: ManualClock) -> None:
    await crowd(engine)
    assert await visible(engine, "mine") == []
    assert await visible(engine) == []
    await create(engine, lane_id="a b", namespace="mine")
    await create(engine, lane_id="a b", namespace="mine", delay_until=clock.now_ms + TTL_MS)
    assert await visible(engine, "mine") == ["a b"]
    assert await visible(engine, "mine", "theirs") == sorted(LANES)
    assert await visible(engine, "mine", "third") == ["a b"]
    handle = await taken(engine)
    assert await visible(engine, "mine") == ["a b"]
    await engine.complete(handle)
    assert await visible(engine, "mine") == ["a b"], "another one is delayed"
    clock.advance(TTL_MS)
    await engine.run_due()
    await engine.complete(await taken(engine))
    assert await visible(engine, "mine") == []


async def _stands(engine: Engine, clock: ManualClock, where: str) -> str:
    """The only execution of its namespace, which has not ended."""
    own: dict[str, Any] = {"lane_id": "a b", "namespace": "mine"}
    identity = await create(engine, **own, policy=needing("gpu") if where == "queued" else None)
    if where == "blocked":
        await engine.block_route(execution_id=identity, detail="no gpu")
    elif where == "granted":
        worker = {"worker_id": "w1", "worker_instance_id": "w1-i1"}
        await engine.issue_claim_grant(execution_id=identity, lane_id="a b", **worker)
    if where in ("queued", "blocked", "granted"):
        return identity
    handle = await taken(engine)
    if where == "revoked":
        await engine.revoke_lease(execution_id=identity)
    elif where == "suspended":
        await engine.suspend(handle, asking())
    elif where == "delayed":
        await engine.delay(handle, clock.now_ms + TTL_MS)
    elif where == "late":
        clock.advance(3_600_000)
    elif where == "expired":
        clock.advance(3_600_000)
        await engine.run_due()
    return identity


@pytest.mark.parametrize(
    "where", ["queued", "blocked", "granted", "leased", "revoked", "suspended", "delayed", "late", "expired"]
)
async def test_wherever_an_execution_stands_it_makes_its_lane_visible(
    engine: Engine, clock: ManualClock, where: str
) -> None:
    await crowd(engine)
    identity = await _stands(engine, clock, where)
    assert await visible(engine, "mine") == ["a b"]
    await engine.cancel_execution(execution_id=identity)
    assert await visible(engine, "mine") == []


async def test_schedules_make_a_lane_visible(engine: Engine) -> None:
    await crowd(engine)
    await engine.put_schedule("s", namespace="mine", spec=Every(3_600_000), execution_kind="op", lane_id="aa")
    await engine.pause_schedule("s", namespace="mine")
    assert await visible(engine, "mine") == ["aa"]
    await engine.delete_schedule("s", namespace="mine")
    assert await visible(engine, "mine") == []


@pytest.mark.parametrize("lanes", [("ab",), ("_z", "ab", "nobody's"), ('a"\\,b', "[x"), ("[x",), ()], ids=str)
async def test_live_workers_make_their_lanes_visible(
    engine: Engine, clock: ManualClock, lanes: tuple[str, ...]
) -> None:
    await crowd(engine)
    worker = {"worker_id": "w", "worker_instance_id": "w-1", "namespace": "mine"}
    await engine.register_worker(**worker, lanes=lanes, capabilities=[], liveness_ttl_ms=TTL_MS)
    assert await visible(engine, "mine") == sorted(set(lanes) & set(LANES))
    clock.advance(TTL_MS)
    assert await visible(engine, "mine") == [], "whoever is silent too long does not count"


@pytest.mark.parametrize("limit", [1, 2, 3, 9])
async def test_pages_never_tell_of_what_lies_between(engine: Engine, limit: int) -> None:
    await crowd(engine)
    for lane in ("_z", "a-b", "ab"):
        await create(engine, lane_id=lane, namespace="mine")
    await create(engine, lane_id="a", namespace="also mine")
    await engine.put_schedule("s", namespace="mine", spec=Every(3_600_000), execution_kind="op", lane_id="B")
    assert await visible(engine, "mine", "also mine", limit=limit) == ["B", "_z", "a", "a-b", "ab"]
    exactly = await engine.list_lanes(limit=5, namespaces=["mine", "also mine"])
    assert exactly.next_cursor is None, "there are more lanes, but none that this caller uses"
    behind = await engine.list_lanes("aa", limit, namespaces=["mine"])
    assert (behind.lanes, behind.next_cursor) == (("ab",), None), "any text is a place"
    assert (await engine.list_lanes("zz", limit, namespaces=["mine"])).lanes == ()
    assert (await engine.list_lanes(limit=0, namespaces=["mine"])).lanes == ()


async def test_what_a_visible_lane_tells(engine: Engine) -> None:
    await crowd(engine)
    await create(engine, lane_id="a", namespace="mine")
    await engine.set_lane_state("a", "paused", "deploy")
    await engine.set_lane_state("aa", "paused", "their affair")
    await engine.set_lane_fairness("a", "namespace")
    page = await engine.list_lanes(namespaces=["mine"])
    assert (page.lanes, page.states, page.reasons) == (("a",), (LaneState.PAUSED,), ("deploy",))
    assert page.fair_by == ("namespace",)
    found = await engine.describe_lane("a", namespaces=["mine"])
    assert found is not None
    assert (found.state, found.state_reason, found.state_changed_at_ms) == ("paused", "deploy", START_MS)
    assert (found.registered_at_ms, found.registered_by, found.fair_pending) == (None, None, None)
    assert await engine.describe_lane("aa", namespaces=["mine"]) is None
    everything = await engine.describe_lane("aa")
    assert everything is not None
    assert everything.registered_by == "create_execution"


async def test_as_many_namespaces_as_a_caller_may_have(engine: Engine) -> None:
    await crowd(engine)
    own = ["theirs", *(f"n{number}" for number in range(MAX_NAMESPACES - 1))]
    assert await visible(engine, *own, limit=4) == sorted(LANES)
    with pytest.raises(Validation):
        await engine.list_lanes(namespaces=[*own, str(uuid4())])
