"""The machine must find every planted bug: a checker that finds nothing proves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import Phase

from tests.simulation import mutants_leases, mutants_queue
from tests.simulation.machine import Disagreement
from tests.simulation.mutating import MUTANTS
from tests.simulation.test_model import machine_on, run_model
from tests.simulation.world import World

#: Examples within which a bug must be found.
BUDGET = 600


@pytest.fixture
def memory() -> Iterator[World]:
    """A world in memory."""
    opened = World("memory://")
    yield opened
    opened.close()


@pytest.mark.parametrize("name", MUTANTS)
def test_the_machine_finds(name: str, memory: World, monkeypatch: Any) -> None:
    """Within the budget, and because something differs, not because the bug makes the engine fall over."""
    MUTANTS[name](monkeypatch)
    with pytest.raises(Disagreement) as caught:
        run_model(machine_on(memory), BUDGET, 0, phases=(Phase.generate,))
    assert "internal_error" not in str(caught.value), caught.value


def test_there_are_enough() -> None:
    """Never fewer than these."""
    planted = {name for module in (mutants_leases, mutants_queue) for name in vars(module)}
    assert len(MUTANTS) >= 45
    assert planted >= MUTANTS.keys()
