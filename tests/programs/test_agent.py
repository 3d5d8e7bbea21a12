"""The agent: run twice, and killed while the model speaks and while a tool works."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowfabric import App
from tests.programs.outside import Call, Outside
from tests.programs.running import Program, kill

SAYS = {"What": "train\nhotel\n", "Choose": "the\nnight\ntrain\nand\nthe\ninn\n"}
CHOICE = "the night train and the inn"
TICKET = f"ticket for {CHOICE}"


def model(call: Call) -> tuple[int, str]:
    return 200, SAYS[call.body["prompt"].split()[0]]


@pytest.fixture
def outside() -> Outside:
    return Outside(
        {
            "model": model,
            "search": lambda call: (200, f"three {call.body['kind']}s"),
            "book": lambda call: (200, f"ticket for {call.body['choice']}"),
        }
    )


@pytest.fixture
def agent(outside: Outside, tmp_path: Path) -> Iterator[Program]:
    with outside.serving() as address, Program("agent.py", tmp_path, SERVICES_URL=address) as found:
        yield found


def calls(outside: Outside) -> dict[str, int]:
    return {path: outside.count(path) for path in ("/model", "/search", "/book")}


def spent(folder: Path) -> list[dict[str, int]]:
    """What budgets have paid for, and what is set aside in them."""

    async def read() -> list[dict[str, int]]:
        async with App(f"sqlite:///{folder}/agent.db") as app:
            [budget] = (await app.engine.list_budgets()).budgets
            return [dict(budget.usage), dict(budget.reserved)]

    return asyncio.run(read())


def test_it_runs_twice(agent: Program, outside: Outside, tmp_path: Path) -> None:
    first = agent.run("Rome", says="yes\n")
    # The question may come before the last words are printed.
    assert sorted(first.split()) == sorted(f"train hotel {CHOICE} book it? {CHOICE} {TICKET}".split())
    assert first.splitlines()[-1] == TICKET
    once = {"/model": 2, "/search": 2, "/book": 1}
    assert calls(outside) == once
    again = agent.run("Rome")  # nobody is asked
    assert again.split() == f"train hotel {CHOICE} {TICKET}".split()
    assert calls(outside) == once
    assert spent(tmp_path) == [{"tokens": 80}, {}]


def test_it_goes_on_when_it_was_killed(agent: Program, outside: Outside, tmp_path: Path) -> None:
    outside.get_stuck(lambda call: call.body.get("prompt", "").startswith("Choose"))
    process = agent.start("Rome")
    outside.wait_until_stuck()  # half of the words have come
    kill(process)
    assert calls(outside) == {"/model": 2, "/search": 2, "/book": 0}

    outside.get_stuck(lambda call: call.path == "/book")
    process = agent.start("Rome", says="yes\n")
    outside.wait_until_stuck()  # who knows whether it is booked
    kill(process)
    assert calls(outside) == {"/model": 3, "/search": 2, "/book": 1}

    outside.recover()
    assert agent.run("Rome").splitlines()[-1] == TICKET  # nobody is asked again
    assert calls(outside) == {"/model": 3, "/search": 2, "/book": 2}
    assert len({call.key for call in outside.calls if call.path == "/book"}) == 1
    assert spent(tmp_path) == [{"tokens": 80}, {}]
