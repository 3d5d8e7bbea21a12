"""One environment for servers and commands: what names the store of a server names it for every command."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from flowfabric import App
from flowfabric.cli.run_ids import short
from flowfabric.stores.environment import STORE_VARIABLES
from tests.cli.filling import WORK, Output, complaint, typed
from tests.cli.pseudo import Terminal
from tests.cli.test_dev import address
from tests.servers import LOOPBACK, Valkey

PASSWORD = "canary"


@pytest.fixture(autouse=True)
def nothing_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder, and no variable that names a store or a server."""
    monkeypatch.chdir(tmp_path)
    for name in (*(each.name for each in STORE_VARIABLES), "FF_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def test_valkey_by_its_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    (tmp_path / "work.py").write_text(WORK)
    with Valkey() as server:
        place = {"FF_BACKEND": "valkey", "FF_HOST": LOOPBACK, "FF_PORT": str(server.port)}
        for name, value in place.items():
            monkeypatch.setenv(name, value)
        assert "there is no store there yet" in typed(capsys, "db", "check", code=3)
        assert "there is no store there yet" in typed(capsys, "db", "plan", code=3)
        assert "created a store there" in typed(capsys, "db", "migrate")
        assert json.loads(typed(capsys, "db", "check", "--json"))["store"] == "valkey"
        assert "appendfsync always" in typed(capsys, "doctor", "--quick")
        run = typed(capsys, "submit", "work.py", "double", "21").strip()
        assert short(run) in typed(capsys, "list")
        with Terminal("dev", "work.py", "--no-reload", cwd=tmp_path, **place) as terminal:
            base = address(terminal)
            assert f"store    valkey://{LOOPBACK}:{server.port}" in terminal.until("Ctrl-C to stop")
            assert httpx.get(f"{base}/version").json()["store"] == "valkey"
            assert typed(capsys, "result", run) == "42\n"
            terminal.type("\x03")
            assert terminal.end() == 0
        # An address goes before the name of a kind, for commands as for servers.
        assert "there is no database" in complaint(capsys, "list", "--url", "sqlite:///elsewhere.db")
        monkeypatch.setenv("FF_URL", f"sqlite:///{tmp_path}/elsewhere.db")
        assert "there is no database" in complaint(capsys, "list")
    assert [each.name for each in tmp_path.glob("*.db*")] == [], "nobody begins a file beside it"


def test_a_file_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.setenv("FF_BACKEND", "sqlite")
    for command in (("list",), ("db", "check"), ("db", "migrate")):
        assert "set FF_SQLITE_PATH, or pass --url" in complaint(capsys, *command)
    monkeypatch.setenv("FF_SQLITE_PATH", f"{tmp_path}/work.db")
    assert "there is no database" in complaint(capsys, "list")
    typed(capsys, "db", "migrate")
    assert json.loads(typed(capsys, "db", "check", "--json"))["store"] == "sqlite"
    assert (tmp_path / "work.db").exists()


def test_postgres_by_its_url(prepared_postgres_dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.setenv("FF_BACKEND", "Postgres")
    assert "FF_BACKEND=postgres needs FF_POSTGRES_URL" in complaint(capsys, "db", "check")
    monkeypatch.setenv("FF_POSTGRES_URL", prepared_postgres_dsn)
    assert json.loads(typed(capsys, "db", "check", "--json"))["store"] == "postgres"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"FF_BACKEND": "oracle"}, "expected 'valkey', 'postgres', or 'sqlite'"),
        ({"FF_BACKEND": "valkey", "FF_CLUSTER": "true"}, "one Valkey primary with its replicas"),
        ({"FF_URL": "valkey://cache", "FF_CLUSTER": "1"}, "one Valkey primary with its replicas"),
        ({"FF_BACKEND": "valkey", "FF_PORT": "x"}, "FF_PORT=x"),
        ({"FF_BACKEND": "valkey", "FF_TLS": "perhaps"}, "FF_TLS=perhaps"),
        ({"FF_BACKEND": "valkey", "FF_HOST": f"me:{PASSWORD}@cache"}, "into FF_STORE_URL"),
        ({"FF_BACKEND": "postgres"}, "FF_POSTGRES_URL"),
    ],
)
@pytest.mark.parametrize("command", [("db", "check"), ("list",), ("dev",), ("submit", "work.py", "double", "21")])
def test_what_cannot_be_meant(
    changes: dict[str, str],
    sentence: str,
    command: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Output,
) -> None:
    (tmp_path / "work.py").write_text(WORK)
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    said = complaint(capsys, *command)
    assert sentence in said
    assert PASSWORD not in said


@pytest.mark.parametrize("command", [("db", "check"), ("doctor",), ("list",), ("dev", "--listen", f"{LOOPBACK}:0")])
@pytest.mark.parametrize("name", ["FF_STORE_URL", "FF_URL"])
def test_passwords_are_not_repeated(
    name: str, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setenv(name, f"valkey://me:{PASSWORD}@{LOOPBACK}:1/0")
    said = complaint(capsys, *command, code=1)
    assert f"cannot connect to valkey://{LOOPBACK}:1/0" in said
    assert PASSWORD not in said


def test_the_library_takes_what_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FF_BACKEND", "valkey")
    monkeypatch.setenv("FF_PORT", "1")

    async def opened() -> str:
        async with App("memory://") as app:
            return str(app.engine.backend_label)

    assert asyncio.run(opened()) == "memory"
