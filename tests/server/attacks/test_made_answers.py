"""What calls make is bounded before they are begun: whoever asks for too much at once is told what was not done."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from flowfabric import ClaimPolicy
from flowfabric.engine import Engine
from flowfabric.engine.wire.error_codec import error_from_wire
from flowfabric.model.errors import ErrorClass, ResourceExhausted
from flowfabric.model.handles import Handle
from flowfabric.model.limits import MAX_PAYLOAD_BYTES
from flowfabric.model.operations.executions import Created
from flowfabric.model.operations.workflows import NewStep
from flowfabric.model.streams.frames import Frame
from flowfabric.sdk.remote import calls as remote_calls
from flowfabric.sdk.remote.engine import RemoteEngine
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.app import Server
from flowfabric.server.http.limits import MADE_BYTES, AnswerRoom, Made
from flowfabric.server.http.pieces import MOST_STEPS, PIECE_BYTES, STEP_BYTES, Loads
from flowfabric.server.remote_calls import ENDS
from tests.contract.probe import id_of
from tests.server.attacks.world.asking import Asking, eventually
from tests.server.conftest import client_of
from tests.server.listening import listening
from tests.server.making import at, claimed

MIB = 1_048_576
LARGE = 8


async def envelope_of(server: Server, handle: Handle) -> str:
    await server.performer.envelopes.ready()
    return server.performer.envelopes.seal(handle, None)


async def remembering(engine: Engine, values: list[bytes]) -> Handle:
    """Work in hand that remembers these values."""
    await engine.create_execution()
    handle = await claimed(engine)
    for number, value in enumerate(values):
        await engine.advance(handle, steps=[NewStep(f"step {number}", value)], known_steps=number)
    return handle


def calling(*calls: tuple[str, dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"calls": [{"op": name, "arguments": each} for name, each in calls], **more}


async def answers_of(server: Server, body: dict[str, Any]) -> tuple[list[dict[str, Any]], int]:
    async with Asking(server, "POST", "/v1/remote/calls", None, body) as asking:
        await asking.end()
        assert asking.status == 200, asking.text
        text = asking.text
        return json.loads(text)["answers"], len(text)


# -- acting calls ------------------------------------------------------------------------------------------------------


async def test_calls_that_would_make_too_much_are_not_begun(engine: Engine) -> None:
    """A few kilobytes ask for hundreds of megabytes that are remembered."""
    server = create_app(engine)
    handle = await remembering(engine, [b"x" * MAX_PAYLOAD_BYTES] * LARGE)
    envelope = await envelope_of(server, handle)
    known = [{"name": f"step {number}"} for number in range(LARGE)]
    calls = [
        ("advance", {"handle": envelope, "steps": [*known[1:], {"name": f"new {number}"}], "known_steps": LARGE})
        for number in range(40)
    ]
    answers, size = await answers_of(server, calling(*calls))
    assert size < MADE_BYTES + MOST_STEPS * 1.5 * MIB
    refused = [each["error"] for each in answers if "error" in each]
    assert {each["pool"] for each in refused} == {"answers"}
    error = error_from_wire(refused[0])
    assert isinstance(error, ResourceExhausted)
    assert error.error_class is ErrorClass.RETRYABLE
    remembered = {each.name for each in await engine.list_steps(id_of(handle))}
    for number, answer in enumerate(answers):
        assert (f"new {number}" in remembered) is ("ok" in answer), "what is said is what was done"
    assert 0 < sum("ok" in each for each in answers) < len(answers)
    assert server.answers.held == 0


async def test_one_call_that_names_too_much_is_not_begun(engine: Engine) -> None:
    server = create_app(engine)
    handle = await remembering(engine, [b"x" * MAX_PAYLOAD_BYTES] * 17)
    steps = [{"name": f"step {number}"} for number in range(17)]
    envelope = await envelope_of(server, handle)
    [answer], _ = await answers_of(server, calling(("advance", {"handle": envelope, "steps": steps})))
    assert answer["error"]["status"] == 413
    fewer, _ = await answers_of(server, calling(("advance", {"handle": envelope, "steps": steps[:12]})))
    assert len(fewer[0]["ok"]["steps"]) == 12


async def test_whoever_repeats_what_it_brought_gets_the_same_answer(engine: Engine) -> None:
    """As after a lost answer: what a request can bring, its answer can hold."""
    server = create_app(engine)
    handle = await remembering(engine, [])
    steps = [{"name": f"step {number}", "value": "A" * 1_000_000} for number in range(15)]
    body = calling(("advance", {"handle": await envelope_of(server, handle), "steps": steps}))
    assert len(json.dumps(body)) > 15 * 1_000_000
    first, _ = await answers_of(server, body)
    assert "ok" in first[0]
    assert (await answers_of(server, body))[0] == first


class Reader:
    """Somebody for whom something was made, and who does not read it."""

    def __init__(self, room: AnswerRoom, size: int, caller: str | None = None) -> None:
        self.room = room
        self.made = Made(room, caller)
        self.made.take(size)

    def cut(self) -> None:
        self.made.close()
        self.room.leave(self)


def test_answers_that_are_full_cut_off_those_who_do_not_read() -> None:
    room = AnswerRoom(1_000)
    readers = [Reader(room, 200) for _ in range(3)]
    for each in readers:
        room.wait(each, 100)
    assert room.held == 900
    last = Made(room)
    last.take(500)
    assert [each.made.held for each in readers] == [0, 0, 200]
    assert room.held == 800
    with pytest.raises(ResourceExhausted):
        Made(room).take(600)
    assert (room.held, len(room)) == (500, 0)
    last.correct(600)  # it was less than nothing
    last.close()
    last.give(5)
    assert room.held == 0


def test_one_call_may_make_more_than_a_request() -> None:
    room = AnswerRoom(1_000)
    alone = Made(room)
    alone.begin(10)
    alone.take(2 * MADE_BYTES)
    with pytest.raises(ResourceExhausted):
        alone.take(1)
    alone.give(2 * MADE_BYTES)
    with pytest.raises(ResourceExhausted):
        alone.take(1)  # what is sent was made all the same
    alone.close()
    assert room.held == 0


def test_no_caller_makes_more_than_half_and_waits() -> None:
    room = AnswerRoom(1_000)
    mine = [Reader(room, 250, "me") for _ in range(2)]
    with pytest.raises(ResourceExhausted):
        Made(room, "me").take(1)
    yours = Reader(room, 400, "you")
    for each in (*mine, yours):
        each.made.close()
    assert (room.held, room.shares) == (0, {})
    assert Reader(room, 900, "me").made.held == 900, "whoever asks for one thing at a time may have it"


async def test_steps_are_in_hand_a_few_at_a_time() -> None:
    loads = Loads(3)
    inside: list[int] = []
    go_on = asyncio.Event()

    async def hold(weight: int) -> None:
        async with loads.some(weight):
            inside.append(weight)
            await go_on.wait()

    tasks = [asyncio.create_task(hold(weight)) for weight in (2, 0, 2, 1, 9)]
    await eventually(lambda: len(inside) == 2)
    assert inside == [2, 0], "the one that fits waits behind the one that came before it"
    tasks[2].cancel()
    await eventually(lambda: inside == [2, 0, 1])
    go_on.set()
    await asyncio.wait(tasks)
    assert inside == [2, 0, 1, 9]
    async with loads.some(3):
        pass


async def test_callers_elsewhere_send_again_what_was_not_begun(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    # Few fit at a time, so that most of them are sent again many times.
    monkeypatch.setattr(remote_calls, "LONGEST_PAUSE_S", 0.05)
    config = ServerConfig(port=0, max_answer_bytes=20_000)
    async with listening(engine, config) as client, await RemoteEngine.open(str(client.base_url)) as remote:
        made = await asyncio.gather(*(remote.create_execution(lane_id="small") for _ in range(60)))
        assert {type(each) for each in made} == {Created}
        assert len({each.execution_id for each in made}) == 60


# -- tails -------------------------------------------------------------------------------------------------------------


async def test_tails_that_were_waited_for_are_read_when_their_turn_comes(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = create_app(engine)
    handle = await remembering(engine, [])
    await engine.append_frames(handle, [Frame(b"x" * 60_000)] * 20)
    stream = {"execution_id": str(id_of(handle)), "attempt_index": 0}
    tail = engine.tail_stream
    read: list[dict[str, Any]] = []

    async def seen(*args: Any, **options: Any) -> Any:
        read.append(options)
        return await tail(*args, **options)

    monkeypatch.setattr(engine, "tail_stream", seen)
    calls = [("read_stream", stream), *[("tail_stream", {**stream, "block_ms": 1_000})] * 50]
    async with Asking(server, "POST", "/v1/remote/calls", None, calling(*calls)) as asking:
        asking.takes.clear()
        await asking.has(lambda each: each.status is not None)
        assert len(read) == 50, "each is waited for"
        assert server.answers.held < PIECE_BYTES, "and nothing of them is held"
        asking.takes.set()
        await asking.end()
        answers = json.loads(asking.text)["answers"]
    assert [len(each["ok"]["frames"]) for each in answers] == [20, *[1] * 50]
    assert len(read) == 100


# -- steps and ends ----------------------------------------------------------------------------------------------------


class Looked:
    """How much is read at a time."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[int] = []
        self.ends: list[int] = []
        read_steps, read_ends = engine.read_steps, engine.read_ends

        async def steps(execution_id: Any, names: Any = None) -> Any:
            found = await read_steps(execution_id, names)
            self.steps.append(sum(len(each.value or b"") for each in found))
            return found

        async def ends(execution_ids: Any, **options: Any) -> Any:
            self.ends.append(len(execution_ids))
            return await read_ends(execution_ids, **options)

        monkeypatch.setattr(engine, "read_steps", steps)
        monkeypatch.setattr(engine, "read_ends", ends)


@pytest.mark.parametrize("limit", [1, 3, 1_000])
async def test_no_page_of_steps_reads_more_than_it_shows(
    engine: Engine, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [b"x" * 200_000, b"", b"y" * 200_000, b"z" * MIB, *[b"small"] * 10]
    handle = await remembering(engine, values)
    looked = Looked(engine, monkeypatch)
    async with client_of(create_app(engine)) as client:
        after, lines = 0, []
        while True:
            page = (await steps_page(client, handle, after, limit)).json()
            lines += page["steps"]
            if limit == 1:
                assert len(looked.steps) == len(lines), "one page, one step"
            if page["next_after"] is None:
                break
            after = page["next_after"]
    assert [each["size"] for each in lines] == [len(each) for each in values]
    assert max(looked.steps) <= max(STEP_BYTES, MIB)
    assert sum(looked.steps) == sum(map(len, values)), "nothing is read twice"


async def steps_page(client: httpx.AsyncClient, handle: Handle, after: int, limit: int) -> httpx.Response:
    answer = await client.get(at(str(id_of(handle)), "steps"), params={"after": after, "limit": limit})
    assert answer.status_code == 200, answer.text
    return answer


async def test_whoever_remembers_nothing_has_an_empty_page(engine: Engine) -> None:
    handle = await remembering(engine, [])
    async with client_of(create_app(engine)) as client:
        assert (await steps_page(client, handle, 0, 10)).json() == {"steps": [], "next_after": None}


@pytest.mark.parametrize("names", [None, ["step 3", "step 0", "none"], []])
async def test_remote_steps_come_a_few_at_a_time(
    engine: Engine, names: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = create_app(engine)
    handle = await remembering(engine, [b"x" * 200_000] * 12)
    expected = [each.name for each in await engine.read_steps(id_of(handle), names)]
    looked = Looked(engine, monkeypatch)
    arguments = {"execution_id": str(id_of(handle))} | ({} if names is None else {"names": names})
    answers, _ = await answers_of(server, calling(("read_steps", arguments), ("ping", {})))
    assert [each["name"] for each in answers[0]["ok"]] == expected
    assert max(looked.steps, default=0) <= STEP_BYTES


@pytest.mark.parametrize("count", [0, 1, 3 * ENDS + 1])
async def test_ends_come_a_few_at_a_time(engine: Engine, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    server = create_app(engine)
    ids = [str((await engine.create_execution(lane_id="ends")).execution_id) for _ in range(count)]
    for _ in ids:
        await engine.complete(await claimed(engine, "ends"), b"x" * 20_000)
    missing = "{fp:0}:00000000-0000-4000-8000-000000000000"
    looked = Looked(engine, monkeypatch)
    answers, _ = await answers_of(server, calling(("read_ends", {"execution_ids": [missing, *ids]})))
    assert [each["execution_id"] for each in answers[0]["ok"]] == ids
    assert max(looked.ends) <= ENDS


async def test_a_small_room_still_lets_single_calls_through(engine: Engine) -> None:
    server = create_app(engine, ServerConfig(max_answer_bytes=14_000))
    body = calling(*[("create_execution", {"lane_id": "small"})] * 50)
    answers, _ = await answers_of(server, body)
    done = sum("ok" in each for each in answers)
    assert 0 < done < 50
    assert len(await engine.claim_many("small", policy=ClaimPolicy("w", "w-1"), limit=100)) == done
