"""``flowfabric admin partition-collisions``."""

from __future__ import annotations

import pytest

from flowfabric.cli.application import run
from flowfabric.cli.commands.admin import report, severity
from flowfabric.model.partitions import lane_partition


@pytest.mark.parametrize(
    ("colliding", "lanes", "word"),
    [
        (0, 10, "Clean"),
        (2, 41, "Watch"),
        (2, 40, "Elevated"),
        (3, 20, "Elevated"),
        (16, 100, "Remediate"),
        (10, 10, "Remediate"),
    ],
)
def test_severity(colliding: int, lanes: int, word: str) -> None:
    assert severity(colliding, lanes) == word


def test_lanes_that_collide(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"lane-{number}" for number in range(8)]
    monkeypatch.setenv("FF_LANES", ",".join(names))
    monkeypatch.setenv("FF_FLOW_PARTITIONS", "2")
    assert run(["admin", "partition-collisions"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:5] == [
        "num_flow_partitions: 2",
        "lanes configured: 8",
        "lanes colliding: 8 (100.0%)",
        "severity: Remediate",
    ]
    rows = [[cell.strip() for cell in line.split("|")] for line in lines[7:15]]
    assert [(int(row[0]), row[1]) for row in rows] == sorted((lane_partition(name, 2), name) for name in names)
    for where, lane, others in rows:
        assert set(others.split(", ")) == {name for name in names if lane_partition(name, 2) == int(where)} - {lane}
    assert lines[15:17] == ["", "remediation:"]
    assert len(lines) == 20


def test_lanes_that_do_not() -> None:
    lines = report(["default"], 256)
    assert lines[3:5] == ["lanes colliding: 0 (0.0%)", "severity: Clean"]
    assert lines[6] == "partition | lane             | collides_with"
    assert lines[7].endswith("| default          | —")
    assert len(lines) == 8


@pytest.mark.parametrize("changes", [{"FF_LANES": "a,a"}, {"FF_LANES": "ä"}, {"FF_FLOW_PARTITIONS": "0"}])
def test_a_configuration_that_cannot_be(
    changes: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    assert run(["admin", "partition-collisions"]) == 2
    assert "FF_" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["admin"], ["admin", "nonsense"]])
def test_without_a_question(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert "admin" in capsys.readouterr().err
