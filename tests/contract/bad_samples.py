"""What may not be given as a sample of the whole, or as definitions of kinds."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from flowfabric.model.reads.overview import Pulse
from flowfabric.model.reads.search import QueueDepth
from tests.contract.bad_values import _invalid

PULSE = Pulse(0, 1, 2, 3, 4, 5, 6, 7, (QueueDepth("default", 1, 1),))


def _with(**changes: Any) -> Pulse:
    return replace(PULSE, **changes)


def _queue(*values: Any) -> Pulse:
    return replace(PULSE, queues=(QueueDepth(*values),))


_TASK = {"noun": "task"}
BAD_SAMPLES = {
    "pulse": _invalid(None, 5, "x", {"at_ms": 5}, QueueDepth("default", 1, 1))
    + _invalid(_with(at_ms="now"), _with(active=-1), _with(workers=None), _with(delayed=2**63), _with(blocked=True))
    + _invalid(_with(queues=None), _with(queues="x"), _with(queues=[None]), _with(queues=(("default", 1, 1),)))
    + _invalid(_queue(5, 1, 1), _queue("nul \x00", 1, 1), _queue("x" * 1_025, 1, 1), _queue("\ud800", 1, 1))
    + _invalid(_queue("default", -1, 1), _queue("default", 1, -1), _queue("default", 1.5, 1)),
    "levels?": _invalid(5, "x", [("a", 1.0)], {5: 1.0}, {"": 1.0}, {"nul \x00": 1.0}, {"a": None}, {"a": "1"})
    + _invalid({"a": True}, {"a": -0.1}, {"a": float("nan")}, {"a": float("inf")}, {"a": 2**70}),
    "definitions": _invalid(None, 5, "x", [("k", _TASK)], {5: _TASK}, {"": _TASK}, {"nul \x00": _TASK}, {"$k": _TASK})
    + _invalid({"\ud800": _TASK}, {"k": None}, {"k": 5}, {"k": {}}, {"k": {"noun": "thing"}}, {"k": {**_TASK, "x": 1}})
    + _invalid({"k": {**_TASK, "input": {"a": "\ud800"}}}, {"k": {**_TASK, "description": "\ud800"}}),
}
