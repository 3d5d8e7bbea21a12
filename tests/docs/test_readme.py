"""The README's program, copied into a file: run twice, and once through a kill."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from flowfabric import App
from tests.docs.test_examples import ROOT, examples

TIMEOUT_S = 60
#: Runs the program, which dies as it gives the second of two answers.
DYING = """\
import asyncio, os, runpy, signal

from flowfabric.sdk.asks.ask import OpenAsk

answer, given = OpenAsk.answer, []


async def dying(self, value, by=None):
    if given:
        while len(given) < 2:  # the first one is stored
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    given.append("asked")
    await answer(self, value, by)
    given.append("stored")


OpenAsk.answer = dying
runpy.run_path("article.py", run_name="__main__")
"""


def run(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the folder, as a newcomer would."""
    variables = {key: value for key, value in os.environ.items() if not key.startswith("FF_")}
    return subprocess.run(
        [sys.executable, program],
        cwd=folder,
        env={**variables, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def copied(folder: Path) -> str:
    """Copy the program into the folder; what it prints."""
    first = examples((ROOT / "README.md").read_text())[0]
    (folder / "article.py").write_text(first.code)
    assert first.prints
    return first.prints


def kinds(folder: Path) -> list[str]:
    """What was started, by kind."""

    async def read() -> list[str]:
        async with App(f"sqlite:///{folder}/work.db") as app:
            page = await app.engine.search_executions()
            return sorted(line.execution_kind for line in page.executions)

    return asyncio.run(read())


def test_it_can_be_run_twice(tmp_path: Path) -> None:
    prints = copied(tmp_path)
    for _ in range(2):
        done = run(tmp_path, "article.py")
        assert (done.returncode, done.stdout, done.stderr) == (0, prints, "")
    assert kinds(tmp_path) == ["$ask", "article", "write"]


def test_it_can_be_killed(tmp_path: Path) -> None:
    prints = copied(tmp_path)
    (tmp_path / "dying.py").write_text(DYING)
    killed = run(tmp_path, "dying.py")
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, ""), killed.stderr
    done = run(tmp_path, "article.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, prints, "")
    assert kinds(tmp_path) == ["$ask", "article", "write"]
