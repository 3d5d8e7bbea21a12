"""Every table with numbers in it is named by a test, in ``tables.txt`` beside this file.

A table there is followed by the tests that would fail if a number in it were wrong, or by ``-`` and why none is needed:
it shows measurements, or what others say of their products. Pages that are made from the code as a whole are named
once. ``./dev run python -m tests.docs.test_numbers_in_tables`` writes the list anew, with the tests that are known; for
tables that are new, tests have to be filled in.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.test_promises import TESTS, functions_of

ROOT = TESTS.parent
LIST = Path(__file__).with_name("tables.txt")
#: Pages that a test compares with the code from beginning to end.
MADE_FROM_CODE = ("docs/commands.md", "docs/reference.md")
NUMBER = re.compile(r"(?<![\w`.])\d")


def tables() -> list[str]:
    """Where there is a table with a number outside of code: its page, its heading and its head."""
    found: dict[str, None] = {}
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))):
        page, heading = str(path.relative_to(ROOT)), ""
        text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
        for block in re.split(r"\n{2,}", text):
            lines = block.strip().splitlines()
            if lines and lines[0].startswith("#"):
                heading = lines[0].lstrip("# ")
            elif len(lines) > 2 and lines[0].startswith("|") and any(map(has_number, lines[2:])):
                found[page if page in MADE_FROM_CODE else f"{page}, {heading}: {lines[0]}"] = None
    return list(found)


def has_number(row: str) -> bool:
    """Whether a row says a number that is no part of a name or of code."""
    return NUMBER.search(re.sub(r"`[^`]*`|\]\([^)]*\)", "", row)) is not None


def told() -> dict[str, list[str]]:
    """The tests of each table."""
    found: dict[str, list[str]] = {}
    for line in LIST.read_text().splitlines():
        if line.startswith("    "):
            found[next(reversed(found))].append(line.strip())
        elif line:
            found[line] = []
    return found


def test_every_table_of_numbers_has_its_tests() -> None:
    known, found = told(), tables()
    assert [each for each in found if not known.get(each)] == [], f"name tests for these in {LIST.name}"
    assert list(known) == found, "write the list anew: ./dev run python -m tests.docs.test_numbers_in_tables"


def test_the_tests_are_there() -> None:
    named = {test for tests in told().values() for test in tests if not test.startswith("- ")}
    missing = [test for test in sorted(named) if test.split("::")[-1] not in functions_of(TESTS / test.split("::")[0])]
    assert missing == []


if __name__ == "__main__":
    tests = told() if LIST.exists() else {}
    LIST.write_text(
        "\n".join("\n".join([each, *(f"    {test}" for test in tests.get(each, ()))]) for each in tables()) + "\n"
    )
