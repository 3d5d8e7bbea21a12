"""Lists that begin with the newest, under a clock that stands still: the order is that of creation, whatever the lane,
and questions are in the order in which they were asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from flowfabric import ClaimPolicy, ExecutionId, FlowGraph, Handle, Validation
from flowfabric.engine import Engine
from flowfabric.model.operations.suspension import SuspensionReason
from tests.contract import seeding
from tests.contract.probe import START_MS, ManualClock, Probe, create, id_of, refused
from tests.contract.suspending import asking

WORKER = ClaimPolicy("w", "w-1")
#: As many lanes are in several partitions.
LANES = 7
SIZES = (1, 3, 50)


async def whole(ask: Callable[..., Awaitable[Any]], name: str, size: int, **question: Any) -> list[Any]:
    """Everything there is, page by page."""
    found: list[Any] = []
    cursor = None
    while True:
        page = await ask(limit=size, cursor=cursor, **question)
        found += getattr(page, name)
        assert len(found) < 1_000, "it goes round in circles"
        cursor = page.next_cursor
        if cursor is None:
            return found


async def ids(engine: Engine, size: int, **question: Any) -> list[str]:
    found = await whole(engine.search_executions, "executions", size, **question)
    return [str(each.execution_id) for each in found]


async def created(engine: Engine, count: int = 24) -> list[str]:
    """In many lanes by turns, and in a few namespaces."""
    made = [await create(engine, lane_id=f"lane {n % LANES}", namespace=f"n{n % 3}") for n in range(count)]
    return [str(each) for each in made]


async def test_executions(engine: Engine) -> None:
    made = await created(engine)
    newest = made[::-1]
    assert engine.partitions.flow == 1 or len({each.split("}")[0] for each in made}) > 1
    for size in SIZES:
        assert await ids(engine, size) == newest
        assert await ids(engine, size, query="kind:o") == newest
        assert await ids(engine, size, namespaces=["n1"]) == [each for n, each in enumerate(made) if n % 3 == 1][::-1]
        own = [each for n, each in enumerate(made) if n % 3][::-1]
        assert await ids(engine, size, namespaces=["n1", "n2"]) == own
        lane = [each for n, each in enumerate(made) if n % LANES == 2][::-1]
        assert await ids(engine, size, lane_id="lane 2") == lane


async def test_members_and_children(engine: Engine) -> None:
    names = [f"node {n}" for n in range(12)]
    flow = await engine.submit_flow(FlowGraph({name: {"lane_id": "lane"} for name in names}, []))
    members = [str(flow.execution_ids[name]) for name in names]
    handle = await engine.claim("lane", policy=WORKER)
    assert isinstance(handle, Handle)
    minted = [ExecutionId.for_flow(flow.flow_id, engine.partitions) for _ in range(9)]
    await engine.advance(handle, children=[{"execution_id": each, "execution_kind": "op"} for each in minted])
    children = [str(each) for each in minted]
    for size in SIZES:
        assert await ids(engine, size, flow_id=flow.flow_id) == [*children[::-1], *members[::-1]]
        assert await ids(engine, size, flow_id=flow.flow_id, parent=id_of(handle)) == children[::-1]
        tree = await whole(partial(engine.read_flow_tree, flow.flow_id), "members", size)
        assert [str(each.execution_id) for each in tree] == [*children[::-1], *members[::-1]]


async def test_flows(engine: Engine) -> None:
    made = [(await engine.create_flow(flow_kind="etl")).flow_id for _ in range(12)]
    for size in SIZES:
        found = await whole(engine.search_flows, "flows", size)
        assert [each.flow_id for each in found] == made[::-1]
        found = await whole(engine.search_flows, "flows", size, flow_kind="et")
        assert [each.flow_id for each in found] == made[::-1]


async def test_what_is_created_in_the_millisecond_of_a_cursor(engine: Engine) -> None:
    """It comes before the first page, in whichever lane."""
    made = await created(engine)
    page = await engine.search_executions(limit=5)
    await created(engine)
    found = [str(each.execution_id) for each in page.executions]
    while page.next_cursor is not None:
        page = await engine.search_executions(limit=5, cursor=page.next_cursor)
        found += [str(each.execution_id) for each in page.executions]
    assert found == made[::-1]


async def test_cursors_of_an_earlier_release(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """Within a millisecond they stand by partition: nothing that comes behind them is left out."""
    for _ in range(3):
        await created(engine, 10)
        clock.advance(1)
    rows = (await engine.search_executions()).executions
    former = sorted(rows, key=lambda each: (each.created_at, each.execution_id.partition, each.execution_id.uuid_text))
    for number, each in enumerate(former):
        cursor = f"{each.created_at}.{each.execution_id.partition}.{each.execution_id.uuid_text}"
        page = await engine.search_executions(cursor=cursor)
        found = [each.execution_id for each in page.executions]
        assert found == [other.execution_id for other in rows if other.created_at <= each.created_at]
        assert set(found) >= {other.execution_id for other in former[:number]}
    async with refused(probe, Validation, detail=FORMER):
        await engine.search_suspended(cursor=cursor)


FORMER = "cursor: it was made by an earlier release, whose order was another; begin at the start"


@pytest.mark.parametrize("cursor", ["", "1", "1.2", "a.b.c", "1.{uuid}", "1.{uuid}.2.3", "1.2.{uuid}.3", "x.{uuid}.1"])
async def test_cursors_that_are_none(engine: Engine, probe: Probe, cursor: str) -> None:
    text = cursor.format(uuid="0" * 8 + "-0000-0000-0000-" + "0" * 12)
    for ask in (engine.search_executions, engine.search_flows, engine.search_suspended):
        async with refused(probe, Validation):
            await ask(cursor=text)


# -- questions ---------------------------------------------------------------------------------------------------------


async def held(engine: Engine, count: int) -> list[Handle]:
    """Executions that somebody runs, in the order of their creation."""
    await created(engine, count)
    handles = [await engine.claim(f"lane {n % LANES}", policy=WORKER) for n in range(count)]
    return [each for each in handles if each is not None]


async def ask(engine: Engine, handle: Handle, reason: SuspensionReason = SuspensionReason.WAITING_FOR_APPROVAL) -> str:
    await engine.suspend(handle, asking(reason_code=reason))
    return str(id_of(handle))


async def waiting(engine: Engine, size: int, **question: Any) -> list[str]:
    reasons = question.pop("reasons", ("waiting_for_approval", "waiting_for_budget"))
    found = await whole(engine.search_suspended, "executions", size, reasons=reasons, **question)
    return [str(each.execution_id) for each in found]


async def test_questions_in_the_order_they_were_asked(engine: Engine, clock: ManualClock) -> None:
    """Not in that of the runs that ask them."""
    handles = await held(engine, 14)
    asked = []
    for number, place in enumerate([3, 11, 0, 7, 5, 13, 1, 2, 12, 4]):
        clock.advance(1)
        reason = SuspensionReason.WAITING_FOR_SIGNAL if number == 6 else SuspensionReason.WAITING_FOR_APPROVAL
        if number % 4 == 1:
            reason = SuspensionReason.PAUSED_BY_BUDGET
        asked.append(await ask(engine, handles[place], reason))
    everyone, signals = asked[::-1], asked[6]
    questions = [each for each in everyone if each != signals]
    for size in SIZES:
        assert await waiting(engine, size) == questions
        assert await waiting(engine, size, reasons=["waiting_for_signal", "waiting_for_approval", "none"]) == [
            each for number, each in enumerate(everyone) if (len(asked) - 1 - number) % 4 != 1
        ]
        assert await waiting(engine, size, reasons=["waiting_for_signal"]) == [signals]
    [line] = (await engine.search_suspended(reasons=["waiting_for_signal"])).executions
    assert (line.created_at, line.suspended_at) == (START_MS, START_MS + 7)
    assert (await engine.read_pulse()).suspended == len(asked)


async def test_questions_of_one_millisecond(engine: Engine) -> None:
    """By the ids of those who ask, which ascend."""
    handles = await held(engine, 12)
    for place in (4, 9, 0, 7, 1, 11, 3):
        await ask(engine, handles[place])
    newest = [str(id_of(handles[place])) for place in (11, 9, 7, 4, 3, 1, 0)]
    for size in SIZES:
        assert await waiting(engine, size) == newest


async def test_questions_of_a_namespace_and_of_a_flow(engine: Engine, clock: ManualClock) -> None:
    handles = await held(engine, 9)
    flow = await engine.submit_flow(FlowGraph({f"n{n}": {"lane_id": "of a flow"} for n in range(6)}, []))
    members = await engine.claim_many("of a flow", policy=WORKER, limit=6)
    asked: list[str] = []
    for place in (2, 5, 0, 3, 4):
        clock.advance(1)
        asked += [await ask(engine, handles[place]), await ask(engine, members[place])]
    for size in SIZES:
        assert await waiting(engine, size, flow_id=flow.flow_id) == asked[1::2][::-1]
        assert await waiting(engine, size, namespaces=["n2"]) == [str(id_of(handles[place])) for place in (5, 2)]
        assert await waiting(engine, size, namespaces=["n2"], flow_id=flow.flow_id) == []


async def test_whoever_asks_again_comes_first(engine: Engine, clock: ManualClock) -> None:
    """And a cursor stays good meanwhile."""
    handles = await held(engine, 6)
    asked = []
    for each in handles:
        clock.advance(1)
        asked.append(await ask(engine, each))
    page = await engine.search_suspended(limit=2)
    clock.advance(1)
    last = page.executions[-1].execution_id
    await engine.resume_execution(execution_id=last)
    again = await engine.claim("lane 4", policy=WORKER)
    assert again is not None
    await ask(engine, again)
    rest = await engine.search_suspended(limit=9, cursor=page.next_cursor)
    assert [str(each.execution_id) for each in rest.executions] == asked[3::-1]
    assert (await waiting(engine, 9))[:2] == [str(last), asked[5]]


async def test_what_an_earlier_release_suspended(engine: Engine, clock: ManualClock) -> None:
    """It does not say when: such a question stands by the creation of whoever asks it."""
    handles = await held(engine, 3)
    clock.advance(5)
    asked = [await ask(engine, each) for each in handles]
    await seeding.alter(engine, id_of(handles[1]), suspended_at_ms=None)
    for size in SIZES:
        assert await waiting(engine, size) == [asked[2], asked[0], asked[1]]
