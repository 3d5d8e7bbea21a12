"""The model test of coordination: an engine on every store against the oracle, step by step."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import full_run
from tests.contract.conftest import STORES
from tests.simulation.coordination.marks import MARKS
from tests.simulation.coordination.rules import Coordination
from tests.simulation.test_model import PATIENCE_S, run_model
from tests.simulation.world import World

#: Examples of a plain run by store, and of a full one.
EXAMPLES = {"memory": 80, "sqlite": 6, "postgres": 4, "valkey": 4}
FULL_EXAMPLES = {"memory": 1_800, "sqlite": 200, "postgres": 80, "valkey": 120}
#: Of all marks, how many a plain run may miss; a full run misses none.
MAY_BE_COLD = 20


def machine_on(world: World, *themes: str) -> Any:
    """The machine with a world of its own, for examples about these things only if any are named."""
    name = f"Coordination_{world.url.partition(':')[0]}"
    given = {"world": world, "seen": Counter(), "steps": 0, "themes": themes or Coordination.themes}
    return type(name, (Coordination,), given)


@pytest.fixture(params=STORES)
def world(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[World]:
    """A world on each store."""
    opened = World(STORES[request.param](request, tmp_path))
    yield opened
    opened.close()


@pytest.mark.timeout(PATIENCE_S)
def test_engine_and_oracle_agree(world: World, request: pytest.FixtureRequest, record_property: Any) -> None:
    """After every step: the same answers, rows and events, and no promise broken. The same examples every time in a
    plain run, new ones in a full run."""
    store = request.node.callspec.params["world"]
    machine = machine_on(world)
    if full_run():
        run_model(machine, FULL_EXAMPLES[store], random.SystemRandom().randrange(2**32))
    else:
        run_model(machine, EXAMPLES[store], 0)
    record_property("calls", machine.steps)
    if store == "memory":
        cold = sorted(mark for mark in MARKS if not machine.seen[mark])
        assert len(cold) <= (0 if full_run() else MAY_BE_COLD), f"the examples no longer meet {cold}"
