"""A server as a process of its own: it can be stopped, killed and measured."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.servers import die_with_parent

SECRET = "ab" * 32
COMMAND = [sys.executable, "-c", "from flowfabric.cli import main; main()", "server"]


def environment(**changes: str) -> dict[str, str]:
    """This one without what configures servers, and with some changes."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FF_")}
    return {**kept, "FF_WAITPOINT_HMAC_SECRET": SECRET, **changes}


class ServerProcess:
    """A server on a free port, or on the one it had before; without a store, on the one that the changes name."""

    def __init__(self, store: str | None, folder: Path, port: int = 0, **changes: str) -> None:
        self.lines: list[dict[str, Any]] = []
        self._listening = threading.Event()
        self.port = port
        self._process = subprocess.Popen(
            [*COMMAND, *(["--store", store] if store else []), "--single-node", "--listen", f"127.0.0.1:{port}"],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(**changes),
            preexec_fn=die_with_parent(signal.SIGKILL),  # noqa: PLW1509
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._listening.wait(60), self.lines
        assert self.port, self.lines

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(json.loads(line) if line.startswith("{") else {"message": line})
            if found := re.search(r"listening on 127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                self._listening.set()
        self._listening.set()

    def resident_bytes(self, peak: bool = False) -> int:
        """The memory it holds, or the most it has held."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(rf"{'VmHWM' if peak else 'VmRSS'}:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    def kill(self) -> None:
        """End it as a power failure would."""
        self._process.kill()
        self._end()

    def terminate(self) -> int:
        """Ask it to end; its exit code."""
        self._process.terminate()
        return self._end()

    def signal(self) -> None:
        """Ask it to end without waiting."""
        self._process.terminate()

    def _end(self) -> int:
        code = self._process.wait(60)
        self._reader.join(10)
        return code

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        return self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it as a power failure would, if it has not ended, and let go of it."""
        if self._process.poll() is None:
            self._process.kill()
        self._end()
        if self._process.stdout is not None:
            self._process.stdout.close()
