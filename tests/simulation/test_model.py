"""The model test: an engine on every store against the oracle, step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.conftest import full_run
from tests.contract.conftest import STORES
from tests.simulation.rules import Model
from tests.simulation.world import World

#: Examples of a plain run by store; a full run makes twenty times as many.
EXAMPLES = {"memory": 120, "sqlite": 40, "postgres": 15}
STEPS = 40
FULL_FACTOR = 20


def model_settings(examples: int, **more: Any) -> settings:
    """The same examples every time in a plain run, new ones in a full run."""
    return settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        derandomize=not full_run(),
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
        **more,
    )


def machine_on(world: World) -> type[Model]:
    """The machine with a world of its own."""
    return type(f"Model_{world.url.partition(':')[0]}", (Model,), {"world": world, "seen": Counter(), "steps": 0})


@pytest.fixture(params=STORES)
def world(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[World]:
    """A world on each store."""
    opened = World(STORES[request.param](request, tmp_path))
    yield opened
    opened.close()


def test_engine_and_oracle_agree(world: World, request: pytest.FixtureRequest, capsys: Any) -> None:
    """After every step: the same answers, rows and events, and no promise broken."""
    store = request.node.callspec.params["world"]
    machine = machine_on(world)
    examples = EXAMPLES[store] * (FULL_FACTOR if full_run() else 1)
    run_state_machine_as_test(machine, settings=model_settings(examples))
    with capsys.disabled():
        print(f"\n{store}: {examples} examples, {machine.steps} calls compared")  # noqa: T201
