"""How tests are spread over workers: every test in one unit, quick ones and those that share something together."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.distribution import QUICK_UNIT, TOGETHER, units

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
