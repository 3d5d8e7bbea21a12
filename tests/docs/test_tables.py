"""Tables in the documentation that repeat the code say what the code says.

``./dev run python -m tests.docs.test_tables`` writes the tables of errors and operations anew.
"""

import ast
import re
from collections.abc import Iterator
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from flowfabric import (
    AttemptState,
    BlockingReason,
    Bug,
    BugKind,
    Conflict,
    ConflictKind,
    Contention,
    ContentionKind,
    EligibilityState,
    EngineError,
    LifecyclePhase,
    LimitReached,
    NotFound,
    OwnershipState,
    PublicState,
    RequiresDevMode,
    ResourceExhausted,
    State,
    StateKind,
    StreamBackpressure,
    StreamDisconnected,
    StreamGap,
    TerminalOutcome,
    Timeout,
    Transport,
    TransportKind,
    Unavailable,
    Validation,
    ValidationKind,
    WrongLoop,
)
from flowfabric.engine.operation_table import OPERATIONS, Operation
from flowfabric.engine.timers.loop import TIMERS
from flowfabric.model import ids, limits
from flowfabric.model.operations.access import Scope
from flowfabric.model.streams import frames

DOCS = Path(__file__).resolve().parents[2] / "docs"
SOURCE = DOCS.parent / "src" / "flowfabric"


# -------------------------------------------------------------------------------------------------------------- errors


def all_errors() -> Iterator[tuple[EngineError, str]]:
    """One error of every kind, and how its kind is written in code."""
    for kind in ("execution", "attempt", "flow", "waitpoint", "schedule", "enqueue_request"):
        yield NotFound(kind), f'"{kind}"'
    families: tuple[tuple[Any, type[StrEnum]], ...] = (
        (Validation, ValidationKind),
        (Contention, ContentionKind),
        (Conflict, ConflictKind),
        (State, StateKind),
        (Bug, BugKind),
    )
    for family, kinds in families:
        for kind in kinds:
            yield family(kind), f"{kinds.__name__}.{kind.name}"
    for kind in TransportKind:
        yield Transport("", kind), f"TransportKind.{kind.name}"
    yield RequiresDevMode(), "TransportKind.PROTOCOL"
    yield StreamGap(), "ValidationKind.INVALID_INPUT"
    yield WrongLoop(), "ValidationKind.INVALID_INPUT"
    for error in (
        Unavailable(""),
        ResourceExhausted("", 0),
        LimitReached("", 0),
        Timeout("", 0),
        StreamDisconnected(""),
        StreamBackpressure(),
    ):
        yield error, f'"{error.kind}"'


def is_raised(error: EngineError, kind: str) -> bool:
    """Whether any code makes an error of the kind, or of the class where it has no kinds."""
    by_class = "." not in kind or isinstance(error, RequiresDevMode | StreamGap)
    return (type(error).__name__ if by_class else kind) in made()


@cache
def made() -> frozenset[str]:
    """Classes that are called and kinds that are named, outside the list of errors and what only tells them: where
    errors are compared with kinds, or become answers of the server and its clients."""
    telling = (
        "model/errors/__init__.py",
        "model/errors/kinds.py",
        "server/http/problems.py",
        "engine/wire/error_codec.py",
    )
    found: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        if path in [SOURCE / each for each in telling]:
            continue
        tree = ast.parse(path.read_text())
        asked = {
            id(part)
            for node in ast.walk(tree)
            if isinstance(node, ast.Compare | ast.MatchValue)
            for part in ast.walk(node)
        }
        for node in ast.walk(tree):
            if id(node) in asked:
                continue
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                found.add(node.func.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                found.add(f"{node.value.id}.{node.attr}")
    return frozenset(found)


def error_row(error: EngineError, kind: str) -> str:
    """What docs/errors.md says about an error."""
    hint = "" if error.hint == error.error_class else f" ({error.hint})"
    happened, advice = error._sentence()
    family = f"`{type(error).__name__}`"
    mark = "" if is_raised(error, kind) else "○ "
    return f"| {family} | `{kind}` | `{error.code}` | {error.error_class}{hint} | {mark}{happened}. {advice} |"


def is_error_row(line: str) -> bool:
    """Whether a line of docs/errors.md is a row of its last table."""
    return re.match(r"\| `\w+` \| `", line) is not None


def error_rows() -> list[str]:
    """The last table of docs/errors.md as it should be."""
    return [error_row(error, kind) for error, kind in all_errors()]


def test_errors() -> None:
    found = [line for line in (DOCS / "errors.md").read_text().splitlines() if is_error_row(line)]
    assert found == error_rows(), "write the table anew: ./dev run python -m tests.docs.test_tables"


def test_every_family_is_in_the_table() -> None:
    families = {type(error) for error, _ in all_errors()}
    classes = set(EngineError.__subclasses__()) | set(Transport.__subclasses__())
    # Layers of the SDK have errors of their own.
    classes = {each for each in classes if each.__module__ == EngineError.__module__}
    assert {each.__name__ for each in classes - families} == {"Contextual"}


# ---------------------------------------------------------------------------------------------------------- operations

OPERATIONS_HEAD = ["| Scope | About | Operations |", "|---|---|---|"]


def scopes_of(operation: Operation) -> str:
    """Which scopes suffice, in words."""
    if not operation.scopes:
        return "none is asked for"
    return (
        "any" if len(operation.scopes) == len(Scope) else " or ".join(f"`{each}`" for each in sorted(operation.scopes))
    )


def shown(operation: Operation) -> str:
    """The name of an operation with its marks."""
    marks = (
        ("†", operation.audited),
        ("‡", operation.everywhere),
        ("○" if not operation.http else "●", operation.remote),
    )
    return f"`{operation.name}`" + "".join(mark for mark, has in marks if has)


def operation_rows() -> list[str]:
    """The table of operations in docs/server.md as it should be."""
    groups: dict[tuple[str, str], list[str]] = {}
    for each in OPERATIONS.values():
        groups.setdefault((scopes_of(each), each.subject.value), []).append(shown(each))
    return [f"| {scopes} | {subject} | {' '.join(names)} |" for (scopes, subject), names in sorted(groups.items())]


def operations_in(text: str) -> tuple[int, int]:
    """Where the rows of the table of operations begin and end, in lines."""
    lines = text.splitlines()
    start = lines.index(OPERATIONS_HEAD[0]) + len(OPERATIONS_HEAD)
    return start, next(at for at in range(start, len(lines)) if not lines[at].startswith("|"))


def test_operations() -> None:
    text = (DOCS / "server.md").read_text()
    start, end = operations_in(text)
    found = text.splitlines()[start:end]
    assert found == operation_rows(), "write the table anew: ./dev run python -m tests.docs.test_tables"


# ------------------------------------------------------------------------------------------------------------- figures


def operating_rows() -> list[list[str]]:
    """The cells of every table row in docs/operating.md."""
    lines = (DOCS / "operating.md").read_text().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]


def test_timers() -> None:
    expected = [
        [f"`{timer.name}`", f"`{timer.variable}`", f"{timer.interval_ms:,} ms", f"{timer.batch:,}"]
        for timer in TIMERS
        if timer.by_itself
    ]
    names = {row[0] for row in expected}
    assert [row[:4] for row in operating_rows() if row[0] in names] == expected


def named_limits() -> dict[str, int]:
    """Every limit that has a name."""
    found = {}
    for module in (limits, ids, frames):
        found |= {name: value for name, value in vars(module).items() if name.startswith("MAX_") and type(value) is int}
    del found["MAX_PARTITION_INDEX"]
    return found


def test_limits() -> None:
    expected = {f"`{name}`": f"{value:,}" for name, value in named_limits().items()}
    found = {row[0]: row[1] for row in operating_rows() if row[0].startswith("`MAX_")}
    assert found == expected


@pytest.mark.parametrize(
    "states",
    [
        LifecyclePhase,
        OwnershipState,
        EligibilityState,
        BlockingReason,
        TerminalOutcome,
        AttemptState,
        PublicState,
    ],
    ids=lambda states: states.__name__,
)
def test_every_state_is_explained(states: type[StrEnum]) -> None:
    text = (DOCS / "states.md").read_text()
    _, _, after = text.partition(f"### `{states.__name__}`")
    section = after.partition("\n### ")[0].partition("\n## ")[0]
    explained = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert explained == [str(each) for each in states]


# --------------------------------------------------------------------------------------------------------------- links


LINK = re.compile(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)")


def anchors(path: Path) -> set[str]:
    """What a link can point at: the headings, as they are called in addresses."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_documents_lead_somewhere() -> None:
    root = DOCS.parent
    for path in (root / "README.md", root / "CHANGELOG.md", *DOCS.rglob("*.md")):
        for target, anchor in LINK.findall(path.read_text()):
            found = path.parent / target if target else path
            assert found.exists(), f"{path.relative_to(root)}: {target}"
            assert not anchor or anchor in anchors(found), f"{path.relative_to(root)}: {target}#{anchor}"


if __name__ == "__main__":
    page = DOCS / "errors.md"
    kept = [line for line in page.read_text().splitlines() if not is_error_row(line)]
    page.write_text("\n".join([*kept, *error_rows(), ""]))
    page = DOCS / "server.md"
    text = page.read_text()
    start, end = operations_in(text)
    lines = text.splitlines()
    page.write_text("\n".join([*lines[:start], *operation_rows(), *lines[end:], ""]))
