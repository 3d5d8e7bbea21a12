"""When the slots of a schedule are: time zones, clocks that are put forward and back, leap days, gaps."""

from __future__ import annotations

import builtins
import sys
from datetime import UTC, datetime
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from flowfabric import Cron, Every, Unavailable, Validation
from flowfabric.engine.timers import cron
from flowfabric.engine.timers.cron import LATE_MS, following, plan

PARIS, NEW_YORK = "Europe/Paris", "America/New_York"
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


def ms(*when: int, zone: str = "UTC", fold: int = 0) -> int:
    """A moment on some clock."""
    return int(datetime(*when, tzinfo=ZoneInfo(zone), fold=fold).timestamp() * 1000)  # type: ignore[misc, arg-type]


def shown(times: list[int]) -> list[str]:
    """Moments as UTC shows them."""
    return [datetime.fromtimestamp(each / 1000, UTC).strftime("%m-%d %H:%M") for each in times]


def first(count: int, spec: Cron | Every, after: int) -> list[str]:
    return shown(list(islice(cron.slots(spec, after), count)))


@pytest.mark.parametrize(
    ("spec", "after", "expected"),
    [
        # Paris, last Sunday of March: 02:00 becomes 03:00. What would be in between is at 03:00, which is 01:00 UTC.
        (Cron("30 2 * * *", PARIS), ms(2027, 3, 27), ["03-27 01:30", "03-28 01:00", "03-29 00:30"]),
        (Cron("0 6 * * *", PARIS), ms(2027, 3, 27), ["03-27 05:00", "03-28 04:00", "03-29 04:00"]),
        # Paris, last Sunday of October: 03:00 becomes 02:00. What exists twice is at the first.
        (Cron("30 2 * * *", PARIS), ms(2027, 10, 30), ["10-30 00:30", "10-31 00:30", "11-01 01:30"]),
        (Cron("0 6 * * *", PARIS), ms(2027, 10, 30), ["10-30 04:00", "10-31 05:00", "11-01 05:00"]),
        # New York, second Sunday of March and first Sunday of November.
        (Cron("30 2 * * *", NEW_YORK), ms(2027, 3, 13), ["03-13 07:30", "03-14 07:00", "03-15 06:30"]),
        (Cron("30 1 * * *", NEW_YORK), ms(2027, 11, 6), ["11-06 05:30", "11-07 05:30", "11-08 06:30"]),
        # By elapsed time: no hour is left out and none is waited for.
        (Cron("0 * * * *", PARIS), ms(2027, 10, 30, 23, 30), ["10-31 00:00", "10-31 01:00", "10-31 02:00"]),
        (Cron("0 * * * *", PARIS), ms(2027, 3, 28, 0, 30), ["03-28 01:00", "03-28 02:00", "03-28 03:00"]),
    ],
)  # fmt: skip
def test_clocks_that_are_moved(spec: Cron, after: int, expected: list[str]) -> None:
    assert first(3, spec, after) == expected
    # The timer goes from slot to slot, not along one list.
    found, last = [], after
    for _ in range(3):
        last = following(spec, last) or 0
        found.append(last)
    assert shown(found) == expected


@pytest.mark.parametrize(
    ("zone", "twice", "next_day"),
    [(PARIS, (2027, 10, 31, 2), (2027, 11, 1, 2)), (NEW_YORK, (2027, 11, 7, 1), (2027, 11, 8, 1))],
)
def test_in_the_second_of_two_equal_hours(zone: str, twice: tuple[int, ...], next_day: tuple[int, ...]) -> None:
    """Asked there, the slot of the first one is over."""
    spec = Cron(f"30 {twice[-1]} * * *", zone)
    for minute in (10, 30, 40):
        assert following(spec, ms(*twice, minute, zone=zone, fold=1)) == ms(*next_day, 30, zone=zone)
    assert following(spec, ms(*twice, 10, zone=zone)) == ms(*twice, 30, zone=zone)


def test_leap_days() -> None:
    leap = Cron("0 12 29 2 *", PARIS)
    found = list(islice(cron.slots(leap, ms(2026, 1, 1)), 3))
    assert [datetime.fromtimestamp(each / 1000, UTC).year for each in found] == [2028, 2032, 2036]
    assert first(3, Cron("0 0 L * *"), ms(2028, 1, 15)) == ["01-31 00:00", "02-29 00:00", "03-31 00:00"]


def test_weekdays() -> None:
    assert first(4, Cron("0 6 * * mon-fri", PARIS), ms(2027, 1, 7, 12)) == [
        "01-08 05:00", "01-11 05:00", "01-12 05:00", "01-13 05:00",
    ]  # fmt: skip


def test_intervals() -> None:
    assert list(islice(cron.slots(Every(5_000), 12_000), 3)) == [15_000, 20_000, 25_000]
    assert following(Every(5_000), 15_000) == 20_000
    assert following(Every(5_000, 1_000), 15_000) == 16_000
    assert following(Every(5_000, 1_000_000), 3) == 5_000


def test_never() -> None:
    assert following(Cron("0 0 30 2 1"), ms(2027, 1, 1)) is not None  # a Monday, or the 30th
    assert following(Every(2**53), 2**50) is None


EVERY_MINUTE = Every(MINUTE)


@pytest.mark.parametrize("spec", [EVERY_MINUTE, Cron("* * * * *"), Cron("*/1 * * * *", PARIS)])
def test_catching_up(spec: Cron | Every) -> None:
    slot = ms(2027, 5, 1, 6)
    now = slot + 3 * DAY + 20_000
    latest, ahead = slot + 3 * DAY, slot + 3 * DAY + MINUTE
    assert plan(spec, slot, now, "last", 1) == ((latest,), ahead)
    assert plan(spec, slot, now, "none", 1) == ((latest,), ahead), "twenty seconds late is in time"
    assert plan(spec, slot, now, "all", 3) == ((latest - 2 * MINUTE, latest - MINUTE, latest), ahead)
    starts, following_slot = plan(spec, slot, now, "all", 1_000)
    assert (len(starts), starts[-1], following_slot) == (1_000, latest, ahead)
    starts, _ = plan(spec, latest - 4 * MINUTE, now, "all", 1_000)
    assert starts == tuple(range(latest - 4 * MINUTE, latest + 1, MINUTE)), "not those before the row's slot"


@pytest.mark.parametrize("gap", [0, HOUR, 40 * DAY, 3_000 * DAY])
def test_catching_up_a_daily_slot(gap: int) -> None:
    daily = Cron("0 6 * * *", PARIS)
    slot = ms(2027, 5, 1, 6, zone=PARIS)
    now = slot + gap + LATE_MS + 1
    starts, ahead = plan(daily, slot, now, "last", 1)
    assert len(starts) == 1
    assert slot <= starts[0] <= now < (ahead or 0)
    assert following(daily, starts[0]) == ahead
    assert plan(daily, slot, now, "none", 1) == ((), ahead)
    in_time = starts[0] + LATE_MS
    assert plan(daily, slot, in_time, "none", 1) == (starts, ahead)


@pytest.mark.parametrize(
    "expression",
    ["* * * *", "0 * * * * *", "61 * * * *", "* 24 * * *", "x", "@daily", "0 0 31 2 *", "*/0 * * * *", "L/2 * * * *",
     "* * L/L * *", ",,,, * * * *", "1-0 * * * *", "* * * * mon-", "* * * * 1#6", "１ * * * *"],
)  # fmt: skip
def test_expressions_that_are_none(expression: str) -> None:
    with pytest.raises(Validation, match="cron"):
        cron.check(Cron(expression))


@pytest.mark.parametrize("zone", ["Nowhere/Land", "../etc/passwd", "/etc/passwd", "Paris", "", "Europe"])
def test_zones_that_are_none(zone: str) -> None:
    with pytest.raises(Validation, match="time_zone"):
        cron.check(Cron("0 6 * * *", zone))


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "cronsim":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, "cronsim", raising=False)
    with pytest.raises(Unavailable, match="pip install"):
        cron.check(Cron("0 6 * * *"))
    cron.check(EVERY_MINUTE)
    assert following(EVERY_MINUTE, 0) == MINUTE
