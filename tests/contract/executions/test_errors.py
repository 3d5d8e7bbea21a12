"""The errors that attempts failed with, on every store."""

from __future__ import annotations

import msgspec
import pytest

from flowfabric import ClaimPolicy, Frame, NotFound
from flowfabric.engine import Engine
from flowfabric.model.limits import MAX_ERRORS_SHOWN
from tests.contract.probe import ManualClock

WORKER = ClaimPolicy("w", "w-1")


def _tries(most: int) -> dict[str, object]:
    return {"retry_policy": {"max_retries": most, "backoff": {"type": "fixed", "delay_ms": 1}}}


def _told(message: str, **more: str) -> Frame:
    document = {"type": "ValueError", "message": message, "category": "error", "traceback": f"Trace of {message}"}
    return Frame(msgspec.json.encode(document | more), frame_type="error")


async def _fail(engine: Engine, clock: ManualClock, *frames: Frame) -> None:
    clock.now_ms += 10
    await engine.run_due()
    [handle] = await engine.claim_many("x", policy=WORKER)
    for frame in frames:
        await engine.append_frame(handle, frame)
    await engine.fail(handle, "ValueError: for the row")


async def test_each_failed_attempt_keeps_its_error(engine: Engine, clock: ManualClock) -> None:
    made = await engine.create_execution(lane_id="x", policy=_tries(1))
    assert (await engine.read_errors(made.execution_id)).errors == ()
    await _fail(engine, clock, *(Frame(b"out") for _ in range(20)), _told("first"), Frame(b"late"))
    await _fail(engine, clock, _told("earlier"), _told("second", category="permanent"))
    first, second = (await engine.read_errors(made.execution_id)).errors
    assert (first.attempt_index, first.type, first.message) == (0, "ValueError", "first")
    assert (second.attempt_index, second.message, second.category) == (1, "second", "permanent")
    assert second.traceback == "Trace of second"
    assert first.at < second.at


async def test_what_is_no_error_of_a_worker_is_left_out(engine: Engine, clock: ManualClock) -> None:
    made = await engine.create_execution(lane_id="x", policy=_tries(9))
    odd = (b"not json", b"[]", b'{"type": 7}', b"\xff\xfe", b'{"message": "no type"}')
    for each in odd:
        await _fail(engine, clock, Frame(each, frame_type="error"))
    await _fail(engine, clock)
    await _fail(engine, clock, _told("at last"))
    assert [each.attempt_index for each in (await engine.read_errors(made.execution_id)).errors] == [len(odd) + 1]
    done = await engine.create_execution(lane_id="y")
    [handle] = await engine.claim_many("y", policy=WORKER)
    await engine.append_frame(handle, _told("only said so"))
    await engine.complete(handle, None)
    assert (await engine.read_errors(done.execution_id)).errors == ()
    with pytest.raises(NotFound):
        await engine.read_errors("{fp:1}:00000000-0000-4000-8000-000000000000")


async def test_many_attempts_show_the_newest(engine: Engine, clock: ManualClock) -> None:
    made = await engine.create_execution(lane_id="x", policy=_tries(MAX_ERRORS_SHOWN + 2))
    for number in range(MAX_ERRORS_SHOWN + 2):
        await _fail(engine, clock, _told(str(number)))
    found = (await engine.read_errors(made.execution_id)).errors
    assert [each.message for each in found] == [str(number) for number in range(2, MAX_ERRORS_SHOWN + 2)]
