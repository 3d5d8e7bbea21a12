"""A server of its own process, as users run it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[3]
START = "import sys; from flowfabric.cli import main; sys.exit(main())"
PATIENCE_S = 60
SECRET = "ab" * 32


class ServerProcess:
    """``flowfabric server`` on a store."""

    def __init__(self, store: str, *, port: int | None = None, **environment: str) -> None:
        self.store = store
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}/"
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "FF_WAITPOINT_HMAC_SECRET": SECRET,
            "FF_DEV_MODE": "1",
            "FF_LISTEN_ADDR": f"127.0.0.1:{self.port}",
            "FF_STORE_URL": store,
            **environment,
        }
        self.log = tempfile.NamedTemporaryFile(suffix=".log")  # noqa: SIM115 (closed in stop)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, and wait until it answers."""
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, "server"], env=self._environment, stdout=self.log, stderr=self.log
        )
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}healthz", timeout=5):
                return
            time.sleep(0.05)
        raise AssertionError(f"the server did not start:\n{self.written()}")

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End it, and wait until it has ended."""
        if self._process is not None:
            self._process.send_signal(number)
            try:
                self._process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def written(self) -> str:
        """What it has written so far."""
        return Path(self.log.name).read_text()


@contextlib.contextmanager
def serving(store: str, **environment: str) -> Iterator[ServerProcess]:
    """A server until the end."""
    server = ServerProcess(store, **environment)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        server.log.close()
