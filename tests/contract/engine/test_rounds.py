"""Commands that meet in one batch load what they need together: the rounds of a batch do not grow with its commands."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest

from flowfabric import FlowGraph
from flowfabric.engine import Engine, transact
from flowfabric.model.operations.workflows import ChildWait
from flowfabric.model.records.executions import Attempt
from tests.contract.probe import claimed, create, id_of, payload_of, policy
from tests.contract.seeding import seed
from tests.contract.suspending import signal, suspended
from tests.contract.workflows.test_steps import child

#: Far more than there are rounds.
MANY = 40
#: Rounds that any batch may take, however many commands it has.
FEW = 4

Calls: TypeAlias = list[Awaitable[Any]]


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often each batch was decided, by try."""
    found: list[int] = []
    decide, begin = transact._decide, transact._first_needs

    def counted(*arguments: Any) -> Any:
        found[-1] += 1
        return decide(*arguments)

    def begun(*arguments: Any) -> Any:
        found.append(0)
        return begin(*arguments)

    monkeypatch.setattr(transact, "_decide", counted)
    monkeypatch.setattr(transact, "_first_needs", begun)
    return found


async def creations(engine: Engine) -> Calls:
    return [create(engine, lane_id="lane") for _ in range(MANY)]


async def bulk(engine: Engine) -> Calls:
    return [engine.create_executions([{"lane_id": "lane"}] * 2) for _ in range(MANY)]


async def in_turns(engine: Engine) -> Calls:
    await engine.set_lane_fairness("lane", by="namespace")
    return [create(engine, lane_id="lane", namespace=f"n{number % 7}") for number in range(MANY)]


async def within_a_budget(engine: Engine) -> Calls:
    budget = str(uuid.uuid4())
    await engine.create_budget(budget_id=budget, dimensions=["calls"], hard_limits=[10_000], soft_limits=[0])
    return [create(engine, lane_id="lane", policy={"budget_ids": [budget]}) for _ in range(MANY)]


async def within_a_quota(engine: Engine) -> Calls:
    quota = str(uuid.uuid4())
    await engine.create_quota_policy(quota_policy_id=quota, max_concurrent=10_000)
    return [create(engine, lane_id="lane", policy={"quota_policy_id": quota}) for _ in range(MANY)]


def chain() -> FlowGraph:
    return FlowGraph(nodes={key: {"lane_id": "lane"} for key in "ab"}, edges=[("a", "b")])


async def submissions(engine: Engine) -> Calls:
    return [engine.submit_flow(chain()) for _ in range(MANY)]


async def ends_of_members(engine: Engine) -> Calls:
    for _ in range(MANY):
        await engine.submit_flow(chain())
    handles = await engine.claim_many("lane", (), policy(), MANY)
    return [engine.complete(handle) for handle in handles]


async def failures(engine: Engine) -> Calls:
    retry = {"retry_policy": {"max_retries": 3, "backoff": {"type": "fixed", "delay_ms": 0}}}
    handles = [await claimed(engine, lane_id="lane", policy=retry) for _ in range(MANY)]
    return [engine.fail(handle, "boom") for handle in handles]


async def revocations(engine: Engine) -> Calls:
    handles = [await claimed(engine, lane_id="lane") for _ in range(MANY)]
    return [engine.revoke_lease(execution_id=id_of(handle)) for handle in handles]


async def signals(engine: Engine) -> Calls:
    waiting = [await suspended(engine, lane_id="lane") for _ in range(MANY)]
    return [signal(engine, handle, details) for handle, details in waiting]


async def children(engine: Engine) -> Calls:
    handles = [await claimed(engine, lane_id="parents") for _ in range(MANY)]

    def started(handle: Any) -> Awaitable[Any]:
        own = child(id_of(handle), "child", lane_id="lane")
        return engine.advance(handle, children=[own], wait=ChildWait((own["execution_id"],), 1))

    return [started(handle) for handle in handles]


async def ends_of_children(engine: Engine) -> Calls:
    await asyncio.gather(*(await children(engine)))
    handles = await engine.claim_many("lane", (), policy(), MANY)
    return [engine.complete(handle) for handle in handles]


MEETING: dict[str, Callable[[Engine], Awaitable[Calls]]] = {
    each.__name__: each
    for each in (
        creations,
        bulk,
        in_turns,
        within_a_budget,
        within_a_quota,
        submissions,
        ends_of_members,
        failures,
        revocations,
        signals,
        children,
        ends_of_children,
    )
}


@pytest.fixture
async def quiet(open_engine: Callable[..., Any]) -> Engine:
    """An engine that puts everything that comes at once into one batch."""
    engine: Engine = await open_engine()
    engine._batcher._parallel = 1
    return engine


@pytest.mark.parametrize("name", MEETING)
async def test_claims_in_the_same_batch(quiet: Engine, rounds: list[int], name: str) -> None:
    calls = await MEETING[name](quiet)
    rounds.clear()
    lane = "parents" if name == "ends_of_children" else "lane"
    found = await asyncio.gather(*calls, *(quiet.claim(lane, (), policy()) for _ in range(MANY)))
    assert None not in found[len(calls) :], "each finds something"
    assert max(rounds) <= FEW, "no batch was decided again and again"
    assert len(rounds) < MANY, "and none was taken apart"


async def test_an_attempt_that_nobody_expected(quiet: Engine) -> None:
    """Rows may be written by hand: the batch that believed there was none is decided again."""
    retry = {"retry_policy": {"max_retries": 3, "backoff": {"type": "fixed", "delay_ms": 0}}}
    handle = await claimed(quiet, lane_id="lane", policy=retry)
    identity = id_of(handle)
    await seed(quiet, Attempt(str(identity), identity.partition, identity.uuid_text, 1, lease_epoch=7))
    _, again = await asyncio.gather(quiet.fail(handle, "boom"), quiet.claim("lane", (), policy()))
    assert again is not None
    assert (payload_of(again).attempt_index, payload_of(again).lease_epoch) == (1, 8)
