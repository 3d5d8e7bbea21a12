"""``Worker``: claims work, runs it, keeps its leases, and gives back what it cannot finish.

async with app.worker(lanes=["default"]):     # beside other code
    …
await app.worker().run()                      # until stop() is called
app.run_worker()                              # until SIGTERM or SIGINT
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import hashlib
import logging
import os
import socket
import time
import uuid
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from msgspec.structs import replace

from flowfabric.engine import Engine
from flowfabric.model.errors import EngineError
from flowfabric.model.handles import Handle
from flowfabric.model.ids import ExecutionId
from flowfabric.model.limits import MAX_CLAIM
from flowfabric.model.operations.executions import ClaimPolicy, ExecutionContext
from flowfabric.sdk.backoff import Patience
from flowfabric.sdk.definitions.depends import Dependencies
from flowfabric.sdk.definitions.tasks import Definition
from flowfabric.sdk.durations import milliseconds
from flowfabric.sdk.errors import BadOptions
from flowfabric.sdk.middleware import Layered
from flowfabric.sdk.options import FREE_PROCESS
from flowfabric.sdk.worker.attempt import Interruption, Job, run_attempt
from flowfabric.sdk.worker.health import LoopWatch
from flowfabric.sdk.worker.pace import Pace
from flowfabric.sdk.worker.presence import Presence
from flowfabric.sdk.worker.processes import Processes
from flowfabric.sdk.worker.renewal import Renewal, is_passing
from flowfabric.sdk.worker.shared import WorkerShared
from flowfabric.sdk.worker.threads import Threads

if TYPE_CHECKING:
    from flowfabric.sdk.app import App

_log = logging.getLogger("flowfabric.worker")

#: How long one claim waits for work. It looks once a second by itself, and wakes when work is announced.
LONG_POLL_MS = 60_000
#: The same through a server while all processes are busy: so long one that is free again may wait for work.
REMOTE_POLL_MS = 1_000
#: Work is taken ahead only as far as it will be begun within this time, at the recent pace. So often that is judged.
AHEAD_S = 0.1
#: What was to begin that soon and has not after this time goes back. A short delay of everything is no reason.
OVERDUE_S = 1.0
#: And never more than this many times what runs at once.
MOST_AHEAD = 4
LONGEST_PAUSE_S = 5.0
#: How long no work is claimed, at most, when what came last had to go back for lack of a process.
LONGEST_CROWDED_S = 5.0
#: How long cancelled handlers may take to unwind.
UNWIND_S = 5.0


class Worker:
    """Runs the app's tasks and workflows. Every worker also runs the engine's timers: any one of them suffices to
    bring back what others left behind."""

    def __init__(
        self,
        app: App,
        *,
        lanes: Iterable[str] | Mapping[str, int] | None = None,
        concurrency: int = 64,
        capabilities: Iterable[str] = (),
        name: str | None = None,
        lease_ttl: timedelta = timedelta(seconds=30),
        drain_grace: timedelta = timedelta(seconds=20),
        processes: int | None = None,
        metrics: bool = True,
    ) -> None:
        """
        ``lanes``: the lanes to serve: names, or names with weights (``{"urgent": 3, "default": 1}``); by default the
        app's own.
        ``concurrency``: how many attempts run at once.
        ``capabilities``: what this worker offers to tasks with ``needs=``.
        ``name``: its name in lists and logs; by default the host's name and the process id.
        ``lease_ttl``: how long other workers wait before they take over a dead worker's runs.
        ``drain_grace``: how long a stopping worker waits for its running attempts.
        ``processes``: how many processes serve tasks with ``run_in="process"``; by default one per processor.
        ``metrics``: whether it keeps metrics, for ``app.metrics`` and ``/metrics``.
        """
        if type(concurrency) is not int or concurrency < 1:
            raise BadOptions(f"concurrency: {concurrency!r} is not a whole number above 0", option="concurrency")
        if isinstance(lanes, str):
            raise BadOptions(f"lanes: {lanes!r} is a single string; write lanes=[{lanes!r}]", option="lanes")
        if isinstance(capabilities, str):
            raise BadOptions(f"capabilities: {capabilities!r} is a single string; pass a list", option="capabilities")
        self.app = app
        wanted = (app.lane,) if lanes is None else lanes
        self.lanes = dict(wanted) if isinstance(wanted, Mapping) else dict.fromkeys(wanted, 1)
        if not self.lanes:
            raise BadOptions("lanes: a worker needs at least one lane", option="lanes")
        self.concurrency = concurrency
        self.capabilities = tuple(sorted(set(capabilities)))
        self.name = name or f"{socket.gethostname()}-{os.getpid()}"
        self.instance = f"{self.name}-{uuid.uuid4().hex[:12]}"
        self._lease_ms = milliseconds(lease_ttl, "lease_ttl", zero=False)
        self._grace_s = milliseconds(drain_grace, "drain_grace") / 1000
        self._process_count = processes
        self.metrics = app.metrics if metrics else None
        self._stopping = False
        self._now = asyncio.Event()
        self._claimer: asyncio.Task[None] | None = None
        #: The claim that is being made, if one is, and whether it is for work that needs a process, too.
        self._claim_made: asyncio.Future[list[Handle]] | None = None
        self._for_processes = False
        self._main: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._changed = asyncio.Event()
        self._queue: deque[Job] = deque()
        self._running: set[Job] = set()
        self._pace = Pace()
        #: What is being given back because others can begin it sooner; and when that is looked at next.
        self._returning: set[asyncio.Task[None]] = set()
        self._next_look: asyncio.TimerHandle | None = None
        self._shared: WorkerShared | None = None
        #: The context the worker was started in: every attempt begins in a copy of it.
        self._context = contextvars.Context()
        self.watch: LoopWatch | None = None

    def __repr__(self) -> str:
        offers = f", offers {self.capability_digest}" if self.capabilities else ""
        return f"<worker {self.name} of {self.app!r}{offers}>"

    @property
    def capability_digest(self) -> str:
        """A short name for the list of capabilities, which may be long: lines of the log carry it."""
        return hashlib.sha256("\n".join(self.capabilities).encode()).hexdigest()[:8]

    # -- from outside --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until ``stop`` is called; returns when everything is finished or given back."""
        await self._start()
        await self._finish()

    def stop(self, *, now: bool = False) -> None:
        """Take no more work. What runs may finish within the grace; with ``now``, or after a second call with it, it is
        cancelled. What is not finished goes back to the queue: no failure is counted, and its attempt goes on in
        another worker."""
        self._stopping = True
        if now:
            self._now.set()
        self._changed.set()
        if self._claimer is not None and self._claim_made is not None:
            self._claimer.cancel()

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(now=kind is not None)
        await self._finish()

    async def _finish(self) -> None:
        """Return when everything is finished or given back. A cancel hastens that, but does not skip it."""
        main = self._main
        assert main is not None
        cancelled: asyncio.CancelledError | None = None
        while not main.done():
            try:
                await asyncio.wait((main,))
            except asyncio.CancelledError as told:
                cancelled = told
                self.stop(now=True)
        error = None if main.cancelled() else main.exception()
        if cancelled is not None:
            raise cancelled
        if error is not None:
            raise error

    async def _start(self) -> None:
        if self._main is not None:
            raise BadOptions("a worker can start only once; create another one", option="worker")
        self._context = contextvars.copy_context()
        self._main = asyncio.get_running_loop().create_task(self._work(), name=f"flowfabric-worker-{self.name}")
        ready = asyncio.ensure_future(self._ready.wait())
        try:
            await asyncio.wait((self._main, ready), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # Giving up while the worker starts leaves no worker behind.
            self.stop(now=True)
            with contextlib.suppress(Exception):
                await self._finish()
            raise
        finally:
            ready.cancel()
        if self._main.done():
            await self._main

    @property
    def running(self) -> int:
        """How many attempts run now."""
        return len(self._running)

    # -- the whole life ------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        async with self.app, contextlib.AsyncExitStack() as stack:
            shared = await self._open(stack)
            self._ready.set()
            _log.info("%r serves %s with concurrency %d", self, ", ".join(self.lanes), self.concurrency)
            if self.capabilities:
                _log.info("capabilities %s: %s", self.capability_digest, ", ".join(self.capabilities))
            claimer = asyncio.get_running_loop().create_task(self._claim_all(shared), name="flowfabric-claims")
            self._claimer = claimer
            try:
                await asyncio.wait((claimer,))
            finally:
                claimer.cancel()
                await asyncio.wait((claimer,))
                await self._drain()
            if not claimer.cancelled():
                claimer.result()
            _log.info("%r has stopped", self)

    async def _open(self, stack: contextlib.AsyncExitStack) -> WorkerShared:
        engine = self.app.engine
        loop = asyncio.get_running_loop()
        await self.app.schedules.store()
        self._watch(engine)
        engine.start_timers()
        dependencies = await stack.enter_async_context(Dependencies(self.app.overrides))
        threads = Threads(self.concurrency, f"flowfabric-{self.name}", loop, self._changed_room)
        stack.callback(threads.close)
        processes = Processes(self._process_count, self._changed_room)
        stack.push_async_callback(processes.close)
        presence = Presence(self, max(2 * self._lease_ms, 10_000))
        renewal = Renewal(
            loop,
            self._lease_ms / 1000,
            self._open_engine if _can_be_shared(self.app.url, engine) else None,
            engine,
            presence.chores,
        )
        await presence.register(engine)
        stack.push_async_callback(presence.leave, engine)
        await presence.announced()
        renewal.start()
        stack.push_async_callback(renewal.stop)
        self.watch = LoopWatch(loop)
        self.watch.start()
        stack.callback(self.watch.stop)
        main = asyncio.current_task()
        assert main is not None
        self._shared = WorkerShared(
            self.app, engine, self.name, self.instance, dependencies, threads, processes, renewal, main
        )
        return self._shared

    async def _open_engine(self) -> Engine:
        engine = await self.app.open_engine()
        self._watch(engine)
        return engine

    def _watch(self, engine: Any) -> None:
        """Count what the engine does, unless somebody counts already."""
        while isinstance(engine, Layered):
            engine = engine.inner
        if self.metrics is not None and getattr(engine, "observer", self) is None:
            engine.observer = self.metrics.engine

    # -- claiming ------------------------------------------------------------------------------------------------

    def _ahead(self) -> int:
        """How many to take beyond the free slots: what will be begun within moments, so that commits are shared."""
        soon = self._pace.ends_within(AHEAD_S, self._elapsed(self._running), max(self._slots(), 0))
        return min(MOST_AHEAD * self.concurrency, soon)

    def _elapsed(self, jobs: Iterable[Job]) -> list[tuple[str, float]]:
        now = time.monotonic()
        return [(job.kind, now - job.began_at) for job in jobs]

    def _slots(self) -> int:
        """Free slots. A thread that nobody waits for any more still takes one."""
        abandoned = self._shared.executor.abandoned if self._shared is not None else 0
        return self.concurrency - len(self._running) - abandoned

    def offered(self, processes: bool) -> tuple[str, ...]:
        """Its capabilities, with or without processes."""
        return (*self.capabilities, FREE_PROCESS) if processes else self.capabilities

    def knows_processes(self) -> bool:
        """Whether the app has tasks that run in processes."""
        return any(map(_in_process, self.app.definitions.values()))

    def _needs_process(self, job: Job) -> bool:
        definition = self.app.definitions.get(job.kind)
        return definition is not None and _in_process(definition)

    def _free_processes(self) -> int:
        if self._shared is None:
            return 0
        processes, running = self._shared.processes, sum(map(self._needs_process, self._running))
        return processes.count - max(processes.busy, running)

    def _processes_ahead(self) -> int:
        """How many that need a process to take beyond the free ones."""
        return self._pace.ends_within(AHEAD_S, self._elapsed(filter(self._needs_process, self._running)))

    def _changed_room(self) -> None:
        self._begin_next()
        self._changed.set()
        if self._claim_made is None or self._for_processes or self.app.is_remote:
            return
        if self._process_room() > 0:
            # It passes over work that can be done by now.
            self._claim_made.cancel()

    async def _claim_all(self, shared: WorkerShared) -> None:
        patience, crowded = Patience(LONGEST_PAUSE_S), Patience(LONGEST_CROWDED_S)
        most = min(self._process_room(), MAX_CLAIM)
        policy = ClaimPolicy(self.name, self.instance, self._lease_ms, LONG_POLL_MS)
        # A claim through a server is not given up for a better one: its answer may be on the way.
        short = replace(policy, max_wait=REMOTE_POLL_MS) if self.app.is_remote else policy
        while not self._stopping:
            room = self._slots() + self._ahead() - len(self._queue)
            if room <= 0:
                if self.metrics is not None:
                    self.metrics.at_capacity.add()
                self._changed.clear()
                await self._changed.wait()
                continue
            at = time.monotonic()
            try:
                self._for_processes = self._process_room() > 0
                if self._for_processes:
                    handles = await self._claim(shared.engine, policy, min(room, most))
                else:
                    handles = await self._claim(shared.engine, short, min(room, MAX_CLAIM))
                if handles and await self._take(shared, handles, at):
                    most = max(self._process_room(), 1)
                    if not self._for_processes:
                        await self._rest_while_crowded(crowded)
                elif self._for_processes:
                    crowded.renew()
                    most = min(2 * most, MAX_CLAIM)
            except EngineError as error:
                level = logging.WARNING if is_passing(error) or error.retryable else logging.ERROR
                _log.log(level, "%r cannot claim, retrying: %s", self, error)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(patience.next_s()):
                        await self._stopped()
            else:
                patience.renew()

    def _process_room(self) -> int:
        """How many more to take that need a process."""
        if not self.knows_processes():
            return MAX_CLAIM
        waiting = sum(map(self._needs_process, self._queue))
        return self._free_processes() + self._processes_ahead() - waiting

    async def _rest_while_crowded(self, patience: Patience) -> None:
        """What was claimed needs a process and does not say so, because it was not started as a task: claimed now, it
        would have to go back again."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience.next_s()):
                while not self._stopping and self._process_room() <= 0:
                    self._changed.clear()
                    await self._changed.wait()

    async def _stopped(self) -> None:
        while not self._stopping:
            self._changed.clear()
            await self._changed.wait()

    async def _claim(self, engine: Engine, policy: ClaimPolicy, limit: int) -> list[Handle]:
        # Only here may the claimer be cancelled: a claim that is given up while it waits leaves no lease behind.
        # Only work of the app's own namespace: others may share the lane, and know nothing of its tasks.
        within, offered = (self.app.namespace,), self.offered(self._for_processes)
        if len(self.lanes) == 1:
            call = engine.claim_many(next(iter(self.lanes)), offered, policy, limit, within)
        else:
            call = engine.claim_from_lanes(self.lanes, offered, policy, limit, within)
        at = time.monotonic()
        made = self._claim_made = asyncio.ensure_future(call)
        try:
            return await made
        except asyncio.CancelledError:
            if made.done() and not made.cancelled() and made.exception() is None:
                # It was answered just before.
                await self._give_back(self._jobs(made.result(), at))
                raise
            task = asyncio.current_task()
            if not made.cancelled() or (task is not None and task.cancelling()):
                raise
            return []
        finally:
            self._claim_made = None

    def _jobs(self, handles: Iterable[Handle], at: float) -> list[Job]:
        shared, nothing = self._shared, ExecutionContext(b"", "", {})
        assert shared is not None
        return [Job(self.app, shared.engine, handle, nothing, shared, at) for handle in handles]

    async def _take(self, shared: WorkerShared, handles: list[Handle], at: float) -> bool:
        """Begin what was claimed, or keep it for a moment; whether some goes back for lack of a process."""
        jobs = self._jobs(handles, at)
        for job in jobs:
            shared.renewal.add(job.lease)
        ids = [job.handle.execution_id for job in jobs]
        try:
            contexts = await self._contexts(shared.engine, ids, jobs)
        except asyncio.CancelledError:
            await self._give_back(jobs)
            raise
        for job, identity in zip(jobs, ids, strict=True):
            context = contexts.get(identity)
            if context is None:
                shared.renewal.discard(job.lease)
                continue
            job.context = context
            self._queue.append(job)
        return self._look()

    async def _contexts(
        self, engine: Engine, ids: list[ExecutionId], jobs: list[Job]
    ) -> Mapping[ExecutionId, ExecutionContext]:
        patience = Patience(LONGEST_PAUSE_S)
        while True:
            try:
                return await engine.read_execution_contexts(ids)
            except EngineError as error:
                if all(job.is_lost for job in jobs):
                    return {}
                _log.warning("%r cannot read what it claimed, retrying: %s", self, error)
            await patience.rest()

    # -- running -------------------------------------------------------------------------------------------------

    def _begin_next(self) -> None:
        if self._now.is_set():
            return
        loop = asyncio.get_running_loop()
        waiting: deque[Job] = deque()
        while self._queue and self._slots() > 0:
            job = self._queue.popleft()
            if job.is_lost:
                continue
            if self._needs_process(job) and self._free_processes() <= 0:
                waiting.append(job)
                continue
            self._running.add(job)
            job.began_at = time.monotonic()
            if self.metrics is not None:
                self.metrics.started(job.handle.payload.lane_id, time.monotonic() - job.taken_at)
                self.metrics.running.add()
            # Not in the context of whatever has made room: that may be an attempt of somebody else's.
            context = self._context.copy()
            job.task = loop.create_task(self._run(job), name=f"{job.kind} {job.execution_id}", context=context)
        self._queue.extendleft(reversed(waiting))

    def _look(self) -> bool:
        """Begin what can be, and give back at once what will not begin within moments: an idle worker may be waiting
        for it. Whether some of that waited for a process."""
        self._begin_next()
        surplus = self._surplus()
        if surplus:
            self._return(surplus, "another worker can start it sooner")
        if self._next_look is not None:
            self._next_look.cancel()
        self._next_look = asyncio.get_running_loop().call_later(AHEAD_S, self._look) if self._queue else None
        return any(map(self._needs_process, surplus))

    def _return(self, jobs: list[Job], reason: str) -> None:
        """Give back beside what else goes on."""
        task = asyncio.get_running_loop().create_task(
            self._give_back(jobs, reason), name="flowfabric-returning", context=contextvars.Context()
        )
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    def _surplus(self) -> list[Job]:
        """Take out of the queue what is behind all that will begin soon: when it has just come, or is overdue."""
        left, processes, now = self._ahead(), self._processes_ahead(), time.monotonic()
        kept: deque[Job] = deque()
        surplus: list[Job] = []
        for job in self._queue:
            if job.is_lost:
                continue
            needs = self._needs_process(job)
            decided = not AHEAD_S <= now - job.taken_at < OVERDUE_S
            if decided and (left <= 0 or (needs and processes <= 0)):
                surplus.append(job)
                continue
            kept.append(job)
            left -= 1
            processes -= needs
        self._queue = kept
        return surplus

    async def _run(self, job: Job) -> None:
        try:
            await run_attempt(job)
        except asyncio.CancelledError:
            # Cancelled again while it was ending.
            if not job.ended and not job.is_lost:
                self._return([job], "it was cancelled")
        except BaseException:
            _log.exception("%r was not given back; its lease will expire", job)
        finally:
            job.worker.renewal.discard(job.lease)
            self._running.discard(job)
            if self.metrics is not None:
                self.metrics.running.add(amount=-1)
            self._pace.note(job.kind, time.monotonic() - job.began_at)
            self._changed_room()

    # -- stopping ------------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        self._stopping = True
        if self._next_look is not None:
            self._next_look.cancel()
        waiting, self._queue = list(self._queue), deque()
        await self._give_back(waiting)
        await asyncio.gather(*self._returning)
        if self._running:
            _log.info("%r waits up to %.0f s for %d attempts", self, self._grace_s, len(self._running))
        await self._until_idle(self._grace_s, self._now)
        for job in self._running:
            job.interrupt(Interruption.DRAIN)
        await self._until_idle(UNWIND_S)
        left = list(self._running)
        for job in left:
            _log.warning("%r does not stop; its lease is released", job)
        await self._give_back(left)
        await asyncio.gather(*self._returning)

    async def _until_idle(self, most_s: float, sooner: asyncio.Event | None = None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                while self._running and not (sooner is not None and sooner.is_set()):
                    self._changed.clear()
                    await self._changed.wait()

    async def _give_back(self, jobs: list[Job], reason: str = "the worker is stopping") -> None:
        await asyncio.gather(*(job.give_back(reason) for job in jobs if not job.ended))
        for job in jobs:
            job.worker.renewal.discard(job.lease)


def _in_process(definition: Definition[..., Any]) -> bool:
    return definition.options.run_in == "process"


def _can_be_shared(url: str, engine: Engine) -> bool:
    """Whether a second engine on this URL sees the same store."""
    if url.startswith("memory:"):
        return False
    location = getattr(engine.store, "location", None)
    return location is None or not location.in_memory
