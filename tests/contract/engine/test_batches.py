"""Calls that share a commit do not share their fate: each caller gets its own answer, and only its own trouble."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from flowfabric import Bug, Created, EngineError, Frame, Handle, Transport, TransportKind, Unavailable
from flowfabric.core.executions.create import CreateExecution, CreateExecutions
from flowfabric.core.rules import RULES
from flowfabric.engine import Engine
from flowfabric.model.ids import ExecutionId
from flowfabric.stores.questions import TrimHistory
from tests.contract.probe import claimed, create, id_of, policy


async def appended(engine: Engine, handle: Handle) -> dict[str, str]:
    """Payloads of a stream by frame id."""
    page = await engine.read_stream(id_of(handle), count_limit=10_000)
    return {frame.id: frame.fields["payload"] for frame in page.frames}


def record_batches(engine: Engine) -> list[int]:
    """The sizes of all batches from now on."""
    sizes: list[int] = []
    run = engine._batcher._run

    async def recording(commands: list[Any]) -> Any:
        sizes.append(len(commands))
        return await run(commands)

    engine._batcher._run = recording
    return sizes


async def test_a_full_queue_pushes_back_and_mixes_nothing_up(open_engine: Callable[..., Any]) -> None:
    engine = await open_engine(max_queue=4, max_batch=3)
    handle = await claimed(engine)
    deepest, sizes = 0, record_batches(engine)

    async def append(number: int) -> str:
        nonlocal deepest
        outcome = await engine.append_frame(handle, Frame(b"%d" % number))
        deepest = max(deepest, len(engine._batcher._queue))
        return outcome.stream_id

    ids = await asyncio.gather(*(append(number) for number in range(150)))
    assert deepest <= 4
    assert max(sizes) <= 3
    assert await appended(engine, handle) == {each: str(number) for number, each in enumerate(ids)}


async def test_callers_who_give_up_while_waiting_for_room_leave_it_to_others(open_engine: Callable[..., Any]) -> None:
    engine = await open_engine(max_queue=2, max_batch=2)
    handle = await claimed(engine)
    calls = [asyncio.create_task(engine.append_frame(handle, Frame(b"%d" % number))) for number in range(60)]
    await asyncio.sleep(0)
    for call in calls[1::3]:
        call.cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert Counter(map(type, answers))[asyncio.CancelledError] == 20
    kept = {answer.stream_id: str(number) for number, answer in enumerate(answers) if number % 3 != 1}
    assert kept.items() <= (await appended(engine, handle)).items()


async def test_a_read_that_is_cut_off_by_closing_says_so(
    open_engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    execution_id = ExecutionId.solo("default", (await open_engine()).partitions)

    async def cut_off(*_: Any) -> Any:
        await engine.close()
        raise Transport("store", TransportKind.TRANSPORT, "the pool is closing")

    for door in ("read", "query"):
        engine = await open_engine()
        monkeypatch.setattr(engine.store, door, cut_off)
        with pytest.raises(Unavailable, match="engine is closed"):
            await (engine.read_execution_state(execution_id) if door == "read" else engine.list_lanes())


async def test_closing_answers_everybody_who_waits_for_room(open_engine: Callable[..., Any]) -> None:
    engine = await open_engine(max_queue=2, max_batch=1)
    calls = [asyncio.create_task(engine.create_execution()) for _ in range(20)]
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await engine.close()
        answers = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(answer) for answer in answers} <= {Created, Unavailable}
    assert isinstance(answers[0], Created)


def poisonous(command: CreateExecution, view: Any, context: Any) -> Any:
    """The rule of create, with a fault that one kind of execution brings out."""
    if command.execution_kind == "poison":
        raise ZeroDivisionError("this rule has a fault")
    return ORIGINAL(command, view, context)


def poisonous_late(command: CreateExecutions, view: Any, context: Any) -> Any:
    """A rule of several steps that fails when some of them are folded already."""
    decision = ORIGINAL_BULK(command, view, context)
    if any(item.execution_kind == "poison" for item in command.items):
        raise ZeroDivisionError("this rule has a fault at its end")
    return decision


ORIGINAL = RULES[CreateExecution]
ORIGINAL_BULK = RULES[CreateExecutions]


async def test_a_poison_command_fails_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, CreateExecution, poisonous)
    sizes = record_batches(engine)
    kinds = ["poison" if number == 100 else "op" for number in range(256)]
    answers = await asyncio.gather(
        *(engine.create_execution(execution_kind=kind, lane_id="lane") for kind in kinds), return_exceptions=True
    )
    assert max(sizes) > 100
    bug = answers.pop(100)
    assert isinstance(bug, Bug)
    assert "ZeroDivisionError" in str(bug)
    assert {type(answer) for answer in answers} == {Created}
    found = await engine.claim_many("lane", (), policy(), limit=1_000)
    assert {id_of(handle) for handle in found} == {answer.execution_id for answer in answers}


async def test_a_poison_command_that_has_folded_fails_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, CreateExecutions, poisonous_late)
    kinds = ["op"] * 10 + ["poison"] + ["op"] * 10
    calls = [engine.create_executions([{"execution_kind": kind, "lane_id": "lane"}] * 2) for kind in kinds]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    bug = answers.pop(10)
    assert isinstance(bug, Bug)
    assert "ZeroDivisionError" in str(bug)
    made = {created.execution_id for answer in answers for created in answer}
    found = await engine.claim_many("lane", (), policy(), limit=1_000)
    assert {id_of(handle) for handle in found} == made
    assert len(made) == 40


async def test_a_caller_that_leaves_during_the_commit_disturbs_nobody(engine: Engine) -> None:
    handle = await claimed(engine)
    calls: list[asyncio.Task[Any]] = []
    run = engine._batcher._run

    async def leaving(commands: list[Any]) -> Any:
        for call in calls[::2]:
            call.cancel()
        # Let the cancellations arrive while the batch is under way.
        await asyncio.sleep(0)
        return await run(commands)

    engine._batcher._run = leaving
    calls += [asyncio.create_task(engine.append_frame(handle, Frame(b"%d" % number))) for number in range(20)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers[::2]] == [asyncio.CancelledError] * 10
    frames = await appended(engine, handle)
    assert {frames[answer.stream_id] for answer in answers[1::2]} == {str(number) for number in range(1, 20, 2)}
    # What was under way is done all the same, once.
    assert len(frames) == len(set(frames.values()))
    await engine.complete(handle)


async def test_nothing_is_done_twice_when_nobody_knows_whether_it_was_committed(engine: Engine) -> None:
    handle = await claimed(engine)
    run = engine._batcher._run
    lost = Transport(engine.backend_label, TransportKind.TRANSPORT, "connection lost during commit")

    async def losing_the_answer(commands: list[Any]) -> Any:
        await run(commands)
        raise lost

    engine._batcher._run = losing_the_answer
    answers = await asyncio.gather(
        *(engine.append_frame(handle, Frame(b"%d" % number)) for number in range(20)), return_exceptions=True
    )
    assert answers == [lost] * 20
    engine._batcher._run = run
    assert sorted((await appended(engine, handle)).values()) == sorted(map(str, range(20)))
    await engine.complete(handle, b"once")


async def test_trimming_history_goes_on_beside_other_work(open_engine: Callable[..., Any]) -> None:
    engine = await open_engine(clock=None)

    async def work() -> None:
        for _ in range(25):
            await create(engine)

    async def trim() -> None:
        for _ in range(25):
            await engine._ask(TrimHistory(1, 1, 1, 100))

    try:
        await asyncio.gather(work(), trim(), work(), trim())
    except EngineError as error:
        pytest.fail(f"they got in each other's way: {error}")
