"""Draws the flow: one column per layer, each member in the colour of its state."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from demo.flow_scene import LAYERS, LIMIT, FlowScene
from demo.screen import DRAW_EVERY_S, STATES, WIDEST, happening_line

#: Public states that occur only here.
COLOURS = {
    **STATES,
    "waiting_children": "grey50",
    "suspended": "bright_yellow",
    "resumable": "yellow",
    "skipped": "dim",
}
MARKS = {"completed": "●", "cancelled": "✕", "running": "▶", "suspended": "‖"}
LINES = 12


@contextlib.asynccontextmanager
async def showing_flow(scene: FlowScene, console: Console, *, live: bool) -> AsyncIterator[None]:
    """Show the scene while the block runs: in place on a terminal, as plain lines anywhere else."""
    if not live:
        scene.board.listener = lambda happening: console.print(happening_line(happening), soft_wrap=True)
        yield
        return
    screen = _FlowPicture(scene, console)
    with Live(console=console, auto_refresh=False, get_renderable=screen.draw) as picture:
        drawing = asyncio.create_task(screen.keep_drawing(picture))
        try:
            yield
        finally:
            drawing.cancel()
            await asyncio.wait([drawing])
            await screen.look()
            picture.refresh()


class _FlowPicture:
    def __init__(self, scene: FlowScene, console: Console) -> None:
        self._scene = scene
        self._console = console
        self._states: dict[str, str] = {}
        self._spent = 0

    async def keep_drawing(self, picture: Live) -> None:
        while True:
            await self.look()
            picture.refresh()
            await asyncio.sleep(DRAW_EVERY_S)

    async def look(self) -> None:
        """Read where every member stands."""
        self._states = await self._scene.states()
        self._spent = await self._scene.spent()

    def draw(self) -> RenderableType:
        width = min(self._console.width, WIDEST)
        graph = Table.grid(padding=(0, 1))
        for position in range(len(LAYERS) * 2 - 1):
            graph.add_column(vertical="middle", justify="center" if position % 2 else "left")
        cells: list[RenderableType] = []
        for position, layer in enumerate(LAYERS):
            if position:
                cells.append(Text("→", "dim"))
            cells.append(Group(*(self._member(node) for node in layer)))
        graph.add_row(*cells)
        budget = Text.assemble(("  budget ", "dim"), (f"{self._spent}", "bold"), (f" of {LIMIT} cents spent", "dim"))
        told = Text(no_wrap=True, overflow="ellipsis")
        for happening in self._scene.board.happenings[-LINES:]:
            told.append_text(happening_line(happening)).append("\n")
        told.rstrip()
        return Panel(
            Group(graph, budget, Text(), told),
            title="[bold]one flow[/]  a quorum, two signatures, a budget",
            title_align="left",
            subtitle=f"{self._scene.board.elapsed_s:4.1f} s",
            subtitle_align="right",
            width=width,
            height=LINES + 8,
            box=box.ROUNDED,
            border_style="dim",
        )

    def _member(self, node: str) -> Text:
        state = self._states.get(node, "waiting")
        holder = self._scene.holders.get(node)
        mark = MARKS.get(state, "○")
        shown = Text(f"{mark} {node}", COLOURS.get(state, ""), no_wrap=True)
        return shown.append(f" {holder}", "dim") if holder and state == "running" else shown
