"""The same programs in plain asyncio, under time that jumps to whatever comes next."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias

from tests.simulation.workflows.programs import Node, Odd, World, run

Program: TypeAlias = Callable[[World], Coroutine[Any, Any, Any]]


class ChildFailed(Exception):
    """What a task that fails raises in plain code; it is compared by another name."""


class _JumpingSelector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Never waits: the time that it would have waited has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        """What is ready now."""
        if timeout:
            self.now += timeout
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, selector: _JumpingSelector) -> None:
        self._clock = selector
        super().__init__(selector)

    def time(self) -> float:
        """The jumping clock."""
        return self._clock.now


class Plain:
    """Calls without an engine."""

    def __init__(self) -> None:
        self.effects: list[str] = []

    async def load(self, label: str) -> str:
        """A step."""
        self.effects.append(f"load {label}")
        return label.upper()

    async def fail(self, label: str) -> str:
        """A step that fails."""
        self.effects.append(f"fail {label}")
        raise Odd(503, label)

    async def stumble(self, label: str) -> str:
        """A step that fails in the first trial only."""
        self.effects.append(f"stumble {label}")
        return label

    async def append(self, values: list[str]) -> list[str]:
        """A step that changes what it was given: a copy."""
        self.effects.append(f"append {values[0]}")
        return [*values, "more"]

    async def child(self, label: str, delay_ms: int, fails: bool) -> str:
        """A run of its own."""
        await asyncio.sleep(delay_ms / 1000)
        if fails:
            raise ChildFailed
        return label * 2

    async def sleep(self, delay_ms: int) -> None:
        """Time."""
        await asyncio.sleep(delay_ms / 1000)

    async def ask(self, label: str) -> bool:
        """Somebody answers."""
        return label < "d"

    async def first(self, *calls: Awaitable[Any]) -> Any:
        """The first that ends."""
        tasks = [asyncio.ensure_future(each) for each in calls]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return done.pop().result()

    async def limit(self, call: Awaitable[Any], delay_ms: int) -> Any:
        """What becomes of it in time."""
        return await asyncio.wait_for(call, delay_ms / 1000)


def expected(program: Node | Program) -> tuple[Any, list[str]]:
    """What a program gives, and what it did."""
    plain = Plain()
    loop = _Loop(_JumpingSelector())
    try:
        doing = run(program, plain) if isinstance(program, Node) else program(plain)
        return loop.run_until_complete(doing), plain.effects
    finally:
        loop.close()
