"""Schedules: when they fire, what happens to overlaps and missed slots, and the results of their operations."""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from flowfabric.model.ids import ExecutionId
from flowfabric.model.states import PublicState

#: Tags that every execution of a schedule carries.
SCHEDULE_TAG = "flowfabric.schedule"
SLOT_TAG = "flowfabric.slot_ms"


class Cron(Struct, frozen=True):
    """Five fields (minute, hour, day of month, month, day of week) on the clock of a time zone."""

    expression: str
    time_zone: str = "UTC"


class Every(Struct, frozen=True):
    """Equal steps through ``anchor_ms``, forwards and backwards; 0 is the beginning of 1970 in UTC."""

    every_ms: int
    anchor_ms: int = 0


ScheduleSpec: TypeAlias = Cron | Every


class Overlap(StrEnum):
    """What a slot does whose predecessor has not ended."""

    #: It starts nothing; that is on record.
    SKIP = "skip"
    #: It starts; the two may run side by side, or one after the other in their lane.
    QUEUE = "queue"
    #: The predecessor is cancelled.
    REPLACE = "replace"


class CatchUp(StrEnum):
    """What happens to slots that nobody was there to start."""

    NONE = "none"
    #: The latest of them is started.
    LAST = "last"
    #: Each of them is started, the latest ``catch_up_limit`` at most.
    ALL = "all"


class SkipReason(StrEnum):
    """Why a slot started nothing."""

    OVERLAP = "overlap"
    LANE_CLOSED = "lane_closed"
    MISSED = "missed"


class ScheduleSnapshot(Struct, frozen=True):
    """A schedule as it is."""

    namespace: str
    schedule_id: str
    lane_id: str
    execution_kind: str
    input_payload: bytes | None
    payload_encoding: str | None
    priority: int
    #: JSON text.
    policy: str | None
    tags: dict[str, str]
    spec: ScheduleSpec
    overlap: Overlap
    catch_up: CatchUp
    catch_up_limit: int
    jitter_ms: int
    paused: bool
    #: The next slot; nothing while it is paused, or if there will never be one.
    next_at_ms: int | None
    #: One more with every change, pauses included.
    revision: int
    source: str | None
    created_at_ms: int
    updated_at_ms: int
    last_slot_ms: int | None
    last_execution_id: ExecutionId | None
    last_started_at_ms: int | None
    started_count: int
    #: The latest slot that started nothing, and why.
    last_skipped_ms: int | None
    last_skip_reason: SkipReason | None
    skipped_count: int


class SchedulePage(Struct, frozen=True):
    """Schedules of a namespace by name, and where the next page begins."""

    schedules: tuple[ScheduleSnapshot, ...]
    next_cursor: str | None


class PutScheduleResult:
    """Answers of ``put_schedule``."""

    class Created(Struct, frozen=True):
        """It is new."""

        schedule_id: str
        next_at_ms: int | None

    class Changed(Struct, frozen=True):
        """It was there and says something else now."""

        schedule_id: str
        revision: int
        next_at_ms: int | None

    class Unchanged(Struct, frozen=True):
        """It was there; nothing was written."""

        schedule_id: str
        revision: int


class SchedulePaused(Struct, frozen=True):
    """It starts nothing until it is resumed."""

    schedule_id: str
    revision: int


class ScheduleResumed(Struct, frozen=True):
    """It goes on with this slot; those that passed while it was paused are gone."""

    schedule_id: str
    revision: int
    next_at_ms: int | None


class ScheduleDeleted(Struct, frozen=True):
    """It is gone; what it started goes on."""

    schedule_id: str


class FireResult:
    """Answers of ``fire_schedule`` and ``trigger_schedule``."""

    class Started(Struct, frozen=True):
        """Executions were created, one for each slot that starts something."""

        execution_ids: tuple[ExecutionId, ...]
        next_at_ms: int | None
        #: Slots that started nothing.
        skipped: int = 0

    class Skipped(Struct, frozen=True):
        """Nothing was started, and that is on record."""

        reason: SkipReason
        next_at_ms: int | None

    class NotDue(Struct, frozen=True):
        """Its next slot is another one, or lies ahead: somebody else was here, or nobody should be yet."""

        next_at_ms: int | None


class BackfillResult:
    """Answers of ``backfill_schedule``."""

    class Previewed(Struct, frozen=True):
        """What the range holds; nothing was started."""

        #: Slots in the range that have passed.
        slots: int
        #: Those of them that have a run already.
        existing: int
        first_ms: int | None
        last_ms: int | None

    class Started(Struct, frozen=True):
        """Executions were created, one for each slot that had none."""

        execution_ids: tuple[ExecutionId, ...]
        existing: int


class ScheduleRun(Struct, frozen=True):
    """One slot and the execution that it started; without an execution nothing was started, or it was deleted."""

    #: ``None`` for a run out of turn.
    slot_ms: int | None
    execution_id: ExecutionId | None
    public_state: PublicState | None
    created_at: int | None
    started_at: int | None
    ended_at: int | None


class ScheduleRuns(Struct, frozen=True):
    """The latest slots, newest first, and those that come next."""

    past: tuple[ScheduleRun, ...]
    next: tuple[int, ...]


AnyBackfillResult: TypeAlias = BackfillResult.Previewed | BackfillResult.Started
AnyPutScheduleResult: TypeAlias = PutScheduleResult.Created | PutScheduleResult.Changed | PutScheduleResult.Unchanged
AnyFireResult: TypeAlias = FireResult.Started | FireResult.Skipped | FireResult.NotDue


def slot_uuid(namespace: str, schedule_id: str, slot_ms: int) -> str:
    """The UUID of the execution that a slot starts: always the same one. It begins with the slot's time, so that of
    slots that start together the oldest is claimed first."""
    time = f"{min(slot_ms, 2**48 - 1):012x}"
    return f"{time[:8]}-{time[8:]}{former_slot_uuid(namespace, schedule_id, slot_ms)[13:]}"


def former_slot_uuid(namespace: str, schedule_id: str, slot_ms: int) -> str:
    """The UUID that the execution of a slot had in earlier releases."""
    return named_uuid(f"schedule\x1f{namespace}\x1f{schedule_id}\x1f{slot_ms}")


def slot_jitter_ms(namespace: str, schedule_id: str, slot_ms: int, jitter_ms: int) -> int:
    """How much later than its slot an execution may be claimed: at most ``jitter_ms``, always the same for a slot."""
    if jitter_ms <= 0:
        return 0
    digest = hashlib.sha256(f"jitter\x1f{namespace}\x1f{schedule_id}\x1f{slot_ms}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % (jitter_ms + 1)


def named_uuid(name: str) -> str:
    """The version 8 UUID that follows from a name."""
    text = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    variant = "89ab"[int(text[16], 16) & 3]
    return f"{text[:8]}-{text[8:12]}-8{text[13:16]}-{variant}{text[17:20]}-{text[20:32]}"
