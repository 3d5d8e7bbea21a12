"""The engine's frame: a store, a batcher, and what happens after each commit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

from flowfabric.core.admitting import LetGo
from flowfabric.core.charging import LET_GO_QUOTA
from flowfabric.core.view import View
from flowfabric.engine import checks
from flowfabric.engine.batcher import Batcher
from flowfabric.engine.held import HeldRecords
from flowfabric.engine.observing import Observer
from flowfabric.engine.transact import Outcome, Settings, run_batch
from flowfabric.engine.waiting import HEARD, EventWaiters, LaneWaiters, StreamWaiters, stream_bucket
from flowfabric.model.changes import Need
from flowfabric.model.errors import Transport, Unavailable
from flowfabric.model.events import CompletionEvent, InstanceTagEvent, LeaseEvent, OperatorEvent, SignalEvent
from flowfabric.model.handles import Handle, HandlePayload, decode_for
from flowfabric.model.limits import MAX_BATCH, MAX_QUEUE
from flowfabric.model.partitions import PartitionCounts, flow_partition
from flowfabric.stores.protocol import Store
from flowfabric.stores.questions import MAX_WAITED_FOR, WaitedFor

_log = logging.getLogger("flowfabric.engine")

#: Prefixes of what processes tell each other.
LANE_TOPIC = "lane:"
STREAM_TOPIC = "stream:"
EVENT_TOPIC = "events:"
#: Sent by the database itself with the transaction that leaves a request.
ENQUEUE_TOPIC = "enqueue"
#: One letter for each kind of event, so that a commit with several is one hint.
EVENT_LETTERS: Mapping[Any, str] = {
    CompletionEvent: "c",
    LeaseEvent: "l",
    OperatorEvent: "o",
    SignalEvent: "s",
    InstanceTagEvent: "t",
}
_KINDS_BY_LETTER = {letter: kind for kind, letter in EVENT_LETTERS.items()}


#: After slots were left that nobody waited for, this long passes before the next look.
OFFER_PAUSE_S = 0.05


class EngineBase:
    """State shared by all parts of the engine."""

    def __init__(
        self,
        store: Store,
        *,
        reclaim_grace_ms: int = 0,
        max_batch: int = MAX_BATCH,
        max_queue: int = MAX_QUEUE,
    ) -> None:
        self.store: Any = store
        self._held = HeldRecords()
        if hasattr(store, "forget"):
            store.forget = self._held.forget
        self._settings = Settings(store, self._held, reclaim_grace_ms)
        self._batcher = Batcher(
            self._run, self._after_commit, self._after_failure, store.parallel, max_batch, max_queue
        )
        self._lanes = LaneWaiters()
        self._streams = StreamWaiters()
        self._events = EventWaiters()
        self._listener: asyncio.Task[None] | None = None
        self._timer: Any = None
        self._closed = False
        #: Told of what happens here, if somebody wants to know.
        self.observer: Observer | None = None
        #: Commands under way that nobody waits for.
        self._going_on: set[asyncio.Task[Any]] = set()
        #: Slots of quotas that were left and not yet offered.
        self._slots_left: dict[str, int] = {}
        self._offering = False
        #: Set when the store is let go: nothing can be read any more.
        self._down = False

    @property
    def partitions(self) -> PartitionCounts:
        """How many partitions ids of this store are spread over."""
        counts: PartitionCounts = self.store.counts
        return counts

    # -- commands ------------------------------------------------------------------------------------------------

    async def _submit(self, command: Any) -> Any:
        return await self._batcher.call(command)

    async def _run(self, commands: list[Any]) -> Outcome:
        outcome: Outcome = await self.store.run(lambda: run_batch(self._settings, commands), alone=len(commands) == 1)
        return outcome

    def _after_commit(self, commands: list[Any], outcome: Outcome) -> None:
        topics = set()
        for lane_id, work in outcome.fresh.items():
            self._lanes.feed(lane_id, work)
            topics.add(LANE_TOPIC + lane_id)
        if outcome.streams:
            self._streams.wake(outcome.streams)
            topics.update({f"{STREAM_TOPIC}{stream_bucket(stream)}" for stream in outcome.streams})
        urgent = bool(topics)
        if outcome.writes is not None and outcome.writes.events:
            kinds = set(map(type, outcome.writes.events))
            self._events.wake(kinds)
            topics.add(EVENT_TOPIC + "".join(sorted([EVENT_LETTERS[kind] for kind in kinds])))
        if topics:
            self.store.publish(topics, urgent=urgent)
        for command in outcome.then:
            self._go_on(command)
        if outcome.slots_left:
            self._leave_slots(outcome.slots_left)
        if self._timer is not None and outcome.writes is not None:
            self._timer.notice(outcome.writes)
        if self.observer is not None:
            self.observer.committed(commands, outcome)

    def _after_failure(self, commands: list[Any], error: BaseException) -> None:
        if self.observer is not None:
            self.observer.failed(commands, error)

    def _go_on(self, command: Any) -> None:
        """Submit what carries on a committed change, without anybody waiting for it."""
        self._run_beside(self._submit(command))

    def _run_beside(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="flowfabric-then")
        self._going_on.add(task)
        task.add_done_callback(self._gone_on)

    def _leave_slots(self, left: dict[str, int]) -> None:
        """Look, for many ends at once, whether somebody waits for the slots they have left."""
        for name, amount in left.items():
            self._slots_left[name] = self._slots_left.get(name, 0) + amount
        if not self._offering:
            self._offering = True
            self._run_beside(self._offer_slots())

    async def _offer_slots(self) -> None:
        try:
            while self._slots_left:
                left, self._slots_left = self._slots_left, {}
                names = tuple(left)
                waited_for = 0
                for start in range(0, len(names), MAX_WAITED_FOR):
                    for name in await self._ask(WaitedFor(names[start : start + MAX_WAITED_FOR])):
                        self._go_on(LetGo(LET_GO_QUOTA, name, left[name]))
                        waited_for += 1
                if not waited_for:
                    # Nobody is in a hurry: look for more ends together.
                    await asyncio.sleep(OFFER_PAUSE_S)
        finally:
            self._offering = False

    def _gone_on(self, task: asyncio.Task[Any]) -> None:
        self._going_on.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._closed:
            _log.warning("left to a timer: %s", error)

    def _payload(self, handle: Handle) -> HandlePayload:
        """What is in a handle, once it is clear that it is one of ours."""
        return decode_for(handle if type(handle) is Handle else checks.handle(handle), self.store.tag)

    def _flow_partition(self, flow_id: str) -> int:
        return flow_partition(flow_id, self.partitions)

    # -- reads ---------------------------------------------------------------------------------------------------

    async def _view(self, *needs: Need) -> View:
        self._check_open()
        view = View()
        try:
            await self.store.read(needs, view)
        except Transport:
            self._check_open()  # If closing has cut it off, that is what is said.
            raise
        return view

    async def _ask(self, question: Any) -> Any:
        self._check_open()
        try:
            return await self.store.query(question)
        except Transport:
            self._check_open()
            raise

    def _check_open(self) -> None:
        if self._down:
            raise Unavailable("engine is closed")

    async def now_ms(self) -> int:
        """The time that decides."""
        now: int = await self.store.server_time_ms()
        return now

    # -- other processes -----------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Start hearing other processes, the first time somebody waits for something."""
        if self._listener is None and not self._closed:
            self._listener = asyncio.get_running_loop().create_task(self._hear(), name="flowfabric-listener")

    def _hasten_requests(self) -> None:
        """Somebody may have left a request."""
        if self._timer is not None:
            self._timer.hasten("enqueue_requests")

    async def _hear(self) -> None:
        async for topic in self.store.heard():
            if topic is None:
                self._lanes.stir()
                self._streams.stir()
                self._events.stir()
                self._hasten_requests()
            elif topic == ENQUEUE_TOPIC:
                self._hasten_requests()
            elif topic.startswith(LANE_TOPIC):
                self._lanes.stir(topic[len(LANE_TOPIC) :], HEARD)
            elif topic.startswith(STREAM_TOPIC):
                self._streams.stir(int(topic[len(STREAM_TOPIC) :]))
            elif topic.startswith(EVENT_TOPIC):
                letters = topic[len(EVENT_TOPIC) :]
                self._events.wake([_KINDS_BY_LETTER[letter] for letter in letters if letter in _KINDS_BY_LETTER])

    async def drain(self, grace_ms: int) -> int:
        """Stop the timers and finish what is queued; how many tasks were still busy when the grace was over."""
        grace_ms = checks.time_ms(grace_ms, "grace_ms")
        busy = [asyncio.ensure_future(self._batcher.close())]
        if self._timer is not None:
            busy.append(asyncio.ensure_future(self._timer.stop()))
        _, late = await asyncio.wait(busy, timeout=grace_ms / 1000)
        for task in late:
            task.cancel()
        return len(late)

    async def close(self) -> None:
        """Finish what is under way and let go of the store. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._events.stir()
        if self._timer is not None:
            await self._timer.stop()
        await self._batcher.close()
        if self._listener is not None:
            self._listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listener
        self._down = True
        for waiters in (self._lanes, self._streams, self._events):
            waiters.rounds.stop()
        self._lanes.stir()
        self._streams.stir()
        self._events.stir()
        await self.store.close()


def unique(values: Iterable[str]) -> list[str]:
    """Each value once, in the order of first appearance."""
    return list(dict.fromkeys(values))
