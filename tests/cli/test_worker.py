"""``flowfabric worker`` and ``flowfabric check`` as users run them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flowfabric import App
from flowfabric.cli.run_ids import short

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
    assert "serves default with concurrency 2" in said

    good = flowfabric(tmp_path, "check", "work:app")
    assert (good.returncode, good.stdout) == (0, "ok  this code can continue all workflows in progress: 1\n"), good
    (tmp_path / "work.py").write_text(WORK.replace("fetch", "download"))
    bad = flowfabric(tmp_path, "check", "work.py", "--json")
    assert bad.returncode == 3, bad
    report = json.loads(bad.stdout)
    assert not report["ok"]
    assert [(each["workflow"], each["step"]) for each in report["findings"]] == [("review", "fetch")]
    (tmp_path / "work.py").write_text(WORK.replace("fetch(page: int) -> int", "fetch(page: int) -> list[int]"))
    bad = flowfabric(tmp_path, "check", "work.py")
    assert bad.returncode == 3, bad
    assert f"would fail  review: {short(run.id)} recorded 'fetch': " in " ".join(bad.stdout.split(" "))
    (tmp_path / "work.py").write_text(WORK.replace("    found =", "    await double(1)\n    found ="))
    late = flowfabric(tmp_path, "check", "work.py")
    assert late.returncode == 0, late
    assert "would run in old runs  review: 'double' (" in late.stdout


def test_what_is_typed_wrongly(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text("from flowfabric import App\na = App('memory://')\nb = App('memory://')\n")
    for arguments, told in (
        (("check", "nowhere:app"), "no module 'nowhere'"),
        (("check", "two"), "name the app as"),
        (("check", "two:c"), "is not an App"),
        (("check", "gone.py"), "no such file"),
        (("worker",), ""),
        (("nonsense",), ""),
    ):
        done = flowfabric(tmp_path, *arguments)
        assert done.returncode == 2, done
        assert told in done.stderr
        assert "Traceback" not in done.stderr
    assert "worker" in flowfabric(tmp_path, "--help").stdout


BEGINS = """
import asyncio, sys
from pathlib import Path
from flowfabric import App
from flowfabric.sdk.worker.program import run_worker

app = App("sqlite:///ff.db")

@app.task
async def touch() -> None:
    Path("touched").touch()

async def main() -> None:
    Path("touched").touch()

def again() -> None:
    try:
        asyncio.run(main())
    except Exception:
        pass

"""


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("asyncio.run(main())", "the module starts an event loop when it is imported"),
        ("again()", "the module starts an event loop when it is imported"),
        ("asyncio.new_event_loop().run_until_complete(main())", "the module starts an event loop when it is imported"),
        ("run_worker(app)", "the module starts an event loop when it is imported"),
        ("with app.sync as blocking: blocking.start(touch)", "the module starts an event loop when it is imported"),
        ("sys.exit(0)", "the module exits when it is imported"),
    ],
)
def test_a_module_that_runs_on_import_is_refused(tmp_path: Path, line: str, told: str) -> None:
    path = tmp_path / "begins.py"
    path.write_text(BEGINS + line)
    place = f"(begins.py:{len(BEGINS.splitlines()) + 1})"
    for target in ("begins.py", "begins:app"):
        done = flowfabric(tmp_path, "check", target)
        said = " ".join(done.stderr.split()).replace(f"{tmp_path}/", "")
        assert done.returncode == 2, done
        assert f'{target}: {told} {place}. Put the code that runs under `if __name__ == "__main__":`' in said
        assert "never awaited" not in done.stderr
    assert not [*tmp_path.glob("touched"), *tmp_path.glob("ff.db")]
    path.write_text(f'{BEGINS}\nif __name__ == "__main__":\n    {line}')
    assert flowfabric(tmp_path, "check", "begins.py").returncode == 0


def test_a_thread_that_a_library_starts_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(
        f"import asyncio, threading\n{WORK}\n"
        "done = []\n"
        "thread = threading.Thread(target=lambda: done.append(asyncio.run(asyncio.sleep(0, 5))))\n"
        "thread.start()\nthread.join()\nassert done == [5]\n"
    )
    done = flowfabric(tmp_path, "check", "work.py")
    assert done.returncode == 0, done


def test_the_program_of_the_readme_can_be_checked(tmp_path: Path) -> None:
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    (tmp_path / "readme.py").write_text(readme.partition("```python\n")[2].partition("```")[0])
    done = flowfabric(tmp_path, "check", "readme.py")
    assert (done.returncode, done.stdout[:2]) == (0, "ok"), done
