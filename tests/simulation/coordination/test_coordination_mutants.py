"""The machine of coordination must find every planted bug."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import Phase

from tests.simulation.coordination import mutants_flows
from tests.simulation.coordination.mutating import MUTANTS
from tests.simulation.coordination.test_coordination import machine_on
from tests.simulation.machine import Disagreement
from tests.simulation.test_model import run_model
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
    planted = {name for module in (mutants_flows,) for name in vars(module)}
    assert len(MUTANTS) >= 20
    assert planted >= MUTANTS.keys()
