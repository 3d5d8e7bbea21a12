"""Bugs planted in the Valkey store: the tests that are there for them must find each. One that finds none proves
nothing."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric.engine import Engine
from flowfabric.stores.valkey import losses, store as stores
from flowfabric.stores.valkey.store import ValkeyStore
from tests.simulation.mutants.hunting import hunt
from tests.simulation.test_model import machine_on
from tests.simulation.world import World
from tests.stores.valkey import test_failover as failover, test_races as races

Plant = Callable[[pytest.MonkeyPatch], None]
FOUND = (AssertionError, pytest.fail.Exception)
#: Seeds within which the machine must find a bug.
SEEDS = 60


def without(text: str, instead: str) -> Plant:
    """The server's functions with one thing left out."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        library, prefix = stores._functions()
        assert library.count(text) == 1, f"{text!r} is not where it was"
        own = f"mutant_{secrets.token_hex(6)}_"
        changed = library.replace(text, instead).replace(prefix.rstrip("_"), own.rstrip("_"))
        monkeypatch.setattr(stores, "_functions", lambda: (changed, own))

    return plant


VERSIONS = without("string.sub(value, 1, VERSION) ~= version", "false")
ABSENCE = without("if value then return nil, key .. ': a row appeared' end", "")
RANGES = without("redis.sha1hex(table.concat(members)) ~= list[at + 3]", "false")
COUNTS = without("count(list[at], list[at + 1], list[at + 2]) ~= expected", "false")
REMOVALS = without("on_parts('ZREM', key, list, at + 1, size)", "")


@pytest.mark.parametrize(
    ("plant", "test"),
    [
        (VERSIONS, races.test_a_record_that_was_changed),
        (ABSENCE, races.test_a_record_that_appeared),
        (RANGES, races.test_a_range_that_has_another_entry),
        (COUNTS, races.test_a_number_of_entries),
        (REMOVALS, races.test_an_entry_that_was_taken_out),
    ],
    ids=["versions", "absence", "ranges", "counts", "removals"],
)
async def test_what_a_commit_leaves_out_is_found(
    valkey_url: str,
    monkeypatch: pytest.MonkeyPatch,
    plant: Plant,
    test: Callable[[races.Rivals], Awaitable[None]],
) -> None:
    plant(monkeypatch)
    async with races.opened(valkey_url) as rivals:
        with pytest.raises(FOUND):
            await test(rivals)


@pytest.mark.parametrize("plant", [VERSIONS, REMOVALS], ids=["versions", "removals"])
def test_the_machine_finds_it_too(valkey_url: str, monkeypatch: pytest.MonkeyPatch, plant: Plant) -> None:
    """Two engines that hold what the other has changed, and indexes that are counted again."""
    plant(monkeypatch)
    world = World(valkey_url)
    try:
        assert hunt(machine_on(world), range(SEEDS)) is not None
    finally:
        world.close()


# ------------------------------------------------------------------------------------------------- a change of server


def held_records_survive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ValkeyStore, "_on_change", lambda self: self._registered.clear())


def lists_are_taken_for_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ValkeyStore, "_on_change", lambda self: self.forget())


def numbers_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    without("math.max(now, last + tonumber(args[3]))", "last")(monkeypatch)


def a_commit_is_for_whoever_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers go on higher up, but not before the first commits."""
    settle = losses.Histories.settle

    async def once(self: Any, store_id: bytes) -> Any:
        return await settle(self, store_id) if self._settled is None else None

    monkeypatch.setattr(losses.Histories, "settle", once)


@pytest.mark.parametrize(
    ("plant", "test"),
    [
        (held_records_survive, failover.test_a_holder_whose_claim_was_lost_is_refused_for_ever),
        (lists_are_taken_for_known, failover.test_what_was_listed_is_listed_again),
        (numbers_go_on, failover.test_followers_are_told_of_events_that_were_lost),
        (numbers_go_on, failover.test_a_follower_that_was_away_is_told),
        (a_commit_is_for_whoever_answers, failover.test_numbers_are_never_given_out_twice),
    ],
)
async def test_what_is_believed_of_another_server_is_found(
    monkeypatch: pytest.MonkeyPatch, plant: Plant, test: Callable[[Any, list[Engine]], Awaitable[None]]
) -> None:
    plant(monkeypatch)
    async with failover.restarted() as place:
        engines = [await Engine.open(place.url) for _ in range(2)]
        try:
            with pytest.raises(FOUND):
                await test(place, engines)
        finally:
            for engine in engines:
                await engine.close()
