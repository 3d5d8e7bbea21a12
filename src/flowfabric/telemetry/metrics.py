"""Counters, gauges and histograms, and their Prometheus text. Safe to use from several threads."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable

#: Upper bounds in seconds.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
#: Label sets that one metric keeps unless it says otherwise; what would be the next one is counted under ``other``.
MAX_SERIES = 16
#: What takes the place of a label that there is no room for.
OTHER = "other"

Labels = tuple[str, ...]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(amount: float) -> str:
    return str(int(amount)) if amount == int(amount) else f"{amount:.9g}"


class Metric:
    """A name, what it says, and the names of its labels."""

    kind = ""

    def __init__(self, name: str, help_text: str, labels: Labels = (), most: int = MAX_SERIES) -> None:
        self.name = name
        self.help_text = help_text
        self.labels = labels
        #: Label sets it keeps, the one for all others included.
        self.most = most if labels else 1
        self._others = (OTHER,) * len(labels)
        self._lock = threading.Lock()

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

    def __init__(self, name: str, help_text: str, labels: Labels = (), most: int = MAX_SERIES) -> None:
        super().__init__(name, help_text, labels, most)
        # What has no labels is there from the beginning, so that a rate can be seen with the first one.
        self.values: dict[Labels, float] = {} if labels else {(): 0}

    def add(self, values: Labels = (), amount: float = 1) -> None:
        """Count."""
        known = self.values
        with self._lock:
            if values not in known and len(known) >= self.most - 1:
                values = self._others
            known[values] = known.get(values, 0) + amount

    def lines(self) -> Iterable[str]:
        """The samples."""
        with self._lock:
            found = sorted(self.values.items())
        return [f"{self.name}{self._named(values)} {_number(amount)}" for values, amount in found]


class Gauge(Counter):
    """Something that goes up and down."""

    kind = "gauge"

    def set(self, amount: float, values: Labels = ()) -> None:
        """What it is now."""
        with self._lock:
            if values in self.values or len(self.values) < self.most:
                self.values[values] = amount

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self.values.clear()


class Histogram(Metric):
    """How long something took, in seconds."""

    kind = "histogram"

    def __init__(
        self,
        name: str,
        help_text: str,
        labels: Labels = (),
        most: int = MAX_SERIES,
        buckets: tuple[float, ...] = BUCKETS,
    ) -> None:
        super().__init__(name, help_text, labels, most)
        self.buckets = buckets
        #: Per label set: counts by bucket, the last one beyond them all, and the sum.
        self.values: dict[Labels, tuple[list[int], list[float]]] = {}

    def observe(self, seconds: float, values: Labels = ()) -> None:
        """Count one."""
        with self._lock:
            found = self.values.get(values)
            if found is None:
                if len(self.values) >= self.most - 1:
                    values = self._others
                found = self.values.setdefault(values, ([0] * (len(self.buckets) + 1), [0.0]))
            counts, total = found
            counts[bisect_left(self.buckets, seconds)] += 1
            total[0] += seconds

    def lines(self) -> Iterable[str]:
        """The samples."""
        lines = []
        with self._lock:
            found = [(values, list(counts), total[0]) for values, (counts, total) in sorted(self.values.items())]
        for values, counts, total in found:
            reached = 0
            for bound, count in zip((*self.buckets, None), counts, strict=True):
                reached += count
                shown = "+Inf" if bound is None else f"{bound:g}"
                lines.append(f"{self.name}_bucket{self._named(values, ('le', shown))} {reached}")
            lines.append(f"{self.name}_sum{self._named(values)} {total:.9g}")
            lines.append(f"{self.name}_count{self._named(values)} {reached}")
        return lines


class Registry:
    """All that a process counts, as one text."""

    def __init__(self, *parts: Iterable[Metric]) -> None:
        self.metrics = [metric for part in parts for metric in part]

    @property
    def most(self) -> int:
        """Label sets there can be altogether."""
        return sum(metric.most for metric in self.metrics)

    def text(self) -> bytes:
        """The Prometheus exposition."""
        lines = [line for metric in self.metrics for line in (*metric.head(), *metric.lines())]
        return ("\n".join(lines) + "\n").encode()
