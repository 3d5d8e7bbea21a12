"""What doors remember: answers and acts, on every store."""

from __future__ import annotations

from typing import Any

from flowfabric.engine import Engine
from flowfabric.model.limits import AUDIT_KEPT_MS
from flowfabric.stores.questions import TrimHistory
from tests.contract.probe import ManualClock

KEPT: dict[str, Any] = {"fingerprint": "f", "status": 201, "media": "application/json", "body": b"\x00\xff"}


async def test_the_first_answer_holds_until_its_time_is_over(engine: Engine, clock: ManualClock) -> None:
    first = await engine.keep_answer(owner="o", idempotency_key="k", kept_ms=10, **KEPT)
    again = await engine.keep_answer(owner="o", idempotency_key="k", kept_ms=10, **{**KEPT, "body": b"other"})
    assert (first.body, again.body) == (b"\x00\xff", b"\x00\xff")
    found = await engine.find_answer("o", "k")
    assert found is not None
    assert (found.fingerprint, found.status, found.media, found.body) == ("f", 201, "application/json", b"\x00\xff")
    assert await engine.find_answer("other", "k") is None
    clock.advance(10)
    assert await engine.find_answer("o", "k") is None
    renewed = await engine.keep_answer(owner="o", idempotency_key="k", kept_ms=10, **{**KEPT, "body": b"new"})
    assert renewed.body == b"new"
    assert (await engine.find_answer("o", "k")).body == b"new"  # type: ignore[union-attr]


async def test_old_answers_are_deleted(engine: Engine, clock: ManualClock) -> None:
    for number in range(3):
        await engine.keep_answer(owner="o", idempotency_key=str(number), kept_ms=10 * (number + 1), **KEPT)
    clock.advance(20)
    assert await engine._ask(TrimHistory(0, 0, clock(), 100)) == 2
    assert await engine.find_answer("o", "2") is not None


async def test_acts_newest_first(engine: Engine, clock: ManualClock) -> None:
    for number in range(3):
        await engine.record_act(who="ann", act=f"act {number}", subject={"id": "x"}, status=200)
        clock.advance(1)
    first = await engine.list_audit(limit=2)
    assert [each.act for each in first.entries] == ["act 2", "act 1"]
    rest = await engine.list_audit(first.next_cursor, 2)
    assert ([each.act for each in rest.entries], rest.next_cursor) == (["act 0"], None)
    assert rest.entries[0].subject == '{"id":"x"}'


async def test_old_acts_are_deleted(engine: Engine, clock: ManualClock) -> None:
    for number in range(3):
        await engine.record_act(who="ann", act=f"act {number}", subject={"id": "x"}, status=200)
        clock.advance(1)
    clock.advance(AUDIT_KEPT_MS - 1)
    await engine.run_timer("retention_trimmer")
    assert [each.act for each in (await engine.list_audit()).entries] == ["act 2"]
