"""When the slots of a schedule are. Cron expressions need the package ``cronsim``; intervals need nothing.

A cron expression is read on the clock of its time zone. Where that clock is put forward, a slot that does not exist is
at the next moment that does; where it is put back, a slot that exists twice is at the first of the two. Expressions
that run every minute or every hour (``*`` in front) go by elapsed time instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import takewhile
from typing import Any

from flowfabric.engine.checks import values
from flowfabric.model.errors import Unavailable
from flowfabric.model.operations.schedules import CatchUp, Cron, Every, ScheduleSpec
from flowfabric.model.quoting import quoted
from flowfabric.model.remembering import remembered_by_text

#: How long after its time a slot still counts as started in time: shorter stops and long queues lose nothing.
LATE_MS = 30_000
#: How far one looks back for the latest slots at first; then four times as far, and so on.
_LOOK_BACK_MS = 3_600_000
_FIELDS = 5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Beyond this the calendar ends.
_LAST_MS = 200_000_000_000_000


def check(spec: ScheduleSpec) -> None:
    """Refuse an expression, or a time zone, that nobody could follow."""
    if isinstance(spec, Cron):
        zone = _zone(spec.time_zone)
        if len(spec.expression.split()) != _FIELDS:
            raise values.invalid(
                f"cron: {quoted(spec.expression)}: expected five fields: minute, hour, day of month, month, day of week"
            )
        cron = _cronsim()
        try:
            cron.CronSim(spec.expression, datetime(2000, 1, 1, tzinfo=zone))
        except (cron.CronSimError, AssertionError, ValueError, RecursionError) as error:
            raise values.invalid(f"cron: {quoted(spec.expression)}: {error}") from None


def following(spec: ScheduleSpec, after_ms: int) -> int | None:
    """The first slot after a moment; ``None`` if none falls within the next fifty years."""
    return next(slots(spec, after_ms), None)


def slots(spec: ScheduleSpec, after_ms: int) -> Iterator[int]:
    """All slots behind a moment."""
    if isinstance(spec, Every):
        slot = spec.anchor_ms + ((after_ms - spec.anchor_ms) // spec.every_ms + 1) * spec.every_ms
        while slot <= _LAST_MS:
            yield slot
            slot += spec.every_ms
        return
    start = _EPOCH + timedelta(milliseconds=min(max(after_ms, 0), _LAST_MS))
    last = after_ms
    for moment in _cronsim().CronSim(spec.expression, start.astimezone(_zone(spec.time_zone))):
        slot = (moment.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)
        # In the second of two equal hours the first one's slots would come again.
        if slot > last:
            last = slot
            yield slot


def between(spec: ScheduleSpec, first_ms: int, last_ms: int) -> Iterator[int]:
    """The slots from a moment to another one, both included."""
    return takewhile(lambda slot: slot <= last_ms, slots(spec, first_ms - 1))


def plan(
    spec: ScheduleSpec, slot_ms: int, now_ms: int, catch_up: str, limit: int
) -> tuple[tuple[int, ...], int | None]:
    """Which of the slots from ``slot_ms`` up to now are started, and the first one behind now."""
    next_at_ms = following(spec, max(now_ms, slot_ms))
    if catch_up == CatchUp.ALL:
        return latest(spec, slot_ms, now_ms, limit), next_at_ms
    last = latest(spec, slot_ms, now_ms, 1)
    if catch_up == CatchUp.NONE and last and now_ms - last[-1] > LATE_MS:
        return (), next_at_ms
    return last, next_at_ms


def latest(spec: ScheduleSpec, slot_ms: int, now_ms: int, count: int) -> tuple[int, ...]:
    """The latest ``count`` slots from ``slot_ms`` up to now, in order. Looks forward from a little before now, and
    from further back if that was too little: nobody counts through a year of minutes."""
    look_back = _LOOK_BACK_MS
    while True:
        begin = max(slot_ms - 1, now_ms - look_back)
        found: deque[int] = deque(maxlen=count)
        for slot in slots(spec, begin):
            if slot > now_ms:
                break
            found.append(slot)
        if len(found) == count or begin == slot_ms - 1:
            return tuple(found)
        look_back *= 4


@remembered_by_text(256)
def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise values.invalid(
            f"time_zone: {quoted(name)} is unknown; use a name such as Europe/Paris, or install tzdata"
        ) from None


def _cronsim() -> Any:
    try:
        import cronsim
    except ImportError:
        raise Unavailable(
            "cron expressions need the package cronsim: pip install 'flowfabric[schedules]'; intervals do not"
        ) from None
    return cronsim
