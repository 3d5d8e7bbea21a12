"""Times as people say them. Nothing here knows what time it is."""

from __future__ import annotations

_DAY_MS = 86_400_000
_UNITS = ((_DAY_MS, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))
#: The first millisecond of the year 10000.
_BEYOND_MS = 253_402_300_800_000


def spoken(span_ms: int) -> str:
    """A span of time as one says it: in its largest unit, with the next one if there is any of it."""
    for (size, unit), (smaller, part) in zip(_UNITS, (*_UNITS[1:], (1, "ms")), strict=True):
        if span_ms >= size:
            rest = span_ms % size // smaller
            return f"{span_ms // size} {unit}" + (f" {rest} {part}" if rest else "")
    return f"{span_ms} ms"


def at(time_ms: int, now_ms: int) -> str:
    """A moment as one says it: the time of day, with the date unless it is today's, and seconds if there are any."""
    if not 0 <= time_ms < _BEYOND_MS:
        return "a time after the year 9999"
    day, rest = divmod(time_ms // 1_000, 86_400)
    hours, minutes, seconds = rest // 3_600, rest % 3_600 // 60, rest % 60
    clock = f"{hours:02}:{minutes:02}" + (f":{seconds:02}" if seconds else "")
    return f"{clock} UTC" if now_ms // _DAY_MS == day else f"{_date(day)} {clock} UTC"


def _date(day: int) -> str:
    """The date of a day since 1970. Years begin in March here, so that the odd day is the last of its year."""
    era, day_of_era = divmod(day + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    year = 400 * era + year_of_era + (month <= 2)
    return f"{year:04}-{month:02}-{day_of_year - (153 * shifted + 2) // 5 + 1:02}"
