"""Samples of the whole, for charts: one of every minute, no matter which server took it."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.model.limits import MAX_SAMPLED
from flowfabric.model.reads.overview import Pulse

#: What one stored sample stands for, and how long it is kept: longer than the longest chart, which shows a day.
SAMPLE_MS = 60_000
SAMPLES_KEPT_MS = 25 * 3600 * 1000


class SampleRow(Struct, gc=False):
    """The sample of one minute (``ff_sample``): a ``Sample`` as a JSON document."""

    minute_ms: int
    document: str

    @property
    def key(self) -> tuple[int]:
        return (self.minute_ms,)


class Sample(Struct, frozen=True):
    """The whole at one moment, as charts draw it; of lanes and budgets the foremost ``MAX_SAMPLED``."""

    pulse: Pulse
    #: How full the fullest budgets are, by the names they are stored under: 1 at the hard limit.
    budgets: dict[str, float]
    #: In how many lanes something waited; if there are more than ``pulse.queues`` tells of, the others are not known.
    lanes: int

    def waiting(self, lane_id: str) -> tuple[int | None, int | None]:
        """How many waited in a lane, and the age of the oldest."""
        for queue in self.pulse.queues:
            if queue.lane_id == lane_id:
                return queue.waiting, queue.oldest_age_ms
        return (0, 0) if self.lanes <= len(self.pulse.queues) else (None, None)


class SamplePage(Struct, frozen=True):
    """Samples, oldest first; ``next_since`` leads on, ``None`` says there is no more."""

    samples: tuple[Sample, ...]
    next_since: int | None


def sample_of(pulse: Pulse, budgets: Mapping[str, float]) -> Sample:
    """What is kept of a moment: the deepest lanes and the fullest budgets."""
    queues = sorted(pulse.queues, key=lambda each: (-each.waiting, each.lane_id))[:MAX_SAMPLED]
    levels = sorted(budgets.items(), key=lambda each: (-each[1], each[0]))[:MAX_SAMPLED]
    return Sample(
        replace(pulse, queues=tuple(queues)), {name: round(level, 4) for name, level in levels}, len(pulse.queues)
    )
