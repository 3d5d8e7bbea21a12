"""`./dev test` on planted tests: what is tried again, what is said in the end, and what a run under stress tells."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
#: The command itself, in this environment, with one worker and short bursts.
DRIVE = """
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
path = Path(sys.argv.pop(1))
dev = {"__name__": "dev", "__file__": str(path)}
exec(compile(path.read_text(), str(path), "exec"), dev)
dev.update(set_up=lambda: None, find_browser=lambda: None, cores=lambda: 1, PYTHON=Path(sys.executable))
dev.update(ROOT=Path.cwd(), BURST_S=0.01, ROUNDS=2)
sys.exit(dev["main"](sys.argv[1:]))
"""
PLANTED = {
    "pytest.ini": "[pytest]\naddopts = -p xdist.plugin -p no:cacheprovider\n",
    "conftest.py": "from tests.reporting import listen\n\ndef pytest_configure(config):\n    listen(config)\n",
    "good/test_good.py": "import pytest\n\n@pytest.mark.parametrize('n', range(11))\ndef test_good(n):\n    pass\n",
    "other/test_noise.py": """
from pathlib import Path
from types import SimpleNamespace
from typing import Any

def test_noise():
    before = Path(__file__).with_name("before")
    if not before.exists():
        before.touch()
        raise RuntimeError("too much company")
""",
    "other/test_bad.py": "def test_bad():\n    raise RuntimeError('a defect')\n",
}


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A folder with good tests, one that fails the first time only, and one that always fails."""
    for name, text in PLANTED.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def dev_test(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run it on the tests of a folder: the exit code, and what it printed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "FF_TEST_"))}
    done = subprocess.run(
        [sys.executable, "-c", DRIVE, str(ROOT / "dev"), "test", *arguments],
        cwd=folder,
        # Plugins take most of a run as short as these.
        env={**kept, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_what_fails_twice_fails_the_run(planted: Path) -> None:
    code, said = dev_test(planted)
    assert code == 1, said
    alone, _, twice = said.partition("passed only when run alone:")[2].partition("failed twice:")
    assert "test_noise" in alone
    assert "RuntimeError: too much company" in alone
    assert "test_bad" in twice
    assert "RuntimeError: a defect" in twice
    assert said.rstrip().endswith("failed: 12 passed, 1 failed, 1 passed only when run alone")


def test_what_passes_alone_does_not(planted: Path) -> None:
    (planted / "other/test_bad.py").unlink()
    code, said = dev_test(planted)
    assert code == 0, said
    assert "passed only when run alone:" in said
    assert "failed twice:" not in said
    assert said.rstrip().endswith("passed: 12 passed, 0 failed, 1 passed only when run alone")
    told = said.partition("time per folder")[2].partition("passed only when run alone:")[0]
    assert " 11 tests  good" in told
    assert "1 tests  other" in told
    assert "the 10 slowest tests" in told
    assert told.partition("slowest tests")[2].count("::test_") >= 10


def test_no_second_try(planted: Path) -> None:
    code, said = dev_test(planted, "--no-second-try")
    assert code == 1, said
    assert "1 passed only when run alone" not in said
    assert "2 failed, 11 passed" in said


def test_under_stress_every_failure_counts(planted: Path) -> None:
    code, said = dev_test(planted, "--stress")
    assert code == 1, said
    told = said.partition("failed in 2 rounds under stress:")[2].splitlines()
    assert [line.split()[:3] for line in told if "test_" in line] == [["2", "of", "2"], ["1", "of", "2"]]
    assert "test_bad" in told[1]
    assert "test_noise" in told[3]
    assert "passed only when run alone" not in said


@pytest.mark.parametrize(
    ("installed", "taken"), [({"3.12", "3.13"}, "3.13"), ({"3.12"}, "3.12"), ({"3.11"}, None), ({"3.99"}, None)]
)
def test_the_newest_python_that_is_declared_and_installed(
    installed: set[str], taken: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ROOT / "dev"
    dev: dict[str, Any] = {"__name__": "dev", "__file__": str(path)}
    exec(compile(path.read_text(), str(path), "exec"), dev)
    dev["interpreter"] = lambda version: f"python{version}" if version in installed else None
    dev["sys"] = SimpleNamespace(version_info=SimpleNamespace(minor=11), exit=sys.exit, stderr=sys.stderr)
    become: list[Any] = []

    def execve(*call: Any) -> None:
        become.append(call)

    monkeypatch.setattr(os, "execve", execve)
    if taken is None:
        with pytest.raises(SystemExit) as ended:
            dev["with_python"]("test", ["--python", "newest", "tests/unit"])
        assert (ended.value.code, become) == (0, [])
        return
    dev["with_python"]("test", ["--python", "newest", "tests/unit"])
    [(program, command, variables)] = become
    assert (program, command[2:]) == (f"python{taken}", ["test", "tests/unit"])
    assert variables["FF_DEV_ENVIRONMENT"] == f".venv-{taken}"
