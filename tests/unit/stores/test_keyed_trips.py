"""Answers of stores that keep records by key: they are read in several trips, and others commit between them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric import ClaimPolicy, Every, FlowGraph, Frame, Handle
from flowfabric.engine import Engine
from flowfabric.model.events import CompletionEvent
from flowfabric.stores import questions as ask
from flowfabric.stores.event_questions import ReadEvents
from flowfabric.stores.keyed import logs
from flowfabric.stores.keyed.due import _BY_TIME, _WHOLE
from flowfabric.stores.keyed.questions import answer
from tests.contract.probe import START_MS, ManualClock

POLICY = ClaimPolicy("w", "w-1", 30_000)
LATER = START_MS + 3_600_000


async def in_trips(engine: Engine, question: Any, meanwhile: Callable[[], Awaitable[Any]], behind: int = 1) -> Any:
    """The answer to a question, if something happens behind one of its trips."""
    reading = answer(question)
    trips = 0
    try:
        request = next(reading)
        while True:
            requests = request if type(request) is list else [request]
            answers = [engine.store._ask(each) for each in requests]
            trips += 1
            if trips == behind:
                await meanwhile()
            request = reading.send(answers if type(request) is list else answers[0])
    except StopIteration as stop:
        return stop.value


@pytest.fixture
async def engine(clock: ManualClock) -> Any:
    async with await Engine.open("memory://", clock=clock) as opened:
        yield opened


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def held(engine: Engine) -> Handle:
    await engine.create_execution()
    handle = await engine.claim("default", policy=POLICY)
    assert handle is not None
    return handle


async def test_a_lease_that_is_given_up_is_not_the_next_to_fall_due(engine: Engine, clock: ManualClock) -> None:
    first = await held(engine)
    clock.advance(1_000)
    await held(engine)
    assert await engine.store.query(ask.NextDue()) == START_MS + 30_000
    assert await in_trips(engine, ask.NextDue(), lambda: engine.complete(first), 2) == START_MS + 31_000


async def test_a_lease_that_is_renewed_is_not_expired(engine: Engine, clock: ManualClock) -> None:
    handles = [await held(engine) for _ in range(2)]
    clock.advance(29_999)
    question = ask.ListExpiredLeases(START_MS + 30_000, None, None, 10, None)
    assert len(await engine.store.query(question)) == 2
    found = await in_trips(engine, question, lambda: engine.renew(handles[0]))
    assert [execution.execution_id for execution, _ in found] == [handles[1].execution_id]


async def test_a_schedule_that_is_paused_or_started_is_not_due(engine: Engine, clock: ManualClock) -> None:
    for name in ("a", "b"):
        await engine.put_schedule(name, spec=Every(60_000), execution_kind="x")
    clock.advance(120_000)
    due = ask.DueSchedules(clock(), 10)
    found = await in_trips(engine, due, lambda: engine.pause_schedule("a"))
    assert [each.schedule_id for each in found] == ["b"]
    assert await in_trips(engine, due, lambda: engine.run_timer("schedules")) == []


async def test_events_of_another_commit_are_in_the_next_page(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    async def end() -> None:
        made = await engine.create_execution()
        await engine.cancel_execution(execution_id=made.execution_id)

    monkeypatch.setattr(logs, "LARGEST_CHUNK", 1)
    await end()
    page = await in_trips(engine, ReadEvents(CompletionEvent, 0, None, 10), end)
    assert ([number for number, _ in page.rows], page.top) == ([1], 1)
    place, counted = await in_trips(engine, ask.CountEnded(0, 60_000, 10), end)
    assert (place, sum(count for _, _, count in counted)) == (2, 2)
    assert (await engine.count_ended(place)).place == 3


async def test_events_that_are_deleted_between_two_trips_are_missed(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "LARGEST_CHUNK", 1)
    for _ in range(3):
        made = await engine.create_execution()
        await engine.cancel_execution(execution_id=made.execution_id)
        clock.advance(1_000)

    def forget(before_ms: int) -> Awaitable[Any]:
        return engine.store.query(ask.TrimHistory(before_ms, 0, clock(), 10))

    read = ReadEvents(CompletionEvent, 0, None, 10)
    page = await in_trips(engine, read, lambda: forget(START_MS + 1))
    assert ([number for number, _ in page.rows], page.trimmed) == ([1, 2, 3], 0), "what was read before is not missed"
    page = await in_trips(engine, ReadEvents(CompletionEvent, 1, None, 10), lambda: forget(START_MS + 2_001))
    assert page.trimmed == 3, "whoever reads on from there is told"


QUESTIONS: list[Any] = [
    *(ask.Due(what, LATER, 10) for what in (*_BY_TIME, *_WHOLE, "retention")),
    *(ask.ListGates(what, LATER, None, 10) for what in ("budgets", "quotas", "budget_reset", "quota_room", "blocked")),
    ask.NextDue(), ask.ListExecutions(0, None, 10), ask.ListLanes(None, 10, ("acme",), START_MS),
    ask.ListSuspended(0, None, 10), ask.LiveSteps(None, 10), ask.ListSteps(0, "0" * 32, None, 10),
    ask.ListExpiredLeases(LATER, None, None, 10, None),
    ask.ListLeases("w-1", START_MS, 10), ask.ScanEligible("default", None, 10, START_MS), ask.CountRows(),
    ask.ListFlows(0, None, 10), ask.StuckMembers(None, 10), ask.PendingGroups(True, 10), ask.PendingGroups(False, 10),
    ask.OpenFlows(None, 10), ask.EmptyFlows(None, 10), ask.DueSchedules(LATER, 10), ask.SearchExecutions(10),
    ask.SearchExecutions(10, tags=((("a",), "b"),)), ask.QueueDepths(), ask.QueueDepths(("acme",)),
    ask.ListNamespaces(None, 10), ask.SearchFlows(10), ask.SearchSuspended(10, ("waiting_for_signal",)),
    ask.CountUnended(10), ReadEvents(CompletionEvent, 0, None, 10), ask.CountEnded(None, 1_000, 10),
    ask.OddEnds(0, 10), ask.ListSamples(0, 10),
]  # fmt: skip


def _name(question: Any) -> str:
    return type(question).__name__ + getattr(question, "what", "")


@pytest.mark.parametrize("behind", [1, 2, 3])
@pytest.mark.parametrize("question", QUESTIONS, ids=_name)
async def test_whatever_is_gone_at_the_next_trip_fails_no_answer(engine: Engine, question: Any, behind: int) -> None:
    handles = [await held(engine) for _ in range(3)]
    await engine.append_frame(handles[0], Frame(b"x"))
    await engine.create_execution(namespace="acme", delay_until=START_MS + 5_000)
    await engine.create_execution(namespace="acme")
    await engine.put_schedule("s", spec=Every(60_000), execution_kind="x")
    await engine.submit_flow(FlowGraph(nodes={"a": {}, "b": {}}, edges=[("a", "b")]))
    await engine.run_timer("intake")

    async def end_and_forget() -> None:
        await engine.complete(handles[0])
        await engine.fail(handles[1], "no", "transient")
        store = engine.store
        for kind in tuple(store._tables._records):
            for key in tuple(store._tables.all(kind)):
                if str(handles[0].execution_id) not in str(key) and str(handles[1].execution_id) not in str(key):
                    store._tables.delete(kind, key)

    await in_trips(engine, question, end_and_forget, behind)
