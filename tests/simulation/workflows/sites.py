"""Where programs run as workflows: many of them on one app, each told apart by its seed."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Coroutine
from datetime import timedelta
from typing import Any

import msgspec

from flowfabric import App, Ask, Retry, Run, first, limit, sleep
from tests.simulation.workflows.oracle import Program, expected
from tests.simulation.workflows.programs import Node, Odd, World, run


class Site:
    """An app whose one workflow runs any program."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.programs: dict[int, Node | Program] = {}
        self.effects: defaultdict[int, list[str]] = defaultdict(list)
        self.stumbled: Counter[int] = Counter()
        effects = self.effects

        @app.step
        async def load(seed: int, label: str) -> str:
            effects[seed].append(f"load {label}")
            return label.upper()

        @app.step
        async def fail(seed: int, label: str) -> str:
            effects[seed].append(f"fail {label}")
            raise Odd(503, label)

        @app.step
        async def stumble(seed: int, label: str) -> str:
            self.stumbled[seed] += 1
            if self.stumbled[seed] == 1:
                raise ConnectionError(label)
            effects[seed].append(f"stumble {label}")
            return label

        @app.step
        async def append(seed: int, values: list[str]) -> list[str]:
            effects[seed].append(f"append {values[0]}")
            values.append("more")
            return values

        @app.workflow
        async def child(label: str, delay_ms: int, fails: bool) -> str:
            await sleep(timedelta(milliseconds=delay_ms))
            if fails:
                raise ValueError(label)
            return label * 2

        @app.workflow(retry=Retry(2, first=timedelta(milliseconds=50)))
        async def program(seed: int) -> Any:
            found, world = self.programs[seed], Durable(self, seed)
            return await (run(found, world) if isinstance(found, Node) else found(world))

        self.load, self.fail, self.append, self.child = load, fail, append, child
        self.stumble = stumble
        self.workflow = program

    async def start(self, seed: int, program: Node | Program) -> Run[Any]:
        """Let a program run."""
        self.programs[seed] = program
        return await self.workflow.start(seed)

    async def compare(self, seed: int, found: Any, *, kills: bool) -> None:
        """It has given and done what it gives and does in plain asyncio. What was under way when its worker died may
        have been done twice."""
        program = self.programs[seed]
        story = f"seed {seed}, {'with' if kills else 'without'} kills: {program}"
        result, effects = await asyncio.to_thread(expected, program)
        assert plain(found) == plain(result), story
        done = self.effects[seed]
        if self.stumbled[seed]:
            # What has failed and was caught is done again by the retry.
            done = [each for each in done if not each.startswith("fail")]
            effects = [each for each in effects if not each.startswith("fail")]
        if kills:
            assert set(done) == set(effects), story
        else:
            assert Counter(done) == Counter(effects), story


class Durable:
    """The calls of one workflow."""

    def __init__(self, site: Site, seed: int) -> None:
        self._site = site
        self._seed = seed

    def load(self, label: str) -> Coroutine[Any, Any, str]:
        """A step."""
        return self._site.load(self._seed, label)

    def fail(self, label: str) -> Coroutine[Any, Any, str]:
        """A step that fails."""
        return self._site.fail(self._seed, label)

    def stumble(self, label: str) -> Coroutine[Any, Any, str]:
        """A step that fails once."""
        return self._site.stumble(self._seed, label)

    def append(self, values: list[str]) -> Coroutine[Any, Any, list[str]]:
        """A step that changes what it was given."""
        return self._site.append(self._seed, values)

    def child(self, label: str, delay_ms: int, fails: bool) -> Coroutine[Any, Any, str]:
        """A run of its own."""
        return self._site.child(label, delay_ms, fails)

    def sleep(self, delay_ms: int) -> Coroutine[Any, Any, None]:
        """Time."""
        return sleep(timedelta(milliseconds=delay_ms))

    def ask(self, label: str) -> Awaitable[bool]:
        """Somebody answers."""
        return Ask("go on?", show=label)

    def first(self, *calls: Awaitable[Any]) -> Coroutine[Any, Any, Any]:
        """The first that ends."""
        return first(*calls)

    def limit(self, call: Awaitable[Any], delay_ms: int) -> Coroutine[Any, Any, Any]:
        """What becomes of it in time."""
        return limit(call, timedelta(milliseconds=delay_ms))


def plain(value: Any) -> Any:
    """A result as JSON; the names of a failed child are one."""
    text = msgspec.json.encode(value).replace(b'"ChildFailed"', b'"RunFailed"')
    return msgspec.json.decode(text)


def check_worlds(durable: Durable) -> World:
    """Both are worlds."""
    return durable
