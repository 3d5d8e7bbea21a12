"""Workflows do what the same code does in plain asyncio, however often they are parked, killed and called again."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Coroutine
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from flowfabric import App, Ask, Retry, first, sleep
from flowfabric.sdk.asks.find import open_asks
from flowfabric.sdk.testing.faults import crash_of
from tests.conftest import full_run
from tests.simulation.workflows.oracle import expected
from tests.simulation.workflows.programs import Making, Node, Odd, World, run

PROGRAMS = 20_000 if full_run() else 80
PER_TEST = 20
#: What a program may take until it is taken to hang.
LIMIT_S = 60


class Durable:
    """The calls of a workflow."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.effects: list[str] = []
        self.program = Node("sequence")
        self.stumbled = 0

        @app.step
        async def load(label: str) -> str:
            self.effects.append(f"load {label}")
            return label.upper()

        @app.step
        async def fail(label: str) -> str:
            self.effects.append(f"fail {label}")
            raise Odd(503, label)

        @app.step
        async def stumble(label: str) -> str:
            self.stumbled += 1
            if self.stumbled == 1:
                raise ConnectionError(label)
            self.effects.append(f"stumble {label}")
            return label

        @app.step
        async def append(values: list[str]) -> list[str]:
            self.effects.append(f"append {values[0]}")
            values.append("more")
            return values

        @app.workflow
        async def child(label: str, delay_ms: int, fails: bool) -> str:
            await sleep(timedelta(milliseconds=delay_ms))
            if fails:
                raise ValueError(label)
            return label * 2

        @app.workflow(retry=Retry(2, first=timedelta(seconds=1)))
        async def program() -> Any:
            return await run(self.program, self)

        self.load, self.fail, self.append, self.child = load, fail, append, child
        self.stumble = stumble
        self.workflow = program

    def sleep(self, delay_ms: int) -> Coroutine[Any, Any, None]:
        """Time."""
        return sleep(timedelta(milliseconds=delay_ms))

    def ask(self, label: str) -> Awaitable[bool]:
        """Somebody answers."""
        return Ask("go on?", show=label)

    def first(self, *calls: Awaitable[Any]) -> Coroutine[Any, Any, Any]:
        """The first that ends."""
        return first(*calls)


def plain(value: Any) -> Any:
    """A result as JSON; the names of a failed child are one."""
    text = msgspec.json.encode(value).replace(b'"ChildFailed"', b'"RunFailed"')
    return msgspec.json.decode(text)


async def answering(app: App) -> None:
    """Answer whatever is asked."""
    while True:
        for ask in await open_asks(app):
            await ask.answer(ask.show < "d")
        await asyncio.sleep(0.001)


async def alike(seed: int) -> None:
    program = Making(seed).program()
    chance = random.Random(seed)
    kills = 0 if program.has("first") else chance.choice((0, 0, 1, 2))
    result, effects = await asyncio.to_thread(expected, program)
    app = App("memory://")
    world = Durable(app)
    world.program = program
    story = f"seed {seed}, {kills} kills: {program}"
    async with app.testing() as t:
        for _ in range(kills):
            where = {chance.choice(("before", "after")): chance.choice(("step", "suspend", "complete"))}
            assert t._faulty is not None
            t._faulty.crashes.append(crash_of(world.workflow, where.get("before"), where.get("after"), 1))
        answers = asyncio.create_task(answering(app))
        started = await world.workflow.start()
        try:
            async with asyncio.timeout(LIMIT_S):
                found = await started.result(timedelta(days=30))
        except Exception as error:
            remembered = [(each.name, each.value, each.arguments) for each in await started.steps()]
            raise AssertionError(f"{story}\n{type(error).__name__}: {error}\n{remembered}") from error
        finally:
            answers.cancel()
            await asyncio.wait((answers,))
    assert plain(found) == plain(result), story
    if program.has("stumble"):
        # What has failed and was caught is done again by the retry.
        world.effects = [each for each in world.effects if not each.startswith("fail")]
        effects = [each for each in effects if not each.startswith("fail")]
    if kills == 0:
        assert Counter(world.effects) == Counter(effects), story
    else:
        assert set(world.effects) == set(effects), story


@pytest.mark.parametrize("begin", range(0, PROGRAMS, PER_TEST))
async def test_workflows_do_what_plain_code_does(begin: int) -> None:
    for seed in range(begin, begin + PER_TEST):
        await alike(seed)


def check_worlds(durable: Durable) -> World:
    """Both are worlds."""
    return durable
