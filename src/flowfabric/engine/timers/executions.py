"""Everything that falls due, in any number of processes at once.

A timer asks the store for candidates and submits one command for each, through the same batches as everything else.
The rule looks again under lock, so two processes that found the same row do no harm. ``loop`` says when each
timer runs; the bodies of other parts live in files of their own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from msgspec import structs

from flowfabric.core.admission.block import UnblockExecution
from flowfabric.core.executions.due import (
    ATTEMPT_TIMEOUT,
    EXECUTION_DEADLINE,
    ExpireExecution,
    MarkLeaseExpired,
    PromoteDelayed,
    PromoteSubmitted,
)
from flowfabric.core.executions.retention import TrimExecution
from flowfabric.core.lanes.workers import SweepWorker
from flowfabric.core.leases.grants import SweepGrants
from flowfabric.core.workflows.orphans import CancelOrphan
from flowfabric.engine.checks import values
from flowfabric.engine.timers.budgets import BudgetTimers
from flowfabric.engine.timers.loop import TIMERS, Poison, TimerLoop, checked_intervals
from flowfabric.engine.timers.suspension import SuspensionTimers
from flowfabric.model import states as lit
from flowfabric.model.decisions import Get, GetFull
from flowfabric.model.errors import EngineError
from flowfabric.model.ids import ExecutionId
from flowfabric.model.limits import AUDIT_KEPT_MS, GONE_KEPT_MS, KIND_KEPT_MS, REFUSED_KEPT_MS, RETENTION_MS
from flowfabric.model.operations.executions import ExpiryMark, ScannerFilter
from flowfabric.model.quoting import quoted
from flowfabric.model.reads.samples import SAMPLES_KEPT_MS
from flowfabric.model.records.executions import Execution
from flowfabric.stores.questions import Due, DueWorkers, LiveWorkers, NextDue, TrimHistory

_log = logging.getLogger("flowfabric.timers")

#: Batches in which one call looks for executions that it may delete.
MAX_LOOKS = 10
#: Old events one transaction deletes from each outbox, and transactions one tick may take.
TRIM_BATCH, MAX_TRIM_ROUNDS = 1_000, 50
HISTORY_MS = 7 * 24 * 3600 * 1000


class Place(NamedTuple):
    """How far a look has come in the order of time: what fell due earlier has been looked at, and so have these."""

    skip: frozenset[str] = frozenset()
    since: int | None = None

    def behind(self, times: Mapping[str, int]) -> Place:
        """The place behind executions that stay, by when they fell due."""
        if not times:
            return self
        since = max(times.values())
        skip = frozenset(item for item, at in times.items() if at == since)
        return Place(self.skip | skip if since == self.since else skip, since)


class Timers(SuspensionTimers, BudgetTimers):
    """The part of the engine that acts when time passes."""

    _filter: ScannerFilter = ScannerFilter()
    _poison: dict[str, Poison]
    #: Where looking for executions to delete goes on: before it stand some that have to stay.
    _passed: Mapping[str, Place] = {}

    async def run_due(self, limit: int = 1_000) -> dict[str, int]:
        """Run everything that is due once; how much each timer did."""
        return {timer.name: await self.run_timer(timer.name, limit) for timer in TIMERS if timer.by_itself}

    async def next_due_ms(self) -> int | None:
        """When something next falls due; ``None`` if nothing will by itself. What is late is due now."""
        due: int | None = await self._ask(NextDue())
        return due

    async def run_timer(self, name: str, limit: int | None = None) -> int:
        """Run one timer once; how much it did."""
        timer = next((each for each in TIMERS if each.name == name), None)
        if timer is None:
            raise values.invalid(f"timer: {quoted(name)} is not one of {', '.join(each.name for each in TIMERS)}")
        size = timer.batch if limit is None else values.integer(limit, "limit", 1, 100_000)
        body: Callable[[int], Any] = getattr(self, f"_tick_{name}")
        if self.observer is None:
            done: int = await body(size)
            return done
        began = time.perf_counter()
        try:
            done = await body(size)
        except Exception as error:
            self.observer.ticked(name, time.perf_counter() - began, error)
            raise
        self.observer.ticked(name, time.perf_counter() - began, None)
        return done

    # -- bodies --------------------------------------------------------------------------------------------------

    async def _tick_intake(self, limit: int) -> int:
        return await self._for_each("intake", limit, PromoteSubmitted)

    async def _tick_orphan_reconciler(self, limit: int) -> int:
        return await self._for_each("orphans", limit, CancelOrphan)

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
        return await self._let_routes_go(limit) + await self._let_room_go(limit)

    async def _let_routes_go(self, limit: int) -> int:
        """Let go what some live worker of the lane can run, however many others are blocked before it."""
        resting = self._poison.setdefault("unblock", Poison()).tick()
        routable: list[str] = []
        scope = (self._filter.namespace, self._filter.instance_tag)
        after, window = None, limit
        while len(routable) < limit:
            due = await self._ask(Due("unblock", await self.now_ms(), window, *scope, skip=resting, after=after))
            found = await self._found(due)
            routable += await self._routable(found)
            if len(due) < window or not found:
                break
            after, window = (found[-1].created_at_ms, found[-1].execution_id), 4 * window
        reason = lit.WAITING_FOR_CAPABLE_WORKER
        return await self._submit_all("unblock", routable[:limit], lambda item: UnblockExecution(item, reason))

    async def _found(self, items: list[str]) -> list[Execution]:
        view = await self._view(*(Get(Execution, item) for item in items))
        return [execution for item in items if (execution := view.execution(item)) is not None]

    async def _routable(self, found: list[Execution]) -> list[str]:
        if not found:
            return []
        workers = await self._ask(LiveWorkers(await self.now_ms(), 10_000))
        able = [(set(worker.lanes), set(filter(None, worker.capabilities_csv.split(",")))) for worker in workers]
        return [
            execution.execution_id
            for execution in found
            if any(
                execution.lane_id in lanes and can.issuperset(execution.required_capabilities) for lanes, can in able
            )
        ]

    async def _worker_arrived(self) -> None:
        while await self._let_routes_go(1_000) == 1_000:
            pass

    async def _tick_worker_registry_ttl_sweep(self, limit: int) -> int:
        found = await self._ask(DueWorkers(await self.now_ms(), limit))
        answers = await asyncio.gather(*(self._submit(SweepWorker(*key)) for key in found), return_exceptions=True)
        return sum(answer is True for answer in answers)

    async def _tick_retention_trimmer(self, limit: int) -> int:
        now = await self.now_ms()
        purged, self._passed = await self._trim(
            "retention_trimmer", None, None, RETENTION_MS, limit, self._filter, self._passed
        )
        await self._remove_empty_flows(RETENTION_MS)
        before = now - HISTORY_MS
        old = TrimHistory(
            before,
            before,
            now,
            TRIM_BATCH,
            now - SAMPLES_KEPT_MS,
            now - GONE_KEPT_MS,
            now - KIND_KEPT_MS,
            now - AUDIT_KEPT_MS,
            now - REFUSED_KEPT_MS,
        )
        for _ in range(MAX_TRIM_ROUNDS):
            if await self._ask(old) < TRIM_BATCH:
                return purged
            # Writers wait while rows are deleted: let them have their turn.
            await asyncio.sleep(0)
        # There is more: the loop is to come again.
        return max(purged, limit)

    async def _remove_empty_flows(self, retention_ms: int) -> None:
        """Overridden by the flow timers."""

    # -- single operations ---------------------------------------------------------------------------------------

    async def promote_submitted(
        self, partition: int | None = None, lane: str | None = None, limit: int = 1_000, now: int | None = None
    ) -> int:
        """Move fresh executions to phase ``runnable``, oldest first; how many. Nothing waits for it."""
        due = await self._due(
            "intake",
            values.integer(limit, "limit", 1, 100_000),
            partition=values.optional_partition(partition),
            lane_id=values.optional_lane(lane),
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
        await self._submit(PromoteDelayed(values.execution_id(execution_id)))

    async def mark_lease_expired_if_due(self, partition: int | None, execution_id: ExecutionId | str) -> ExpiryMark:
        """Look at one lease now."""
        answer: ExpiryMark = await self._submit(MarkLeaseExpired(values.execution_id(execution_id)))
        return answer

    async def expire_execution(
        self, partition: int | None, execution_id: ExecutionId | str, phase: str, now: int | None = None
    ) -> bool:
        """Look at one attempt timeout or deadline now; whether it was due."""
        if phase not in (ATTEMPT_TIMEOUT, EXECUTION_DEADLINE):
            raise values.invalid(f"phase: {quoted(phase)} is neither {ATTEMPT_TIMEOUT} nor {EXECUTION_DEADLINE}")
        answer: bool = await self._submit(ExpireExecution(values.execution_id(execution_id), phase))
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
        kept = values.time_ms(retention_ms, "retention_ms")
        size = values.integer(batch_size, "batch_size", 1, 10_000)
        where, queue = values.optional_partition(partition), values.optional_lane(lane)
        return (await self._trim("retention", where, queue, kept, size, values.scanner_filter(filter), {}))[0]

    async def _trim(
        self,
        name: str,
        partition: int | None,
        lane: str | None,
        retention_ms: int,
        limit: int,
        wanted: ScannerFilter,
        passed: Mapping[str, Place],
    ) -> tuple[int, dict[str, Place]]:
        """How many were deleted, and where to go on if some at the head have to stay: because of an open flow that
        looks as if it were over."""
        now = await self.now_ms()
        purged, places = 0, dict(passed)
        for what, until in (("purge", now), ("retention", now - retention_ms)):
            if purged < limit:
                skip, since = places.pop(what, Place())
                scope = (wanted.namespace, wanted.instance_tag, lane, partition)
                question = Due(what, until, limit - purged, *scope, skip, since)
                done, place = await self._trim_in_order(name, question, retention_ms)
                purged += done
                if place is not None:
                    places[what] = place
        return purged, places

    async def _trim_in_order(self, name: str, question: Due, retention_ms: int) -> tuple[int, Place | None]:
        left, place = question.limit, Place(question.skip, question.since)
        for _ in range(MAX_LOOKS):
            due = await self._ask(structs.replace(question, limit=left, skip=place.skip, since=place.since))
            done = await self._submit_all(name, due, lambda item: TrimExecution(item, retention_ms))
            if done < len(due):
                place = place.behind(await self._times(question.what, due))
            if len(due) < left:
                return question.limit - left + done, None
            left -= done
            if not left:
                break
        return question.limit - left, place

    async def _times(self, what: str, items: Iterable[str]) -> dict[str, int]:
        """When those fell due that are still there."""
        if what == "purge":
            view = await self._view(*map(GetFull, items))
            found = ((item, view.full(item), "purge_at_ms") for item in items)
        else:
            view = await self._view(*(Get(Execution, item) for item in items))
            found = ((item, view.execution(item), "terminal_at_ms") for item in items)
        return {item: getattr(each, field) or 0 for item, each, field in found if each is not None}

    # -- machinery -----------------------------------------------------------------------------------------------

    async def _due(
        self, what: str, limit: int, *, partition: int | None = None, lane_id: str | None = None
    ) -> list[str]:
        resting = self._poison.setdefault(what, Poison()).tick()
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
        poison = self._poison.setdefault(what, Poison())
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
        wanted, overrides = values.scanner_filter(filter), checked_intervals(intervals)
        if self._timer is None:
            self._filter = wanted
            self._timer = TimerLoop(self, overrides)
            # Requests in other people's transactions are told of by their commits.
            self._listen()


def _did(answer: Any) -> int:
    if isinstance(answer, ExpiryMark):
        return answer.status in ("marked", "requeued", "failed", "cleared")
    return answer if isinstance(answer, int) else 1
