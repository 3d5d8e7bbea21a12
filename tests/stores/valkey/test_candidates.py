"""Claims of one process share the head of a queue among themselves, and with a process that they cannot see."""

from __future__ import annotations

import asyncio

import pytest

from flowfabric.stores.valkey import candidates
from flowfabric.stores.valkey.candidates import Reserved

QUEUE = [f"e{number}" for number in range(10)]
ALIKE = [b"1"] * 10


def test_each_passes_over_what_another_has() -> None:
    reserved = Reserved()
    assert reserved.take(QUEUE, ALIKE, 3, "a") == {"e0", "e1", "e2"}
    assert reserved.margin == 3
    assert reserved.take(QUEUE, ALIKE, 2, "b") == {"e3", "e4"}
    assert reserved.take(QUEUE, ALIKE, 4, "a") == {"e0", "e1", "e2", "e5"}
    reserved.release("a", lost_race=False)
    assert reserved.take(QUEUE, ALIKE, 2, "c") == {"e0", "e1"}


def test_nothing_less_urgent_is_taken_before_something_more_urgent() -> None:
    reserved = Reserved()
    urgency = [b"1"] * 4 + [b"2"] * 6
    assert reserved.take(QUEUE, urgency, 2, "a") == {"e0", "e1"}
    assert reserved.take(QUEUE, urgency, 2, "b") == {"e2", "e3"}
    assert reserved.take(QUEUE, urgency, 1, "c") is None
    reserved.release("a", lost_race=False)
    reserved.release("b", lost_race=False)
    assert reserved.take(QUEUE[4:], urgency[4:], 1, "c") == {"e4"}


async def test_one_that_is_too_early_waits_for_the_others() -> None:
    reserved = Reserved()
    await reserved.changed()  # nobody has anything
    reserved.take(QUEUE, ALIKE, 2, "a")
    waiting = asyncio.create_task(reserved.changed())
    await asyncio.sleep(0)
    assert not waiting.done()
    reserved.release("b", lost_race=False)
    await asyncio.sleep(0)
    assert not waiting.done()
    reserved.release("a", lost_race=False)
    await waiting
    assert reserved.margin == 0


def test_too_few_are_left_only_by_those_who_have_decided() -> None:
    reserved = Reserved()
    assert reserved.take(QUEUE, ALIKE, 8, "a") == set(QUEUE[:8])
    assert reserved.take(QUEUE, ALIKE, 3, "b") is None
    reserved.decide({"e0", "e1"}, "a")
    assert reserved.take(QUEUE, ALIKE, 3, "b") == {"e2", "e3", "e4"}
    reserved.decide({"e2"}, "b")
    # What is being taken is not waited for.
    assert reserved.take(QUEUE[:3], ALIKE[:3], 2, "c") == set()
    # More may stand behind it.
    assert reserved.take(QUEUE[:3], ALIKE[:3], 2, "c", cut=True) is None


async def test_a_decision_wakes_those_who_wait() -> None:
    reserved = Reserved()
    reserved.take(QUEUE, ALIKE, 2, "a")
    waiting = asyncio.create_task(reserved.changed())
    await asyncio.sleep(0)
    reserved.decide({"e0"}, "a")
    await waiting
    assert reserved.margin == 1


def test_a_lost_race_leaves_the_head_to_the_other_once() -> None:
    reserved = Reserved()
    assert reserved.take(QUEUE, ALIKE, 2, "a") == {"e0", "e1"}
    reserved.release("a", lost_race=True)
    assert reserved.margin == 2
    assert reserved.take(QUEUE, ALIKE, 2, "b") == {"e2", "e3"}
    reserved.release("b", lost_race=False)
    # Nobody wanted them: they are still there.
    assert reserved.take(QUEUE, ALIKE, 2, "c") == {"e0", "e1"}


def test_nothing_is_left_where_there_is_not_enough_or_something_more_urgent() -> None:
    reserved = Reserved()
    reserved.take(QUEUE, ALIKE, 2, "a")
    reserved.release("a", lost_race=True)
    assert reserved.take(QUEUE[:2], ALIKE, 2, "b") == {"e0", "e1"}
    reserved.release("b", lost_race=False)
    urgency = [b"1", b"1", b"2", b"2", *ALIKE[4:]]
    assert reserved.take(QUEUE, urgency, 2, "c") == {"e0", "e1"}


def test_company_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(candidates.time, "monotonic", lambda: now)
    reserved = Reserved()
    reserved.take(QUEUE, ALIKE, 2, "a")
    reserved.release("a", lost_race=True)
    now += candidates.COMPANY_S
    assert reserved.margin == 0
    assert reserved.take(QUEUE, ALIKE, 2, "b") == {"e0", "e1"}
