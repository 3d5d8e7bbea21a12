"""What callers hand in, checked at the door: a wrong value is a typed error before anything is touched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.ids import ExecutionId, ExecutionIdError, LaneId, LaneIdError, canonical_uuid
from flowfabric.model.ids import check_capabilities as _check_tokens
from flowfabric.model.limits import MAX_NAME_BYTES, MAX_PAYLOAD_BYTES, MAX_REASON_BYTES, MAX_TAGS, MAX_TTL_MS

_MAX_I64 = 2**63 - 1
_MAX_I32 = 2**31 - 1
_known_lanes: set[str] = set()


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
        raise invalid(f"{name}: {value} is not between {low} and {high}")
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


def priority(value: Any) -> int:
    """Any 32-bit number; rules clamp it."""
    return saturating(value, "priority", -_MAX_I32 - 1, _MAX_I32)


def execution_id(value: Any) -> ExecutionId:
    """A well-formed execution id."""
    if type(value) is ExecutionId:
        return value
    if not isinstance(value, str):
        raise invalid(f"execution_id: expected text, got {type(value).__name__}")
    try:
        return ExecutionId.parse(value)
    except ExecutionIdError as error:
        raise invalid(f"execution_id: {error}") from None


def flow_id(value: Any) -> str:
    """Hyphenated text of a flow id."""
    return uuid(value, "flow_id")


def uuid(value: Any, name: str) -> str:
    """Hyphenated text of a UUID."""
    found = canonical_uuid(value)
    if found is None:
        raise invalid(f"{name}: not a UUID")
    return str.__str__(found)


def lane(value: Any) -> str:
    """A lane name within the rules for them."""
    if type(value) is str and value in _known_lanes:
        return value
    if not isinstance(value, str):
        raise invalid(f"lane_id: expected text, got {type(value).__name__}")
    try:
        checked = str.__str__(LaneId(value))
    except LaneIdError as error:
        raise invalid(f"lane_id: {error}") from None
    if len(_known_lanes) < 10_000:
        _known_lanes.add(checked)
    return checked


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
            f"{name}: {len(value)} bytes, at most {MAX_PAYLOAD_BYTES} are stored; keep large data elsewhere "
            "and pass a reference",
        )
    return value


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
    return {text(key, "tag key"): text(each, f"tag {key!r}", MAX_REASON_BYTES) for key, each in value.items()}


def capabilities(value: Iterable[Any] | None) -> frozenset[str]:
    """What a worker can do."""
    if not value:
        return frozenset()
    return frozenset(capability_list(value))


def capability_list(value: Iterable[Any] | None) -> tuple[str, ...]:
    """What a worker can do, sorted."""
    if value is None:
        return ()
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise Validation(ValidationKind.INVALID_CAPABILITIES, "worker:not_array")
    return tuple(map(str.__str__, _check_tokens(value, "worker")))
