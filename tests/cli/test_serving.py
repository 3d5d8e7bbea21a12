"""``flowfabric server`` as users run it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

COMMAND = [sys.executable, "-c", "from flowfabric.cli import main; main()", "server"]
SECRET = {"FF_WAITPOINT_HMAC_SECRET": "ab" * 32}


def environment(**changes: str) -> dict[str, str]:
    return {**{key: value for key, value in os.environ.items() if not key.startswith("FF_")}, **changes}


def test_a_server_until_it_is_told_to_stop(tmp_path: Path) -> None:
    arguments = ["--store", "sqlite:///ff.db", "--single-node", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*COMMAND, *arguments], cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=environment(**SECRET)
    )
    try:
        assert process.stderr is not None
        port = None
        for line in process.stderr:
            if found := re.search(r"listening on 127\.0\.0\.1:(\d+)", line):
                port = found[1]
                break
        assert port is not None
        assert httpx.get(f"http://127.0.0.1:{port}/healthz").json() == {"status": "ok"}
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


@pytest.mark.parametrize(
    ("arguments", "changes", "sentence"),
    [
        ([], {}, "FF_STORE_URL"),
        (["--store", "memory://"], {}, "FF_WAITPOINT_HMAC_SECRET"),
        (["--store", "memory://", "--listen", "0.0.0.0:0"], SECRET, "FF_API_TOKEN"),
        (["--store", "sqlite:///ff.db", "--listen", "127.0.0.1:0"], SECRET, "--single-node"),
        (["--store", "oracle://x"], SECRET, "not a store"),
    ],
)
def test_refusals_end_with_one_sentence(
    tmp_path: Path, arguments: list[str], changes: dict[str, str], sentence: str
) -> None:
    done = subprocess.run(
        [*COMMAND, *arguments],
        cwd=tmp_path,
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
