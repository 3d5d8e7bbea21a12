"""Counters and histograms, and their Prometheus text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from flowfabric.model.search import QueueDepth

#: Upper bounds in seconds.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
#: Label sets that one metric keeps; what would be the next one is counted under ``other``.
MAX_SERIES = 1_000

Labels = tuple[str, ...]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Metric:
    """A name, what it says, and the names of its labels."""

    kind = ""

    def __init__(self, name: str, help_text: str, labels: Labels = ()) -> None:
        self.name = name
        self.help_text = help_text
        self.labels = labels

    def head(self) -> list[str]:
        """The lines above the samples."""
        return [f"# HELP {self.name} {self.help_text}", f"# TYPE {self.name} {self.kind}"]

    def lines(self) -> Iterable[str]:
        """The samples."""
        raise NotImplementedError

    def _named(self, values: Labels, *more: tuple[str, str]) -> str:
        pairs = [*zip(self.labels, values, strict=True), *more]
        return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs) + "}" if pairs else ""


class Counter(Metric):
    """Something that only grows."""

    kind = "counter"

    def __init__(self, name: str, help_text: str, labels: Labels = ()) -> None:
        super().__init__(name, help_text, labels)
        self.values: dict[Labels, float] = {}

    def add(self, values: Labels = (), amount: float = 1) -> None:
        """Count."""
        known = self.values
        if values not in known and len(known) >= MAX_SERIES:
            values = ("other",) * len(self.labels)
        known[values] = known.get(values, 0) + amount

    def lines(self) -> Iterable[str]:
        """The samples."""
        return [f"{self.name}{self._named(values)} {amount:g}" for values, amount in sorted(self.values.items())]


class Gauge(Counter):
    """Something that goes up and down."""

    kind = "gauge"

    def set(self, amount: float, values: Labels = ()) -> None:
        """What it is now."""
        if values in self.values or len(self.values) < MAX_SERIES:
            self.values[values] = amount

    def clear(self) -> None:
        """Forget all."""
        self.values.clear()


class Histogram(Metric):
    """How long something took, in seconds."""

    kind = "histogram"

    def __init__(self, name: str, help_text: str, labels: Labels = (), buckets: tuple[float, ...] = BUCKETS) -> None:
        super().__init__(name, help_text, labels)
        self.buckets = buckets
        #: Per label set: counts by bucket, the last one beyond them all, and the sum.
        self.values: dict[Labels, tuple[list[int], list[float]]] = {}

    def observe(self, seconds: float, values: Labels = ()) -> None:
        """Count one."""
        found = self.values.get(values)
        if found is None:
            if len(self.values) >= MAX_SERIES:
                values = ("other",) * len(self.labels)
            found = self.values.setdefault(values, ([0] * (len(self.buckets) + 1), [0.0]))
        counts, total = found
        counts[bisect_left(self.buckets, seconds)] += 1
        total[0] += seconds

    def lines(self) -> Iterable[str]:
        """The samples."""
        lines = []
        for values, (counts, total) in sorted(self.values.items()):
            reached = 0
            for bound, count in zip((*self.buckets, None), counts, strict=True):
                reached += count
                shown = "+Inf" if bound is None else f"{bound:g}"
                lines.append(f"{self.name}_bucket{self._named(values, ('le', shown))} {reached}")
            lines.append(f"{self.name}_sum{self._named(values)} {total[0]:.9g}")
            lines.append(f"{self.name}_count{self._named(values)} {reached}")
        return lines


class Metrics:
    """Everything this process counts."""

    def __init__(self) -> None:
        labels = ("method", "path", "status")
        self.requests = Counter("ff_http_requests_total", "Requests by route and status.", labels)
        self.durations = Histogram("ff_http_request_duration_seconds", "How long requests took.", labels)
        self.shutdown_timeouts = Counter("ff_shutdown_timeout_total", "Shutdowns that went past their grace.")
        self.depth = Gauge("ff_queue_depth", "Executions that could be claimed.", ("lane",))
        self.age = Gauge("ff_queue_oldest_age_seconds", "Age of the oldest of them.", ("lane",))
        self.all: list[Metric] = [self.requests, self.durations, self.shutdown_timeouts, self.depth, self.age]

    def set_depths(self, depths: Iterable[QueueDepth]) -> None:
        """What waits in each lane now."""
        self.depth.clear()
        self.age.clear()
        for each in depths:
            self.depth.set(each.waiting, (each.lane_id,))
            self.age.set(each.oldest_age_ms / 1000, (each.lane_id,))

    def text(self) -> bytes:
        """The Prometheus exposition."""
        lines = [line for metric in self.all for line in (*metric.head(), *metric.lines())]
        return ("\n".join(lines) + "\n").encode()
