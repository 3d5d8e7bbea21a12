"""Values that nobody can mean when suspending and signalling; as ``bad_values``."""

from __future__ import annotations

from typing import Any

from flowfabric import Fresh, ResumePolicy, SuspendArgs, UsePending, ValidationKind
from flowfabric.conditions import AllOf, ByName, Count, CountKind, OperatorOnly, Single, Wildcard
from tests.contract.bad_values import (
    BAD,
    EMPTY,
    HUGE,
    NO_NUMBER,
    NO_TEXT,
    NONE,
    TOO_LONG,
    UNSTORABLE,
    Bad,
    _invalid,
    _refusals,
)


def _waits(**changes: Any) -> SuspendArgs:
    return SuspendArgs(**{"waitpoints": [Fresh(waitpoint_key="k")], "resume_condition": Single("k"), **changes})


def _nested(depth: int) -> Any:
    condition: Any = Single("k")
    for _ in range(depth):
        condition = AllOf((condition,))
    return condition


_SOURCES = CountKind.DISTINCT_SOURCES
_WAITS: list[Any] = [
    None, "args", 5, {}, object(),
    *[_waits(waitpoints=bad) for bad in (None, "k", 5, {}, [], ["k"], [None], [Fresh(5)], [Fresh("x")],
                                         [Fresh(None, 5)], [Fresh(None, "")], [Fresh(None, "nul \x00")],
                                         [UsePending(None)], [UsePending("x")], [Fresh()] * 257)],
    *[_waits(resume_condition=bad) for bad in (None, "k", 5, Wildcard(), Single(5), Single(None), Single("k", None),
                                               Single("k", ByName(5)), Single("k", ByName("")), Single("k", "name"),
                                               Single("k", ByName("a\x00")), Single("k", ByName("a\x1fb")),
                                               Single("\ud800"), Single("other"), AllOf(()), AllOf("k"), AllOf(None),
                                               AllOf((5,)), AllOf((Single("k"),) * 1_025), _nested(4), _nested(5_000),
                                               Count(0, _SOURCES, ("k",)), Count(-1, _SOURCES, ("k",)),
                                               Count(True, _SOURCES, ("k",)), Count(1, "odd", ("k",)),
                                               Count(1, _SOURCES, ()), Count(1, _SOURCES, "k"),
                                               Count(1, _SOURCES, (5,)), Count(1, _SOURCES, ("k",), "name"),
                                               Count(2, CountKind.DISTINCT_WAITPOINTS, ("k", "k")))],
    *[_waits(reason_code=bad.value) for bad in NO_TEXT + NONE + EMPTY + UNSTORABLE + TOO_LONG],
    *[_waits(requested_by=bad) for bad in ("", "nobody", 5, None)],
    *[_waits(timeout_behavior=bad) for bad in ("", "explode", 5, None)],
    *[_waits(resume_policy=bad) for bad in (None, {}, ResumePolicy("suspended"), ResumePolicy(resume_delay_ms=-1),
                                            ResumePolicy(resume_delay_ms="5"), ResumePolicy(resume_delay_ms=2**63),
                                            ResumePolicy(consume_matched_signals=None))],
    *[_waits(timeout_at=bad.value) for bad in NO_NUMBER], _waits(timeout_at=0),
    *[_waits(now=bad.value) for bad in NO_NUMBER],
    *[_waits(idempotency_key=bad.value) for bad in NO_TEXT + UNSTORABLE + TOO_LONG],
    *[_waits(continuation_metadata_pointer=bad.value) for bad in NO_TEXT + UNSTORABLE + TOO_LONG],
    *[_waits(suspension_id=bad.value) for bad in BAD["uuid?"]],
    _waits(waitpoints=[Fresh(waitpoint_key="k"), Fresh(waitpoint_key="idle")]),
    _waits(waitpoints=[Fresh(), Fresh()], resume_condition=OperatorOnly()),
]  # fmt: skip

BAD_WAITS: dict[str, list[Bad]] = {
    "waits": _invalid(*_WAITS),
    "waitpoint key": NO_TEXT + NONE + UNSTORABLE + TOO_LONG + _refusals(ValidationKind.INVALID_WAITPOINT_KEY, ""),
    "waitpoint token": NO_TEXT
    + _refusals(ValidationKind.INVALID_TOKEN, None, "", "k1", "k1:", ":ab", "k1:zz", "\x00", "\ud800", "k1:" + "a" * 65,
                "x" * 2_000, "k\x00:" + "a" * 64, "other:" + "a" * 64, "k1:" + "A" * 64),
    "signal bytes": _invalid(5, True, "text", [1], {}, object())
    + _refusals(ValidationKind.PAYLOAD_TOO_LARGE, b"x" * 65_537),
    "trigger": NO_TEXT + NONE + _invalid("", "nobody", "Operator"),
    "kid": _refusals(ValidationKind.INVALID_KID, "", "a:b", ":", 5, None, True, b"k", "a\x00", "\ud800", "x" * 1_025),
    "secret": _refusals(ValidationKind.INVALID_SECRET_HEX, "", "a", "abc", "zz", "ab ", "ab\n", "٣٣", 5, None, b"ab"),
    "seed secret": _refusals(ValidationKind.INVALID_SECRET_HEX, "", "ab", "ab" * 31, "ab" * 32 + "a", "zz" * 32, 5,
                             None, "ab" * 32 + "\n"),
    "grace": _refusals(ValidationKind.INVALID_GRACE_MS, -1, 2**53, HUGE, "5", True, 1.5),
}  # fmt: skip
