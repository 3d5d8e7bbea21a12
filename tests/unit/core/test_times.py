"""Times as people say them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from flowfabric.core.explain.times import at


def test_dates_are_those_of_the_calendar() -> None:
    moment = datetime(1970, 1, 1, 14, 0, tzinfo=UTC)
    while moment.year < 2_410:
        assert at(int(moment.timestamp()) * 1_000, -1) == moment.strftime("%Y-%m-%d %H:%M UTC")
        moment += timedelta(days=1)
    assert at(253_402_300_799_999, 0) == "9999-12-31 23:59:59 UTC"


def test_today_needs_no_date() -> None:
    noon = 20_000 * 86_400_000 + 43_200_000
    assert at(noon + 5_999, noon) == "12:00:05 UTC"
    assert at(noon + 86_400_000, noon) == "2024-10-05 12:00 UTC"


def test_times_beyond_the_calendar() -> None:
    for beyond in (-1, 253_402_300_800_000, 2**63 - 1):
        assert at(beyond, 0) == "a time after the year 9999"
