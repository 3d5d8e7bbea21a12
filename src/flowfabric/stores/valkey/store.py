"""The Valkey store: records in hashes, indexes in sorted sets, events in streams, each commit one function call."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from importlib.resources import files
from types import TracebackType
from typing import Any

from flowfabric.model.decisions import Key, Need, Writes
from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.handles import BackendTag
from flowfabric.model.partitions import PartitionCounts
from flowfabric.model.records.executions import Execution
from flowfabric.stores import migrate as migrations
from flowfabric.stores.beside import worked
from flowfabric.stores.event_questions import ReadEvents
from flowfabric.stores.feeds import SingleWriterFeed
from flowfabric.stores.keyed.changes import planned, trimmed
from flowfabric.stores.keyed.load import readings
from flowfabric.stores.keyed.questions import answer
from flowfabric.stores.protocol import Conflict, Filling, Versions
from flowfabric.stores.questions import TrimAdmission, TrimHistory
from flowfabric.stores.server_clock import ServerClock
from flowfabric.stores.valkey.address import Address, parse
from flowfabric.stores.valkey.candidates import Reserved
from flowfabric.stores.valkey.codec import VERSION
from flowfabric.stores.valkey.commit import Message
from flowfabric.stores.valkey.connection import Connection, Identity
from flowfabric.stores.valkey.durability import Durability, call_replicated, examine
from flowfabric.stores.valkey.keys import Keys
from flowfabric.stores.valkey.layout import LAYOUT, check_layout, stored_facts
from flowfabric.stores.valkey.looking import Looker
from flowfabric.stores.valkey.losses import Histories
from flowfabric.stores.valkey.notify import Wakeups
from flowfabric.stores.valkey.read import Reader, Seen
from flowfabric.stores.valkey.sort_keys import wire_id_of

_COUNTS = ("flow_partitions", "budget_partitions", "quota_partitions")
_LIBRARY = ("functions.lua", "histories.lua")
#: Bytes of a version that count the commits of one process; the others are chance.
_COUNTER = 4
_MOST_COMMITS = 2 ** (8 * _COUNTER)
#: Names of runs that are known to be in their lists; of others that is said again, which changes nothing.
_MOST_REGISTERED = 50_000


def _functions() -> tuple[str, str]:
    """The library of functions, and what its functions' names begin with: both follow from the text, so that those of
    several releases live side by side."""
    text = "\n".join(files(__package__).joinpath(name).read_text(encoding="utf-8") for name in _LIBRARY)
    prefix = f"flowfabric_{hashlib.sha256(text.encode()).hexdigest()[:12]}_"
    return f"#!lua name={prefix.rstrip('_')}\n" + text.replace("@PREFIX@", prefix), prefix


class ValkeyStore:
    """See the module's text. Open with ``ValkeyStore.open``."""

    tag = BackendTag.VALKEY
    shown = "valkey"
    label = "valkey"
    holds = True
    sends_hints = True
    parallel = 2
    event_poll_s = 5.0
    numbers_without_breaks = True
    pauses = True

    def __init__(self, address: Address, connection: Connection, clock: Callable[[], int] | None) -> None:
        self.address = address
        self.connection = connection
        self.keys = Keys(address.prefix)
        self.counts = PartitionCounts()
        self.durability: Durability | None = None
        #: The server that is known to keep what was asked for.
        self._examined: Identity | None = None
        self._examining = asyncio.Lock()
        self._clock = clock
        self._server_clock = ServerClock()
        self._id = b""
        self._histories = Histories(connection, self.keys)
        self._process = secrets.token_bytes(VERSION - _COUNTER)
        self._commits = 0
        self._registered: set[tuple[Any, Any]] = set()
        self._reserved = Reserved()
        self._wakeups = Wakeups(address)
        #: Called with no argument when held records can no longer be trusted.
        self.forget: Callable[[], None] = lambda: None
        self._closed = False

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        clock: Callable[[], int] | None = None,
        partitions: PartitionCounts | None = None,
        new_partitions: PartitionCounts | None = None,
        migrate: bool | str | None = None,
    ) -> ValkeyStore:
        """Connect, check what the server promises and prepare for work."""
        address = parse(url)
        schema = migrations.wanted(migrate)
        library, prefix = _functions()
        connection = await Connection.open(address, library, functions_prefix=prefix)
        store = cls(address, connection, clock)
        try:
            connection.on_change = store._on_change
            await store._examine()
            await store._prepare(schema, partitions, new_partitions)
        except BaseException:
            await store.close()
            raise
        return store

    async def _prepare(self, schema: str, partitions: PartitionCounts | None, if_new: PartitionCounts | None) -> None:
        wake = self._wakeups.message(())
        await self.connection.call("rehearse", self.keys.rehearsal, list(wake), read_only=False)
        facts = await self._facts()
        if not facts:
            if schema != migrations.APPLY:
                raise Validation(
                    ValidationKind.INVALID_INPUT,
                    f"{self.address.shown} holds no FlowFabric data yet; run `flowfabric db migrate` first",
                )
            wanted = partitions or if_new or PartitionCounts()
            facts = {
                **dict(zip(_COUNTS, map(str, (wanted.flow, wanted.budget, wanted.quota)), strict=True)),
                "layout": str(LAYOUT),
                "id": secrets.token_hex(16),
                "history": self._histories.current,
            }
            # Another process may be doing the same: the first to write has decided everything.
            commands = (("HSETNX", self.keys.meta, name, value) for name, value in facts.items())
            await self.connection.commands(("MULTI",), *commands, ("EXEC",), read_only=False)
            facts = await self._facts()
        check_layout(facts, self.address)
        self._id = facts["id"].encode()
        self.counts = PartitionCounts(*(int(facts[name]) for name in _COUNTS))
        migrations.check_counts(self.counts, partitions)
        self._histories.learn(facts)
        await self._histories.settle(self._id)

    async def _examine(self) -> None:
        """Refuse a server that keeps less than was asked for, whenever another one answers."""
        if self._examined == self.connection.identity:
            return
        async with self._examining:
            identity = self.connection.identity
            if self._examined != identity:
                self.durability = await examine(self.connection)
                self.durability.check()
                self._examined = identity

    async def _facts(self) -> dict[str, str]:
        return stored_facts(await self.connection.command("HGETALL", self.keys.meta))

    def _on_change(self) -> None:
        """Another server answers, or the same one after a restart: what we remember may not be what it has."""
        self._registered.clear()
        self.forget()

    # -- time ----------------------------------------------------------------------------------------------------

    async def server_time_ms(self, written_ms: int = 0) -> int:
        """The server's time."""
        if self._clock is not None:
            return self._clock()
        if not self._server_clock.good:
            self._heard(await self.connection.command("TIME"))
        return self._server_clock.now(written_ms)

    def _heard(self, time: list[bytes]) -> None:
        self._server_clock.heard(int(time[0]) * 1000 + int(time[1]) / 1000)

    # -- batches -------------------------------------------------------------------------------------------------

    async def run(self, make: Callable[[], Awaitable[Any]], *, alone: bool = False) -> Any:
        """On the loop."""
        return await make()

    def transaction(self, *, trusting: bool = False) -> _ValkeyTransaction:
        """Reads without locks; the commit checks everything it was decided upon."""
        return _ValkeyTransaction(self)

    def _reader(self, reserved: Reserved | None = None) -> Reader:
        return Reader(self.connection, self.keys, self._id, reserved)

    def _message(self) -> Message:
        """An empty message under a version that nobody has ever used, nor will: not even a server that has lost what
        was written since can give it to other content."""
        self._commits += 1
        if self._commits == _MOST_COMMITS:
            self._process, self._commits = secrets.token_bytes(VERSION - _COUNTER), 1
        return Message(self.keys, self._process + self._commits.to_bytes(_COUNTER, "big"), self._registered)

    async def _commit(self, message: Message) -> None:
        await self._examine()
        under = await self._histories.settle(self._id)
        name = self._histories.name
        arguments = await worked(message.size, lambda: message.arguments(self._id, name))
        if self.address.durability == "replicated" and not message.checks_only:
            found = await call_replicated(self.connection, "commit", [self.keys.meta], arguments, under=under)
        else:
            found = await self.connection.call("commit", [self.keys.meta], arguments, read_only=False, under=under)
        if found[0] == b"moved":
            of_execution = found[1].startswith(self.keys.rows(Execution) + b":") and found[2]
            raise _Moved(found[1].decode("utf-8", "replace"), wire_id_of(found[2]) if of_execution else None)
        if found[0] == b"elsewhere":
            self._histories.doubt()
            raise Conflict("the data belongs to another server")
        if len(self._registered) > _MOST_REGISTERED:
            self._registered.clear()
        self._registered |= message.registering
        self._heard(found[1])
        self._histories.committed(message.logs, found[2])

    # -- reading -------------------------------------------------------------------------------------------------

    async def read(self, needs: Iterable[Need], view: Filling) -> None:
        """Committed records."""
        await self._reader().carry_out(readings(needs, view, await self.server_time_ms()))

    async def query(self, question: Any) -> Any:
        """Lists and pages."""
        if isinstance(question, TrimHistory | TrimAdmission):
            return await self._trim(question)
        if not self._histories.is_settled:
            with contextlib.suppress(Conflict):
                await self._histories.settle(self._id)  # if not now, then before anything is written
        [found] = await Looker(self.connection, self.keys, self._id, question).carry_out([answer(question)])
        if type(question) is ReadEvents and found.rows:
            self._histories.saw(question.kind, found.rows[-1][0])
        return found

    async def losses(self) -> list[str]:
        """What servers have lost that took over, as far as processes have noticed."""
        return await self._histories.losses()

    async def _trim(self, question: TrimHistory | TrimAdmission) -> int:
        reader = self._reader()
        [gone] = await reader.carry_out([trimmed(question)])
        if gone.count:
            message = self._message()
            message.trim(gone, reader)
            try:
                await self._commit(message)
            except Conflict:
                return 0  # somebody else deletes them at this moment; what is left is found the next time
        return int(gone.count)

    def feed(self, kind: Any, namespace: str | None, instance_tag: str | None) -> SingleWriterFeed:
        """Events are numbered as they are committed."""
        return SingleWriterFeed(self.query, kind, namespace, instance_tag)

    # -- other processes -----------------------------------------------------------------------------------------

    def publish(self, topics: Iterable[str], *, urgent: bool = True) -> None:
        """Tell other processes, soon and together."""
        self._wakeups.publish(topics, urgent)

    async def heard(self) -> AsyncIterator[str | None]:
        """What other processes told."""
        async for topic in self._wakeups.heard():
            yield topic

    # -- the rest ------------------------------------------------------------------------------------------------

    async def prepare(self) -> tuple[int, ...]:
        """Nothing: opening has brought the functions."""
        return ()

    async def server_version(self) -> str:
        """The version of the server."""
        return self.connection.server_version

    async def ping(self) -> None:
        """Fail if the server does not answer, or has not the data of the store any more."""
        await self._reader().ask_nothing()

    async def close(self) -> None:
        """Let go of every connection."""
        if self._closed:
            return
        self._closed = True
        await self._wakeups.close()
        await self.connection.close()


class _Moved(Conflict):
    """Something has changed, perhaps this execution."""

    def __init__(self, reason: str, execution_id: str | None) -> None:
        super().__init__(reason)
        self.execution_id = execution_id


class _ValkeyTransaction:
    """Reads as it goes, and checks at the end."""

    def __init__(self, store: ValkeyStore) -> None:
        self._store = store
        self._reader = store._reader(store._reserved)

    async def __aenter__(self) -> _ValkeyTransaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A batch may lose a race about something else than what it was going to claim.
        reserved, moved = self._store._reserved, error.execution_id if isinstance(error, _Moved) else None
        reserved.release(self._reader, lost_race=moved is not None and reserved.is_of(moved, self._reader))

    async def now(self, written_ms: int = 0) -> int:
        return await self._store.server_time_ms(written_ms)

    async def load(self, needs: Iterable[Need], view: Filling) -> None:
        needs, store, is_first = list(needs), self._store, not self._reader.calls
        while True:
            await self._reader.carry_out(readings(needs, view, await self.now()))
            if not self._reader.too_early:
                return
            store._reserved.release(self._reader, lost_race=False)
            if not is_first:
                raise Conflict("another claim of this process takes something more urgent")
            await store._reserved.changed()
            self._reader = store._reader(store._reserved)

    def version(self, kind: Any, key: Key) -> bytes | None:
        seen = self._reader.seen.get((kind, key))
        return None if seen is None or seen.record is None else seen.version

    async def commit(self, writes: Writes, held: Versions) -> bytes | None:
        store, reader = self._store, self._reader
        if writes.empty and not writes.checks and reader.calls <= 1:
            return None  # what one call has brought was so at one moment
        message = store._message()
        store._reserved.decide(writes.puts.get(Execution, ()), reader)
        self._take_held(writes, held)
        written: set[tuple[Any, Key]] = set()
        if not writes.empty:
            [changes] = await reader.carry_out([planned(writes, copied=False)])
            written = await worked(writes.size, lambda: message.add(changes, reader))
        message.check_read(reader, written)
        if writes.hints:
            message.tell(*store._wakeups.message(writes.hints))
        await store._commit(message)
        return message.version

    def _take_held(self, writes: Writes, held: Versions) -> None:
        """Take over what was decided upon without being read, before anybody else can change what is held."""
        seen = self._reader.seen
        written = [
            (kind, key) for kind, puts in writes.puts.items() for key, fields in puts.items() if fields is not None
        ]
        dropped = [(kind, key) for kind, records in writes.drops.items() for key in records]
        for place, (kind, key) in enumerate((*written, *dropped, *writes.checks)):
            if (kind, key) in seen:
                continue
            version = held.version(kind, key)
            if version is not None:
                seen[(kind, key)] = Seen(held.record(kind, key), version)
                if place >= len(written):
                    self._reader.strict.add((kind, key))
            elif place < len(written) or held.record(kind, key) is not None:
                raise Conflict(f"{kind.__name__} {key}: no version to check")
