"""``flowfabric server`` as users run it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import httpx
import pytest

from tests.server.process import COMMAND, ServerProcess, environment
from tests.servers import Valkey

SECRET = {"FF_WAITPOINT_HMAC_SECRET": "ab" * 32}


def test_a_server_until_it_is_told_to_stop(tmp_path: Path) -> None:
    with ServerProcess("sqlite:///ff.db", tmp_path, FF_SQLITE_POOL_SIZE="4") as server:
        assert httpx.get(f"{server.url}/healthz").json() == {"status": "ok"}
        assert server.terminate() == 0
        assert all({"at", "level", "logger", "message"} <= set(line) for line in server.lines)
        assert any("FF_SQLITE_POOL_SIZE=4 has no effect" in line["message"] for line in server.lines)


def test_a_server_on_valkey_by_its_host(tmp_path: Path) -> None:
    with Valkey("--appendfsync", "everysec") as valkey:
        place = {"FF_BACKEND": "valkey", "FF_HOST": "127.0.0.1", "FF_PORT": str(valkey.port), "FF_TLS": "false"}
        with ServerProcess(None, tmp_path, **place) as server:
            assert httpx.get(f"{server.url}/healthz").json() == {"status": "ok"}
            assert httpx.get(f"{server.url}/version").json()["store"] == "valkey"
            assert "ff_http_requests_total" in httpx.get(f"{server.url}/metrics").text
            assert server.terminate() == 0
            told = [line["message"] for line in server.lines if line["level"] == "info"]
            [survives] = [message for message in told if message.startswith("valkey: ")]
            assert survives.endswith("up to a second of acknowledged work is lost if it fails")
            assert not [line for line in server.lines if line["level"] in ("error", "critical")]


@pytest.mark.parametrize(
    ("arguments", "changes", "sentence"),
    [
        ([], {}, "FF_STORE_URL"),
        (["--store", "memory://"], {"FF_WAITPOINT_HMAC_SECRET": ""}, "FF_WAITPOINT_HMAC_SECRET"),
        (
            ["--store", "memory://"],
            {**SECRET, "FF_SENTRY_DSN": "https://k@example.invalid/1"},
            "pip install sentry-sdk",
        ),
        (["--store", "memory://", "--log", "loud"], SECRET, "FF_LOG"),
        (["--store", "memory://", "--migrate", "perhaps"], SECRET, "FF_MIGRATE=perhaps"),
        (["--store", "memory://", "--max-connections", "0"], SECRET, "FF_MAX_CONNECTIONS=0"),
        (["--store", "memory://", "--rate-limit", "-1"], SECRET, "FF_RATE_LIMIT=-1"),
        (["--store", "memory://", "--keep-alive-s", "0"], SECRET, "FF_KEEP_ALIVE_S=0"),
        (["--store", "memory://", "--listen", "0.0.0.0:0"], SECRET, "FF_API_TOKEN"),
        (["--store", "sqlite:///ff.db", "--listen", "127.0.0.1:0"], SECRET, "--single-node"),
        (["--store", "oracle://x"], SECRET, "not a store"),
        (
            ["--store", "valkey://127.0.0.1:1", "--store-patience-s", "0"],
            SECRET,
            "cannot connect to valkey://127.0.0.1:1/0",
        ),
        ([], {**SECRET, "FF_BACKEND": "valkey", "FF_CLUSTER": "true"}, "one Valkey primary with its replicas"),
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


def test_one_variable_names_the_store_for_servers_and_commands(tmp_path: Path) -> None:
    variables = environment(FF_STORE_URL=f"sqlite:///{tmp_path}/ff.db")
    command = [*COMMAND[:-1], "db", "migrate"]
    done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ff.db").exists()
