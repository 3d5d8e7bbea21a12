"""A process that works at random on a store until it is killed, and remembers every answer it was given.

    python -m tests.chaos.writer <url> <journal> <seed>

Several hands create, claim, complete, fail, cancel and append through one engine. What the engine answered is written
to the journal, and to the disk, before the hand goes on: whatever is in the journal must be in the store for ever.

With ``CHAOS_CRASH=before:claim`` (or ``after:…``; ``create``, ``claim``, ``complete``) it does that one thing instead
and dies at that very point: when everything is written but not committed, or committed but not answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from flowfabric import (
    ClaimPolicy,
    Contention,
    ContentionKind,
    Created,
    EngineError,
    ExecutionId,
    FailureClass,
    Frame,
    Handle,
    TerminalFailed,
    Transport,
)
from flowfabric.engine import Engine
from flowfabric.model.handles import HandlePayload, decode
from tests.chaos.processes import say
from tests.chaos.stored import payload_of, result_of

LANE = "chaos"
HANDS = 6
#: Answers after which a writer says that it is at work: connections are open and statements prepared by then.
WARM = 25
#: Leases are short: those of a killed writer must run out before the next one can go on.
LEASE_TTL_MS = 400
KEYS = 40
CRASH = "CHAOS_CRASH"
CRASH_CODE = 9


class Journal:
    """Answers as lines of JSON, on disk before anybody relies on them."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._lines = 0

    async def note(self, what: str, **facts: Any) -> None:
        """Remember an answer."""
        line = json.dumps({"what": what, **facts}) + "\n"
        await asyncio.to_thread(self._append, line.encode())
        self._lines += 1
        if self._lines == WARM:
            say("ready")

    def _append(self, line: bytes) -> None:
        os.write(self._file, line)
        os.fsync(self._file)


class Hand:
    """One of several that work at the same time."""

    def __init__(self, engine: Engine, journal: Journal, name: str, chance: random.Random) -> None:
        self._engine = engine
        self._journal = journal
        self._chance = chance
        self._policy = ClaimPolicy("writer", name, LEASE_TTL_MS)
        self._held: list[tuple[Handle, HandlePayload]] = []
        self._frames = 0
        self._known: list[str] = []

    async def work(self) -> None:
        """Do one thing after the other, for ever."""
        acts: dict[Callable[[], Awaitable[None]], int] = {
            self._create: 5,
            self._create_with_key: 2,
            self._claim: 5,
            self._append: 4,
            self._renew: 1,
            self._complete: 4,
            self._fail: 2,
            self._cancel_held: 1,
            self._cancel_known: 1,
            self._run_due: 1,
        }
        while True:
            (act,) = self._chance.choices(list(acts), list(acts.values()))
            try:
                await act()
            except EngineError as error:
                await self._journal.note(
                    "refused", act=act.__name__, family=type(error).__name__, code=error.code, text=str(error)
                )
                if isinstance(error, Transport) or error.kind is ContentionKind.RETRY_EXHAUSTED:
                    await asyncio.sleep(0.01)

    # -- creating ------------------------------------------------------------------------------------------------

    async def _create(self) -> None:
        identity = ExecutionId.solo(LANE, self._engine.partitions)
        # With its id chosen here, a create may be repeated until it is answered.
        answer = await self._repeating(lambda: create(self._engine, identity))
        assert answer.execution_id == identity
        self._known.append(identity)
        await self._journal.note("created", id=identity)

    async def _create_with_key(self) -> None:
        key = f"key-{self._chance.randrange(KEYS)}"
        identity = ExecutionId.solo(LANE, self._engine.partitions)
        answer = await create(self._engine, identity, idempotency_key=key)
        await self._journal.note(
            "created" if isinstance(answer, Created) else "duplicate", id=answer.execution_id, key=key
        )

    # -- holding -------------------------------------------------------------------------------------------------

    async def _claim(self) -> None:
        if len(self._held) >= 4:
            return
        for handle in await self._engine.claim_many(LANE, (), self._policy, self._chance.randint(1, 3)):
            payload = decode(handle.opaque)[1]
            self._held.append((handle, payload))
            await self._journal.note("claimed", **lease(payload))

    async def _append(self) -> None:
        if not self._held:
            return
        handle, payload = self._chance.choice(self._held)
        self._frames += 1
        text = f"{payload.execution_id}/{payload.lease_epoch}/{self._frames}"
        outcome = await self._engine.append_frame(handle, Frame(text.encode()))
        await self._journal.note("appended", frame=outcome.stream_id, text=text, **lease(payload))

    async def _renew(self) -> None:
        if self._held:
            handle, payload = self._chance.choice(self._held)
            await self._engine.renew(handle)
            await self._journal.note("renewed", **lease(payload))

    # -- ending --------------------------------------------------------------------------------------------------

    async def _complete(self) -> None:
        if taken := self._let_go():
            handle, payload = taken
            result = result_of(payload.execution_id, payload.lease_epoch)
            await self._repeating(lambda: self._engine.complete(handle, result))
            await self._journal.note("completed", **lease(payload))

    async def _fail(self) -> None:
        if taken := self._let_go():
            handle, payload = taken
            kind = self._chance.choice((FailureClass.TRANSIENT, FailureClass.PERMANENT))
            outcome = await self._repeating(lambda: self._engine.fail(handle, "by chance", kind))
            what = "failed" if isinstance(outcome, TerminalFailed) else "retried"
            await self._journal.note(what, **lease(payload))

    async def _cancel_held(self) -> None:
        if taken := self._let_go():
            handle, payload = taken
            await self._repeating(lambda: self._engine.cancel(handle, "by its holder"))
            await self._journal.note("cancelled", id=payload.execution_id)

    async def _cancel_known(self) -> None:
        if self._known:
            identity = self._known.pop(self._chance.randrange(len(self._known)))
            await self._repeating(lambda: self._engine.cancel_execution(execution_id=identity, reason="by chance"))
            await self._journal.note("cancelled", id=identity)

    def _let_go(self) -> tuple[Handle, HandlePayload] | None:
        return self._held.pop(self._chance.randrange(len(self._held))) if self._held else None

    async def _run_due(self) -> None:
        await self._engine.run_due()

    async def _repeating(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Repeat a call whose answer was lost with the connection: it gets the first answer again."""
        while True:
            try:
                return await call()
            except (Transport, Contention) as error:
                if isinstance(error, Contention) and error.kind is not ContentionKind.RETRY_EXHAUSTED:
                    raise
                await self._journal.note("lost", family=type(error).__name__, code=error.code, text=str(error))
                await asyncio.sleep(0.01)


async def create(engine: Engine, identity: str, **more: Any) -> Any:
    """One execution as all of them are made here."""
    return await engine.create_execution(
        execution_id=identity, lane_id=LANE, input_payload=payload_of(identity), **more
    )


def lease(payload: HandlePayload) -> dict[str, Any]:
    """Which lease an answer was about."""
    return {"id": payload.execution_id, "index": payload.attempt_index, "epoch": payload.lease_epoch}


# --------------------------------------------------------------------------------------------------------- crash points


async def crash_at(engine: Engine, journal: Journal, point: str, act: str) -> None:
    """Prepare one act, then die while it commits."""
    identity = ExecutionId.solo(LANE, engine.partitions)
    policy = ClaimPolicy("writer", "the one that dies", LEASE_TTL_MS if act == "claim" else 60_000)
    if act == "create":
        await journal.note("creating", id=identity)
        arm(engine, point)
        await create(engine, identity, idempotency_key="only one")
        return
    await create(engine, identity)
    await journal.note("created", id=identity)
    if act == "claim":
        arm(engine, point)
    handle = await engine.claim(LANE, (), policy)
    assert handle is not None
    payload = decode(handle.opaque)[1]
    await journal.note("claimed", kind=handle.kind, opaque=handle.opaque.hex(), **lease(payload))
    arm(engine, point)
    await engine.complete(handle, result_of(payload.execution_id, payload.lease_epoch))


def arm(engine: Engine, point: str) -> None:
    """From now on the process dies at its next commit: before it, all rows being written, or after it."""
    if engine.backend_label == "sqlite":
        from flowfabric.stores.sqlite import store as module

        transaction, rows = module._SqliteTransaction, module.apply
        if point == "before":
            module.apply = lambda *arguments: dying(rows(*arguments))
    elif engine.backend_label == "valkey":
        from flowfabric.stores.valkey.store import ValkeyStore, _ValkeyTransaction as transaction

        if point == "before":
            # What is not sent whole is not carried out: the last moment is when all of it is written down.
            ValkeyStore._commit = lambda store, message: dying(message)
    else:
        from flowfabric.stores.postgres.store import _PostgresTransaction as transaction

        if point == "before":
            die_before_commit(transaction)
    if point == "after":
        die_after_commit(transaction)


def dying(_: Any) -> None:
    """What follows never happens."""
    os._exit(CRASH_CODE)


def die_before_commit(transaction: Any) -> None:
    """Even a batch that needs no transaction of its own gets one, to die between its writes and its commit."""
    commit = transaction.commit

    async def begun(self: Any, *arguments: Any) -> Any:
        await self._begin()
        return await commit(self, *arguments)

    async def finish(self: Any) -> None:
        dying(self)

    transaction.commit, transaction.finish = begun, finish


def die_after_commit(transaction: Any) -> None:
    """The commit is whole, and nobody will ever know."""
    commit = transaction.commit

    async def committed(self: Any, *arguments: Any) -> None:
        dying(await commit(self, *arguments))

    transaction.commit = committed


# ----------------------------------------------------------------------------------------------------------------- main


async def main(url: str, path: str, seed: str) -> None:
    """Work until the end comes."""
    journal = Journal(path)
    async with await Engine.open(url, single_node=True) as engine:
        if crash := os.environ.get(CRASH):
            await crash_at(engine, journal, *crash.split(":"))
            return
        hands = [
            Hand(engine, journal, f"{seed}-{number}", random.Random(f"{seed}/{number}")) for number in range(HANDS)
        ]
        async with asyncio.TaskGroup() as group:
            for hand in hands:
                group.create_task(hand.work())


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(*sys.argv[1:]))
