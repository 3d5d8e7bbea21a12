"""Whoever is cancelled, at whatever await: nobody goes on waiting, no lease is without an owner, no connection stays
open and no task is left.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flowfabric.stores.memory import MemoryStore
from flowfabric.stores.questions import ListLeases
from tests.cancelling.loop import Cancels, Ends, Hook, Loop, shuffled
from tests.cancelling.scenes import SCENES, TTL_MS, Scene
from tests.conftest import full_run

SEEDS = 5_000 if full_run() else 200
#: Seeds of one test, and how many of them end the whole program.
AT_ONCE, PART_OF_ENDS = 25, 0.2


class Played:
    """A scene on a loop of its own, up to its end."""

    def __init__(self, play: Any, make_hook: Callable[[Callable[[], Any]], Hook]) -> None:
        self.main: asyncio.Task[Any] | None = None
        self.hook = make_hook(lambda: self.main)
        self.loop = Loop(self.hook)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "monotonic", self.loop.time)
            self.scene = Scene(self.loop, patch)
            try:
                self.loop.run_until_complete(self._whole(play))
                self.leases = self.loop.run_until_complete(self._leases())
                self.later = self.loop.run_until_complete(self._after_the_grace())
            finally:
                self.left = [task for task in asyncio.all_tasks(self.loop) if not task.done()]
                for task in self.left:
                    task.get_coro().close()  # type: ignore[union-attr]
                self.loop.close()

    async def _whole(self, play: Any) -> None:
        self.main = asyncio.ensure_future(play(self.scene))
        await asyncio.wait((self.main,))
        if isinstance(self.hook, Ends):
            # As ``asyncio.run`` ends.
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        for _ in range(50):
            await asyncio.sleep(0)

    async def _leases(self) -> list[str]:
        """Leases that nobody stands for."""
        given = {str(handle.execution_id) for handle in self.scene.given}
        return [each for each in await self._held() if each not in given]

    async def _held(self) -> list[str]:
        now = await self.scene.store.server_time_ms()
        found = []
        for instance in self.scene.instances:
            held = await MemoryStore.query(self.scene.store, ListLeases(instance, now, 1_000))
            found += [execution.execution_id for execution, _ in held]
        return found

    async def _after_the_grace(self) -> list[str]:
        """Leases that last although nobody renews them."""
        self.loop.now += TTL_MS / 1_000 + 1
        return await self._held()

    def check(self) -> None:
        """Assert that nothing is left of it."""
        place = getattr(self.hook, "place", "")
        where = f"cancelled at {place}"
        assert self.main is not None
        assert self.left == [], where
        assert self.loop.complaints == [], where
        assert self.loop.network.open() == [], where
        assert self.later == [], where
        if isinstance(self.hook, Cancels) and self.hook.victim in self.scene.calls and not self.hook.late:
            assert self.hook.victim.cancelled(), f"{where} and went on"
        if not isinstance(self.hook, Ends):
            assert not self.main.cancelled(), where
            if (error := self.main.exception()) is not None:
                raise AssertionError(where) from error
            assert self.leases == [], where


def counted(play: Any) -> Hook:
    """How often a scene waits if nobody is cancelled."""
    shuffled(0)
    played = Played(play, lambda _: Hook())
    played.check()
    return played.hook


@pytest.fixture(scope="module")
def waits() -> Iterator[dict[Any, Hook]]:
    gc.collect()
    gc.freeze()
    yield {}
    gc.unfreeze()


@pytest.mark.parametrize("play", SCENES, ids=lambda play: play.__name__)
def test_a_scene_ends(play: Any) -> None:
    hook = counted(play)
    assert 0 < hook.called < hook.all


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_cancelled_anywhere(first: int, waits: dict[Any, Hook]) -> None:
    for seed in range(first, first + AT_ONCE):
        play = SCENES[seed % len(SCENES)]
        if play not in waits:
            waits[play] = counted(play)
        make, said = drawn(shuffled(seed), waits[play])
        try:
            Played(play, make).check()
        except BaseException as error:
            error.add_note(f"seed {seed}: {play.__name__}, {said}")
            raise


def drawn(chances: random.Random, known: Hook) -> tuple[Callable[[Callable[[], Any]], Hook], str]:
    """Whom a seed cancels, and in words."""
    if chances.random() < PART_OF_ENDS:
        end = chances.randrange(known.all)
        return lambda main: Ends(end, main), f"the program ends at wait {end}"
    late, again = chances.random() < 0.5, chances.random() < 0.25
    at = chances.randrange(known.called)
    return lambda _: Cancels(at, late=late, again=again), f"wait {at}{', late' * late}{', twice' * again}"
