"""Who waits for what: claims for work on a lane, tails for frames of a stream. Wake-ups are hints, never promises."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from itertools import count, islice
from operator import attrgetter
from typing import Any, TypeAlias

from flowfabric.model.records.executions import Execution

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

    __slots__ = ("counted_on", "future", "hearsay", "number", "where")

    def __init__(self, where: Where, number: int) -> None:
        self.where = where
        #: Who came earlier has a lower one.
        self.number = number
        #: Whether it was woken without knowing how much there is.
        self.hearsay = False
        #: Whether it is going to look by itself, and is expected to find something.
        self.counted_on = False
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()


#: What those on one lane have in common who could take the same work: capabilities, namespaces.
Able: TypeAlias = tuple[frozenset[str], frozenset[str] | None]


def _takes(able: Able, execution: Execution) -> bool:
    """Whether some waiters of a lane could run one of its executions."""
    capabilities, namespaces = able
    return capabilities.issuperset(execution.required_capabilities) and (
        namespaces is None or execution.namespace in namespaces
    )


_number = attrgetter("number")


class LaneWaiters:
    """Parked claims by lane. New work wakes as many as it can feed, and only those that could take it. Only those who
    sleep are kept, so that waking one costs the same however many wait."""

    def __init__(self) -> None:
        #: Sleepers in the order they came. One that serves several lanes stands in each of them.
        self._lanes: dict[str, dict[Able, dict[Waiter, None]]] = {}
        #: Those who wait for the same: if one of them finds nothing, the others need not look.
        self._groups: dict[Where, dict[Waiter, None]] = {}
        self._numbers = count()
        self.rounds = Rounds(self._look_again)

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def park(
        self, lane_ids: tuple[str, ...], capabilities: frozenset[str], namespaces: frozenset[str] | None = None
    ) -> Waiter:
        """Start waiting for work on some lanes. Park first, then look: what comes in between is not missed."""
        where, able = (lane_ids, capabilities, namespaces), (capabilities, namespaces)
        waiter = Waiter(where, next(self._numbers))
        self._groups.setdefault(where, {})[waiter] = None
        for lane_id in lane_ids:
            self._lanes.setdefault(lane_id, {}).setdefault(able, {})[waiter] = None
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """Stop waiting."""
        group = self._groups.get(waiter.where)
        if group is None or waiter not in group:
            return  # it was woken
        del group[waiter]
        if not group:
            del self._groups[waiter.where]
        lane_ids, capabilities, namespaces = waiter.where
        able = (capabilities, namespaces)
        for lane_id in lane_ids:
            lane = self._lanes[lane_id]
            del lane[able][waiter]
            if not lane[able]:
                del lane[able]
                if not lane:
                    del self._lanes[lane_id]

    def _wake(self, waiter: Waiter, *, hearsay: bool) -> None:
        self.leave(waiter)
        if not waiter.future.done():
            waiter.hearsay = hearsay
            waiter.future.set_result(None)

    def feed_soon(self, work: Mapping[str, Iterable[Execution]]) -> None:
        """Wake one able waiter for each execution that became claimable, by lane. Those who were just answered may be
        about to claim: they come first, because they need not be woken."""
        if self._lanes and work:
            asyncio.get_running_loop().call_soon(self.feed, work, next(self._numbers))

    def feed(self, work: Mapping[str, Iterable[Execution]], since: int) -> None:
        """Those who have come since a number are about to look; else the one that has waited longest is woken."""
        for lane_id, executions in work.items():
            for execution in executions:
                able = [waiters for able, waiters in self._lanes.get(lane_id, {}).items() if _takes(able, execution)]
                if not able:
                    continue
                last = max((next(reversed(waiters)) for waiters in able), key=_number)
                if last.number > since:
                    last.counted_on = True
                    self.leave(last)
                else:
                    self._wake(min((next(iter(waiters)) for waiters in able), key=_number), hearsay=False)

    def stir(self, lane_id: str | None = None, most: int | None = None) -> None:
        """Another process has changed something: wake those who may be concerned, at most so many of those who wait
        for the same. Those who find something wake others."""
        lanes = list(self._lanes.values()) if lane_id is None else [self._lanes.get(lane_id, {})]
        for lane in lanes:
            for waiters in list(lane.values()):
                for waiter in list(islice(waiters, most)):
                    self._wake(waiter, hearsay=True)

    def _look_again(self) -> bool:
        """One of each group looks, for some groups in turn."""
        for where in list(islice(self._groups, round_size(len(self._groups)))):
            group = self._groups[where] = self._groups.pop(where)
            self._wake(next(iter(group)), hearsay=True)
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
