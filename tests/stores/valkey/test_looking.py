"""Questions on Valkey: few trips, and memory that does not grow with what is looked at."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from flowfabric import ClaimPolicy, FlowGraph
from flowfabric.engine import Engine
from flowfabric.model.errors import EngineError
from flowfabric.model.records.executions import Attempt, Execution
from flowfabric.stores import questions as ask
from flowfabric.stores.valkey import looking
from flowfabric.stores.valkey.codec import VERSION, shape_of
from flowfabric.stores.valkey.looking import Looker

AMOUNT = 600
POLICY = ClaimPolicy("w", "w-1", 30_000)


@pytest.fixture
async def engine(valkey_url: str) -> AsyncIterator[Engine]:
    async with await Engine.open(valkey_url, single_node=True) as opened:
        yield opened


@pytest.fixture
def lookers(monkeypatch: pytest.MonkeyPatch) -> list[Looker]:
    """Whatever has read for a question, and the most that it has remembered at once."""
    found: list[Looker] = []

    class Watched(Looker):
        most = 0

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            found.append(self)

        async def _ask(self, requests: Any) -> list[Any]:
            answers = await super()._ask(requests)
            self.most = max(self.most, len(self.seen) + len(self.strict) + len(self.ranges) + len(self.counts))
            return answers

    monkeypatch.setattr("flowfabric.stores.valkey.store.Looker", Watched)
    return found


async def create(engine: Engine, amount: int, **fields: Any) -> None:
    await asyncio.gather(*(engine.create_execution(**fields) for _ in range(amount)))


@pytest.mark.parametrize("namespaces", [("default",), ("default", "theirs"), None], ids=str)
async def test_a_search_without_a_match_does_not_remember_what_it_has_seen(
    engine: Engine, lookers: Any, monkeypatch: pytest.MonkeyPatch, namespaces: tuple[str, ...] | None
) -> None:
    monkeypatch.setattr(looking, "MOST_SEEN", 50)
    await create(engine, AMOUNT)
    await create(engine, AMOUNT, namespace="theirs")
    assert await engine.store.query(ask.SearchExecutions(20, namespaces=namespaces, lane_id="none")) == []
    looked_at = AMOUNT if namespaces == ("default",) else 2 * AMOUNT
    # An execution is seen with its attempt.
    assert lookers[-1].most < 1.2 * looked_at
    assert lookers[-1].calls < 25


async def answers(engine: Engine, questions: list[Any]) -> list[Any]:
    return [await engine.store.query(each) for each in questions]


async def test_whoever_forgets_at_once_answers_the_same(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"n{number}" for number in range(40)]
    await engine.submit_flow(FlowGraph({name: {} for name in names}, list(itertools.pairwise(names))))
    for namespace, lane in itertools.product(("default", "theirs"), ("a", "b")):
        await create(engine, 30, namespace=namespace, lane_id=lane, tags={"team": lane})
    for _ in range(10):
        handle = await engine.claim("a", policy=POLICY)
        assert handle is not None
        await engine.fail(handle, "no", "transient")
        assert await engine.claim("b", policy=POLICY) is not None
    [flow] = await engine.store.query(ask.OpenFlows(None, 9))
    now = await engine.now_ms()
    questions: list[Any] = [
        ask.SearchExecutions(25, tags=((("team",), "b"),)), ask.SearchExecutions(25, namespaces=("theirs", "default")),
        ask.SearchExecutions(7, states=("running",)), ask.SearchExecutions(9, flow=flow), ask.CountRows(),
        ask.StuckMembers(None, 100), ask.StuckMembers(None, 5), ask.QueueDepths(),
        ask.ListLanes(None, 10, ("theirs",), now), ask.ListLeases("w-1", now, 100),
        ask.Due("lease_expiry", now + 3_600_000, 4),
        ask.CountMembers((flow,)),
    ]  # fmt: skip
    before = await answers(engine, questions)
    assert all(before)
    monkeypatch.setattr(looking, "MOST_SEEN", -1)
    assert await answers(engine, questions) == before


async def test_a_window_of_waiting_members_takes_few_trips(engine: Engine, lookers: Any) -> None:
    names = [f"n{number}" for number in range(300)]
    await engine.submit_flow(FlowGraph({name: {} for name in names}, list(itertools.pairwise(names))))
    assert await engine.store.query(ask.StuckMembers(None, 1_000)) == ([], None)
    assert lookers[-1].calls <= 10


async def test_lanes_of_a_namespace_take_few_rows_however_many_have_ended(engine: Engine, lookers: Any) -> None:
    made = await asyncio.gather(*(engine.create_execution(namespace="mine", lane_id="a") for _ in range(200)))
    await asyncio.gather(*(engine.cancel_execution(execution_id=each.execution_id) for each in made))
    await engine.create_execution(namespace="mine", lane_id="b", delay_until=await engine.now_ms() + 60_000)
    await engine.create_execution(namespace="mine", lane_id="c")
    found = await engine.list_lanes(namespaces=["mine"])
    assert found.lanes == ("b", "c")
    assert not [key for kind, key in lookers[-1].seen if kind in (Execution, Attempt)]
    assert lookers[-1].calls <= 8


@pytest.mark.parametrize("damaged", [b"\xc1", b"\xff\xff\xff\xff\xc1"], ids=["fields", "number of attempts"])
async def test_what_cannot_be_read_is_left_out_where_phases_are_counted(engine: Engine, damaged: bytes) -> None:
    made = [await engine.create_execution() for _ in range(3)]
    field = shape_of(Execution).field(str.__str__(made[1].execution_id))
    value = bytes(VERSION) + damaged
    await engine.store.connection.command("HSET", engine.store.keys.rows(Execution), field, value, read_only=False)
    assert sum((await engine.store.query(ask.CountRows())).values()) == 2
    assert await engine.store.query(ask.OddEnds(0, 10)) == []
    with pytest.raises(EngineError):
        await engine.store.query(ask.SearchExecutions(10))
