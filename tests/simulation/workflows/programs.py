"""Programs by chance, and running them: as workflows, and as plain asyncio.

A program is a tree. Each leaf is a call; the others say in which way calls are made: one after the other, gathered, in
a group, in a race, caught, over a set. Delays differ, so that it is always clear which of two calls ends first.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

#: Kinds of calls that take no time and may fail; those that take some; the other nodes.
QUICK = ("load", "fail", "append", "ask", "plain")
SLOW = ("sleep", "child", "broken child")
INNER = ("sequence", "gather", "group", "try", "shuffled", "tasks", "collected", "waited")
RACES = ("first", "limit")


@dataclass
class Node:
    """One node of a program."""

    kind: str
    label: str = ""
    delay_ms: int = 0
    parts: list[Node] = field(default_factory=list)

    def __str__(self) -> str:
        inside = ", ".join(map(str, self.parts))
        return f"{self.kind}({self.label or ''}{f' {self.delay_ms}' if self.delay_ms else ''}{inside})"

    def by_steps_of(self, grid_ms: int) -> Node:
        """The same with delays that are multiples of another."""
        delay = -(-self.delay_ms // grid_ms) * grid_ms
        return Node(self.kind, self.label, delay, [each.by_steps_of(grid_ms) for each in self.parts])

    def has(self, *kinds: str) -> bool:
        """Whether there is such a node."""
        return self.kind in kinds or any(each.has(*kinds) for each in self.parts)


class Odd(Exception):
    """An error whose constructor takes other arguments than it hands on."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(f"{code}: {what}")
        self.code = code


class World(Protocol):
    """Where a program runs."""

    def load(self, label: str) -> Coroutine[Any, Any, str]: ...
    def fail(self, label: str) -> Coroutine[Any, Any, str]: ...
    def stumble(self, label: str) -> Coroutine[Any, Any, str]: ...
    def append(self, values: list[str]) -> Coroutine[Any, Any, list[str]]: ...
    def child(self, label: str, delay_ms: int, fails: bool) -> Coroutine[Any, Any, str]: ...
    def sleep(self, delay_ms: int) -> Coroutine[Any, Any, None]: ...
    def ask(self, label: str) -> Awaitable[bool]: ...
    def first(self, *calls: Awaitable[Any]) -> Coroutine[Any, Any, Any]: ...
    def limit(self, call: Awaitable[Any], delay_ms: int) -> Coroutine[Any, Any, Any]: ...


class Making:
    """Makes one program."""

    def __init__(self, seed: int, *, races: bool = True, longest_ms: int = 9_000_000) -> None:
        self._chance = random.Random(seed)
        self._delays = [
            1 + each * longest_ms // 9_000_000 for each in self._chance.sample(range(1_000, 9_000_000), 400)
        ]
        self._races = races
        self._left = self._chance.randint(4, 24) if seed % 8 == 0 else self._chance.randint(3, 9)
        # Few labels, so that calls are often equal.
        self._labels = self._chance.choice(("ab", "abcdef", "abcdefghijklmnopqrstuvwxyz"))

    def program(self) -> Node:
        """The whole of it. Some fail in their middle, and are retried."""
        parts = [self._node(0) for _ in range(self._chance.randint(1, 4))]
        if self._chance.random() < 0.25:
            parts.insert(self._chance.randint(0, len(parts)), Node("stumble", self._label()))
        return Node("sequence", parts=parts)

    def _node(self, depth: int) -> Node:
        self._left -= 1
        if depth > 3 or self._left <= 0 or self._chance.random() < 0.35:
            return self._leaf()
        kind = self._chance.choice((*INNER, *RACES) if depth < 3 and self._races else INNER)
        if kind == "limit":
            how = self._chance.choice(("", "tasks"))
            return Node(kind, how, self._delays.pop(), [self._racer()])
        if kind == "first":
            # What loses is cancelled somewhere in its middle.
            how = self._chance.choice(("", "tasks", "gathered"))
            return Node(kind, how, parts=[self._racer() for _ in range(self._chance.randint(2, 3))])
        if kind == "try":
            return Node(kind, parts=[self._node(depth + 1)])
        if kind == "shuffled":
            labels = self._chance.sample("uvwxyz", self._chance.randint(2, 4))
            return Node(kind, parts=[Node("load", each) for each in labels])
        parts = [self._node(depth + 1) for _ in range(self._chance.randint(1, 4))]
        if kind == "collected":
            # Errors are collected, and so is what is done before them.
            parts[0] = Node("sequence", parts=[parts[0], Node(self._chance.choice(("load", "fail")), self._label())])
        elif kind != "sequence":
            # An error would leave the others running: nobody says when they are cut off.
            parts = [Node("try", parts=[each]) for each in parts]
        return Node(kind, parts=parts)

    def _racer(self) -> Node:
        begins = Node(self._chance.choice(("sleep", "child")), self._label(), self._delays.pop())
        rest = [Node("load", self._label()), Node("sleep", "", self._delays.pop()), Node("load", self._label())]
        if self._chance.random() < 0.3:
            return begins
        return Node("sequence", parts=[begins, *rest[: self._chance.randint(0, 3)]])

    def _leaf(self) -> Node:
        kind = self._chance.choice((*QUICK, *SLOW))
        node = Node(kind, self._label(), self._delays.pop() if kind in SLOW else 0)
        return Node("try", parts=[node]) if kind in ("fail", "broken child") else node

    def _label(self) -> str:
        return self._chance.choice(self._labels)


def call(node: Node, world: World) -> Awaitable[Any]:
    """A call, made and not awaited; what is more than one call is a helper."""
    match node.kind:
        case "load":
            return world.load(node.label)
        case "fail":
            return world.fail(node.label)
        case "stumble":
            return world.stumble(node.label)
        case "ask":
            return world.ask(node.label)
        case "child" | "broken child":
            return world.child(node.label, node.delay_ms, node.kind != "child")
        case "sleep":
            return world.sleep(node.delay_ms)
    return helper(node, world) if len(node.parts) % 2 else other_helper(node, world)


async def helper(node: Node, world: World) -> Any:
    """A branch."""
    return await run(node, world)


async def other_helper(node: Node, world: World) -> Any:
    """A branch by another name."""
    return await run(node, world)


def racing(node: Node, world: World, how: str) -> Awaitable[Any]:
    """A call that races: as it is, begun as a task, or gathered."""
    match how:
        case "tasks":
            return asyncio.ensure_future(call(node, world))
        case "gathered":
            return asyncio.gather(helper(node, world), helper(node, world))
    return call(node, world)


async def run(node: Node, world: World) -> Any:
    """Do it; what it gives is plain JSON."""
    match node.kind:
        case "sequence":
            return [await run(each, world) for each in node.parts]
        case "plain":
            await asyncio.sleep(0)
            return None
        case "try":
            try:
                return ["ok", await run(node.parts[0], world)]
            except Exception as error:
                return [type(error).__name__, getattr(error, "code", None) if isinstance(error, Odd) else None]
        case "append":
            values = [node.label]
            return [await world.append(values), values]
        case "first":
            return await world.first(*(racing(each, world, node.label) for each in node.parts))
        case "limit":
            try:
                return await world.limit(racing(node.parts[0], world, node.label), node.delay_ms)
            except TimeoutError:
                return "late"
    return await together(node, world) if node.parts else await call(node, world)


async def together(node: Node, world: World) -> Any:
    """Do several things side by side."""
    match node.kind:
        case "gather":
            return list(await asyncio.gather(*(call(each, world) for each in node.parts)))
        case "collected":
            found = await asyncio.gather(*(call(each, world) for each in node.parts), return_exceptions=True)
            return [type(each).__name__ if isinstance(each, BaseException) else each for each in found]
        case "tasks":
            tasks = [asyncio.ensure_future(call(each, world)) for each in node.parts]
            return [await each for each in reversed(tasks)]
        case "waited":
            tasks = [asyncio.ensure_future(call(each, world)) for each in node.parts]
            await asyncio.wait(tasks)
            return [each.result() for each in tasks]
        case "group":
            async with asyncio.TaskGroup() as group:
                made = [group.create_task(helper(each, world)) for each in node.parts]
            return [each.result() for each in made]
    # A set, as another process has it: in another order each time.
    parts = random.sample(node.parts, len(node.parts))
    found = await asyncio.gather(*(call(each, world) for each in parts))
    return sorted(zip((each.label for each in parts), found, strict=True))
