"""The model test: an engine on every store against the oracle, step by step."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.internal.conjecture import providers
from hypothesis.stateful import run_state_machine_as_test

from tests.conftest import FULL_RUN_TIMEOUT_S, full_run
from tests.contract.conftest import STORES
from tests.simulation.marks import MARKS
from tests.simulation.rules import Model
from tests.simulation.world import World

#: Examples of a plain run by store, and of a full one.
EXAMPLES = {"memory": 120, "sqlite": 6, "postgres": 4, "valkey": 4}
FULL_EXAMPLES = {"memory": 4_000, "sqlite": 480, "postgres": 200, "valkey": 280}
STEPS = 40
#: Examples per seed. Hypothesis spends most of a long run on variations of few examples; many short runs see more.
#: The first example of each run is the emptiest one and not counted.
PER_SEED = 2
#: Of all marks, how many a plain run may miss; a full run misses none.
MAY_BE_COLD = 8
#: How long one test may take on a machine that has much else to do.
PATIENCE_S = FULL_RUN_TIMEOUT_S if full_run() else 600


# Examples are made from the machine alone. Hypothesis also likes to draw constants it finds in the modules under test;
# then every change of the engine would change what a seed does, and known seeds would miss their bugs.
providers._get_local_constants = lambda: providers._local_constants  # type: ignore[assignment]


def model_settings(**more: Any) -> settings:
    """Settings for one seed."""
    return settings(
        max_examples=PER_SEED + 1,
        stateful_step_count=STEPS,
        derandomize=not full_run(),
        database=None,
        deadline=None,
        print_blob=True,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        **{"phases": (Phase.explicit, Phase.generate, Phase.shrink), **more},
    )


def machine_on(world: World) -> type[Model]:
    """The machine with a world of its own."""
    return type(f"Model_{world.url.partition(':')[0]}", (Model,), {"world": world, "seen": Counter(), "steps": 0})


def run_model(machine: type[Model], examples: int, first_seed: int, **more: Any) -> None:
    """Run the machine on seed after seed until there were enough examples."""
    for number in range(first_seed, first_seed - -examples // PER_SEED):
        try:
            run_state_machine_as_test(seed(number)(machine), settings=model_settings(**more))
        except BaseException as error:
            error.add_note(f"seed {number}")
            raise


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
