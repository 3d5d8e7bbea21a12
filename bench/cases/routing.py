"""Routing: many capabilities, a rare one among many workers, and lanes whose keys take turns."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time

from bench import goals
from bench.cases.claims import MANY, Side, claim_times, row
from bench.context import STORE_NAMES, STORES, Bench, Case
from bench.measure import percentile, timed
from bench.rows import Row, Series
from bench.shape import KIND, LANE, PAYLOAD
from bench.system import open_engine
from flowfabric.engine import Engine
from flowfabric.model.handles import decode
from flowfabric.model.operations.executions import ClaimPolicy

CAPABILITIES = tuple(f"skill-{number}" for number in range(10))
BACKLOG = 10_000
#: Workers, of which one has the rare capability; what is created at a time, and the pause between.
WORKERS, RARE = 50, "rare"
BURST, PAUSE_S, PATIENCE_S = 20, 0.02, 30
KEYS, RANKED = 1_000, 20_000
BULK = 1_000


def cases() -> list[Case]:
    """By store."""
    found = []
    for store in STORES:
        name = STORE_NAMES[store]
        found += [
            Case(
                f"routing/{store}",
                f"a claim on {name} by a worker with 10 capabilities, each of which some executions need",
                functools.partial(routed, store),
            ),
            Case(
                f"scarce/{store}",
                f"work on {name} that one worker of {WORKERS} can run, until it has it",
                functools.partial(scarce, store),
                windows=1,
            ),
            Case(
                f"fair/{store}",
                f"claims and creations on {name} in a lane that {KEYS:,} keys share, against a plain lane",
                functools.partial(fair, store),
                windows=4,
            ),
        ]
    return found


async def routed(store: str, bench: Bench) -> list[Row]:
    """Ten sets of requirements to merge, against none."""
    plain, many = await bench.places.database(store), await bench.places.database(store)
    await plain.fill(BACKLOG)
    await many.fill(BACKLOG, required=CAPABILITIES)
    for database in (plain, many):
        await database.settle()
    sides = {"10 capabilities": Side(many, CAPABILITIES), "none needed": Side(plain)}
    found = await claim_times(bench, sides)
    label = f"{STORE_NAMES[store]}, 10 capabilities, claim"
    names = ("10 capabilities", "none needed")
    return [
        row(f"routing/{store}", f"{label} 1", found, *names, target=goals.ROUTING),
        row(f"routing/{store}", f"{label} {MANY}", found, *names, many=True),
    ]


async def scarce(store: str, bench: Bench) -> list[Row]:
    """Everybody is busy with common work while rare work comes in now and then."""
    database = await bench.places.database(store)
    engine = await open_engine(database.url)
    try:
        found = await bench.interleaved({"rare": lambda: _rare_window(engine, max(bench.seconds, 1.0))})
    finally:
        await engine.close()
    return [
        Row(
            case=f"scarce/{store}",
            label=f"{STORE_NAMES[store]}, 1 worker of {WORKERS} can run it, p99",
            unit="ms",
            better="lower",
            ours=Series("rare", [percentile(each, 0.99) * 1000 for each in found["rare"]]),
            target=goals.SCARCE_P99_MS,
            extra={"p50 ms": [percentile(each, 0.5) * 1000 for each in found["rare"]]},
        )
    ]


async def _rare_window(engine: Engine, seconds: float) -> list[float]:
    """Seconds from the creation of each rare execution until it was claimed."""
    begun: dict[str, float] = {}
    taken: dict[str, float] = {}
    news = asyncio.Event()

    async def work(number: int) -> None:
        able = (*CAPABILITIES, RARE) if number == 0 else CAPABILITIES
        policy = ClaimPolicy("bench", f"bench-{number}", 60_000, max_wait=1_000)
        while True:
            handle = await engine.claim("routed", able, policy)
            if handle is not None:
                taken[decode(handle.opaque)[1].execution_id] = time.perf_counter()
                news.set()
                await engine.complete(handle)

    workers = [asyncio.create_task(work(number)) for number in range(WORKERS)]
    try:
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            moment = time.perf_counter()
            needs = [RARE, *(CAPABILITIES[number % 10] for number in range(BURST))]
            answers = await engine.create_executions([_item(each) for each in needs])
            begun[str(answers[0].execution_id)] = moment
            await asyncio.sleep(PAUSE_S)
        async with asyncio.timeout(PATIENCE_S):
            while not begun.keys() <= taken.keys():
                news.clear()
                await news.wait()
    finally:
        for worker in workers:
            worker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*workers, return_exceptions=True)
    return [taken[each] - moment for each, moment in begun.items()]


def _item(capability: str) -> dict[str, object]:
    needs = {"routing_requirements": {"required_capabilities": [capability]}}
    return {"lane_id": "routed", "execution_kind": KIND, "input_payload": PAYLOAD, "policy": needs}


async def fair(store: str, bench: Bench) -> list[Row]:
    """The same executions of a thousand namespaces, ranked and not."""
    plain, shared = await bench.places.database(store), await bench.places.database(store)
    creations: dict[str, list[float]] = {"plain": [], "shared": []}
    for name, database in (("plain", plain), ("shared", shared)):
        engine = await open_engine(database.url)
        try:
            if name == "shared":
                await engine.set_lane_fairness(LANE, "namespace")
            creations[name] = await timed(RANKED // BULK, functools.partial(_create, engine))
        finally:
            await engine.close()
        await database.settle()
    found = await claim_times(bench, {"shared": Side(shared), "plain": Side(plain)})
    label = f"{STORE_NAMES[store]}, {KEYS:,} keys, claim"
    per_ms = {name: [BULK / seconds / 1000 for seconds in values] for name, values in creations.items()}
    return [
        row(f"fair/{store}", f"{label} 1", found, "shared", "plain", target=goals.FAIR),
        row(f"fair/{store}", f"{label} {MANY}", found, "shared", "plain", many=True),
        Row(
            case=f"fair/{store}",
            label=f"{STORE_NAMES[store]}, {KEYS:,} keys, create {BULK:,} at a time",
            unit="per millisecond",
            better="higher",
            ours=Series("shared", per_ms["shared"]),
            yardstick=Series("plain", per_ms["plain"]),
        ),
    ]


async def _create(engine: Engine) -> None:
    await engine.create_executions(
        [
            {"lane_id": LANE, "namespace": f"n{number % KEYS}", "execution_kind": KIND, "input_payload": PAYLOAD}
            for number in range(BULK)
        ]
    )
