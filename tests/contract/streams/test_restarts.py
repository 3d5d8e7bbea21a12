"""Output that starts over: when a restart frame is written, what it says, and when none is."""

from __future__ import annotations

from typing import Any

import pytest

from flowfabric import (
    BestEffortLive,
    DurableSummary,
    FailureClass,
    Frame,
    Handle,
    Opening,
    Restart,
    RestartReason,
    Validation,
    ValidationKind,
)
from flowfabric.core.streams.heads import MOST_PARTS
from flowfabric.core.streams.restarts import MOST_ATTEMPTS
from flowfabric.engine import Engine
from flowfabric.model.records.streams import StreamHead
from flowfabric.model.streams.restarts import is_restart, read_restart
from tests.contract.probe import ManualClock, Probe, claimed, id_of, payload_of, policy, refused, unchanged
from tests.contract.seeding import overwrite

LANE = "lane-of-one"
RETRIES = {"retry_policy": {"max_retries": 100, "backoff": {"Fixed": {"delay_ms": 0}}}}


def opening(text: str, step: str | None = None, how: Opening = Opening.START) -> Frame:
    return Frame(text.encode(), step=step, opens=how)


def going_on(text: str, step: str | None = None) -> Frame:
    return Frame(text.encode(), step=step)


async def shown(engine: Engine, handle: Handle, attempt_index: int = 0) -> list[Any]:
    """The stream of an attempt: texts, and restarts as what they say."""
    page = await engine.read_stream(id_of(handle), attempt_index, count_limit=10_000)
    return [
        read_restart(each.fields["payload"]) if is_restart(each.fields) else each.fields["payload"]
        for each in page.frames
    ]


async def taken_over(engine: Engine, clock: ManualClock, ttl_ms: int = 30_000) -> Handle:
    """Another worker takes over what a lost one held."""
    clock.advance(ttl_ms + 1)
    await engine.run_timer("lease_expiry")
    handle = await engine.claim(LANE, (), policy("w2-i1"))
    assert handle is not None
    return handle


async def retried(engine: Engine, clock: ManualClock, handle: Handle) -> Handle:
    """The attempt fails, and the next one begins."""
    await engine.fail(handle, "no", FailureClass.TRANSIENT)
    clock.advance(60_000)
    await engine.run_timer("delayed_promoter")
    following = await engine.claim(LANE, (), policy("w2-i1"))
    assert following is not None
    return following


async def test_a_first_holder_starts_nothing_over(engine: Engine) -> None:
    handle = await claimed(engine)
    await engine.append_frames(handle, [opening("a"), going_on("b")], 1)
    await engine.append_frame(handle, going_on("c"), 2)
    assert await shown(engine, handle) == ["a", "b", "c"]
    frames = (await engine.read_stream(id_of(handle))).frames
    assert [set(each.fields) for each in frames] == [{"encoding", "frame_type", "payload", "source"}] * 3


async def test_a_successor_of_a_lost_worker_says_that_it_starts_over(engine: Engine, clock: ManualClock) -> None:
    handle = await claimed(engine)
    await engine.append_frames(handle, [opening("a"), going_on("b")], 1)
    successor = await taken_over(engine, clock)
    assert payload_of(successor).attempt_index == 0
    (outcome, _) = await engine.append_frames(successor, [opening("a"), going_on("b")], 1)
    assert outcome.frame_count == 4, "the restart is a frame like any other"
    await engine.append_frame(successor, going_on("c"), 2)
    lost = Restart(1, None, RestartReason.WORKER_LOST)
    assert await shown(engine, successor) == ["a", "b", lost, "a", "b", "c"]
    page = await engine.read_stream(id_of(handle))
    assert page.frames[3].id == outcome.stream_id
    assert page.frames[2].fields["source"] == "engine"
    assert page.frames[2].mode == "durable"


async def test_a_retry_says_that_it_starts_over(engine: Engine, clock: ManualClock) -> None:
    """In the stream of its own attempt; also if an attempt in between was silent."""
    first = await claimed(engine, policy=RETRIES)
    await engine.append_frame(first, opening("a"), 1)
    second = await retried(engine, clock, first)
    third = await retried(engine, clock, second)
    assert payload_of(third).attempt_index == 2
    await engine.append_frame(third, opening("a"), 1)
    assert await shown(engine, first, 0) == ["a"]
    assert await shown(engine, first, 1) == []
    assert await shown(engine, first, 2) == [Restart(3, None, RestartReason.RETRY), "a"]


async def test_nothing_is_written_for_those_who_emitted_nothing(engine: Engine, clock: ManualClock) -> None:
    """Frames that open no output, such as errors, are not output."""
    first = await claimed(engine, policy=RETRIES)
    await engine.append_frame(first, Frame(b"{}", frame_type="error"), 1)
    second = await retried(engine, clock, first)
    await engine.append_frame(second, Frame(b"{}", frame_type="error"), 1)
    third = await taken_over(engine, clock)
    assert payload_of(third).attempt_index == 1
    await engine.append_frame(third, opening("a"), 1)
    assert await shown(engine, third, 1) == ["{}", "a"]


async def test_a_lost_answer_does_not_double_it(engine: Engine, clock: ManualClock, probe: Probe) -> None:
    handle = await claimed(engine)
    await engine.append_frame(handle, opening("a"), 1)
    successor = await taken_over(engine, clock)
    frames = [opening("a"), going_on("b")]
    first = await engine.append_frames(successor, frames, 1)
    clock.advance(5)
    async with unchanged(probe):
        again = await engine.append_frames(successor, frames, 1)
    assert [each.stream_id for each in again] == [each.stream_id for each in first]
    assert await shown(engine, handle) == ["a", Restart(1, None, RestartReason.WORKER_LOST), "a", "b"]


async def test_a_lost_answer_to_the_first_append_of_one_frame(engine: Engine, clock: ManualClock, probe: Probe) -> None:
    handle = await claimed(engine)
    await engine.append_frame(handle, opening("a"), 1)
    successor = await taken_over(engine, clock)
    first = await engine.append_frame(successor, opening("a"), 1)
    async with unchanged(probe):
        assert await engine.append_frame(successor, opening("a"), 1) == first
    assert await shown(engine, handle) == ["a", Restart(1, None, RestartReason.WORKER_LOST), "a"]


async def test_each_holder_starts_over_by_itself(engine: Engine, clock: ManualClock) -> None:
    handle = await claimed(engine)
    await engine.append_frame(handle, opening("a"), 1)
    for _ in range(2):
        handle = await taken_over(engine, clock)
        await engine.append_frame(handle, opening("a"), 1)
    lost = Restart(1, None, RestartReason.WORKER_LOST)
    assert await shown(engine, handle) == ["a", lost, "a", lost, "a"]


async def test_a_holder_that_goes_on_starts_nothing_over(engine: Engine, clock: ManualClock) -> None:
    """What it adds is forgotten with the rest when a later one starts over."""
    handle = await claimed(engine)
    await engine.append_frame(handle, opening("a"), 1)
    successor = await taken_over(engine, clock)
    await engine.append_frame(successor, opening("b", how=Opening.CONTINUE), 1)
    third = await taken_over(engine, clock)
    await engine.append_frame(third, opening("c"), 1)
    assert await shown(engine, handle) == ["a", "b", Restart(1, None, RestartReason.WORKER_LOST), "c"]


async def test_output_that_went_on_from_nothing_counts(engine: Engine, clock: ManualClock) -> None:
    handle = await claimed(engine)
    await engine.append_frame(handle, opening("a", how=Opening.CONTINUE), 1)
    successor = await taken_over(engine, clock)
    await engine.append_frame(successor, opening("b"), 1)
    assert await shown(engine, handle) == ["a", Restart(1, None, RestartReason.WORKER_LOST), "b"]


async def test_a_step_starts_over_alone(engine: Engine, clock: ManualClock) -> None:
    handle = await claimed(engine)
    await engine.append_frame(handle, opening("plan", "outline"), 1)
    await engine.append_frame(handle, opening("dra", "draft"), 2)
    successor = await taken_over(engine, clock)
    await engine.append_frame(successor, opening("draft", "draft"), 1)
    await engine.append_frame(successor, opening("check", "check"), 2)
    lost = Restart(1, "draft", RestartReason.WORKER_LOST)
    assert await shown(engine, handle) == ["plan", "dra", lost, "draft", "check"], "what begins first is no restart"
    steps = [each.fields.get("step") for each in (await engine.read_stream(id_of(handle))).frames]
    assert steps == ["outline", "draft", "draft", "draft", "check"]


async def test_a_step_that_is_tried_again_under_the_same_lease(engine: Engine) -> None:
    handle = await claimed(engine)
    await engine.append_frame(handle, opening("a", "draft"), 1)
    await engine.append_frame(handle, opening("b", "other"), 2)
    await engine.append_frame(handle, opening("a", "draft"), 3)
    assert await shown(engine, handle) == ["a", "b", Restart(1, "draft", RestartReason.RETRY), "a"]


async def test_steps_of_earlier_attempts(engine: Engine, clock: ManualClock) -> None:
    first = await claimed(engine, policy=RETRIES)
    await engine.append_frame(first, opening("a", "one"), 1)
    second = await retried(engine, clock, first)
    await engine.append_frame(second, opening("b", "two"), 1)
    await engine.append_frame(second, opening("a", "one"), 2)
    assert await shown(engine, second, 1) == ["b", Restart(2, "one", RestartReason.RETRY), "a"]


async def test_why(engine: Engine, clock: ManualClock) -> None:
    handle = await claimed(engine)
    await engine.append_frame(handle, opening("a"), 1)
    await engine.give_back(handle, "the worker stops")
    second = await engine.claim(LANE, (), policy())
    assert second is not None
    await engine.append_frame(second, opening("a"), 1)
    await engine.delay(second, clock() + 10)
    clock.advance(20)
    await engine.run_timer("delayed_promoter")
    third = await engine.claim(LANE, (), policy())
    assert third is not None
    await engine.append_frame(third, opening("a"), 1)
    await engine.fail(third, "no", FailureClass.PERMANENT)
    await engine.replay_execution(execution_id=id_of(handle))
    fourth = await engine.claim(LANE, (), policy())
    assert fourth is not None
    await engine.append_frame(fourth, opening("a"), 1)
    assert payload_of(fourth).attempt_index == 0
    told = [each.reason for each in await shown(engine, handle) if isinstance(each, Restart)]
    assert told == [RestartReason.GIVEN_BACK, RestartReason.RESUMED, RestartReason.REPLAYED]


async def test_frames_that_are_kept_for_a_while_start_over_too(engine: Engine, clock: ManualClock) -> None:
    live = BestEffortLive(60_000)
    handle = await claimed(engine)
    await engine.append_frame(handle, opening("a").with_mode(live), 1)
    successor = await taken_over(engine, clock)
    await engine.append_frame(successor, opening("a").with_mode(live), 1)
    assert await shown(engine, handle) == ["a", Restart(1, None, RestartReason.WORKER_LOST), "a"]


async def test_many_steps(engine: Engine, clock: ManualClock) -> None:
    """The head remembers some of them. What it may have forgotten counts as emitted, under another lease."""
    handle = await claimed(engine)
    count = MOST_PARTS + 2
    for number in range(count):
        await engine.append_frame(handle, opening("x", f"step[{number}]"), number + 1)
    assert await shown(engine, handle) == ["x"] * count
    successor = await taken_over(engine, clock)
    for number, step in enumerate(("step[0]", f"step[{count - 1}]", "new")):
        await engine.append_frame(successor, opening("y", step), number + 1)
    found = (await shown(engine, handle))[count:]
    assert [each.step for each in found if isinstance(each, Restart)] == ["step[0]", f"step[{count - 1}]", "new"]


async def test_many_attempts(engine: Engine, clock: ManualClock) -> None:
    """Further back than one looks, something may have been emitted."""
    handle = await claimed(engine, policy=RETRIES)
    await engine.append_frame(handle, opening("a"), 1)
    for _ in range(MOST_ATTEMPTS + 1):
        handle = await retried(engine, clock, handle)
    index = payload_of(handle).attempt_index
    await engine.append_frame(handle, opening("a"), 1)
    assert await shown(engine, handle, index) == [Restart(index + 1, None, RestartReason.RETRY), "a"]


async def test_a_head_that_does_not_tell_what_has_emitted(engine: Engine, clock: ManualClock) -> None:
    handle = await claimed(engine)
    await engine.append_frame(handle, going_on("a"), 1)
    payload = payload_of(handle)
    key = (payload.execution_id, 0)
    old = f"{payload.lease_epoch}.1.{clock()}.0.1.{payload.lease_id}"
    await overwrite(engine, StreamHead, key, last_numbered=old)
    successor = await taken_over(engine, clock)
    await engine.append_frame(successor, opening("a"), 1)
    assert await shown(engine, handle) == ["a", Restart(1, None, RestartReason.WORKER_LOST), "a"]


async def test_a_frame_that_calls_itself_a_restart_is_none(engine: Engine) -> None:
    handle = await claimed(engine)
    await engine.append_frame(handle, Frame(b"{}", frame_type="restart"))
    (frame,) = (await engine.read_stream(id_of(handle))).frames
    assert frame.fields["frame_type"] == "restart"
    assert not is_restart(frame.fields)


async def test_what_may_open_output(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    bad: list[tuple[list[Any], Any, str]] = [
        ([opening("a")], None, "needs a number"),
        ([going_on("a"), opening("b")], 1, "only the first frame"),
        ([Frame(b"a", opens="middle")], 1, "opens: 'middle' is not one of start, continue"),  # type: ignore[arg-type]
        ([Frame(b"a", content="xml")], 1, "content: 'xml' is not one of json, bytes"),  # type: ignore[arg-type]
        ([Frame(b"a", step=5)], 1, "step"),  # type: ignore[arg-type]
    ]
    for frames, number, detail in bad:
        async with refused(probe, Validation, ValidationKind.INVALID_INPUT) as caught:
            await engine.append_frames(handle, frames, number)
        assert detail in str(caught.value)
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT):
        await engine.append_frame(handle, opening("{}").with_mode(DurableSummary()), 1)


async def test_a_refused_append_starts_nothing_over(engine: Engine, clock: ManualClock, probe: Probe) -> None:
    handle = await claimed(engine)
    await engine.append_frame(handle, opening("a"), 1)
    successor = await taken_over(engine, clock)
    async with unchanged(probe):
        with pytest.raises(Validation):
            await engine.append_frames(successor, [opening("a"), Frame(b"x" * 65_537)], 1)
