"""The machine must find every planted bug: a checker that finds nothing proves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.simulation import mutants_leases, mutants_queue
from tests.simulation.hunting import found
from tests.simulation.mutating import MUTANTS
from tests.simulation.test_model import machine_on
from tests.simulation.world import World


def machine_for(name: str, world: World) -> Any:
    """The machine that hunts this bug."""
    return machine_on(world)


@pytest.fixture
def memory() -> Iterator[World]:
    """A world in memory."""
    opened = World("memory://")
    yield opened
    opened.close()


@pytest.mark.parametrize("name", MUTANTS)
def test_the_machine_finds(name: str, memory: World, monkeypatch: Any) -> None:
    """Soon enough, and because something differs, not because the bug makes the engine fall over."""
    MUTANTS[name](monkeypatch)
    assert found(name, machine_for(name, memory)) is not None


def test_there_are_enough() -> None:
    """Never fewer than these."""
    planted = {name for module in (mutants_leases, mutants_queue) for name in vars(module)}
    assert len(MUTANTS) >= 45
    assert planted >= MUTANTS.keys()
