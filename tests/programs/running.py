"""Programs as somebody would run them: a file in an empty folder, started by `python`, sometimes killed."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from tests.conftest import full_run

ROOT = Path(__file__).resolve().parents[2]
#: An import of 10,000 items may take minutes on a busy machine.
TIMEOUT_S = 900 if full_run() else 120


class Program:
    """A program in a folder of its own."""

    def __init__(self, name: str, folder: Path, **variables: str) -> None:
        self.path = folder / name
        shutil.copy(Path(__file__).parent / name, self.path)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("FF_", "PYTEST_"))}
        self._started: list[subprocess.Popen[str]] = []
        self.variables = {**kept, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1", **variables}

    def start(self, *arguments: str, says: str = "") -> subprocess.Popen[str]:
        """Begin a run, in which somebody types some text."""
        process = subprocess.Popen(
            [sys.executable, self.path.name, *arguments],
            cwd=self.path.parent,
            env=self.variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        assert process.stdin is not None
        process.stdin.write(says)
        process.stdin.flush()
        return process

    def run(self, *arguments: str, says: str = "") -> str:
        """Run it to its end; what it prints."""
        process = self.start(*arguments, says=says)
        printed, complaints = process.communicate(timeout=TIMEOUT_S)
        # A busy machine may make it warn of slowness; an error is a traceback.
        assert (process.returncode, "Traceback" in complaints) == (0, False), f"{printed}\n{complaints}"
        return printed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing running, whatever happened."""
        for process in self._started:
            process.kill()
            process.communicate()


def kill(process: subprocess.Popen[str]) -> str:
    """End it as ``kill -9`` does; what it has printed."""
    assert process.poll() is None, process.communicate()
    process.kill()
    printed, complaints = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, "Traceback" in complaints) == (-signal.SIGKILL, False), f"{printed}\n{complaints}"
    return printed
