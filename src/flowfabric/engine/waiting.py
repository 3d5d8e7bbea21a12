"""Who waits for what: claims for work on a lane, tails for frames of a stream. Wake-ups are hints, never promises."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from flowfabric.model.records import Execution


class Waiter:
    """One parked claim."""

    __slots__ = ("capabilities", "future", "namespaces")

    def __init__(self, capabilities: frozenset[str], namespaces: frozenset[str] | None = None) -> None:
        self.capabilities = capabilities
        self.namespaces = namespaces
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(self) -> bool:
        """Whether this waiter was still asleep."""
        if self.future.done():
            return False
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

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def park(
        self, lane_ids: tuple[str, ...], capabilities: frozenset[str], namespaces: frozenset[str] | None = None
    ) -> Waiter:
        """Start waiting for work on some lanes. Park first, then look: what comes in between is not missed."""
        waiter = Waiter(capabilities, namespaces)
        for lane_id in lane_ids:
            self._lanes.setdefault(lane_id, {})[waiter] = None
        return waiter

    def leave(self, lane_ids: tuple[str, ...], waiter: Waiter) -> None:
        """Stop waiting."""
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

    def stir(self, lane_id: str | None = None) -> None:
        """Another process has changed something: wake those who may be concerned."""
        lanes = self._lanes.values() if lane_id is None else [self._lanes.get(lane_id, ())]
        for lane in lanes:
            for waiter in lane:
                waiter.wake()


class EventWaiters:
    """Subscribers by the kind of event they wait for."""

    def __init__(self) -> None:
        self._kinds: dict[Any, set[asyncio.Future[None]]] = {}

    def park(self, kind: Any) -> asyncio.Future[None]:
        """Start waiting. Park first, then look: what is committed in between is not missed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._kinds.setdefault(kind, set()).add(future)
        return future

    def leave(self, kind: Any, future: asyncio.Future[None]) -> None:
        """Stop waiting."""
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
