"""Workflows do what the same code does in plain asyncio, however often they are parked, killed and called again."""

from __future__ import annotations

import asyncio
import inspect
import random
import re
from collections.abc import Mapping
from datetime import timedelta

import pytest

from flowfabric import App, PublicState
from flowfabric.sdk.asks.find import open_asks
from flowfabric.sdk.errors import ENDED
from flowfabric.sdk.testing import Testing, kit
from flowfabric.sdk.testing.faults import crash_of
from tests.conftest import full_run
from tests.sdk.serving import serving
from tests.simulation.workflows.documented import PROGRAMS
from tests.simulation.workflows.oracle import Program
from tests.simulation.workflows.programs import RACES, Making, Node
from tests.simulation.workflows.sites import Site

SEEDS = 100_000 if full_run() else 1_000
PER_TEST = 100
#: Where nothing races many things end at the same time, so that it passes in fewer steps.
GRID_MS = 900_000
#: Timers that these programs need; the others would find nothing.
TIMERS = ("intake", "orphan_reconciler", "delayed_promoter", "lease_expiry", "suspension_timeout")
#: Programs of each kind of store that commits elsewhere, or lies behind a server, in real time.
ELSEWHERE = 200 if full_run() else 8
#: What they may take until they are taken to hang.
LIMIT_S = 300


async def settle(t: Testing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let time pass, and answer whatever is asked, until nothing is left to happen."""

    async def run_due() -> int:
        return sum([await t._open_engine.run_timer(name, 1_000) for name in TIMERS])

    monkeypatch.setattr(t, "_run_due", run_due)
    monkeypatch.setattr(kit, "QUIET_TURNS", 10)
    while True:
        await t.idle()
        asks = await open_asks(t.app)
        for ask in asks:
            await ask.answer(ask.show < "d")
        if not asks and not await t._skip():
            return


async def alike(
    programs: Mapping[int, Node | Program], kills: int, monkeypatch: pytest.MonkeyPatch, store: str = "memory://"
) -> None:
    """Run them side by side."""
    app = App("memory://")
    site = Site(app)
    chance = random.Random(min(programs))
    async with app.testing(concurrency=4, store=store) as t:
        for _ in range(kills):
            where = {chance.choice(("before", "after")): chance.choice(("step", "suspend", "complete"))}
            assert t._faulty is not None
            t._faulty.crashes.append(crash_of(site.workflow, where.get("before"), where.get("after"), 1))
        runs = {seed: await site.start(seed, program) for seed, program in programs.items()}
        async with asyncio.timeout(LIMIT_S):
            await settle(t, monkeypatch)
        for seed, run in runs.items():
            state = await run.status()
            if state is not PublicState.COMPLETED:
                remembered = [(each.name, each.value, each.arguments) for each in await run.steps()]
                (end,) = await app.engine.read_ends([run.id])
                why = end.failure_reason if state in ENDED else (await run.explain()).sentence
                raise AssertionError(f"seed {seed}, {kills} kills: {programs[seed]}\n{why}\n{remembered}")
            await site.compare(seed, await run.result(), kills=bool(kills))


@pytest.mark.parametrize("begin", range(0, SEEDS, PER_TEST))
async def test_workflows_do_what_plain_code_does(begin: int, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = {seed: Making(seed).program() for seed in range(begin, begin + PER_TEST)}
    races = {seed: each for seed, each in programs.items() if each.has(*RACES)}
    # When a worker dies in a race, what the others have done until then is not certain.
    others = {seed: each.by_steps_of(GRID_MS) for seed, each in programs.items() if seed not in races}
    killed = {seed: each for seed, each in others.items() if seed % 4}
    await alike(races, 0, monkeypatch)
    await alike({seed: each for seed, each in others.items() if seed not in killed}, 0, monkeypatch)
    await alike(killed, len(killed), monkeypatch)


@pytest.mark.parametrize("kills", [False, True], ids=["", "killed"])
async def test_what_handbooks_show(kills: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(PROGRAMS) >= 50
    races = {name for name, each in PROGRAMS.items() if re.search(r"w\.(first|limit)\(", inspect.getsource(each))}
    programs = dict(enumerate(each for name, each in PROGRAMS.items() if not (kills and name in races)))
    await alike(programs, len(programs) // 2 if kills else 0, monkeypatch)


@pytest.mark.parametrize("store_url", ["sqlite", "postgres"], indirect=True)
async def test_on_a_store_that_lasts(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for begin in range(0, ELSEWHERE, PER_TEST):
        seeds = range(begin, min(begin + PER_TEST, ELSEWHERE))
        await alike({seed: Making(seed).program() for seed in seeds}, 0, monkeypatch, store_url)


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_by_workers_behind_a_server_in_real_time(store_url: str) -> None:
    with serving(store_url) as url:
        await in_real_time(url)


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
async def test_in_real_time(store_url: str) -> None:
    await in_real_time(store_url)


async def in_real_time(url: str) -> None:
    """Where nothing races, so that it does not matter how long things take."""
    async with App(url) as app:
        site = Site(app)
        programs = {seed: Making(seed, races=False, longest_ms=40).program() for seed in range(ELSEWHERE)}

        async def answer() -> None:
            while True:
                for ask in await open_asks(app):
                    await ask.answer(ask.show < "d")
                await asyncio.sleep(0.02)

        async with app.worker(), asyncio.timeout(LIMIT_S):
            answering = asyncio.create_task(answer())
            runs = {seed: await site.start(seed, program) for seed, program in programs.items()}
            for seed, run in runs.items():
                await site.compare(seed, await run.result(timedelta(seconds=LIMIT_S)), kills=False)
            answering.cancel()
            await asyncio.wait((answering,))
