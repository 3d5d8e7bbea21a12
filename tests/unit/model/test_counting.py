"""Numbers with the word that fits them."""

from __future__ import annotations

import re
from pathlib import Path

from flowfabric.model.counting import counted

SOURCE = Path(__file__).resolve().parents[3] / "src" / "flowfabric"
#: Things that are counted in sentences. What may be 1 is counted with ``counted``.
NOUNS = (
    "runs executions workers lanes frames signals answers calls entries dimensions migrations rows events files edges "
    "members attempts retries digits approvers budgets schedules flows questions replays reclaims findings leases"
)
COUNT = re.compile(
    r"\{(?:len\([^{}]*\)|[\w.]*(?:count|number|total|left|found|made|done|missing|waiting)\w*)\} "
    rf"(?:{'|'.join(NOUNS.split())})\b"
)


def test_one_and_many() -> None:
    assert [counted(each, "run") for each in (0, 1, 2, 1_000)] == ["0 runs", "1 run", "2 runs", "1,000 runs"]
    assert [counted(each, "entry", "entries") for each in (1, 2)] == ["1 entry", "2 entries"]


def test_no_sentence_counts_one_of_many() -> None:
    """A sentence that names a number and a plural says "1 runs" one day, unless the number has a least size."""
    found = [
        f"{path.relative_to(SOURCE)}: {match}"
        for path in sorted(SOURCE.rglob("*.py"))
        for match in COUNT.findall(path.read_text())
    ]
    # More than the limits there, which are above 1, or the branch of a match that has had 1 before.
    assert found == [
        "core/explain/causes.py: {count} executions",
        "core/explain/explain.py: {len(children)} executions",
        "engine/checks/budgets.py: {len(value)} dimensions",
    ]
