"""How tests are spread over workers: every test in one unit, quick ones and those that share something together."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.distribution import QUICK_UNIT, TOGETHER, Units, units

ROOT = Path(__file__).parents[2]


def names_in(path: str, amount: int) -> list[str]:
    return [f"{path}::test_{number}[a::b]" for number in range(amount)]


def test_units() -> None:
    hostile, quick, slow = "tests/console/test_hostile.py", "tests/contract/test_x.py", "tests/demo/test_x.py"
    names = [*names_in(hostile, 9), *names_in(quick, QUICK_UNIT + 1), *names_in(slow, 3)]
    found = units(names)
    assert list(found) == names
    assert list(Counter(found.values()).values()) == [9, QUICK_UNIT, 1, 1, 1, 1]


def test_files_that_are_named_exist() -> None:
    assert [each for each in TOGETHER if not (ROOT / each).exists()] == []


class Worker:
    """Notes what it is given, and has done it at once when it is asked for."""

    def __init__(self, number: int) -> None:
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.shutting_down = False
        self.given: list[int] = []

    def send_runtest_some(self, places: list[int]) -> None:
        self.given += places

    def shutdown(self) -> None:
        self.shutting_down = True


def test_one_half_begins_at_the_front_and_the_other_at_the_end() -> None:
    names = [*names_in("tests/chaos/test_x.py", 14), *names_in("tests/contract/test_x.py", QUICK_UNIT)]
    options = SimpleNamespace(loadscopereorder=True)
    config: Any = SimpleNamespace(getvalue=lambda name: ["popen", "popen"], option=options)
    scheduler = Units(config)
    workers: list[Any] = [Worker(0), Worker(1)]
    for each in workers:
        scheduler.add_node(each)
    for each in workers:
        scheduler.add_node_collection(each, names)
    scheduler.schedule()
    front, end = workers
    done = [0, 0]
    # The second one is three times as quick.
    while not scheduler.tests_finished:
        for at, each in enumerate((front, end, end, end)):
            worker = min(at, 1)
            if done[worker] < len(each.given):
                scheduler.mark_test_complete(each, each.given[done[worker]])
                done[worker] += 1
    assert front.given == list(range(len(front.given)))
    assert end.given == [*range(14, 20), *range(13, len(front.given) - 1, -1)]
    assert 2 * len(front.given) < len(end.given)
    assert front.shutting_down
    assert end.shutting_down
