"""``ctx.spend``: reserve first, settle what was used, and what happens when there is no room."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable
from typing import Any

import pytest

from flowfabric import gather
from flowfabric.model.errors import Transport, TransportKind
from flowfabric.model.operations.budgets import AlreadyApplied
from flowfabric.model.states import PublicState
from flowfabric.sdk.app import App
from flowfabric.sdk.context import Ctx
from flowfabric.sdk.definitions.depends import injected
from flowfabric.sdk.durations import seconds
from flowfabric.sdk.errors import BudgetExceeded, RunCancelled, RunFailed
from flowfabric.sdk.options import Budget, Retry

SOON = seconds(20)


@pytest.fixture
def app(store_url: str) -> App:
    return App(store_url)


async def _usage(app: App, budget: Budget) -> tuple[dict[str, int], dict[str, int]]:
    status = await app.engine.get_budget_status(await app.gates.budget(budget), app.namespace)
    return {name: value for name, value in status.usage.items() if value}, status.reserved


async def test_what_is_used_is_charged_and_the_rest_comes_back(app: App) -> None:
    budget = Budget("tenant:acme", tokens=10_000, usd=1)
    reserved: list[Any] = []

    @app.task
    async def think(ctx: Ctx = injected) -> None:
        async with ctx.spend(tokens=4_000, usd="0.05") as call:
            reserved.append(await _usage(app, budget))
            call.settle(tokens=1_234)

    @app.task
    def think_in_thread(ctx: Ctx = injected) -> None:
        with ctx.spend(tokens=100) as call:
            call.settle(tokens=50)
        with ctx.spend(tokens=5):
            pass

    @app.task
    async def fail(ctx: Ctx = injected) -> None:
        async with ctx.spend(tokens=100):
            raise ValueError("before it was used")

    async with app, app.worker():
        await (await think.using(budget=budget).start()).result(timeout=SOON)
        assert reserved == [({}, {"tokens": 4_000, "usd": 50_000})]
        assert await _usage(app, budget) == ({"tokens": 1_234, "usd": 50_000}, {})
        await (await think_in_thread.using(budget=budget).start()).result(timeout=SOON)
        assert await _usage(app, budget) == ({"tokens": 1_289, "usd": 50_000}, {})
        with pytest.raises(RunFailed):
            await (await fail.using(budget=budget).start()).result(timeout=SOON)
        assert await _usage(app, budget) == ({"tokens": 1_289, "usd": 50_000}, {})
        # A run without a budget spends nobody's.
        await (await think.start()).result(timeout=SOON)
        assert await _usage(app, budget) == ({"tokens": 1_289, "usd": 50_000}, {})


async def test_a_budget_by_name(app: App) -> None:
    budget = Budget("shared", calls=3)

    @app.task
    async def call(ctx: Ctx = injected) -> None:
        async with ctx.spend(budget=budget if ctx.tags else "shared", calls=2):
            pass

    async with app, app.worker():
        with pytest.raises(RunFailed, match="no such budget"):
            await (await call.start()).result(timeout=SOON)
        await (await call.using(tags={"first": "yes"}).start()).result(timeout=SOON)
        assert await _usage(app, budget) == ({"calls": 2}, {})
        with pytest.raises(RunFailed) as caught:
            await (await call.start()).result(timeout=SOON)
        assert caught.value.category == "budget_exceeded"
        assert "no room for 2 calls" in caught.value.reason
        assert await _usage(app, budget) == ({"calls": 2}, {})


async def test_a_breach_names_the_budget_that_is_meant(app: App) -> None:
    """The operator's, for a run whose creator names it by an id that the namespace uses for its own, too."""

    @app.task(retry=0)
    async def call(ctx: Ctx = injected) -> None:
        async with ctx.spend(tokens=11):
            pass

    async with app, app.worker():
        shared = await app.gates.budget(Budget("own", tokens=100))
        await app.engine.create_budget(
            budget_id=shared, scope_id="the operator's", dimensions=["tokens"], hard_limits=[10], soft_limits=[0]
        )
        made = await app.engine.create_execution(
            namespace=app.namespace,
            lane_id=app.lane,
            execution_kind=call.kind,
            input_payload=call.signature.dump({}),
            policy={"budget_ids": [shared]},
        )
        with pytest.raises(RunFailed, match="no room for 11 tokens in the budget the operator's: 0 spent"):
            await app.run(str(made.execution_id), call).result(timeout=SOON)


async def test_a_breach_can_be_caught_or_cancels(app: App) -> None:
    strict, cancelling = Budget("strict", tokens=10), Budget("cancelling", tokens=10, on_breach="cancel")

    @app.task
    async def careful(ctx: Ctx = injected) -> str:
        try:
            async with ctx.spend(tokens=11):
                return "spent"
        except BudgetExceeded as error:
            return error.code

    @app.task(retry=5)
    async def careless(ctx: Ctx = injected) -> None:
        async with ctx.spend(tokens=11):
            pass

    async with app, app.worker():
        assert await (await careful.using(budget=strict).start()).result(timeout=SOON) == "budget_exceeded"
        with pytest.raises(RunCancelled):
            await (await careless.using(budget=cancelling).start()).result(timeout=SOON)


async def test_a_budget_that_asks_parks_the_run(app: App) -> None:
    budget = Budget("asking", tokens=10, on_breach="ask")
    tries = 0

    @app.task
    async def think(ctx: Ctx = injected) -> str:
        nonlocal tries
        tries += 1
        async with ctx.spend(tokens=25) as call:
            call.settle(tokens=20)
        return "spent"

    async with app, app.worker() as worker:
        run = await think.using(budget=budget).start()
        await _until(lambda: _is(run.status(), PublicState.SUSPENDED))
        await _until(lambda: _is(_value(worker.running), 0))
        [waitpoint] = (await app.engine.list_pending_waitpoints(execution_id=run.id)).entries
        token = await app.engine.read_waitpoint_token(partition=_partition(run.id), waitpoint_id=waitpoint.waitpoint_id)
        await app.engine.deliver_signal(
            execution_id=run.id,
            waitpoint_id=waitpoint.waitpoint_id,
            signal_id="00000000-0000-4000-8000-000000000001",
            signal_name="approved",
            waitpoint_token=token,
        )
        assert await run.result(timeout=SOON) == "spent"
        assert await _usage(app, budget) == ({"tokens": 20}, {})
    assert tries == 2


def _partition(run_id: str) -> int:
    return int(run_id.partition("}")[0].removeprefix("{fp:"))


async def _value(value: Any) -> Any:
    return value


async def _is(found: Awaitable[Any], wanted: Any) -> bool:
    return bool(await found == wanted)


async def _until(condition: Any) -> None:
    deadline = time.monotonic() + 20
    while not await condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("store_url", ["memory", "remote"], indirect=True)
async def test_every_call_in_a_workflow_is_charged(app: App) -> None:
    budget = Budget("team", tokens=100_000)
    tries: list[int] = []

    @app.step
    async def think(tokens: int, ctx: Ctx = injected) -> None:
        async with ctx.spend(tokens=tokens):
            pass

    @app.step
    def think_twice(ctx: Ctx = injected) -> None:
        for used in (30, 40):
            with ctx.spend(tokens=100) as call:
                call.settle(tokens=used)

    @app.step
    async def think_in_one(ctx: Ctx = injected) -> None:
        call = ctx.spend(tokens=100)
        async with call:
            call.settle(tokens=1)
        async with call:
            pass

    @app.step(retry=Retry(2, first=seconds(0)))
    async def think_again(ctx: Ctx = injected) -> None:
        tries.append(ctx.attempt)
        async with ctx.spend(tokens=5):
            pass
        if len(tries) < 3:
            raise ValueError("once more")

    @app.workflow
    async def agent() -> None:
        for _ in range(3):
            await think(1_000)
        await gather(think(10_000), think(20_000), think_twice())
        await think_again()
        await think_in_one()

    async with app, app.worker():
        await (await agent.using(budget=budget).start()).result(timeout=SOON)
        assert await _usage(app, budget) == ({"tokens": 3_000 + 30_000 + 70 + 15 + 101}, {})


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
async def test_a_store_that_does_not_answer_once(app: App, done: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = Budget("team", tokens=100)
    attempts: list[int] = []

    @app.task
    async def think(ctx: Ctx = injected) -> None:
        attempts.append(ctx.attempt)
        async with ctx.spend(tokens=60) as call:
            call.settle(tokens=50)

    async with app, app.worker():
        for name in ("reserve_budget", "settle_reservation"):
            _unanswered_once(app, name, done, monkeypatch)
        await (await think.using(budget=budget).start()).result(timeout=SOON)
        assert await _usage(app, budget) == ({"tokens": 50}, {})
    assert attempts == [1]


def _unanswered_once(app: App, name: str, done: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call of an operation is not answered, whether it was done or not."""
    real, calls = getattr(app.engine, name), itertools.count()

    async def call(*args: Any) -> Any:
        if next(calls):
            return await real(*args)
        if done:
            await real(*args)
        raise Transport("memory", TransportKind.TRANSPORT, "the connection was lost")

    monkeypatch.setattr(app.engine, name, call)


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
async def test_what_one_budget_refuses_comes_back_to_the_others(app: App) -> None:
    wide, narrow = Budget("wide", tokens=100), Budget("narrow", tokens=10)
    seen: list[Any] = []

    @app.task
    async def think(ctx: Ctx = injected) -> None:
        with pytest.raises(BudgetExceeded):
            async with ctx.spend(tokens=50):
                pass
        seen.append([await _usage(app, each) for each in (wide, narrow)])

    async with app, app.worker():
        await (await think.using(budget=[wide, narrow]).start()).result(timeout=SOON)
    assert seen == [[({}, {}), ({}, {})]]


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
async def test_nobody_goes_on_without_a_reservation(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that was never made cannot have been settled: going on would be going on unpaid."""
    budget = Budget("team", tokens=100)
    begun: list[str] = []

    @app.task(retry=0)
    async def think(ctx: Ctx = injected) -> None:
        async with ctx.spend(tokens=10):
            begun.append(ctx.run_id)

    async def settled(*_: Any) -> AlreadyApplied:
        return AlreadyApplied()

    async with app, app.worker():
        monkeypatch.setattr(app.engine, "reserve_budget", settled)
        run = await think.using(budget=budget).start()
        with pytest.raises(RunFailed, match="settled before it was made"):
            await run.result(timeout=SOON)
    assert begun == []
