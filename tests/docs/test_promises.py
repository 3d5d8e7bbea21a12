"""Every sentence of the guarantees is named by a test, in ``promises.txt`` beside this file.

A sentence there is followed by the tests that would fail if it were not true, or by ``-`` if it promises nothing
itself: it explains, or says what to do. ``./dev run python -m tests.docs.test_promises`` writes the list anew, with
the tests that are known; for sentences that are new, tests have to be filled in.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
GUARANTEES = TESTS.parent / "docs" / "guarantees.md"
PROMISES = Path(__file__).with_name("promises.txt")
#: The chapters that promise something.
CHAPTERS = ("What we promise", "Time")


def sentences() -> list[str]:
    """What the guarantees say: sentences, and rows of tables."""
    found: list[str] = []
    for chapter in re.split(r"^## ", GUARANTEES.read_text(), flags=re.MULTILINE)[1:]:
        title, _, text = chapter.partition("\n")
        if title not in CHAPTERS:
            continue
        for block in re.split(r"\n{2,}", text.strip()):
            if block.startswith("|"):
                found += block.splitlines()[2:]
            elif not block.startswith("#"):
                found += re.split(r"(?<=[.!?:])\s+(?=[A-Z(`*])", " ".join(block.split()))
    return found


def promised() -> dict[str, list[str]]:
    """The tests of each sentence."""
    found: dict[str, list[str]] = {}
    for line in PROMISES.read_text().splitlines():
        if line.startswith("    "):
            found[next(reversed(found))].append(line.strip())
        elif line:
            found[line] = []
    return found


@cache
def functions_of(path: Path) -> frozenset[str]:
    """The tests in a file."""
    tree = ast.parse(path.read_text()) if path.is_file() else ast.Module([], [])
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, kinds) and node.name.startswith("test_"))


def test_every_sentence_has_its_tests() -> None:
    known = promised()
    said = sentences()
    assert [each for each in said if not known.get(each)] == [], f"name tests for these in {PROMISES.name}"
    assert list(known) == said, "write the list anew: ./dev run python -m tests.docs.test_promises"


def test_the_tests_are_there() -> None:
    named = {test for tests in promised().values() for test in tests if test != "-"}
    missing = [test for test in sorted(named) if test.split("::")[-1] not in functions_of(TESTS / test.split("::")[0])]
    assert missing == []


if __name__ == "__main__":
    tests = promised()
    entries = ["\n".join([each, *(f"    {test}" for test in tests.get(each, ()))]) for each in sentences()]
    PROMISES.write_text("\n".join(entries) + "\n")
