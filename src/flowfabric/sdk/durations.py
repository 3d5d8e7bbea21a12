"""Durations are ``timedelta``: a bare number has no unit, and a text has to be guessed at."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from flowfabric.sdk.errors import BadDuration

_MILLISECOND = timedelta(milliseconds=1)


def seconds(value: float) -> timedelta:
    """So many seconds."""
    return timedelta(seconds=value)


def minutes(value: float) -> timedelta:
    """So many minutes."""
    return timedelta(minutes=value)


def hours(value: float) -> timedelta:
    """So many hours."""
    return timedelta(hours=value)


def days(value: float) -> timedelta:
    """So many days of 24 hours."""
    return timedelta(days=value)


def duration(value: Any, name: str, *, zero: bool = False) -> timedelta:
    """The value, if it is a timedelta above zero (or zero where that makes sense)."""
    if not isinstance(value, timedelta):
        raise BadDuration(
            f"{name}: {value!r} is a {type(value).__name__}; write minutes(5), seconds(30) or a timedelta", option=name
        )
    if value < timedelta(0) or (value == timedelta(0) and not zero):
        raise BadDuration(f"{name}: {value} is {'below' if zero else 'not above'} zero", option=name)
    return value


def milliseconds(value: Any, name: str = "duration", *, zero: bool = True) -> int:
    """The duration in whole milliseconds, as the engine counts; a part of one counts as one."""
    return -(-duration(value, name, zero=zero) // _MILLISECOND)
