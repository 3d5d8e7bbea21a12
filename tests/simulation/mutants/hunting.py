"""Hunting planted bugs: the seeds that are known to find one come first.

A change of the machines, their domains or the engine may make a known seed miss its bug. The hunt then goes on from
the first seed, so the tests stay right and only get slower. ``python -m tests.simulation.mutants.hunting`` looks for
new seeds.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase

from tests.simulation.machine import Disagreement
from tests.simulation.test_model import PER_SEED, run_model
from tests.simulation.world import World

SEEDS = Path(__file__).with_name("known_seeds.json")
#: Examples within which a bug must be found.
EXAMPLES = 600
#: Where planted bugs are hunted.
HUNTS = ("tests.simulation.test_mutants", "tests.simulation.coordination.test_coordination_mutants")


def hunt(machine: Any, seeds: Iterable[int]) -> int | None:
    """The first of these seeds that shows that something differs."""
    for number in seeds:
        try:
            run_model(machine, PER_SEED, number, phases=(Phase.generate,))
        except Disagreement as difference:
            if "internal_error" in str(difference):
                raise AssertionError("the engine must answer otherwise, not fall over") from difference
            return number
    return None


def found(name: str, machine: Any) -> int | None:
    """The seed that finds a planted bug, the known one first."""
    known = json.loads(SEEDS.read_text()).get(name) if SEEDS.exists() else None
    first = () if known is None else (known,)
    return hunt(machine, (*first, *range(-(-EXAMPLES // PER_SEED))))


def renew(modules: Iterable[str], wanted: Callable[[str], bool]) -> None:
    """Write down the seeds that find the bugs now."""
    logging.disable(logging.CRITICAL)
    for module in map(import_module, modules):
        for name, plant in module.MUTANTS.items():
            if not wanted(name):
                continue
            world = World("memory://")
            with pytest.MonkeyPatch.context() as patching:
                plant(patching)
                number = found(name, module.machine_for(name, world))
            world.close()
            sys.stdout.write(f"{name} {number}\n")
            sys.stdout.flush()
            if number is not None:
                known = json.loads(SEEDS.read_text()) if SEEDS.exists() else {}
                SEEDS.write_text(json.dumps({**known, name: number}, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    renew(HUNTS, lambda name: not sys.argv[1:] or name in sys.argv[1:])
