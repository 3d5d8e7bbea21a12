"""An examination finds what breaks a promise, wherever in the store it is, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from flowfabric import AnyOf, DurableSummary, FlowGraph, Frame
from flowfabric.engine import Engine
from flowfabric.model.reads.examine import Violation
from flowfabric.model.records.budgets import Budget, BudgetUsage, QuotaPolicy
from flowfabric.model.records.flows import EdgeGroup
from flowfabric.model.records.streams import StreamHead, StreamSummary
from flowfabric.stores.questions import TrimHistory
from tests.contract.probe import ManualClock, Probe, claimed, create, id_of, policy
from tests.contract.seeding import alter, overwrite, remove

pytestmark = pytest.mark.usefixtures("no_pauses")

BUDGET = "11111111-1111-4111-8111-111111111111"
QUOTA = "22222222-2222-4222-8222-222222222222"


async def examined(engine: Engine, limit: int = 500) -> tuple[int, list[Violation]]:
    """A whole store: how much was looked at, and what is wrong."""
    looked, found, cursor = 0, [], None
    while True:
        page = await engine.examine(cursor, limit)
        assert (page.executions is not None) == (cursor is None)
        assert page.looked <= max(limit, 1)
        looked += page.looked
        found += page.violations
        cursor = page.next_cursor
        if cursor is None:
            return looked, found


@pytest.mark.parametrize("limit", [1, 3, 1_000])
async def test_all_of_a_healthy_store_is_looked_at(engine: Engine, limit: int) -> None:
    for _ in range(4):
        await create(engine)
    handle = await claimed(engine)
    await engine.complete(handle, b"done")
    await claimed(engine)
    nodes = {name: {"execution_kind": name} for name in "abc"}
    await engine.submit_flow(FlowGraph(nodes=nodes, edges=[("a", "c"), ("b", "c")], groups={"c": AnyOf()}))
    await engine.create_budget(budget_id=BUDGET, dimensions=["usd"], hard_limits=[10], soft_limits=[0])
    await engine.create_quota_policy(quota_policy_id=QUOTA, max_concurrent=3)
    looked, found = await examined(engine, limit)
    assert found == []
    first = await engine.examine()
    assert first.executions is not None
    assert first.events is not None
    assert first.events >= 3, "two leases and an end"
    assert looked == first.executions + 1 + 1 + 1 + first.events, "executions, a flow, a budget, a quota, each once"


async def test_states_that_do_not_fit(engine: Engine) -> None:
    await create(engine)
    handle = await claimed(engine)
    await alter(engine, id_of(handle), public_state="completed")
    _, found = await examined(engine)
    assert {(each.invariant, each.subject) for each in found} == {("I12", str(id_of(handle)))}


async def test_a_flow_that_does_not_add_up(engine: Engine, probe: Probe) -> None:
    flow = await engine.submit_flow(FlowGraph(nodes={name: {} for name in "ab"}, edges=[("a", "b")]))
    partition = flow.execution_ids["a"].partition
    [group] = await probe.select(EdgeGroup, partition=partition, flow_id=str(flow.flow_id))
    await overwrite(engine, EdgeGroup, group.key, success_count=1)
    _, found = await examined(engine)
    assert {each.invariant for each in found} >= {"I24"}
    assert {each.subject for each in found} == {f"flow {flow.flow_id}"}


async def test_a_ledger_that_does_not_add_up(engine: Engine, probe: Probe) -> None:
    await engine.create_budget(budget_id=BUDGET, dimensions=["usd"], hard_limits=[10], soft_limits=[0])
    [budget] = await probe.select(Budget, budget_id=BUDGET)
    await overwrite(engine, BudgetUsage, (budget.partition, BUDGET, "usd"), reserved_value=5)
    _, found = await examined(engine)
    assert [(each.invariant, each.subject) for each in found] == [("I30", BUDGET)]


async def test_a_quota_with_slots_that_nobody_holds(engine: Engine, probe: Probe) -> None:
    await engine.create_quota_policy(quota_policy_id=QUOTA, max_concurrent=3)
    [row] = await probe.select(QuotaPolicy, quota_policy_id=QUOTA)
    await overwrite(engine, QuotaPolicy, row.key, active_concurrency=2)
    _, found = await examined(engine)
    assert [(each.invariant, each.subject) for each in found] == [("I32", QUOTA)]


async def test_a_log_with_replays_and_deleted_events_is_whole(engine: Engine, clock: ManualClock) -> None:
    for number in range(3):
        handle = await claimed(engine)
        for frame in (Frame(b'{"a": %d}' % number, mode=DurableSummary()), Frame(b"text")):
            await engine.append_frame(handle, frame)
        await engine.complete(handle, None)
        if number == 2:
            await engine.replay_execution(execution_id=id_of(handle))
            again = await engine.claim("lane-of-one", (), policy())
            assert again is not None
            await engine.complete(again, None)
        clock.advance(1_000)
    assert (await examined(engine))[1] == []
    for age_ms in (2_500, 1_500, 0):
        assert await engine._ask(TrimHistory(clock() - age_ms, 0, 0, 1)) > 0
        assert (await examined(engine))[1] == [], "what was deleted by age is not missing"


async def test_a_stream_with_a_wrong_head(engine: Engine) -> None:
    handle = await claimed(engine)
    await engine.append_frames(handle, [Frame(b"one"), Frame(b"two")])
    stream = (str(id_of(handle)), 0)
    await overwrite(engine, StreamHead, stream, frame_count=3)
    _, found = await examined(engine)
    assert [(each.invariant, each.subject) for each in found] == [("I33", f"{stream[0]} attempt 1")]
    assert found[0].detail == "its head counts 3 frames, but 2 are stored"
    await overwrite(engine, StreamHead, stream, frame_count=2, last_seq=7)
    _, found = await examined(engine)
    assert "is the newest frame" in found[0].detail
    assert len(found) == 1


async def test_a_summary_that_its_frames_do_not_make(engine: Engine) -> None:
    handle = await claimed(engine)
    deltas = [b'{"a": 1}', b'{"b": {"c": "__ff_null__"}}', b'{"a": null, "d": [1.5]}']
    for each in deltas:
        await engine.append_frame(handle, Frame(each, mode=DurableSummary()))
    assert (await examined(engine))[1] == []
    stream = (str(id_of(handle)), 0)
    for fields, said in (
        ({"document_json": '{"a": 1, "b": {"c": null}, "d": [1.5]}'}, "does not match its frames"),
        ({"document_json": '{"b": {"c": null}, "d": [2]}', "version": 9}, "does not match its frames"),
        ({"version": 2}, "covers 2 frames, but 3 are stored"),
    ):
        before = await engine.read_summary(*stream)
        assert before is not None
        await overwrite(engine, StreamSummary, stream, **fields)
        _, found = await examined(engine)
        assert [(each.invariant, each.subject) for each in found] == [("I33", f"{stream[0]} attempt 1")]
        assert said in found[0].detail
        whole = {"document_json": before.document_json, "version": before.version}
        await overwrite(engine, StreamSummary, stream, **whole)
    await remove(engine, StreamSummary, stream)
    _, found = await examined(engine)
    assert [each.detail for each in found] == ["3 summary frames, and no summary"]


async def test_a_moment_in_between_is_no_finding(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    await create(engine)
    handle = await claimed(engine)
    looks: list[Any] = []
    judge = engine._judge_executions

    async def between(ids: list[str]) -> list[Violation]:
        looks.append(ids)
        return [Violation("I12", ids[0], "in between")] if len(looks) == 1 else await judge(ids)

    monkeypatch.setattr(engine, "_judge_executions", between)
    _, found = await examined(engine)
    assert found == []
    assert len(looks) > 1
    await engine.complete(handle, None)


async def test_a_busy_quota_keeps_its_promise(engine: Engine) -> None:
    await engine.create_quota_policy(quota_policy_id=QUOTA, max_concurrent=2, max_requests_per_window=100)
    for _ in range(4):
        await engine.create_execution(policy={"quota_policy_id": QUOTA})
    handles = await engine.claim_many("default", (), policy(), 4)
    assert len(handles) == 2
    assert (await examined(engine))[1] == []
    await engine.complete(handles[0], None)
    assert (await examined(engine))[1] == []
