"""Bugs planted in the order of things: the tests that are there for them must find each. One that finds none proves
nothing."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any
from zlib import crc32

import pytest

from flowfabric import ascending
from flowfabric.core.executions import operator as replays
from flowfabric.core.suspension import signals, waits
from flowfabric.engine import Engine, transact
from flowfabric.engine.reads import search
from flowfabric.stores.keyed import entries
from flowfabric.stores.sql import overview as sql_overview, search as sql_search
from tests.contract.conftest import STORES
from tests.contract.orders import test_every_order as every, test_history_order as histories, test_list_order as lists
from tests.contract.probe import ManualClock, Probe

Plant = Callable[[pytest.MonkeyPatch], None]
FOUND = (AssertionError, pytest.fail.Exception)


def ids_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ascending, "max", lambda *places: random.getrandbits(80), raising=False)


def cursors_without_a_tie_break(monkeypatch: pytest.MonkeyPatch) -> None:
    """They stand at a time, behind everything that has it."""
    read = search._parts

    def parts(cursor: Any) -> Any:
        found = read(cursor)
        return found and (found[0], search._FIRST_UUID, 0, False)

    monkeypatch.setattr(search, "_parts", parts)


def by_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a millisecond by partition, that is by lane."""
    text = "{0} DESC, e.partition_key DESC, e.execution_id DESC"
    monkeypatch.setattr(sql_search, "_newest", text.format)
    place = entries.created_place
    monkeypatch.setattr(entries, "created_place", lambda each: (place(each)[0], f"{each.partition:05}{each.uuid}", 0))


def questions_by_creation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_overview, "SUSPENDED_AT", "e.created_at_ms")
    monkeypatch.setattr(entries, "suspended_at", lambda each: each.created_at_ms)


def time_is_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transact, "newest_ms", lambda view, now: 0)


def signals_are_numbered_from_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (waits, signals, replays):
        monkeypatch.setattr(module, "last_sequence", lambda each: each.signal_count or 0, raising=False)


def acts_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """And then by chance."""
    monkeypatch.setattr(entries, "audit_place", lambda each: (each.at_ms, crc32(each.key.encode()), each.key))


Site = every.Site


async def fifo(site: Site, creator: str) -> None:
    await every.test_what_is_created_first_is_told_and_taken_first(site, creator)


CASES: dict[str, tuple[Plant, str, Callable[[Site, ManualClock], Awaitable[None]]]] = {
    "ids by chance": (ids_by_chance, "memory", lambda site, clock: fifo(site, "one_by_one")),
    "ids by chance, in bulk": (ids_by_chance, "sqlite", lambda site, clock: fifo(site, "in_bulk")),
    "ids by chance, children": (ids_by_chance, "memory", lambda site, clock: fifo(site, "children")),
    "cursors without a tie-break": (
        cursors_without_a_tie_break, "memory", lambda site, clock: every.test_pages_of_any_size_are_one_list(site)
    ),
    "cursors without a tie-break, two": (
        cursors_without_a_tie_break, "sqlite", lambda site, clock: fifo(site, "all_at_once")
    ),
    "by partition, in memory": (by_partition, "memory", lambda site, clock: lists.test_executions(site.next)),
    "by partition, in SQL": (by_partition, "postgres", lambda site, clock: lists.test_executions(site.next)),
    "questions by creation, in memory": (
        questions_by_creation,
        "memory",
        lambda site, clock: lists.test_questions_in_the_order_they_were_asked(site.next, clock),
    ),
    "questions by creation, in SQL": (
        questions_by_creation,
        "sqlite",
        lambda site, clock: lists.test_questions_in_the_order_they_were_asked(site.next, clock),
    ),
    "time is not raised": (
        time_is_not_raised,
        "two on postgres",
        lambda site, clock: histories.test_times_never_run_backwards_between_processes(
            *site.engines, Probe(site.engines[0])
        ),
    ),
    "time is not raised, claims": (
        time_is_not_raised, "two on postgres", lambda site, clock: fifo(site, "one_by_one")
    ),
    "signals are numbered from one": (
        signals_are_numbered_from_one,
        "memory",
        lambda site, clock: histories.test_signals_after_a_replay(site.next, Probe(site.next)),
    ),
    "acts by time": (
        acts_by_time, "memory", lambda site, clock: histories.test_acts_of_one_millisecond(site.next)
    ),
}  # fmt: skip


@pytest.mark.parametrize("bug", CASES)
async def test_it_is_found(
    bug: str, request: pytest.FixtureRequest, tmp_path: Any, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, kind, drive = CASES[bug]
    url = STORES[kind.rpartition(" ")[2]](request, tmp_path)
    async with (
        await Engine.open(url, single_node=True, clock=clock) as engine,
        await Engine.open(url, single_node=True, clock=lambda: clock() - every.BEHIND_MS) as behind,
    ):
        plant(monkeypatch)
        site = Site(clock, engine, behind) if kind.startswith("two") else Site(clock, engine)
        with pytest.raises(FOUND):
            await drive(site, clock)
