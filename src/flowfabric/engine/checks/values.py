"""Checks of single values: a wrong one is a typed error before anything is touched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.handles import Handle
from flowfabric.model.ids import (
    ExecutionId,
    ExecutionIdError,
    LaneId,
    LaneIdError,
    LeaseFence,
    canonical_uuid,
    check_capabilities as _check_tokens,
    check_tag_key,
)
from flowfabric.model.jsontext import holds_nul, nests_deeper
from flowfabric.model.limits import (
    MAX_JSON_DEPTH,
    MAX_LANES,
    MAX_NAME_BYTES,
    MAX_NAMESPACES,
    MAX_PAGE,
    MAX_PAYLOAD_BYTES,
    MAX_REASON_BYTES,
    MAX_TAGS,
    MAX_TTL_MS,
    MAX_WEIGHT,
)
from flowfabric.model.operations.executions import (
    ClaimPolicy,
    ExpiredLeaseCursor,
    ResumeGrant,
    ResumeToken,
    ScannerFilter,
)
from flowfabric.model.operations.flows import AllOf, AnyOf, EdgePolicy, OnSatisfied, Quorum
from flowfabric.model.ownership import is_name
from flowfabric.model.quoting import quoted
from flowfabric.model.reads.subscriptions import EventFamily, event_id_of
from flowfabric.model.states import INSTANCE_TAG, PublicState

_MAX_I64 = 2**63 - 1
_MAX_I32 = 2**31 - 1
_known_lanes: set[str] = set()
_ON_SATISFIED = tuple(OnSatisfied)


def invalid(detail: str) -> Validation:
    """The error for a value that is not what it should be."""
    return Validation(ValidationKind.INVALID_INPUT, detail)


def text(value: Any, name: str, limit: int = MAX_NAME_BYTES, *, empty: bool = True) -> str:
    """A text every store can hold: valid Unicode, no NUL, not too long."""
    if not isinstance(value, str):
        raise invalid(f"{name}: expected text, got {type(value).__name__}")
    plain = value if type(value) is str else str.__str__(value)
    if not plain:
        if empty:
            return plain
        raise invalid(f"{name}: must not be empty")
    if plain.isascii():
        size = len(plain)
    else:
        try:
            size = len(plain.encode())
        except UnicodeEncodeError:
            raise invalid(f"{name}: not valid Unicode") from None
    if size > limit:
        raise invalid(f"{name}: {size} bytes, at most {limit} are allowed")
    if "\x00" in plain:
        raise invalid(f"{name}: must not contain NUL")
    return plain


def optional_text(value: Any, name: str, limit: int = MAX_NAME_BYTES) -> str | None:
    """A text or nothing."""
    return None if value is None else text(value, name, limit)


def reason(value: Any, name: str = "reason") -> str:
    """A longer text: why something was done."""
    return text(value, name, MAX_REASON_BYTES)


def integer(value: Any, name: str, low: int, high: int) -> int:
    """A whole number within bounds; booleans are not numbers here."""
    if type(value) is not int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise invalid(f"{name}: expected a whole number, got {type(value).__name__}")
        value = int(value)
    if not low <= value <= high:
        raise invalid(f"{name}: {quoted(value)} is not between {low} and {high}")
    return int(value)


def saturating(value: Any, name: str, low: int, high: int) -> int:
    """A whole number, moved to the nearer end of its range."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid(f"{name}: expected a whole number, got {type(value).__name__}")
    return min(max(int(value), low), high)


def time_ms(value: Any, name: str) -> int:
    """A point in time; beyond 64 bits means the last one there is."""
    return saturating(value, name, 0, _MAX_I64)


def optional_time_ms(value: Any, name: str) -> int | None:
    """A point in time or nothing."""
    return None if value is None else time_ms(value, name)


def ttl_ms(value: Any, name: str) -> int:
    """How long a lease or grant lasts: at least a millisecond."""
    return integer(value, name, 1, MAX_TTL_MS)


def partition(value: Any) -> int:
    """The index of a partition, whether this store has it or not."""
    return integer(value, "partition", 0, 0xFFFF)


def optional_partition(value: Any) -> int | None:
    """The index of a partition or nothing."""
    return None if value is None else partition(value)


def priority(value: Any) -> int:
    """Any 32-bit number; rules clamp it."""
    return saturating(value, "priority", -_MAX_I32 - 1, _MAX_I32)


def execution_id(value: Any, name: str = "execution_id") -> ExecutionId:
    """A well-formed execution id."""
    if type(value) is ExecutionId:
        return value
    if not isinstance(value, str):
        raise invalid(f"{name}: expected text, got {type(value).__name__}")
    try:
        return ExecutionId.parse(value)
    except ExecutionIdError as error:
        raise invalid(f"{name}: {error}") from None


def flow_id(value: Any) -> str:
    """Hyphenated text of a flow id."""
    return uuid(value, "flow_id")


def uuid(value: Any, name: str) -> str:
    """Hyphenated text of a UUID."""
    found = canonical_uuid(value)
    if found is None:
        raise invalid(f"{name}: not a UUID")
    return str.__str__(found)


def gate_name(value: Any, name: str) -> str:
    """What a budget or quota is stored under, as a page's cursor says it."""
    if not isinstance(value, str) or not is_name(value):
        raise invalid(f"{name}: not a cursor of this list; pass the cursor of a page unchanged")
    return str.__str__(value)


def lane(value: Any, name: str = "lane_id") -> str:
    """A lane name within the rules for them."""
    if type(value) is str and value in _known_lanes:
        return value
    if not isinstance(value, str):
        raise invalid(f"{name}: expected text, got {type(value).__name__}")
    try:
        checked = str.__str__(LaneId(value))
    except LaneIdError as error:
        raise invalid(f"{name}: {error}") from None
    if len(_known_lanes) < 10_000:
        _known_lanes.add(checked)
    return checked


def weighted_lanes(value: Any) -> tuple[tuple[str, int], ...]:
    """Lanes with the weights they are served by, in order of their names."""
    if not isinstance(value, Mapping):
        raise invalid(f"lanes: expected a mapping of lanes to weights, got {type(value).__name__}")
    if not 1 <= len(value) <= MAX_LANES:
        raise invalid(f"lanes: expected 1 to {MAX_LANES}, got {len(value)}")
    lanes = {
        lane(name, "lanes"): integer(weight, f"weight of {quoted(name)}", 1, MAX_WEIGHT)
        for name, weight in value.items()
    }
    return tuple(sorted(lanes.items()))


def optional_lane(value: Any) -> str | None:
    """A lane name or nothing."""
    return None if value is None else lane(value)


def edge_policy(value: Any) -> EdgePolicy:
    """How a group of edges counts: a policy, or its JSON form as a mapping."""
    if isinstance(value, Mapping):
        value = _edge_policy_of(value)
    if isinstance(value, AllOf):
        return value
    if not isinstance(value, AnyOf | Quorum):
        raise invalid(f"policy: expected AllOf, AnyOf or Quorum, got {type(value).__name__}")
    if value.on_satisfied not in _ON_SATISFIED:
        raise invalid(f"policy.on_satisfied: {quoted(value.on_satisfied)} is not one of {', '.join(_ON_SATISFIED)}")
    mode = OnSatisfied(value.on_satisfied)
    if isinstance(value, AnyOf):
        return AnyOf(mode)
    if isinstance(value.k, bool) or not isinstance(value.k, int):
        raise invalid(f"policy.k: expected a whole number, got {type(value.k).__name__}")
    if value.k < 1:
        raise invalid("quorum k must be >= 1")
    if value.k > _MAX_I32:
        raise invalid("quorum k exceeds supported maximum")
    return Quorum(int(value.k), mode)


def _edge_policy_of(value: Mapping[Any, Any]) -> Any:
    mode: Any = value.get("on_satisfied")
    match value.get("kind"):
        case "all_of":
            return AllOf()
        case "any_of":
            return AnyOf(mode)
        case "quorum":
            return Quorum(value.get("k"), mode)  # type: ignore[arg-type]
        case kind:
            raise invalid(f"policy.kind: {quoted(kind)} is not one of all_of, any_of, quorum")


def sequence(value: Any, name: str) -> Iterable[Any]:
    """Several things; a text or a mapping is one thing."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise invalid(f"{name}: expected a list, got {type(value).__name__}")
    return value


def few(value: Any, name: str, most: int = MAX_PAGE) -> list[Any]:
    """Several things, but not so many that to look at each would take long."""
    found = list(sequence(value, name))
    if len(found) > most:
        raise invalid(f"{name}: at most {most:,} at once, got {len(found):,}")
    return found


def payload(value: Any, name: str) -> bytes | None:
    """Bytes within the limit, or nothing."""
    if value is None:
        return None
    if isinstance(value, bytearray | memoryview):
        value = bytes(value)
    if not isinstance(value, bytes):
        raise invalid(f"{name}: expected bytes, got {type(value).__name__}")
    if len(value) > MAX_PAYLOAD_BYTES:
        raise Validation(
            ValidationKind.PAYLOAD_TOO_LARGE,
            f"{name}: {len(value)} bytes, at most {MAX_PAYLOAD_BYTES} are allowed; keep large data elsewhere "
            "and pass a reference",
        )
    return value


def encoded_payload(value: Any, name: str, encoding: Any) -> bytes | None:
    """The same; what is said to be JSON nests no deeper than its readers can follow."""
    found = payload(value, name)
    if found is not None and encoding == "json" and nests_deeper(found, MAX_JSON_DEPTH) and _is_json(found):
        raise invalid(f"{name}: JSON may nest at most {MAX_JSON_DEPTH} levels; make it flatter, or store it elsewhere")
    return found


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except msgspec.MsgspecError:
        return False
    except RecursionError:
        return True
    return True


def tags(value: Any) -> dict[str, str] | None:
    """Texts by key. Keys are free at creation; setting a tag later wants a dotted key."""
    if not value:
        if value is None or isinstance(value, Mapping):
            return None
        raise invalid(f"tags: expected a mapping, got {type(value).__name__}")
    if not isinstance(value, Mapping):
        raise invalid(f"tags: expected a mapping, got {type(value).__name__}")
    if len(value) > MAX_TAGS:
        raise invalid(f"tags: {len(value)}, at most {MAX_TAGS} are allowed")
    return {text(key, "tag key"): text(each, f"tag {quoted(key)}", MAX_REASON_BYTES) for key, each in value.items()}


def tag_key(value: Any) -> str:
    """A dotted key."""
    if not isinstance(value, str):
        raise invalid(f"tag key: expected text, got {type(value).__name__}")
    check_tag_key(value)
    return text(value, "tag key")


def dotted_tags(value: Any) -> dict[str, str]:
    """Texts by dotted key."""
    if not isinstance(value, Mapping):
        raise invalid(f"tags: expected a mapping, got {type(value).__name__}")
    if len(value) > MAX_TAGS:
        raise invalid(f"tags: {len(value)}, at most {MAX_TAGS} are allowed")
    for key in value:
        try:
            tag_key(key)
        except Validation as error:
            raise Validation(ValidationKind.INVALID_TAG_KEY, error.detail) from None
    return {str.__str__(key): text(each, f"tag {quoted(key)}", MAX_REASON_BYTES) for key, each in value.items()}


def json_object(value: Any, name: str) -> str:
    """The text of a JSON object, or nothing: a text that is not JSON must not reach a JSON column."""
    found = text("" if value is None else value, name, MAX_REASON_BYTES)
    if not found:
        return found
    try:
        document = msgspec.json.decode(found)
    except (msgspec.MsgspecError, RecursionError):
        document = None
    if not isinstance(document, dict) or holds_nul(found) or nests_deeper(found.encode(), MAX_JSON_DEPTH):
        raise invalid(f"{name}: not a JSON object that can be stored")
    return found


def handle(value: Any) -> Handle:
    """A handle, no matter which backend minted it."""
    if not isinstance(value, Handle):
        raise invalid(f"handle: expected a Handle, got {type(value).__name__}")
    return value


def fence(value: Any) -> LeaseFence | None:
    """A fence triple, whole or not, or nothing."""
    if value is None:
        return None
    if not isinstance(value, LeaseFence):
        raise invalid(f"fence: expected a LeaseFence, got {type(value).__name__}")
    found = lease_id(value.lease_id, "fence.lease_id")
    optional_text(value.attempt_id, "fence.attempt_id")
    if value.lease_epoch is not None:
        saturating(value.lease_epoch, "fence.lease_epoch", 0, _MAX_I64)
    return value if found == value.lease_id else replace(value, lease_id=found)


def lease_id(value: Any, name: str) -> str | None:
    """The id of a lease as it is stored, if it is one; another text fits no lease."""
    text = optional_text(value, name)
    return text if text is None else canonical_uuid(text) or text


def claim_policy(value: Any) -> ClaimPolicy:
    """Who claims; its members are checked one by one."""
    if not isinstance(value, ClaimPolicy):
        raise invalid("policy: expected a ClaimPolicy with worker_id and worker_instance_id")
    return value


def resume_token(value: Any) -> ResumeToken:
    """A resume grant in the hands of a worker, everything in it well-formed."""
    if not isinstance(value, ResumeToken) or not isinstance(value.grant, ResumeGrant):
        raise invalid("token: expected a ResumeToken with a ResumeGrant")
    execution_id(value.grant.execution_id)
    lane(value.grant.lane_id)
    saturating(value.grant.expires_at_ms, "grant.expires_at_ms", 0, _MAX_I64)
    return ResumeToken(
        value.grant,
        text(value.worker_id, "worker_id", empty=False),
        text(value.worker_instance_id, "worker_instance_id", empty=False),
        ttl_ms(value.lease_ttl_ms, "lease_ttl_ms"),
    )


def lease_cursor(value: Any) -> tuple[int, str] | tuple[None, None]:
    """The position after an expired lease, or the beginning."""
    if value is None:
        return None, None
    if not isinstance(value, ExpiredLeaseCursor):
        raise invalid(f"after: expected an ExpiredLeaseCursor, got {type(value).__name__}")
    return time_ms(value.expires_at_ms, "after.expires_at_ms"), str.__str__(
        execution_id(value.execution_id, "after.execution_id")
    )


def suspended_cursor(value: Any) -> tuple[int | None, str | None]:
    """A place among suspended executions: when the one before was suspended, if the cursor says so, and its UUID."""
    if value is None:
        return None, None
    time, dot, identity = value.partition(".") if type(value) is str else ("", "", value)
    if not dot:
        return None, execution_id(value, "cursor").uuid_text
    if not (time.isascii() and time.isdigit()) or len(time) > 19:
        raise invalid(f"cursor: {quoted(value)} is not the next_cursor of a page, nor the id of an execution")
    return time_ms(int(time), "cursor"), execution_id(identity, "cursor").uuid_text


def scanner_filter(value: Any) -> ScannerFilter:
    """What a scan is narrowed to; nothing means everything."""
    if value is None:
        return ScannerFilter()
    if not isinstance(value, ScannerFilter):
        raise invalid(f"filter: expected a ScannerFilter, got {type(value).__name__}")
    optional_text(value.namespace, "filter.namespace")
    tag: Any = value.instance_tag
    if tag is not None:
        if not isinstance(tag, tuple) or len(tag) != 2:
            raise invalid("filter.instance_tag: expected a key and a value")
        text(tag[0], "filter.instance_tag key")
        text(tag[1], "filter.instance_tag value", MAX_REASON_BYTES)
    return value


def event_filter(value: Any) -> tuple[str | None, str | None]:
    """Namespace and instance tag a subscriber asks for. Events carry the value of one tag only."""
    wanted = scanner_filter(value)
    if wanted.instance_tag is None:
        return wanted.namespace, None
    key, tag = wanted.instance_tag
    if key != INSTANCE_TAG:
        raise invalid(f"filter.instance_tag: events are filtered by the tag {INSTANCE_TAG!r} only, not {quoted(key)}")
    return wanted.namespace, tag


def event_cursor(value: Any) -> int | None:
    """The event a cursor stands behind; nothing for the cursor that means "from now on"."""
    if not isinstance(value, bytes):
        raise invalid(f"cursor: expected bytes, got {type(value).__name__}; use cursor_from_text to convert text")
    return event_id_of(value) if value else None


def event_family(value: Any) -> EventFamily:
    """One of the outboxes."""
    if value not in tuple(EventFamily):
        raise invalid(f"family: {quoted(value)} is not one of {', '.join(EventFamily)}")
    return EventFamily(value)


def optional_callable(value: Any, name: str) -> Any:
    """Something to call, or nothing."""
    if value is not None and not callable(value):
        raise invalid(f"{name}: expected a function, got {type(value).__name__}")
    return value


def choice(value: Any, name: str, known: tuple[str, ...]) -> str:
    """One of some words."""
    if type(value) is not str or value not in known:
        raise invalid(f"{name}: {quoted(value)} is not one of {', '.join(known)}")
    return value


def flag(value: Any, name: str) -> bool:
    """True or false."""
    if type(value) is not bool:
        raise invalid(f"{name}: expected True or False, got {type(value).__name__}")
    return value


def capabilities(value: Iterable[Any] | None) -> frozenset[str]:
    """What a worker can do."""
    if value is None:
        return frozenset()
    return frozenset(capability_list(value))


def namespaces(value: Iterable[Any] | None) -> frozenset[str] | None:
    """The namespaces that count; ``None`` means all."""
    if value is None:
        return None
    return frozenset([text(each, "namespaces") for each in few(value, "namespaces", MAX_NAMESPACES)])


def capability_list(value: Iterable[Any] | None) -> tuple[str, ...]:
    """What a worker can do, sorted."""
    if value is None:
        return ()
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise Validation(ValidationKind.INVALID_CAPABILITIES, "worker:not_array")
    return tuple(map(str.__str__, _check_tokens(value, "worker")))


# -- where a page of a list ends: cursors of two texts, and the namespaces that a list is about ----------------------

_TEXTS = msgspec.json.Decoder(tuple[str, str])


def sorted_namespaces(value: Any) -> tuple[str, ...] | None:
    """Namespaces that a search names, in order."""
    found = namespaces(value)
    return None if found is None else tuple(sorted(found))


def pair_of_cursor(cursor: Any) -> tuple[str, str] | None:
    """Namespace and name that a cursor stands for."""
    if cursor is None:
        return None
    try:
        first, second = _TEXTS.decode(text(cursor, "cursor"))
    except msgspec.DecodeError:
        raise invalid("cursor: not a valid cursor; pass the cursor of a page unchanged") from None
    return text(first, "cursor"), text(second, "cursor")


def cursor_of_pair(place: tuple[str, str]) -> str:
    """The cursor behind a namespace and name."""
    return msgspec.json.encode(place).decode()


def public_state(value: Any) -> str:
    """One of the states that people see."""
    known = [each.value for each in PublicState]
    if not isinstance(value, str) or str.__str__(value) not in known:
        raise invalid(f"states: {quoted(value)} is not one of {', '.join(known)}")
    return str.__str__(value)
