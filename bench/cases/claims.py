"""How long a claim takes, on several databases in turns."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Mapping

from msgspec import Struct

from bench.context import Bench
from bench.databases import Database
from bench.measure import timed
from bench.rows import Row, Series, Target
from bench.shape import LANE
from bench.system import POLICY, open_engine
from flowfabric.engine import Engine

MANY = 50
#: Rounds of a repetition, and calls per round: the sides take turns often, as a busy moment must not hit one only.
#: What the calls take from the backlog is put back after each repetition.
ROUNDS, QUICK_ROUNDS = 10, 3
CALLS_OF_ONE, CALLS_OF_MANY = 10, 1


class Side(Struct):
    """A worker on a database."""

    database: Database
    capabilities: tuple[str, ...] = ()


class ClaimTimes(Struct):
    """Medians of one repetition, in milliseconds."""

    one_ms: float
    many_ms: float


async def claim_times(bench: Bench, sides: Mapping[str, Side]) -> dict[str, list[ClaimTimes]]:
    """Claims of 1 and of 50 on each side, interleaved."""
    rounds = QUICK_ROUNDS if bench.quick else ROUNDS
    engines = {name: await open_engine(side.database.url) for name, side in sides.items()}
    found: dict[str, list[ClaimTimes]] = {name: [] for name in sides}
    try:
        await _repetition(engines, sides, 2)  # connections, plans and caches
        for _ in range(bench.repeat):
            for name, times in (await _repetition(engines, sides, rounds)).items():
                found[name].append(times)
                bench.tick()
    finally:
        for engine in engines.values():
            await engine.close()
    return found


async def _repetition(engines: Mapping[str, Engine], sides: Mapping[str, Side], rounds: int) -> dict[str, ClaimTimes]:
    one: dict[str, list[float]] = {name: [] for name in sides}
    many: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in list(sides)[:: 1 if number % 2 == 0 else -1]:
            claim = functools.partial(_claim, engines[name], sides[name].capabilities)
            one[name] += await timed(CALLS_OF_ONE, functools.partial(claim, 1))
            many[name] += await timed(CALLS_OF_MANY, functools.partial(claim, MANY))
    for side in sides.values():
        await side.database.fill(rounds * (CALLS_OF_ONE + CALLS_OF_MANY * MANY))
    return {
        name: ClaimTimes(statistics.median(one[name]) * 1000, statistics.median(many[name]) * 1000) for name in sides
    }


async def _claim(engine: Engine, capabilities: tuple[str, ...], limit: int) -> None:
    if len(await engine.claim_many(LANE, capabilities, POLICY, limit)) != limit:
        raise RuntimeError("the backlog ran dry")


def row(
    case: str,
    label: str,
    found: dict[str, list[ClaimTimes]],
    ours: str,
    yardstick: str,
    *,
    many: bool = False,
    target: Target | None = None,
    note: str = "",
) -> Row:
    """Two sides as a row of the report."""

    def series(name: str) -> Series:
        return Series(name, [times.many_ms if many else times.one_ms for times in found[name]])

    return Row(
        case=case,
        label=label,
        unit="ms",
        better="lower",
        ours=series(ours),
        yardstick=series(yardstick),
        target=target,
        note=note,
    )
