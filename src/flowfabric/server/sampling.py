"""What the charts show: a sample of the whole every few seconds, kept in memory for a day.

There is one sampler per server, whoever looks. A sample costs a handful of counts over small indexes; the more they
take, the fewer are taken. Ends are counted from the outbox, behind the last one counted, so that a server that has
just begun has something to show.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from typing import TYPE_CHECKING

from msgspec import Struct

from flowfabric.model.errors import EngineError
from flowfabric.model.limits import MAX_COUNTED
from flowfabric.model.overview import Pulse

if TYPE_CHECKING:
    from flowfabric.engine import Engine

#: How often the whole is sampled, how long samples are kept, and the share of time that sampling may take.
STEP_MS = 5_000
MINUTE_MS = 60_000
FINE, COARSE = 720, 1_440
SHARE = 20
#: Distances between the points of a chart, and how many points it has at most.
STEPS_MS = (5_000, 10_000, 60_000, 300_000, 900_000)
MAX_POINTS = 100
#: Lanes and budgets that charts show.
MAX_LINES = 12
#: How often budgets are looked at, and how many of them.
BUDGETS_S = 30.0
MAX_BUDGETS = 200


class BudgetLevel(Struct, frozen=True):
    """How full a budget is where it is fullest; ``level`` is 1 at the hard limit."""

    budget_id: str
    scope_type: str
    scope_id: str
    dimension: str
    used: int
    limit: int
    level: float
    breach_count: int
    last_breach_at: str | None


class Sample(Struct, frozen=True):
    """The whole at one moment."""

    pulse: Pulse
    budgets: tuple[BudgetLevel, ...]


class Series(Struct, frozen=True):
    """Numbers at equal distances; ``None`` where nothing was sampled."""

    step_ms: int
    times: tuple[int, ...]
    ended: dict[str, tuple[int, ...]]
    gauges: dict[str, tuple[int | None, ...]]
    lanes_waiting: dict[str, tuple[int | None, ...]]
    lanes_oldest_ms: dict[str, tuple[int | None, ...]]
    budgets: dict[str, tuple[float | None, ...]]
    #: Since when all but the ends has been sampled, if that is later than the window begins.
    sampled_from: int | None
    #: The same of the ends, of which a server that begins counts the last ``MAX_COUNTED`` only.
    ended_from: int | None


GAUGES = ("active", "suspended", "delayed", "blocked", "dependent", "workers")


class Sampler:
    """Takes samples and remembers them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._fine: deque[Sample] = deque(maxlen=FINE)
        self._coarse: deque[Sample] = deque(maxlen=COARSE)
        self._ended: dict[int, Counter[str]] = {}
        self._place: int | None = None
        self._ended_from: int | None = None
        self._lock = asyncio.Lock()
        self._taken_at = float("-inf")
        self._cost_s = 0.0
        self._budgets: tuple[BudgetLevel, ...] = ()
        self._budgets_at = float("-inf")

    async def run(self, closing: asyncio.Event) -> None:
        """Sample until the server closes."""
        while not closing.is_set():
            # A store that is away for a while leaves a gap in the charts.
            with contextlib.suppress(EngineError):
                await self.latest()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(closing.wait(), max(STEP_MS / 1000, self._cost_s * SHARE))

    async def latest(self) -> Sample:
        """The newest sample; a new one if it is old."""
        async with self._lock:
            if self._fine and time.monotonic() - self._taken_at < max(STEP_MS / 1000, self._cost_s * SHARE) * 0.9:
                return self._fine[-1]
            began = time.monotonic()
            sample = await self._take()
            self._taken_at, self._cost_s = time.monotonic(), time.monotonic() - began
            self._fine.append(sample)
            if not self._coarse or sample.pulse.at_ms - self._coarse[-1].pulse.at_ms >= MINUTE_MS:
                self._coarse.append(sample)
            return sample

    async def _take(self) -> Sample:
        pulse = await self._engine.read_pulse()
        found = await self._engine.count_ended(self._place, STEP_MS)
        if self._place is None and sum(each.count for each in found.counts) >= MAX_COUNTED:
            # What ended earlier is not counted, nor all of the first stretch.
            self._ended_from = found.counts[0].from_ms + STEP_MS
        self._place = found.place
        for each in found.counts:
            self._ended.setdefault(each.from_ms, Counter())[each.outcome] += each.count
        oldest = pulse.at_ms - COARSE * MINUTE_MS
        for old in [moment for moment in self._ended if moment < oldest]:
            del self._ended[old]
        if time.monotonic() - self._budgets_at >= BUDGETS_S:
            self._budgets = await self._levels()
            self._budgets_at = time.monotonic()
        return Sample(pulse, self._budgets)

    async def _levels(self) -> tuple[BudgetLevel, ...]:
        page = await self._engine.list_budgets(limit=MAX_BUDGETS)
        found = []
        for each in page.budgets:
            levels = [
                (each.usage.get(name, 0) / limit, name, each.usage.get(name, 0), limit)
                for name, limit in each.hard_limits.items()
                if limit > 0
            ]
            if levels:
                level, name, used, limit = max(levels)
                found.append(
                    BudgetLevel(
                        each.budget_id,
                        each.scope_type,
                        each.scope_id,
                        name,
                        used,
                        limit,
                        level,
                        each.breach_count,
                        each.last_breach_at,
                    )
                )
        return tuple(sorted(found, key=lambda each: -each.level)[:MAX_LINES])

    def series(self, window_ms: int, now_ms: int) -> Series:
        """The numbers of the last ``window_ms``."""
        fine = window_ms < FINE * STEP_MS
        step = next((each for each in STEPS_MS if window_ms // each <= MAX_POINTS), STEPS_MS[-1])
        last = now_ms - now_ms % step
        times = tuple(range(last - window_ms + step, last + step, step))
        samples: dict[int, Sample] = {
            each.pulse.at_ms - each.pulse.at_ms % step: each for each in (self._fine if fine else self._coarse)
        }
        ended: dict[int, Counter[str]] = {}
        for moment, counts in self._ended.items():
            ended.setdefault(moment - moment % step, Counter()).update(counts)
        kept = [samples.get(moment) for moment in times]
        outcomes = sorted({name for moment in times for name in ended.get(moment, ())} | {"success", "failed"})
        lanes = Counter[str]()
        for sample in kept:
            for queue in () if sample is None else sample.pulse.queues:
                lanes[queue.lane_id] = max(lanes[queue.lane_id], queue.waiting)
        shown = [lane for lane, _ in lanes.most_common(MAX_LINES)]
        queues = [None if each is None else {queue.lane_id: queue for queue in each.pulse.queues} for each in kept]
        names = {budget.budget_id for each in kept if each is not None for budget in each.budgets}
        return Series(
            step,
            times,
            {name: tuple(ended.get(moment, Counter())[name] for moment in times) for name in outcomes},
            {name: tuple(None if each is None else getattr(each.pulse, name) for each in kept) for name in GAUGES},
            {
                lane: tuple(None if each is None else each[lane].waiting if lane in each else 0 for each in queues)
                for lane in shown
            },
            {
                lane: tuple(
                    None if each is None else each[lane].oldest_age_ms if lane in each else 0 for each in queues
                )
                for lane in shown
            },
            {
                name: tuple(
                    None if each is None else next((b.level for b in each.budgets if b.budget_id == name), None)
                    for each in kept
                )
                for name in sorted(names)
            },
            self._begun(fine, times[0]),
            self._ended_from if self._ended_from is not None and self._ended_from > times[0] else None,
        )

    def _begun(self, fine: bool, first: int) -> int | None:
        """When the first sample was taken that is kept, unless that was before ``first``."""
        kept = self._fine if fine else self._coarse
        return kept[0].pulse.at_ms if kept and kept[0].pulse.at_ms >= first + STEP_MS else None
