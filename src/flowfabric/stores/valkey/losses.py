"""Fail-overs: what a server that takes over or comes back may have lost, and how that is noticed.

Commits that were acknowledged may be missing then, and with them the numbers of their events. If those were given out
again, followers would take the new events for the ones they have read. So each server has a history of its own: before
the first commit it takes, its writer lets the numbers go on where none was ever given out, and writes down
where they break off. A follower that stands within a break has read events that are lost, and is told.

Each process remembers the highest numbers it has seen. Where they lie within a break, it knows how much is missing,
says so, and writes it down for those who examine the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from flowfabric.model.errors import Transport, TransportKind
from flowfabric.stores.event_questions import Breaks
from flowfabric.stores.protocol import Conflict
from flowfabric.stores.sql.schema import OUTBOXES
from flowfabric.stores.valkey.connection import Connection, Identity
from flowfabric.stores.valkey.keys import Keys, breaks_of, log_field, log_name

_log = logging.getLogger("flowfabric.stores.valkey")
#: How far the numbers jump at least, should the server's clock be wrong.
_STEP = 1_000_000
#: Breaks that a log keeps. Those whose events are too old to be kept go first.
_MOST_BREAKS = 100
#: Losses that are written down, and for how long they are told of.
_MOST_LOSSES = 50
_TOLD_FOR_S = 30 * 24 * 3600
#: Commits a process remembers, to say how many of them are missing.
_REMEMBERED = 10_000


class Loss(msgspec.Struct):
    """What processes miss since one server has taken the place of another."""

    before: str
    after: str
    #: Acknowledged commits and, by log, events.
    commits: int
    events: dict[str, int]
    at_s: int = 0

    def sentence(self) -> str:
        """For people."""
        at = datetime.fromtimestamp(self.at_s, UTC).isoformat().replace("+00:00", "Z")
        return f"at {at} {self._servers()}: {self._missing()}"

    def said(self) -> str:
        """The same as it happens."""
        return f"{self._servers()}: {self._missing()}"

    def _servers(self) -> str:
        before, after = (name.partition("/")[0][:12] for name in (self.before, self.after))
        return f"server {before} was replaced by {after}"

    def _missing(self) -> str:
        found = {name: count for name, count in sorted(self.events.items()) if count}
        logs = ", ".join(f"{count} {name}" for name, count in found.items())
        count = sum(found.values())
        events = f"{count} event{'' if count == 1 else 's'} ({logs})"
        commits = f" of {self.commits} acknowledged commit{'' if self.commits == 1 else 's'}" if self.commits else ""
        return f"at least {events}{commits} {'is' if count == 1 else 'are'} missing"


class Histories:
    """Under which server numbers are given out, and what this process has seen of them."""

    def __init__(self, connection: Connection, keys: Keys) -> None:
        self._connection = connection
        self._keys = keys
        self._settling = asyncio.Lock()
        #: The server that has a history of its own, as far as is known, and the last one that had.
        self._settled: Identity | None = None
        self._latest: Identity | None = None
        #: The name of that server, as the store has it.
        self.name = b""
        #: By kind of event: where the numbers of this server begin, and the highest that was seen.
        self._begun: Counter[Any] = Counter()
        self._seen: Counter[Any] = Counter()
        self._commits: deque[tuple[tuple[Any, int], ...]] = deque(maxlen=_REMEMBERED)

    @property
    def current(self) -> str:
        """The name of the server that answers now."""
        return _name(self._connection.identity)

    @property
    def is_settled(self) -> bool:
        """Whether the server that answers is known to have a history of its own."""
        return self._connection.identity == self._settled

    def learn(self, facts: Mapping[str, str]) -> None:
        """Take over what the store says, if the server that answers has a history of its own already."""
        if facts.get("history") == self.current:
            texts = {kind: facts.get(log_field(kind, "breaks").decode(), "") for kind in OUTBOXES}
            self._settle_on(self._connection.identity, {kind: breaks_of(text.encode()) for kind, text in texts.items()})

    async def settle(self, store_id: bytes) -> Identity | None:
        """See to it that the server that answers has a history of its own; which server that is."""
        if not self.is_settled:
            async with self._settling:
                if not self.is_settled:
                    await self._begin(store_id, self._connection.identity)
        return self._settled

    def doubt(self) -> None:
        """The data is not of the server that answers, as far as is known: find out again who that is."""
        self._settled = None
        self._connection.doubt()

    async def _begin(self, store_id: bytes, identity: Identity | None) -> None:
        fields = [log_field(kind, each) for kind in OUTBOXES for each in ("last", "trimmed", "breaks")]
        arguments = [store_id, _name(identity).encode(), b"%d" % _STEP, b"%d" % _MOST_BREAKS, *fields]
        try:
            found = await self._connection.call("begin", [self._keys.meta], arguments, read_only=False, under=identity)
        except Transport as error:
            if error.kind is not TransportKind.TRANSPORT:
                raise
            # Whether it was done or not, doing it again is safe; what waits for it was surely not sent.
            raise Conflict(error.detail) from error
        breaks = dict(zip(OUTBOXES, map(breaks_of, found), strict=True))
        loss = self._loss(_name(identity), breaks)
        self._settle_on(identity, breaks)
        if loss is not None:
            _log.warning("%s: %s", self._connection.address.shown, loss.said())
            arguments = [loss.after.encode(), msgspec.json.encode(loss), b"%d" % _MOST_LOSSES]
            # The log has it, and others may write it down: nothing waits for this.
            with contextlib.suppress(Conflict, Transport):
                await self._connection.call("miss", [self._keys.losses], arguments, read_only=False)

    def _settle_on(self, identity: Identity | None, breaks: Mapping[Any, Breaks]) -> None:
        self._settled = self._latest = identity
        self.name = _name(identity).encode()
        self._begun = Counter({kind: own[-1][1] for kind, own in breaks.items() if own})
        self._seen.clear()
        self._commits.clear()

    def _loss(self, after: str, breaks: Mapping[Any, Breaks]) -> Loss | None:
        events = {log_name(kind): self._missing(kind, number, breaks) for kind, number in self._seen.items()}
        if not any(events.values()):
            return None
        commits = sum(any(self._missing(*last, breaks) for last in each) for each in self._commits)
        missed = {name: count for name, count in events.items() if count}
        return Loss(_name(self._latest), after, commits, missed)

    def _missing(self, kind: Any, number: int, breaks: Mapping[Any, Breaks]) -> int:
        """How many events up to a number are missing, if it lies within a break. That may be wider than the history it
        was given out in: of histories before that one, others have told."""
        ends = (end for end, start in breaks[kind] if end < number < start)
        return max(number - max(next(ends, number), self._begun[kind]), 0)

    def committed(self, kinds: Iterable[Any], numbers: Iterable[int]) -> None:
        """A commit was acknowledged; the last numbers of its events, by kind."""
        last = tuple(zip(kinds, numbers, strict=True))
        for kind, number in last:
            self.saw(kind, number)
        if last:
            self._commits.append(last)

    def saw(self, kind: Any, number: int) -> None:
        """An event with this number was there."""
        self._seen[kind] = max(self._seen[kind], number)

    async def losses(self) -> list[str]:
        """What processes have missed lately, the latest first."""
        values, (seconds, _) = await self._connection.commands(("HVALS", self._keys.losses), ("TIME",))
        found = [msgspec.json.decode(each, type=Loss) for each in values]
        told = [each for each in found if each.at_s > int(seconds) - _TOLD_FOR_S]
        return [each.sentence() for each in sorted(told, key=lambda each: -each.at_s)]


def _name(identity: Identity | None) -> str:
    return "/".join(identity or ())
