"""Keeping leases while handlers run, on a thread with an event loop and an engine of its own.

A handler that blocks the worker's event loop cannot keep its lease from being renewed. All leases that are due are
renewed together; at a third of their time to live, so that two renewals may fail before one is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from flowfabric.engine import Engine
from flowfabric.model.errors import (
    Contention,
    ContentionKind,
    Contextual,
    EngineError,
    LimitReached,
    ResourceExhausted,
    Timeout,
    Transport,
    Unavailable,
)
from flowfabric.model.handles import Handle
from flowfabric.sdk.backoff import Patience

_log = logging.getLogger("flowfabric.worker")

#: How many leases one round renews together.
AT_ONCE = 500
#: Looks per time to live.
LOOKS = 12
SHORTEST_LOOK_S = 0.02
#: How often leases that are held for a while are looked at: so long a cancelled run may go on.
LOST_LOOK_S = 1.0
#: And at most this long until the thread tries again to open an engine of its own.
LONGEST_PAUSE_S = 60.0


def is_passing(error: BaseException) -> bool:
    """Whether the same call can succeed later: the store was out of reach or too busy, and has refused nothing."""
    while isinstance(error, Contextual):
        error = error.inner
    if isinstance(error, Contention):
        return error.kind is ContentionKind.RETRY_EXHAUSTED
    if isinstance(error, LimitReached):
        return False
    return isinstance(error, Transport | Timeout | Unavailable | ResourceExhausted | TimeoutError | OSError)


class Lease:
    """A lease the worker holds."""

    __slots__ = ("ask_to_end", "expires", "handle", "lose", "renew_at", "since", "ttl_s")

    def __init__(
        self,
        handle: Handle,
        claimed_at: float,
        lose: Callable[[BaseException], None],
        ask_to_end: Callable[[], None],
    ) -> None:
        self.handle = handle
        #: Called in the worker's loop when the lease is gone, and when its execution was asked to cancel.
        self.lose = lose
        self.ask_to_end = ask_to_end
        self.ttl_s = handle.payload.lease_ttl_ms / 1000
        self.since = claimed_at
        self.expires = 0.0
        self.renew_at = 0.0
        self.renewed(claimed_at)

    def renewed(self, at: float) -> None:
        """It lasts from here on: ``at`` is a moment before the store granted it."""
        self.expires = at + self.ttl_s
        self.renew_at = at + self.ttl_s / 3

    @property
    def healthy(self) -> bool:
        """Whether it stands, as far as can be known here."""
        return time.monotonic() < self.expires


#: Something to be done now and then beside the renewals: how often, in seconds, and what.
Chore = tuple[float, Callable[[Engine], Awaitable[None]]]


class Renewal:
    """Renews what is added until it is discarded."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ttl_s: float,
        open_engine: Callable[[], Awaitable[Engine]] | None,
        engine: Engine,
        chores: Sequence[Chore] = (),
    ) -> None:
        """``open_engine`` gives the thread its own engine; without one renewal happens on the worker's loop."""
        self._loop = loop
        self._open_engine = open_engine
        self._engine = engine
        self._chores = [(LOST_LOOK_S, self._look_for_lost), *chores]
        self._due = [0.0 for _ in self._chores]
        self._look_s = max(min(ttl_s / LOOKS, LOST_LOOK_S), SHORTEST_LOOK_S)
        self._patience_s = max(ttl_s / 3, SHORTEST_LOOK_S)
        self._leases: dict[Lease, None] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._stopping = False
        self._ended = asyncio.Event()

    def add(self, lease: Lease) -> None:
        """Renew this one from now on."""
        with self._lock:
            self._leases[lease] = None

    def discard(self, lease: Lease) -> None:
        """It is no longer needed."""
        with self._lock:
            self._leases.pop(lease, None)

    def start(self) -> None:
        """Begin, in a thread of its own if there is an engine to be had for it."""
        if self._open_engine is None:
            self._task = self._loop.create_task(self._keep(self._engine), name="flowfabric-renewal")
        else:
            self._thread = threading.Thread(target=self._run_thread, name="flowfabric-renewal", daemon=True)
            self._thread.start()

    async def stop(self) -> None:
        """End, and let go of the engine."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        elif self._thread is not None:
            if self._own_loop is not None and self._stop is not None:
                with contextlib.suppress(RuntimeError):
                    self._own_loop.call_soon_threadsafe(self._stop.set)
            await self._ended.wait()
            self._thread.join()

    # -- in the thread -------------------------------------------------------------------------------------------

    def _run_thread(self) -> None:
        try:
            asyncio.run(self._thread_main())
        except Exception:
            _log.exception("lease renewal stopped")
        finally:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._ended.set)

    async def _thread_main(self) -> None:
        self._own_loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        assert self._open_engine is not None
        patience = Patience(LONGEST_PAUSE_S)
        while not self._stopping:
            try:
                engine = await self._open_engine()
            except Exception as error:
                pause_s = patience.next_s()
                _log.warning("renewal uses the worker's engine; it opens one of its own in %.1f s: %s", pause_s, error)
                await self._borrow(time.monotonic() + pause_s)
            else:
                async with engine:
                    await self._keep(engine)

    async def _borrow(self, until: float) -> None:
        """Renew on the worker's loop with the worker's engine for a while, as far as that loop is not blocked."""
        while not self._stopping and time.monotonic() < until:
            once = self._round(self._engine)
            try:
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(once, self._loop))
            except (RuntimeError, asyncio.CancelledError):
                once.close()  # the worker's loop has ended, or ends
            await self._pause(self._look_s)

    async def _pause(self, seconds: float) -> None:
        if self._stop is None:
            await asyncio.sleep(seconds)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()

    async def _keep(self, engine: Engine) -> None:
        while not self._stopping:
            await self._round(engine)
            await self._pause(self._look_s)

    async def _round(self, engine: Engine) -> None:
        try:
            await self._renew_due(engine)
            now = time.monotonic()
            for index, (every, chore) in enumerate(self._chores):
                if self._due[index] <= now:
                    self._due[index] = now + every
                    await self._bounded(chore(engine))
        except Exception as error:
            level = logging.WARNING if is_passing(error) else logging.ERROR
            _log.log(level, "renewal: %s", error, exc_info=level == logging.ERROR)

    async def _bounded(self, call: Awaitable[Any]) -> Any:
        async with asyncio.timeout(self._patience_s):
            return await call

    async def _look_for_lost(self, engine: Engine) -> None:
        """Notice soon that a run was cancelled, taken away or asked to cancel: by looking at all that is held, in one
        read."""
        before = time.monotonic() - LOST_LOOK_S / 2
        with self._lock:
            held = {id(lease.handle): lease for lease in self._leases if lease.since <= before}
        handles = [lease.handle for lease in held.values()]
        for start in range(0, len(handles), AT_ONCE):
            look = await self._bounded(engine.look_at_leases(handles[start : start + AT_ONCE]))
            for handle in look.cancelling:
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(held[id(handle)].ask_to_end)
            for handle in look.lost:
                self._not_renewed(held[id(handle)], Contention(ContentionKind.LEASE_CONFLICT, str(handle.execution_id)))

    async def _renew_due(self, engine: Engine) -> None:
        horizon = time.monotonic() + self._look_s / 2
        with self._lock:
            due = [lease for lease in self._leases if lease.renew_at <= horizon]
        for start in range(0, len(due), AT_ONCE):
            await self._renew(engine, due[start : start + AT_ONCE])

    async def _renew(self, engine: Engine, leases: list[Lease]) -> None:
        at = time.monotonic()
        calls = [asyncio.ensure_future(engine.renew(lease.handle)) for lease in leases]
        _, late = await asyncio.wait(calls, timeout=self._patience_s)
        for call in late:
            call.cancel()
        for lease, call in zip(leases, calls, strict=True):
            if call in late:
                self._not_renewed(lease, TimeoutError("the store does not respond"))
            elif (error := call.exception()) is not None:
                self._not_renewed(lease, error)
            else:
                lease.renewed(at)

    def _not_renewed(self, lease: Lease, error: BaseException) -> None:
        if is_passing(error):
            if lease.healthy:
                return  # and try again at the next look
        elif not isinstance(error, EngineError):
            _log.error("the lease of %s was not renewed: %r", lease.handle.execution_id, error)
            return
        with self._lock:
            known = lease in self._leases
            self._leases.pop(lease, None)
        if known:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(lease.lose, error)
