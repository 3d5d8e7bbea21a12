"""The benchmark runs and reports. How fast anything is does not matter here."""

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.__main__ import main
from bench.cases import chosen, every_case
from bench.report import Report, write_chart, write_json
from bench.rows import Problem, Row, Series, Target
from bench.system import open_engine
from bench.workspace import Places

ROOT = Path(__file__).resolve().parents[2]


def row(label: str, ours: list[float], other: list[float] | None = None, target: Target | None = None) -> Row:
    return Row(
        case="sample/sqlite",
        label=label,
        unit="per second",
        better="higher",
        ours=Series("engine", ours),
        yardstick=None if other is None else Series("limit", other),
        target=target,
    )


def sample_report() -> Report:
    return Report(
        started="2026-01-01T00:00:00+00:00",
        took_s=1.0,
        seconds=0.1,
        repeat=3,
        quick=True,
        machine={"processor": "sample"},
        load_before="0",
        load_after="0",
        rows=[
            row("above its goal", [8, 9, 10], [10, 10, 10], Target(0.4, 0.7)),
            row("between", [5, 5, 5], [10, 10, 10], Target(0.4, 0.7)),
            row("below <its> floor", [1, 2, 3], [10, 10, 10], Target(0.4, 0.7)),
            row("below a recorded floor", [1, 2, 3], [10, 10, 10], Target(0.4, 0.7, enforced=False)),
            row("a figure", [4, 5, 6], None, Target(5, 9, of="value")),
            row("nothing asked", [0, 0, 0]),
        ],
        problems=[Problem("sample/postgres", "no server", skipped=True)],
    )


@pytest.mark.parametrize(
    ("case", "store", "figures"),
    [
        ("lifecycle/sqlite/16", "sqlite", {"client µs"}),
        ("lifecycle/valkey/16", "valkey", {"client µs", "database µs", "database µs of the limit"}),
    ],
)
def test_quick_run_of_one_case_writes_both_results(tmp_path: Path, case: str, store: str, figures: set[str]) -> None:
    found, drawn = tmp_path / "found.json", tmp_path / "drawn.svg"
    # So long that the system's clock of other processes' processor time, which is coarse, moves.
    command = [sys.executable, "-m", "bench", "--quick", "--seconds", "0.3", case]
    done = subprocess.run(
        [*command, "--json", str(found), "--chart", str(drawn)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads(found.read_text())
    assert content["format"] == 1
    assert content["problems"] == []
    (only,) = content["rows"]
    assert only["case"] == case
    assert len(only["ours"]["values"]) == len(only["ratio"]["values"]) == content["repeat"] == 1
    assert only["ratio"]["median"] > 0
    assert all(only["extra"][name][0] > 0 for name in figures)
    assert content["machine"][store]
    assert ElementTree.parse(drawn).getroot().tag.endswith("svg")


def test_processor_time_on_valkey_is_judged(tmp_path: Path) -> None:
    command = ["--quick", "--seconds", "0.3", "lifecycle/valkey/256", "everysec"]
    assert main([*command, "--json", str(tmp_path / "found.json"), "--chart", str(tmp_path / "drawn.svg")]) == 0
    rows = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert [each["case"] for each in rows] == [*["lifecycle/valkey/256"] * 3, "everysec/valkey"]
    assert all(each["verdict"] for each in rows)
    for each, figure in zip(rows[1:3], ("client µs", "database µs"), strict=True):
        assert each["ours"]["values"] == rows[0]["extra"][figure]
        assert each["yardstick"]["values"] == rows[0]["extra"][f"{figure} of the limit"]


async def test_valkey_servers_go_when_nobody_needs_them() -> None:
    with Places() as places:
        first, second = [await places.database("valkey") for _ in range(2)]
        for database in (first, second):
            async with await open_engine(database.url) as engine:
                assert len((await engine.list_executions(database.partition, limit=5)).executions) == 5
        places.let_go(but=[second])
        assert not is_running(first.server)
        assert is_running(second.server)
    assert not is_running(second.server)


def is_running(process: int | None) -> bool:
    assert process is not None
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_report_says_what_was_found(tmp_path: Path) -> None:
    report = sample_report()
    write_json(report, tmp_path / "deep" / "found.json")
    write_chart(report, tmp_path / "deep" / "drawn.svg")
    rows = json.loads((tmp_path / "deep" / "found.json").read_text())["rows"]
    assert [each["verdict"] for each in rows] == ["goal", "ok", "below floor", "below floor", "ok", ""]
    assert rows[0]["ratio"]["values"] == [0.8, 0.9, 1.0]
    assert [each.label for each in report.below_floor] == ["below <its> floor"]
    picture = (tmp_path / "deep" / "drawn.svg").read_text()
    ElementTree.fromstring(picture)
    assert "below &lt;its&gt; floor" in picture


def test_lower_is_better_where_it_is() -> None:
    slow = Row(
        case="sample/sqlite",
        label="claim",
        unit="ms",
        better="lower",
        ours=Series("large", [3.0]),
        yardstick=Series("small", [1.0]),
        target=Target(2.0, 1.2),
    )
    assert slow.verdict == "below floor"
    slow.ours.values[0] = 1.9
    assert slow.verdict == "ok"
    slow.ours.values[0] = 1.1
    assert slow.verdict == "goal"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("lifecycle/sqlite/1", ["lifecycle/sqlite/1"]),
        ("bulk", ["bulk/sqlite", "bulk/postgres", "bulk/valkey"]),
        ("*/sqlite/25?", ["lifecycle/sqlite/256"]),
        ("no-such-case", []),
    ],
)
def test_cases_are_chosen_by_name(pattern: str, expected: list[str]) -> None:
    assert [case.name for case in chosen([pattern])] == expected


def test_names_are_unique_and_listed(capsys: pytest.CaptureFixture[str]) -> None:
    names = [case.name for case in every_case()]
    assert len(set(names)) == len(names)
    assert main(["--list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == names


def test_an_unknown_case_is_refused() -> None:
    assert main(["no-such-case"]) == 2
