"""The quickstart, followed to the letter in an empty folder.

A Python block that begins with ``# name.py`` is that file. Each line ``$ …`` of a ``console`` block is a command, and
what follows it is what it prints; ``…`` stands for anything. Commands that serve run until the page is over.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.test_examples import FENCE, ROOT

PAGE = ROOT / "docs" / "quickstart.md"
TIMEOUT_S = 60
#: They serve until they are told to stop.
SERVING = ("flowfabric dev", "flowfabric worker")
INSTALLING = "pip install"


class Command(NamedTuple):
    """A line that is typed, and what it prints."""

    typed: str
    prints: str


def parts(text: str) -> Iterator[tuple[str, str] | Command]:
    """Files by name, and commands, in order."""
    for kind, body in FENCE.findall(text):
        if kind == "python":
            yield body.partition("\n")[0].removeprefix("# "), body
        elif kind == "console":
            for command in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
                typed, _, prints = command.partition("\n")
                yield Command(typed, prints)


class Reader:
    """Somebody who follows the page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.serving: list[subprocess.Popen[str]] = []
        #: What the page calls by a word in capitals, because it differs each time.
        self.known: dict[str, str] = {}
        variables = {key: value for key, value in os.environ.items() if not key.startswith(("FF_", "PYTEST_"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{variables['PATH']}"
        self.variables = {**variables, "PYTHONPATH": str(ROOT / "src"), "PATH": path, "NO_COLOR": "1"}

    def start(self, typed: str, stderr: int = subprocess.PIPE) -> subprocess.Popen[str]:
        """Begin a command."""
        words = [self.known.get(word, word) for word in shlex.split(typed)]
        return subprocess.Popen(
            words,
            cwd=self.folder,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=stderr,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    def follow(self, command: Command) -> None:
        """Type a command and compare what it prints."""
        if command.typed.startswith(INSTALLING):
            return
        if command.typed.startswith(SERVING):
            process = self.start(command.typed, stderr=subprocess.STDOUT)
            self.serving.append(process)
            assert process.stdout is not None
            assert process.stdout.readline(), "it says that it serves"
            return
        process = self.start(command.typed)
        said, complaints = process.communicate(timeout=TIMEOUT_S)
        pattern = ".*".join(re.escape(each) for each in command.prints.split("…"))
        assert re.fullmatch(pattern, said, re.DOTALL), f"$ {command.typed}\n{said}\n{complaints}"
        crashes = command.typed.endswith(" crash")
        assert process.returncode == int(crashes), f"$ {command.typed}\n{said}\n{complaints}"
        if command.typed.startswith("flowfabric submit"):
            self.known["RUN"] = said.strip()
            self.known["ASK"] = self.asked()

    def asked(self) -> str:
        """The id of the question, as soon as it is there."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            said, _ = self.start("flowfabric asks --json").communicate(timeout=TIMEOUT_S)
            if found := json.loads(said):
                return str(found[0]["id"])
        raise AssertionError("no open questions")

    def leave(self) -> None:
        """Stop what serves."""
        for process in self.serving:
            process.terminate()
        for process in self.serving:
            said, _ = process.communicate(timeout=TIMEOUT_S)
            # The signal may come before a worker listens for it.
            assert process.returncode in (0, -signal.SIGTERM), said


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    found = Reader(tmp_path)
    try:
        yield found
        found.leave()
    finally:
        for process in found.serving:
            process.kill()


@pytest.mark.timeout(300)
def test_the_quickstart(reader: Reader) -> None:
    for part in parts(PAGE.read_text()):
        if isinstance(part, Command):
            reader.follow(part)
        else:
            name, body = part
            assert re.fullmatch(r"\w+\.py", name), f"a block that is no file: {name}"
            (reader.folder / name).write_text(body)
