"""A command in a real terminal: a process whose input and output are a pseudo-terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import TracebackType
from typing import Self

COMMAND = [sys.executable, "-c", "from flowfabric.cli import main; main()"]
#: Takes the terminal as its own, so that keys become signals, hears Ctrl-C although the tests may run where it is not
#: heard, and turns into the command.
_ADOPT = [
    sys.executable,
    "-c",
    (
        "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        "signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    ),
]
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\x1b[=>(][AB0]?")


def environment(**changes: str) -> dict[str, str]:
    """The environment without anything that would change what a command does or how it looks."""
    ours = ("FF_", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM", "CLICOLOR")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    return kept | {"TERM": "xterm-256color"} | changes


def plain(text: str) -> str:
    """What a person reads: without colours and movements of the cursor."""
    return _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")


class Terminal:
    """``with Terminal("list", cwd=folder) as terminal: terminal.until("runs")``."""

    def __init__(
        self,
        *arguments: str,
        cwd: Path,
        command: list[str] | None = None,
        columns: int = 120,
        **changes: str,
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.process = subprocess.Popen(
            [*_ADOPT, *(COMMAND if command is None else command), *arguments],
            cwd=cwd,
            env=environment(**changes),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        #: All that was shown, colours and all.
        self.shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._master)

    @property
    def text(self) -> str:
        """All that was shown, as a person reads it."""
        return plain(self.shown)

    def until(self, wanted: str, most_s: float = 90) -> str:
        """Read until something is shown that matches."""
        limit = time.monotonic() + most_s
        while not re.search(wanted, self.text):
            assert self._read(limit), f"{wanted!r} was not shown; this was:\n{self.text}"
        return self.text

    def type(self, text: str) -> None:
        """Press keys; ``\\x03`` is Ctrl-C."""
        os.write(self._master, text.encode())

    def end(self, most_s: float = 90) -> int:
        """Read until the process has ended; its exit code."""
        limit = time.monotonic() + most_s
        while self._read(limit):
            pass
        return self.process.wait(max(limit - time.monotonic(), 1))

    def _read(self, limit: float) -> bool:
        """Read a little; false if there is nothing more to come."""
        ready, _, _ = select.select([self._master], [], [], max(limit - time.monotonic(), 0))
        if not ready:
            return False
        try:
            data = os.read(self._master, 65_536)
        except OSError:  # the other end is closed
            return False
        self.shown += data.decode("utf-8", "replace")
        return bool(data)
