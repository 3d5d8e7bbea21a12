"""Which test files a change since `main` could affect, for `./dev test --changed`: found by following imports.

The interfaces (server, command line, console) are gathered in one place each, from which imports lead everywhere. What
changes there counts for the tests of that interface, and elsewhere for those that import the very file.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
MAIN = ("main", "origin/main")
#: Where imports are followed, and where their names begin.
SOURCES = {"src/flowfabric": "src", "tests": "", "demo": "", "bench": "", "examples": ""}
#: Interface -> its tests; the longer ones first.
INTERFACES = {
    "src/flowfabric/server/console/": ("tests/console/",),
    "src/flowfabric/server/": ("tests/server/",),
    "src/flowfabric/cli/": ("tests/cli/", "tests/docs/test_commands.py"),
}
#: One module for each command; they are imported by name, and their tests name what is typed.
COMMANDS, GATHERED_BY = "src/flowfabric/cli/commands/", "src/flowfabric/cli/application.py"
TYPED = re.compile(r"\bflowfabric ([a-z]+)\b")
#: What is read instead of imported -> the tests that read it. What is not here belongs to the Python files beside it.
READ = {
    "src/flowfabric/server/console/": ("tests/console/", "tests/server/test_console_files.py", "tests/words/"),
    "docs/": ("tests/docs/", "tests/words/"),
    "README.md": ("tests/docs/", "tests/words/"),
    "CHANGELOG.md": ("tests/docs/", "tests/words/"),
    "CONTRIBUTING.md": ("tests/docs/", "tests/words/"),
    "examples/": ("tests/examples/", "tests/docs/", "tests/words/"),
    "demo/": ("tests/demo/",),
    "bench/": ("tests/bench/",),
    "deploy/": ("tests/deploy/",),
}
#: Tests that read the text of whole folders.
READS_ALL = {
    "src/flowfabric/": (
        "tests/docs/test_rooms.py",
        "tests/docs/test_tables.py",
        "tests/unit/model/test_counting.py",
        "tests/words/test_words.py",
    ),
    "tests/": ("tests/docs/test_rooms.py",),
}
#: A change of these may change the outcome of any test.
EVERYTHING = ("dev", "pyproject.toml", "requirements.lock", ".ci/", "tests/conftest.py")


class Imports:
    """Who imports whom, as paths."""

    def __init__(self, root: Path) -> None:
        self.files = {path.relative_to(root).as_posix() for top in SOURCES for path in (root / top).rglob("*.py")}
        self._root = root
        self._modules = {module_of(path): path for path in self.files}
        self._importers: dict[str, set[str]] = {path: set() for path in self.files}
        self._lazy = self._origins(root / "src/flowfabric/__init__.pyi")
        for path in self.files:
            for found in self._imported(path, ast.parse((root / path).read_text())):
                self._importers[found].add(path)
        for path in self.files:
            if path.startswith(COMMANDS):
                self._importers[path].add(GATHERED_BY)
            # A test depends on the fixtures above it.
            if path.startswith("tests/"):
                for parent in Path(path).parents:
                    fixtures = (parent / "conftest.py").as_posix()
                    if fixtures in self.files and fixtures != path:
                        self._importers[fixtures].add(path)

    def tests_of(self, path: str) -> set[str]:
        """The test files that a change of this file could affect."""
        direct = {path, *self._importers[path]}
        reached, ahead = {path}, deque([path])
        while ahead:
            for each in self._importers[ahead.popleft()] - reached:
                reached.add(each)
                ahead.append(each)
        own = next((tests for place, tests in INTERFACES.items() if path.startswith(place)), ("",))
        found = {each for each in reached if is_test(each) and (each.startswith(own) or each in direct)}
        return {each for each in found if self._types(each, path)} if path.startswith(COMMANDS) else found

    def _types(self, test: str, command: str) -> bool:
        """Whether a test types one of the commands that a module shows, or goes through all of them."""
        words = {*TYPED.findall((self._root / command).read_text()), Path(command).stem}
        text = (self._root / test).read_text()
        return (
            "import commands" in text
            or not test.startswith("tests/cli/")
            or any(re.search(rf"[\"' ]{word}[\"' ]", text) for word in words)
        )

    def beside(self, path: str) -> set[str]:
        """The Python files of the nearest folder above that has some."""
        for parent in Path(path).parents:
            if found := {each for each in self.files if Path(each).parent == parent}:
                return found
        return set()

    def _origins(self, stub: Path) -> dict[str, str]:
        """Public names are imported when they are used; the stub says from where."""
        if not stub.exists():
            return {}
        imports = (node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ImportFrom))
        return {alias.name: str(node.module) for node in imports for alias in node.names}

    def _imported(self, path: str, tree: ast.Module) -> Iterator[str]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
                if node.module == "flowfabric":
                    names += [self._lazy.get(alias.name, "") for alias in node.names]
            else:
                continue
            for name in names:
                found = self._modules.get(name)
                if found is not None and found != path:
                    yield found


def module_of(path: str) -> str:
    """The name under which a file is imported."""
    top = next(top for top in SOURCES if path.startswith(f"{top}/"))
    below = Path(path).relative_to(SOURCES[top]) if SOURCES[top] else Path(path)
    return ".".join(below.with_suffix("").parts).removesuffix(".__init__")


def is_test(path: str) -> bool:
    """Whether pytest collects it."""
    return path.startswith("tests/") and Path(path).name.startswith("test_")


def affected(changed: Iterable[str], root: Path = ROOT) -> list[str]:
    """The tests to run after a change of these files; `tests` if any could be affected."""
    imports, found = Imports(root), set[str]()
    for path in changed:
        if path.startswith(EVERYTHING):
            return ["tests"]
        found |= {test for place, tests in READS_ALL.items() if path.startswith(place) for test in tests}
        if path in imports.files:
            found |= imports.tests_of(path)
            continue
        readers = [tests for place, tests in READ.items() if path.startswith(place)]
        if readers:
            found |= {each for each in imports.files if is_test(each) and each.startswith(readers[0])}
        elif path.startswith(tuple(SOURCES)):
            found |= {test for each in imports.beside(path) for test in imports.tests_of(each)}
    # A test that was deleted is a change, too.
    return sorted(found & imports.files)


def changed_files(root: Path = ROOT) -> list[str]:
    """What differs from where this work left `main`, committed or not."""
    bases = (git(root, "merge-base", "HEAD", main) for main in MAIN)
    base = next((found for found in bases if found), None)
    if base is None:
        sys.exit(f"./dev test --changed: there is no {' or '.join(MAIN)} here to compare with")
    listed = git(root, "diff", "--name-only", base.strip()), git(root, "ls-files", "--others", "--exclude-standard")
    return sorted({line for listing in listed for line in listing.splitlines()})


def git(root: Path, *arguments: str) -> str:
    """What git says; nothing where it fails."""
    # The checkout may belong to another account, which git refuses unless told.
    command = ["git", "-c", "safe.directory=*", "-c", "core.quotePath=off", *arguments]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, env={**os.environ}, check=False)
    return done.stdout if done.returncode == 0 else ""


if __name__ == "__main__":
    sys.stdout.writelines(f"{path}\n" for path in affected(changed_files()))
