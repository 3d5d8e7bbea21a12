"""Another program's value under one of our keys: a clear error, and nothing half written."""

from __future__ import annotations

from typing import Any

import pytest

from flowfabric import ClaimPolicy, Handle, Transport
from flowfabric.engine import Engine
from flowfabric.model.events import CompletionEvent, LeaseEvent
from flowfabric.model.records.executions import Attempt, Execution
from flowfabric.stores.keyed import entries
from flowfabric.stores.keyed.entries import claim_family
from flowfabric.stores.valkey.keys import log_field

POLICY = ClaimPolicy("w", "w-1", 30_000)

#: Keys that creation, a claim or an end writes.
KEYS: dict[str, Any] = {
    "records": lambda keys: keys.rows(Execution),
    "attempts": lambda keys: keys.rows(Attempt),
    "payloads": lambda keys: keys.wide(Execution, "payload"),
    "results": lambda keys: keys.wide(Execution, "result"),
    "queue": lambda keys: keys.run(claim_family("lane"), ()),
    "leases": lambda keys: keys.run(entries.LEASE_EXPIRY, None),
    "ended": lambda keys: keys.run(entries.ENDED, "lane"),
    "names": lambda keys: keys.names(entries.ENDED),
    "lease log": lambda keys: keys.log(LeaseEvent),
    "completion log": lambda keys: keys.log(CompletionEvent),
}


async def everything(engine: Engine) -> dict[bytes, bytes]:
    """Every key of the store with its content."""
    ask = engine.store.connection.command
    return {key: await ask("DUMP", key) for key in await ask("KEYS", engine.store.keys.every())}


@pytest.mark.parametrize("what", KEYS)
async def test_nothing_is_half_written(what: str, valkey_url: str) -> None:
    """Whichever step meets the value is refused whole; those before it stand, and once it is gone the step goes on."""
    async with await Engine.open(valkey_url) as engine:
        key = KEYS[what](engine.store.keys)
        handles: list[Handle | None] = []

        async def create() -> None:
            await engine.create_execution(lane_id="lane", input_payload=b"in")

        async def claim() -> None:
            handles.append(await engine.claim("lane", (), POLICY))

        async def complete() -> None:
            assert handles[0] is not None
            await engine.complete(handles[0], b"out")

        refused = 0
        await engine.store.connection.command("SET", key, "another program was here", read_only=False)
        for step in (create, claim, complete):
            before = await everything(engine)
            met = None
            try:
                await step()
            except Transport as error:
                met = str(error)
            if met is not None:
                refused += 1
                assert "another program" in met
                assert await everything(engine) == before
                await engine.store.connection.command("DEL", key, read_only=False)
                await step()
        assert refused == 1, "one of the steps meets it"


@pytest.mark.parametrize("how", ["an event", "an event that is gone", "a number", "no number"])
async def test_a_log_that_somebody_else_has_written_to(how: str, valkey_url: str) -> None:
    """The next number does not fit any more: nothing is written, whatever the commit would have written before it."""
    async with await Engine.open(valkey_url) as engine:
        keys, ask = engine.store.keys, engine.store.connection.command
        log = keys.log(LeaseEvent)
        await engine.create_execution(lane_id="lane")
        if how.startswith("an event"):
            foreign = await ask("XADD", log, "*", "k", "v", read_only=False)
            if how == "an event that is gone":
                await ask("XDEL", log, foreign, read_only=False)
        else:
            await ask("XADD", log, "7-0", "k", "v", read_only=False)
            await ask(
                "HSET", keys.meta, log_field(LeaseEvent, "last"), "5" if how == "a number" else "x", read_only=False
            )
        before = await everything(engine)
        with pytest.raises(Transport, match="another program"):
            await engine.claim("lane", (), POLICY)
        assert await everything(engine) == before
        await ask("DEL", log, read_only=False)
        await ask("HSET", keys.meta, log_field(LeaseEvent, "last"), "5", read_only=False)
        assert await engine.claim("lane", (), POLICY) is not None
