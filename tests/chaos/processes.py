"""Processes that tests start, talk to and kill. Each speaks lines of JSON over its standard input and output."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from tests.servers import die_with_parent

ROOT = Path(__file__).resolve().parents[2]
ANSWER_TIMEOUT_S = 60.0


class Peer:
    """One process that runs a module of the tests."""

    def __init__(self, module: str, *arguments: str, **environment: str) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            preexec_fn=die_with_parent(signal.SIGKILL),  # noqa: PLW1509 (one system call, no locks)
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def tell(self, do: str, **arguments: Any) -> None:
        """Ask for something without waiting for the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()

    def hear(self, timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
        """The next thing the process says."""
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            raise AssertionError(f"no answer in {timeout_s} s; the process wrote:\n{self.errors()}") from None
        if line is None:
            raise AssertionError(f"the process ended; it wrote:\n{self.errors()}")
        said = json.loads(line)
        assert "error" not in said, f"{said['error']}\n{self.errors()}"
        return said["answer"]

    def ask(self, do: str, **arguments: Any) -> Any:
        """Ask for something and wait for the answer."""
        self.tell(do, **arguments)
        return self.hear()

    def errors(self) -> str:
        """What the process has written to its standard error."""
        return os.pread(self._errors.fileno(), 1_000_000, 0).decode(errors="replace")

    def kill(self) -> None:
        """Kill it as a crash would, without warning."""
        self.process.kill()
        self.process.wait()

    def wait(self) -> int:
        """Wait until it ends by itself; its exit code."""
        return self.process.wait(ANSWER_TIMEOUT_S)

    def close(self) -> None:
        """End it, whatever it is doing."""
        self.kill()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout, self._errors):
            with contextlib.suppress(OSError):
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def peers(count: int, module: str = "tests.chaos.peer", *arguments: str, **environment: str) -> Iterator[list[Peer]]:
    """Several processes of one kind, ended with the block."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Peer(module, *arguments, **environment)) for _ in range(count)]


def say(answer: Any) -> None:
    """The other side of ``hear``: what a process tells the test that started it."""
    sys.stdout.write(json.dumps({"answer": answer}) + "\n")
    sys.stdout.flush()


def complain(error: BaseException) -> None:
    """Tell the test that something failed."""
    sys.stdout.write(json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n")
    sys.stdout.flush()
