"""Writing a stream: ids, fields, the three modes, the rolling summary, and how much is kept."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from flowfabric import (
    AppendFrameOutcome,
    BestEffortLive,
    Contention,
    DurableSummary,
    ExecutionId,
    Frame,
    FrameKind,
    PatchKind,
    SummaryDocument,
    Validation,
    ValidationKind,
)
from flowfabric.engine import Engine
from flowfabric.model.decisions import Get
from flowfabric.model.records.streams import FrameRow, StreamHead, StreamSummary
from tests.contract.probe import START_MS, ManualClock, Probe, claimed, id_of, policy, refused, unchanged
from tests.contract.seeding import seed

SUMMARY = DurableSummary()


async def _ids(engine: Engine, execution_id: ExecutionId, attempt_index: int = 0) -> list[str]:
    return [frame.id for frame in (await engine.read_stream(execution_id, attempt_index, count_limit=10_000)).frames]


# -- durable ---------------------------------------------------------------------------------------------------------


async def test_several_frames_in_one_step(engine: Engine, probe: Probe) -> None:
    """All of them in their order, or none."""
    handle = await claimed(engine)
    await engine.append_frame(handle, Frame(b"zero"))
    found = await engine.append_frames(handle, [Frame(b"one"), Frame(b"two", frame_type="t"), Frame(b"three")])
    assert found == [AppendFrameOutcome(f"{START_MS}-{n}", n + 1, None) for n in (1, 2, 3)]
    page = await engine.read_stream(id_of(handle), 0)
    assert [frame.fields["payload"] for frame in page.frames] == ["zero", "one", "two", "three"]
    assert await engine.append_frames(handle, []) == []
    async with unchanged(probe):
        with pytest.raises(Validation) as caught:
            await engine.append_frames(handle, [Frame(b"fine"), Frame(b"x" * 65_537)])
        assert caught.value.kind is ValidationKind.RETENTION_LIMIT_EXCEEDED
    await engine.complete(handle)
    async with unchanged(probe):
        with pytest.raises(Contention):
            await engine.append_frames(handle, [Frame(b"late"), Frame(b"later")])


async def test_ids_are_time_and_sequence(engine: Engine, clock: ManualClock) -> None:
    handle = await claimed(engine)
    answers = [await engine.append_frame(handle, Frame(b"a")), await engine.append_frame(handle, Frame(b"b"))]
    clock.advance(1)
    answers.append(await engine.append_frame(handle, Frame(b"c", seq=99)))
    assert answers == [
        AppendFrameOutcome(f"{START_MS}-0", 1, None),
        AppendFrameOutcome(f"{START_MS}-1", 2, None),
        AppendFrameOutcome(f"{START_MS + 1}-0", 3, None),
    ]
    assert await _ids(engine, id_of(handle)) == [answer.stream_id for answer in answers]


async def test_ids_never_go_back_when_the_clock_does(engine: Engine, clock: ManualClock) -> None:
    handle = await claimed(engine)
    await engine.append_frame(handle, Frame(b"a"))
    clock.advance(-4_000)
    assert (await engine.append_frame(handle, Frame(b"b"))).stream_id == f"{START_MS}-1"
    clock.advance(3_999)
    assert (await engine.append_frame(handle, Frame(b"c"))).stream_id == f"{START_MS}-2"
    clock.advance(2)
    assert (await engine.append_frame(handle, Frame(b"d"))).stream_id == f"{START_MS + 1}-0"


@pytest.mark.parametrize(
    ("frame", "fields"),
    [
        (Frame(b"hi"), {"frame_type": "event", "payload": "hi", "encoding": "utf8"}),
        (Frame(b"hi", FrameKind.STDOUT), {"frame_type": "stdout", "payload": "hi", "encoding": "utf8"}),
        (Frame(b"hi", FrameKind.STDERR), {"frame_type": "stderr", "payload": "hi", "encoding": "utf8"}),
        (Frame(b"hi", FrameKind.BLOB), {"frame_type": "blob", "payload": "hi", "encoding": "utf8"}),
        (
            Frame(b"hi", FrameKind.STDOUT, frame_type="llm.token", correlation_id="turn-7"),
            {"frame_type": "llm.token", "payload": "hi", "encoding": "utf8", "correlation_id": "turn-7"},
        ),
        (Frame(b""), {"frame_type": "event", "payload": "", "encoding": "utf8"}),
        (
            Frame(b"", correlation_id=""),
            {"frame_type": "event", "payload": "", "encoding": "utf8", "correlation_id": ""},
        ),
        (Frame("żółw 🐢".encode()), {"frame_type": "event", "payload": "żółw 🐢", "encoding": "utf8"}),
        (Frame(b'{"a": "\\u0000"}'), {"frame_type": "event", "payload": '{"a": "\\u0000"}', "encoding": "utf8"}),
        (Frame(b"\xff\xfe"), {"frame_type": "event", "payload": "//4=", "encoding": "base64"}),
        (Frame(b"\xed\xa0\x80"), {"frame_type": "event", "payload": "7aCA", "encoding": "base64"}),
        (Frame(b"a\x00b"), {"frame_type": "event", "payload": "YQBi", "encoding": "base64"}),
    ],
)
async def test_fields_of_a_frame(engine: Engine, probe: Probe, frame: Frame, fields: dict[str, str]) -> None:
    handle = await claimed(engine)
    await engine.append_frame(handle, frame)
    (found,) = (await engine.read_stream(id_of(handle))).frames
    assert found.fields == {**fields, "source": "worker"}
    assert list(found.fields) == sorted(found.fields)
    (row,) = await probe.select(FrameRow, partition=id_of(handle).partition, uuid=id_of(handle).uuid_text)
    assert (row.mode, row.created_at_ms) == ("durable", START_MS)


async def test_a_frame_has_at_most_65536_bytes(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    largest = b"\xff" * 65_536
    assert (await engine.append_frame(handle, Frame(largest))).frame_count == 1
    async with refused(probe, Validation, ValidationKind.RETENTION_LIMIT_EXCEEDED):
        await engine.append_frame(handle, Frame(largest + b"x"))
    async with refused(probe, Validation, ValidationKind.RETENTION_LIMIT_EXCEEDED):
        await engine.append_frame(handle, Frame(b'{"a":"' + b"x" * 65_536 + b'"}', mode=SUMMARY))
    (found,) = (await engine.read_stream(id_of(handle))).frames
    assert base64.b64decode(found.fields["payload"]) == largest


async def test_frames_are_no_events(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    for mode in (SUMMARY, BestEffortLive(1_000)):
        await engine.append_frame(handle, Frame(b"{}", mode=mode))
    assert await probe.lease_events(id_of(handle)) == ["acquired"]
    assert await probe.completions(id_of(handle)) == []


async def test_appends_at_the_same_time_are_put_in_a_row(engine: Engine) -> None:
    handle = await claimed(engine)
    answers = await asyncio.gather(*(engine.append_frame(handle, Frame(b"%d" % n)) for n in range(60)))
    assert sorted(answer.frame_count for answer in answers) == list(range(1, 61))
    assert await _ids(engine, id_of(handle)) == [f"{START_MS}-{seq}" for seq in range(60)]


async def test_each_attempt_has_a_stream_of_its_own(engine: Engine) -> None:
    first = await claimed(engine, lane_id="retried")
    await engine.append_frame(first, Frame(b"one"))
    await engine.fail(first, "boom")
    second = await engine.claim("retried", (), policy())
    assert second is not None
    assert await engine.append_frame(second, Frame(b"two")) == AppendFrameOutcome(f"{START_MS}-0", 1, None)
    assert [await _ids(engine, id_of(first), index) for index in (0, 1)] == [[f"{START_MS}-0"], [f"{START_MS}-0"]]


async def test_a_replay_goes_on_with_the_stream(engine: Engine) -> None:
    first = await claimed(engine, lane_id="replayed")
    await engine.append_frame(first, Frame(b'{"n": 1}', mode=SUMMARY))
    await engine.complete(first)
    await engine.replay_execution(execution_id=id_of(first))
    second = await engine.claim("replayed", (), policy())
    assert second is not None
    answer = await engine.append_frame(second, Frame(b'{"m": 2}', mode=SUMMARY))
    assert answer == AppendFrameOutcome(f"{START_MS}-1", 2, 2)


# -- summary ---------------------------------------------------------------------------------------------------------


async def test_versions_count_the_deltas(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    handle = await claimed(engine)
    assert await engine.read_summary(id_of(handle)) is None
    await engine.append_frame(handle, Frame(b"durable"))
    assert await engine.read_summary(id_of(handle)) is None
    clock.advance(10)
    assert (await engine.append_frame(handle, Frame(b'{"n":1}', mode=SUMMARY))).summary_version == 1
    clock.advance(10)
    answer = await engine.append_frame(handle, Frame(b'{"m":2}', mode=SUMMARY))
    assert answer == AppendFrameOutcome(f"{START_MS + 20}-0", 3, 2)
    found = await engine.read_summary(id_of(handle))
    assert found is not None
    assert json.loads(found.document_json) == {"n": 1, "m": 2}
    assert found == SummaryDocument(found.document_json, 2, PatchKind.JSON_MERGE_PATCH, START_MS + 20, START_MS + 10)
    rows = await probe.select(FrameRow, partition=id_of(handle).partition, uuid=id_of(handle).uuid_text)
    assert [row.mode for row in rows] == ["durable", "summary", "summary"]


DEEP_16 = json.loads('{"a":' * 16 + "1" + "}" * 16)
MERGES: list[tuple[str, list[Any], Any]] = [
    ("replaces", [{"a": 1}, {"a": 2}], {"a": 2}),
    ("null removes", [{"a": 1, "b": 2}, {"a": None}], {"b": 2}),
    ("null removes what is not there", [{"a": None}], {}),
    ("merges deeply", [{"a": {"b": 1, "c": 2}}, {"a": {"b": 3, "d": 4}}], {"a": {"b": 3, "c": 2, "d": 4}}),
    ("null removes deeply", [{"a": {"b": 1, "c": 2}}, {"a": {"b": None}}], {"a": {"c": 2}}),
    ("an object replaces what is none", [{"a": 5}, {"a": {"b": 1}}], {"a": {"b": 1}}),
    ("an object replaces an array", [{"a": [1]}, {"a": {"b": 1}}], {"a": {"b": 1}}),
    ("arrays are replaced whole", [{"a": [1, 2, 3]}, {"a": [4]}], {"a": [4]}),
    ("null in an array stays", [{"a": [1, None]}], {"a": [1, None]}),
    ("nulls in a new object are left out", [{"a": {"b": None, "c": 1}}], {"a": {"c": 1}}),
    ("the sentinel stores null", [{"a": "__ff_null__"}], {"a": None}),
    ("the sentinel inside", [{"a": {"b": "__ff_null__"}}], {"a": {"b": None}}),
    ("the sentinel in an array", [{"a": ["__ff_null__", {"b": "__ff_null__"}]}], {"a": [None, {"b": None}]}),
    ("a stored null is removed by null", [{"a": "__ff_null__"}, {"a": None}], {}),
    ("the sentinel as a key is a key", [{"__ff_null__": 1}], {"__ff_null__": 1}),
    ("text around the sentinel is text", [{"a": "__ff_null__ "}], {"a": "__ff_null__ "}),
    ("sixteen levels", [DEEP_16], DEEP_16),
    ("empty", [{}], {}),
    ("scalars", [{"t": True, "f": False, "i": -7, "d": 0.5}], {"t": True, "f": False, "i": -7, "d": 0.5}),
    ("texts", [{"ż🐢": "\u202e \" \\ \n"}], {"ż🐢": "\u202e \" \\ \n"}),
]  # fmt: skip


@pytest.mark.parametrize(("patches", "merged"), [merge[1:] for merge in MERGES], ids=[merge[0] for merge in MERGES])
async def test_merge_rules(engine: Engine, patches: list[Any], merged: Any) -> None:
    handle = await claimed(engine)
    for patch in patches:
        answer = await engine.append_frame(handle, Frame(json.dumps(patch).encode(), mode=SUMMARY))
    assert answer.summary_version == len(patches)
    found = await engine.read_summary(id_of(handle))
    assert found is not None
    assert json.loads(found.document_json) == merged
    assert "__ff_null__" not in found.document_json or merged == {"__ff_null__": 1} or "null__ " in str(merged)


async def test_large_numbers_keep_their_value(engine: Engine) -> None:
    """How a number is written is up to the store; what it is worth is not."""
    handle = await claimed(engine)
    await engine.append_frame(handle, Frame(b'{"i": 18446744073709551615, "d": 1.7e308}', mode=SUMMARY))
    await engine.append_frame(handle, Frame(b'{"more": 1}', mode=SUMMARY))
    found = await engine.read_summary(id_of(handle))
    assert found is not None
    document = json.loads(found.document_json)
    assert (document["i"], float(document["d"]), document["more"]) == (2**64 - 1, 1.7e308, 1)


NOT_MERGEABLE = [
        b"", b"[]", b"1", b'"text"', b"null", b"not json", b'{"a":1', b'{"a":1} x', b"\xff", b'{"a":"\\ud800"}',
        b'{"a":1e400}', b'{"a":"nul \\u0000"}', b'{"nul \\u0000":1}', b'{"a":[{"b":"\\u0000"}]}',
        b'{"a":' * 17 + b"1" + b"}" * 17, b'{"a":' * 15 + b"[[1]]" + b"}" * 15, b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
        b'{"a":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    ]  # fmt: skip


async def test_a_summary_that_cannot_be_merged_stores_nothing(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    await engine.append_frame(handle, Frame(b'{"kept": 1}', mode=SUMMARY))
    async with unchanged(probe):
        for payload in NOT_MERGEABLE:
            with pytest.raises(Validation) as caught:
                await engine.append_frame(handle, Frame(payload, mode=SUMMARY))
            assert (payload[:40], caught.value.kind) == (payload[:40], ValidationKind.INVALID_INPUT)
    assert (await engine.append_frame(handle, Frame(b'{"more": 2}', mode=SUMMARY))).summary_version == 2


async def test_a_backslash_is_not_a_nul(engine: Engine) -> None:
    handle = await claimed(engine)
    await engine.append_frame(handle, Frame(b'{"a":"C:\\\\u0000"}', mode=SUMMARY))
    found = await engine.read_summary(id_of(handle))
    assert found is not None
    assert json.loads(found.document_json) == {"a": "C:\\u0000"}


async def test_an_unreadable_summary_is_corruption(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine)
    identity = id_of(handle)
    broken = StreamSummary(str(identity), identity.partition, identity.uuid_text, 0, "[]", 3, None, START_MS, START_MS)
    await seed(engine, broken)
    async with refused(probe, Validation, ValidationKind.CORRUPTION, "document_json: not a JSON object"):
        await engine.append_frame(handle, Frame(b"{}", mode=SUMMARY))


async def test_unreadable_rows_are_corruption(engine: Engine) -> None:
    handle = await claimed(engine)
    identity = id_of(handle)
    where = (str(identity), identity.partition, identity.uuid_text, 0)
    await seed(engine, StreamSummary(*where, "{}", 1, "odd", START_MS, START_MS))
    await seed(engine, FrameRow(*where, START_MS, 0, "[]", "durable", START_MS))
    for read, detail in (
        (engine.read_summary, "patch_kind: unknown value 'odd'"),
        (engine.read_stream, "fields: not a JSON object"),
        (engine.tail_stream, "fields: not a JSON object"),
    ):
        with pytest.raises(Validation) as caught:
            await read(identity)
        assert (caught.value.kind, caught.value.detail) == (ValidationKind.CORRUPTION, detail)


# -- best effort, and what is kept -----------------------------------------------------------------------------------


async def _head(engine: Engine, execution_id: ExecutionId) -> StreamHead:
    key = (str(execution_id), 0)
    found = (await engine._view(Get(StreamHead, key))).get(StreamHead, key)
    assert found is not None
    return found


async def test_the_window_follows_the_rate(engine: Engine, clock: ManualClock) -> None:
    """ema = α·rate + (1-α)·ema and K = 2·⌈ema·ttl⌉, here with α = 0.5, a ttl of 0.4 s and 2 ≤ K ≤ 7."""
    handle = await claimed(engine)
    mode = BestEffortLive(400, maxlen_floor=2, maxlen_ceiling=7, ema_alpha=0.5)
    expected = [
        # pause, rate estimate, window, frames kept
        (0, 0.0, 2, 1),
        (0, 0.0, 2, 2),
        (100, 5.0, 4, 3),
        (100, 7.5, 6, 4),
        (100, 8.75, 7, 5),
        (100, 9.375, 7, 6),
        (100, 9.6875, 7, 7),
        (100, 9.84375, 7, 7),
        (1_000, 5.421875, 6, 6),
        (1_000, 3.2109375, 4, 4),
        (0, 1.60546875, 2, 2),
    ]
    for number, (pause, rate, window, kept) in enumerate(expected):
        clock.advance(pause)
        answer = await engine.append_frame(handle, Frame(b"%d" % number, mode=mode))
        head = await _head(engine, id_of(handle))
        assert (number, answer.frame_count, head.ema_rate_hz, head.maxlen_applied_last) == (number, kept, rate, window)
        assert answer.summary_version is None
        frames = (await engine.read_stream(id_of(handle))).frames
        assert [frame.fields["payload"] for frame in frames] == [str(n) for n in range(number + 1 - kept, number + 1)]


@pytest.mark.parametrize("alpha", [0.0, -1.0, 1.5, float("nan"), float("inf")])
async def test_an_impossible_weight_means_a_fifth(engine: Engine, clock: ManualClock, alpha: float) -> None:
    handle = await claimed(engine)
    mode = BestEffortLive(1_000, ema_alpha=alpha)
    await engine.append_frame(handle, Frame(b"a", mode=mode))
    clock.advance(100)
    await engine.append_frame(handle, Frame(b"b", mode=mode))
    assert (await _head(engine, id_of(handle))).ema_rate_hz == 2.0


async def test_a_ceiling_below_the_floor_gives_way(engine: Engine) -> None:
    handle = await claimed(engine)
    counts = [
        (await engine.append_frame(handle, Frame(b"x", mode=BestEffortLive(1, 3, 2)))).frame_count for _ in range(5)
    ]
    assert counts == [1, 2, 3, 3, 3]


async def test_the_floor_is_64_unless_told(engine: Engine) -> None:
    handle = await claimed(engine)
    for _ in range(66):
        answer = await engine.append_frame(handle, Frame(b"x", mode=BestEffortLive(1_000)))
    assert answer == AppendFrameOutcome(f"{START_MS}-65", 64, None)


async def test_best_effort_trims_the_whole_stream(engine: Engine) -> None:
    handle = await claimed(engine)
    for number in range(4):
        await engine.append_frame(handle, Frame(b'{"n": %d}' % number, mode=SUMMARY))
    answer = await engine.append_frame(handle, Frame(b"live", mode=BestEffortLive(1_000, 2, 2)))
    assert answer.frame_count == 2
    assert await _ids(engine, id_of(handle)) == [f"{START_MS}-3", f"{START_MS}-4"]
    found = await engine.read_summary(id_of(handle))
    assert found is not None
    assert found.version == 4


async def test_the_policy_bounds_durable_frames(engine: Engine) -> None:
    handle = await claimed(engine, policy={"stream_policy": {"retention_maxlen": 3}})
    answers = [await engine.append_frame(handle, Frame(b"x")) for _ in range(5)]
    assert [answer.frame_count for answer in answers] == [1, 2, 3, 3, 3]
    assert [answer.stream_id for answer in answers] == [f"{START_MS}-{seq}" for seq in range(5)]
    assert await _ids(engine, id_of(handle)) == [f"{START_MS}-{seq}" for seq in (2, 3, 4)]


async def test_absurd_windows_are_harmless(engine: Engine) -> None:
    handle = await claimed(engine, policy={"stream_policy": {"retention_maxlen": 2**60}})
    mode = BestEffortLive(10**30, maxlen_floor=10**30, maxlen_ceiling=10**30)
    assert (await engine.append_frame(handle, Frame(b"x", mode=mode))).frame_count == 1
    mode = BestEffortLive(-5, maxlen_floor=-5, maxlen_ceiling=-5)
    assert await engine.append_frame(handle, Frame(b"y", mode=mode)) == AppendFrameOutcome(f"{START_MS}-1", 1, None)
