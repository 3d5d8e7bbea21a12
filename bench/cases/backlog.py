"""A claim must not get slower by what waits, nor by what waits in vain, nor by what is long done."""

from __future__ import annotations

import functools

from bench import goals
from bench.cases.claims import MANY, Side, claim_times, row
from bench.context import STORE_NAMES, STORES, Bench, Case
from bench.databases import Database, SqliteDatabase
from bench.rows import Row

SMALL = 1_000
MISMATCHING = 10_000
#: Two workers share these in turns.
MATCHING = 3_000
#: Different requirements among the mismatching ones, in the harder variant.
KINDS_OF_MISMATCH = 100
CHURN = 100_000
_QUICK_CHURN = 20_000


def sizes(bench: Bench) -> tuple[int, int, int]:
    """The backlogs that are compared."""
    return (SMALL, 10_000, 100_000) if bench.quick else (SMALL, 100_000, 1_000_000)


def cases() -> list[Case]:
    """By store."""
    found = []
    for store in STORES:
        name = STORE_NAMES[store]
        found += [
            Case(
                f"backlog/{store}",
                f"a claim on {name} with up to a million waiting, against a thousand",
                functools.partial(backlog, store),
                windows=3,
            ),
            Case(
                f"mismatch/{store}",
                f"a claim on {name} behind 10,000 executions this worker cannot run, against none",
                functools.partial(mismatch, store),
                windows=6,
            ),
            Case(
                f"churn/{store}",
                f"a claim on {name} after 100,000 executions came and went since the last vacuum, against none",
                functools.partial(churn, store),
            ),
        ]
    about = "a claim on SQLite after somebody ran ANALYZE, against a file without statistics"
    return [*found, Case("statistics/sqlite", about, statistics)]


async def backlog(store: str, bench: Bench) -> list[Row]:
    """Three databases, in turns."""
    sides = {f"{size:,} waiting": Side(await bench.backlog(store, size)) for size in sizes(bench)}
    bench.say("claiming")
    found = await claim_times(bench, sides)
    least, *larger = sides
    largest = larger[-1]
    return [
        row(
            f"backlog/{store}",
            f"{STORE_NAMES[store]}, claim {MANY if many else 1} of {name.removesuffix(' waiting')}",
            found,
            name,
            least,
            many=many,
            target=goals.BACKLOG if name == largest else None,
        )
        for many in (False, True)
        for name in larger
    ]


async def mismatch(store: str, bench: Bench) -> list[Row]:
    """Workers with another capability and with none, with and without rows in their way."""
    plain, behind, scattered = [await bench.places.database(store) for _ in range(3)]
    await behind.fill(MISMATCHING, required=["gpu"], priority=10)
    await scattered.fill(MISMATCHING, required=[f"gpu-{number}" for number in range(KINDS_OF_MISMATCH)], priority=10)
    for database in (plain, behind, scattered):
        await database.fill(MATCHING)
        await database.settle()
    found = await claim_times(
        bench,
        {
            "no capability, none in front": Side(plain),
            "no capability, behind": Side(behind),
            "no capability, scattered": Side(scattered),
            "another capability, none in front": Side(plain, ("cpu",)),
            "another capability, behind": Side(behind, ("cpu",)),
            "another capability, scattered": Side(scattered, ("cpu",)),
        },
    )
    rows = []
    for who in ("no capability", "another capability"):
        label = f"{STORE_NAMES[store]}, {who}, {MISMATCHING:,} in front"
        yardstick = f"{who}, none in front"
        rows.append(row(f"mismatch/{store}", label, found, f"{who}, behind", yardstick, target=goals.MISMATCH))
        label = f"{label} of {KINDS_OF_MISMATCH} kinds"
        rows.append(row(f"mismatch/{store}", label, found, f"{who}, scattered", yardstick))
    return rows


async def churn(store: str, bench: Bench) -> list[Row]:
    """What came and went leaves dead entries at the very end of the index where claims begin to look."""
    count = _QUICK_CHURN if bench.quick else CHURN
    fresh, worn = await _small(bench, store), await bench.places.database(store)
    await worn.stop_tidying()
    bench.say(f"{count:,} come and go")
    await worn.fill(count)
    await worn.finish_waiting()
    await worn.fill(SMALL)
    name = f"{count:,} came and went"
    found = await claim_times(bench, {name: Side(worn), "nothing to tidy": Side(fresh)})
    label = f"{STORE_NAMES[store]}, claim 1 after {count:,} others"
    return [row(f"churn/{store}", label, found, name, "nothing to tidy")]


async def statistics(bench: Bench) -> list[Row]:
    """The planner of SQLite chooses again once it has statistics."""
    plain, analyzed = await _small(bench, "sqlite"), await _small(bench, "sqlite")
    assert isinstance(analyzed, SqliteDatabase)
    await analyzed.analyze()
    found = await claim_times(bench, {"statistics": Side(analyzed), "no statistics": Side(plain)})
    label = "SQLite, claim 1 with statistics"
    return [row("statistics/sqlite", label, found, "statistics", "no statistics", target=goals.BACKLOG)]


async def _small(bench: Bench, store: str) -> Database:
    database = await bench.places.database(store)
    await database.fill(SMALL)
    await database.settle()
    return database
