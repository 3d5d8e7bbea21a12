"""Following events: where a subscription begins, what it delivers, in which order, and how it ends."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from flowfabric import CompletionEvent, CompletionOutcome, ExecutionId, LeaseHistoryEvent, ScannerFilter, Unavailable
from flowfabric.engine import Engine
from flowfabric.engine.reads import subscriptions as subject
from flowfabric.model import events as rows
from flowfabric.model.reads.subscriptions import cursor_at, event_id_of
from tests.contract.probe import START_MS, ManualClock, Probe, claimed, create, id_of, policy, shared_stores_only
from tests.contract.subscribing import LONG_S, finished, many_finished, names, now, rest, take

SUBSCRIBE = (
    "subscribe_completion",
    "subscribe_lease_history",
    "subscribe_signal_delivery",
    "subscribe_operator_event",
    "subscribe_instance_tags",
)


async def touched(engine: Engine) -> None:
    """One event of every family but signals."""
    eid = await create(engine, lane_id="touched", tags={"cairn.instance_id": "i"})
    await engine.promote_submitted()
    await engine.change_priority(execution_id=eid, new_priority=5)
    handle = await claimed(engine, lane_id="touched-too")
    await engine.complete(handle)


async def test_only_what_comes_later(engine: Engine) -> None:
    before = await finished(engine)
    events = await engine.subscribe_completion()
    after = await finished(engine)
    [event] = await take(events, 1)
    assert event == CompletionEvent(event.cursor, after, CompletionOutcome.Success(), START_MS)
    assert before != after


async def test_the_beginning_is_where_the_call_was_made(engine: Engine) -> None:
    events = await engine.subscribe_completion()
    eid = await finished(engine)
    # The first iteration comes after the event, and finds it all the same.
    assert [event.execution_id for event in await take(events, 1)] == [eid]


@pytest.mark.parametrize("name", SUBSCRIBE)
async def test_an_empty_outbox_has_a_beginning(engine: Engine, name: str) -> None:
    events = await getattr(engine, name)()
    assert event_id_of(events.cursor) == 0
    again = await getattr(engine, name)(events.cursor)
    assert again.cursor == events.cursor


async def test_a_cursor_goes_on_behind_its_event(engine: Engine) -> None:
    events = await engine.subscribe_completion()
    made = [await finished(engine) for _ in range(5)]
    first, second = await take(events, 2)
    await events.aclose()
    resumed = await engine.subscribe_completion(second.cursor)
    assert [event.execution_id for event in await take(resumed, 3)] == made[2:]
    again = await engine.subscribe_completion(first.cursor)
    assert [event.execution_id for event in await take(again, 4)] == made[1:]


@shared_stores_only
async def test_a_cursor_outlives_the_process(engine: Engine, open_engine: Any) -> None:
    events = await engine.subscribe_completion()
    made = [await finished(engine) for _ in range(3)]
    [first] = await take(events, 1)
    await engine.close()
    again = await open_engine()
    resumed = await again.subscribe_completion(first.cursor)
    assert [event.execution_id for event in await take(resumed, 2)] == made[1:]


async def test_what_comes_while_waiting_is_delivered_at_once(engine: Engine) -> None:
    events = await engine.subscribe_completion()
    # Long before a subscriber would look by itself.
    engine.store.event_poll_s = 3_600
    waiting = asyncio.create_task(take(events, 2))
    await asyncio.sleep(0.05)
    made = [await finished(engine), await finished(engine)]
    assert [event.execution_id for event in await waiting] == made


@shared_stores_only
async def test_another_engine_is_heard(engine: Engine, open_engine: Any) -> None:
    events = await engine.subscribe_completion()
    engine.store.event_poll_s = 3_600
    waiting = asyncio.create_task(take(events, 1))
    await asyncio.sleep(0.05)
    other = await open_engine()
    eid = await finished(other)
    assert [event.execution_id for event in await waiting] == [eid]


@shared_stores_only
async def test_a_lost_hint_costs_time_only(engine: Engine, open_engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_listen", lambda: None)
    events = await engine.subscribe_completion()
    engine.store.event_poll_s = 0.05
    waiting = asyncio.create_task(take(events, 1))
    await asyncio.sleep(0.01)
    eid = await finished(await open_engine())
    assert [event.execution_id for event in await waiting] == [eid]


async def test_two_engines_on_one_database_in_memory(clock: ManualClock) -> None:
    url = f"file:followed-{uuid4()}?mode=memory&cache=shared"
    async with (
        await Engine.open(url, single_node=True, clock=clock) as engine,
        await Engine.open(url, single_node=True, clock=clock) as other,
    ):
        events = await engine.subscribe_completion()
        waiting = asyncio.create_task(take(events, 1))
        await asyncio.sleep(0.01)
        eid = await finished(other)
        assert [event.execution_id for event in await waiting] == [eid]


async def test_one_hint_for_a_commit(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    await engine.create_executions([{"lane_id": "many"}] * 100)
    handles = await engine.claim_many("many", policy=policy(), limit=100)
    monkeypatch.setattr(engine.store, "publish", lambda topics, urgent=True: told.append(sorted(topics)))
    commits: list[int] = []
    run = engine._batcher._run

    async def counted(commands: list[Any]) -> Any:
        commits.append(len(commands))
        outcome = await run(commands)
        if engine.store.sends_hints:
            told.append(sorted(outcome.writes.hints))
        return outcome

    monkeypatch.setattr(engine._batcher, "_run", counted)
    await asyncio.gather(*(engine.complete(handle) for handle in handles))
    hints = [topic for topics in told for topic in topics if topic.startswith("events:")]
    assert sum(commits) == 100
    assert hints == ["events:cl"] * len(commits)


# -- order, filters ------------------------------------------------------------------------------------------------


async def test_many_events_while_the_consumer_sleeps(engine: Engine, probe: Probe, full: bool) -> None:
    # Either way several of the largest pages, after those that lead up to them.
    count = 10_000 if full else 5_000
    events = await engine.subscribe_completion()
    made = await many_finished(engine, count)
    found = []
    async with asyncio.timeout(LONG_S):
        async for event in events:
            found.append(event.execution_id)
            # One page at most, however far behind.
            assert len(events._ready) < subject.LARGEST_PAGE
            if len(found) == count:
                break
    assert [each.uuid_text for each in found] == [row.uuid for row in await probe.events(rows.CompletionEvent)]
    assert set(found) == set(made)


async def test_a_consumer_that_does_not_ask_holds_one_page(engine: Engine) -> None:
    events = await engine.subscribe_completion()
    await many_finished(engine, 1_500)
    await take(events, 1)
    assert len(events._ready) == subject.PAGE - 1
    await many_finished(engine, 500, "more")
    assert len(events._ready) == subject.PAGE - 1


async def test_ids_rise_and_follow_the_commits_of_an_execution(engine: Engine) -> None:
    events = await engine.subscribe_lease_history()
    handles = [await claimed(engine, lane_id=f"lane-{n}") for n in range(5)]
    for _ in range(3):
        await asyncio.gather(*(engine.renew(handle) for handle in handles))
    await asyncio.gather(*(engine.complete(handle) for handle in handles))
    found = await take(events, 25)
    ids = [event_id_of(event.cursor) for event in found]
    assert ids == sorted(set(ids))
    for handle in handles:
        own = [event for event in found if event.execution_id == id_of(handle)]
        assert names(own) == ["Acquired", "Renewed", "Renewed", "Renewed", "Revoked"]


async def test_one_commit_is_numbered_in_its_order(engine: Engine) -> None:
    events = await engine.subscribe_instance_tags()
    wanted = [f"tag-{n}" for n in range(300)]
    await engine.create_executions([{"tags": {"cairn.instance_id": tag}} for tag in wanted])
    assert [event.tag for event in await take(events, 300)] == wanted


async def test_a_namespace(engine: Engine) -> None:
    events = await engine.subscribe_completion(filter=ScannerFilter(namespace="a"))
    first = await finished(engine, namespace="a")
    [one] = await take(events, 1)
    for _ in range(3):
        await finished(engine, namespace="b")
    second = await finished(engine, namespace="a")
    [two] = await take(events, 1)
    assert (one.execution_id, two.execution_id) == (first, second)
    assert event_id_of(two.cursor) - event_id_of(one.cursor) == 4


async def test_an_instance_tag(engine: Engine) -> None:
    wanted = ScannerFilter(instance_tag=("cairn.instance_id", "blue"))
    events = await engine.subscribe_lease_history(filter=wanted)
    await finished(engine, tags={"cairn.instance_id": "green"})
    await finished(engine)
    eid = await finished(engine, tags={"cairn.instance_id": "blue"})
    found = await take(events, 2)
    assert names(found) == ["Acquired", "Revoked"]
    assert {event.execution_id for event in found} == {eid}


async def test_both(engine: Engine) -> None:
    wanted = ScannerFilter("a", ("cairn.instance_id", "blue"))
    events = await engine.subscribe_completion(filter=wanted)
    await finished(engine, namespace="a", tags={"cairn.instance_id": "green"})
    await finished(engine, namespace="b", tags={"cairn.instance_id": "blue"})
    eid = await finished(engine, namespace="a", tags={"cairn.instance_id": "blue"})
    assert [event.execution_id for event in await take(events, 1)] == [eid]


async def test_tags_by_their_own_value(engine: Engine) -> None:
    events = await engine.subscribe_instance_tags(filter=ScannerFilter("a", ("cairn.instance_id", "blue")))
    await create(engine, namespace="a", tags={"cairn.instance_id": "green"})
    await create(engine, namespace="b", tags={"cairn.instance_id": "blue"})
    eid = await create(engine, namespace="a", tags={"cairn.instance_id": "blue"})
    assert [event.execution_id for event in await take(events, 1)] == [eid]


async def test_what_is_passed_over_is_not_read_again(engine: Engine) -> None:
    events = await engine.subscribe_completion(filter=ScannerFilter(namespace="a"))
    await many_finished(engine, 700, namespace="b")
    waiting = asyncio.create_task(take(events, 1))
    async with asyncio.timeout(LONG_S):
        while event_id_of(events.cursor) < 700:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    eid = await finished(engine, namespace="a")
    assert [event.execution_id for event in await waiting] == [eid]


async def test_a_selective_filter_over_a_long_history(engine: Engine) -> None:
    begin = await now(engine, "completion")
    first = await finished(engine, namespace="a")
    await many_finished(engine, 3_000, namespace="b")
    second = await finished(engine, namespace="a")
    events = await engine.subscribe_completion(begin, ScannerFilter(namespace="a"))
    assert [event.execution_id for event in await take(events, 2)] == [first, second]


async def test_later_tags_do_not_change_what_was_said(engine: Engine) -> None:
    begin = await now(engine, "completion")
    eid = await finished(engine, tags={"cairn.instance_id": "blue"})
    await engine.set_execution_tag(eid, "cairn.instance_id", "green")
    blue, green = (ScannerFilter(instance_tag=("cairn.instance_id", tag)) for tag in ("blue", "green"))
    assert len((await engine.read_events("completion", begin, blue)).events) == 1
    assert (await engine.read_events("completion", begin, green)).events == ()


async def test_two_subscribers_do_not_disturb_each_other(engine: Engine) -> None:
    one, two = await engine.subscribe_completion(), await engine.subscribe_completion()
    made = await many_finished(engine, 20)
    found = await take(one, 20)
    assert {event.execution_id for event in found} == set(made)
    assert await take(two, 20) == found


async def test_a_refused_call_tells_nothing(engine: Engine) -> None:
    handle = await claimed(engine)
    events = await engine.subscribe_lease_history()
    await engine.revoke_lease(execution_id=id_of(handle), reason="x")
    with pytest.raises(Exception, match="lease"):
        await engine.complete(handle)
    await claimed(engine, lane_id="next")
    assert names(await take(events, 2)) == ["Revoked", "Acquired"]


# -- ends ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SUBSCRIBE)
async def test_closing_ends_the_iteration(engine: Engine, name: str) -> None:
    events = await getattr(engine, name)()
    waiting = asyncio.create_task(anext(events, "end"))
    await asyncio.sleep(0.02)
    await events.aclose()
    await events.aclose()
    async with asyncio.timeout(LONG_S):
        assert await waiting == "end"
    assert [event async for event in events] == []
    assert engine._events._kinds == {}


async def test_a_context_manager_closes(engine: Engine) -> None:
    async with await engine.subscribe_completion() as events:
        await finished(engine)
        await take(events, 1)
    assert [event async for event in events] == []


async def test_a_closed_engine_ends_its_iterators(engine: Engine) -> None:
    waiting = [asyncio.create_task(_all(await getattr(engine, name)())) for name in SUBSCRIBE]
    idle = await engine.subscribe_completion()
    await asyncio.sleep(0.02)
    await engine.close()
    async with asyncio.timeout(LONG_S):
        assert await asyncio.gather(*waiting) == [[]] * len(SUBSCRIBE)
    assert [event async for event in idle] == []
    with pytest.raises(Unavailable):
        await engine.subscribe_completion()
    with pytest.raises(Unavailable):
        await engine.read_events("completion")


async def _all(events: Any) -> list[Any]:
    return [event async for event in events]


async def test_a_cancelled_wait_loses_nothing(engine: Engine) -> None:
    events = await engine.subscribe_completion()
    for _ in range(5):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(events), 0.001)
    assert engine._events._kinds == {}
    made = [await finished(engine) for _ in range(3)]
    found = []
    while len(found) < 3:
        # Sometimes the wait ends in the middle of a read.
        try:
            found.append((await asyncio.wait_for(anext(events), 0.0005 if len(found) % 2 else 5)).execution_id)
        except TimeoutError:
            continue
    assert found == made


async def test_one_task_at_a_time(engine: Engine) -> None:
    events = await engine.subscribe_completion()
    waiting = asyncio.create_task(take(events, 1))
    await asyncio.sleep(0.02)
    with pytest.raises(RuntimeError, match="two tasks"):
        await anext(events)
    await finished(engine)
    assert len(await waiting) == 1


async def test_a_busy_subscriber_lets_others_work(engine: Engine) -> None:
    begin = await now(engine, "lease_history")
    await many_finished(engine, 2_000)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    events = await engine.subscribe_lease_history(begin, ScannerFilter(namespace="nobody"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(events), 0.2)
    task.cancel()
    assert turns > 1


# -- bounded reads -------------------------------------------------------------------------------------------------


async def test_reading_a_page(engine: Engine) -> None:
    begin = await now(engine, "completion")
    made = [await finished(engine) for _ in range(25)]
    batch = await engine.read_events("completion", begin, limit=10)
    assert [event.execution_id for event in batch.events] == made[:10]
    assert batch.more
    assert batch.cursor == batch.events[-1].cursor
    last = await engine.read_events("completion", batch.cursor, limit=15)
    assert [event.execution_id for event in last.events] == made[10:]
    nothing = await engine.read_events("completion", last.cursor)
    assert (nothing.events, nothing.cursor, nothing.more) == ((), last.cursor, False)
    assert await rest(engine, "completion", begin, 7) == [*batch.events, *last.events]


async def test_what_is_read_or_counted_while_others_commit_is_so_once(engine: Engine) -> None:
    """A page is of one moment: how far it says it goes, and what is in it."""
    cursor, place = await now(engine, "completion"), (await engine.count_ended()).place
    made: list[ExecutionId] = []

    async def write() -> None:
        for _ in range(40):
            made.append(await create(engine))
            await engine.cancel_execution(execution_id=made[-1])

    writing = asyncio.gather(*(write() for _ in range(4)))
    seen: list[ExecutionId] = []
    counted = 0
    over = False
    while not over:
        over = writing.done()
        batch = await engine.read_events("completion", cursor, limit=50)
        seen += [event.execution_id for event in batch.events]
        ended = await engine.count_ended(place)
        counted += sum(each.count for each in ended.counts)
        cursor, place = batch.cursor, ended.place
        over = over and not batch.events
        await asyncio.sleep(0)
    await writing
    assert sorted(seen) == sorted(made)
    # PostgreSQL may commit a lower number behind a higher one, for which followers wait and charts do not.
    assert counted == len(made) or engine.backend_label == "postgres"


async def test_reading_nothing_says_where_now_is(engine: Engine) -> None:
    await finished(engine)
    batch = await engine.read_events("lease_history")
    assert (batch.events, batch.cursor, batch.more) == ((), cursor_at(2), False)


async def test_every_family_goes_by_its_name(engine: Engine) -> None:
    begin = {name: await now(engine, name) for name in ("completion", "lease_history", "operator_event")}
    tags = await now(engine, "instance_tags")
    await touched(engine)
    counts = {name: len(await rest(engine, name, cursor)) for name, cursor in begin.items()}
    assert counts == {"completion": 1, "lease_history": 2, "operator_event": 1}
    assert len(await rest(engine, "instance_tags", tags)) == 1
    assert isinstance((await rest(engine, "lease_history", begin["lease_history"]))[0], LeaseHistoryEvent.Acquired)
