"""What the handbooks of engines for durable functions show: sagas, fans, polling, approvals, timers, races, retries.
Each is written once, against the calls of a world, and runs as a workflow and in plain asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable
from typing import Any

from tests.simulation.workflows.oracle import Program
from tests.simulation.workflows.programs import World

PROGRAMS: dict[str, Program] = {}
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


def shown(program: Program) -> Program:
    """Keep it under its name."""
    PROGRAMS[program.__name__] = program
    return program


async def caught(call: Awaitable[Any]) -> str:
    """What it gives, or that it failed."""
    try:
        return str(await call)
    except Exception as error:
        return type(error).__name__


# -- sagas -------------------------------------------------------------------------------------------------------------


@shown
async def saga(w: World) -> Any:
    return [await w.load("book flight"), await w.load("book hotel"), await w.load("book car")]


@shown
async def saga_compensates_in_reverse(w: World) -> Any:
    undo: list[str] = []
    try:
        for each in ("flight", "hotel"):
            await w.load(f"book {each}")
            undo.append(each)
        await w.fail("book car")
    except Exception:
        for each in reversed(undo):
            await w.load(f"cancel {each}")
    return undo


@shown
async def saga_whose_compensation_fails(w: World) -> Any:
    try:
        await w.load("charge")
        await w.fail("ship")
    except Exception:
        return [await caught(w.fail("refund")), await w.load("tell a person")]


@shown
async def sagas_within_sagas(w: World) -> Any:
    async def leg(name: str, works: bool) -> str:
        await w.load(f"reserve {name}")
        try:
            return await (w.load if works else w.fail)(f"confirm {name}")
        except Exception:
            await w.load(f"release {name}")
            raise

    return [await caught(leg("out", True)), await caught(leg("back", False))]


@shown
async def saga_in_parallel(w: World) -> Any:
    found = await asyncio.gather(w.load("flight"), w.fail("hotel"), w.load("car"), return_exceptions=True)
    good = [each for each in found if isinstance(each, str)]
    return await asyncio.gather(*(w.load(f"cancel {each}") for each in good))


# -- fans --------------------------------------------------------------------------------------------------------------


@shown
async def fan_out_and_in(w: World) -> Any:
    return sum(map(len, await asyncio.gather(*(w.child(each, HOUR * len(each), False) for each in ("a", "bb", "ccc")))))


@shown
async def fan_of_helpers(w: World) -> Any:
    async def one(label: str, delay: int) -> str:
        return await w.load(await w.child(label, delay, False))

    return await asyncio.gather(one("a", 3 * HOUR), one("b", HOUR), one("a", 2 * HOUR))


@shown
async def fan_with_a_failure(w: World) -> Any:
    return await asyncio.gather(caught(w.child("a", HOUR, True)), caught(w.child("b", 2 * HOUR, False)))


@shown
async def map_and_reduce(w: World) -> Any:
    async def reduced(parts: list[str]) -> str:
        if len(parts) == 1:
            return parts[0]
        half = len(parts) // 2
        return await w.load("".join(sorted(await asyncio.gather(reduced(parts[:half]), reduced(parts[half:])))))

    return await reduced(list(await asyncio.gather(*(w.load(each) for each in "abcde"))))


@shown
async def batches(w: World) -> Any:
    items, found = [f"item {number}" for number in range(8)], []
    for begin in range(0, len(items), 3):
        found += await asyncio.gather(*(w.load(each) for each in items[begin : begin + 3]))
        await w.sleep(HOUR)
    return found


@shown
async def pool_of_two(w: World) -> Any:
    room = asyncio.Semaphore(2)

    async def one(number: int) -> str:
        async with room:
            return await w.child(str(number), HOUR * (number + 1), False)

    return await asyncio.gather(*map(one, range(5)))


@shown
async def a_set_of_items(w: World) -> Any:
    items = random.sample(["x", "y", "z"], 3)
    return sorted(await asyncio.gather(*(w.load(each) for each in items)))


@shown
async def a_task_group(w: World) -> Any:
    async with asyncio.TaskGroup() as group:
        made = [group.create_task(w.child(each, HOUR, False)) for each in "ab"]
    return [each.result() for each in made]


@shown
async def a_task_group_within_another(w: World) -> Any:
    async def inner(label: str) -> list[str]:
        async with asyncio.TaskGroup() as group:
            made = [group.create_task(w.load(f"{label}{number}")) for number in range(2)]
        return [each.result() for each in made]

    async with asyncio.TaskGroup() as group:
        made = [group.create_task(inner(each)) for each in "ab"]
    return [each.result() for each in made]


# -- polling and timers ------------------------------------------------------------------------------------------------


@shown
async def polling(w: World) -> Any:
    for number in range(4):
        if await w.load(f"look {number}") == "LOOK 3":
            return number
        await w.sleep(5 * MINUTE)
    return None


@shown
async def polling_with_backoff(w: World) -> Any:
    pause, looks = MINUTE, 0
    while looks < 4:
        looks += 1
        await w.load("look")
        await w.sleep(pause)
        pause *= 2
    return looks


@shown
async def a_timer(w: World) -> Any:
    await w.sleep(30 * DAY)
    return await w.load("renew")


@shown
async def a_schedule(w: World) -> Any:
    for number in range(5):
        await w.load(f"report {number}")
        await w.sleep(DAY)


@shown
async def timers_side_by_side(w: World) -> Any:
    async def at(label: str, delay: int) -> str:
        await w.sleep(delay)
        return await w.load(label)

    return await asyncio.gather(at("late", 3 * DAY), at("soon", HOUR), at("tomorrow", DAY))


@shown
async def a_timer_that_is_moved(w: World) -> Any:
    async def signal(delay: int) -> str:
        return await w.child("later", delay, False)

    async def alarm() -> str:
        await w.sleep(DAY)
        return "rings"

    first = await w.first(alarm(), signal(HOUR))
    return [first, await w.first(alarm(), signal(2 * DAY))]


@shown
async def drip_campaign(w: World) -> Any:
    sent = []
    for number, delay in enumerate((0, DAY, 3 * DAY, 7 * DAY)):
        await w.sleep(delay)
        sent.append(await w.load(f"mail {number}"))
    return sent


@shown
async def a_subscription(w: World) -> Any:
    for month in range(12):
        await w.load(f"charge {month}")
        await w.sleep(30 * DAY)
        if month == 4:
            return await w.load("ended")
    return None


# -- people ------------------------------------------------------------------------------------------------------------


@shown
async def approval(w: World) -> Any:
    return await w.load("pay") if await w.ask("bill") else "not paid"


@shown
async def approval_that_is_refused(w: World) -> Any:
    return await w.load("pay") if await w.ask("yacht") else await w.load("tell them")


@shown
async def approval_within_time(w: World) -> Any:
    async def asked() -> bool:
        return await w.ask("bill")

    return await w.limit(asked(), DAY)


@shown
async def approval_that_takes_too_long(w: World) -> Any:
    try:
        await w.limit(w.child("approval", 2 * DAY, False), DAY)
    except TimeoutError:
        return await w.load("escalate")


@shown
async def two_approvals(w: World) -> Any:
    async def by(who: str) -> bool:
        return await w.ask(who)

    return await asyncio.gather(by("ann"), by("zoe"))


@shown
async def equal_questions_in_branches(w: World) -> Any:
    async def one(delay: int) -> list[Any]:
        return [await w.child("look", delay, False), await w.ask("bill")]

    return await asyncio.gather(one(5 * HOUR), one(HOUR))


@shown
async def escalation(w: World) -> Any:
    for level, delay in enumerate((9 * DAY, 5 * DAY, HOUR)):
        with contextlib.suppress(TimeoutError):
            return [level, await w.limit(w.child(f"level {level}", delay, False), DAY)]
        await w.load(f"escalate {level}")
    return None


@shown
async def reminders(w: World) -> Any:
    task, sent = asyncio.ensure_future(w.child("signed", 50 * HOUR, False)), 0

    async def remind() -> int:
        number = 0
        while True:
            await w.sleep(DAY)
            await w.load(f"remind {number}")
            number += 1

    reminding = asyncio.ensure_future(remind())
    await task
    reminding.cancel()
    return sent


@shown
async def a_loop_of_answers(w: World) -> Any:
    return [await w.ask(each) for each in ("a", "b", "x", "c")]


# -- children ----------------------------------------------------------------------------------------------------------


@shown
async def a_child(w: World) -> Any:
    return await w.child("one", HOUR, False)


@shown
async def children_one_after_the_other(w: World) -> Any:
    found = "a"
    for _ in range(3):
        found = await w.child(found, HOUR, False)
    return found


@shown
async def a_child_that_fails(w: World) -> Any:
    return [await caught(w.child("one", HOUR, True)), await w.load("instead")]


@shown
async def equal_children(w: World) -> Any:
    return await asyncio.gather(*(w.child("one", HOUR, False) for _ in range(3)))


@shown
async def a_history_that_begins_again(w: World) -> Any:
    state = {"page": 0, "seen": ""}
    while state["page"] < 5:
        state = {"page": state["page"] + 1, "seen": await w.load(f"page {state['page']}")}  # type: ignore[operator]
        await w.sleep(HOUR)
    return state


# -- races -------------------------------------------------------------------------------------------------------------


@shown
async def quickest_provider(w: World) -> Any:
    return await w.first(w.child("slow", 3 * HOUR, False), w.child("quick", HOUR, False))


@shown
async def hedged_request(w: World) -> Any:
    async def second() -> str:
        await w.sleep(HOUR)
        return await w.child("second", MINUTE, False)

    return await w.first(w.child("first", 2 * HOUR, False), second())


@shown
async def race_of_gathered_calls(w: World) -> Any:
    return await w.first(
        asyncio.gather(w.child("a", HOUR, False), w.child("b", 2 * HOUR, False)), w.child("c", 3 * HOUR, False)
    )


@shown
async def a_race_and_what_comes_after(w: World) -> Any:
    async def slow() -> str:
        await w.load("slow begins")
        await w.sleep(2 * HOUR)
        return await w.load("slow ends")

    found = await w.first(slow(), w.child("quick", HOUR, False))
    await w.sleep(DAY)
    return [found, await w.load("after")]


@shown
async def limits_within_limits(w: World) -> Any:
    async def inner() -> Any:
        try:
            return await w.limit(w.child("inner", 3 * HOUR, False), HOUR)
        except TimeoutError:
            return await w.limit(w.child("again", MINUTE, False), HOUR)

    return await w.limit(inner(), 5 * HOUR)


# -- failures ----------------------------------------------------------------------------------------------------------


@shown
async def fallbacks(w: World) -> Any:
    for each in (w.fail, w.fail, w.load):
        with contextlib.suppress(Exception):
            return await each("get")
    return None


@shown
async def retries_by_hand(w: World) -> Any:
    for number in range(3):
        try:
            return await w.fail("call") if number < 2 else await w.load("call")
        except Exception:
            await w.sleep(MINUTE << number)
    return None


@shown
async def a_circuit_breaker(w: World) -> Any:
    failures, found = 0, []
    for number in range(6):
        if failures == 3:
            await w.sleep(HOUR)
            failures = 0
        try:
            found.append(await (w.load if number > 3 else w.fail)(f"call {number}"))
        except Exception:
            failures += 1
    return found


@shown
async def cleaning_up(w: World) -> Any:
    try:
        await w.load("lock")
        return await caught(w.fail("work"))
    finally:
        await w.load("unlock")


@shown
async def a_resource(w: World) -> Any:
    @contextlib.asynccontextmanager
    async def held(name: str) -> AsyncIterator[str]:
        await w.load(f"open {name}")
        try:
            yield name
        finally:
            await w.sleep(MINUTE)
            await w.load(f"close {name}")

    async with held("a") as a, held("b") as b:
        return await w.load(a + b)


@shown
async def the_whole_is_tried_again(w: World) -> Any:
    await w.load("once")
    return [await w.stumble("stumbles"), await w.load("after")]


# -- between branches --------------------------------------------------------------------------------------------------


@shown
async def pipeline(w: World) -> Any:
    found = "in"
    for stage in (w.load, lambda label: w.child(label, HOUR, False), w.load):
        found = await stage(found)
    return found


@shown
async def producer_and_consumers(w: World) -> Any:
    queue: asyncio.Queue[str | None] = asyncio.Queue()
    found: list[str] = []

    async def produce() -> None:
        for each in "abcd":
            await queue.put(await w.child(each, HOUR, False))
        await queue.put(None)

    async def consume() -> None:
        while (item := await queue.get()) is not None:
            found.append(await w.load(item))

    await asyncio.gather(produce(), consume())
    return found


@shown
async def a_lock(w: World) -> Any:
    lock, order = asyncio.Lock(), []

    async def one(label: str) -> None:
        async with lock:
            await w.sleep(HOUR)
            order.append(await w.load(label))

    await asyncio.gather(one("a"), one("b"), one("c"))
    return order


@shown
async def an_event(w: World) -> Any:
    ready = asyncio.Event()

    async def prepare() -> None:
        await w.child("ready", HOUR, False)
        ready.set()

    async def use() -> str:
        await ready.wait()
        return await w.load("use")

    return (await asyncio.gather(use(), prepare()))[0]


@shown
async def state_machine(w: World) -> Any:
    state, path = "new", []
    follows = {"new": "paid", "paid": "shipped", "shipped": ""}
    while state:
        path.append(await w.load(state))
        await w.sleep(HOUR)
        state = follows[state]
    return path


@shown
async def an_agent(w: World) -> Any:
    said: list[str] = []
    for turn in range(4):
        answer = await w.load(f"model {turn} {len(said)}")
        said.append(answer)
        if turn == 1:
            said += await asyncio.gather(*(w.load(f"tool {each}") for each in "ab"))
        if turn == 2 and not await w.ask("go on"):
            break
    return said


@shown
async def a_stream_of_pages(w: World) -> Any:
    async def pages() -> AsyncIterator[str]:
        for number in range(3):
            yield await w.load(f"page {number}")

    return [each async for each in pages()]


@shown
async def a_tree(w: World) -> Any:
    async def walk(node: str, depth: int) -> list[Any]:
        if not depth:
            return [await w.load(node)]
        return [node, *await asyncio.gather(*(walk(node + each, depth - 1) for each in "lr"))]

    return await walk("t", 2)
