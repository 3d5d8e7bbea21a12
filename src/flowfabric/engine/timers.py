"""One loop for everything that falls due, in any number of processes at once.

A timer asks the store for candidates and submits one command for each, through the same batches as everything else.
The rule looks again under lock, so two processes that found the same row do no harm. Between ticks the loop sleeps
until the next thing falls due, or until a timer's interval is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from flowfabric.core.admission import UnblockExecution
from flowfabric.core.grants import SweepGrants
from flowfabric.core.retention import TrimExecution
from flowfabric.core.timers import (
    ATTEMPT_TIMEOUT,
    EXECUTION_DEADLINE,
    ExpireExecution,
    MarkLeaseExpired,
    PromoteDelayed,
    PromoteSubmitted,
)
from flowfabric.core.workers import SweepWorker
from flowfabric.engine import checks
from flowfabric.engine.base import EngineBase
from flowfabric.model import literals as lit
from flowfabric.model.changes import Get, Writes
from flowfabric.model.errors import EngineError, Validation, ValidationKind
from flowfabric.model.ids import ExecutionId
from flowfabric.model.records import Attempt, Execution
from flowfabric.model.results import ExpiryMark, ScannerFilter
from flowfabric.stores.questions import Due, DueWorkers, LiveWorkers, NextDue, TrimHistory

_log = logging.getLogger("flowfabric.timers")

MIN_INTERVAL_MS = 100
#: Rounds one tick repeats while it finds full batches.
MAX_ROUNDS = 10
#: Consecutive failures after which a row is left alone for some ticks.
POISON_AFTER, POISON_REST = 3, 10
RETENTION_MS = 24 * 3600 * 1000
HISTORY_MS = 7 * 24 * 3600 * 1000


class Timer(Struct, frozen=True):
    """One kind of thing that falls due."""

    name: str
    interval_ms: int
    batch: int
    variable: str


TIMERS: tuple[Timer, ...] = (
    Timer("lease_expiry", 1_500, 1_000, "FF_LEASE_EXPIRY_INTERVAL_MS"),
    Timer("delayed_promoter", 750, 1_000, "FF_DELAYED_PROMOTER_INTERVAL_MS"),
    Timer("intake", 750, 1_000, "FF_INTAKE_INTERVAL_MS"),
    Timer("attempt_timeout", 2_000, 1_000, "FF_ATTEMPT_TIMEOUT_INTERVAL_S"),
    Timer("execution_deadline", 5_000, 1_000, "FF_EXECUTION_DEADLINE_INTERVAL_S"),
    Timer("unblock", 5_000, 100, "FF_UNBLOCK_INTERVAL_S"),
    Timer("grant_sweep", 1_000, 1_000, "FF_GRANT_SWEEP_INTERVAL_MS"),
    Timer("worker_registry_ttl_sweep", 30_000, 1_000, "FF_WORKER_REGISTRY_TTL_INTERVAL_S"),
    Timer("retention_trimmer", 60_000, 20, "FF_RETENTION_TRIMMER_INTERVAL_S"),
)
#: Timers that fire at a stored time, so that the loop can sleep until then.
_TIMED = ("lease_expiry", "delayed_promoter", "attempt_timeout", "execution_deadline")


class _Poison:
    """Rows whose command keeps failing rest for a while, so that they cannot hold up the others."""

    def __init__(self) -> None:
        self._failures: dict[str, int] = {}
        self._resting: dict[str, int] = {}

    def failed(self, item: str) -> None:
        count = self._failures[item] = self._failures.get(item, 0) + 1
        if count >= POISON_AFTER:
            self._resting[item] = POISON_REST
            del self._failures[item]

    def succeeded(self, item: str) -> None:
        self._failures.pop(item, None)

    def tick(self) -> frozenset[str]:
        """One tick has begun: who rests during it."""
        resting = frozenset(self._resting)
        self._resting = {item: left - 1 for item, left in self._resting.items() if left > 1}
        return resting


class Timers(EngineBase):
    """The part of the engine that acts when time passes."""

    _filter: ScannerFilter = ScannerFilter()
    _poison: dict[str, _Poison]

    async def run_due(self, limit: int = 1_000) -> dict[str, int]:
        """Run everything that is due once; how much each timer did."""
        return {timer.name: await self.run_timer(timer.name, limit) for timer in TIMERS}

    async def run_timer(self, name: str, limit: int | None = None) -> int:
        """Run one timer once; how much it did."""
        timer = next((each for each in TIMERS if each.name == name), None)
        if timer is None:
            raise checks.invalid(f"timer: {name!r} is none of {', '.join(each.name for each in TIMERS)}")
        size = timer.batch if limit is None else checks.integer(limit, "limit", 1, 100_000)
        body: Callable[[int], Any] = getattr(self, f"_tick_{name}")
        done: int = await body(size)
        return done

    # -- bodies --------------------------------------------------------------------------------------------------

    async def _tick_intake(self, limit: int) -> int:
        return await self._for_each("intake", limit, PromoteSubmitted)

    async def _tick_delayed_promoter(self, limit: int) -> int:
        return await self._for_each("delayed_promoter", limit, PromoteDelayed)

    async def _tick_lease_expiry(self, limit: int) -> int:
        return await self._for_each("lease_expiry", limit, MarkLeaseExpired)

    async def _tick_attempt_timeout(self, limit: int) -> int:
        return await self._for_each("attempt_timeout", limit, lambda item: ExpireExecution(item, ATTEMPT_TIMEOUT))

    async def _tick_execution_deadline(self, limit: int) -> int:
        return await self._for_each("execution_deadline", limit, lambda item: ExpireExecution(item, EXECUTION_DEADLINE))

    async def _tick_grant_sweep(self, limit: int) -> int:
        return await self._for_each("grant_sweep", limit, SweepGrants)

    async def _tick_unblock(self, limit: int) -> int:
        """Let go what some live worker of the lane can run, however many others are blocked before it."""
        resting = self._poison.setdefault("unblock", _Poison()).tick()
        routable: list[str] = []
        looked, window = 0, limit
        while len(routable) < limit:
            wanted = self._filter
            now = await self.now_ms()
            due = await self._ask(Due("unblock", now, window, wanted.namespace, wanted.instance_tag, skip=resting))
            routable += await self._routable(due[looked:])
            if len(due) < window:
                break
            looked, window = window, 4 * window
        reason = lit.WAITING_FOR_CAPABLE_WORKER
        return await self._submit_all("unblock", routable[:limit], lambda item: UnblockExecution(item, reason))

    async def _routable(self, items: list[str]) -> list[str]:
        if not items:
            return []
        workers = await self._ask(LiveWorkers(await self.now_ms(), 10_000))
        able = [(set(worker.lanes), set(filter(None, worker.capabilities_csv.split(",")))) for worker in workers]
        view = await self._view(*(Get(Execution, item) for item in items))
        found = [execution for item in items if (execution := view.execution(item)) is not None]
        return [
            execution.execution_id
            for execution in found
            if any(
                execution.lane_id in lanes and can.issuperset(execution.required_capabilities) for lanes, can in able
            )
        ]

    async def _worker_arrived(self) -> None:
        while await self._tick_unblock(1_000) == 1_000:
            pass

    async def _tick_worker_registry_ttl_sweep(self, limit: int) -> int:
        found = await self._ask(DueWorkers(await self.now_ms(), limit))
        answers = await asyncio.gather(*(self._submit(SweepWorker(*key)) for key in found), return_exceptions=True)
        return sum(answer is True for answer in answers)

    async def _tick_retention_trimmer(self, limit: int) -> int:
        now = await self.now_ms()
        purged = await self._trim("retention_trimmer", None, None, RETENTION_MS, limit, self._filter)
        await self._ask(TrimHistory(now - HISTORY_MS, now - HISTORY_MS, now, 1_000))
        return purged

    # -- single operations ---------------------------------------------------------------------------------------

    async def promote_submitted(
        self, partition: int | None = None, lane: str | None = None, limit: int = 1_000, now: int | None = None
    ) -> int:
        """Move fresh intake to the queue, oldest first."""
        due = await self._due(
            "intake",
            checks.integer(limit, "limit", 1, 100_000),
            partition=checks.optional_partition(partition),
            lane_id=checks.optional_lane(lane),
        )
        return await self._submit_all("intake", due, PromoteSubmitted)

    async def promote_delayed(
        self,
        partition: int | None = None,
        lane: str | None = None,
        execution_id: ExecutionId | str = "",
        now: int | None = None,
    ) -> None:
        """Make one delayed execution claimable if its time has come; otherwise nothing."""
        await self._submit(PromoteDelayed(checks.execution_id(execution_id)))

    async def mark_lease_expired_if_due(self, partition: int | None, execution_id: ExecutionId | str) -> ExpiryMark:
        """Look at one lease now."""
        answer: ExpiryMark = await self._submit(MarkLeaseExpired(checks.execution_id(execution_id)))
        return answer

    async def expire_execution(
        self, partition: int | None, execution_id: ExecutionId | str, phase: str, now: int | None = None
    ) -> bool:
        """Look at one attempt timeout or deadline now; whether it was due."""
        if phase not in (ATTEMPT_TIMEOUT, EXECUTION_DEADLINE):
            raise checks.invalid(f"phase: {phase!r} is neither {ATTEMPT_TIMEOUT} nor {EXECUTION_DEADLINE}")
        answer: bool = await self._submit(ExpireExecution(checks.execution_id(execution_id), phase))
        return answer

    async def trim_retention(
        self,
        partition: int | None = None,
        lane: str | None = None,
        retention_ms: int = RETENTION_MS,
        now: int | None = None,
        batch_size: int = 20,
        filter: ScannerFilter | None = None,
    ) -> int:
        """Delete executions that ended at least ``retention_ms`` ago, oldest first; how many."""
        kept = checks.time_ms(retention_ms, "retention_ms")
        size = checks.integer(batch_size, "batch_size", 1, 10_000)
        where, queue = checks.optional_partition(partition), checks.optional_lane(lane)
        return await self._trim("retention", where, queue, kept, size, checks.scanner_filter(filter))

    async def _trim(
        self,
        name: str,
        partition: int | None,
        lane: str | None,
        retention_ms: int,
        limit: int,
        wanted: ScannerFilter,
    ) -> int:
        now = await self.now_ms()
        scope = (limit, wanted.namespace, wanted.instance_tag, lane, partition)
        purged = 0
        kept: frozenset[str] = frozenset()
        for _ in range(MAX_ROUNDS):
            due = await self._ask(Due("purge", now, *scope, kept))
            due += await self._ask(Due("retention", now - retention_ms, *scope, kept))
            due = due[: limit - purged]
            done = await self._submit_all(name, due, lambda item: TrimExecution(item, retention_ms))
            purged += done
            if done == len(due) or purged >= limit:
                break
            # Some must stay, because of their own policy or of an open flow: look past them.
            kept = kept.union(due)
        return purged

    # -- machinery -----------------------------------------------------------------------------------------------

    async def _due(
        self, what: str, limit: int, *, partition: int | None = None, lane_id: str | None = None
    ) -> list[str]:
        resting = self._poison.setdefault(what, _Poison()).tick()
        found: list[str] = await self._ask(
            Due(
                what,
                await self.now_ms(),
                limit,
                self._filter.namespace,
                self._filter.instance_tag,
                lane_id,
                partition,
                resting,
            )
        )
        return found

    async def _for_each(self, what: str, limit: int, make: Callable[[str], Any]) -> int:
        return await self._submit_all(what, await self._due(what, limit), make)

    async def _submit_all(self, what: str, items: list[str], make: Callable[[str], Any]) -> int:
        poison = self._poison.setdefault(what, _Poison())
        answers = await asyncio.gather(*(self._submit(make(item)) for item in items), return_exceptions=True)
        done = 0
        for item, answer in zip(items, answers, strict=True):
            if isinstance(answer, BaseException):
                if not isinstance(answer, EngineError):
                    raise answer
                poison.failed(item)
                _log.warning("%s: %s: %s", what, item, answer)
            else:
                poison.succeeded(item)
                done += _did(answer)
        return done

    def start_timers(self, intervals: Mapping[str, int] | None = None, filter: ScannerFilter | None = None) -> None:
        """Start the timer loop. ``intervals`` overrides milliseconds by name; 0 switches a timer off."""
        self._check_open()
        wanted, overrides = checks.scanner_filter(filter), _checked_intervals(intervals)
        if self._timer is None:
            self._filter = wanted
            self._timer = TimerLoop(self, overrides)


def _checked_intervals(intervals: Any) -> Mapping[str, int]:
    if intervals is None:
        return {}
    if not isinstance(intervals, Mapping):
        raise checks.invalid(f"intervals: expected a mapping, got {type(intervals).__name__}")
    names = {timer.name for timer in TIMERS}
    for name, interval in intervals.items():
        if name not in names:
            raise checks.invalid(f"intervals: {name!r} is none of {', '.join(sorted(names))}")
        checks.integer(interval, f"intervals.{name}", -(2**31), 2**31)
    return intervals


def _did(answer: Any) -> int:
    if isinstance(answer, ExpiryMark):
        return answer.status in ("marked", "requeued", "failed", "cleared")
    return answer if isinstance(answer, int) else 1


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

    def __init__(self, engine: Timers, overrides: Mapping[str, int]) -> None:
        self._engine = engine
        loop = asyncio.get_running_loop()
        self._intervals = {timer.name: interval_ms(timer, overrides) / 1000 for timer in TIMERS}
        self._next = {name: loop.time() for name, interval in self._intervals.items() if interval}
        self._wake = asyncio.Event()
        self._planned_ms: int | None = None
        self._stopping = False
        self._task = loop.create_task(self._loop(), name="flowfabric-timers")

    def notice(self, writes: Writes) -> None:
        """A commit may have brought something that falls due before the loop wakes."""
        planned = self._planned_ms
        if planned is None:
            return
        for key in writes.puts.get(Execution, ()):
            execution = writes.records[Execution][key]
            if execution is not None and execution.delay_until_ms is not None and execution.delay_until_ms < planned:
                self._wake.set()
                return
        for key in writes.puts.get(Attempt, ()):
            expires = writes.records[Attempt][key].lease_expires_at_ms
            if expires is not None and expires < planned:
                self._wake.set()
                return

    async def _loop(self) -> None:
        while not self._stopping:
            try:
                await self._tick()
            except Exception:
                _log.exception("the timer loop met an error and goes on")
                await self._sleep(1.0)

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        due_ms = await self._engine._ask(NextDue())
        now_ms = await self._engine.now_ms()
        for name in list(self._next):
            if self._stopping:
                return
            timed = name in _TIMED and due_ms is not None and due_ms <= now_ms
            if timed or self._next[name] <= loop.time():
                self._next[name] = loop.time() + self._intervals[name]
                await self._run(name)
        pause = min(self._next.values(), default=loop.time() + 60) - loop.time()
        due_ms = await self._engine._ask(NextDue())
        now_ms = await self._engine.now_ms()
        if due_ms is not None:
            # Something overdue that its timer would not take is left for the timer's own interval.
            ahead = (due_ms - now_ms) / 1000
            pause = min(pause, ahead if ahead > 0 else MIN_INTERVAL_MS / 1000)
        self._planned_ms = now_ms + int(pause * 1000)
        await self._sleep(max(pause, 0.001))

    async def _run(self, name: str) -> None:
        timer = next(each for each in TIMERS if each.name == name)
        for _ in range(MAX_ROUNDS):
            try:
                done = await self._engine.run_timer(name)
            except EngineError:
                _log.exception("timer %s failed and will be tried again", name)
                return
            if done < timer.batch or self._stopping:
                return

    async def _sleep(self, seconds: float) -> None:
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)

    async def stop(self) -> None:
        """Finish the item under way, then end."""
        self._stopping = True
        self._wake.set()
        await asyncio.gather(self._task, return_exceptions=True)
