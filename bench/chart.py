"""A picture of the report, drawn by hand as SVG: one bar per row, whiskers for the spread, ticks for floor and goal."""

from __future__ import annotations

import math
from html import escape

from bench.rows import Row, Series

WIDTH, LEFT, RIGHT = 1120, 430, 190
LINE, BAR, TITLE = 26, 13, 44
_COLOURS = {"goal": "#2e9e5b", "ok": "#6fb98f", "below floor": "#d1495b", "": "#6b8cae"}
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#24292f}.small{font-size:11px;fill:#6e7781}"
    ".title{font-size:15px;font-weight:600}.axis{stroke:#d0d7de}.whisker{stroke:#24292f;stroke-width:1.3}"
    ".floor{stroke:#d1495b;stroke-width:2}.goal{stroke:#1a7f37;stroke-width:2;stroke-dasharray:3 2}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9da7b1}.axis{stroke:#444c56}"
    ".whisker{stroke:#e6edf3}rect.back{fill:#0d1117}}"
)


def draw(rows: list[Row], about: str) -> str:
    """The whole picture."""
    parts: list[str] = []
    top = 58.0
    for title, members in _panels(rows).items():
        drawn, height = _panel(title, members, top)
        parts += drawn
        top += height
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top + 14:.0f}" '
        f'viewBox="0 0 {WIDTH} {top + 14:.0f}" role="img" aria-label="Benchmark of FlowFabric">'
        f'<style>{_STYLE}</style><rect class="back" width="100%" height="100%" fill="#fff"/>'
        f'<text class="title" x="16" y="26">FlowFabric beside its limits</text>'
        f'<text class="small" x="16" y="44">{escape(about)} · bars: medians, whiskers: lowest to highest, '
        "red: floor, dashed green: goal</text>"
    )
    return "\n".join([head, *parts, "</svg>", ""])


def _panels(rows: list[Row]) -> dict[str, list[Row]]:
    """Rows that can share a scale."""
    panels: dict[str, list[Row]] = {}
    for row in rows:
        name = row.case.split("/")[0]
        what = row.unit
        if row.target is not None and not row.target.enforced:
            what = "ratio against figures recorded elsewhere"
        elif _is_ratio(row):
            what = "ratio against the yardstick"
        panels.setdefault(f"{name}: {what}, {row.better} is better", []).append(row)
    return panels


def _is_ratio(row: Row) -> bool:
    """Whether the bar shows the ratio: always if there is one, unless the target is for the figure itself."""
    return row.yardstick is not None and (row.target is None or row.target.of == "ratio")


def _shown(row: Row) -> Series:
    return row.ratio if _is_ratio(row) and row.ratio is not None else row.ours


def _panel(title: str, rows: list[Row], top: float) -> tuple[list[str], float]:
    marks = [mark for row in rows if row.target for mark in (row.target.floor, row.target.goal)]
    highest = max(1e-9, *marks, *(_shown(row).highest for row in rows))
    step = _step(highest)
    end = math.ceil(highest / step) * step
    scale = (WIDTH - LEFT - RIGHT) / end
    bottom = top + TITLE + LINE * len(rows)
    parts = [f'<text class="title" x="16" y="{top + 18:.1f}">{escape(title)}</text>']
    for number in range(round(end / step) + 1):
        x = LEFT + number * step * scale
        parts.append(f'<line class="axis" x1="{x:.1f}" y1="{top + TITLE - 8:.1f}" x2="{x:.1f}" y2="{bottom:.1f}"/>')
        place = f'x="{x:.1f}" y="{top + TITLE - 12:.1f}" text-anchor="middle"'
        parts.append(f'<text class="small" {place}>{number * step:,.6g}</text>')
    for position, row in enumerate(rows):
        parts += _bar(row, top + TITLE + LINE * position, scale)
    return parts, bottom - top + 18


def _bar(row: Row, y: float, scale: float) -> list[str]:
    series = _shown(row)
    middle = y + BAR / 2
    width = max(series.median, 0) * scale
    low, high = LEFT + max(series.lowest, 0) * scale, LEFT + max(series.highest, 0) * scale
    shape = f'x="{LEFT}" y="{y:.1f}" width="{width:.1f}" height="{BAR}" rx="2" fill="{_COLOURS[row.verdict]}"'
    parts = [
        f'<text x="{LEFT - 10}" y="{y + BAR - 2:.1f}" text-anchor="end">{escape(row.label)}</text>',
        f"<rect {shape}><title>{escape(_hover(row))}</title></rect>",
        f'<line class="whisker" x1="{low:.1f}" y1="{middle:.1f}" x2="{high:.1f}" y2="{middle:.1f}"/>',
    ]
    if row.target is not None:
        for name, value in (("floor", row.target.floor), ("goal", row.target.goal)):
            x = LEFT + value * scale
            parts.append(f'<line class="{name}" x1="{x:.1f}" y1="{y - 4:.1f}" x2="{x:.1f}" y2="{y + BAR + 4:.1f}"/>')
    sign = "×" if _is_ratio(row) else ""
    beside = f" ({row.ours.median:,.4g} {row.unit})" if sign else ""
    parts.append(
        f'<text class="small" x="{WIDTH - RIGHT + 8}" y="{y + BAR - 2:.1f}">'
        f"{series.median:,.3g}{sign}{escape(beside)}</text>"
    )
    return parts


def _hover(row: Row) -> str:
    text = f"{row.label}: {row.ours.median:,.4g} {row.unit}"
    return text if row.yardstick is None else f"{text}; {row.yardstick.name}: {row.yardstick.median:,.4g}"


def _step(highest: float) -> float:
    """A round distance between the lines of a scale, for four to ten of them."""
    rough = highest / 6
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
