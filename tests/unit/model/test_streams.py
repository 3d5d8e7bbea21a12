"""Frames: modes, cursors, the merge of summaries and the length of best-effort streams."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
from hypothesis import given, strategies as st

from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.streams.frames import (
    AppendFrameOutcome,
    At,
    BestEffortLive,
    Durable,
    DurableSummary,
    End,
    Frame,
    FrameKind,
    PatchKind,
    Start,
    StreamCursor,
    StreamCursorError,
    StreamFrame,
    StreamFrames,
    best_effort_window,
    decode_summary_document,
    decode_summary_patch,
    merge_summary,
)


def test_frames_and_modes() -> None:
    frame = Frame(b"hello", FrameKind.STDOUT)
    assert (frame.bytes, frame.kind, frame.mode, frame.stored_type) == (b"hello", "stdout", Durable(), "stdout")
    summary = frame.with_mode(DurableSummary(patch_kind=PatchKind.JSON_MERGE_PATCH))
    assert summary.mode == DurableSummary()
    assert summary.bytes == b"hello"
    assert Frame(b"", FrameKind.BLOB, frame_type="tokens").stored_type == "tokens"
    assert (Durable.wire, DurableSummary.wire, BestEffortLive.wire) == ("durable", "summary", "best_effort")
    assert BestEffortLive(1000) == BestEffortLive(1000, 64, 16384, 0.2)
    assert str(PatchKind.JSON_MERGE_PATCH) == "json-merge-patch"
    assert AppendFrameOutcome("1-0", 1).summary_version is None


def test_pages_say_whether_they_are_closed() -> None:
    assert not StreamFrames().is_closed()
    assert StreamFrames((StreamFrame("1-0", {}),), 5, "attempt_success").is_closed()


def test_cursors() -> None:
    assert StreamCursor.parse("start") == Start()
    assert StreamCursor.parse("end") == End()
    assert StreamCursor.parse("17") == At("17")
    assert At("17").position == (17, 0)
    assert At("17-3").position == (17, 3)
    assert At("9" * 5000 + "-" + "0" * 5000 + "7").position == (2**63 - 1, 7)
    assert StreamCursor.from_beginning() == At("0-0")
    assert [cursor.is_concrete for cursor in (Start(), End(), At("0"))] == [False, False, True]
    assert isinstance(At("0"), StreamCursor)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "Empty"),
        ("-", "BareMarkerRejected"),
        ("+", "BareMarkerRejected"),
        ("x", "Malformed"),
        ("Start", "Malformed"),
        ("1-", "Malformed"),
        ("-1", "Malformed"),
        ("1-2-3", "Malformed"),
        (" 1", "Malformed"),
        ("1\n", "Malformed"),
        ("٣", "Malformed"),
    ],
)
def test_cursor_errors(text: str, problem: str) -> None:
    with pytest.raises(StreamCursorError) as caught:
        StreamCursor.parse(text)
    assert caught.value.problem == problem


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**31))
def test_cursors_round_trip(milliseconds: int, sequence: int) -> None:
    cursor = StreamCursor.parse(f"{milliseconds}-{sequence}")
    assert isinstance(cursor, At)
    assert cursor.position == (milliseconds, sequence)
    assert StreamCursor.parse(str(cursor)) == cursor


@pytest.mark.parametrize(
    ("document", "patch", "merged"),
    [
        ({}, {"a": 1}, {"a": 1}),
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": 1}, {"a": None}, {}),
        ({}, {"a": None}, {}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": None, "d": 3}}, {"a": {"c": 2, "d": 3}}),
        ({"a": 1}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": [1]}, {"a": {"b": None}}, {"a": {}}),
        ({}, {"a": "__ff_null__"}, {"a": None}),
        ({"a": None}, {"b": 1}, {"a": None, "b": 1}),
        ({}, {"a": {"b": "__ff_null__"}}, {"a": {"b": None}}),
        ({}, {"a": ["__ff_null__", {"b": "__ff_null__", "c": None}]}, {"a": [None, {"b": None, "c": None}]}),
        ({}, {"a": [[None, "__ff_null__"]]}, {"a": [[None, None]]}),
        ({}, {"__ff_null__": 1}, {"__ff_null__": 1}),
        ({"a": True}, {}, {"a": True}),
    ],
)  # fmt: skip
def test_merge(document: dict[str, Any], patch: dict[str, Any], merged: dict[str, Any]) -> None:
    before = copy.deepcopy((document, patch))
    assert merge_summary(document, patch) == merged
    assert (document, patch) == before


def nested(depth: int, *, arrays: bool = False) -> dict[str, Any]:
    value: Any = [] if arrays else {}
    for _ in range(depth - 2):
        value = [value] if arrays else {"a": value}
    return {"a": value}


def test_depth_sixteen_is_the_limit() -> None:
    for arrays in (False, True):
        merge_summary({}, nested(16, arrays=arrays))
        with pytest.raises(Validation) as caught:
            merge_summary({}, nested(17, arrays=arrays))
        assert caught.value.kind is ValidationKind.INVALID_INPUT
    with pytest.raises(Validation):
        merge_summary({}, {"a": [nested(15)]})


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["x", "__ff_null__"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)
objects = st.dictionaries(st.sampled_from("abc"), values, max_size=3)


@given(objects, objects)
def test_merging_twice_changes_nothing_more(first: dict[str, Any], second: dict[str, Any]) -> None:
    document = merge_summary({}, first)
    merged = merge_summary(document, second)
    assert merge_summary(merged, second) == merged
    assert "__ff_null__" not in json.dumps(merged)


def test_summary_payloads() -> None:
    assert decode_summary_patch(b'{"a":1}') == {"a": 1}
    for bad in (b"", b"[]", b"1", b"null", b"{", b"\xff", b'{"a":' * 3000):
        with pytest.raises(Validation) as caught:
            decode_summary_patch(bad)
        assert caught.value.kind is ValidationKind.INVALID_INPUT
    assert decode_summary_document("{}") == {}
    for bad_text in ("", "[]", "{", "null"):
        with pytest.raises(Validation) as caught:
            decode_summary_document(bad_text)
        assert caught.value.kind is ValidationKind.CORRUPTION


def test_best_effort_arithmetic() -> None:
    mode = BestEffortLive(ttl_ms=10_000)
    first = best_effort_window(mode, 1_000, None, 0.0)
    assert (first.ema_rate_hz, first.maxlen) == (0.0, 64)
    second = best_effort_window(mode, 1_010, 1_000, first.ema_rate_hz)
    assert second.ema_rate_hz == pytest.approx(20.0)
    assert second.maxlen == 400
    third = best_effort_window(mode, 1_020, 1_010, second.ema_rate_hz)
    assert third.ema_rate_hz == pytest.approx(36.0)
    assert third.maxlen == 720
    same_time = best_effort_window(mode, 1_020, 1_020, 10.0)
    assert same_time.ema_rate_hz == pytest.approx(8.0)
    assert best_effort_window(mode, 1_000, 0, 0.0).ema_rate_hz == 0.0
    assert best_effort_window(mode, 900, 1_000, 10.0).ema_rate_hz == pytest.approx(8.0)
    # ceil comes before doubling
    assert best_effort_window(BestEffortLive(1000, 1, 100, 1.0), 1_000, 200, 0.0).maxlen == 4


def test_best_effort_bounds() -> None:
    assert best_effort_window(BestEffortLive(10**9), 2, 1, 0.0).maxlen == 16_384
    assert best_effort_window(BestEffortLive(10**400), 2, 1, 0.0).maxlen == 16_384
    assert best_effort_window(BestEffortLive(10, maxlen_floor=100, maxlen_ceiling=5), 2, 1, 0.0).maxlen == 100
    for alpha in (0.0, -1.0, 1.5, math.nan, math.inf):
        assert best_effort_window(BestEffortLive(10, ema_alpha=alpha), 2, 1, 0.0).ema_rate_hz == pytest.approx(200.0)
    assert best_effort_window(BestEffortLive(10, ema_alpha=1.0), 2, 1, 5.0).ema_rate_hz == pytest.approx(1000.0)
    assert best_effort_window(BestEffortLive(10), 2, None, math.nan).ema_rate_hz == 0.0
