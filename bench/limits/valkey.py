"""Valkey limits: one function call per operation, for one call or for up to 200 of them.

Each function (``valkey.lua``) writes what the store keeps of the same change: records, indexes and events. Nothing is
checked: no fence, no version, no policy.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import uuid
from pathlib import Path
from typing import Any, Self

from msgspec.structs import replace

from bench import stamps
from bench.limits.batcher import MAX_BATCH, Batcher
from bench.shape import LANE, LEASE_MS, NAMESPACE, PAYLOAD, RESULT, now_ms
from bench.stamps import MOMENTS, Stamp, time_bytes
from flowfabric.ascending import ascending_uuid
from flowfabric.model.events import CompletionEvent, LeaseEvent
from flowfabric.model.records.executions import Attempt, Execution
from flowfabric.stores.keyed import entries
from flowfabric.stores.valkey.address import parse
from flowfabric.stores.valkey.codec import VERSION, packed_wide
from flowfabric.stores.valkey.connection import Wire
from flowfabric.stores.valkey.errors import checked
from flowfabric.stores.valkey.keys import Keys, log_field

CONNECTIONS = 2
_BLANK = re.compile(r"@([A-Z_]+)@")

#: Key and text of a UUID.
Key = tuple[bytes, bytes]


def library(keys: Keys, partition: int) -> tuple[str, str]:
    """The functions for one place and one partition, and what their names begin with."""
    blanks = _blanks(keys, partition)
    text = Path(__file__).with_suffix(".lua").read_text(encoding="utf-8")
    text = _BLANK.sub(lambda found: blanks[found[1]], text)
    prefix = f"bench_{hashlib.sha256(text.encode()).hexdigest()[:12]}_"
    return f"#!lua name={prefix}\n" + text.replace("@prefix@", prefix), prefix


def _blanks(keys: Keys, partition: int) -> dict[str, str]:
    """What goes between the at signs, as Lua."""
    new = stamps.new_execution(partition)
    claimed, ended = stamps.claimed_execution(new), stamps.ended_execution(new)
    running, over = stamps.running_attempt(new), stamps.ended_attempt(new)
    names = {
        "META": keys.meta,
        "EXECUTIONS": keys.rows(Execution),
        "ATTEMPTS": keys.rows(Attempt),
        "PAYLOADS": keys.wide(Execution, "payload"),
        "DOCUMENTS": keys.wide(Execution, "raw_fields"),
        "RESULTS": keys.wide(Execution, "result"),
        "QUEUE": keys.run(entries.claim_family(LANE), ()),
        "QUEUE_OF_NAMESPACE": keys.run(entries.claim_family(LANE, NAMESPACE), ()),
        "EXECUTIONS_RUN": keys.run(entries.EXECUTIONS, None),
        "CREATED_RUN": keys.run(entries.CREATED, NAMESPACE),
        "LEASE_RUN": keys.run(entries.LEASE_EXPIRY, None),
        "ENDED_RUN": keys.run(entries.ENDED, LANE),
        "LEASE_LOG": keys.log(LeaseEvent),
        "LEASE_LAST": log_field(LeaseEvent, "last"),
        "COMPLETION_LOG": keys.log(CompletionEvent),
        "COMPLETION_LAST": log_field(CompletionEvent, "last"),
        "DOCUMENT": packed_wide("raw_fields", new.raw_fields),
    }
    values = {
        "EXECUTION_FIELD": stamps.field(new),
        "ATTEMPT_FIELD": stamps.field(running),
        "NEW_EXECUTION": stamps.row(new),
        "CLAIMED_EXECUTION": stamps.row(claimed),
        "ENDED_EXECUTION": stamps.row(ended),
        "RUNNING_ATTEMPT": stamps.row(running),
        "RENEWED_ATTEMPT": stamps.row(replace(running, renewed_at_ms=MOMENTS.renewed)),
        "ENDED_ATTEMPT": stamps.row(over),
        "QUEUE_ENTRY": _entry(keys, new, names["QUEUE"]),
        "EXECUTIONS_ENTRY": _entry(keys, new, names["EXECUTIONS_RUN"]),
        "CREATED_ENTRY": _entry(keys, new, names["CREATED_RUN"]),
        "LEASE_ENTRY": _entry(keys, running, names["LEASE_RUN"]),
        "ENDED_ENTRY": _entry(keys, ended, names["ENDED_RUN"]),
        "ACQUIRED": stamps.event(stamps.lease_event(new, "acquired", MOMENTS.started)),
        "RENEWED": stamps.event(stamps.lease_event(new, "renewed", MOMENTS.renewed)),
        "REVOKED": stamps.event(stamps.lease_event(new, "revoked", MOMENTS.ended, "backend")),
        "COMPLETION": stamps.event(stamps.completion_event(new)),
    }
    queued, execution, attempt = values["QUEUE_ENTRY"], values["CLAIMED_EXECUTION"], values["RUNNING_ATTEMPT"]
    return {
        **{name: Stamp(value).in_lua() for name, value in names.items()},
        **{name: stamp.in_lua() for name, stamp in values.items()},
        "KEY_OF_ENTRY": queued.cut_in_lua("key", "member"),
        "UUID_OF_ENTRY": queued.cut_in_lua("uuid", "member"),
        "CREATED_OF_ENTRY": queued.cut_in_lua("created", "member"),
        "CREATED_OF_EXECUTION": execution.cut_in_lua("created", "execution"),
        "STARTED_OF_EXECUTION": execution.cut_in_lua("started", "execution"),
        "STARTED_OF_ATTEMPT": attempt.cut_in_lua("started", "attempt"),
        "EXPIRES_OF_ATTEMPT": attempt.cut_in_lua("expires", "attempt"),
        "ATTEMPT_ID_OF_ATTEMPT": attempt.cut_in_lua("attempt_id", "attempt"),
        "LEASE_ID_OF_ATTEMPT": attempt.cut_in_lua("lease_id", "attempt"),
    }


def _entry(keys: Keys, record: Execution | Attempt, key: bytes) -> Stamp:
    (found,) = (each.second for each in stamps.kept(keys, record) if each.key == key)
    return found


async def connect(url: str) -> Wire:
    """A bare connection to the server."""
    return await Wire().connect(parse(url))


class Statements:
    """The four operations on one connection."""

    def __init__(self, wire: Wire, meta: bytes, functions: str) -> None:
        self.wire = wire
        self._meta, self._functions = meta, functions
        self._process, self._calls = secrets.token_bytes(VERSION - 4), 0

    @classmethod
    async def open(cls, url: str, partition: int) -> Self:
        """Connect, and bring the functions if they are not there."""
        keys = Keys(parse(url).prefix)
        wire = await connect(url)
        text, functions = library(keys, partition)
        checked(await wire.ask(("FUNCTION", "LOAD", "REPLACE", text)))
        return cls(wire, keys.meta, functions)

    async def _call(self, name: str, *arguments: bytes | int) -> Any:
        (answer,) = checked(await self.wire.ask(("FCALL", self._functions + name, 1, self._meta, *arguments)))
        return answer

    def version(self) -> bytes:
        """One that no other call has had."""
        self._calls += 1
        return self._process + self._calls.to_bytes(4, "big")

    async def create(self, payloads: list[bytes]) -> list[None]:
        """Store executions."""
        arguments = [time_bytes(now_ms()), self.version()]
        for payload in payloads:
            identity = uuid.UUID(ascending_uuid())
            arguments += (identity.bytes, str(identity).encode(), payload)
        await self._call("create", *arguments)
        return [None] * len(payloads)

    async def claim(self, wanted: list[None]) -> list[Key | None]:
        """Take as many executions as are wanted, or all there are."""
        now = now_ms()
        ids = [ascending_uuid().encode() for _ in range(2 * len(wanted))]
        rows = await self._call("claim", time_bytes(now), time_bytes(now + LEASE_MS), self.version(), *ids)
        found: list[Key | None] = list(zip(rows[::2], rows[1::2], strict=True))
        return found + [None] * (len(wanted) - len(found))

    async def complete(self, keys: list[Key]) -> list[None]:
        """End executions."""
        ids = [part for key in keys for part in key]
        await self._call("complete", time_bytes(now_ms()), self.version(), RESULT, *ids)
        return [None] * len(keys)

    async def renew(self, keys: list[Key]) -> list[None]:
        """Prolong leases."""
        now = now_ms()
        ids = [part for key in keys for part in key]
        await self._call("renew", time_bytes(now), time_bytes(now + LEASE_MS), self.version(), *ids)
        return [None] * len(keys)

    async def finish_waiting(self) -> None:
        """Claim and complete everything that waits and needs no capability."""
        while keys := [key for key in await self.claim([None] * MAX_BATCH) if key is not None]:
            await self.complete(keys)

    async def close(self) -> None:
        """Close the connection."""
        self.wire.abort()
        await self.wire.closed


class OneByOne:
    """One function call per operation, nothing shared: the yardstick of a lone caller."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements

    @classmethod
    async def open(cls, url: str, partition: int) -> Self:
        """Connect."""
        return cls(await Statements.open(url, partition))

    async def create(self) -> None:
        """One new execution."""
        await self._statements.create([PAYLOAD])

    async def claim(self) -> Key | None:
        """The next execution."""
        return (await self._statements.claim([None]))[0]

    async def complete(self, claimed: Key) -> None:
        """End it."""
        await self._statements.complete([claimed])

    async def close(self) -> None:
        """Disconnect."""
        await self._statements.close()


class Coalesced:
    """Callers share function calls: up to 200 calls each, two connections."""

    def __init__(self, connections: list[Statements]) -> None:
        self._connections = connections
        self._batcher = Batcher(self._flush, len(connections))
        self._batcher.start()

    @classmethod
    async def open(cls, url: str, partition: int) -> Self:
        """Connect twice."""
        return cls([await Statements.open(url, partition) for _ in range(CONNECTIONS)])

    async def _flush(self, runner: int, kind: str, arguments: list[Any]) -> list[Any]:
        answers: list[Any] = await getattr(self._connections[runner], kind)(arguments)
        return answers

    async def create(self) -> None:
        """One new execution."""
        await self._batcher.call("create", PAYLOAD)

    async def claim(self) -> Key | None:
        """The next execution."""
        claimed: Key | None = await self._batcher.call("claim", None)
        return claimed

    async def complete(self, claimed: Key) -> None:
        """End it."""
        await self._batcher.call("complete", claimed)

    async def renew(self, claimed: Key) -> None:
        """Prolong its lease."""
        await self._batcher.call("renew", claimed)

    async def close(self) -> None:
        """Disconnect."""
        await self._batcher.close()
        await asyncio.gather(*(connection.close() for connection in self._connections))


class Batches(Coalesced):
    """No callers at all: 200 lifecycles at a time on each connection."""

    async def lifecycles(self, runner: int) -> int:
        """Run one batch from creation to completion."""
        statements = self._connections[runner]
        await statements.create([PAYLOAD] * MAX_BATCH)
        keys = [key for key in await statements.claim([None] * MAX_BATCH) if key is not None]
        await statements.complete(keys)
        return len(keys)
