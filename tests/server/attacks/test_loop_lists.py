"""Lists as long as a body has room for: nothing is looked up for each of their entries before there are too many.

The caller is limited to a namespace, so that whatever it names has to be looked up.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_args, get_origin

import msgspec
import pytest

from flowfabric.model.errors import Validation
from flowfabric.model.ids import check_capabilities
from flowfabric.model.limits import MAX_BULK, MAX_NAMED_BUDGETS
from flowfabric.model.policy import parse_policy
from flowfabric.server import remote_calls
from flowfabric.server.http.request import BULK, CONTROL, MEDIUM
from tests.conftest import full_run
from tests.server.attacks.test_loop_requests import CEILING_S
from tests.server.attacks.world.naming import BY_ROUTE, Place, _sample, call_of, places
from tests.server.attacks.world.tenants import World, opened
from tests.server.attacks.world.watching import Request, watching

#: Bodies of this size, unless the route takes less; in full runs the largest that it takes.
SIZE = BULK if full_run() else MEDIUM
#: Tasks that one request may have at once.
MOST_TASKS = 300
_MARK = "\ue000"
_LISTED = (f'["{_MARK}"]', f'{{"{_MARK}":1}}')


def is_list(place: Place) -> bool:
    """Whether texts stand there, any number of them."""
    if "policy" in place.steps:
        return False  # it is a document of its own, with limits of its own
    arms = [place.hint, *get_args(place.hint)]
    return any(get_origin(each) in (list, dict) and str in get_args(each) for each in arms)


LISTS = {str(each): each for each in places() if is_list(each)}


def many(place: Place, world: World, size: int, *, same: bool = False) -> Request:
    """A call with so many bytes of names of the right kind, all different or all the same good one."""
    call = call_of(place, world.a, _MARK)
    body = msgspec.json.encode(call.body).decode()
    [found] = [each for each in _LISTED if each in body]
    own = world.a.things.get(place.role() or "") or said(place, world)
    entries: list[str] = []
    left = size - len(body)
    while left > 0:
        entry = f'"{own if same else other(own, len(entries))}"' + (":1" if found[0] == "{" else "")
        left -= len(entry) + 1
        entries.append(entry)
    listed = found[0] + ",".join(entries[:-1]) + found[-1]
    return Request(call.method, call.url, body=body.replace(found, listed).encode(), authorization=world_token(world))


def said(place: Place, world: World) -> str:
    """What a good call says there."""
    sample = _sample(place.steps[-1], place._replace(steps=place.steps[-1:]), world.a)
    first = sample[0] if isinstance(sample, list) and sample else sample
    return first if isinstance(first, str) and first.isidentifier() else "x"


def other(text: str, number: int) -> str:
    """Another name of the same kind."""
    head, dash, tail = text.rpartition("-")
    return f"{head}-{number:012x}" if dash and len(tail) == 12 else f"{text}{number}"


def world_token(world: World) -> str:
    return str(world.client.headers["authorization"])


@contextmanager
def counting_tasks() -> Iterator[list[int]]:
    """How many tasks there are at once."""
    loop = asyncio.get_running_loop()
    live, most = 0, [0]

    def gone(_: object) -> None:
        nonlocal live
        live -= 1

    def made(_: object, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        nonlocal live
        live += 1
        most[0] = max(most[0], live)
        task = asyncio.Task(coroutine, loop=loop, **options)
        task.add_done_callback(gone)
        return task

    loop.set_task_factory(made)
    try:
        yield most
    finally:
        loop.set_task_factory(None)


@pytest.mark.parametrize("unit", [b"{},", b"[],", b'{"a":[]},'])
async def test_the_shortest_things_are_not_taken_apart_by_the_million(unit: bytes) -> None:
    """What is made of them would take fifty times the memory of their bytes."""
    async with opened() as world:
        begin = b'{"calls":[{"op":"create_executions","arguments":{"executions":['
        end = unit[:-1] + b"]}}]}"
        body = begin + unit * ((BULK - len(begin) - len(end)) // len(unit)) + end
        request = Request("POST", "/v1/remote/calls", body=body, authorization=world_token(world))
        with watching() as held:
            status, answer = await asyncio.create_task(request.ask(world.server))
        assert status == 400
        assert b"more than 1,000,000 objects and lists" in answer
        assert held.longest < CEILING_S / 4


async def test_more_than_one_call_creates_are_not_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    monkeypatch.setattr(remote_calls, "given", read.append)
    async with opened() as world:
        body = {"calls": [{"op": "create_executions", "arguments": {"executions": [{}] * (MAX_BULK + 1)}}]}
        response = await world.client.post("/v1/remote/calls", json=body)
    [answer] = response.json()["answers"]
    assert answer["error"]["detail"] == "executions: 100001, at most 100000 are allowed"
    assert read == []


def test_there_are_lists() -> None:
    assert "remote read_ends body execution_ids" in LISTS


@pytest.mark.parametrize("same", [False, True], ids=["different", "same"])
@pytest.mark.parametrize("text", LISTS)
async def test_nothing_is_done_for_each_name_of_a_long_list(text: str, same: bool) -> None:
    place = LISTS[text]
    limit = BY_ROUTE[place.operation].limit if place.door == "http" else BULK
    async with opened() as world:
        request = many(place, world, min(limit, SIZE), same=same)
        with watching() as held, counting_tasks() as tasks:
            status, _ = await asyncio.create_task(request.ask(world.server))
        assert status < 500
        assert held.longest < CEILING_S
        assert tasks[0] < MOST_TASKS


@pytest.mark.parametrize(
    "text",
    [
        "remote search_suspended body reasons",
        "remote read_exec_core_fields body fields",
        "http submit_flow body budget_ids",
    ],
)
async def test_the_same_again_and_again_is_refused(text: str) -> None:
    async with opened() as world:
        _, answer = await many(LISTS[text], world, CONTROL, same=True).ask(world.server)
        assert b"at most " in answer


def test_a_policy_names_few_budgets_and_capabilities() -> None:
    ids = [str(uuid.uuid4())] * (MAX_NAMED_BUDGETS + 1)
    assert parse_policy({"budget_ids": ids[1:]})
    with pytest.raises(Validation, match="budget_ids has 257 entries, at most 256 are allowed"):
        parse_policy({"budget_ids": ids})
    assert check_capabilities(["one"] * 4_096, "worker") == ("one",)
    with pytest.raises(Validation, match="too_many_tokens"):
        check_capabilities((each for each in iter(lambda: "one", None)), "worker")
