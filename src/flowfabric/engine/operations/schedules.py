"""Schedules: keeping them, and starting what they have due."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from itertools import islice
from typing import Any, TypeVar

from flowfabric.ascending import ascending_bytes
from flowfabric.core.documents import dump_document, listed_document, parse_document
from flowfabric.core.schedules import (
    BackfillSchedule,
    DeleteSchedule,
    FireSchedule,
    PauseSchedule,
    PlanScheduleAgain,
    PutSchedule,
    ResumeSchedule,
    TriggerSchedule,
    is_ahead,
    spec_of,
)
from flowfabric.engine.checks import values
from flowfabric.engine.checks.values import cursor_of_pair, pair_of_cursor, sorted_namespaces
from flowfabric.engine.timers import cron
from flowfabric.engine.timers.executions import Timers
from flowfabric.engine.timers.loop import Poison
from flowfabric.model.decisions import Get
from flowfabric.model.errors import Contention, ContentionKind, EngineError, NotFound
from flowfabric.model.ids import ExecutionId
from flowfabric.model.limits import (
    MAX_BACKFILL,
    MAX_CATCH_UP,
    MAX_CRON_BYTES,
    MAX_JITTER_MS,
    MAX_PAGE,
    MIN_INTERVAL_MS,
)
from flowfabric.model.operations.executions import AlreadySatisfied
from flowfabric.model.operations.schedules import (
    AnyBackfillResult,
    AnyFireResult,
    AnyPutScheduleResult,
    CatchUp,
    Cron,
    Every,
    FireResult,
    Overlap,
    ScheduleDeleted,
    SchedulePage,
    SchedulePaused,
    ScheduleResumed,
    ScheduleRun,
    ScheduleRuns,
    ScheduleSnapshot,
    ScheduleSpec,
    SkipReason,
    former_slot_uuid,
    slot_uuid,
)
from flowfabric.model.ownership import shown_policy
from flowfabric.model.partitions import lane_partition
from flowfabric.model.policy import PolicyInput, parse_policy
from flowfabric.model.quoting import quoted
from flowfabric.model.records.executions import Execution
from flowfabric.model.records.starts import Schedule
from flowfabric.model.states import canonical_public_state
from flowfabric.stores.questions import DueSchedules, ListSchedules, SearchSchedules

_log = logging.getLogger("flowfabric.timers")
_Word = TypeVar("_Word", bound=StrEnum)
_MAX_MS = 2**53
#: Times a schedule may change under a call that has to work out its next slot.
_RESUME_TRIES = 10
#: How often some schedules are looked at for a plan that a wrong clock made, and how many.
LOOK_AHEAD_MS, LOOKED_AHEAD = 30_000, 100
#: Runs that are told of a schedule at once.
MAX_RUNS_SHOWN = 100


class Schedules(Timers):
    """The part of the engine that starts things by the clock."""

    #: When schedules were last looked at for a wrong plan, and where that goes on.
    _looked_ahead_ms: int = 0
    _looked_ahead_at: tuple[str, str] | None = None

    async def put_schedule(
        self,
        schedule_id: str,
        *,
        spec: ScheduleSpec,
        execution_kind: str,
        namespace: str = "default",
        lane_id: str = "default",
        input_payload: bytes | None = b"",
        payload_encoding: str | None = None,
        priority: int = 0,
        tags: Mapping[str, str] | None = None,
        policy: PolicyInput = None,
        overlap: Overlap | str = Overlap.SKIP,
        catch_up: CatchUp | str = CatchUp.LAST,
        catch_up_limit: int = 100,
        jitter_ms: int = 0,
        source: str | None = None,
        revision: int | None = None,
    ) -> AnyPutScheduleResult:
        """Create a schedule, or change it; the same content again changes nothing.

        A ``source`` says which program text the content comes from. Put again with the same source nothing changes
        either, so that a program that puts its schedules whenever it starts does not undo what operators have changed.
        Whether it is paused is not part of the content.

        With a ``revision`` it is changed only if it still is that one, so that two who change what they have read do
        not undo each other's changes; otherwise the error is ``Contention``: read it again.
        """
        when = _spec(spec)
        lane = values.lane(lane_id)
        wanted = Schedule(
            values.text(namespace, "namespace"),
            values.text(schedule_id, "schedule_id", empty=False),
            lane_partition(lane, self.partitions),
            lane,
            values.text(execution_kind, "execution_kind", empty=False),
            values.encoded_payload(input_payload, "input_payload", payload_encoding),
            values.optional_text(payload_encoding, "payload_encoding"),
            values.priority(priority),
            None if policy is None else parse_policy(policy),
            dump_document(values.tags(tags) or {}),
            when.expression if isinstance(when, Cron) else None,
            when.time_zone if isinstance(when, Cron) else None,
            when.every_ms if isinstance(when, Every) else None,
            when.anchor_ms if isinstance(when, Every) else None,
            _word(overlap, Overlap, "overlap"),
            _word(catch_up, CatchUp, "catch_up"),
            values.integer(catch_up_limit, "catch_up_limit", 1, MAX_CATCH_UP),
            values.integer(jitter_ms, "jitter_ms", 0, MAX_JITTER_MS),
            False,
            None,
            1,
            0,
            0,
            values.optional_text(source, "source"),
        )
        cron.check(when)
        self._check_open()
        wanted.next_at_ms = cron.following(when, await self.now_ms())
        read = None if revision is None else values.integer(revision, "revision", 1, 2**63 - 1)
        answer: AnyPutScheduleResult | None = await self._submit(PutSchedule(wanted, read))
        if answer is None:
            raise Contention(ContentionKind.RETRY_EXHAUSTED, f"schedule {schedule_id} is no longer at revision {read}")
        return answer

    async def pause_schedule(self, schedule_id: str, namespace: str = "default") -> SchedulePaused | AlreadySatisfied:
        """Start nothing until it is resumed. What it has started goes on."""
        answer: SchedulePaused | AlreadySatisfied = await self._submit(PauseSchedule(*_key(namespace, schedule_id)))
        return answer

    async def resume_schedule(self, schedule_id: str, namespace: str = "default") -> ScheduleResumed | AlreadySatisfied:
        """Go on with the first slot from now; what passed during the pause is not caught up."""
        key = _key(namespace, schedule_id)
        for _ in range(_RESUME_TRIES):
            schedule = await self._schedule(key)
            next_at_ms = cron.following(_spec_of(schedule), await self.now_ms())
            answer: ScheduleResumed | AlreadySatisfied | None = await self._submit(
                ResumeSchedule(*key, next_at_ms, spec_of(schedule))
            )
            if answer is not None:
                return answer
        raise Contention(ContentionKind.RETRY_EXHAUSTED, f"schedule {schedule_id} keeps changing")

    async def delete_schedule(self, schedule_id: str, namespace: str = "default") -> ScheduleDeleted | AlreadySatisfied:
        """Forget a schedule. What it has started goes on."""
        answer: ScheduleDeleted | AlreadySatisfied = await self._submit(DeleteSchedule(*_key(namespace, schedule_id)))
        return answer

    async def trigger_schedule(
        self, schedule_id: str, namespace: str = "default", overlap: Overlap | str | None = None
    ) -> FireResult.Started | FireResult.Skipped:
        """Start one now, out of turn, paused or not. ``overlap`` holds instead of the schedule's own, if given."""
        wanted = None if overlap is None else _word(overlap, Overlap, "overlap")
        answer: FireResult.Started | FireResult.Skipped = await self._submit(
            TriggerSchedule(*_key(namespace, schedule_id), wanted, ascending_bytes())
        )
        return answer

    async def backfill_schedule(
        self,
        schedule_id: str,
        from_ms: int,
        before_ms: int,
        namespace: str = "default",
        dry_run: bool = False,
    ) -> AnyBackfillResult:
        """Start every slot from ``from_ms`` up to ``before_ms`` that has passed and has no run, in one commit; with
        ``dry_run`` only say how many these are. Repeated, or by many at once, a slot is started once.

        They start whatever runs already, paused or not; the schedule itself goes on as before.
        """
        first = values.integer(from_ms, "from_ms", 0, _MAX_MS)
        end = values.integer(before_ms, "before_ms", 0, _MAX_MS)
        if end <= first:
            raise values.invalid("before_ms: must be after from_ms")
        preview = values.flag(dry_run, "dry_run")
        key = _key(namespace, schedule_id)
        for _ in range(_RESUME_TRIES):
            schedule = await self._schedule(key)
            last = min(end - 1, await self.now_ms())
            starts = tuple(islice(cron.between(_spec_of(schedule), first, last), MAX_BACKFILL + 1))
            if len(starts) > MAX_BACKFILL:
                raise values.invalid(
                    f"before_ms: this range holds more than {MAX_BACKFILL:,} runs; choose a shorter one"
                )
            answer: AnyBackfillResult | None = await self._submit(
                BackfillSchedule(*key, starts, spec_of(schedule), preview)
            )
            if answer is not None:
                return answer
        raise Contention(ContentionKind.RETRY_EXHAUSTED, f"schedule {schedule_id} keeps changing")

    async def list_schedule_runs(self, schedule_id: str, namespace: str = "default", limit: int = 20) -> ScheduleRuns:
        """What became of a schedule's latest slots, newest first, and as many that come next. Slots from before it
        was made are left out unless they have a run."""
        size = values.integer(limit, "limit", 1, MAX_RUNS_SHOWN)
        schedule = await self._schedule(_key(namespace, schedule_id))
        now, spec, ahead = await self.now_ms(), _spec_of(schedule), schedule.next_at_ms
        last = now if ahead is None else min(now, ahead - 1)
        latest = cron.latest(spec, 0, last, size)
        ids = _slot_ids(schedule, latest, slot_uuid)
        former = _slot_ids(schedule, latest, former_slot_uuid)
        known_ids = {*ids.values(), *former.values()}
        if schedule.last_execution_id is not None and schedule.last_execution_id not in known_ids:
            ids[None] = schedule.last_execution_id
        view = await self._view(*(Get(Execution, each) for each in (*ids.values(), *former.values())))
        found = {slot: view.execution(each) or view.execution(former.get(slot, each)) for slot, each in ids.items()}
        runs = [_run(slot, each) for slot, each in found.items()]
        known = [
            each
            for each in runs
            if each.execution_id is not None or (each.slot_ms is not None and each.slot_ms > schedule.created_at_ms)
        ]
        past = sorted(known, key=lambda each: each.slot_ms or each.created_at or 0, reverse=True)
        coming = () if schedule.paused else tuple(islice(cron.slots(spec, last), size))
        return ScheduleRuns(tuple(past[:size]), coming)

    async def fire_schedule(
        self,
        schedule_id: str,
        slot_ms: int,
        next_at_ms: int | None,
        namespace: str = "default",
        starts: Iterable[int] | None = None,
    ) -> AnyFireResult:
        """Start the slot that a schedule stands at and move it on to the next, in one commit; ``NotDue`` if it stands
        elsewhere. ``starts`` names other slots to start instead, up to the next one; none at all only moves on.

        The timer ``schedules`` does this by itself. Repeated, or by many at once, a slot is started once.
        """
        slot = values.integer(slot_ms, "slot_ms", 0, _MAX_MS)
        following = None if next_at_ms is None else values.integer(next_at_ms, "next_at_ms", 0, _MAX_MS)
        wanted = (slot,) if starts is None else tuple(values.sequence(starts, "starts"))
        if len(wanted) > MAX_CATCH_UP:
            raise values.invalid(f"starts: {len(wanted)}, at most {MAX_CATCH_UP} can start at once")
        wanted = tuple(values.integer(each, "starts", 0, _MAX_MS) for each in wanted)
        answer: AnyFireResult = await self._submit(FireSchedule(*_key(namespace, schedule_id), slot, following, wanted))
        return answer

    async def get_schedule(self, schedule_id: str, namespace: str = "default") -> ScheduleSnapshot | None:
        """A schedule as it is; ``None`` if it does not exist."""
        key = _key(namespace, schedule_id)
        found = (await self._view(Get(Schedule, key))).get(Schedule, key)
        return None if found is None else _snapshot(found, parse_document(found.tags, "tags"))

    async def list_schedules(
        self, namespace: str = "default", cursor: str | None = None, limit: int = 100
    ) -> SchedulePage:
        """The schedules of a namespace, by name."""
        size = min(values.integer(limit, "limit", 0, 2**31), MAX_PAGE)
        space = values.text(namespace, "namespace")
        after = values.optional_text(cursor, "cursor")
        if size == 0:
            return SchedulePage((), None)
        found: list[Schedule] = await self._ask(ListSchedules(space, after, size + 1))
        page = tuple(map(_listed, found[:size]))
        return SchedulePage(page, page[-1].schedule_id if len(found) > size else None)

    async def search_schedules(
        self, *, namespaces: Iterable[str] | None = None, cursor: str | None = None, limit: int = 100
    ) -> SchedulePage:
        """The schedules of these namespaces, or of all, by namespace and name."""
        size = values.integer(limit, "limit", 1, MAX_PAGE)
        found: list[Schedule] = await self._ask(
            SearchSchedules(size + 1, sorted_namespaces(namespaces), pair_of_cursor(cursor))
        )
        following = cursor_of_pair(found[size - 1].key) if len(found) > size else None
        return SchedulePage(tuple(map(_listed, found[:size])), following)

    async def _schedule(self, key: tuple[str, str]) -> Schedule:
        found = (await self._view(Get(Schedule, key))).get(Schedule, key)
        if found is None:
            raise NotFound("schedule", key[1])
        return found

    async def _tick_schedules(self, limit: int) -> int:
        """Start what is due."""
        poison = self._poison.setdefault("schedules", Poison())
        resting = poison.tick()
        now = await self.now_ms()
        due: list[Schedule] = await self._ask(DueSchedules(now, limit + len(resting), self._filter.namespace))
        fired = [self._fire(each, now, poison) for each in due if "\x1f".join(each.key) not in resting]
        started = sum(await asyncio.gather(*fired[:limit]))
        if not self._looked_ahead_ms <= now < self._looked_ahead_ms + LOOK_AHEAD_MS:
            self._looked_ahead_ms = now
            await self._plan_again(now)
        return started

    async def _plan_again(self, now: int) -> None:
        """Look at some schedules, at others each time, and plan again what was planned by a clock that was ahead."""
        found: list[Schedule] = await self._ask(SearchSchedules(LOOKED_AHEAD, after=self._looked_ahead_at))
        self._looked_ahead_at = found[-1].key if len(found) == LOOKED_AHEAD else None
        for each in found:
            if is_ahead(each, now):
                _log.warning(
                    "schedule %s of %s was planned by a clock that was ahead; planned again",
                    each.schedule_id,
                    each.namespace,
                )
                await self._submit(PlanScheduleAgain(*each.key, cron.following(_spec_of(each), now)))

    async def _fire(self, schedule: Schedule, now: int, poison: Poison) -> int:
        name = "\x1f".join(schedule.key)
        assert schedule.next_at_ms is not None
        try:
            starts, following = cron.plan(
                _spec_of(schedule), schedule.next_at_ms, now, schedule.catch_up, schedule.catch_up_limit
            )
            answer = await self._submit(FireSchedule(*schedule.key, schedule.next_at_ms, following, starts))
        except EngineError as error:
            poison.failed(name)
            _log.warning("schedule %s of %s: %s", schedule.schedule_id, schedule.namespace, error)
            return 0
        poison.succeeded(name)
        if isinstance(answer, FireResult.Skipped):
            _log.info("schedule %s of %s: slot skipped: %s", schedule.schedule_id, schedule.namespace, answer.reason)
        return not isinstance(answer, FireResult.NotDue)


def _key(namespace: Any, schedule_id: Any) -> tuple[str, str]:
    return values.text(namespace, "namespace"), values.text(schedule_id, "schedule_id", empty=False)


def _word(value: Any, words: type[_Word], name: str) -> str:
    known = [each.value for each in words]
    if not isinstance(value, str) or str.__str__(value) not in known:
        raise values.invalid(f"{name}: {quoted(value)} is not one of {', '.join(known)}")
    return str.__str__(value)


def _spec(value: Any) -> ScheduleSpec:
    if isinstance(value, Cron):
        return Cron(
            " ".join(values.text(value.expression, "spec.expression", MAX_CRON_BYTES, empty=False).split()),
            values.text(value.time_zone, "spec.time_zone", MAX_CRON_BYTES, empty=False),
        )
    if isinstance(value, Every):
        return Every(
            values.integer(value.every_ms, "spec.every_ms", MIN_INTERVAL_MS, _MAX_MS),
            values.integer(value.anchor_ms, "spec.anchor_ms", 0, _MAX_MS),
        )
    raise values.invalid(f"spec: expected Cron or Every, got {type(value).__name__}")


def _spec_of(schedule: Schedule) -> ScheduleSpec:
    if schedule.cron is not None:
        return Cron(schedule.cron, schedule.time_zone or "UTC")
    return Every(schedule.every_ms or _MAX_MS, schedule.anchor_ms or 0)


def _slot_ids(
    schedule: Schedule, slots: Iterable[int], uuid_of: Callable[[str, str, int], str]
) -> dict[int | None, str]:
    """The ids of the executions that slots start."""
    space, name = schedule.namespace, schedule.schedule_id
    return {slot: f"{{fp:{schedule.partition}}}:{uuid_of(space, name, slot)}" for slot in slots}


def _run(slot_ms: int | None, found: Execution | None) -> ScheduleRun:
    if found is None:
        return ScheduleRun(slot_ms, None, None, None, None, None)
    return ScheduleRun(
        slot_ms,
        ExecutionId.unchecked(found.execution_id),
        canonical_public_state(found.public_state),
        found.created_at_ms,
        found.started_at_ms,
        found.terminal_at_ms,
    )


def _listed(schedule: Schedule) -> ScheduleSnapshot:
    return _snapshot(schedule, listed_document(schedule.tags, "tags"))


def _snapshot(schedule: Schedule, tags: dict[str, Any]) -> ScheduleSnapshot:
    last = schedule.last_execution_id
    return ScheduleSnapshot(
        schedule.namespace,
        schedule.schedule_id,
        schedule.lane_id,
        schedule.execution_kind,
        schedule.payload,
        schedule.payload_encoding,
        schedule.priority,
        shown_policy(schedule.policy),
        {key: value for key, value in tags.items() if isinstance(value, str)},
        _spec_of(schedule),
        Overlap(schedule.overlap),
        CatchUp(schedule.catch_up),
        schedule.catch_up_limit,
        schedule.jitter_ms,
        schedule.paused,
        schedule.next_at_ms,
        schedule.revision,
        schedule.source,
        schedule.created_at_ms,
        schedule.updated_at_ms,
        schedule.last_slot_ms,
        None if last is None else ExecutionId.unchecked(last),
        schedule.last_started_at_ms,
        schedule.started_count,
        schedule.last_skipped_ms,
        None if schedule.last_skip_reason is None else SkipReason(schedule.last_skip_reason),
        schedule.skipped_count,
    )
