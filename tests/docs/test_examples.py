"""Every Python example in the README and the documentation runs as it is printed.

The blocks of a file run in order in one namespace, in an empty directory; ``await`` may stand at the top level, as in
``python -m asyncio``. A block of kind ``text`` right behind one of Python is what that one prints.
"""

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LONGEST_FIRST_EXAMPLE = 30


class Example(NamedTuple):
    """One block, where it begins, and what it should print."""

    line: int
    code: str
    prints: str | None


def examples(text: str) -> list[Example]:
    """The Python blocks of a document."""
    found = []
    fences = list(FENCE.finditer(text))
    for position, fence in enumerate(fences):
        if fence[1] != "python":
            continue
        following = fences[position + 1] if position + 1 < len(fences) else None
        adjoins = following is not None and following[1] == "text" and not text[fence.end() : following.start()].strip()
        printed = following[2] if following is not None and adjoins else None
        found.append(Example(text.count("\n", 0, fence.start(2)), fence[2], printed))
    return found


def documents() -> list[Path]:
    """Every document with an example in it, but for the quickstart, whose blocks are files."""
    every = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in every if path.name != "quickstart.md" and examples(path.read_text())]


def name_of(path: Path) -> str:
    """How a document is called in test names and tracebacks."""
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", documents(), ids=name_of)
def test_examples_run(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FF_DEV_MODE", raising=False)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    # One loop for the whole file, which stands still between blocks: an example may also call `asyncio.run` itself.
    with asyncio.Runner() as runner:
        for line, code, prints in examples(path.read_text()):
            # Empty lines in front make tracebacks point to the line in the document.
            compiled = compile(
                "\n" * line + code, name_of(path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
            )
            result = eval(compiled, namespace)
            if inspect.iscoroutine(result):
                runner.run(result)
            printed = capsys.readouterr().out
            if prints is not None:
                assert printed == prints, f"{name_of(path)}:{line}"


def test_the_readme_begins_with_one_short_program() -> None:
    first = examples((ROOT / "README.md").read_text())[0]
    assert len(first.code.splitlines()) <= LONGEST_FIRST_EXAMPLE
    assert 'if __name__ == "__main__":\n    asyncio.run(' in first.code, (
        "it can be copied into a file, run and imported"
    )
