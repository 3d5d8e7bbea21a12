"""How much there is in the store, looked at when somebody asks for figures, and not more often than it is worth."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from flowfabric.model.errors import EngineError
from flowfabric.model.reads.overview import Pulse
from flowfabric.model.reads.search import QueueDepth
from flowfabric.telemetry.engine_metrics import MAX_LANES, LaneNames
from flowfabric.telemetry.metrics import Gauge, Metric

if TYPE_CHECKING:
    from flowfabric.engine import Engine

_log = logging.getLogger("flowfabric.telemetry")

#: How long a count is told again before it is counted again.
PULSE_S = 5.0


class StoreGauges:
    """Depth and age of each lane's queue, and how much is under way."""

    def __init__(self, lanes: LaneNames) -> None:
        self._lanes = lanes
        self._pulse_at = float("-inf")
        self.depth = Gauge("ff_queue_depth", "Executions ready to claim.", ("lane",), MAX_LANES)
        self.age = Gauge(
            "ff_queue_oldest_age_seconds", "Age of the oldest execution ready to claim.", ("lane",), MAX_LANES
        )
        self.running = Gauge("ff_executions_active", "Running attempts.")
        self.suspended = Gauge("ff_executions_suspended", "Suspended executions.")
        self.backlog = Gauge("ff_cancel_backlog_depth", "Members of cancelled flows that are not cancelled yet.")
        self.workers = Gauge("ff_workers", "Live workers.")
        self.retention = Gauge(
            "ff_retention_late_seconds", "How long ago the oldest ended execution was due to be deleted."
        )

    def __iter__(self) -> Iterator[Metric]:
        return iter([each for each in vars(self).values() if isinstance(each, Metric)])

    async def refresh(self, engine: Engine) -> None:
        """Look again, if the last look is old enough. A store that does not answer leaves the figures as they were."""
        now = time.monotonic()
        try:
            if now - self._pulse_at >= PULSE_S:
                self._pulse_at = now
                self.set(await engine.read_pulse())
        except EngineError as error:
            _log.warning("gauges could not be read from the store: %s", error)

    def set(self, pulse: Pulse) -> None:
        """How much there is now."""
        self._set_queues(pulse.queues)
        self.running.set(pulse.active)
        self.suspended.set(pulse.suspended)
        self.backlog.set(pulse.cancel_backlog)
        self.workers.set(pulse.workers)
        self.retention.set(pulse.retention_late_ms / 1000)

    def _set_queues(self, depths: Iterable[QueueDepth]) -> None:
        found: dict[tuple[str, ...], tuple[int, float]] = {}
        for each in depths:
            label = self._lanes.label(each.lane_id)
            waiting, age = found.get(label, (0, 0.0))
            found[label] = (waiting + each.waiting, max(age, each.oldest_age_ms / 1000))
        self.depth.clear()
        self.age.clear()
        for label, (waiting, age) in found.items():
            self.depth.set(waiting, label)
            self.age.set(age, label)
