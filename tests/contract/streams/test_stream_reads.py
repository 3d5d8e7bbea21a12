"""Reading a stream: pages, tails that wait, who sees what, and how readers learn that it is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from flowfabric import (
    At,
    BestEffortLive,
    DurableSummary,
    End,
    ExecutionId,
    FailureClass,
    Frame,
    Granted,
    Handle,
    ResourceExhausted,
    Start,
    StreamCursor,
    StreamFrames,
    StreamVisibility,
    Validation,
    ValidationKind,
)
from flowfabric.engine import Engine
from flowfabric.engine.reads import streams as stream_engine
from tests.contract.probe import START_MS, ManualClock, Probe, claimed, id_of, policy, refused, shared_stores_only
from tests.contract.seeding import alter_attempt

NOBODY = "{fp:0}:00000000-0000-4000-8000-000000000000"
OTHER_ID = "00000000-0000-4000-8000-000000000000"


async def _stream(engine: Engine, clock: ManualClock, count: int = 6) -> Handle:
    """A stream of two frames per millisecond."""
    handle = await claimed(engine)
    for number in range(count):
        await engine.append_frame(handle, Frame(b"%d" % number))
        clock.advance(number % 2)
    return handle


def _texts(page: StreamFrames) -> str:
    return "".join(frame.fields["payload"] for frame in page.frames)


# -- read_stream -----------------------------------------------------------------------------------------------------


RANGES: list[tuple[Any, Any, str]] = [
    ("start", "end", "012345"),
    (Start(), End(), "012345"),
    (StreamCursor.from_beginning(), "end", "012345"),
    (f"{START_MS}-1", "end", "12345"),
    (f"{START_MS}-2", "end", "2345"),
    (f"{START_MS + 1}", "end", "2345"),
    ("start", f"{START_MS + 1}", "012"),
    ("start", f"{START_MS + 1}-1", "0123"),
    (f"{START_MS + 1}-0", f"{START_MS + 1}-0", "2"),
    (At(f"{START_MS + 1}-1"), At(f"{START_MS + 2}-0"), "34"),
    ("end", "end", ""),
    ("start", "start", ""),
    ("end", "start", ""),
    (f"{START_MS + 3}", "end", ""),
    ("0", "9" * 40, "012345"),
    ("9" * 40, "9" * 40 + "-" + "9" * 40, ""),
]


async def test_both_ends_of_a_range_belong_to_it(engine: Engine, clock: ManualClock) -> None:
    handle = await _stream(engine, clock)
    for low, high, found in RANGES:
        page = await engine.read_stream(id_of(handle), 0, low, high)
        assert (low, high, _texts(page)) == (low, high, found)


async def test_a_page_is_as_long_as_asked(engine: Engine, clock: ManualClock) -> None:
    handle = await _stream(engine, clock)
    assert _texts(await engine.read_stream(id_of(handle), count_limit=1)) == "0"
    assert _texts(await engine.read_stream(id_of(handle), 0, f"{START_MS}-1", "end", 3)) == "123"
    assert _texts(await engine.read_stream(id_of(handle), count_limit=1_000_000)) == "012345"


async def test_what_is_not_there_is_empty_and_open(engine: Engine, clock: ManualClock) -> None:
    handle = await _stream(engine, clock)
    empty = StreamFrames((), None, None)
    assert await engine.read_stream(id_of(handle), 1) == empty
    assert await engine.read_stream(NOBODY) == empty
    assert await engine.read_stream(f"{{fp:65535}}:{OTHER_ID}", 2**31 - 1) == empty
    assert await engine.tail_stream(NOBODY) == empty
    assert await engine.read_summary(NOBODY) is None
    assert await engine.read_summary(f"{{fp:65535}}:{OTHER_ID}", 2**31 - 1) is None


BAD_CURSORS = {
    "": "Empty",
    "-": "BareMarkerRejected",
    "+": "BareMarkerRejected",
    "$": "Malformed",
    "Start": "Malformed",
    "1-": "Malformed",
    "-1": "Malformed",
    "1-2-3": "Malformed",
    " 1": "Malformed",
    "1\n": "Malformed",
    "1.5": "Malformed",
    "٣": "Malformed",
    "1\x00": "Malformed",
    "\ud800": "Malformed",
    "' OR 1=1 --": "Malformed",
}


async def test_what_is_no_cursor(engine: Engine) -> None:
    for cursor, problem in BAD_CURSORS.items():
        for name, call in (
            ("from_cursor", engine.read_stream(NOBODY, 0, cursor, "end")),
            ("to_cursor", engine.read_stream(NOBODY, 0, "start", cursor)),
            ("after", engine.tail_stream(NOBODY, 0, cursor)),
        ):
            with pytest.raises(Validation) as caught:
                await call
            assert caught.value.kind is ValidationKind.INVALID_INPUT
            assert caught.value.detail.startswith(f"{name}: {problem}: ")


async def test_a_tail_needs_a_place_to_start_from(engine: Engine, probe: Probe) -> None:
    for cursor in ("start", "end", Start(), End()):
        async with refused(probe, Validation, ValidationKind.INVALID_INPUT):
            await engine.tail_stream(NOBODY, 0, cursor)


BAD_NUMBERS: list[dict[str, Any]] = [
    {"count_limit": 0},
    {"count_limit": -1},
    {"count_limit": 2**70},
    {"count_limit": "5"},
    {"count_limit": True},
    {"attempt_index": -1},
    {"attempt_index": 2**40},
    {"attempt_index": None},
    {"execution_id": "nobody"},
]


async def test_numbers_and_options(engine: Engine) -> None:
    calls: list[tuple[Any, dict[str, Any]]] = [(engine.read_stream, bad) for bad in BAD_NUMBERS]
    options: list[dict[str, Any]] = [{"block_ms": -1}, {"block_ms": 30_001}, {"block_ms": "1"}, {"visibility": "some"}]
    calls += [(engine.tail_stream, bad) for bad in (*BAD_NUMBERS, *options, {"visibility": 5})]
    for read, bad in calls:
        with pytest.raises(Validation) as caught:
            await read(**{"execution_id": NOBODY, **bad})
        assert caught.value.kind is ValidationKind.INVALID_INPUT


# -- tail_stream -----------------------------------------------------------------------------------------------------


TAILS: list[tuple[Any, str]] = [
    ("0-0", "012345"),
    ("0", "012345"),
    (f"{START_MS}", "12345"),
    (f"{START_MS}-1", "2345"),
    (f"{START_MS}-{2**31 - 1}", "2345"),
    (f"{START_MS}-{2**63 - 1}", "2345"),
    (At(f"{START_MS + 2}-0"), "5"),
    (f"{START_MS + 2}-1", ""),
    (f"{2**63 - 1}-{2**63 - 1}", ""),
    ("9" * 40, ""),
]


async def test_a_tail_begins_behind_its_cursor(engine: Engine, clock: ManualClock) -> None:
    handle = await _stream(engine, clock)
    for after, found in TAILS:
        page = await engine.tail_stream(id_of(handle), 0, after)
        assert (after, _texts(page), page.closed_at) == (after, found, None)
        assert _texts(await engine.tail_stream(id_of(handle), 0, after, count_limit=2)) == found[:2]


async def test_visibility(engine: Engine) -> None:
    handle = await claimed(engine)
    for number, mode in enumerate((None, DurableSummary(), BestEffortLive(60_000), None, BestEffortLive(60_000))):
        frame = Frame(b"{}", correlation_id=str(number))
        await engine.append_frame(handle, frame if mode is None else frame.with_mode(mode))

    async def seen(visibility: Any, count: int = 100) -> str:
        page = await engine.tail_stream(id_of(handle), visibility=visibility, count_limit=count)
        return "".join(frame.fields["correlation_id"] for frame in page.frames)

    assert await seen(StreamVisibility.ALL) == "01234"
    assert await seen("all") == "01234"
    assert await seen(StreamVisibility.EXCLUDE_BEST_EFFORT) == "013"
    assert await seen("exclude_best_effort", 3) == "013"


class Looks:
    """Counts how often the tails of an engine have looked; after a look that finds nothing they sleep."""

    def __init__(self, engine: Engine) -> None:
        self._count = 0
        self._looked = asyncio.Event()
        page = engine._page

        async def looking(*arguments: Any) -> StreamFrames:
            found = await page(*arguments)
            self._count += 1
            self._looked.set()
            return found

        engine._page = looking  # type: ignore[method-assign]

    async def reach(self, count: int) -> None:
        async with asyncio.timeout(10):
            while self._count < count:
                self._looked.clear()
                await self._looked.wait()


#: For what has to be woken: without the safety poll, a wake-up that is lost is a test that fails.
only_wake_ups = pytest.mark.usefixtures("no_safety_poll")
#: Less than a tail waits, which looks once more in the end.
LONG_S = 20


@pytest.fixture
def no_safety_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_engine, "SAFETY_POLL_S", 3_600.0)


def _tail(engine: Engine, execution_id: ExecutionId, **options: Any) -> asyncio.Task[StreamFrames]:
    options = {"block_ms": 30_000, **options}
    return asyncio.create_task(engine.tail_stream(execution_id, **options))


@only_wake_ups
async def test_an_append_wakes_a_tail(engine: Engine) -> None:
    handle = await claimed(engine)
    looks = Looks(engine)
    tails = [_tail(engine, id_of(handle)) for _ in range(3)]
    await looks.reach(3)
    assert not any(tail.done() for tail in tails)
    await engine.append_frame(handle, Frame(b"!"))
    for tail in tails:
        page = await asyncio.wait_for(tail, LONG_S)
        assert (_texts(page), page.closed_at) == ("!", None)
    assert engine._streams._streams == {}


@only_wake_ups
async def test_a_tail_sleeps_through_what_it_does_not_want(engine: Engine) -> None:
    handle = await claimed(engine)
    other = await claimed(engine, lane_id="another")
    looks = Looks(engine)
    tail = _tail(engine, id_of(handle), visibility="exclude_best_effort")
    await looks.reach(1)
    await engine.append_frame(handle, Frame(b"live", mode=BestEffortLive(1_000)))
    await engine.append_frame(other, Frame(b"elsewhere"))
    await engine.renew(handle)
    await looks.reach(2)
    assert not tail.done()
    await engine.append_frame(handle, Frame(b"durable"))
    assert _texts(await asyncio.wait_for(tail, LONG_S)) == "durable"


async def test_a_tail_that_finds_something_does_not_wait(engine: Engine, clock: ManualClock) -> None:
    handle = await _stream(engine, clock)
    async with asyncio.timeout(5):
        assert _texts(await engine.tail_stream(id_of(handle), 0, f"{START_MS + 2}", block_ms=30_000)) == "5"


async def test_a_tail_ends_with_its_time(engine: Engine) -> None:
    handle = await claimed(engine)
    async with asyncio.timeout(5):
        assert await engine.tail_stream(id_of(handle), block_ms=30) == StreamFrames((), None, None)


ENDINGS: dict[str, tuple[Callable[[Engine, Handle], Any], str]] = {
    "complete": (lambda engine, handle: engine.complete(handle), "attempt_success"),
    "fail": (lambda engine, handle: engine.fail(handle, "no", FailureClass.PERMANENT), "attempt_failure"),
    "retry": (lambda engine, handle: engine.fail(handle, "no"), "attempt_failure"),
    "cancel": (lambda engine, handle: engine.cancel(handle), "attempt_cancelled"),
    "cancel_execution": (
        lambda engine, handle: engine.cancel_execution(execution_id=id_of(handle)),
        "attempt_cancelled",
    ),
}


@only_wake_ups
@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_close_wakes_a_tail(engine: Engine, clock: ManualClock, ending: str) -> None:
    handle = await claimed(engine)
    await engine.append_frame(handle, Frame(b"last"))
    looks = Looks(engine)
    tail = _tail(engine, id_of(handle), after=f"{START_MS}-0")
    await looks.reach(1)
    clock.advance(500)
    end, reason = ENDINGS[ending]
    await end(engine, handle)
    page = await asyncio.wait_for(tail, LONG_S)
    assert page == StreamFrames((), START_MS + 500, reason)
    assert page.is_closed()
    whole = await engine.read_stream(id_of(handle))
    assert (_texts(whole), whole.closed_at, whole.closed_reason) == ("last", START_MS + 500, reason)
    async with asyncio.timeout(5):
        assert await engine.tail_stream(id_of(handle), after=f"{START_MS}-0", block_ms=30_000) == page


@shared_stores_only
async def test_a_tail_hears_another_engine(engine: Engine, open_engine: Any) -> None:
    handle = await claimed(engine)
    other = await open_engine()
    looks = Looks(other)
    tail = _tail(other, id_of(handle))
    await looks.reach(1)
    await engine.append_frame(handle, Frame(b"from afar"))
    assert _texts(await asyncio.wait_for(tail, 5)) == "from afar"


async def test_tails_are_bounded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_engine, "MAX_STREAM_TAILS", 2)
    handle = await claimed(engine)
    looks = Looks(engine)
    tails = [_tail(engine, id_of(handle)) for _ in range(2)]
    await looks.reach(2)
    with pytest.raises(ResourceExhausted) as caught:
        await engine.tail_stream(id_of(handle), block_ms=1)
    assert (caught.value.pool, caught.value.maximum, caught.value.retryable) == ("stream_ops", 2, True)
    assert (await engine.tail_stream(id_of(handle))).frames == ()
    tails[0].cancel()
    await asyncio.gather(tails[0], return_exceptions=True)
    tail = _tail(engine, id_of(handle))
    await engine.complete(handle)
    assert (await asyncio.wait_for(tail, 5)).closed_reason == "attempt_success"
    await tails[1]


# -- closed markers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        ("success", "attempt_success"),
        ("failed", "attempt_failure"),
        ("failure", "attempt_failure"),
        ("retry", "attempt_failure"),
        ("cancelled", "attempt_cancelled"),
        ("interrupted_reclaimed", "reclaimed"),
        ("expired", "expired"),
        ("lease_expired_reclaimable", "lease_expired"),
        ("interrupted", "attempt_interrupted"),
        ("attempt_interrupted", "attempt_interrupted"),
        (None, "attempt_interrupted"),
    ],
)
async def test_the_reason_follows_from_the_outcome(engine: Engine, outcome: str | None, reason: str) -> None:
    handle = await claimed(engine)
    await alter_attempt(engine, id_of(handle), outcome=outcome, terminal_at_ms=START_MS + 9)
    assert await engine.read_stream(id_of(handle)) == StreamFrames((), START_MS + 9, reason)
    assert await engine.tail_stream(id_of(handle)) == StreamFrames((), START_MS + 9, reason)
    await alter_attempt(engine, id_of(handle), terminal_at_ms=None)
    assert await engine.read_stream(id_of(handle)) == StreamFrames((), None, None)


async def test_an_attempt_that_goes_on_later_stays_open(engine: Engine, clock: ManualClock) -> None:
    handles = [await claimed(engine, lane_id=lane) for lane in ("delay", "children", "revoke", "expire")]
    await engine.delay(handles[0], START_MS + 1)
    await engine.wait_children(handles[1])
    await engine.revoke_lease(execution_id=id_of(handles[2]))
    clock.advance(30_000)
    await engine.mark_lease_expired_if_due(None, id_of(handles[3]))
    for handle in handles:
        assert (await engine.read_stream(id_of(handle))).is_closed() is False


async def test_a_reclaimed_attempt_is_closed_and_the_next_one_open(engine: Engine, clock: ManualClock) -> None:
    handle = await claimed(engine)
    clock.advance(30_000)
    names = {"execution_id": id_of(handle), "worker_id": "w2", "worker_instance_id": "w2-i1", "lane_id": "lane-of-one"}
    assert isinstance(await engine.issue_reclaim_grant(**names), Granted)
    await engine.reclaim_execution(**names, lease_id=OTHER_ID, lease_ttl_ms=5_000, attempt_id=OTHER_ID)
    assert await engine.read_stream(id_of(handle), 0) == StreamFrames((), START_MS + 30_000, "reclaimed")
    assert await engine.read_stream(id_of(handle), 1) == StreamFrames((), None, None)


@pytest.mark.parametrize("retries", [0, 1])
async def test_an_attempt_out_of_time_is_closed_as_expired(engine: Engine, clock: ManualClock, retries: int) -> None:
    limits = {"timeout_policy": {"attempt_timeout_ms": 2_000}, "retry_policy": {"max_retries": retries}}
    handle = await claimed(engine, policy=limits)
    clock.advance(2_000)
    assert await engine.expire_execution(None, id_of(handle), "attempt_timeout") is True
    assert await engine.read_stream(id_of(handle), 0) == StreamFrames((), START_MS + 2_000, "expired")


async def test_a_replay_opens_the_stream_again(engine: Engine) -> None:
    handle = await claimed(engine, lane_id="replayed")
    await engine.complete(handle)
    await engine.replay_execution(execution_id=id_of(handle))
    assert (await engine.read_stream(id_of(handle))).is_closed() is False
    assert await engine.claim("replayed", (), policy()) is not None
