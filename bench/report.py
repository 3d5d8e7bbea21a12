"""The report: a table for people, JSON with every repetition for programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from bench import chart
from bench.rows import Problem, Row, Series, Target

_MARKS = {"goal": "[green]✓ goal[/]", "ok": "[green]✓ ok[/]", "below floor": "[red]✗ below floor[/]", "": ""}


class Report(Struct, kw_only=True):
    """Everything one run has found."""

    started: str
    took_s: float
    seconds: float
    repeat: int
    quick: bool
    machine: dict[str, str]
    load_before: str
    load_after: str
    rows: list[Row]
    problems: list[Problem]

    @property
    def below_floor(self) -> list[Row]:
        """Rows that miss a floor that is enforced."""
        return [row for row in self.rows if row.verdict == "below floor" and row.target and row.target.enforced]


def number(value: float) -> str:
    """Short, and never misleadingly precise."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1_000:
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def _spread(series: Series) -> str:
    if len(series.values) == 1:
        return number(series.median)
    return f"{number(series.median)} [dim]{number(series.lowest)}–{number(series.highest)}[/]"


def target_text(target: Target | None) -> tuple[str, str]:
    """Floor and goal as they are printed."""
    if target is None:
        return "", ""
    sign = "×" if target.of == "ratio" else ""
    return f"{number(target.floor)}{sign}", f"{number(target.goal)}{sign}"


def table(rows: list[Row]) -> Table:
    """One line per row: median, and between which bounds the repetitions lay."""
    found = Table(show_lines=False, pad_edge=False, header_style="bold")
    found.add_column("what", overflow="fold")
    found.add_column("unit (↑ ↓ better)", overflow="fold", style="dim")
    for name in ("ours", "yardstick", "ratio", "floor", "goal"):
        found.add_column(name, justify="right", overflow="fold")
    found.add_column("", no_wrap=True)
    found.add_column("also", overflow="fold", style="dim")
    group = None
    for row in rows:
        if group is not None and row.case.split("/")[0] != group:
            found.add_section()
        group = row.case.split("/")[0]
        other, ratio = row.yardstick, row.ratio
        found.add_row(
            row.label,
            f"{row.unit} {'↑' if row.better == 'higher' else '↓'}",
            _spread(row.ours),
            "" if other is None else f"{_spread(other)}\n[dim]{other.name}[/]",
            "" if ratio is None else f"{_spread(ratio)}×",
            *target_text(row.target),
            _MARKS[row.verdict],
            also(row),
        )
    return found


def also(row: Row) -> str:
    """Further figures in one text."""
    parts = [f"{name} {number(Series(name, values).median)}" for name, values in row.extra.items() if values]
    return "; ".join([*parts, row.note] if row.note else parts)


def show(report: Report, console: Console) -> None:
    """Print everything."""
    if report.rows:
        console.print(table(report.rows))
    for problem in report.problems:
        colour = "yellow" if problem.skipped else "red"
        console.print(
            f"[{colour}]{'skipped' if problem.skipped else 'failed'}[/] {problem.case}: {problem.text}", highlight=False
        )
    console.print("; ".join(f"{name}: {value}" for name, value in report.machine.items()), style="dim", highlight=False)
    console.print(
        f"{report.repeat} interleaved repetitions of {report.seconds:g} s, medians with lowest–highest; "
        f"load {report.load_before} before, {report.load_after} after; took {report.took_s:.0f} s",
        style="dim",
        highlight=False,
    )
    missed = report.below_floor
    if missed:
        console.print(f"[red]{len(missed)} below their floor:[/] {', '.join(row.label for row in missed)}")
    elif report.rows:
        console.print("no row is below its floor", style="green")


def write_json(report: Report, path: Path) -> None:
    """Every repetition of every figure, with what follows from them."""
    content: dict[str, Any] = msgspec.to_builtins(report)
    for row, written in zip(report.rows, content["rows"], strict=True):
        written["verdict"] = row.verdict
        for name, series in (("ours", row.ours), ("yardstick", row.yardstick), ("ratio", row.ratio)):
            if series is not None:
                written[name] = {
                    "name": series.name,
                    "median": series.median,
                    "lowest": series.lowest,
                    "highest": series.highest,
                    "values": series.values,
                }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode({"format": 1, **content}), indent=1) + b"\n")


def write_chart(report: Report, path: Path) -> None:
    """The same as a picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    about = f"{report.machine.get('processor', '')} · {report.started} · {report.repeat} × {report.seconds:g} s"
    path.write_text(chart.draw(report.rows, about), encoding="utf-8")
