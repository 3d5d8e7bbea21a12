"""Schedules of tests that are about something else, and in which nothing may start by itself."""

from __future__ import annotations

import time

from flowfabric.model.operations.schedules import Every


def every(step_ms: int) -> Every:
    """Steps that begin now, so that the first ends a whole step from here.

    Steps from the beginning of 1970 end at every full minute or hour, which may come in the middle of any test.
    """
    return Every(step_ms, int(time.time() * 1_000))
