"""How much one caller may ask for, and how much all of them together may bring at once."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from flowfabric.engine.wire.error_codec import NOT_BEGUN
from flowfabric.model.errors import ResourceExhausted, Unavailable
from flowfabric.server.access.principals import Principal
from flowfabric.server.http.head import MAX_HEADERS, ONCE
from flowfabric.server.http.problems import UNBEGUN, Refused, refused

#: Callers whose rate is remembered; the one that has not called for longest is forgotten first.
MAX_CALLERS = 10_000
#: Bytes of the largest body, for which there is always a share; and of a body that count as moving on.
LARGEST_BODY = 16_777_216
MOVED_BYTES = 16_384
#: The part of the room for bodies that those share who need no credential, and bytes that it has at least.
OPEN_PART, LEAST_OPEN = 16, 262_144
#: Bytes that the calls of one request make; those beyond are not begun.
MADE_BYTES = 16_777_216


class RateLimits:
    """A bucket of tokens for each caller: so many requests a second, and a burst of some more."""

    def __init__(self, per_second: float, burst: int) -> None:
        self.per_second = per_second
        self.burst = max(burst, 1)
        #: Caller -> tokens left, and when that was.
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, caller: str) -> float:
        """0 if the caller may go on, else seconds until it may."""
        now = time.monotonic()
        tokens, at = self._buckets.pop(caller, (float(self.burst), now))
        tokens = min(self.burst, tokens + (now - at) * self.per_second)
        # What is rounded away must not cost anybody a turn.
        wait = 0.0 if tokens >= 1 - 1e-9 else (1 - tokens) / self.per_second
        self._buckets[caller] = (tokens if wait else tokens - 1, now)
        if len(self._buckets) > MAX_CALLERS:
            self._buckets.popitem(last=False)
        return wait

    def check(self, caller: str) -> None:
        """Refuse a caller that asks too often."""
        wait = self.take(caller)
        if wait:
            text = f"more than {self.per_second:g} requests per second; try again later"
            after = str(max(1, math.ceil(wait))).encode()
            raise refused(429, text, ((b"retry-after", after),), kind="rate_limit_exceeded", retryable=True, **UNBEGUN)


class BodyRoom:
    """Bytes of bodies that are held for all requests together, so that many large ones cannot fill the memory. When
    there is no room, the body is given up that has moved on least lately. One caller has half of the room at most."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0
        self._share = max(most // 2, min(most, LARGEST_BODY))
        self._shares: Counter[str] = Counter()
        #: Bodies that are still arriving; the one that has not moved on for longest comes first.
        self._arriving: dict[Body, None] = {}

    def take(self, body: Body, size: int) -> None:
        """Hold some more of a body, if need be instead of others."""
        while True:
            is_full = self.held + size > self.most
            if not is_full and (body.caller is None or self._shares[body.caller] + size <= self._share):
                break
            others = (each for each in self._arriving if each is not body and (is_full or each.caller == body.caller))
            victim = next(others, None)
            if victim is None:
                raise no_room()
            victim.cut()
        self._change(body, size)

    def _change(self, body: Body, size: int) -> None:
        self.held += size
        body.held += size
        if body.caller is not None:
            self._shares[body.caller] += size
            if not self._shares[body.caller]:
                del self._shares[body.caller]

    def arrive(self, body: Body) -> None:
        """It comes piece by piece."""
        self._arriving[body] = None

    def moved(self, body: Body) -> None:
        """It has moved on, unless it is all there."""
        if body in self._arriving:
            del self._arriving[body]
            self._arriving[body] = None

    def leave(self, body: Body, *, wholly: bool) -> None:
        """It is there, or it is gone."""
        self._arriving.pop(body, None)
        if wholly:
            self._change(body, -body.held)


class Body:
    """What is held of one request's body, for a caller who has a share."""

    __slots__ = ("_moved", "_room", "_stop", "caller", "held", "was_cut")

    def __init__(self, room: BodyRoom, caller: str | None = None) -> None:
        self._room = room
        self.caller = caller
        self.held = 0
        self.was_cut = False
        self._moved = 0
        self._stop: Callable[[], None] = lambda: None

    def arriving(self, stop: Callable[[], None]) -> None:
        """It comes piece by piece, and is given up by ``stop`` if others need the room."""
        self._stop = stop
        self._room.arrive(self)

    def take(self, size: int) -> None:
        """Hold some more of it."""
        self._room.take(self, size)
        self._moved += size
        # Single bytes do not count as moving on.
        if self._moved >= MOVED_BYTES:
            self._moved = 0
            self._room.moved(self)

    def arrived(self) -> None:
        """All of it is there."""
        self._room.leave(self, wholly=False)

    def cut(self) -> None:
        """Give it up, since it does not come."""
        self.was_cut = True
        self.close()
        self._stop()

    def close(self) -> None:
        """Let go."""
        self._room.leave(self, wholly=True)


class Reader(Protocol):
    """Somebody who is being answered."""

    def cut(self) -> None:
        """Hang up."""


class AnswerRoom:
    """Bytes of answers that wait for their readers, and of what calls have made for answers that are not sent yet. When
    there are too many, the one that has waited longest is cut off."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0
        #: Who waits, and for how much; the one that has taken in nothing for longest comes first.
        self._waiting: dict[Reader, int] = {}
        #: What was made for each credential.
        self.shares: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, reader: Reader, size: int) -> None:
        """Hold an answer until it is taken in."""
        self._waiting[reader] = size
        self.held += size
        while self.held > self.most and len(self._waiting) > 1:
            next(iter(self._waiting)).cut()

    def leave(self, reader: Reader) -> None:
        """Let go."""
        self.held -= self._waiting.pop(reader, 0)

    def has(self, size: int) -> bool:
        """Whether there is room for so much without cutting anybody off."""
        return self.held + size <= self.most

    def clear(self, size: int, own: int | None) -> bool:
        """Make room for so much; whether there is. Where nobody holds more than ``own``, anything may be held."""
        while not self.has(size) and self._waiting and size <= self.most:
            next(iter(self._waiting)).cut()
        return self.has(size) or self.held == own

    def change(self, caller: str | None, size: int) -> None:
        """Somebody makes more, or has sent some."""
        self.held += size
        if caller is not None:
            self.shares[caller] += size
            if not self.shares[caller]:
                del self.shares[caller]


class Made:
    """What the calls of one request have made, or are about to make, until it is sent."""

    __slots__ = ("_caller", "_closed", "_room", "_whole", "held")

    def __init__(self, room: AnswerRoom, caller: str | None = None) -> None:
        self._room = room
        self._caller = caller
        self._closed = False
        self.held = 0
        #: All that was made, sent or not.
        self._whole = 0

    def begin(self, size: int) -> None:
        """Hold what the request takes by itself."""
        self._take(size)

    def take(self, size: int) -> None:
        """Hold what a call will make, or refuse it. One call may make more than a request, if it is the first."""
        if self._whole and self._whole + size > MADE_BYTES:
            raise ResourceExhausted(NOT_BEGUN, MADE_BYTES)
        self._take(size)
        self._whole += size

    def _take(self, size: int) -> None:
        room = self._room
        others = 0 if self._caller is None else room.shares[self._caller] - self.held
        # Some calls wait when others are done: calls that make much and wait must leave room.
        is_greedy = others > 0 and others + self.held + size > room.most // 2
        if is_greedy or not room.clear(size, None if self._whole else self.held):
            raise ResourceExhausted(NOT_BEGUN, MADE_BYTES)
        self._change(size)

    def correct(self, size: int) -> None:
        """It is less than was thought, or more if that is negative."""
        self._whole -= size
        self._change(-size)

    def give(self, size: int) -> None:
        """Some of it is sent."""
        self._change(-size)

    def close(self) -> None:
        """Let go of all."""
        self._change(-self.held)
        self._closed = True

    def _change(self, size: int) -> None:
        if not self._closed:
            self.held += size
            self._room.change(self._caller, size)


def no_room() -> Refused:
    """The answer to a body for which there is no room."""
    text = "too many large requests at once; try again later"
    return refused(503, text, ((b"retry-after", b"1"),), kind="resource_exhausted", retryable=True, **UNBEGUN)


def check_headers(known: Mapping[bytes, bytes], given: Sequence[tuple[bytes, bytes]]) -> None:
    """Refuse more headers than anybody needs, and two where there may be one."""
    if len(given) > MAX_HEADERS:
        raise refused(431, f"more than {MAX_HEADERS} headers")
    if len(known) < len(given):
        seen = Counter(name for name, _ in given)
        for name in sorted(ONCE & seen.keys()):
            if seen[name] > 1:
                raise refused(400, f"the header {name.decode()} occurs twice; send it once")


# -- how many of a kind may run at once; one too many is refused at once ---------------------------------------------


class Permits:
    """A ceiling without a queue. Callers with a stored credential have at most half of them, so that there are some for
    others."""

    def __init__(self, pool: str, maximum: int) -> None:
        self.pool = pool
        self.maximum = maximum
        self.taken = 0
        self.closed = False
        self.idle = asyncio.Event()
        self.idle.set()
        #: How many each credential has.
        self._shares: Counter[str] = Counter()

    def check(self, caller: Principal | None = None) -> None:
        """Refuse if none are left."""
        if self.closed:
            raise Unavailable(self.pool)
        if self.taken >= self.maximum:
            raise ResourceExhausted(self.pool, self.maximum)
        share = max(self.maximum // 2, 1)
        if caller is not None and caller.credential_id is not None and self._shares[caller.credential_id] >= share:
            raise ResourceExhausted(self.pool, share)

    @contextmanager
    def one(self, caller: Principal | None = None) -> Iterator[None]:
        """Hold a permit."""
        self.check(caller)
        name = None if caller is None else caller.credential_id
        self.taken += 1
        self.idle.clear()
        if name is not None:
            self._shares[name] += 1
        try:
            yield
        finally:
            self.taken -= 1
            if not self.taken:
                self.idle.set()
            if name is not None:
                self._shares[name] -= 1
                if not self._shares[name]:
                    del self._shares[name]
