"""``flowfabric worker`` and ``flowfabric check`` as users run them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from flowfabric import App

WORK = """
from flowfabric import App, days, sleep

app = App("sqlite:///ff.db")

@app.step
async def fetch(page: int) -> int:
    return page + 1

@app.task
async def double(value: int) -> int:
    return 2 * value

@app.workflow
async def review(page: int) -> int:
    found = await fetch(page)
    await sleep(days(1))
    return found
"""


def flowfabric(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from flowfabric.cli import main; main()", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)


async def test_a_worker_and_a_check(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(WORK)
    command = [sys.executable, "-c", "from flowfabric.cli import main; main()", "worker", "work:app", "--concurrency=2"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env={**os.environ})
    app = App(f"sqlite:///{tmp_path}/ff.db")
    try:

        @app.task
        async def double(value: int) -> int:
            raise NotImplementedError

        @app.workflow
        async def review(page: int) -> int:
            raise NotImplementedError

        async with app, asyncio.timeout(60):
            assert await (await double.start(21)).result() == 42
            run = await review.start(1)
            while True:
                if await run.steps():
                    break
                await asyncio.sleep(0.05)
    finally:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "serves default, 2 at once" in said

    good = flowfabric(tmp_path, "check", "work:app")
    assert (good.returncode, good.stdout) == (0, "ok  1 runs under way remember only what the code calls\n"), good
    (tmp_path / "work.py").write_text(WORK.replace("fetch", "download"))
    bad = flowfabric(tmp_path, "check", "work.py", "--json")
    assert bad.returncode == 3, bad
    report = json.loads(bad.stdout)
    assert not report["ok"]
    assert [(each["workflow"], each["step"]) for each in report["findings"]] == [("review", "fetch")]


def test_what_is_typed_wrongly(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text("from flowfabric import App\na = App('memory://')\nb = App('memory://')\n")
    for arguments, told in (
        (("check", "nowhere:app"), "there is no module 'nowhere'"),
        (("check", "two"), "say which app is meant"),
        (("check", "two:c"), "'c' is no App"),
        (("check", "gone.py"), "no such file"),
        (("worker",), ""),
        (("nonsense",), ""),
    ):
        done = flowfabric(tmp_path, *arguments)
        assert done.returncode == 2, done
        assert told in done.stderr
        assert "Traceback" not in done.stderr
    assert "worker" in flowfabric(tmp_path, "--help").stdout
