"""``flowfabric dev``: from zero, killed at any moment, begun anew when files change."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
from pathlib import Path

import httpx

from flowfabric import App
from flowfabric.cli.run_ids import short
from tests.cli.filling import WORK
from tests.cli.pseudo import COMMAND, Terminal, environment


def flowfabric(folder: Path, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder,
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def address(terminal: Terminal) -> str:
    """Where it listens."""
    found = re.search(r"http://127\.0\.0\.1:\d+", terminal.until(r"http://127\.0\.0\.1:\d+/docs"))
    assert found is not None
    return found[0]


def test_from_zero_in_an_empty_folder(tmp_path: Path) -> None:
    with Terminal("dev", cwd=tmp_path) as terminal:
        base = address(terminal)
        shown = terminal.until("Ctrl-C to stop")
        assert "from flowfabric import App" in shown, "it says what to do next"
        assert "flowfabric dev hello.py" in shown
        assert httpx.get(f"{base}/healthz").json() == {"status": "ok"}
        console = httpx.get(f"{base}/", follow_redirects=True)
        assert (console.status_code, console.headers["content-type"].split(";")[0]) == (200, "text/html")
        assert httpx.get(f"{base}/v1/search/executions").json()["executions"] == []
        assert (tmp_path / "flowfabric.db").exists()
        assert httpx.get(f"{base}/v1/remote").json()["partitions"] == {"flow": 256, "budget": 32, "quota": 32}
        run = flowfabric(tmp_path, "submit", "greet", "name=Ann").stdout.strip()
        assert httpx.get(f"{base}/v1/executions/{run}/state").status_code == 200
        assert short(run) in flowfabric(tmp_path, "list").stdout
        terminal.type("\x03")
        assert terminal.end() == 0
        assert "Traceback" not in terminal.text


def test_two_at_once_listen_on_different_ports(tmp_path: Path) -> None:
    with Terminal("dev", cwd=tmp_path) as first:
        one = address(first)
        with Terminal("dev", cwd=tmp_path) as second:
            two = address(second)
            assert one != two
            assert httpx.get(f"{two}/healthz").status_code == httpx.get(f"{one}/healthz").status_code == 200
        port = one.rpartition(":")[2]
        done = flowfabric(tmp_path, "dev", "--listen", f"127.0.0.1:{port}")
        assert done.returncode == 2
        assert "this port is in use" in done.stderr


def test_the_example_works_as_it_is_shown(tmp_path: Path) -> None:
    with Terminal("dev", "--example", cwd=tmp_path) as terminal:
        shown = terminal.until("Ctrl-C to stop")
        assert "hello.py: greet, party" in shown
        assert "flowfabric run hello.py greet name=…" in shown
        assert flowfabric(tmp_path, "run", "hello.py", "greet", "Ann").stdout == '"Hello, Ann!"\n'
        done = flowfabric(tmp_path, "run", "hello.py", "party", '[["Ann", "Bob"]]')
        assert done.stdout == '["Hello, Ann!","Hello, Bob!"]\n', done.stderr
        terminal.until(r"completed  party")
        terminal.type("\x03")
        assert terminal.end() == 0


async def until_active(folder: Path, run: str) -> None:
    async with App(f"sqlite:///{folder}/flowfabric.db") as app, asyncio.timeout(60):
        while (await app.run(run).status()).value != "active":  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.02)


def test_killed_and_started_again_it_goes_on(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(WORK)
    with Terminal("dev", "work.py", cwd=tmp_path) as terminal:
        terminal.until("Ctrl-C to stop")
        asleep = flowfabric(tmp_path, "submit", "work.py", "nap", "500").stdout.strip()
        busy = flowfabric(tmp_path, "submit", "work.py", "slow", "5").stdout.strip()
        asyncio.run(until_active(tmp_path, busy))
        os.kill(terminal.process.pid, signal.SIGKILL)
        assert terminal.end() == -signal.SIGKILL
    waiting = flowfabric(tmp_path, "submit", "work.py", "double", "21").stdout.strip()
    with Terminal("dev", "work.py", cwd=tmp_path) as terminal:
        terminal.until("Ctrl-C to stop")
        assert flowfabric(tmp_path, "result", waiting).stdout == "42\n"
        assert flowfabric(tmp_path, "result", asleep).stdout == '"rested"\n'
        assert flowfabric(tmp_path, "result", busy).stdout == '"done"\n'
        terminal.type("\x03")
        assert terminal.end() == 0
    done = flowfabric(tmp_path, "doctor")
    assert done.returncode == 0, done.stdout


def test_it_begins_anew_when_a_file_changes(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(WORK)
    with Terminal("dev", "work.py", cwd=tmp_path) as terminal:
        base = address(terminal)
        terminal.until("Ctrl-C to stop")
        pid = terminal.process.pid
        assert flowfabric(tmp_path, "run", "work.py", "double", "21").stdout.endswith("42\n")
        (tmp_path / "work.py").write_text(WORK.replace("2 * value", "3 * value"))
        terminal.until("work.py changed")
        terminal.until("running again")
        assert flowfabric(tmp_path, "run", "work.py", "double", "21").stdout.endswith("63\n")
        (tmp_path / "work.py").write_text(WORK + "\ndef (\n")
        terminal.until("SyntaxError")
        assert httpx.get(f"{base}/healthz").status_code == 200, "the server goes on at the same place"
        (tmp_path / "work.py").write_text(WORK.replace("2 * value", "4 * value"))
        terminal.until(r"running again[^$]*running again")
        assert flowfabric(tmp_path, "run", "work.py", "double", "21").stdout.endswith("84\n")
        assert terminal.process.pid == pid
        terminal.type("\x03")
        assert terminal.end() == 0


def test_as_json(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(WORK)
    with Terminal("dev", "work.py", "--json", "--listen", "127.0.0.1:0", cwd=tmp_path) as terminal:
        terminal.until(r"\}\n")
        told = json.loads(terminal.text.splitlines()[0])
        assert told["store"] == "sqlite:///flowfabric.db"
        assert "double" in told["worker"]
        assert httpx.get(told["console"] + "healthz").status_code == 200


def test_what_cannot_be_meant(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("")
    for arguments, told in (
        (("dev", "nowhere:app"), "no module"),
        (("dev", "empty.py"), "name the app as"),
        (("dev", "--listen", "nonsense"), "127.0.0.1:9090"),
        (("dev", "--listen", "0.0.0.0:0"), "FF_API_TOKEN"),
        (("dev", "--store", "http://127.0.0.1:1"), "dev runs a server of its own"),
    ):
        done = flowfabric(tmp_path, *arguments)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done
        assert told in done.stderr
    assert flowfabric(tmp_path, "dev", "--store", "oracle://x").returncode == 1
    done = flowfabric(tmp_path, "dev", "--listen", "127.0.0.1:0", FF_API_TOKEN="short")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done
    assert "use at least 16" in done.stderr
