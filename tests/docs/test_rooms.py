"""The map of the code in ``docs/internals.md`` shows the packages there are, and which files it names exist.

``./dev run python -m tests.docs.test_rooms`` rewrites the tables of packages from their docstrings and imports.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "flowfabric"
PAGE = ROOT / "docs" / "internals.md"
#: Where a path in the page may begin.
BASES = (SOURCE, ROOT)
WITH_ROOMS = ("core", "engine", "model", "stores", "sdk", "server", "cli")
#: For readers, a package with more files than this is no longer a room but a list.
MOST_FILES = 20
#: A longer file is not read in one go.
MOST_LINES = 600
CODE = {".css", ".js", ".lua", ".py", ".sql"}
#: These are still longer. Whoever makes one of them shorter takes it off this list; none is added.
LONGER = {
    "tests/console/answering.js",
    "tests/contract/workflows/test_steps.py",
    "tests/sdk/runs/test_tasks.py",
    "tests/sdk/workflows/test_cancellation.py",
    "tests/stores/test_plans.py",
    "tests/stores/valkey/test_connection.py",
    "tests/stores/valkey/test_failover.py",
}
#: Names that begin as a module's does: of kinds, tags, loggers, files and of lines in documents.
NO_MODULES = {
    "flowfabric.db",
    "flowfabric.process",
    "flowfabric.remote",
    "flowfabric.schedule",
    "flowfabric.signals",
    "flowfabric.slot_ms",
    "flowfabric.task",
    "flowfabric.timers",
}
#: Files of readers.
NO_FILES = {"shop/tasks.py"}


def rooms(package: str) -> list[Path]:
    return sorted(path for path in (SOURCE / package).iterdir() if (path / "__init__.py").exists())


def sentence(package: Path) -> str:
    """The first paragraph of a package's docstring, on one line."""
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    return " ".join(text.partition("\n\n")[0].split()).replace("``", "`")


def used_rooms(package: str, room: Path) -> list[str]:
    """The other rooms of the package that this one imports."""
    prefix = f"flowfabric.{package}."
    imported = {name.removeprefix(prefix).split(".")[0] for name in imports(room) if name.startswith(prefix)}
    return sorted(imported & {other.name for other in rooms(package)} - {room.name})


def imports(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield from (f"{node.module}.{each.name}" for each in node.names)
            elif isinstance(node, ast.Import):
                yield from (each.name for each in node.names)


def table(package: str) -> str:
    """The rooms of a package: where, what is there, and which other rooms it needs."""
    rows = [f"| `{room.name}` | {sentence(room)} | {', '.join(used_rooms(package, room))} |" for room in rooms(package)]
    return "\n".join([f"| `{package}/` | What is there | Imports |", "|---|---|---|", *rows])


def with_tables(text: str) -> str:
    for package in WITH_ROOMS:
        pattern = rf"\| `{package}/` \| What is there \| Imports \|\n(\|.*\n)+"
        assert re.search(pattern, text), f"docs/internals.md has no table of {package}"
        text = re.sub(pattern, lambda _, package=package: table(package) + "\n", text)  # type: ignore[misc]
    return text


def test_the_map_is_true() -> None:
    """Also says which room may import which: a new dependency between rooms is a change of this page."""
    assert PAGE.read_text() == with_tables(PAGE.read_text())


@pytest.mark.parametrize("page", ["docs/internals.md", "CONTRIBUTING.md"])
def test_files_that_are_named_exist(page: str) -> None:
    named = set(re.findall(r"`([\w./]+\.(?:py|lua|sql|js|toml|txt|lock))`", (ROOT / page).read_text()))
    unknown = {name for name in named if "NNNN" not in name and not any((base / name).exists() for base in BASES)}
    assert not unknown


def test_rooms_stay_small() -> None:
    for folder in {path.parent for base in (SOURCE, ROOT / "tests") for path in base.rglob("*.py")}:
        assert len(list(folder.glob("*.py"))) <= MOST_FILES, folder


def test_files_stay_short() -> None:
    files = [path for base in (SOURCE, ROOT / "tests") for path in base.rglob("*") if path.suffix in CODE]
    long = {
        path.relative_to(ROOT).as_posix()
        for path in files
        if "vendor" not in path.parts and len(path.read_text().splitlines()) > MOST_LINES
    }
    assert long <= LONGER


def texts() -> Iterator[Path]:
    """All that is written for readers of the code, and of the documents."""
    yield from SOURCE.rglob("*.py")
    yield from (ROOT / "docs").rglob("*.md")
    yield from ROOT.glob("*.md")


def exists(name: str) -> bool:
    """Whether a dotted name begins with a module, and goes on with what that module says itself."""
    at = SOURCE
    for part in name.split(".")[1:]:
        file = at / "__init__.py" if at.is_dir() else at
        if at.is_dir() and ((at / part).is_dir() or (at / f"{part}.py").exists()):
            at = at / part if (at / part).is_dir() else at / f"{part}.py"
        else:
            return file.exists() and re.search(rf"\b{part}\b", file.read_text()) is not None
    return True


def test_modules_that_are_named_exist() -> None:
    """Whoever moves a module changes what is said about it, too."""
    gone = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in texts()
        for name in re.findall(r"(?<![\w./@-])flowfabric(?:\.[a-z]\w*)+", path.read_text())
        if not exists(name) and ".".join(name.split(".")[:2]) not in NO_MODULES
    }
    assert not gone


def test_paths_that_are_named_exist() -> None:
    """The same for files, as code and documents name them: from the package, from a part of it, or from the root."""
    bases = (*BASES, *(path for path in SOURCE.iterdir() if path.is_dir()))
    gone = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in texts()
        for name in re.findall(r"`((?:[a-z_]+/)+[a-z_0-9]+\.(?:py|lua|sql|js))`", path.read_text())
        if name not in NO_FILES and not any((base / name).exists() for base in bases)
    }
    assert not gone


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
