"""The second scene: one flow. Three drafts race and the slowest is cancelled, two people approve, a budget asks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import pairwise

from demo.board import Board
from flowfabric import (
    Accepted,
    BudgetAsked,
    ClaimPolicy,
    CompletionEvent,
    Contention,
    EngineError,
    ExecutionId,
    FlowEdge,
    FlowGraph,
    FlowSnapshot,
    Fresh,
    Handle,
    HandleKind,
    Quorum,
    Reserved,
    SuspendArgs,
    Suspended,
    WaitpointCredential,
)
from flowfabric.conditions import ByName, Count, CountKind
from flowfabric.engine import Engine
from flowfabric.engine.reads.subscriptions import Subscription

LANE = "newsroom"
BUDGET = "7b6f6c1a-4e0f-4a55-9d0b-5f2f0a8f6f10"
#: Cents. What was spent before leaves no room for the picture.
LIMIT, SPENT, PICTURE = 100, 80, 35
CREW = ("finch", "robin", "stork", "crane")
LEASE_TTL_MS = 3_000

#: The layers of the graph, as they are drawn.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("outline",),
    ("draft a", "draft b", "draft c"),
    ("edit",),
    ("approve",),
    ("picture",),
    ("publish",),
)
NODES = tuple(node for layer in LAYERS for node in layer)
EDGES = tuple((above, below) for upper, lower in pairwise(LAYERS) for above in upper for below in lower)
#: How each node must end.
ENDINGS = {node: "cancelled" if node == "draft c" else "completed" for node in NODES}
SECONDS = {"outline": 0.3, "draft a": 0.5, "draft b": 0.7, "draft c": 60.0, "edit": 0.3, "publish": 0.3}


@dataclass
class Told:
    """What was answered on the way; the checks look at it."""

    tampered: str | None = None
    effects: list[str] = field(default_factory=list)
    asked: int | None = None
    reserved: int | None = None
    loser: str | None = None


class FlowScene:
    """Submits the flow, works on it, answers what it asks, and ends with it."""

    def __init__(self, engine: Engine, board: Board) -> None:
        self.engine = engine
        self.board = board
        self.told = Told()
        self.ids: dict[str, ExecutionId] = {}
        self.flow_id = ""
        self.holders: dict[str, str] = {}
        self._steps: dict[str, Callable[[str, Handle], Awaitable[bool]]] = {
            "approve": self._approve,
            "picture": self._picture,
        }
        self._people: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """The whole scene. Returns when every member has ended."""
        engine = self.engine
        await engine.create_budget(
            budget_id=BUDGET,
            scope_type="team",
            scope_id=LANE,
            enforcement_mode="strict",
            on_hard_limit="ask",
            on_soft_limit="warn",
            reset_interval_ms=0,
            dimensions=["cents"],
            hard_limits=[LIMIT],
            soft_limits=[0],
        )
        await engine.report_usage_admin(budget_id=BUDGET, dimensions=["cents"], deltas=[SPENT])
        graph = FlowGraph(
            nodes={node: {"lane_id": LANE, "execution_kind": node, "creator_identity": "demo"} for node in NODES},
            edges=[FlowEdge(above, below, data_passing_ref="text") for above, below in EDGES],
            groups={"edit": Quorum(2)},
            flow_kind="newsroom",
        )
        ends = await engine.subscribe_completion()
        submitted = await engine.submit_flow(graph)
        self.ids, self.flow_id = submitted.execution_ids, str(submitted.flow_id)
        size = f"{len(NODES)} members, {len(EDGES)} edges"
        self.board.say(f"one call submits a flow ({size}); edit waits for 2 of 3 drafts", "bold")
        crew = [asyncio.create_task(self._work(name), name=name) for name in CREW]
        published = asyncio.create_task(self._until_published(ends))
        try:
            async with ends:
                await asyncio.wait((published, *crew), return_when=asyncio.FIRST_COMPLETED)
        finally:
            everybody = (published, *crew, *self._people)
            for task in everybody:
                task.cancel()
            for done in await asyncio.gather(*everybody, return_exceptions=True):
                if isinstance(done, Exception):
                    raise done
        self.board.say("the flow has ended: published", "bold")

    # -- looking -------------------------------------------------------------------------------------------------

    async def states(self) -> dict[str, str]:
        """The public state of every member."""
        found = await asyncio.gather(*(self.engine.read_execution_state(wire) for wire in self.ids.values()))
        return {node: str(state) for node, state in zip(self.ids, found, strict=True)}

    async def spent(self) -> int:
        """What the budget has been charged."""
        return (await self.engine.get_budget_status(BUDGET)).usage.get("cents", 0) if self.ids else 0

    async def snapshot(self) -> FlowSnapshot:
        """The flow with its groups."""
        found = await self.engine.describe_flow(self.flow_id)
        assert found is not None
        return found

    async def _until_published(self, ends: Subscription[CompletionEvent]) -> None:
        async for end in ends:
            if end.execution_id == self.ids["publish"]:
                return

    # -- the crew ------------------------------------------------------------------------------------------------

    async def _work(self, name: str) -> None:
        names = {wire: node for node, wire in self.ids.items()}
        policy = ClaimPolicy(worker_id=name, worker_instance_id=f"{name}-1", lease_ttl_ms=LEASE_TTL_MS, max_wait=1_000)
        while True:
            handle = await self.engine.claim(LANE, capabilities=frozenset(), policy=policy)
            if handle is None:
                continue
            node = names[handle.execution_id]
            self.holders[node] = name
            try:
                await self._attempt(name, node, handle)
            except Contention as refused:
                self.told.loser = node
                self.board.say(f"{name} loses {node}: the quorum is met without it ({refused.code})", "magenta")
            finally:
                self.holders.pop(node, None)

    async def _attempt(self, name: str, node: str, handle: Handle) -> None:
        if node == "edit":
            self.board.say("two drafts are in: edit may run, the third is cancelled in the same commit", "green")
        step = self._steps.get(node)
        if step is not None:
            if not await step(name, handle):
                return
        else:
            left = SECONDS[node]
            while left > 0:
                await asyncio.sleep(min(left, 0.2))
                left -= 0.2
                await self.engine.renew(handle)
        await self.engine.complete(handle, node.encode())

    # -- two people ----------------------------------------------------------------------------------------------

    async def _approve(self, name: str, handle: Handle) -> bool:
        """First the execution steps aside and holds no worker; once two people agree it is claimed again."""
        if handle.kind is HandleKind.RESUMED:
            who = sorted({signal.source_identity for signal in await self.engine.observe_signals(handle)})
            self.board.say(f"{name} goes on with approve: {' and '.join(who)} agreed", "green")
            return True
        key = "wpk:approval"
        answer = await self.engine.suspend(
            handle,
            SuspendArgs(
                waitpoints=[Fresh(waitpoint_key=key)],
                resume_condition=Count(2, CountKind.DISTINCT_SOURCES, (key,), ByName("approve")),
                reason_code="waiting_for_approval",
            ),
        )
        assert isinstance(answer, Suspended)
        self.board.say("approve is suspended: it needs two people, and holds no worker meanwhile", "cyan")
        self._answer_later(self._two_people(answer.details))
        return False

    async def _two_people(self, waitpoint: WaitpointCredential) -> None:
        await asyncio.sleep(0.3)
        token = waitpoint.waitpoint_token.reveal()
        forged = token[:-1] + ("0" if token[-1] != "0" else "1")
        try:
            await self._sign(waitpoint, forged, "mallory")
        except EngineError as refused:
            self.told.tampered = refused.code
            self.board.say(f"a token with one digit changed: {refused.code}", "bold red")
        for person in ("legal", "legal", "ops"):
            await asyncio.sleep(0.25)
            effect = await self._sign(waitpoint, token, person)
            self.told.effects.append(effect)
            self.board.say(f"{person} approves: {effect.replace('_', ' ')}", "yellow" if "dup" in effect else "cyan")

    async def _sign(self, waitpoint: WaitpointCredential, token: str, person: str) -> str:
        answer = await self.engine.deliver_signal(
            execution_id=self.ids["approve"],
            waitpoint_id=waitpoint.waitpoint_id,
            waitpoint_token=token,
            signal_name="approve",
            source_type="person",
            source_identity=person,
        )
        assert isinstance(answer, Accepted)
        return str(answer.effect)

    # -- a budget ------------------------------------------------------------------------------------------------

    async def _picture(self, name: str, handle: Handle) -> bool:
        """Reserve before spending. Where there is no room the execution asks, and waits for the answer."""
        answer = await self.engine.reserve_budget(handle, BUDGET, {"cents": PICTURE})
        if isinstance(answer, BudgetAsked):
            self.told.asked = PICTURE
            self.board.say(f"picture wants {PICTURE} cents, {LIMIT - SPENT} are left: it is paused and asks", "yellow")
            self._answer_later(self._grant_money(answer))
            return False
        assert isinstance(answer, Reserved), answer
        self.told.reserved = PICTURE
        await asyncio.sleep(0.3)
        await self.engine.settle_reservation(answer.reservation_id, {"cents": PICTURE - 5}, handle=handle)
        self.board.say(f"{name} reserves {PICTURE} cents, spends {PICTURE - 5}, gives 5 back", "green")
        return True

    async def _grant_money(self, asked: BudgetAsked) -> None:
        await asyncio.sleep(0.5)
        await self.engine.deliver_signal(
            execution_id=self.ids["picture"],
            waitpoint_id=asked.details.waitpoint_id,
            waitpoint_token=asked.details.waitpoint_token,
            signal_name="approved",
            source_type="person",
            source_identity="finance",
        )
        self.board.say("finance says yes to exactly that much", "cyan")

    def _answer_later(self, answer: Awaitable[None]) -> None:
        self._people.append(asyncio.ensure_future(answer))
