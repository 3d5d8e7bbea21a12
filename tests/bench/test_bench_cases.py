"""Every case of the benchmark runs, with the shortest windows. How fast anything is does not matter here.

An ordinary run takes some cases with as little work as they can do with, a full one (`FF_TEST_FULL=1`)
takes them all as `--quick` does.
"""

from __future__ import annotations

import asyncio
import json
from itertools import groupby
from pathlib import Path

import pytest

from bench import databases
from bench.__main__ import main
from bench.cases import backlog, drain, every_case, idle, memory, routing, workflows
from bench.context import STORES
from bench.measure import closed_loop
from tests.conftest import full_run

#: Of the sample, an ordinary run takes one of so many.
FEW = 4
#: Cases that two processes work on at once, which no other test does on this store.
ALWAYS = ("drain/postgres",)


def kind_of(name: str) -> str:
    """What a case measures, whatever the store and the number of callers."""
    return "/".join(part for part in name.split("/") if part not in STORES and not part.isdigit())


def store_of(name: str) -> str:
    """The store of a case; the first one for those that have none."""
    return next((part for part in name.split("/") if part in STORES), STORES[0])


def sampled() -> list[str]:
    """One case of each kind, of the stores in turn."""
    names = sorted((case.name for case in every_case()), key=kind_of)
    kinds = [list(group) for _, group in groupby(names, kind_of)]
    return sorted({*ALWAYS, *(group[number % len(group)] for number, group in enumerate(kinds))})


def chosen(store: str) -> list[str]:
    """The cases of a store in this run."""
    names = [case.name for case in every_case()] if full_run() else sampled()[::FEW]
    return [name for name in names if store_of(name) == store]


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases that take longest have less to do, unless the run is a full one."""
    if full_run():
        return
    monkeypatch.setattr(databases, "HISTORY", 1_000)
    monkeypatch.setattr(idle, "LEAST_S", 0.5)
    monkeypatch.setattr(routing, "RANKED", 3_000)
    monkeypatch.setattr(memory, "COMMANDS", 1_000)
    monkeypatch.setattr(memory, "_QUICK_CREATES", 1_000)
    monkeypatch.setattr(memory, "_QUICK_KEPT", 1_000)
    monkeypatch.setattr(drain, "PER_SECOND", 4_000)
    monkeypatch.setattr(workflows, "PER_SECOND", {1: 2_000, 10: 500})
    for module in (backlog, memory):
        monkeypatch.setattr(module, "sizes", lambda _: (backlog.SMALL, 2_000, 5_000))


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("store", STORES)
@pytest.mark.timeout(1800 if full_run() else 300)
def test_every_case_runs(store: str, tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    names = chosen(store)
    results = ["--json", str(found), "--chart", str(tmp_path / "drawn.svg")]
    assert main(["--quick", "--seconds", "0.05", *results, *names]) == 0
    content = json.loads(found.read_text())
    assert content["problems"] == []
    assert {row["case"] for row in content["rows"]} == set(names)


def test_the_sample_has_every_kind_and_every_store() -> None:
    names = sampled()
    assert {kind_of(name) for name in names} == {kind_of(case.name) for case in every_case()}
    assert {store_of(name) for name in names} == set(STORES)


async def test_a_window_lasts_until_there_is_something_to_count() -> None:
    begun = asyncio.Event()

    async def work(_: int) -> int:
        # The second piece of work ends long after the window that it is measured in.
        await asyncio.sleep(0.5 if begun.is_set() else 0)
        begun.set()
        return 1

    assert (await closed_loop(work, 1, 0.001)).per_second > 0
