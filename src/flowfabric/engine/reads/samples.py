"""Samples of the whole: what charts remember, shared by all servers on a store."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from flowfabric.core.samples import RecordSample, read_sample
from flowfabric.engine.base import EngineBase
from flowfabric.engine.checks import values
from flowfabric.model.limits import MAX_PAGE
from flowfabric.model.reads.overview import Pulse
from flowfabric.model.reads.samples import Sample, SamplePage, SampleRow, sample_of
from flowfabric.model.reads.search import QueueDepth
from flowfabric.stores.questions import ListSamples

_COUNTS = ("active", "suspended", "delayed", "blocked", "dependent", "cancel_backlog", "workers")
_MAX = 2**63 - 1


class Samples(EngineBase):
    """The part of the engine that remembers how it went."""

    async def record_sample(self, *, pulse: Pulse, budgets: Mapping[str, float] | None = None) -> Sample:
        """Write down how it goes, with how full budgets are by name. One sample is kept of every minute: the first one,
        which is returned."""
        levels = {} if budgets is None else _levels(budgets)
        answer: Sample = await self._submit(RecordSample(sample_of(_pulse(pulse), levels)))
        return answer

    async def list_samples(self, since: int = 0, limit: int = 100) -> SamplePage:
        """Samples of the minutes that began at ``since`` or later, oldest first."""
        first, size = values.time_ms(since, "since"), values.integer(limit, "limit", 1, MAX_PAGE)
        found: list[SampleRow] = await self._ask(ListSamples(first, size + 1))
        samples = tuple(sample for row in found[:size] if (sample := read_sample(row)) is not None)
        return SamplePage(samples, found[size].minute_ms if len(found) > size else None)


def _pulse(value: Any) -> Pulse:
    if not isinstance(value, Pulse):
        raise values.invalid(f"pulse: expected a Pulse, as read_pulse() gives it, got {type(value).__name__}")
    at_ms = values.time_ms(value.at_ms, "pulse.at_ms")
    counts = {name: values.integer(getattr(value, name), f"pulse.{name}", 0, _MAX) for name in _COUNTS}
    return Pulse(at_ms, queues=tuple(_queue(each) for each in values.sequence(value.queues, "pulse.queues")), **counts)


def _queue(value: Any) -> QueueDepth:
    if not isinstance(value, QueueDepth):
        raise values.invalid(f"pulse.queues: expected QueueDepth, got {type(value).__name__}")
    return QueueDepth(
        values.text(value.lane_id, "pulse.queues.lane_id"),
        values.integer(value.waiting, "pulse.queues.waiting", 0, _MAX),
        values.integer(value.oldest_age_ms, "pulse.queues.oldest_age_ms", 0, _MAX),
    )


def _levels(value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise values.invalid(f"budgets: expected a mapping of names to levels, got {type(value).__name__}")
    return {values.text(name, "budgets", empty=False): _level(level) for name, level in value.items()}


def _level(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise values.invalid(f"budgets: expected a number as the level, got {type(value).__name__}")
    if not (math.isfinite(value) and 0 <= value <= _MAX):
        raise values.invalid("budgets: a level is a number of at least 0; 1 is the hard limit")
    return float(value)
