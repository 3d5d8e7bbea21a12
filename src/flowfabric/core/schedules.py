"""Schedules: what starts again and again, one execution for each slot however many processes look after it.

When slots are is worked out outside: there is no calendar in here. A rule is told the slot that it finds in the row and
the one that follows, and moves the row from the one to the other in the commit that creates the execution.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context, uuid_text
from flowfabric.core.documents import dump_document, parse_document
from flowfabric.core.executions.cancel import cancelled
from flowfabric.core.executions.create import CreateExecution, create_execution
from flowfabric.core.executions.terminal import current_attempt
from flowfabric.core.lanes.lane_state import refuse_closed
from flowfabric.model import states as lit
from flowfabric.model.decisions import Decision, Drop, Get, GetFull, Need, change, insert
from flowfabric.model.errors import NotFound, Validation, ValidationKind
from flowfabric.model.events import Event, OperatorEvent
from flowfabric.model.ids import ExecutionId
from flowfabric.model.limits import CLOCK_STEP_MS
from flowfabric.model.operations.executions import AlreadySatisfied
from flowfabric.model.operations.schedules import (
    SCHEDULE_TAG,
    SLOT_TAG,
    BackfillResult,
    FireResult,
    Overlap,
    PutScheduleResult,
    ScheduleDeleted,
    SchedulePaused,
    ScheduleResumed,
    SkipReason,
    former_slot_uuid,
    slot_jitter_ms,
    slot_uuid,
)
from flowfabric.model.policy import read_policy
from flowfabric.model.records.executions import Execution, Lane
from flowfabric.model.records.starts import Schedule

#: What says when; a change of these makes the next slot another one.
_SPEC = ("cron", "time_zone", "every_ms", "anchor_ms")
#: What says what; ``policy`` and ``tags`` are compared by their content.
_PLAIN = (
    "partition",
    "lane_id",
    "execution_kind",
    "payload",
    "payload_encoding",
    "priority",
    "overlap",
    "catch_up",
    "catch_up_limit",
    "jitter_ms",
)
_DOCUMENTS = ("policy", "tags")
#: Who has cancelled an execution that a later one of its schedule took the place of.
BY_SCHEDULE = "schedule"


class PutSchedule(Struct, gc=False):
    """A schedule as it should be; its next slot is the first one from now on."""

    wanted: Schedule
    #: Only if this is the revision that is stored.
    revision: int | None = None

    def needs(self) -> tuple[Need, ...]:
        return (Get(Schedule, self.wanted.key),)


def put_schedule(command: PutSchedule, view: View, context: Context) -> Decision:
    """A new row, or the changes to it. What comes from the same program text as before changes nothing, so that what
    an operator has changed meanwhile stays. A pause stays in any case. ``None`` if another revision is stored than
    the one that is to be changed, and says something else."""
    wanted, now = command.wanted, context.now
    stored = view.get(Schedule, wanted.key)
    if stored is None and command.revision is not None:
        return Decision(None)
    if stored is None:
        new = replace(wanted, revision=1, created_at_ms=now, updated_at_ms=now)
        return Decision(
            PutScheduleResult.Created(new.schedule_id, new.next_at_ms), (insert(new),), _told(new, "created", context)
        )
    unchanged = PutScheduleResult.Unchanged(stored.schedule_id, stored.revision)
    if wanted.source is not None and wanted.source == stored.source:
        return Decision(unchanged)
    fields: dict[str, Any] = {
        name: getattr(wanted, name) for name in (*_SPEC, *_PLAIN) if getattr(wanted, name) != getattr(stored, name)
    }
    for name in _DOCUMENTS:
        if not _same_document(getattr(wanted, name), getattr(stored, name)):
            fields[name] = getattr(wanted, name)
    if not fields:
        acts = () if wanted.source is None else (change(stored, source=wanted.source),)
        return Decision(unchanged, acts)
    if command.revision not in (None, stored.revision):
        return Decision(None)
    if not stored.paused and any(name in fields for name in _SPEC):
        fields["next_at_ms"] = wanted.next_at_ms
    if wanted.source is not None:
        fields["source"] = wanted.source
    changed = change(stored, **fields, revision=stored.revision + 1, updated_at_ms=now)
    after: Any = changed.record
    answer = PutScheduleResult.Changed(after.schedule_id, after.revision, after.next_at_ms)
    return Decision(answer, (changed,), _told(after, "changed", context))


def _same_document(one: str | None, other: str | None) -> bool:
    if one is None or other is None or one == other:
        return one == other
    try:
        return bool(msgspec.json.decode(one) == msgspec.json.decode(other))
    except (msgspec.DecodeError, RecursionError):
        return False


class _OneSchedule(Struct, gc=False):
    namespace: str
    schedule_id: str

    def needs(self) -> tuple[Need, ...]:
        return (Get(Schedule, (self.namespace, self.schedule_id)),)


class PauseSchedule(_OneSchedule, gc=False):
    """Start nothing until further notice."""


def pause_schedule(command: PauseSchedule, view: View, context: Context) -> Decision:
    """Paused, without a next slot."""
    schedule = _found(command, view)
    if schedule.paused:
        return Decision(AlreadySatisfied("schedule_is_paused"))
    revision = schedule.revision + 1
    paused = change(schedule, paused=True, next_at_ms=None, revision=revision, updated_at_ms=context.now)
    return Decision(SchedulePaused(schedule.schedule_id, revision), (paused,), _told(schedule, "paused", context))


class ResumeSchedule(_OneSchedule, gc=False):
    """Go on with a slot that lies ahead; ``spec`` is what it was worked out from."""

    next_at_ms: int | None
    spec: tuple[Any, ...]


def spec_of(schedule: Schedule) -> tuple[Any, ...]:
    """What says when."""
    return tuple(getattr(schedule, name) for name in _SPEC)


def resume_schedule(command: ResumeSchedule, view: View, context: Context) -> Decision:
    """Going on. What passed during the pause is not caught up. ``None`` if the row says something else by now."""
    schedule = _found(command, view)
    if not schedule.paused:
        return Decision(AlreadySatisfied("schedule_is_active"))
    if spec_of(schedule) != command.spec:
        return Decision(None)
    revision, following = schedule.revision + 1, command.next_at_ms
    resumed = change(schedule, paused=False, next_at_ms=following, revision=revision, updated_at_ms=context.now)
    answer = ScheduleResumed(schedule.schedule_id, revision, following)
    return Decision(answer, (resumed,), _told(schedule, "resumed", context))


class DeleteSchedule(_OneSchedule, gc=False):
    """Forget a schedule."""


def delete_schedule(command: DeleteSchedule, view: View, context: Context) -> Decision:
    """Gone; repeated, it is gone already."""
    schedule = view.get(Schedule, (command.namespace, command.schedule_id))
    if schedule is None:
        return Decision(AlreadySatisfied("schedule_is_gone"))
    return Decision(ScheduleDeleted(schedule.schedule_id), (Drop(schedule),), _told(schedule, "deleted", context))


class FireSchedule(_OneSchedule, gc=False):
    """The slot ``slot_ms`` is due: create what ``starts`` says and move on to ``next_at_ms``."""

    slot_ms: int
    next_at_ms: int | None
    #: Slots to start, from ``slot_ms`` up to the next one, in order.
    starts: tuple[int, ...]


def fire_schedule(command: FireSchedule, view: View, context: Context) -> Decision:
    """One execution for each slot to start, and the row's next slot, in one commit; only if the row stands at the slot
    it is asked to leave."""
    schedule = _found(command, view)
    slot, following = command.slot_ms, command.next_at_ms
    if following is not None and following <= slot:
        raise Validation(ValidationKind.INVALID_INPUT, f"next_at_ms: {following} is not after the slot {slot}")
    before = slot - 1
    for start in command.starts:
        if start <= before or (following is not None and start >= following):
            detail = f"starts: {start} is not between the slot {slot} and the next one, in order"
            raise Validation(ValidationKind.INVALID_INPUT, detail)
        before = start
    if schedule.paused or schedule.next_at_ms != slot or slot > context.now:
        return Decision(FireResult.NotDue(schedule.next_at_ms))
    if before > context.now:
        raise Validation(ValidationKind.INVALID_INPUT, f"starts: {before} is in the future; it is now {context.now}")
    overlap = Overlap(schedule.overlap)
    # The latest would cancel all the others at once.
    starts = command.starts[-1:] if overlap is Overlap.REPLACE else command.starts
    uuids = [slot_uuid(schedule.namespace, schedule.schedule_id, start) for start in starts]
    latest = starts[-1] if starts else slot
    moved = replace(schedule, next_at_ms=following, last_slot_ms=latest)
    return _started(view, context, schedule, moved, list(zip(starts, uuids, strict=True)), overlap, schedule.jitter_ms)


class TriggerSchedule(_OneSchedule, gc=False):
    """Start one now, out of turn."""

    overlap: str | None
    entropy: bytes


def trigger_schedule(command: TriggerSchedule, view: View, context: Context) -> Decision:
    """One execution for this moment, paused or not; the next slot stays what it is."""
    schedule = _found(command, view)
    overlap = Overlap(command.overlap or schedule.overlap)
    return _started(view, context, schedule, schedule, [(context.now, uuid_text(command.entropy))], overlap, 0)


class BackfillSchedule(_OneSchedule, gc=False):
    """Start past slots that have no run. ``spec`` is what they were worked out from."""

    starts: tuple[int, ...]
    spec: tuple[Any, ...]
    #: Only say what it would start.
    dry_run: bool


def backfill_schedule(command: BackfillSchedule, view: View, context: Context) -> Decision:
    """One execution for each slot that has none, in one commit, whether or not others run; the schedule's own next
    slot and what it has started last stay what they are. ``None`` if the row says something else by now."""
    schedule = _found(command, view)
    if spec_of(schedule) != command.spec:
        return Decision(None)
    before = -1
    for start in command.starts:
        if start <= before or start > context.now:
            raise Validation(ValidationKind.INVALID_INPUT, f"starts: {start} is in the future, or not in order")
        before = start
    # What is due is started by the schedule itself.
    ahead = schedule.next_at_ms
    starts = [start for start in command.starts if ahead is None or start < ahead]
    uuids = {start: slot_uuid(schedule.namespace, schedule.schedule_id, start) for start in starts}
    ids = {start: f"{{fp:{schedule.partition}}}:{uuid}" for start, uuid in uuids.items()}
    former = {
        start: f"{{fp:{schedule.partition}}}:{former_slot_uuid(schedule.namespace, schedule.schedule_id, start)}"
        for start in starts
    }
    both = (*ids.values(), *former.values())
    view.require([Get(Lane, schedule.lane_id), *(Get(Execution, each) for each in both)])
    wanted = [start for start in starts if view.execution(ids[start]) is view.execution(former[start]) is None]
    existing = len(starts) - len(wanted)
    if command.dry_run:
        first, last = (starts[0], starts[-1]) if starts else (None, None)
        return Decision(BackfillResult.Previewed(len(starts), existing, first, last))
    if not wanted:
        return Decision(BackfillResult.Started((), existing))
    refuse_closed(view.get(Lane, schedule.lane_id))
    read_policy(schedule.policy)
    tags = parse_document(schedule.tags, "tags")
    for start in wanted:
        view.fold(create_execution(_creation(schedule, start, uuids[start], tags, 0), view, context))
    answer = BackfillResult.Started(tuple(ExecutionId.unchecked(ids[start]) for start in wanted), existing)
    counted = change(schedule, started_count=schedule.started_count + len(wanted))
    return Decision(answer, (counted,))


def is_ahead(schedule: Schedule, now: int) -> bool:
    """Whether it was planned by a clock that was ahead and has been set right: nothing would start until the time that
    the clock showed."""
    written = max(schedule.updated_at_ms, schedule.last_slot_ms or 0)
    return not schedule.paused and written > now + CLOCK_STEP_MS


class PlanScheduleAgain(_OneSchedule, gc=False):
    """Start the schedule from now on, if it was planned in a future that did not come."""

    next_at_ms: int | None


def plan_schedule_again(command: PlanScheduleAgain, view: View, context: Context) -> Decision:
    """Slots that were started in the wrong future have their executions already, and get no second ones."""
    schedule = view.get(Schedule, (command.namespace, command.schedule_id))
    if schedule is None or not is_ahead(schedule, context.now):
        return Decision(False)
    planned = change(schedule, next_at_ms=command.next_at_ms, last_slot_ms=None, updated_at_ms=context.now)
    return Decision(True, (planned,))


def _found(command: _OneSchedule, view: View) -> Schedule:
    schedule = view.get(Schedule, (command.namespace, command.schedule_id))
    if schedule is None:
        raise NotFound("schedule", command.schedule_id)
    return schedule


def _started(
    view: View,
    context: Context,
    before: Schedule,
    schedule: Schedule,
    starts: list[tuple[int, str]],
    overlap: Overlap,
    jitter_ms: int,
) -> Decision:
    """Create an execution for each start that may have one, and write down what became of them."""
    read_policy(schedule.policy)
    tags = parse_document(schedule.tags, "tags")
    lane = _looked_ahead(view, schedule, starts, overlap)
    made: list[ExecutionId] = []
    reason: SkipReason | None = None if starts else SkipReason.MISSED
    skipped = 0 if starts else 1
    last_skipped = before.next_at_ms if not starts else None
    for slot, uuid in starts:
        why = _hindered(view, context, schedule, lane, overlap)
        if why is not None:
            reason, skipped, last_skipped = why, skipped + 1, slot
            continue
        creation = _creation(schedule, slot, uuid, tags, jitter_ms)
        view.fold(create_execution(creation, view, context))
        made.append(ExecutionId.unchecked(creation.execution_id))
        schedule = replace(
            schedule,
            last_execution_id=creation.execution_id,
            last_started_at_ms=context.now,
            started_count=schedule.started_count + 1,
        )
    if reason is not None:
        schedule = replace(
            schedule,
            last_skipped_ms=last_skipped,
            last_skip_reason=reason.value,
            skipped_count=schedule.skipped_count + skipped,
        )
    fields = {
        name: getattr(schedule, name)
        for name in schedule.__struct_fields__
        if getattr(schedule, name) != getattr(before, name)
    }
    acts = (change(before, **fields),) if fields else ()
    following = schedule.next_at_ms
    if made:
        return Decision(FireResult.Started(tuple(made), following, skipped), acts)
    assert reason is not None
    return Decision(FireResult.Skipped(reason, following), acts)


def _looked_ahead(view: View, schedule: Schedule, starts: list[tuple[int, str]], overlap: Overlap) -> Lane | None:
    """Ask for everything at once; the lane."""
    needs: list[Need] = [Get(Lane, schedule.lane_id)]
    needs += [Get(Execution, f"{{fp:{schedule.partition}}}:{uuid}") for _, uuid in starts]
    last = schedule.last_execution_id
    if starts and last is not None and overlap is not Overlap.QUEUE:
        needs.append(GetFull(last) if overlap is Overlap.REPLACE else Get(Execution, last))
    view.require(needs)
    return view.get(Lane, schedule.lane_id)


def _hindered(
    view: View, context: Context, schedule: Schedule, lane: Lane | None, overlap: Overlap
) -> SkipReason | None:
    """Why nothing may be started; a run that is to be replaced ends now."""
    if lane is not None and lane.state in lit.CLOSED_LANES:
        return SkipReason.LANE_CLOSED
    last = schedule.last_execution_id
    if last is None or overlap is Overlap.QUEUE:
        return None
    running = view.full(last) if overlap is Overlap.REPLACE else view.execution(last)
    if running is None or running.lifecycle_phase in lit.ENDED_PHASES:
        return None
    if overlap is Overlap.SKIP:
        return SkipReason.OVERLAP
    attempt = current_attempt(view, running)
    why = f"schedule {schedule.schedule_id} has started its next run"
    view.fold(
        cancelled(view, context, running, attempt, None, reason=why, by=BY_SCHEDULE, revoked_by=lit.BY_RECONCILER)
    )
    return None


def _creation(schedule: Schedule, slot: int, uuid: str, tags: dict[str, Any], jitter_ms: int) -> CreateExecution:
    jitter = slot_jitter_ms(schedule.namespace, schedule.schedule_id, slot, jitter_ms)
    return CreateExecution(
        f"{{fp:{schedule.partition}}}:{uuid}",
        schedule.partition,
        uuid,
        schedule.namespace,
        schedule.lane_id,
        schedule.execution_kind,
        schedule.payload,
        schedule.payload_encoding,
        schedule.priority,
        f"schedule:{schedule.schedule_id}",
        None,
        {**tags, SCHEDULE_TAG: schedule.schedule_id, SLOT_TAG: str(slot)},
        schedule.policy,
        read_policy(schedule.policy).required_capabilities,
        slot + jitter if jitter else None,
        None,
        None,
    )


def _told(schedule: Schedule, what: str, context: Context) -> tuple[Event, ...]:
    details = dump_document({"namespace": schedule.namespace, "next_at_ms": schedule.next_at_ms})
    return (
        OperatorEvent(
            schedule.partition,
            schedule.schedule_id,
            f"schedule_{what}",
            details,
            context.now,
            schedule.namespace,
            None,
        ),
    )
