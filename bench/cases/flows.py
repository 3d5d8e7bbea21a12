"""Flows: chains worked off beside plain lifecycles, graphs submitted whole, and losers cancelled by a quorum."""

from __future__ import annotations

import asyncio
import functools
import itertools
import time

from bench import goals
from bench.context import STORE_NAMES, STORES, Bench, Case
from bench.databases import Database
from bench.measure import Window, closed_loop, percentile
from bench.rows import Row, Series
from bench.shape import KIND, LANE, PAYLOAD, RESULT, lifecycle
from bench.system import POLICY, EngineSystem, open_engine
from flowfabric import ClaimPolicy, FlowGraph, Quorum
from flowfabric.engine import Engine

#: Flows under way at once, and the nodes of each.
FLOWS, CHAIN = 100, 10
GRAPH_NODES = 10_000
LOSERS = (10, 100, 1_000)
#: How often losers are cancelled in one repetition.
RACES = {10: 50, 100: 50, 1_000: 5}
#: Claims wait for a node that somebody else is about to let go.
PATIENT = ClaimPolicy(POLICY.worker_id, POLICY.worker_instance_id, POLICY.lease_ttl_ms, max_wait=10_000)


def cases() -> list[Case]:
    """By store."""
    found = []
    for store in STORES:
        name = STORE_NAMES[store]
        found += [
            Case(
                f"flows/chain/{store}",
                f"{FLOWS} flows at once on {name}, each a chain of {CHAIN} nodes, against plain lifecycles",
                functools.partial(chains, store),
            ),
            Case(
                f"flows/submit/{store}",
                f"submit_flow of {GRAPH_NODES:,} nodes on {name}, against creating them one by one",
                functools.partial(submissions, store),
            ),
            Case(
                f"flows/quorum/{store}",
                f"a quorum that cancels {', '.join(map(str, LOSERS))} losers on {name}",
                functools.partial(races, store),
                windows=len(LOSERS),
            ),
        ]
    return found


def chain(length: int, lane: str = LANE) -> FlowGraph:
    """Nodes one behind the other."""
    names = [f"n{number}" for number in range(length)]
    node = {"lane_id": lane, "execution_kind": KIND, "input_payload": PAYLOAD}
    return FlowGraph(dict.fromkeys(names, node), list(itertools.pairwise(names)))


async def chains(store: str, bench: Bench) -> list[Row]:
    """Each caller submits a flow and then works off as many nodes as it has submitted, whosever they are."""
    ours, other = await bench.places.database(store), await bench.places.database(store)
    engine, plain = await open_engine(ours.url), EngineSystem(await open_engine(other.url))
    # Nodes that each caller still has to work off before it submits the next flow.
    due = [0] * FLOWS

    async def node(number: int) -> int:
        if not due[number]:
            await engine.submit_flow(chain(CHAIN))
            due[number] = CHAIN
        handle = await engine.claim(LANE, None, PATIENT)
        assert handle is not None, "a chain stands still"
        await engine.complete(handle, RESULT)
        due[number] -= 1
        return 1

    async def window(system: str) -> Window:
        database = ours if system == "flows" else other
        await database.tidy()
        work = node if system == "flows" else lambda _: lifecycle(plain)
        return await closed_loop(work, FLOWS, bench.seconds, database.server)

    try:
        found = await bench.interleaved({"flows": lambda: window("flows"), "plain": lambda: window("plain")})
    finally:
        await engine.close()
        await plain.close()
    extra = {
        "client µs": [each.client_us for each in found["flows"]],
        "client µs of plain": [each.client_us for each in found["plain"]],
    }
    if ours.server is not None:
        extra["database µs"] = [each.database_us or 0.0 for each in found["flows"]]
        extra["database µs of plain"] = [each.database_us or 0.0 for each in found["plain"]]
    rows = [
        Row(
            case=f"flows/chain/{store}",
            label=f"{STORE_NAMES[store]}, {FLOWS} chains of {CHAIN}",
            unit="nodes/s",
            better="higher",
            ours=Series("flows", [each.per_second for each in found["flows"]]),
            yardstick=Series("plain lifecycles", [each.per_second for each in found["plain"]]),
            target=goals.FLOW_NODES,
            extra=extra,
        )
    ]
    if store in goals.FLOWS_PER_SECOND:
        rows.append(
            Row(
                case=f"flows/chain/{store}",
                label=f"{STORE_NAMES[store]}, {FLOWS} chains of {CHAIN}, whole flows",
                unit="flows/s",
                better="higher",
                ours=Series("flows", [each.per_second / CHAIN for each in found["flows"]]),
                target=goals.FLOWS_PER_SECOND[store],
            )
        )
    return rows


async def submissions(store: str, bench: Bench) -> list[Row]:
    """One caller; a hundred chains side by side are one graph."""
    nodes = GRAPH_NODES // 10 if bench.quick else GRAPH_NODES
    ours, other = await bench.places.database(store), await bench.places.database(store)
    engine, plain = await open_engine(ours.url), await open_engine(other.url)
    took: list[float] = []

    async def submit(_: int) -> int:
        names = [f"n{number}" for number in range(nodes)]
        node = {"lane_id": LANE, "execution_kind": KIND, "input_payload": PAYLOAD}
        edges = [pair for start in range(0, nodes, 100) for pair in itertools.pairwise(names[start : start + 100])]
        started = time.perf_counter()
        await engine.submit_flow(FlowGraph(dict.fromkeys(names, node), edges))
        took.append(time.perf_counter() - started)
        return nodes

    async def create(_: int) -> int:
        await plain.create_execution(lane_id=LANE, execution_kind=KIND, input_payload=PAYLOAD)
        return 1

    async def window(database: Database, work: object, seconds: float) -> Window:
        await database.tidy()
        return await closed_loop(work, 1, seconds, database.server)  # type: ignore[arg-type]

    try:
        found = await bench.interleaved(
            {
                # Long enough for at least one whole graph.
                "graph": lambda: window(ours, submit, max(bench.seconds, 6.0)),
                "single": lambda: window(other, create, bench.seconds),
            }
        )
    finally:
        await engine.close()
        await plain.close()
    return [
        Row(
            case=f"flows/submit/{store}",
            label=f"{STORE_NAMES[store]}, a graph of {nodes:,}",
            unit="nodes/s",
            better="higher",
            ours=Series("submit_flow", [each.per_second for each in found["graph"]]),
            yardstick=Series("one by one", [each.per_second for each in found["single"]]),
            target=goals.FLOW_SUBMIT,
            extra={"seconds per graph": [percentile(took, 0.5)] * bench.repeat},
        )
    ]


async def races(store: str, bench: Bench) -> list[Row]:
    """From the call that completes the deciding member until the last loser is cancelled."""
    database = await bench.places.database(store)
    engine = await open_engine(database.url)
    rows = []
    try:
        for count in LOSERS:
            samples: list[float] = []
            medians: list[float] = []
            for _ in range(bench.repeat):
                taken = [await _race(engine, count) for _ in range(3 if bench.quick else RACES[count])]
                samples.append(percentile(taken, 0.99))
                medians.append(percentile(taken, 0.5))
                bench.tick()
            rows.append(
                Row(
                    case=f"flows/quorum/{store}",
                    label=f"{STORE_NAMES[store]}, {count:,} losers cancelled",
                    unit="ms, p99",
                    better="lower",
                    ours=Series("engine", samples),
                    target=goals.QUORUM_MS.get(count),
                    extra={"p50 ms": medians},
                )
            )
    finally:
        await engine.close()
    return rows


async def _race(engine: Engine, losers: int) -> float:
    winner = {"lane_id": "winner", "execution_kind": KIND, "input_payload": PAYLOAD}
    names = [f"n{number}" for number in range(losers)]
    node = {**winner, "lane_id": "losers"}
    graph = FlowGraph(
        {"winner": winner, **dict.fromkeys(names, node), "end": node},
        [(name, "end") for name in ("winner", *names)],
        {"end": Quorum(1)},
    )
    flow = await engine.submit_flow(graph)
    handle = await engine.claim("winner", None, POLICY)
    assert handle is not None
    started = time.perf_counter()
    await engine.complete(handle, RESULT)
    while engine._going_on:
        await asyncio.sleep(0)
        await asyncio.gather(*engine._going_on)
    took = (time.perf_counter() - started) * 1_000
    last = await engine.read_execution_state(flow.execution_ids[names[-1]])
    assert str(last) == "cancelled", last
    await engine.cancel_flow(flow.flow_id)
    return took
