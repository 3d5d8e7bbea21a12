"""A worker process whose workflows leave traces, and which dies where it is told to.

    python -m tests.chaos.journey <url> <file of effects> <fate>

Every step and task makes a token of its own, writes it to the file of effects together with the tokens it was given,
and returns it. What is remembered can so be held against what was done, by whom and upon what.

A fate is ``live``, or a moment and a number: ``in:3`` dies inside the third thing it does, ``before:2`` when everything
of its second write is written but not committed, ``after:2`` when it is committed and nobody has heard of it; a moment
may name the kind of write: ``before/park:1`` (``step``, ``park``, ``end``). ``hold:close`` says so when it is inside
the step ``close``, and does not leave it before there is a file that says ``go_on``.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from flowfabric import App, Ask, Ctx, gather, sleep
from flowfabric.model.decisions import Writes
from flowfabric.model.events import CompletionEvent
from flowfabric.model.operations.workflows import Step
from flowfabric.model.records.executions import Suspension
from flowfabric.sdk.definitions.depends import injected
from flowfabric.stores.sqlite.commit import apply
from tests.chaos.processes import say

LEASE = timedelta(milliseconds=700)
#: For tests that count how often something is done: a busy machine must not let a lease run out by itself.
STEADY_LEASE = timedelta(seconds=2.5)
NAP = timedelta(milliseconds=30)
QUESTION = "Go on?"
#: How long something takes at most, so that others end, or die, meanwhile.
LONGEST_S = 0.02


class Stumbled(Exception):
    """What the step ``stumble`` always raises."""


class Effects:
    """What was done, as lines of JSON that other processes append to as well."""

    def __init__(self, path: str, fate: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        moment, _, rest = fate.partition(":")
        self._dies_in = int(rest) if moment == "in" else 0
        self._holds_in = rest if moment == "hold" else ""
        self._told = False
        self._go_on = Path(f"{path}.go_on")

    def add(self, ctx: Ctx, number: int, name: str, saw: list[str]) -> str:
        """Do something: its token."""
        token = uuid.uuid4().hex
        line = {"key": ctx.idempotency_key, "number": number, "name": name, "token": token, "saw": saw}
        os.write(self._file, json.dumps({**line, "pid": os.getpid()}).encode() + b"\n")
        self._dies_in -= 1
        if self._dies_in == 0:
            die()
        return token

    def holds(self, name: str) -> bool:
        """Whether this is where the process is to be stopped. It is told so, and waits until it has been."""
        if name != self._holds_in:
            return False
        if not self._told:
            self._told = True
            say(name)
        return not self._go_on.exists()


def die() -> None:
    """As a crash would have it."""
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def build(url: str, effects: Effects) -> App:
    """The app whose runs are watched."""
    # Whoever kills at random must not be taken for work that kills its workers.
    app = App(url, lost_workers=1_000)

    async def act(ctx: Ctx, number: int, name: str, saw: list[str]) -> str:
        token = effects.add(ctx, number, name, saw)
        await asyncio.sleep(random.uniform(0, LONGEST_S))
        while effects.holds(name):  # noqa: ASYNC110 (another process ends it)
            await asyncio.sleep(0.01)
        return token

    def block(ctx: Ctx, number: int, name: str, saw: list[str]) -> str:
        token = effects.add(ctx, number, name, saw)
        time.sleep(random.uniform(0, LONGEST_S))
        while effects.holds(name):
            time.sleep(0.01)
        return token

    @app.step(name="open")
    def begin(number: int, ctx: Ctx = injected) -> str:
        return block(ctx, number, "open", [])

    @app.step
    async def carry(number: int, name: str, saw: list[str], ctx: Ctx = injected) -> str:
        return await act(ctx, number, name, saw)

    @app.task
    async def errand(number: int, saw: list[str], ctx: Ctx = injected) -> str:
        return await act(ctx, number, "errand", saw)

    @app.task
    def haul(number: int, saw: list[str], ctx: Ctx = injected) -> str:
        return block(ctx, number, "haul", saw)

    @app.step
    async def stumble(number: int, saw: list[str], ctx: Ctx = injected) -> None:
        raise Stumbled(await act(ctx, number, "stumble", saw))

    @app.step(name="close")
    def finish(number: int, saw: list[str], ctx: Ctx = injected) -> str:
        return block(ctx, number, "close", saw)

    @app.workflow
    async def journey(number: int) -> dict[str, str]:
        found = {"open": await begin(number)}
        found["carry"] = await carry(number, "carry", list(found.values()))
        saw = list(found.values())
        names = ["carry[left]", "carry[right]", "errand", "haul"]
        tokens = await gather(
            carry.using(key="left")(number, "carry[left]", saw),
            carry.using(key="right")(number, "carry[right]", saw),
            errand(number, saw),
            haul(number, saw),
        )
        found.update(zip(names, tokens, strict=True))
        await sleep(NAP)
        try:
            await stumble(number, list(found.values()))
        except Stumbled as error:
            found["stumble"] = error.args[0]
        found["ask"] = await Ask(QUESTION, str, show=number)
        found["close"] = await finish(number, list(found.values()))
        return found

    return app


# --------------------------------------------------------------------------------------------------------- crash points


def kinds(writes: Writes) -> set[str]:
    """What a commit is about."""
    found = {"step"} if Step in writes.puts else set()
    if any(row is not None and row.closed_at_ms is None for row in writes.records.get(Suspension, {}).values()):
        found.add("park")
    if any(isinstance(event, CompletionEvent) for event in writes.events):
        found.add("end")
    return found


def doomed(fate: str) -> Callable[[Writes], bool]:
    """Whether a commit is the one that the process dies of."""
    moment, _, number = fate.partition(":")
    _, _, kind = moment.partition("/")
    left = int(number)

    def counted(writes: Writes) -> bool:
        nonlocal left
        found = kinds(writes)
        if (kind in found) if kind else found:
            left -= 1
            # One that loses a race is not its last.
            return left <= 0
        return False

    return counted


def arm(url: str, fate: str) -> None:
    """Let the process die of one of its commits: when all rows are written, or when nobody has heard of it yet."""
    meets = doomed(fate)
    if url.startswith("sqlite"):
        from flowfabric.stores.sqlite.store import _SqliteTransaction as transaction
    elif url.startswith("valkey"):
        from flowfabric.stores.valkey.store import _ValkeyTransaction as transaction  # type: ignore[assignment]
    else:
        from flowfabric.stores.postgres.store import _PostgresTransaction as transaction  # type: ignore[assignment]
    commit: Any = transaction.commit

    async def dying(self: Any, writes: Writes, held: Any) -> Any:
        fatal = meets(writes)
        if fatal and fate.startswith("before"):
            if url.startswith("sqlite"):
                apply(self._connection, writes)
                die()
            if url.startswith("valkey"):
                die()  # a commit is one message
            # Even a batch that needs no transaction of its own gets one, to die between its writes and its commit.
            await self._begin()
            self.finish = die
        answer = await commit(self, writes, held)
        if fatal:
            die()
        return answer

    transaction.commit = dying  # type: ignore[method-assign]


async def main(url: str, path: str, fate: str, lease_s: str) -> None:
    """Work until the end comes."""
    if fate.startswith(("before", "after")):
        arm(url, fate)
    app = build(url, Effects(path, fate))
    async with app.worker(lease_ttl=timedelta(seconds=float(lease_s)), concurrency=6):
        say("ready")
        await asyncio.Event().wait()


if __name__ == "__main__":
    # Under its own name, so that what it raises is known by the same name in every process.
    from tests.chaos import journey

    asyncio.run(journey.main(*sys.argv[1:]))
