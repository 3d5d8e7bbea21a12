"""Samples for the charts, taken every few seconds.

There is one sampler per server, however many look. A sample costs a handful of counts over small indexes; the more they
take, the fewer are taken. The first one of every minute is kept in the store, by whichever server is first, so that all
servers have the same past, and one that has just begun has it too; finer ones stay in memory for an hour. Ends are
counted from the outbox, behind the last one counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import Struct

from flowfabric.model.errors import EngineError
from flowfabric.model.limits import MAX_COUNTED, MAX_PAGE
from flowfabric.model.ownership import stored_name
from flowfabric.model.reads.overview import Pulse
from flowfabric.model.reads.samples import SAMPLE_MS, SAMPLES_KEPT_MS, Sample, sample_of

if TYPE_CHECKING:
    from flowfabric.engine import Engine
    from flowfabric.model.operations.budgets import BudgetStatus

_log = logging.getLogger("flowfabric.server")

#: How often the whole is sampled, how many samples stay in memory, and the share of time that sampling may take.
STEP_MS = 5_000
FINE = 720
SHARE = 20
#: How far a sample reaches where points are closer to each other than stored samples are.
REACH_MS = SAMPLE_MS + STEP_MS
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
    #: Whose it is; ``None`` means the operator's.
    namespace: str | None
    #: What its line is called in samples and series.
    line: str


class Present(Struct, frozen=True):
    """The whole as it was sampled last."""

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
    #: Since when all but the ends has been sampled by any server, if that is later than the window begins.
    sampled_from: int | None
    #: The same of the ends, of which a server that begins counts the last ``MAX_COUNTED`` only.
    ended_from: int | None


GAUGES = ("active", "suspended", "delayed", "blocked", "dependent", "workers")


class Sampler:
    """Takes samples and remembers them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._fine: deque[Sample] = deque(maxlen=FINE)
        #: What the store keeps, by minute, and the last minute of it that is known.
        self._kept: dict[int, Sample] = {}
        self._known: int | None = None
        self._present: Present | None = None
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
            try:
                await self.latest()
            except EngineError as error:
                # A store that is away for a while leaves a gap in the charts.
                _log.debug("no sample for the charts: %s", error)
            except Exception:
                _log.exception("a sample for the charts failed")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(STEP_MS / 1000, self._cost_s * SHARE)):
                    await closing.wait()

    async def latest(self) -> Present:
        """The newest sample; a new one if it is old."""
        async with self._lock:
            present = self._present
            if present and time.monotonic() - self._taken_at < max(STEP_MS / 1000, self._cost_s * SHARE) * 0.9:
                return present
            began = time.monotonic()
            present = self._present = await self._take()
            self._taken_at, self._cost_s = time.monotonic(), time.monotonic() - began
            levels = {each.line: each.level for each in present.budgets}
            self._fine.append(sample_of(present.pulse, levels))
            try:
                await self._keep(present.pulse, levels)
            except EngineError as error:
                # What is now can be shown all the same; the next sample tries again.
                _log.info("a sample for the charts was not stored: %s", error)
            return present

    async def _keep(self, pulse: Pulse, levels: dict[str, float]) -> None:
        """Have the store keep this minute's sample, and learn what others have kept meanwhile."""
        minute = pulse.at_ms - pulse.at_ms % SAMPLE_MS
        if self._known is not None and minute <= self._known:
            return
        kept = await self._engine.record_sample(pulse=pulse, budgets=levels)
        oldest = max(pulse.at_ms - SAMPLES_KEPT_MS, 0)
        # Who was there a minute ago was told then whose sample the store keeps.
        if self._known is None or minute - self._known > SAMPLE_MS:
            since: int | None = oldest if self._known is None else self._known
            while since is not None:
                page = await self._engine.list_samples(since, MAX_PAGE)
                self._kept.update((_minute(each), each) for each in page.samples)
                since = page.next_since
        self._known = _minute(kept)
        self._kept[self._known] = kept
        for old in [each for each in self._kept if each < oldest]:
            del self._kept[old]

    async def _take(self) -> Present:
        pulse = await self._engine.read_pulse()
        found = await self._engine.count_ended(self._place, STEP_MS)
        if self._place is None and sum(each.count for each in found.counts) >= MAX_COUNTED:
            # What ended earlier is not counted, nor all of the first stretch.
            self._ended_from = found.counts[0].from_ms + STEP_MS
        self._place = found.place
        for each in found.counts:
            self._ended.setdefault(each.from_ms, Counter())[each.outcome] += each.count
        oldest = pulse.at_ms - SAMPLES_KEPT_MS
        for old in [moment for moment in self._ended if moment < oldest]:
            del self._ended[old]
        if time.monotonic() - self._budgets_at >= BUDGETS_S:
            self._budgets = await fullest_budgets(self._engine)
            self._budgets_at = time.monotonic()
        return Present(pulse, self._budgets)

    def series(self, window_ms: int, now_ms: int) -> Series:
        """The numbers of the last ``window_ms``."""
        step = next((each for each in STEPS_MS if window_ms // each <= MAX_POINTS), STEPS_MS[-1])
        last = now_ms - now_ms % step
        times = tuple(range(last - window_ms + step, last + step, step))
        ended: dict[int, Counter[str]] = {}
        for moment, counts in self._ended.items():
            ended.setdefault(moment - moment % step, Counter()).update(counts)
        outcomes = sorted({name for moment in times for name in ended.get(moment, ())} | {"success", "failed"})
        points = self._points(times, step)
        known = [each for each in points if each is not None]
        lanes = Counter[str]()
        for sample in known:
            for queue in sample.pulse.queues:
                lanes[queue.lane_id] = max(lanes[queue.lane_id], queue.waiting)
        waiting = {
            lane: [(None, None) if each is None else each.waiting(lane) for each in points]
            for lane, _ in lanes.most_common(MAX_LINES)
        }
        budgets = sorted({name for each in known for name in each.budgets})
        return Series(
            step,
            times,
            {name: tuple(ended.get(moment, Counter())[name] for moment in times) for name in outcomes},
            {name: tuple(None if each is None else getattr(each.pulse, name) for each in points) for name in GAUGES},
            {lane: tuple(count for count, _ in line) for lane, line in waiting.items()},
            {lane: tuple(age for _, age in line) for lane, line in waiting.items()},
            {name: tuple(None if each is None else each.budgets.get(name) for each in points) for name in budgets},
            self._begun(times[0]),
            self._ended_from if self._ended_from is not None and self._ended_from > times[0] else None,
        )

    def _points(self, times: tuple[int, ...], step: int) -> list[Sample | None]:
        """The newest sample of each point; where points are close, also one that is a little older.

        Points that are a minute or more apart show what the store keeps, so that all servers show the same; only the
        present is newer.
        """
        close = step < SAMPLE_MS
        own = [each for each in self._fine if close or each.pulse.at_ms >= times[-1]]
        samples = sorted([*self._kept.values(), *own], key=lambda each: each.pulse.at_ms)
        moments = [each.pulse.at_ms for each in samples]
        found: list[Sample | None] = []
        for moment in times:
            place = bisect_left(moments, moment + step) - 1
            reached = place >= 0 and moments[place] >= moment - (REACH_MS if close else 0)
            found.append(samples[place] if reached else None)
        return found

    def _begun(self, first: int) -> int | None:
        """When the first sample that is kept was taken, unless that was before ``first``."""
        begun = min((each.pulse.at_ms for each in self._kept.values() or self._fine), default=None)
        return begun if begun is not None and begun >= first + STEP_MS else None


async def fullest_budgets(engine: Engine, namespaces: Iterable[str] | None = None) -> tuple[BudgetLevel, ...]:
    """The fullest of all budgets, or of those of some namespaces."""
    page = await engine.list_budgets(limit=MAX_BUDGETS, namespaces=namespaces)
    levels = (_level(each) for each in page.budgets)
    return tuple(sorted((each for each in levels if each is not None), key=lambda each: -each.level)[:MAX_LINES])


def _level(budget: BudgetStatus) -> BudgetLevel | None:
    """How full it is; ``None`` without a hard limit."""
    levels = [
        (budget.usage.get(name, 0) / limit, name, budget.usage.get(name, 0), limit)
        for name, limit in budget.hard_limits.items()
        if limit > 0
    ]
    if not levels:
        return None
    level, name, used, limit = max(levels)
    return BudgetLevel(
        budget.budget_id,
        budget.scope_type,
        budget.scope_id,
        name,
        used,
        limit,
        level,
        budget.breach_count,
        budget.last_breach_at,
        budget.namespace,
        stored_name(budget.budget_id, budget.namespace),
    )


def _minute(sample: Sample) -> int:
    return sample.pulse.at_ms - sample.pulse.at_ms % SAMPLE_MS
