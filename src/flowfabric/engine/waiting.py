"""Who waits for what: claims for work on a lane, tails for frames of a stream. Wake-ups are hints, never promises."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, TypeAlias

from flowfabric.model.records import Execution

#: What a claim waits for: lanes, capabilities, namespaces.
Where: TypeAlias = tuple[tuple[str, ...], frozenset[str], frozenset[str] | None]

#: How many of those who wait for the same look when another process tells of work, and how many more look for each
#: that has found some.
HEARD, FOUND = 8, 2
#: Those who look again in one round although nothing has happened: so many at least, and so large a part of them.
ROUND_LEAST, ROUND_PART = 8, 60


def round_size(waiting: int) -> int:
    """How many look in one round. However many wait, looking for nothing costs next to nothing."""
    return max(ROUND_LEAST, -(-waiting // ROUND_PART))


class Rounds:
    """Lets some of those who wait look again now and then, because a wake-up may have been lost. One timer for all."""

    def __init__(self, look: Callable[[], bool]) -> None:
        #: Wakes some; whether anybody waits.
        self._look = look
        self._timer: asyncio.TimerHandle | None = None

    def keep(self, every_s: float) -> None:
        """Go on as long as somebody waits."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(every_s, self._turn, every_s)

    def _turn(self, every_s: float) -> None:
        self._timer = None
        if self._look():
            self.keep(every_s)

    def stop(self) -> None:
        """Nobody waits any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Waiter:
    """One parked claim."""

    __slots__ = ("capabilities", "future", "hearsay", "namespaces")

    def __init__(self, capabilities: frozenset[str], namespaces: frozenset[str] | None = None) -> None:
        self.capabilities = capabilities
        self.namespaces = namespaces
        #: Whether it was woken without knowing how much there is.
        self.hearsay = False
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(self, *, hearsay: bool = False) -> bool:
        """Whether this waiter was still asleep."""
        if self.future.done():
            return False
        self.hearsay = hearsay
        self.future.set_result(None)
        return True

    def takes(self, execution: Execution) -> bool:
        """Whether this waiter could run an execution of its lane."""
        return self.capabilities.issuperset(execution.required_capabilities) and (
            self.namespaces is None or execution.namespace in self.namespaces
        )


class LaneWaiters:
    """Parked claims by lane. New work wakes as many as it can feed, and only those that could take it."""

    def __init__(self) -> None:
        #: Waiters in the order they came. One that serves several lanes stands in each of them.
        self._lanes: dict[str, dict[Waiter, None]] = {}
        #: Those who wait for the same: if one of them finds nothing, the others need not look.
        self._groups: dict[Where, dict[Waiter, None]] = {}
        self.rounds = Rounds(self._look_again)

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def park(
        self, lane_ids: tuple[str, ...], capabilities: frozenset[str], namespaces: frozenset[str] | None = None
    ) -> Waiter:
        """Start waiting for work on some lanes. Park first, then look: what comes in between is not missed."""
        waiter = Waiter(capabilities, namespaces)
        self._groups.setdefault((lane_ids, capabilities, namespaces), {})[waiter] = None
        for lane_id in lane_ids:
            self._lanes.setdefault(lane_id, {})[waiter] = None
        return waiter

    def leave(self, lane_ids: tuple[str, ...], waiter: Waiter) -> None:
        """Stop waiting."""
        where = (lane_ids, waiter.capabilities, waiter.namespaces)
        group = self._groups.get(where)
        if group is not None:
            group.pop(waiter, None)
            if not group:
                del self._groups[where]
        for lane_id in lane_ids:
            lane = self._lanes.get(lane_id)
            if lane is not None:
                lane.pop(waiter, None)
                if not lane:
                    del self._lanes[lane_id]

    def feed(self, lane_id: str, work: Iterable[Execution]) -> None:
        """Wake one able waiter for each execution that became claimable."""
        lane = self._lanes.get(lane_id)
        if not lane:
            return
        for execution in work:
            for waiter in lane:
                if waiter.takes(execution) and waiter.wake():
                    break

    def stir(self, lane_id: str | None = None, most: int | None = None) -> None:
        """Another process has changed something: wake those who may be concerned, at most so many of those who wait
        for the same. Whoever finds something wakes others."""
        lanes = self._lanes.values() if lane_id is None else [self._lanes.get(lane_id, ())]
        for lane in lanes:
            woken: Counter[Any] = Counter()
            for waiter in lane:
                alike = (waiter.capabilities, waiter.namespaces)
                if (most is None or woken[alike] < most) and waiter.wake(hearsay=True):
                    woken[alike] += 1

    def _look_again(self) -> bool:
        """One of each group looks, for some groups in turn."""
        for where in list(islice(self._groups, round_size(len(self._groups)))):
            group = self._groups[where] = self._groups.pop(where)
            for waiter in group:
                if waiter.wake(hearsay=True):
                    break
        return bool(self._groups)


class EventWaiters:
    """Subscribers by the kind of event they wait for."""

    def __init__(self) -> None:
        self._kinds: dict[Any, set[asyncio.Future[None]]] = {}
        #: All of them, those who have waited longest first.
        self._waiting: dict[asyncio.Future[None], None] = {}
        self.rounds = Rounds(self._look_again)

    def park(self, kind: Any) -> asyncio.Future[None]:
        """Start waiting. Park first, then look: what is committed in between is not missed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._kinds.setdefault(kind, set()).add(future)
        self._waiting[future] = None
        return future

    def _look_again(self) -> bool:
        for future in islice(self._waiting, round_size(len(self._waiting))):
            if not future.done():
                future.set_result(None)
        return bool(self._waiting)

    def leave(self, kind: Any, future: asyncio.Future[None]) -> None:
        """Stop waiting."""
        self._waiting.pop(future, None)
        waiting = self._kinds.get(kind)
        if waiting is not None:
            waiting.discard(future)
            if not waiting:
                del self._kinds[kind]

    def wake(self, kinds: Iterable[Any]) -> None:
        """Events of these kinds were committed."""
        for kind in kinds:
            for future in self._kinds.get(kind, ()):
                if not future.done():
                    future.set_result(None)

    def stir(self) -> None:
        """Something may have been missed: everybody looks again."""
        self.wake(list(self._kinds))


#: Streams are told apart between processes only this far, so that a commit with many of them is a few hints.
STREAM_BUCKETS = 16


def stream_bucket(stream: tuple[str, int]) -> int:
    """The bucket of a stream: the same in every process."""
    return int(stream[0][-1], 16) % STREAM_BUCKETS


class StreamWaiters:
    """Tails by stream."""

    def __init__(self) -> None:
        self._streams: dict[tuple[str, int], set[asyncio.Future[None]]] = {}
        self.rounds = Rounds(self._look_again)

    def _look_again(self) -> bool:
        """One reader of each stream looks, for some streams in turn."""
        for stream in list(islice(self._streams, round_size(len(self._streams)))):
            waiting = self._streams[stream] = self._streams.pop(stream)
            asleep = next((future for future in waiting if not future.done()), None)
            if asleep is not None:
                asleep.set_result(None)
        return bool(self._streams)

    def park(self, stream: tuple[str, int]) -> asyncio.Future[None]:
        """Start waiting for frames."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._streams.setdefault(stream, set()).add(future)
        return future

    def leave(self, stream: tuple[str, int], future: asyncio.Future[None]) -> None:
        """Stop waiting."""
        waiting = self._streams.get(stream)
        if waiting is not None:
            waiting.discard(future)
            if not waiting:
                del self._streams[stream]

    def wake(self, streams: Iterable[tuple[str, int]]) -> None:
        """Frames were appended, or the attempt ended."""
        for stream in streams:
            for future in self._streams.get(stream, ()):
                if not future.done():
                    future.set_result(None)

    def stir(self, bucket: int | None = None) -> None:
        """Another process has written to a stream of this bucket, or something may have been missed: look again."""
        self.wake([each for each in self._streams if bucket is None or stream_bucket(each) == bucket])
