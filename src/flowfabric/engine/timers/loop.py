"""The loops that run the timers of one engine, and the catalogue of timers.

What work waits for has a loop of its own, so that no timer that repairs, counts or deletes delays it, however much
that finds. Between ticks a loop sleeps until the next thing falls due, or until a timer's interval is over. A timer
that fails is tried again at its next turn; an unexpected error makes it rest before it goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Collection, Mapping
from contextvars import Context
from typing import Any

from msgspec import Struct

from flowfabric.engine.checks import values
from flowfabric.engine.timers.suspension import brings_timeout
from flowfabric.model.decisions import Writes
from flowfabric.model.errors import EngineError, Validation, ValidationKind
from flowfabric.model.limits import INTAKE_MS
from flowfabric.model.records.budgets import Budget, QuotaPolicy
from flowfabric.model.records.executions import Attempt, Execution, Suspension
from flowfabric.model.records.starts import Schedule
from flowfabric.stores.questions import NextDue

_log = logging.getLogger("flowfabric.timers")

MIN_INTERVAL_MS = 100
#: How long a timer repeats while it finds full batches, before the others of its loop have their turn.
SLICE_S = 1.0
#: Consecutive failures after which a row is left alone for some ticks.
POISON_AFTER, POISON_REST = 3, 10
#: Failures that are remembered before those not seen for some ticks are forgotten.
POISON_KEPT, POISON_FORGET = 500, 50
#: How long a timer rests after an error that nobody expected.
RESTART_S = 5.0
#: How long after its last turn a timer may be called again.
HASTE_S = 0.02


class Timer(Struct, frozen=True):
    """One kind of thing that falls due."""

    name: str
    interval_ms: int
    batch: int
    variable: str
    #: Whether the loop runs it; otherwise only an explicit call does.
    by_itself: bool = True


TIMERS: tuple[Timer, ...] = (
    Timer("lease_expiry", 1_500, 1_000, "FF_LEASE_EXPIRY_INTERVAL_MS"),
    Timer("delayed_promoter", 750, 1_000, "FF_DELAYED_PROMOTER_INTERVAL_MS"),
    # Claims take fresh work as it is, so nothing has to be moved by the clock.
    Timer("intake", INTAKE_MS, 1_000, "FF_INTAKE_INTERVAL_MS", by_itself=False),
    Timer("attempt_timeout", 2_000, 1_000, "FF_ATTEMPT_TIMEOUT_INTERVAL_S"),
    Timer("execution_deadline", 5_000, 1_000, "FF_EXECUTION_DEADLINE_INTERVAL_S"),
    Timer("suspension_timeout", 2_000, 1_000, "FF_SUSPENSION_TIMEOUT_INTERVAL_S"),
    Timer("pending_wp_expiry", 5_000, 100, "FF_PENDING_WP_EXPIRY_INTERVAL_S"),
    Timer("budget_reset", 15_000, 20, "FF_BUDGET_RESET_INTERVAL_S"),
    Timer("quota_window", 5_000, 1_000, "FF_QUOTA_WINDOW_INTERVAL_S"),
    Timer("budget_reconciler", 30_000, 100, "FF_BUDGET_RECONCILER_INTERVAL_S"),
    Timer("quota_reconciler", 30_000, 1_000, "FF_QUOTA_RECONCILER_INTERVAL_S"),
    Timer("idle_gates", 60_000, 200, "FF_IDLE_GATES_INTERVAL_S"),
    Timer("unblock", 5_000, 100, "FF_UNBLOCK_INTERVAL_S"),
    Timer("lane_fairness", 5_000, 1_000, "FF_LANE_FAIRNESS_INTERVAL_S"),
    Timer("schedules", 1_000, 100, "FF_SCHEDULES_INTERVAL_MS"),
    Timer("enqueue_requests", 1_000, 1_000, "FF_ENQUEUE_REQUESTS_INTERVAL_MS"),
    Timer("grant_sweep", 1_000, 1_000, "FF_GRANT_SWEEP_INTERVAL_MS"),
    Timer("worker_registry_ttl_sweep", 30_000, 1_000, "FF_WORKER_REGISTRY_TTL_INTERVAL_S"),
    Timer("dependency_reconciler", 15_000, 1_000, "FF_DEPENDENCY_RECONCILER_INTERVAL_S"),
    Timer("edge_cancel_dispatcher", 1_000, 50, "FF_EDGE_CANCEL_DISPATCHER_INTERVAL_S"),
    Timer("edge_cancel_reconciler", 10_000, 50, "FF_EDGE_CANCEL_RECONCILER_INTERVAL_S"),
    Timer("cancel_reconciler", 15_000, 50, "FF_CANCEL_RECONCILER_INTERVAL_S"),
    Timer("orphan_reconciler", 15_000, 100, "FF_ORPHAN_RECONCILER_INTERVAL_S"),
    Timer("flow_projector", 15_000, 50, "FF_FLOW_PROJECTOR_INTERVAL_S"),
    Timer("index_reconciler", 45_000, 100, "FF_INDEX_RECONCILER_INTERVAL_S"),
    Timer("retention_trimmer", 60_000, 500, "FF_RETENTION_TRIMMER_INTERVAL_S"),
)
#: Timers that fire at a stored time, so that the loop can sleep until then.
_TIMED = (
    "lease_expiry",
    "delayed_promoter",
    "attempt_timeout",
    "execution_deadline",
    "suspension_timeout",
    "budget_reset",
    "quota_window",
    "schedules",
)
#: Timers that work waits for.
_PROMPT = frozenset({*_TIMED, "enqueue_requests", "grant_sweep", "edge_cancel_dispatcher"})

#: Where a commit may leave something that falls due, suspensions apart.
_DUE_FIELDS = (
    (Execution, "delay_until_ms"),
    (Execution, "deadline_at_ms"),
    (Attempt, "lease_expires_at_ms"),
    (Attempt, "attempt_timeout_at_ms"),
    (Budget, "next_reset_at_ms"),
    (QuotaPolicy, "next_room_at_ms"),
    (Schedule, "next_at_ms"),
)


class Poison:
    """Rows whose command keeps failing rest for a while, so that they cannot hold up the others."""

    def __init__(self) -> None:
        #: Row -> how often it failed in a row, and the tick of the last time.
        self._failures: dict[str, tuple[int, int]] = {}
        self._resting: dict[str, int] = {}
        self._ticks = 0

    def __len__(self) -> int:
        return len(self._failures)

    def failed(self, item: str) -> None:
        count = self._failures.get(item, (0, 0))[0] + 1
        if count >= POISON_AFTER:
            self._resting[item] = POISON_REST
            self._failures.pop(item, None)
        else:
            self._failures[item] = (count, self._ticks)

    def succeeded(self, item: str) -> None:
        self._failures.pop(item, None)

    def tick(self) -> frozenset[str]:
        """One tick has begun: who rests during it."""
        self._ticks += 1
        if self._ticks % POISON_FORGET == 0 and len(self._failures) > POISON_KEPT:
            # Rows that failed long ago and were not seen since are somebody else's by now, or gone.
            since = self._ticks - POISON_FORGET
            self._failures = {item: entry for item, entry in self._failures.items() if entry[1] >= since}
        resting = frozenset(self._resting)
        self._resting = {item: left - 1 for item, left in self._resting.items() if left > 1}
        return resting


def checked_intervals(intervals: Any) -> Mapping[str, int]:
    """Intervals a caller gave, by the names of timers that exist."""
    if intervals is None:
        return {}
    if not isinstance(intervals, Mapping):
        raise values.invalid(f"intervals: expected a mapping, got {type(intervals).__name__}")
    names = {timer.name for timer in TIMERS if timer.by_itself}
    for name, interval in intervals.items():
        if name not in names:
            raise values.invalid(f"intervals: {name!r} is not one of {', '.join(sorted(names))}")
        values.integer(interval, f"intervals.{name}", -(2**31), 2**31)
    return intervals


def interval_ms(timer: Timer, overrides: Mapping[str, int]) -> int:
    """The timer's interval: given, or from the environment, or its default. 0 means off."""
    given = overrides.get(timer.name)
    if given is None:
        text = os.environ.get(timer.variable)
        if text is None:
            return timer.interval_ms
        try:
            given = int(text) * (1_000 if timer.variable.endswith("_S") else 1)
        except ValueError:
            raise Validation(ValidationKind.INVALID_INPUT, f"{timer.variable}: {text!r} is not a number") from None
    return 0 if given <= 0 else max(given, MIN_INTERVAL_MS)


class TimerLoop:
    """Runs the timers of one engine until it is stopped."""

    def __init__(self, engine: Any, overrides: Mapping[str, int]) -> None:
        on = {timer.name: interval_ms(timer, overrides) / 1000 for timer in TIMERS if timer.by_itself}
        self._prompt = _Turns(engine, {name: on[name] for name in on if name in _PROMPT and on[name]}, _TIMED)
        self._others = _Turns(engine, {name: on[name] for name in on if name not in _PROMPT and on[name]})

    def notice(self, writes: Writes) -> None:
        """A commit may have brought something that falls due before the loop wakes."""
        self._prompt.notice(writes)

    def hasten(self, name: str) -> None:
        """There may be work for a timer: run it now, or soon if it has just run."""
        self._prompt.hasten(name)
        self._others.hasten(name)

    async def stop(self) -> None:
        """Finish the items under way, then end."""
        await asyncio.gather(self._prompt.stop(), self._others.stop())

    def abandon(self) -> None:
        """End without finishing anything."""
        self._prompt.abandon()
        self._others.abandon()


class _Turns:
    """Timers that run one after the other, in one task. ``timed`` are those that fire at a stored time."""

    def __init__(self, engine: Any, intervals: Mapping[str, float], timed: Collection[str] = ()) -> None:
        self._engine = engine
        self._intervals = intervals
        self._timed = timed
        loop = asyncio.get_running_loop()
        self._next = dict.fromkeys(intervals, loop.time())
        #: When each ran last.
        self._ran: dict[str, float] = {}
        self._wake = asyncio.Event()
        self._planned_ms: int | None = None
        self._stopping = False
        self._task = loop.create_task(self._loop(), name="flowfabric-timers", context=Context())

    def notice(self, writes: Writes) -> None:
        """A commit may have brought something that falls due before the loop wakes."""
        planned = self._planned_ms
        if planned is None:
            return
        if Suspension in writes.puts and brings_timeout(writes, planned):
            self._wake.set()
            return
        for kind, field in _DUE_FIELDS:
            for key, changed in writes.puts.get(kind, {}).items():
                if changed is not None and field not in changed:
                    continue
                due = getattr(writes.records[kind][key], field)
                if due is not None and due < planned:
                    self._wake.set()
                    return

    def hasten(self, name: str) -> None:
        """There may be work for a timer: run it now, or soon if it has just run."""
        due = self._next.get(name)
        if due is not None:
            self._next[name] = min(due, self._ran.get(name, 0.0) + HASTE_S)
            self._wake.set()

    async def _loop(self) -> None:
        while not self._stopping:
            try:
                await self._tick()
            except Exception:
                _log.exception("the timer loop failed and continues in %s s", RESTART_S)
                self._planned_ms = None
                await self._sleep(RESTART_S)

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        due_ms, now_ms = await self._next_due()
        for name in list(self._next):
            if self._stopping:
                return
            resting = self._next[name] > loop.time() + self._intervals[name]
            timed = name in self._timed and due_ms is not None and due_ms <= now_ms and not resting
            if timed or self._next[name] <= loop.time():
                self._ran[name] = loop.time()
                self._next[name] = self._ran[name] + self._intervals[name]
                await self._run(name)
        pause = min(self._next.values(), default=loop.time() + 60) - loop.time()
        due_ms, now_ms = await self._next_due()
        if due_ms is not None:
            # Something overdue that its timer would not take is left for the timer's own interval.
            ahead = (due_ms - now_ms) / 1000
            pause = min(pause, ahead if ahead > 0 else MIN_INTERVAL_MS / 1000)
        # Somebody may have asked for haste meanwhile.
        pause = min(pause, min(self._next.values(), default=loop.time() + 60) - loop.time())
        self._planned_ms = now_ms + int(pause * 1000) if self._timed else None
        await self._sleep(max(pause, 0.001))

    async def _next_due(self) -> tuple[int | None, int]:
        """When the next thing falls due for the timed ones, and the time."""
        if not self._timed:
            return None, 0
        return await self._engine._ask(NextDue()), await self._engine.now_ms()

    async def _run(self, name: str) -> None:
        timer = next(each for each in TIMERS if each.name == name)
        loop = asyncio.get_running_loop()
        until = loop.time() + SLICE_S
        while True:
            try:
                done = await self._engine.run_timer(name)
            except EngineError:
                _log.exception("timer %s failed and will be retried", name)
                return
            except Exception:
                _log.exception("timer %s met an unexpected error and pauses for %s s", name, RESTART_S)
                self._next[name] = max(self._next[name], loop.time() + RESTART_S)
                return
            if done < timer.batch or self._stopping:
                return
            if loop.time() >= until:
                # It goes on as soon as the others have had their turn.
                self._next[name] = loop.time()
                return

    async def _sleep(self, seconds: float) -> None:
        self._wake.clear()
        if self._stopping:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    async def stop(self) -> None:
        """Finish the item under way, then end."""
        self._stopping = True
        self._wake.set()
        await asyncio.wait((self._task,))

    def abandon(self) -> None:
        """End without finishing anything."""
        self._stopping = True
        self._task.cancel()
