"""The engine's frame: a store, a batcher, and what happens after each commit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from typing import Any

from flowfabric.core.admission.admit import LetGo
from flowfabric.core.admission.charge import LET_GO_QUOTA
from flowfabric.core.batch.view import View
from flowfabric.core.ownership.limited_callers import unwrapped
from flowfabric.engine import forks, hints
from flowfabric.engine.batcher import CLOSED, Abandoned, Batcher
from flowfabric.engine.checks import values
from flowfabric.engine.observer import Observer
from flowfabric.engine.own_loop import OwnLoop
from flowfabric.engine.record_cache import HeldRecords
from flowfabric.engine.transact import Outcome, Settings, is_large, run_batch
from flowfabric.engine.waiters import HEARD, EventWaiters, LaneWaiters, StreamWaiters
from flowfabric.model.decisions import Get, Need
from flowfabric.model.errors import Transport, Unavailable, Validation, ValidationKind
from flowfabric.model.handles import Handle, HandlePayload, decode_for
from flowfabric.model.limits import INTAKE_MS, MAX_BATCH, MAX_QUEUE
from flowfabric.model.operations.access import Credential
from flowfabric.model.partitions import PartitionCounts, flow_partition
from flowfabric.model.quoting import quoted
from flowfabric.model.records.executions import Execution
from flowfabric.stores.protocol import Store
from flowfabric.stores.questions import MAX_WAITED_FOR, WaitedFor

_log = logging.getLogger("flowfabric.engine")

#: After slots were left that nobody waited for, this long passes before the next look.
OFFER_PAUSE_S = 0.05
#: After hearing other processes has failed, it begins again.
RELISTEN_S = 1.0


class EngineBase:
    """State shared by all parts of the engine."""

    def __init__(
        self,
        store: Store,
        *,
        reclaim_grace_ms: int = 0,
        intake_ms: int = INTAKE_MS,
        max_batch: int = MAX_BATCH,
        max_queue: int = MAX_QUEUE,
    ) -> None:
        self.store: Any = store
        self._held = HeldRecords()
        if hasattr(store, "forget"):
            store.forget = self._held.forget
        self._settings = Settings(store, self._held, reclaim_grace_ms, intake_ms)
        self._batcher = Batcher(
            self._run, self._after_commit, self._after_failure, store.parallel, max_batch, max_queue
        )
        self._batchers = [self._batcher]
        #: Commands that take long go one by one, where nobody waits behind them.
        self._slow = self._batcher
        if store.pauses:
            self._slow = Batcher(self._run, self._after_commit, self._after_failure, 1, 1, max_queue)
            self._batchers.append(self._slow)
        self._lanes = LaneWaiters()
        self._streams = StreamWaiters()
        self._events = EventWaiters()
        #: Told of credentials that were made or taken away here, or ``None`` if others may have done so.
        self._credential_watchers: list[Callable[[Credential | None], None]] = []
        self._listener: asyncio.Task[None] | None = None
        self._timer: Any = None
        self._closed = False
        #: The one task that closes, no matter how many wait for it.
        self._closing: asyncio.Task[None] | None = None
        #: Told of what happens here, if somebody wants to know.
        self.observer: Observer | None = None
        #: Commands under way that nobody waits for.
        self._going_on: set[asyncio.Future[Any]] = set()
        #: Slots of quotas that were left and not yet offered.
        self._slots_left: dict[str, int] = {}
        self._offering = False
        #: Why nothing can be read any more, once the store is let go.
        self._down = ""
        self._own_loop = OwnLoop()
        forks.remember(self)

    @property
    def partitions(self) -> PartitionCounts:
        """How many partitions ids of this store are spread over."""
        counts: PartitionCounts = self.store.counts
        return counts

    # -- commands ------------------------------------------------------------------------------------------------

    #: The namespaces that the caller is limited to; see ``Engine.limited_to``.
    _within: frozenset[str] | None = None

    async def _submit(self, command: Any, abandoned: Abandoned | None = None) -> Any:
        self._own_loop.check()
        return await (self._slow if is_large(command) else self._batcher).call(command, abandoned)

    async def _submit_many(self, commands: Sequence[Any]) -> list[Any]:
        self._own_loop.check()
        return await self._batcher.call_all(commands)

    def _owner(self, namespace: str | None) -> str | None:
        """Whose budget or quota a call is about: that of the namespace it names, or else of the caller."""
        within = self._within
        if namespace is None and within is not None:
            if len(within) > 1:
                raise values.invalid("namespace: the caller may use several; name one")
            return next(iter(within), "")
        owner = None if namespace is None else values.text(namespace, "namespace")
        if within is not None and owner not in within:
            raise Validation(ValidationKind.UNAUTHORIZED, f"the caller has no access to namespace {quoted(owner)}")
        return owner

    def _owners(self, namespaces: Iterable[str] | None) -> frozenset[str] | None:
        """The namespaces whose budgets or quotas are listed; ``None`` means all."""
        wanted = values.namespaces(namespaces)
        if self._within is None:
            return wanted
        return self._within if wanted is None else self._within & wanted

    async def _run(self, commands: list[Any]) -> Outcome:
        alone = len(commands) == 1 and not is_large(commands[0])
        outcome: Outcome = await self.store.run(lambda: run_batch(self._settings, commands), alone=alone)
        return outcome

    def _after_commit(self, commands: Sequence[Any], outcome: Outcome) -> None:
        self._lanes.feed_soon(outcome.fresh)
        if outcome.streams:
            self._streams.wake(outcome.streams)
        writes = outcome.writes
        if writes is not None:
            for key in writes.puts.get(Credential, ()):
                self._tell_of_credentials(writes.records[Credential][key])
            if writes.events:
                kinds = set(map(type, writes.events))
                self._events.wake(kinds)
                if not writes.hints:
                    self.store.publish([hints.event_topic(kinds)], urgent=False)
            if writes.hints and not self.store.sends_hints:
                self.store.publish(writes.hints)
        for command in outcome.then:
            self._go_on(command)
        if outcome.slots_left:
            self._leave_slots(outcome.slots_left)
        if self._timer is not None and writes is not None:
            self._timer.notice(writes)
        if self.observer is not None:
            self.observer.committed(unwrapped(commands)[0], outcome)

    def _tell_of_credentials(self, changed: Credential | None) -> None:
        for watcher in self._credential_watchers:
            watcher(changed)

    def _after_failure(self, commands: Sequence[Any], error: BaseException) -> None:
        if self.observer is not None:
            self.observer.failed(unwrapped(commands)[0], error)

    def _go_on(self, command: Any) -> None:
        """Submit what carries on a committed change, without anybody waiting for it."""
        self._run_beside(self._batcher.follow_up(command))

    def _run_beside(self, work: asyncio.Future[Any]) -> None:
        self._going_on.add(work)
        work.add_done_callback(self._gone_on, context=Context())

    def _leave_slots(self, left: dict[str, int]) -> None:
        """Look, for many ends at once, whether somebody waits for the slots they have left."""
        for name, amount in left.items():
            self._slots_left[name] = self._slots_left.get(name, 0) + amount
        if not self._offering:
            self._offering = True
            self._run_beside(
                asyncio.get_running_loop().create_task(self._offer_slots(), name="flowfabric-then", context=Context())
            )

    @property
    def has_slots_to_offer(self) -> bool:
        """Whether slots of quotas were left that nobody was offered yet."""
        return bool(self._slots_left)

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

    def _gone_on(self, work: asyncio.Future[Any]) -> None:
        self._going_on.discard(work)
        if not work.cancelled() and (error := work.exception()) is not None and not self._closed:
            _log.warning("left to a timer: %s", error)

    def _payload(self, handle: Handle) -> HandlePayload:
        """What is in a handle, once it is clear that it is one of ours."""
        return decode_for(handle if type(handle) is Handle else values.handle(handle), self.store.tag)

    def _flow_partition(self, flow_id: str) -> int:
        return flow_partition(flow_id, self.partitions)

    # -- reads ---------------------------------------------------------------------------------------------------

    async def _view(self, *needs: Need) -> View:
        self._own_loop.check()
        self._check_open()
        view = View()
        try:
            await self.store.read(needs, view)
        except Transport:
            self._check_open()  # If closing has cut it off, that is what is said.
            raise
        return view

    async def _foreign(self, execution_ids: Iterable[str], namespaces: tuple[str, ...] | None) -> frozenset[str]:
        """Which of these executions are in none of these namespaces; ``None`` means all namespaces."""
        named = () if namespaces is None else tuple(dict.fromkeys(execution_ids))
        if not named:
            return frozenset()
        view = await self._view(*(Get(Execution, each) for each in named))
        found = (view.execution(each) for each in named)
        own = namespaces or ()
        return frozenset(each.execution_id for each in found if each is not None and each.namespace not in own)

    async def _ask(self, question: Any) -> Any:
        self._own_loop.check()
        self._check_open()
        try:
            return await self.store.query(question)
        except Transport:
            self._check_open()
            raise

    def _check_open(self) -> None:
        if self._down:
            raise Unavailable(self._down)

    async def now_ms(self) -> int:
        """The time that decides."""
        now: int = await self.store.server_time_ms()
        return now

    # -- other processes -----------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Start hearing other processes, the first time somebody waits for something."""
        if self._listener is None and not self._closed:
            self._listener = asyncio.get_running_loop().create_task(
                self._hear(), name="flowfabric-listener", context=Context()
            )

    def _hasten_requests(self) -> None:
        """Somebody may have left a request."""
        if self._timer is not None:
            self._timer.hasten("enqueue_requests")

    async def _hear(self) -> None:
        while not self._closed:
            try:
                await self._hear_all()
            except Exception:
                _log.exception("listening to other processes failed; retrying in %s s", RELISTEN_S)
            await asyncio.sleep(RELISTEN_S)

    async def _hear_all(self) -> None:
        async for topic in self.store.heard():
            try:
                self._follow(topic)
            except Exception:
                # Anybody who may write to the database may send one: it must not deafen the process.
                _log.warning("a notification was not understood: %.200r", topic, exc_info=True)

    def _follow(self, topic: str | None) -> None:
        if topic is None:
            self._lanes.stir()
            self._streams.stir()
            self._events.stir()
            self._hasten_requests()
            self._tell_of_credentials(None)
        elif topic == hints.CREDENTIALS:
            self._tell_of_credentials(None)
        elif topic == hints.ENQUEUE:
            self._hasten_requests()
        elif topic.startswith(hints.LANE):
            self._lanes.stir(topic[len(hints.LANE) :], HEARD)
        elif topic.startswith(hints.STREAM):
            self._streams.stir(int(topic[len(hints.STREAM) :]))
        elif topic.startswith(hints.EVENTS):
            self._events.wake(hints.event_kinds(topic))

    async def drain(self, grace_ms: int) -> int:
        """Stop the timers and finish what is queued; how many tasks were still busy when the grace was over."""
        grace_ms = values.time_ms(grace_ms, "grace_ms")
        self._own_loop.check()
        busy = [asyncio.ensure_future(each.close()) for each in self._batchers]
        if self._timer is not None:
            busy.append(asyncio.ensure_future(self._timer.stop()))
        try:
            _, late = await asyncio.wait(busy, timeout=grace_ms / 1000)
        except asyncio.CancelledError:
            for task in busy:
                task.cancel()
            raise
        if late:
            self._abandon()
        for task in late:
            task.cancel()
        return len(late)

    def leave_to_parent(self) -> None:
        """After a fork the connections are still the parent's."""
        self._closed, self._down = True, forks.FORKED
        self._own_loop = OwnLoop()
        for each in self._batchers:
            each.forget(forks.FORKED)

    def _abandon(self) -> None:
        """Finish nothing any more: those who wait are told at once."""
        for each in self._batchers:
            each.abandon()
        if self._timer is not None:
            self._timer.abandon()

    async def close(self) -> None:
        """Finish what is under way and let go of the store. Safe to call twice, and to be waited for by several. If a
        call is cancelled, what is under way is given up, and the store let go of all the same."""
        if self._down == forks.FORKED:
            return
        self._own_loop.check()
        if self._closing is None:
            self._closed = True
            self._closing = asyncio.get_running_loop().create_task(
                self._close(), name="flowfabric-close", context=Context()
            )
        try:
            await asyncio.shield(self._closing)
        except asyncio.CancelledError:
            if not self._closing.done():
                self._abandon()
                await asyncio.wait((self._closing,))
            raise

    async def _close(self) -> None:
        self._events.stir()
        if self._timer is not None:
            await self._timer.stop()
        for each in self._batchers:
            await each.close()
        if beside := [work for work in self._going_on if isinstance(work, asyncio.Task)]:
            for work in beside:
                work.cancel()
            await asyncio.wait(beside)
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.wait((self._listener,))
        self._down = CLOSED
        for waiters in (self._lanes, self._streams, self._events):
            waiters.rounds.stop()
        self._lanes.stir()
        self._streams.stir()
        self._events.stir()
        await self.store.close()


def unique(values: Iterable[str]) -> list[str]:
    """Each value once, in the order of first appearance."""
    return list(dict.fromkeys(values))
