"""Values that no caller can mean, by what they stand for, each with the error that has to be told."""

from __future__ import annotations

from typing import Any, NamedTuple

from flowfabric import (
    AllOf,
    AnyOf,
    BestEffortLive,
    ClaimPolicy,
    CompletionPayload,
    Cron,
    DurableSummary,
    Every,
    FlowEdge,
    FlowGraph,
    Frame,
    Incoming,
    LeaseFence,
    Outgoing,
    Quorum,
    ScannerFilter,
    UsageDimensions,
    ValidationKind,
)
from flowfabric.model.operations.executions import ExpiredLeaseCursor, ResumeGrant, ResumeToken

UUID = "33333333-3333-4333-8333-333333333333"
HUGE = 2**80


class Bad(NamedTuple):
    """A value and the family, kind and code of its refusal."""

    value: Any
    told: str


def _refusals(kind: ValidationKind, *values: Any) -> list[Bad]:
    return [Bad(value, f"validation {kind} {kind}") for value in values]


def _invalid(*values: Any) -> list[Bad]:
    return _refusals(ValidationKind.INVALID_INPUT, *values)


NO_TEXT = _invalid(5, True, b"bytes", ["x"], {}, object(), 1.5)
NONE = _invalid(None)
EMPTY = _invalid("")
UNSTORABLE = _invalid("nul \x00", "\x00", "lone \ud800", "\udfff")
TOO_LONG = _invalid("x" * 1_025, "ż" * 513)
FAR_TOO_LONG = _invalid("x" * 65_537, "🐢" * 16_385)
NO_NUMBER = _invalid("5", "", b"5", True, 1.0, 1.5, float("nan"), float("inf"), [1], {}, object())
_IDS = _invalid(
    "", "x", UUID, "{fp:0}", "{fp:0}:", "{fp:0}:x", f"{{fp:0}}:{UUID}x", f"{{fp:0}}:{UUID[:-1]}", f"{{fp:x}}:{UUID}",
    f"{{fp:65536}}:{UUID}", f"{{fp:-1}}:{UUID}", f"{{fp:}}:{UUID}", f"{{fp:１}}:{UUID}", f"{{b:0}}:{UUID}",
    f"{{fp:0}}:{UUID}\x00", f"{{fp:0}}:{UUID}\n", f" {{fp:0}}:{UUID}", f"{{fp:0}}:{{{UUID}}}", "\ud800", "x" * 100_000,
    5, True, b"x", ["x"], {}, object(), 1.5,
)  # fmt: skip
_UUIDS = _invalid(
    "", "x", UUID[:-1], UUID + "0", UUID + "\n", UUID.replace("-", "", 1), f"{{{UUID}}}", f"urn:uuid:{UUID}", "\x00",
    "\ud800", f"{{fp:0}}:{UUID}", "x" * 100_000, 5, True, b"x", ["x"], {}, 1.5,
)  # fmt: skip
_LANES = _invalid("", "x" * 65, "żółw", "a\nb", "a\x00", "\x7f", "\x1f", "\ud800", 5, True, b"x", ["x"], {}, 1.5)
_TOKENS = _refusals(
    ValidationKind.INVALID_CAPABILITIES,
    "gpu", b"gpu", 5, True, 1.5, {"gpu": 1}, [5], [None], [b"x"], [["x"]], [""], ["a,b"], ["a b"], ["a\x00"], ["a\x7f"],
    ["\ud800"], ["a\u2028\n"], [str(n) for n in range(257)], ["x" * 4_097], ["x" * 2_048, "y" * 2_048],
)  # fmt: skip
_KEYS = _invalid(
    *["", "plain", "A.b", "a.", "a.b\n", "a.b\x00", "a.\ud800", "a." + "x" * 1_025, 5, None, b"a.b", ["a.b"]]
)
_TAG_VALUES = _invalid(*[{"a.b": value} for value in (5, None, b"x", "nul \x00", "\ud800", "x" * 65_537, ["x"])])
_MANY_TAGS = _invalid({f"a.{n}": "v" for n in range(1_001)})
_JSON = ["not json", "[]", "1", '"x"', "null", '{"a":', "{'a': 1}", "\ud800", "nul \x00", '{"a": "\\ud800"}',
         '{"a": 1e400}', '{"a":' + "[" * 20_000 + "]" * 20_000 + "}", '{"a": "' + "x" * 65_536 + '"}']  # fmt: skip
_MALFORMED: list[Any] = [
    5, True, 1.5, [1], [("a", 1)], object(), "", "[]", "x", b"\xff", "\ud800", '{"priority": 1', {"priority": "5"},
    {"retry_policy": 5}, {"retry_policy": {"max_retries": -1}}, {"retry_policy": {"backoff": 5}}, {5: 1, "a": object()},
    {"retry_policy": {"backoff": {"type": "exponential", "multiplier": -1.0}}}, {"timeout_policy": []},
    {"retry_policy": {"retryable_categories": [5]}}, {"max_replay_count": 1.5}, {"budget_ids": ["x"]},
    {"budget_ids": UUID}, {"quota_policy_id": 5}, {"routing_requirements": []}, {"routing_requirements": None},
    {"fallback_policy": {"tiers": [{}]}}, {"stream_policy": {"retention_maxlen": "5"}}, {"dedup_window_ms": -5},
    {"nul": "\x00"}, {"nul \x00": 1}, '{"nul": "\\u0000"}', {"routing_requirements": {"isolation_level": "\x00"}},
    {"routing_requirements": {"preferred_locality": 5}}, {"x": "\ud800"}, {"max_signals_per_execution": True},
]  # fmt: skip
_REQUIREMENTS: list[Any] = [
    {"routing_requirements": {"required_capabilities": bad}}
    for bad in ("gpu", None, 5, {"gpu": 1}, [5], [None], [""], ["a,b"], ["a b"], ["\x00"], ["x" * 4_097])
] + [{"routing_requirements": {"required_capabilities": [str(n) for n in range(257)]}}]
_FENCES: list[Any] = [
    "fence", 5, True, (UUID, 1, UUID), {"lease_id": UUID}, object(), LeaseFence(UUID, "1", UUID),
    LeaseFence(UUID, 1.0, UUID), LeaseFence(UUID, True, UUID), LeaseFence(5, 1, UUID), LeaseFence(UUID, 1, 5),
    LeaseFence("\x00", 1, UUID), LeaseFence(UUID, 1, "\ud800"), LeaseFence("x" * 1_025, 1, UUID), None, LeaseFence(),
    LeaseFence(UUID), LeaseFence(None, 1), LeaseFence(None, None, UUID), LeaseFence("", 1, UUID),
]  # fmt: skip
_FRAMES: list[Any] = [
    None, "text", b"bytes", 5, object(), Frame("text"), Frame(5), Frame(None), Frame(b"x", frame_type=5),
    Frame(b"x", frame_type=None), Frame(b"x", frame_type="nul \x00"), Frame(b"x", frame_type="\ud800"),
    Frame(b"x", frame_type="x" * 1_025), Frame(b"x", correlation_id=5), Frame(b"x", correlation_id="\x00"),
    Frame(b"x", correlation_id="\ud800"), Frame(b"x", correlation_id="x" * 1_025), Frame(b"x", mode=None),
    Frame(b"x", mode="durable"), Frame(b"x", mode=5), Frame(b"{}", mode=DurableSummary("odd")),
    Frame(b"x", mode=BestEffortLive("5")), Frame(b"x", mode=BestEffortLive(None)),
    Frame(b"x", mode=BestEffortLive(1.5)), Frame(b"x", mode=BestEffortLive(1, "5")),
    Frame(b"x", mode=BestEffortLive(1, 1, None)), Frame(b"x", mode=BestEffortLive(1, 1, 1, "x")),
    Frame(b"x", mode=BestEffortLive(1, 1, 1, None)), Frame(b"x", mode=BestEffortLive(True)),
    Frame(b"not json", mode=DurableSummary()), Frame(b"[]", mode=DurableSummary()),
    Frame(b'{"a":"\\u0000"}', mode=DurableSummary()), Frame(b'{"a":' * 17 + b"1" + b"}" * 17, mode=DurableSummary()),
]  # fmt: skip
_CURSORS: list[Any] = [
    "", "-", "+", "$", "1-", "-1", "1-2-3", " 1", "1\n", "1.5", "٣", "1\x00", "\ud800", "' OR 1=1", 5, None, b"1", True,
    ["1"], object(),
]  # fmt: skip


def _claims(**changes: Any) -> ClaimPolicy:
    return ClaimPolicy(**{"worker_id": "w", "worker_instance_id": "i", "lease_ttl_ms": 1_000, **changes})


def _token(worker: Any = "w", instance: Any = "i", ttl: Any = 1_000, **changes: Any) -> ResumeToken:
    grant = {"execution_id": f"{{fp:0}}:{UUID}", "partition_key": "{fp:0}", "grant_key": "k", "expires_at_ms": 2**62}
    return ResumeToken(ResumeGrant(**{**grant, "lane_id": "default", **changes}), worker, instance, ttl)


_EDGE_POLICIES = (
    None, "all_of", 5, object(), AllOf, {}, {"kind": "any_of"}, {"kind": "quorum", "k": 1}, {"kind": "some"},
    {"kind": "quorum", "k": 0, "on_satisfied": "let_run"}, AnyOf("sometimes"), AnyOf(None), Quorum(0), Quorum(-1),
    Quorum(2**31), Quorum("2"), Quorum(None), Quorum(True), Quorum(1.0), Quorum(1, "never"),
)  # fmt: skip
_GRAPHS = [
    *_invalid(
        None, "graph", 5, {"nodes": {}}, FlowGraph(None), FlowGraph(["a"]), FlowGraph({5: {}}), FlowGraph({"": {}}),
        FlowGraph({"a": None}), FlowGraph({"a": {"nonsense": 1}}), FlowGraph({"a": {"lane_id": ""}}),
        FlowGraph({"a": {}}, None), FlowGraph({"a": {}}, ["ab"]), FlowGraph({"a": {}}, [("a", "b", "c")]),
        FlowGraph({"a": {}}, [("a", "b")]), FlowGraph({"a": {}}, [("b", "a")]), FlowGraph({"a": {}}, [(5, "a")]),
        FlowGraph({"a": {}, "b": {}}, [FlowEdge("a", "b", 5)]),
        FlowGraph({"a": {}, "b": {}}, [FlowEdge("a", "b", None, 5)]),
        FlowGraph({"a": {}, "b": {}}, [FlowEdge("a", "b", edge_id="x")]),
        FlowGraph({"a": {}, "b": {}}, [FlowEdge("a", "b", edge_id=UUID), FlowEdge("a", "b", edge_id=UUID)]),
        FlowGraph({"a": {}}, groups=None), FlowGraph({"a": {}}, groups={"b": AnyOf()}),
        FlowGraph({"a": {}}, groups={"a": Quorum(0)}), FlowGraph({"a": {}}, flow_id="x"),
        FlowGraph({"a": {}}, flow_kind=5), FlowGraph({"a": {}}, namespace=None), FlowGraph({"a": {}}, budget_ids=["x"]),
        FlowGraph({"a": {"idempotency_key": "k"}, "b": {"idempotency_key": "k"}}),
        FlowGraph({"a": {"execution_id": f"{{fp:65000}}:{UUID}"}}),
        *[FlowGraph({"a": {"execution_id": bad.value}}) for bad in _IDS],
    ),
    Bad(FlowGraph({"a": {}}, [("a", "a")]), "conflict self_referencing_edge self_referencing_edge"),
    Bad(FlowGraph({"a": {}, "b": {}}, [("a", "b"), ("b", "a")]), "conflict cycle_detected cycle_detected"),
]  # fmt: skip

_AMOUNTS: list[Any] = [
    {"a": -1}, {"a": 2**63}, {"a": HUGE}, {"a": "5"}, {"a": None}, {"a": True}, {"a": 1.0}, {"": 1}, {5: 1}, {None: 1},
    {"\x00": 1}, {"\ud800": 1}, {"x" * 1_025: 1}, {str(n): 1 for n in range(65)}, 5, True, "a", [("a", 1)], object(),
]  # fmt: skip

BAD: dict[str, list[Bad]] = {
    "id": _IDS + NONE,
    "id?": _IDS,
    "ids": _invalid(None, 5, UUID, b"x", {UUID: 1}, [5], [None], [UUID], ["{fp:0}:" + UUID] * 1_001),
    "uuid": _UUIDS + NONE,
    "uuid?": _UUIDS,
    "uuids": _invalid(5, None, True, UUID, b"x", {UUID: 1}, [5], [None], [UUID, "x"]),
    "interval": NO_NUMBER + NONE + _invalid(-1, HUGE),
    "amounts": _invalid(*_AMOUNTS) + NONE,
    "amounts?": _invalid(*_AMOUNTS),
    "amount list": _invalid(None, 5, "1", b"1", {"a": 1}, [], [1, 1], [-1], [2**63], ["1"], [None], [True], [1.0]),
    "dimensions": _invalid(None, 5, "a", b"a", {"a": 1}, [], ["a", "b"], [""], [5], [None], ["\x00"], ["\ud800"]),
    "usage": _invalid(
        None, 5, {"a": 1}, object(), UsageDimensions(-1), UsageDimensions(0, HUGE), UsageDimensions("1"),
        UsageDimensions(None), UsageDimensions(0, 0, -1), UsageDimensions(0, 0, "1"), UsageDimensions(dedup_key=5),
        UsageDimensions(dedup_key="\x00"), UsageDimensions(dedup_key="x" * 1_025),
        *[UsageDimensions(custom=bad) for bad in [*_AMOUNTS, None]],
    ),
    "edge policy": _invalid(*_EDGE_POLICIES),
    "key reuse": _invalid(None, "", "always", "Ended", 5, True, b"ended", ["ended"]),
    "graph": _GRAPHS,
    "direction": _invalid(None, "out", 5, object(), Outgoing, *[Outgoing(bad.value) for bad in _IDS],
                          *[Incoming(bad.value) for bad in _IDS + NONE]),
    "completion": _invalid(
        None, "x", 5, object(), *[CompletionPayload(bad.value) for bad in _IDS + NONE],
        *[CompletionPayload(f"{{fp:0}}:{UUID}", flow_id=bad.value) for bad in _UUIDS],
    ),
    "lane": _LANES + NONE,
    "lane?": _LANES,
    "name": NO_TEXT + NONE + UNSTORABLE + TOO_LONG,
    "name+": NO_TEXT + NONE + UNSTORABLE + TOO_LONG + EMPTY,
    "search": _invalid(None) + NO_TEXT + UNSTORABLE + _invalid("colour:red", "id:1", "tag:x", "state:odd", "x" * 5_000),
    "name?": NO_TEXT + UNSTORABLE + TOO_LONG,
    "text": NO_TEXT + NONE + UNSTORABLE + FAR_TOO_LONG,
    "text?": NO_TEXT + UNSTORABLE + FAR_TOO_LONG,
    "short": NO_TEXT + NONE + UNSTORABLE + _invalid("x" * 257, "ż" * 129, "line\nbreak", "\x1b", "\x7f"),
    "detail": _invalid(5, True, ["x"], object(), "\x00", b"\x00", "\ud800", "x" * 65_537),
    "key": _KEYS,
    "bytes?": _invalid(5, True, "text", [1], {}, object())
    + _refusals(ValidationKind.PAYLOAD_TOO_LARGE, b"x" * 1_048_577),
    "number": NO_NUMBER + NONE,
    "number?": NO_NUMBER,
    "time": NO_NUMBER + NONE,
    "time?": NO_NUMBER,
    "index": NO_NUMBER + NONE + _invalid(-1, 2**31, HUGE, -HUGE),
    "revision": NO_NUMBER + NONE + _invalid(-1, 2**63, HUGE, -HUGE),
    "index?": NO_NUMBER + _invalid(-1, 2**32, HUGE, -HUGE),
    "partition": NO_NUMBER + NONE + _invalid(-1, 65_536, HUGE),
    "partition?": NO_NUMBER + _invalid(-1, 65_536, HUGE),
    "ttl": NO_NUMBER + NONE + _invalid(0, -1, 2**32, HUGE),
    "count": NO_NUMBER + NONE + _invalid(0, -1, HUGE),
    "count?": NO_NUMBER + _invalid(0, -1, HUGE),
    "page": NO_NUMBER + NONE + _invalid(-1, HUGE),
    "page?": NO_NUMBER + _invalid(-1, HUGE),
    "names?": _invalid(5, "x", True, [5], [None], ["nul \x00"], ["x"] * 101),
    "own names?": _invalid(5, "x", True, [], [5], [None], ["nul \x00"], [str(n) for n in range(101)]),
    "status": NO_NUMBER + NONE + _invalid(0, 99, 600, -1, HUGE),
    "subject": _invalid(5, None, "x", [("a", "b")], {5: "x"}, {"a": 5}, {"a": "nul \x00"}),
    "scopes": _invalid(5, None, "read", [], ["nonsense"], [5], [None]),
    "states": _invalid(5, None, "x", ["nonsense"], [5], [None]),
    "states?": _invalid(5, "x", ["nonsense"], [5], [None]),
    "tag?": _invalid(5, "x", True, ["a", "b"], ("a",), ("", "b"), (5, "b"), ("a", None), ("a", "nul \x00")),
    "search cursor?": NO_TEXT
    + _invalid("", "x", "1.2", f"1.2.{UUID}x", f"x.2.{UUID}", f"1.65536.{UUID}", f"-1.2.{UUID}", f"1.2.3.{UUID}"),
    "pair cursor?": NO_TEXT + _invalid("", "x", "[]", '["a"]', '["a", 5]', '["a", "b", "c"]', '["a", "\\u0000"]', "{}"),
    "examination?": NO_TEXT
    + _invalid("", "x", "executions", "executions.0", "nothing.0.", "flows.x.", f"flows.999999.{UUID}", "quotas.0.x"),
    "percent": NO_NUMBER + _invalid(-1, 101, HUGE),
    "wait": NO_NUMBER + NONE + _invalid(-1, 30_001, HUGE),
    "blocking reason": NO_TEXT + NONE + UNSTORABLE + TOO_LONG
    + _refusals(ValidationKind.INVALID_BLOCKING_REASON, "", "nonsense", "waiting_for_worker", "none"),
    "capabilities": _TOKENS,
    "tags": _invalid(5, None, "x", [("a.b", "v")], True) + _TAG_VALUES + _MANY_TAGS
    + _refusals(
        ValidationKind.INVALID_TAG_KEY, *[{bad.value: "v"} for bad in _KEYS if not isinstance(bad.value, list)]
    ),
    "tags?": _invalid(
        5, "x", [("a.b", "v")], True, 0, "", [], {5: "v"}, {None: "v"}, {"nul \x00": "v"}, {"\ud800": "v"},
        {"k" * 1_025: "v"},
    ) + _TAG_VALUES + _MANY_TAGS,
    "policy": _refusals(ValidationKind.INVALID_POLICY_JSON, *_MALFORMED)
    + _refusals(ValidationKind.INVALID_CAPABILITIES, *_REQUIREMENTS),
    "json": NO_TEXT + _invalid(*_JSON, '{"nul": "\\u0000"}', '{"nul \\u0000": 1}'),
    "retry json": NO_TEXT + NONE + _invalid("nul \x00", "\ud800", _JSON[-1])
    + _refusals(
        ValidationKind.INVALID_POLICY_JSON,
        *[json for json in _JSON[:-1] if "\x00" not in json and "\ud800" not in json],
    ),
    "creations": _invalid(
        5, None, "text", b"bytes", True, {"lane_id": "x"}, [5], [None], ["x"], [{"nonsense": 1}],
        [{5: 1, "nonsense": 2}], [{"lane_id": ""}], [{}, {"priority": "5"}], [{"execution_id": "x"}],
    )
    + _refusals(ValidationKind.INVALID_POLICY_JSON, [{"policy": 5}])
    + _refusals(ValidationKind.INVALID_CAPABILITIES, [{"policy": _REQUIREMENTS[0]}]),
    "claim policy": _invalid(
        None, "policy", 5, {"worker_id": "w"}, object(),
        *[_claims(worker_id=bad.value) for bad in NO_TEXT + NONE + EMPTY],
        *[_claims(worker_instance_id=bad.value) for bad in NO_TEXT + NONE + EMPTY + UNSTORABLE + TOO_LONG],
        *[_claims(lease_ttl_ms=bad) for bad in (0, -1, 2**32, "5", None, True, 1.5)],
        *[_claims(max_wait=bad) for bad in (-1, "5", True, 1.5, 2**60, object())],
    ),
    "token": _invalid(
        None, "token", 5, object(), ResumeToken(None, "w", "i", 1), ResumeToken("x", "w", "i", 1),
        *[_token(worker=bad.value) for bad in NO_TEXT + NONE + EMPTY + UNSTORABLE],
        *[_token(instance=bad.value) for bad in NO_TEXT + NONE + EMPTY + UNSTORABLE],
        *[_token(ttl=bad) for bad in (0, -1, 2**32, "5", None, True)],
        *[_token(execution_id=bad.value) for bad in _IDS], *[_token(lane_id=bad.value) for bad in _LANES],
        *[_token(expires_at_ms=bad) for bad in ("5", None, 1.5, True)],
    ),
    "handles": _invalid(None, 5, "handle", b"bytes", {"opaque": b""}, [5], [None], ["handle"]),
    "handle": _invalid(None, "handle", b"bytes", 5, object(), {"opaque": b""}),
    "handle?": _invalid("handle", b"bytes", 5, object(), {"opaque": b""}),
    "fence": _invalid(*_FENCES),
    "frame": _invalid(*_FRAMES)
    + _refusals(ValidationKind.INVALID_FRAME_TYPE, Frame(b"x", "odd"), Frame(b"x", None), Frame(b"x", 5))
    + _refusals(ValidationKind.RETENTION_LIMIT_EXCEEDED, Frame(b"x" * 65_537)),
    "frames": _invalid(None, 5, "x", b"x", Frame(b"x"), {"x": 1}, *[[bad] for bad in _FRAMES], [Frame(b"x")] * 1_001,
                       [Frame(b"{}", mode=DurableSummary())])
    + _refusals(ValidationKind.RETENTION_LIMIT_EXCEEDED, [Frame(b"x"), Frame(b"x" * 65_537)]),
    "cursor": _invalid(*_CURSORS),
    "place": _invalid(*_CURSORS, "start", "end"),
    "visibility": _invalid("", "some", "ALL", 5, None, True, ["all"], object()),
    "flow policy": _invalid("", "all", "CancelAll", 5, None, True, ["cancel_all"], object(), "cancel_all\x00"),
    "lanes": _invalid(5, None, True, "default", b"default", {"a": 1}, [5], [None], [""], ["żółw"], ["ok", "x" * 65]),
    "weighted lanes": _invalid(
        5, None, True, "a", ["a"], {}, {5: 1}, {None: 1}, {"": 1}, {"żółw": 1}, {"a": 0}, {"a": -1}, {"a": 1_001},
        {"a": "1"}, {"a": None}, {"a": True}, {"a": 1.0}, {f"lane {n}": 1 for n in range(101)},
    ),
    "lane state": _invalid("", "open", "ACTIVE", "active\x00", "\ud800", 5, None, True, ["active"], object()),
    "spec": _invalid(
        None, "0 6 * * *", 5, object(), Cron, Cron(5), Cron(""), Cron("x"), Cron("0 0 31 2 *"), Cron("* * * * * *"),
        Cron("* * * * *", "Nowhere"), Cron("* * * * *", 5), Cron("* * * * *", "\x00"), Cron("* " * 200),
        Every(999), Every(0), Every(-1), Every("5000"), Every(None), Every(5_000.0), Every(HUGE), Every(5_000, -1),
        Every(5_000, HUGE), Every(5_000, "0"), Every(True),
    ),
    "overlap": _invalid("", "Skip", "wait", "skip\x00", 5, None, True, ["skip"], object()),
    "overlap?": _invalid("", "Skip", "wait", "skip\x00", 5, True, ["skip"], object()),
    "catch up": _invalid("", "some", "ALL", 5, None, True, ["all"], object()),
    "catch up limit": NO_NUMBER + NONE + _invalid(0, -1, 1_001, HUGE),
    "jitter": NO_NUMBER + NONE + _invalid(-1, 86_400_001, HUGE),
    "slot": NO_NUMBER + NONE + _invalid(-1, HUGE),
    "slot?": NO_NUMBER + _invalid(-1, HUGE),
    "slots": _invalid(5, "5", b"5", {5: 5}, [-1], ["5"], [None], [True], [1.5], [HUGE], [5] * 1_001),
    "burst": _invalid(
        5, None, "text", [], {"nonsense": 1}, {"lane_id": ""}, {"idempotency_key": "k"}, {"delay_until": 5},
        {"execution_id": f"{{fp:0}}:{UUID}"},
    ),
    "creation": _invalid(
        5, None, "text", b"bytes", True, [], {"nonsense": 1}, {5: 1}, {"lane_id": ""}, {"priority": "5"},
        {"execution_id": "x"}, {"tags": {"a": 5}}, {"input_payload": "text"},
    )
    + _refusals(ValidationKind.INVALID_POLICY_JSON, {"policy": 5}),
    "fair by": _invalid("", "tag", "tag:", "Namespace", "tag:a\nb", "tag:\x00", "\ud800", 5, True, ["namespace"]),
    "fields": _invalid(5, None, True, "lane_id", b"lane_id", [5], [None], [["lane_id"]]),
    "lease cursor": _invalid("x", 5, True, (1, "x"), object(), ExpiredLeaseCursor("5", f"{{fp:0}}:{UUID}"),
                             ExpiredLeaseCursor(5, "x"), ExpiredLeaseCursor(5, None)),
    "timer": _invalid("", "nonsense", "_tick_intake", 5, None, True, ["intake"], "intake\x00", "\ud800"),
    "phase": _invalid("", "nonsense", 5, None, True, ["attempt_timeout"], "attempt_timeout\x00"),
    "filter": _invalid(
        "x", 5, True, {"namespace": "x"}, object(), ScannerFilter(5), ScannerFilter("nul \x00"),
        ScannerFilter("\ud800"), ScannerFilter(None, "x"), ScannerFilter(None, ("a",)),
        ScannerFilter(None, ("a", 5)), ScannerFilter(None, (5, "a")),
        ScannerFilter(None, ("nul \x00", "a")), ScannerFilter(None, ("a", "\ud800")), ScannerFilter(None, 5),
    ),
    "family": _invalid("", "lease", "COMPLETION", "completion\x00", "\ud800", 5, None, True, ["completion"], object()),
    "event cursor": _invalid(
        None, 5, True, "", "text", bytearray(9), b"x", b"\x02", b"\x02" + bytes(7), b"\x02" + bytes(9), bytes(9),
        b"\x01" + bytes(16), b"\x01" + bytes(8), b"\x03" + bytes(8), b"\x02" + b"\xff" * 8, bytes(1_000_000),
        b"\x02\x7f" + b"\xff" * 7,
    ),
    "event filter": _invalid(
        "x", 5, True, {"namespace": "x"}, object(), ScannerFilter(5), ScannerFilter("nul \x00"),
        ScannerFilter("\ud800"), ScannerFilter(None, "x"), ScannerFilter(None, ("cairn.instance_id",)),
        ScannerFilter(None, ("cairn.instance_id", 5)), ScannerFilter(None, (5, "a")), ScannerFilter(None, ("a.b", "x")),
        ScannerFilter("ok", ("", "x")), ScannerFilter(None, ("cairn.instance_id", "\ud800")),
    ),
    "callable?": _invalid(5, True, "x", [], object()),
    "flag": _invalid(None, 0, 1, "", "yes", [], object()),
    "intervals": _invalid(5, "x", True, [("intake", 5)], {"nonsense": 5}, {"intake": "5"}, {"intake": None},
                          {"intake": 1.5}, {5: 5}),
}  # fmt: skip
