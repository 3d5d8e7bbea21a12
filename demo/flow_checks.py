"""Holds the flow against its plan, from what is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from demo.checks import Check
from demo.flow_scene import BUDGET, ENDINGS, LIMIT, NODES, PICTURE, SPENT, FlowScene
from demo.rows import Rows
from flowfabric.model.events import CompletionEvent, LeaseEvent


class FlowChecker:
    """Everything that must be true once the flow has ended."""

    def __init__(self, scene: FlowScene, rows: Rows) -> None:
        self.scene = scene
        self.rows = rows
        self.states: dict[str, str] = {}
        self.usage: dict[str, int] = {}

    async def run(self) -> list[Check]:
        """Every check with its findings."""
        self.states = await self.scene.states()
        self.usage = (await self.scene.engine.get_budget_status(BUDGET)).usage
        self.groups = (await self.scene.snapshot()).edge_groups
        checks: dict[str, Callable[[], Iterator[str]]] = {
            "every member ended as planned; only the slowest draft was cancelled": self._endings,
            "each end was announced once, each group fired once": self._once,
            "no member ran before its parents' policy was met": self._order,
            "the tampered token was refused, one person twice counted once": self._signatures,
            "the budget asked before it was exceeded, and was charged what was spent": self._money,
        }
        return [Check(promise, list(check())) for promise, check in checks.items()]

    def _endings(self) -> Iterator[str]:
        for node, ending in ENDINGS.items():
            if self.states[node] != ending:
                yield f"{node}: {self.states[node]} instead of {ending}"
        if self.scene.told.loser != "draft c":
            yield f"{self.scene.told.loser} was lost instead of draft c"

    def _once(self) -> Iterator[str]:
        ends = self.rows.events(CompletionEvent)
        for node in NODES:
            told = [event.outcome for event in ends.get(self._bare(node), ())]
            if len(told) != 1:
                yield f"{node}: announced {told}"
        for group in self.groups:
            if group.group_state != "satisfied" or group.running_count:
                yield f"{group.downstream_execution_id}: {group}"

    def _order(self) -> Iterator[str]:
        leases, ends = self.rows.events(LeaseEvent), self.rows.events(CompletionEvent)
        for above, below, needed in (
            *(("outline", f"draft {letter}", 1) for letter in "abc"),
            ("edit", "approve", 1),
            ("approve", "picture", 1),
            ("picture", "publish", 1),
        ):
            began = min(event.occurred_at_ms for event in leases[self._bare(below)])
            done = [event.occurred_at_ms for event in ends[self._bare(above)]]
            if sum(at <= began for at in done) < needed:
                yield f"{below} began before {above} had ended"
        drafts = [ends[self._bare(f"draft {letter}")][0] for letter in "ab"]
        if min(event.occurred_at_ms for event in leases[self._bare("edit")]) < max(e.occurred_at_ms for e in drafts):
            yield "edit began before two drafts were in"

    def _signatures(self) -> Iterator[str]:
        told = self.scene.told
        if told.tampered != "invalid_token":
            yield f"the tampered token: {told.tampered}"
        wanted = ["appended_to_waitpoint", "appended_to_waitpoint_duplicate", "resume_condition_satisfied"]
        if told.effects != wanted:
            yield f"the signatures: {told.effects}"

    def _money(self) -> Iterator[str]:
        told = self.scene.told
        if (told.asked, told.reserved) != (PICTURE, PICTURE):
            yield f"asked for {told.asked}, reserved {told.reserved}"
        if SPENT + PICTURE <= LIMIT:
            yield "there was nothing to ask for"
        if self.usage.get("cents") != SPENT + PICTURE - 5:
            yield f"charged {self.usage}"

    def _bare(self, node: str) -> str:
        return str(self.scene.ids[node]).rpartition(":")[2]
