"""What failed in a run, written down for `./dev test`, which tries it again alone; and where the time went.

``FF_TEST_FAILURES`` names the file, a JSON object: how many passed, and of each that did not, by its id, why.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

#: How many of the slowest tests are named.
SLOWEST = 10


class Failures:
    """Listens to the reports of all processes of a run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reasons: dict[str, str] = {}
        self._passed = 0
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test may fail in its set-up, itself and after it: it counts once, for what came first."""
        name = report.nodeid
        if report.failed:
            self._reasons.setdefault(name, _last_line(report))
        self._seconds[name] += report.duration
        self._passed += report.passed and report.when == "call"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be read."""
        if report.failed:
            self._reasons.setdefault(report.nodeid, _last_line(report))

    def pytest_sessionfinish(self) -> None:
        """Nothing was written if the run did not come so far."""
        self._path.write_text(json.dumps({"passed": self._passed, "failed": self._reasons}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Where the time went; tests of several processes at the same time make more of it than passed."""
        folders, tests = Counter[str](), Counter[str]()
        for name, seconds in self._seconds.items():
            folders[folder_of(name)] += seconds
            tests[folder_of(name)] += 1
        if len(folders) > 1:
            terminalreporter.section("time per folder")
            for folder, seconds in folders.most_common():
                terminalreporter.write_line(f"{seconds:7.1f} s  {tests[folder]:6,} tests  {folder}")
        if len(self._seconds) > SLOWEST:
            terminalreporter.section(f"the {SLOWEST} slowest tests")
            for name, seconds in self._seconds.most_common(SLOWEST):
                terminalreporter.write_line(f"{seconds:7.1f} s  {name}")


def folder_of(name: str) -> str:
    """The folder right below `tests` that a test is in."""
    return "/".join(name.partition("::")[0].split("/")[:-1][:2])


def _last_line(report: pytest.TestReport | pytest.CollectReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message if crash is not None else report.longrepr or "")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "no reason given"
    return (lines[0] if crash is not None else lines[-1])[:200]


def listen(config: pytest.Config) -> None:
    """Only in the process that hears of everything."""
    path = os.environ.get("FF_TEST_FAILURES")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(Path(path)), "failures")
