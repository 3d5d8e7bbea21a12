"""Random graphs against a naive evaluator: who may run, who is skipped, who is cancelled, after every single step."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Struct

from flowfabric import AllOf, AnyOf, EdgePolicy, OnSatisfied, Quorum
from flowfabric.core.flows import cascade
from flowfabric.core.invariants.flows import check_flow
from flowfabric.engine import Engine
from flowfabric.model.decisions import Select
from flowfabric.model.events import CompletionEvent
from flowfabric.model.records.executions import Execution
from flowfabric.model.records.flows import Edge, EdgeGroup
from tests.contract.graphs import Flowing, settle
from tests.contract.probe import Probe, policy, shared_stores_only

ENDED = {"completed", "failed", "skipped", "cancelled"}


class Shape(Struct):
    """A graph to be run."""

    names: list[str]
    edges: list[tuple[str, str]]
    groups: dict[str, EdgePolicy]


class Naive:
    """What a flow does, in the most obvious way."""

    def __init__(self, shape: Shape) -> None:
        self.into = {name: [up for up, down in shape.edges if down == name] for name in shape.names}
        self.groups = shape.groups
        self.fired: set[str] = set()
        self.state = {name: "waiting_children" if self.into[name] else "waiting" for name in shape.names}

    def end(self, name: str, state: str) -> None:
        """A member ends, and all that follows from it."""
        self.state[name] = state
        while self._step():
            pass

    def _step(self) -> bool:
        for name, ups in self.into.items():
            if not ups or name in self.fired:
                continue
            good = sum(self.state[up] == "completed" for up in ups)
            bad = sum(self.state[up] in ENDED - {"completed"} for up in ups)
            match self.groups.get(name, AllOf()):
                case AllOf():
                    done, dead, cancels = good == len(ups), bad > 0, False
                case AnyOf(on_satisfied=mode):
                    done, dead, cancels = good >= 1, bad == len(ups), mode == "cancel_remaining"
                case Quorum(k=k, on_satisfied=mode):
                    done, dead = good >= k, len(ups) - bad < k
                    # Nothing is decided before the first end.
                    dead = dead and good + bad > 0
                    cancels = mode == "cancel_remaining"
            if not done and not dead:
                continue
            self.fired.add(name)
            if self.state[name] not in ENDED:
                self.state[name] = "waiting" if done else "skipped"
            for up in ups if cancels else ():
                if self.state[up] not in ENDED:
                    self.state[up] = "cancelled"
            return True
        return False


def chain(chance: random.Random) -> Shape:
    names = [f"n{number:02}" for number in range(12)]
    return Shape(names, list(itertools.pairwise(names)), {})


def diamonds(chance: random.Random) -> Shape:
    names = [f"n{number:02}" for number in range(13)]
    edges = []
    for start in range(0, 12, 3):
        top, left, right, bottom = names[start : start + 4]
        edges += [(top, left), (top, right), (left, bottom), (right, bottom)]
    return Shape(names, edges, {name: some_policy(chance, 2) for name in names[3::3]})


def fan(chance: random.Random) -> Shape:
    middle = [f"m{number:02}" for number in range(15)]
    edges = [("a", name) for name in middle] + [(name, "z") for name in middle]
    return Shape(["a", *middle, "z"], edges, {"z": some_policy(chance, 15)})


def anything(chance: random.Random) -> Shape:
    names = [f"n{number:02}" for number in range(chance.randint(6, 18))]
    pairs = [(up, down) for place, down in enumerate(names) for up in names[:place]]
    edges = [pair for pair in pairs if chance.random() < 0.25]
    # The same two may be joined twice.
    edges += chance.sample(edges, min(1, len(edges)))
    groups = {name: some_policy(chance, 4) for name in names if chance.random() < 0.6}
    return Shape(names, edges, groups)


def some_policy(chance: random.Random, most: int) -> EdgePolicy:
    mode = chance.choice(list(OnSatisfied))
    return chance.choice([AllOf(), AnyOf(mode), Quorum(chance.randint(1, most), mode)])


SHAPES: dict[str, Callable[[random.Random], Shape]] = {
    "chain": chain,
    "diamonds": diamonds,
    "fan": fan,
    "anything": anything,
}


def alike(found: str, wanted: str) -> bool:
    """Whether a member stands as it should. One that is both skipped and a loser may be told as either."""
    shown = {"active": "waiting"}.get(found, found)
    return shown == wanted or {shown, wanted} == {"skipped", "cancelled"}


@pytest.mark.parametrize("bound", [3, 1_000])
@pytest.mark.parametrize("name", SHAPES)
async def test_random_graphs(
    engine: Engine, probe: Probe, name: str, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cascade, "MAX_MOVES", bound)
    for seed in range(4 if name == "anything" else 2):
        chance = random.Random(f"{name} {seed}")
        shape = SHAPES[name](chance)
        await run(engine, probe, shape, chance, f"{name} {seed}")


async def run(engine: Engine, probe: Probe, shape: Shape, chance: random.Random, told: str) -> None:
    naive = Naive(shape)
    flow = await Flowing.submit(engine, shape.names, shape.edges, shape.groups)
    while True:
        ready = [name for name, state in naive.state.items() if state == "waiting"]
        living = [name for name, state in naive.state.items() if state not in ENDED]
        if not living:
            break
        if ready and chance.random() < 0.92:
            name = chance.choice(ready)
            good = chance.random() < 0.75
            await (flow.complete(name) if good else flow.fail(name))
            naive.end(name, "completed" if good else "failed")
        else:
            name = chance.choice(living)
            await engine.cancel_execution(execution_id=flow.members[name])
            flow.handles.pop(name, None)
            naive.end(name, "cancelled")
        await settle(engine)
        found = await flow.states()
        wrong = {each: (found[each], naive.state[each]) for each in found if not alike(found[each], naive.state[each])}
        assert not wrong, f"{told}: after {name}: {wrong}"
        await check(engine, probe, flow)
    ends = await probe.events(CompletionEvent)
    own = [end for end in ends if end.flow_id == flow.flow_id]
    assert len(own) == len(shape.names), "every member ends once"
    assert all(end.dispatched_at_ms is not None for end in own)


async def check(engine: Engine, probe: Probe, flow: Flowing) -> None:
    partition = next(iter(flow.members.values())).partition
    where = (("partition", "flow_id"), (partition, str(flow.flow_id)))
    view = await engine._view(*(Select(kind, *where) for kind in (Execution, Edge, EdgeGroup)))
    equal: dict[str, Any] = dict(zip(*where, strict=True))
    found = check_flow(view.select(Execution, **equal), view.select(Edge, **equal), view.select(EdgeGroup, **equal))
    assert found == []


@shared_stores_only
async def test_many_parents_end_at_once_in_two_processes(engine: Engine, probe: Probe, open_engine: Any) -> None:
    other = await open_engine()
    parents = [f"p{number:03}" for number in range(300)]
    lanes = {name: {"lane_id": "parents"} for name in parents}
    flow = await Flowing.submit(engine, [*parents, "z"], [(name, "z") for name in parents], **lanes)

    async def work(one: Engine, instance: str) -> int:
        done = 0
        while handles := await one.claim_many("parents", (), policy(instance), limit=25):
            await asyncio.gather(*(one.complete(handle, b"x") for handle in handles))
            done += len(handles)
        return done

    counts = await asyncio.gather(*(work(engine, f"a{n}") for n in range(3)), *(work(other, f"b{n}") for n in range(3)))
    assert sum(counts) == 300
    await settle(engine)
    await settle(other)
    assert await flow.counts(probe, "z") == (300, 0, 0, 0, "satisfied")
    assert await flow.claimable("z")
    assert {end.dispatched_at_ms is not None for end in await probe.events(CompletionEvent)} == {True}
    await check(engine, probe, flow)


@shared_stores_only
async def test_a_race_of_winners_in_two_processes(engine: Engine, probe: Probe, open_engine: Any) -> None:
    other = await open_engine()
    for _ in range(5):
        names = [f"p{number:02}" for number in range(12)]
        flow = await Flowing.submit(engine, [*names, "z"], [(name, "z") for name in names], {"z": Quorum(2)})
        handles = []
        for name in names:
            one = engine if len(handles) % 2 else other
            handles.append((one, await one.claim(await flow.lane(name), (), policy())))
        answers = await asyncio.gather(
            *(one.complete(handle, b"x") for one, handle in handles if handle is not None), return_exceptions=True
        )
        await settle(engine)
        await settle(other)
        won = sum(answer is None for answer in answers)
        states = list((await flow.states(*names)).values())
        assert won >= 2
        assert (states.count("completed"), states.count("cancelled")) == (won, 12 - won)
        assert await flow.counts(probe, "z") == (won, 12 - won, 0, 0, "satisfied")
        assert await flow.claimable("z")
        await check(engine, probe, flow)


@shared_stores_only
async def test_edges_applied_while_their_upstream_ends(engine: Engine, probe: Probe, open_engine: Any) -> None:
    other = await open_engine()
    for _ in range(15):
        flow = await Flowing.build(engine, ["a", "b"])
        edge_id = await flow.stage("a", "b")
        handle = await flow.start("a")
        remote = Flowing(other, flow.flow_id, flow.members)
        await asyncio.gather(engine.complete(handle, b"x"), remote.apply("a", "b", edge_id))
        assert await flow.counts(probe, "b") == (1, 0, 0, 0, "satisfied")
        assert await flow.claimable("b")


@shared_stores_only
async def test_members_that_wait_while_their_children_end(engine: Engine, probe: Probe, open_engine: Any) -> None:
    other = await open_engine()
    for _ in range(15):
        flow = await Flowing.build(engine, ["parent", "child"])
        parent, child = await flow.start("parent"), await flow.start("child")
        await flow.join("child", "parent")
        await asyncio.gather(engine.wait_children(parent), other.complete(child, b"x"))
        assert await flow.counts(probe, "parent") == (1, 0, 0, 0, "satisfied")
        assert await flow.claimable("parent")
