"""Plans: what somebody does in the console while answers come late, twice, broken or not at all, and others act."""

from __future__ import annotations

import random
import re
import time
import uuid
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from playwright.async_api import expect

from flowfabric import ClaimPolicy, EngineError, FlowGraph, Fresh, SuspendArgs
from flowfabric.conditions import Count, CountKind
from flowfabric.engine import Engine
from flowfabric.model.operations.suspension import SuspensionReason
from flowfabric.model.states import PublicState
from flowfabric.model.waitpoint_tokens import revealed
from flowfabric.sdk.asks.ask import Question, waitpoint_of
from flowfabric.sdk.asks.links import make_link
from tests.console.support.late import NOTE
from tests.console.support.planting import answered
from tests.console.support.stories import AIMS, MATTERS, STORIES
from tests.console.support.watched_page import Watched
from tests.schedules import every

#: Has the code of pages there before any of them is opened.
READ = "(names) => Promise.all(names.map((each) => import(`/console/pages/${each}.js`)))"
SCRIPTS = [Path(__file__).resolve().parents[1] / "plans" / f"{each}.js" for each in ("clock", "way", "answering")]
HOUR_MS = 3_600_000
#: What becomes of an answer, by how often it does.
WEIGHTS = {
    "given": 56, "slow": 8, "twice": 9, "lost": 9, "unsent": 5, "broken": 4, "refused": 5, "gateway": 4,
}  # fmt: skip
#: What somebody does next: press something, once, twice at once, twice with a while in between; keys; type.
DEEDS = {"press": 28, "double": 16, "two": 16, "key": 20, "type": 8, "others": 12}
KEYS = ("j", "j", "k", "x", "x", "Enter", "End", "Home", "PageDown", "Escape")
JOBS, ASKS, GRAPH = LANES = ("late jobs", "late asks", "late graph")
#: Who is asked.
PEOPLE = (("ann", "bob", "cid"), ("ann",))
#: Every answer arrives as it was given.
CALM = {"given": 1}
#: As many things are done on a page after its story.
GESTURES = {"executions": 4, "approvals": 5, "schedules": 5, "execution": 6, "settings": 5, "budgets": 6}
FIELDS = {"input": "input", "textarea": "input", "select": "select"}
#: As much of what was done and arrived is told of a plan that fails.
TOLD = 80
#: As long as two clicks are one double click.
DOUBLE_MS = 450


class World:
    """A namespace with a little of everything, and others who act in it."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine = engine
        self.name = name
        self.questions: dict[str, Any] = {}
        self.executions: list[str] = []
        self.failed = ""
        self.flow = ""
        self.schedules = [f"{name} {each}" for each in ("early", "late", "other")]
        self.budgets: dict[str, str] = {}

    async def made(self) -> World:
        await self.ready("")
        await self.create(9)
        await self.fail(2)
        [failed] = (await self.engine.search_executions(limit=1, query=f"ns:{self.name} state:failed")).executions
        self.failed = str(failed.execution_id)
        for number in range(4):
            await self.ask(PEOPLE[number % 2])
        for number, each in enumerate(self.schedules):
            spec = every(HOUR_MS * (number + 1))
            await self.engine.put_schedule(each, spec=spec, execution_kind="tick", namespace=self.name, lane_id=JOBS)
        await self.engine.pause_schedule(self.schedules[-1], self.name)
        for each in ("tea", "cups"):
            identity = str(uuid.uuid4())
            await self.engine.create_budget(
                budget_id=identity, scope_type="named", scope_id=f"{self.name} {each}", dimensions=["plates"],
                hard_limits=[9], soft_limits=[0], namespace=self.name,
            )  # fmt: skip
            self.budgets[f"{self.name} {each}"] = identity
        for _ in range(2):
            nodes = {each: {"lane_id": GRAPH, "namespace": self.name, "execution_kind": each} for each in "abc"}
            graph = FlowGraph(nodes=nodes, edges=[("a", "b"), ("b", "c")], namespace=self.name)
            self.flow = str((await self.engine.submit_flow(graph)).flow_id)
        return self

    async def ready(self, page: str) -> None:
        """What a page is about is there, whatever was done on others."""
        for lane in LANES:
            await self.engine.set_lane_state(lane, "active")
        if page == "approvals":
            await self.ask(PEOPLE[0])
            await self.ask(PEOPLE[1])
        elif page == "executions":
            await self.create(4)
        elif page == "execution":
            await self.create(1)

    async def create(self, amount: int) -> None:
        """New executions, as if from somebody's program."""
        calls = [
            {"namespace": self.name, "lane_id": JOBS, "execution_kind": f"job {len(self.executions) + number}"}
            for number in range(amount)
        ]
        self.executions += [str(each.execution_id) for each in await self.engine.create_executions(calls)]

    async def fail(self, amount: int) -> None:
        """A worker takes some, and they fail."""
        policy = ClaimPolicy("w", "w-1", HOUR_MS)
        for handle in await self.engine.claim_many(JOBS, policy=policy, limit=amount, namespaces=[self.name]):
            await self.engine.fail(handle, "the bank said no", "permanent")

    async def ask(self, people: tuple[str, ...], *, due: bool = False) -> None:
        """A new question; what is due comes first."""
        name = f"{self.name} question {len(self.questions)}?"
        payload = msgspec.json.encode(
            Question(name, None, people, min(2, len(people)), HOUR_MS if due else None, NOTE, "ok")
        )
        created = await self.engine.create_execution(
            namespace=self.name, lane_id=ASKS, execution_kind="$ask", input_payload=payload, tags={"ff.run": self.name}
        )
        identity = created.execution_id
        policy = ClaimPolicy("w", "w-1", HOUR_MS)
        handles = await self.engine.claim_many(ASKS, policy=policy, limit=20, namespaces=[self.name])
        points = {each: waitpoint_of(str(identity), payload, each) for each in people}
        for handle in handles:
            # Others may have been made to ask again; nobody works for those.
            if handle.execution_id != identity:
                continue
            wait = SuspendArgs(
                waitpoints=[Fresh(point, each) for each, point in points.items()],
                resume_condition=Count(min(2, len(people)), CountKind.DISTINCT_WAITPOINTS, tuple(points)),
                reason_code=SuspensionReason.WAITING_FOR_APPROVAL,
                timeout_at=round(time.time() * 1_000) + HOUR_MS if due else None,
            )
            await self.engine.suspend(handle, wait)
            tokens = {
                each: revealed(await self.engine.read_waitpoint_token(identity.partition, point) or "")
                for each, point in points.items()
            }
            self.questions[name] = (identity, points, tokens)

    async def happens(self, page: str, chance: random.Random) -> None:
        """Something that somebody else does, mostly something that the page shows; unless it is no longer possible."""
        shown = MATTERS.get(page) or MATTERS["overview"]
        what = chance.choice(shown if shown and chance.random() < 0.8 else MATTERS["overview"])
        with suppress(EngineError):
            await self.does(what, chance)

    async def does(self, what: str, chance: random.Random) -> None:
        """This."""
        await getattr(self, f"_{what}")(chance)

    async def _create(self, chance: random.Random) -> None:
        await self.create(chance.randrange(1, 4))

    async def _fail(self, chance: random.Random) -> None:
        await self.fail(chance.randrange(1, 3))

    async def _ask(self, chance: random.Random) -> None:
        await self.ask(chance.choice(PEOPLE), due=chance.random() < 0.7)

    async def _ask_urgently(self, chance: random.Random) -> None:
        await self.ask(chance.choice(PEOPLE), due=True)

    async def _answer(self, chance: random.Random) -> None:
        question, by = chance.choice(list(self.questions.values())), chance.choice(PEOPLE[0])
        state = await self.engine.read_execution_state(question[0])
        if state == PublicState.SUSPENDED and by in question[1]:
            await answered(self.engine, question, by, by, {"ok": True})

    async def _cancel(self, chance: random.Random) -> None:
        one = chance.choice(self.executions)
        if await self.engine.read_execution_state(one) == PublicState.WAITING:
            await self.engine.cancel_execution(execution_id=one, reason="somebody else")

    async def _switch(self, chance: random.Random) -> None:
        act = chance.choice((self.engine.pause_schedule, self.engine.resume_schedule))
        await act(chance.choice(self.schedules), self.name)

    async def _limit(self, chance: random.Random) -> None:
        budget, hard = chance.choice(list(self.budgets.values())), {"plates": chance.randrange(5, 9)}
        await self.engine.set_budget_limits(budget_id=budget, hard_limits=hard, namespace=self.name)

    @property
    def told(self) -> dict[str, Any]:
        """Ids by what the console shows of them."""
        return {
            "questions": {name: str(each[0]) for name, each in self.questions.items()},
            "schedules": {each: each for each in self.schedules},
            "budgets": self.budgets,
        }

    @property
    def pages(self) -> dict[str, str]:
        """Every page, by what it is."""
        execution, schedule = self.executions[-1], quote(self.schedules[0])
        return {
            "overview": "overview",
            "executions": "executions",
            "execution": f"executions/{quote(execution, safe='')}",
            "ended": f"executions/{quote(self.failed, safe='')}",
            "failures": "executions?tab=failures",
            "flows": "flows",
            "flow": f"flows/{self.flow}",
            "approvals": "approvals",
            "schedules": "schedules",
            "schedule": f"schedules/{schedule}?namespace={quote(self.name)}",
            "budgets": "budgets",
            "workers": "workers",
            "kinds": "kinds",
            "audit": "audit",
            "settings": "settings",
        }


def called(candidate: dict[str, Any]) -> str:
    """What aims call it."""
    return candidate["text"] if candidate["tag"] not in FIELDS else f"{FIELDS[candidate['tag']]} {candidate['id']}"


class Plan:
    """One of them: whatever is chosen in it follows from its number."""

    def __init__(self, number: int, watched: Watched, world: World) -> None:
        self.number = number
        self.chance = random.Random(number)
        self.page = ""
        self.aim: tuple[str, ...] = ()
        self.watched = watched
        self.world = world
        #: What was done, to be read when something went wrong.
        self.story: list[str] = []

    async def call(self, expression: str, *given: Any) -> Any:
        return await self.watched.page.evaluate(f"(given) => answering.{expression}(...given)", list(given))

    async def open(self) -> None:
        """The console, before anything goes wrong."""
        page = self.watched.page
        # One script: several come in any order.
        await page.add_init_script("\n".join(each.read_text() for each in SCRIPTS))
        await page.add_init_script(
            f"if (origin !== 'null') sessionStorage.setItem('ff.namespace', {self.world.name!r})"
        )
        await self.watched.go("nowhere")
        await self.call("calm")
        await expect(page.locator(".nav-link").first).to_be_attached()
        await page.evaluate(READ, sorted({each.split("/")[0].split("?")[0] for each in self.world.pages.values()}))
        await page.evaluate("answering.watch()")

    async def drive(self, name: str) -> None:
        """Do something on a page; then everything is as the store has it, and nothing happened that nobody meant."""
        self.story = [f"plan {self.number}, {name}"]
        self.page, self.chance = name, random.Random(f"{self.number} {name}")
        self.aim = self.chance.choice(AIMS.get(name, ((),)))
        await self.world.ready(name)
        await self.tell()
        told = STORIES.get(name, ((),))
        story = told[self.number % len(told)]
        is_told_plainly = story and self.number < len(told)
        seed = self.number * 100 + list(self.world.pages).index(name)
        await self.call("begin", seed, CALM if is_told_plainly else WEIGHTS)
        await self.visit(self.world.pages[name])
        await self.call("step", 2_000, 9)
        for deed, what in story:
            await self.follow(deed, what)
        await self.call("become", WEIGHTS)
        for _ in range(GESTURES.get(name, 4)):
            await self.gesture()
        await self.end()

    async def follow(self, deed: str, what: Any) -> None:
        """The next thing of a story."""
        if deed == "wait":
            await self.call("step", 10_000, what)
        elif deed == "after":
            await self.call("wait", what)
        elif deed in ("arrive", "first"):
            await self.call("arriveAll", what, 1 if deed == "first" else 99)
        elif deed == "quiet":
            await self.call("quiet")
        elif deed in ("lose", "give"):
            await self.call("force", what, {"lose": "lost", "give": "given"}[deed])
        elif deed == "leave":
            await self.visit(what)
        elif deed == "choose":
            await self.choose(what)
        elif deed == "key":
            await self.key(what)
        elif deed == "others":
            with suppress(EngineError):
                await self.world.does(what, self.chance)
            await self.tell()
            await self.call("hint")
        else:
            await self.press(deed, what)

    async def answer(self) -> None:
        """The page of somebody who was sent a link."""
        self.story, self.page = [f"plan {self.number}, a link"], "answer"
        self.chance, self.aim = random.Random(f"{self.number} answer"), ("^(Yes|No)$",)
        await self.world.ready("approvals")
        identity, points, tokens = list(self.world.questions.values())[-1]
        [by] = points
        page = self.watched.page
        await page.goto("about:blank")
        await page.goto(f"{self.watched.base}answer#{make_link(str(identity), points[by], tokens[by])}")
        await page.evaluate("answering.watch()")
        await self.call("begin", self.number * 100 + 99, WEIGHTS)
        await self.call("step", 2_000, 9)
        for _ in range(6):
            await self.gesture()
        await self.call("calm")
        wrong = await page.evaluate("answering.wrong")
        await self.judge(wrong)

    async def tell(self) -> None:
        """What the page may need to know of the world."""
        await self.watched.page.evaluate("(told) => Object.assign(answering.world, told)", self.world.told)

    async def visit(self, place: str) -> None:
        await self.call("go", f"#/{place}")

    async def gesture(self) -> None:
        deed = self.chance.choices(list(DEEDS), list(DEEDS.values()))[0]
        if deed == "others":
            await self.world.happens(self.page, self.chance)
            await self.tell()
            await self.call("cut" if self.chance.random() < 0.2 else "hint")
        elif deed == "key" and await self.watched.at(".list, dialog").count():
            await self.key(self.chance.choice(KEYS))
        else:
            await self.press("press" if deed == "key" else deed)
        await self.call("step")

    async def key(self, name: str) -> None:
        self.story.append(f"key {name}")
        await self.call("key", name)
        await self.watched.page.keyboard.press(name)
        await self.call("keyDone")

    async def candidates(self, what: str) -> list[dict[str, Any]]:
        """What can be pressed; of a story only that, as soon as it is there, if it comes."""
        for _ in range(12 if what else 1):
            found: list[dict[str, Any]] = await self.call("candidates")
            found = [each for each in found if re.search(what, called(each))]
            if found or not what:
                return found
            await self.call("step", 2_000, 3)
        return []

    async def press(self, deed: str, what: str = "") -> None:
        found = await self.candidates(what)
        if deed == "type":
            found = [each for each in found if each["tag"] in ("input", "textarea")]
        if not found:
            return
        one = self.chance.choice(found) if what else self.chosen(found)
        if deed == "meets":
            one = max(found, key=lambda each: float(each["y"]))
        x, y, mouse = one["x"], one["y"], self.watched.page.mouse
        self.story.append(f"{deed} {one['tag']} {one['id']} {one['text']!r}")
        if one["tag"] == "select":
            await self.watched.page.locator(f"select#{one['id']}").select_option(self.chance.choice(one["options"]))
            return
        await self.call("press", x, y)
        if deed == "double":
            await mouse.dblclick(x, y)
        else:
            await mouse.click(x, y)
        if deed in ("two", "meets"):
            await self.call("followed")
            await (self.call("step", DOUBLE_MS, 9) if deed == "two" else self.call("quiet", DOUBLE_MS))
            await mouse.down(click_count=2)
            await mouse.up(click_count=2)
        await self.call("followed")
        await self.call("released", deed in ("press", "type"))
        if one["tag"] in ("input", "textarea"):
            text = "12" if one["type"] == "number" else f"late {self.chance.randrange(90)}"
            await self.watched.page.keyboard.type(text)
            await self.call("keep")

    async def choose(self, amount: int) -> None:
        """The first rows of the list, one by one: they move as soon as one is chosen."""
        done: set[str] = set()
        for _ in range(amount):
            left = [each for each in await self.candidates("^Select ") if each["text"] not in done]
            if left:
                one = min(left, key=lambda each: float(each["y"]))
                done.add(one["text"])
                await self.press("press", f"^{one['text']}$")

    def chosen(self, found: list[dict[str, Any]]) -> dict[str, Any]:
        """What somebody presses next: mostly what they are after, as far as they have come."""
        stages = [[each for each in found if re.search(what, called(each))] for what in self.aim]
        reached = [stage for stage in stages if stage]
        if reached and self.chance.random() < 0.8:
            stage = reached[-1] if self.chance.random() < 0.7 else self.chance.choice(reached)
            return self.chance.choice(stage)
        return self.chance.choices(found, [each["weight"] for each in found])[0]

    async def end(self) -> None:
        page = self.watched.page
        await self.call("calm")
        # Open dialogs are left, with what was typed in them.
        for _ in range(3):
            if await page.locator("dialog").count():
                await page.keyboard.press("Escape")
                await self.call("followed")
        await self.call("clear")
        # Nothing is held still under the pointer.
        await page.mouse.move(1, 1)
        await self.call("hint")
        await self.call("calm")
        shown, widened = await self.call("said"), await self.call("isWidened")
        fresh = await self.anew(len(shown) if widened else 0)
        wrong = await page.evaluate("answering.wrong")
        await self.judge(wrong)
        differ = [f"shown {one!r}, in the store {other!r}" for one, other in zip_longest(shown, fresh) if one != other]
        await self.judge(differ)

    async def judge(self, wrong: list[str]) -> None:
        """Nothing may be wrong; if it is, it is told with what was done and what arrived."""
        if wrong:
            log = await self.watched.page.evaluate("answering.log")
            first = next((at for at, each in enumerate(log) if each.startswith("WRONG")), len(log))
            raise AssertionError("\n".join([*wrong, *self.story, *log[max(0, first - TOLD) : first + 1]]))

    async def anew(self, amount: int) -> Any:
        """What the page shows if it is opened now, with so many rows."""
        here = await self.watched.page.evaluate("location.hash.slice(2)")
        await self.visit("nowhere")
        await self.visit(here)
        await self.call("calm")
        return await self.call("widen", amount)
