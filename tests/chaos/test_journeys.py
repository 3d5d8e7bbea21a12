"""Workers that are killed or stopped while they run workflows: every step is remembered once, as somebody did it, and
every workflow ends with what it remembers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from flowfabric import App, AskClosed, EngineError, Workflow
from flowfabric.model.states import PublicState
from flowfabric.sdk.runs.run import Run
from flowfabric.sdk.worker.renewal import is_passing
from tests.chaos.journey import LEASE, STEADY_LEASE, Effects, build
from tests.chaos.journeys import NAMES, Effect, answer_for, problems, read_effects, violations
from tests.chaos.processes import Peer
from tests.chaos.stores import SHARED
from tests.conftest import full_run

WORKER = "tests.chaos.journey"
KILLS = 300 if full_run() else 10
#: Workers that die and are replaced at the same time, and journeys that are under way.
WORKERS, OPEN = 3, 8
#: A store is left for a new one after this many kills, so that looking at all of it stays quick.
KILLS_PER_STORE = 100
LIVES_AT_MOST_S = 2.0
QUIET_TIMEOUT_S = 60.0
ENDED = {PublicState.COMPLETED, PublicState.FAILED, PublicState.CANCELLED, PublicState.EXPIRED, PublicState.SKIPPED}


@pytest.fixture(params=SHARED)
def fresh_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh store that processes can share."""
    return SHARED[request.param](request, tmp_path)


class Travel:
    """Journeys that are under way, and whoever answers their questions."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.journey: Workflow[[int], dict[str, str]] = app.definitions["journey"]  # type: ignore[assignment]
        self.runs: dict[int, Run[dict[str, str]]] = {}
        self._answered: set[str] = set()

    async def start(self) -> Run[dict[str, str]]:
        """One more."""
        number = len(self.runs)
        run: Run[dict[str, str]] = await patiently(lambda: self.journey.start(number))
        self.runs[number] = run
        return run

    async def under_way(self) -> list[Run[dict[str, str]]]:
        """Those that have not ended, after everything that was asked has been answered."""
        for ask in await patiently(self.app.asks):
            if ask.id not in self._answered:
                try:
                    await patiently(lambda ask=ask: ask.answer(answer_for(ask.show)))  # type: ignore[misc]
                except AskClosed:
                    continue  # it was listed a moment too late
                self._answered.add(ask.id)
        states = [(run, await patiently(run.status)) for run in self.runs.values()]
        return [run for run, state in states if state not in ENDED]

    async def ended(self, timeout_s: float = QUIET_TIMEOUT_S) -> None:
        """Wait until nothing is under way."""
        deadline = time.monotonic() + timeout_s
        while left := await self.under_way():
            if time.monotonic() > deadline:
                stuck = [(run.id, await run.explain(), await run.steps()) for run in left]
                pytest.fail(f"{len(left)} of {len(self.runs)} journeys are stuck: {stuck}")
            await asyncio.sleep(0.05)

    async def check(self, path: Path) -> Counter[str]:
        """Everything that must hold; how often each thing was done."""
        effects = read_effects(path)
        found: list[Any] = []
        for number, run in self.runs.items():
            state = await run.status()
            found += [f"{run.id} is {state}: {await run.explain()}"] if state != PublicState.COMPLETED else []
            found += await problems(run, number, effects) if state == PublicState.COMPLETED else []
        found += await violations(self.app.engine, list(self.runs.values()))
        assert found == []
        return Counter({name: sum(len(effects[number, name]) for number in self.runs) for name in NAMES})


async def patiently(call: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat a call while the store is out of reach: a worker that stands still may hold its lock."""
    while True:
        try:
            return await call()
        except EngineError as error:
            if not is_passing(error):
                raise
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def travelling(url: str, effects: Path) -> AsyncIterator[Travel]:
    """An app that starts journeys and runs none."""
    async with build(url, Effects(str(effects), "live")) as app:
        yield Travel(app)


@contextlib.asynccontextmanager
async def worker(url: str, effects: Path, fate: str = "live", lease: timedelta = LEASE) -> AsyncIterator[Peer]:
    """A worker process, at work."""
    peer = await asyncio.to_thread(Peer, WORKER, url, str(effects), fate, str(lease.total_seconds()))
    try:
        assert await asyncio.to_thread(peer.hear) == "ready"
        yield peer
    finally:
        await asyncio.to_thread(peer.close)


# ------------------------------------------------------------------------------------------------------------ by chance


class Reaper:
    """Workers that live for a moment, one after the other in several places, until so many have been killed."""

    def __init__(self, url: str, effects: Path, kills: int, chance: random.Random) -> None:
        self._url, self._effects, self._chance = url, effects, chance
        self._left = kills
        self.killed: Counter[str] = Counter()

    def _fate(self) -> str:
        moment = self._chance.choice(("outside", "outside", "pause", "in", "before", "after"))
        return f"{moment}:{self._chance.randint(1, 12)}" if moment in ("in", "before", "after") else moment

    async def reap(self) -> None:
        """In one place."""
        while self._left > 0:
            self._left -= 1
            fate = self._fate()
            async with worker(self._url, self._effects, fate) as peer:
                moment = fate.partition(":")[0]
                await (self._by_itself(peer) if ":" in fate else self._from_outside(peer, moment == "pause"))
                self.killed[moment] += 1

    async def _by_itself(self, peer: Peer) -> None:
        """It dies as it was told to; one that found nothing to do is killed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            assert await asyncio.to_thread(peer.process.wait, LIVES_AT_MOST_S) == -signal.SIGKILL, peer.errors()

    async def _from_outside(self, peer: Peer, paused: bool) -> None:
        await asyncio.sleep(self._chance.uniform(0, 0.8))
        assert peer.process.poll() is None, peer.errors()
        if paused:
            # It stands still until its leases have run out, and then goes on as if nothing had happened.
            peer.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(2 * LEASE.total_seconds())
            peer.process.send_signal(signal.SIGCONT)
            await asyncio.sleep(self._chance.uniform(0, 0.8))


@pytest.mark.parametrize("batch", range(max(KILLS // KILLS_PER_STORE, 1)))
@pytest.mark.timeout(1_800 if full_run() else 180)
async def test_workers_die_at_any_moment(fresh_url: str, tmp_path: Path, batch: int) -> None:
    effects, kills = tmp_path / "effects", min(KILLS, KILLS_PER_STORE)
    async with travelling(fresh_url, effects) as travel:
        reaper = Reaper(fresh_url, effects, kills, random.Random(f"journeys/{batch}"))
        places = [asyncio.ensure_future(reaper.reap()) for _ in range(WORKERS)]
        try:
            while not all(place.done() for place in places):
                for _ in range(OPEN - len(await travel.under_way())):
                    await travel.start()
                await asyncio.wait(places, timeout=0.05)
        finally:
            for place in places:
                place.cancel()
            await asyncio.gather(*places)
        async with worker(fresh_url, effects):
            await travel.ended()
        done = await travel.check(effects)
    again = done - Counter(dict.fromkeys(NAMES, len(travel.runs)))
    assert reaper.killed.total() == kills
    assert again, "no kill has ever made anybody do something again"


# --------------------------------------------------------------------------------------------------------- crash points


@pytest.mark.parametrize("point", ["before", "after"])
@pytest.mark.parametrize("write", ["step", "park", "end"])
async def test_crash_around_a_commit(fresh_url: str, tmp_path: Path, write: str, point: str) -> None:
    effects = tmp_path / "effects"
    async with travelling(fresh_url, effects) as travel:
        run = await travel.start()
        async with worker(fresh_url, effects, f"{point}/{write}:1", STEADY_LEASE) as peer:
            assert await asyncio.to_thread(peer.wait) == -signal.SIGKILL, peer.errors()
        names = {step.name for step in await run.steps()}
        before = read_effects(effects)
        async with travel.app.worker(lease_ttl=STEADY_LEASE):
            await travel.ended()
        done = await travel.check(effects)
    first = [name for name in NAMES if before[0, name]]
    kept = {name for name in first if NAMES[name] in names}
    if write == "step":
        assert (first, names) == (["open"], {"open"} if point == "after" else set())
    # What is remembered is never done again.
    assert {name: done[name] for name in kept} == dict.fromkeys(kept, 1)
    assert all(done[name] == 2 for name in first if name not in (*kept, "errand", "haul"))


@pytest.mark.parametrize(
    "name", ["open", "carry", "stumble", "errand", "haul", "close"] if full_run() else ["open", "errand"]
)
async def test_whoever_comes_too_late_is_refused(fresh_url: str, tmp_path: Path, name: str) -> None:
    effects = tmp_path / "effects"
    async with travelling(fresh_url, effects) as travel:
        run = await travel.start()
        async with worker(fresh_url, effects, f"hold:{name}", STEADY_LEASE) as zombie:
            hears = asyncio.ensure_future(asyncio.to_thread(zombie.hear))
            while not hears.done():
                await travel.under_way()
                await asyncio.wait((hears,), timeout=0.02)
            assert hears.result() == name
            await stop(zombie, fresh_url)
            effects.with_suffix(".go_on").touch()
            # It stands still inside, until another one has done the same and everything else.
            async with travel.app.worker(lease_ttl=STEADY_LEASE):
                await travel.ended()
            result = await run.result()
            zombie.process.send_signal(signal.SIGCONT)
            # It is alive and well: the next journey is its own.
            await travel.start()
            await travel.ended()
        assert (await travel.check(effects))[name] == 3
    late: list[Effect] = read_effects(effects)[0, name]
    assert [effect.pid == zombie.process.pid for effect in late] == [True, False]
    assert result[name] == late[1].token


async def stop(peer: Peer, url: str) -> None:
    """Let a process stand still, at a moment when it is not in the middle of a transaction that locks others out."""
    while True:
        peer.process.send_signal(signal.SIGSTOP)
        await asyncio.to_thread(os.waitid, os.P_PID, peer.process.pid, os.WSTOPPED | os.WNOWAIT)
        if not await locked(url):
            return
        peer.process.send_signal(signal.SIGCONT)
        await asyncio.sleep(0.005)


async def locked(url: str) -> bool:
    """Whether somebody is in the middle of a transaction."""
    if url.startswith("valkey"):
        return False  # a commit is one message, and locks nobody out
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=0, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        finally:
            connection.close()
        return False
    server = await asyncpg.connect(url)
    try:
        return bool(
            await server.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                "AND pid <> pg_backend_pid() AND state <> 'idle' AND backend_type = 'client backend'"
            )
        )
    finally:
        await server.close()
