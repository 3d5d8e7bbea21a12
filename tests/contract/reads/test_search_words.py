"""What people search for, in words, by state and by error, on every store."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from flowfabric import ClaimPolicy, ExecutionId, Validation
from flowfabric.engine import Engine
from flowfabric.engine.reads import search
from flowfabric.model.records.executions import Execution
from flowfabric.model.states import PublicState, stored_public_states
from tests.contract.probe import ManualClock
from tests.contract.seeding import overwrite


async def made(engine: Engine, lane: str = "default", **arguments: Any) -> str:
    options = {"namespace": "acme", "execution_kind": "op", **arguments}
    return str((await engine.create_execution(lane_id=lane, **options)).execution_id)


async def held(engine: Engine, lane: str, worker: str = "w") -> Any:
    handle = await engine.claim(lane, policy=ClaimPolicy(worker, f"{worker}-1", 60_000))
    assert handle is not None
    return handle


async def failed(engine: Engine, clock: ManualClock, kind: str, error: str, worker: str = "w") -> str:
    clock.advance(1)
    own = await made(engine, "failing", execution_kind=kind)
    clock.advance(1)
    await engine.fail(await held(engine, "failing", worker), error, "permanent")
    return own


async def found(engine: Engine, query: str = "", **filters: Any) -> list[str]:
    """Everything that fits, page by page."""
    ids: list[str] = []
    cursor = None
    while True:
        page = await engine.search_executions(query=query, cursor=cursor, limit=3, **filters)
        ids += [str(each.execution_id) for each in page.executions]
        cursor = page.next_cursor
        if cursor is None:
            return ids


async def test_every_state_that_a_row_shows_is_found_by_its_name(engine: Engine) -> None:
    """Whatever a store calls it, and with the same number in the counts."""
    for state in PublicState:
        for literal in stored_public_states(state):
            identity = await made(engine, "aside", delay_until=2**50)
            await overwrite(engine, Execution, identity, public_state=literal)
    await made(engine, "held")
    await held(engine, "held")
    rows = (await engine.search_executions(limit=100)).executions
    assert {each.public_state for each in rows} == set(PublicState)
    counts = (await engine.count_states()).counts
    for state in PublicState:
        shown = [str(each.execution_id) for each in rows if each.public_state is state]
        assert await found(engine, states=[state]) == shown, state
        assert await found(engine, f"state:{state.value}") == shown, state
        assert await engine.count_executions(states=[state]) == counts[state.value] == len(shown), state
        for identity in shown:
            assert await engine.read_execution_state(identity) is state
    assert await found(engine, "state:failed,expired", states=["failed", "active"]) == await found(
        engine, "state:failed"
    )
    assert await found(engine, "state:failed", states=["active"]) == []


async def test_words(engine: Engine, clock: ManualClock) -> None:
    names = {
        "charge": await made(engine, execution_kind="Charge_Card", tags={"user.team": "red", "user.tier": "gold"}),
        "refund": await made(engine, execution_kind="refund_card", tags={"team": "red", "user.tier": "tin"}),
        "other": await made(engine, "gpu", namespace="elsewhere", execution_kind="train", tags={"acme.team": "red"}),
    }
    charge, refund, other = names.values()
    for query, expected in (
        ("card", {charge, refund}),
        ("CHARGE", {charge}),
        ("kind:card kind:re", {refund}),
        ('"charge_card"', {charge}),
        ("tag:team=red", {charge, refund}),
        ("tag:team=red tag:tier=gold", {charge}),
        ("tag:user.team=red", {charge}),
        ("tag:acme.team=red", {other}),
        ("lane:gpu", {other}),
        ("lane:gpu card", set()),
        ("ns:elsewhere", {other}),
        ("namespace:acme state:waiting", {charge, refund}),
        ("since:1h", {charge, refund, other}),
        ("until:1h", set()),
        ("since:1999-12-31 until:2000-01-01T00:00+01:00", set()),
        ("error:x", set()),
        ("worker:w", set()),
        ("", {charge, refund, other}),
    ):
        assert set(await found(engine, query)) == expected, query
    assert await found(engine, "ns:elsewhere", namespaces=["acme"]) == []
    assert await found(engine, "lane:gpu", lane_id="cpu") == []
    assert await found(engine, tag=("team", "red"), namespaces=["acme"]) == [
        each for each in await found(engine) if each in (charge, refund)
    ]
    clock.advance(7_200_000)
    assert await found(engine, "since:1h") == []
    assert set(await found(engine, "until:1h")) == {charge, refund, other}


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("colour:red", "unknown word 'colour:'; known words are kind:, id:, state:, lane:, tag:, error:"),
        ("lane:", "lane: needs a value"),
        ("state:broken", "'broken' is not one of waiting"),
        ("tag:team", "expected key=value, as in tag:team=red"),
        ("since:soon", "expected a time span such as 15min"),
        ("id:12", "nor the first 4 or more digits of one"),
        ("lane:a lane:b", "lane: can be given only once"),
        ("x" * 5_000, "query: "),
    ],
)
async def test_a_search_that_says_nothing_known_is_refused(engine: Engine, query: str, sentence: str) -> None:
    for operation in (engine.search_executions, engine.count_states, engine.group_failures):
        with pytest.raises(Validation) as caught:
            await operation(query=query)  # type: ignore[operator]
        assert sentence in str(caught.value)


async def test_ids_by_their_beginning(engine: Engine) -> None:
    minted = [ExecutionId.solo("default", engine.partitions, uuid=uuid.uuid4()) for _ in range(20)]
    ids = [await made(engine, execution_id=each) for each in minted]
    for identity in ids[:5]:
        partition, own = identity.removeprefix("{fp:").split("}:")
        same = [each for each in reversed(ids) if each.split("}:")[1].startswith(own[:4])]
        assert sorted(await found(engine, f"id:{own[:4]}")) == sorted(same)
        for query in (own[:8], own, own.upper(), f"{partition}:{own}", identity, f"{partition}:{own[:13]}"):
            assert await found(engine, query) == [identity], query
        assert await found(engine, f"id:{own[:8]} state:failed") == []
        assert await found(engine, own, namespaces=["elsewhere"]) == []
        assert (await engine.count_states(query=own)).counts == {"waiting": 1}
    assert await found(engine, str(uuid.uuid4())) == []
    assert await found(engine, "deadbeef kind:op") == []


async def test_ids_by_their_end(engine: Engine) -> None:
    """Ids that begin with the same time are told apart by their ends."""
    ids = [await made(engine) for _ in range(20)]
    for identity in ids[:5]:
        for query in (identity[-8:], identity[-12:], identity[-8:].upper(), f"id:{identity[-7:]}"):
            assert await found(engine, query) == [identity], query
            assert (await engine.count_states(query=query)).counts == {"waiting": 1}
        assert await found(engine, f"{identity[-8:]} state:failed") == []
        assert await found(engine, identity[-8:], namespaces=["elsewhere"]) == []


async def test_errors_and_workers(engine: Engine, clock: ManualClock) -> None:
    declined = await failed(engine, clock, "charge", 'CardDeclined: the "bank" said no', "alpha")
    timed_out = await failed(engine, clock, "fetch", "Timeout: after 3 s", "beta")
    fine = await made(engine, "fine")
    await engine.complete(await held(engine, "fine", "alpha"))
    running = await made(engine, "busy")
    await held(engine, "busy", "beta")
    assert await found(engine, "error:carddeclined") == [declined]
    assert await found(engine, 'error:"after 3" error:TIME') == [timed_out]
    assert await found(engine, "error:charge") == []
    assert set(await found(engine, "worker:alpha")) == {declined, fine}
    assert set(await found(engine, "worker:beta-1")) == {timed_out, running}
    assert await found(engine, "worker:beta state:active") == [running]
    rows = {str(each.execution_id): each for each in (await engine.search_executions()).executions}
    assert rows[timed_out].error == "Timeout: after 3 s"
    assert rows[fine].error is None


async def test_what_a_row_tells(engine: Engine) -> None:
    first = await made(engine, "above", tags={"user.team": "red"})
    handle = await held(engine, "above")
    child = f"{first.split('}:')[0]}}}:{uuid.uuid4()}"
    await engine.advance(handle, children=[{"execution_id": child, "namespace": "acme", "lane_id": "below"}])
    await engine.cancel_execution(execution_id=child, reason="not needed")
    rows = {str(each.execution_id): each for each in (await engine.search_executions()).executions}
    assert rows[first].parent is None
    assert rows[first].tags["user.team"] == "red"
    assert rows[child].parent == first
    assert rows[child].cancellation_reason == "not needed"
    assert await found(engine, roots=True) == [first]
    assert await found(engine, f"parent:{first}") == [child]
    assert await found(engine, f"parent:{first[4:].replace('}', '', 1)}") == [child]
    assert (await engine.count_states(roots=True)).total == 1


async def test_by_the_end(engine: Engine, clock: ManualClock) -> None:
    ids = [await failed(engine, clock, "op", "no") for _ in range(3)]
    await made(engine)
    rows = {str(each.execution_id): each for each in (await engine.search_executions()).executions}
    middle = rows[ids[1]].completed_at
    assert middle is not None
    assert set(await found(engine, ended_from=middle)) == {ids[1], ids[2]}
    assert await found(engine, ended_before=middle) == [ids[0]]
    assert (await engine.count_states(ended_from=middle)).counts == {"failed": 2}


async def test_a_search_in_texts_looks_at_a_window_at_a_time(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And still finds everything, in order, page by page."""
    monkeypatch.setattr(search, "WINDOW", 7)
    wanted = []
    for number in range(30):
        clock.advance(number % 2)
        namespace = ("acme", "beta")[number % 2]
        own = await made(engine, namespace=namespace, execution_kind="rare" if number % 9 == 0 else "op")
        if number % 9 == 0:
            wanted.append(own)
    everything = await found(engine)
    expected = [each for each in everything if each in wanted]
    assert await found(engine, "rare") == expected
    assert await found(engine, "rare", namespaces=["acme"]) == [each for each in expected if each in wanted[::2]]
    first = await engine.search_executions(query="rare", limit=100)
    assert len(first.executions) < len(wanted)
    assert first.next_cursor is not None, "there is more to look at"
    counts = await engine.count_states()
    assert (counts.total, counts.counts) == (7, {"waiting": 7})
    rows = (await engine.search_executions()).executions
    assert counts.oldest == rows[6].created_at
    whole = await engine.count_states(namespaces=["acme"], created_from=rows[3].created_at)
    assert whole.oldest is None


async def test_failures_by_error(engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    declined = [
        await failed(engine, clock, "charge", f"Declined: order {number} of {uuid.uuid4()}") for number in "123"
    ]
    other = await failed(engine, clock, "charge", "Timeout: the bank")
    await failed(engine, clock, "refund", "Declined: order 4")
    await made(engine)
    answer = await engine.group_failures()
    assert [(each.execution_kind, each.count) for each in answer.groups] == [
        ("charge", 3),
        ("refund", 1),
        ("charge", 1),
    ]
    assert (answer.failures, answer.oldest) == (5, None)
    first, _, last = answer.groups
    rows = {str(each.execution_id): each for each in (await engine.search_executions()).executions}
    assert first.newest == declined[-1]
    assert (first.first_at, first.last_at) == tuple(rows[each].completed_at for each in (declined[0], declined[-1]))
    assert first.error == rows[declined[-1]].error
    assert first.common == "Declined: order"
    for group in answer.groups:
        listed = await found(
            engine, f'kind:"{group.execution_kind}" error:"{group.common}"', states=["failed", "expired"]
        )
        assert len(listed) == group.count
    assert [str(each.newest) for each in (await engine.group_failures(query="error:timeout")).groups] == [other]
    assert (await engine.group_failures(namespaces=["elsewhere"])).groups == ()
    assert len((await engine.group_failures(limit=1)).groups) == 1
    assert last.execution_kind == "charge"
    monkeypatch.setattr(search, "MOST_FAILURES", 2)
    assert (await engine.group_failures()).failures == 2
    assert (await engine.group_failures()).oldest == rows[other].created_at
