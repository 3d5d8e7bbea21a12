"""What may not be given as a sample of the whole."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from flowfabric.model.overview import Pulse
from flowfabric.model.search import QueueDepth
from tests.contract.bad_values import _invalid

PULSE = Pulse(0, 1, 2, 3, 4, 5, 6, 7, (QueueDepth("default", 1, 1),))


def _with(**changes: Any) -> Pulse:
    return replace(PULSE, **changes)


def _queue(*values: Any) -> Pulse:
    return replace(PULSE, queues=(QueueDepth(*values),))


BAD_SAMPLES = {
    "pulse": _invalid(None, 5, "x", {"at_ms": 5}, QueueDepth("default", 1, 1))
    + _invalid(_with(at_ms="now"), _with(active=-1), _with(workers=None), _with(delayed=2**63), _with(blocked=True))
    + _invalid(_with(queues=None), _with(queues="x"), _with(queues=[None]), _with(queues=(("default", 1, 1),)))
    + _invalid(_queue(5, 1, 1), _queue("nul \x00", 1, 1), _queue("x" * 1_025, 1, 1), _queue("\ud800", 1, 1))
    + _invalid(_queue("default", -1, 1), _queue("default", 1, -1), _queue("default", 1.5, 1)),
    "levels?": _invalid(5, "x", [("a", 1.0)], {5: 1.0}, {"": 1.0}, {"nul \x00": 1.0}, {"a": None}, {"a": "1"})
    + _invalid({"a": True}, {"a": -0.1}, {"a": float("nan")}, {"a": float("inf")}, {"a": 2**70}),
}
