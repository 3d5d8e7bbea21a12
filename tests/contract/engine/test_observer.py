"""What an engine's observer is told, and what comes of it as figures; the same on every store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowfabric import (
    AllOf,
    AnyOf,
    FailureClass,
    FlowEdge,
    Quorum,
    UsageDimensions,
)
from flowfabric.core.flows import cascade
from flowfabric.engine import Engine
from flowfabric.engine.timers.loop import TIMERS
from flowfabric.model.errors import EngineError, Transport, TransportKind
from flowfabric.telemetry.engine_metrics import MAX_LANES, EngineMetrics
from flowfabric.telemetry.metrics import Counter, Registry
from tests.contract.graphs import Flowing
from tests.contract.probe import ManualClock, claimed, create, id_of, policy

BUDGET, QUOTA = "aaaaaaaa-0000-4000-8000-000000000001", "bbbbbbbb-0000-4000-8000-000000000001"


@pytest.fixture
def metrics(engine: Engine) -> EngineMetrics:
    """Figures of the engine under test."""
    engine.observer = EngineMetrics()
    return engine.observer


def counted(counter: Counter) -> dict[Any, float]:
    return {labels[0] if len(labels) == 1 else labels: amount for labels, amount in counter.values.items()}


async def test_ends_of_attempts_by_lane(engine: Engine, metrics: EngineMetrics, clock: ManualClock) -> None:
    await engine.complete(await claimed(engine, lane_id="a"), b"")
    await engine.fail(await claimed(engine, lane_id="a"), "no", FailureClass.PERMANENT)
    await engine.fail(await claimed(engine, lane_id="b"), "later")
    await engine.cancel_execution(execution_id=id_of(await claimed(engine, lane_id="c")), reason="enough")
    slow = await claimed(engine, lane_id="d", policy={"timeout_policy": {"attempt_timeout_ms": 1_000}})
    clock.advance(2_000)
    assert await engine.run_timer("attempt_timeout") == 1
    with pytest.raises(EngineError):
        await engine.complete(slow, b"")
    assert counted(metrics.attempts) == {
        ("a", "ok"): 1,
        ("a", "error"): 1,
        ("b", "retry"): 1,
        ("c", "cancelled"): 1,
        ("d", "timeout"): 1,
    }
    assert counted(metrics.ended) == {"success": 1, "failed": 1, "cancelled": 1, "expired": 1}
    (counts, total) = metrics.to_complete.values["d",]
    assert (sum(counts), total) == (1, [2.0])
    assert {labels: sum(counts) for labels, (counts, _) in metrics.claims.values.items()} == {
        ("a",): 2,
        ("b",): 1,
        ("c",): 1,
        ("d",): 1,
    }


async def test_a_repeated_end_is_counted_once(engine: Engine, metrics: EngineMetrics) -> None:
    handle = await claimed(engine, lane_id="a")
    await engine.complete(handle, b"")
    await engine.complete(handle, b"")
    assert counted(metrics.attempts) == {("a", "ok"): 1}
    assert await engine.claim("a", (), policy()) is None
    assert sum(metrics.claims.values["a",][0]) == 1


async def test_renewals(engine: Engine, metrics: EngineMetrics, clock: ManualClock) -> None:
    handle = await claimed(engine, ttl_ms=1_000)
    await engine.renew(handle)
    clock.advance(5_000)
    with pytest.raises(EngineError):
        await engine.renew(handle)
    assert counted(metrics.renewals) == {"ok": 1, "error": 1}


async def test_turns_of_timers_idle_ones_too(engine: Engine, metrics: EngineMetrics) -> None:
    await engine.run_due()
    assert counted(metrics.cycles) == {(timer.name, "ok"): 1 for timer in TIMERS if timer.by_itself}
    assert set(metrics.cycle_durations.values) == {(timer.name,) for timer in TIMERS if timer.by_itself}


async def test_a_turn_that_fails(engine: Engine, metrics: EngineMetrics, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any) -> None:
        raise Transport("postgres", TransportKind.TIMEOUT)

    monkeypatch.setattr(engine, "_ask", broken)
    with pytest.raises(Transport):
        await engine.run_timer("intake")
    assert counted(metrics.cycles) == {("intake", "error"): 1}


async def test_commits_that_the_store_does_not_make(
    engine: Engine, metrics: EngineMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = await claimed(engine)

    async def broken(*_: Any, **__: Any) -> None:
        raise Transport("postgres", TransportKind.TIMEOUT)

    monkeypatch.setattr(engine.store, "run", broken)
    with pytest.raises(Transport):
        await engine.renew(handle)
    assert counted(metrics.store_errors) == {"timeout": 1}
    assert counted(metrics.renewals) == {"error": 1}


async def test_hits_of_budgets_and_quotas(engine: Engine, metrics: EngineMetrics) -> None:
    await engine.create_budget(budget_id=BUDGET, dimensions=["tokens"], hard_limits=[10], soft_limits=[0])
    holder = await claimed(engine, lane_id="a", policy={"budget_ids": [BUDGET]})
    await engine.report_usage(holder, BUDGET, UsageDimensions(custom={"tokens": 11}))
    assert counted(metrics.budget_hits) == {"tokens": 1}
    await engine.report_usage(holder, BUDGET, UsageDimensions(custom={"tokens": 10}))
    await create(engine, lane_id="a", policy={"budget_ids": [BUDGET]})
    assert await engine.claim("a", (), policy()) is None
    assert counted(metrics.budget_hits) == {"tokens": 2}

    await engine.create_quota_policy(
        quota_policy_id=QUOTA, window_seconds=60, max_requests_per_window=1, max_concurrent=0
    )
    for _ in range(2):
        await create(engine, lane_id="q", policy={"quota_policy_id": QUOTA})
    assert len(await engine.claim_many("q", (), policy(), 2)) == 1
    assert counted(metrics.quota_hits) == {"rate": 1}
    slots = QUOTA[:-1] + "2"
    await engine.create_quota_policy(
        quota_policy_id=slots, window_seconds=60, max_requests_per_window=0, max_concurrent=1
    )
    for _ in range(2):
        await create(engine, lane_id="s", policy={"quota_policy_id": slots})
    assert len(await engine.claim_many("s", (), policy(), 2)) == 1
    assert counted(metrics.quota_hits) == {"rate": 1, "concurrency": 1}


async def test_groups_and_losers(engine: Engine, metrics: EngineMetrics) -> None:
    names = ["a", "b", "c", "all", "any", "two"]
    edges = [FlowEdge(up, down) for down in ("all", "any", "two") for up in "abc"]
    await Flowing.submit(engine, names, edges, {"all": AllOf(), "any": AnyOf(), "two": Quorum(2)})
    assert counted(metrics.policies) == {"all_of": 1, "any_of": 1, "quorum": 1}

    race = await Flowing.submit(
        engine, ["a", "b", "c", "end"], [FlowEdge(each, "end") for each in "abc"], {"end": AnyOf()}
    )
    await race.complete("a")
    assert counted(metrics.siblings) == {"sibling_quorum_satisfied": 2}
    assert counted(metrics.dispositions) == {"cancelled": 2}


async def test_losers_that_are_reached_later(
    engine: Engine, metrics: EngineMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cascade, "MAX_MOVES", 12)
    names = [f"m{number}" for number in range(40)]
    crowd = await Flowing.submit(engine, [*names, "end"], [FlowEdge(each, "end") for each in names], {"end": AnyOf()})
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_go_on", lambda command: None)
        await crowd.complete("m0")
    waiting = [name for name, state in (await crowd.states(*names[1:])).items() if state == "waiting"]
    await crowd.complete(waiting[0])
    while await engine.run_timer("edge_cancel_dispatcher"):
        while engine._going_on:
            await asyncio.wait(engine._going_on)
    assert counted(metrics.siblings) == {"sibling_quorum_satisfied": 38}
    assert counted(metrics.dispositions) == {"cancelled": 38, "already_terminal": 1}
    await engine.run_timer("edge_cancel_reconciler")
    assert counted(metrics.reconciled) == {}


async def test_lanes_beyond_the_bound_share_a_name(engine: Engine, metrics: EngineMetrics) -> None:
    for number in range(MAX_LANES + 5):
        await engine.complete(await claimed(engine, lane_id=f"lane-{number}"), b"")
    lanes = {lane for lane, _ in metrics.attempts.values}
    assert len(lanes) == MAX_LANES
    assert counted(metrics.attempts)["other", "ok"] == 6
    assert Registry(metrics).most < 1_000
    assert b'lane="other"' in Registry(metrics).text()
