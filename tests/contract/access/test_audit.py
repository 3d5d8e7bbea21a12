"""What doors remember: answers and acts, on every store."""

from __future__ import annotations

from typing import Any

import pytest

from flowfabric.core.access import RecordAct
from flowfabric.core.batch.notes import Note, Receipt
from flowfabric.engine import Engine
from flowfabric.model.errors import Contention, NotFound, State, Validation
from flowfabric.model.limits import AUDIT_KEPT_MS
from flowfabric.model.operations.executions import ClaimPolicy, FailureClass, Replayed
from flowfabric.model.states import PublicState
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


def _note(fingerprint: str = "f") -> Note:
    def account(result: Any) -> RecordAct:
        return RecordAct("ann", "replay", f'{{"state":"{result.public_state}"}}', 200, b"0" * 12)

    receipt = Receipt("o", "k", fingerprint, 10, lambda made: made.public_state.encode(), _read)
    return Note(account, receipt)


async def _fail(engine: Engine) -> None:
    handle = await engine.claim("default", policy=ClaimPolicy("w", "w-1"))
    assert handle is not None
    await engine.fail(handle, "no", FailureClass.PERMANENT)


def _read(data: bytes) -> Replayed:
    return Replayed(PublicState(data.decode()))


async def test_a_call_is_stored_with_its_account_and_its_result(engine: Engine, clock: ManualClock) -> None:
    identity = (await engine.create_execution()).execution_id
    for wrong in (identity, identity[:-1] + ("0" if identity[-1] != "0" else "1")):
        with pytest.raises((State, NotFound)):
            await engine.noting(_note()).replay_execution(execution_id=wrong)
    assert (await engine.list_audit()).entries == ()
    assert await engine.find_answer("o", "k") is None, "a refused call leaves nothing"

    await _fail(engine)
    replayed = await engine.noting(_note()).replay_execution(execution_id=identity)
    assert [each.subject for each in (await engine.list_audit()).entries] == ['{"state":"waiting"}']
    await _fail(engine)
    for within in (engine, engine.limited_to(["default"])):
        assert await within.noting(_note()).replay_execution(execution_id=identity) == replayed
    assert await engine.read_execution_state(identity) == "failed", "it was not done again"
    assert len((await engine.list_audit()).entries) == 1

    with pytest.raises(Validation):
        await engine.noting(_note("other")).replay_execution(execution_id=identity)
    # The answer that is made of the result takes its place; then it is the one to be given again.
    await engine.keep_answer(owner="o", idempotency_key="k", kept_ms=10, **KEPT)
    assert (await engine.find_answer("o", "k")).body == KEPT["body"]  # type: ignore[union-attr]
    with pytest.raises(Contention):
        await engine.noting(_note()).replay_execution(execution_id=identity)
    clock.advance(10)
    await engine.noting(_note()).replay_execution(execution_id=identity)
    assert await engine.read_execution_state(identity) == "waiting", "a day later it is another call"


async def test_old_acts_are_deleted(engine: Engine, clock: ManualClock) -> None:
    for number in range(3):
        await engine.record_act(who="ann", act=f"act {number}", subject={"id": "x"}, status=200)
        clock.advance(1)
    clock.advance(AUDIT_KEPT_MS - 1)
    await engine.run_timer("retention_trimmer")
    assert [each.act for each in (await engine.list_audit()).entries] == ["act 2"]
