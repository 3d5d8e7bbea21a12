"""The language of searches: ``charge lane:gpu tag:team=red error:"timed out" since:2h``.

A word with a name in front says what it is about; a word without one is the beginning of an id, or else part of a kind.
Everything has to fit. Texts are compared whatever the case of their ASCII letters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from flowfabric.engine.checks import values
from flowfabric.model.ids import ExecutionId
from flowfabric.model.quoting import quoted
from flowfabric.model.reads.search import USER_TAGS
from flowfabric.model.states import PublicState

#: How long a search may be.
MAX_BYTES = 4_096
#: Fewer digits of an id stand for too many.
LEAST_DIGITS = 4
#: Digits in the last group of a UUID.
MOST_LAST_DIGITS = 12
_PART = re.compile(r'(?:([A-Za-z_]+):)?(?:"([^"]*)"(?=\s|\Z)|(\S+))')
#: An id as it is printed: the beginning of a UUID, its end, or all of it, with its partition or without.
_ID = re.compile(
    r"(?:(?:\{fp:(\d{1,5})\}|(\d{1,5})):)?([0-9a-fA-F]{1,8}(?:-?[0-9a-fA-F]{0,4}){0,3}-?[0-9a-fA-F]{0,12})"
)
_SPAN = re.compile(r"(\d{1,9})\s*(ms|s|min|m|h|d|w)")
_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_FIRST, _LAST = "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"


class Sought(Struct):
    """What a search says. ``None`` and nothing fit all."""

    namespace: str | None = None
    lane_id: str | None = None
    states: tuple[str, ...] | None = None
    kind_parts: tuple[str, ...] = ()
    tags: tuple[tuple[tuple[str, ...], str], ...] = ()
    flow_id: str | None = None
    parent: str | None = None
    errors: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    #: A partition, or any, and the first and the last UUID.
    id: tuple[int | None, str, str] | None = None
    #: The same digits, if they may as well be the last ones of a UUID.
    id_end: str | None = None
    created_from: int | None = None
    created_before: int | None = None


def sought(text: Any, now_ms: int) -> Sought:
    """What a text says; one that says nothing known is refused with the words that are."""
    found = Sought()
    given = values.text(text, "query", MAX_BYTES)
    for match in _PART.finditer(given):
        name, inside, bare = match.groups()
        value = bare if inside is None else inside
        if name is None:
            _bare(found, value, is_quoted=inside is not None)
            continue
        word = _WORDS.get(name.lower())
        if word is None:
            raise values.invalid(f"query: unknown word {quoted(name + ':')}; known words are {known_words()}")
        if not value:
            raise values.invalid(f"query: {name.lower()}: needs a value")
        word(found, value, now_ms)
    return found


def known_words() -> str:
    """The words of the language, as a list for people."""
    return ", ".join(f"{name}:" for name in _WORDS if name not in _ALSO)


def tag_names(key: str) -> tuple[str, ...]:
    """The names under which a tag may be stored: what the SDK's users call ``team`` is ``user.team``."""
    return (key,) if "." in key else (key, f"{USER_TAGS}{key}")


def lowered(text: str) -> str:
    """In lower case, as far as it is ASCII."""
    return text.encode().lower().decode()


def _bare(found: Sought, value: str, *, is_quoted: bool) -> None:
    if not is_quoted and (":" in value or len(value) >= 8) and _ID.fullmatch(value):
        _id(found, value, 0)
    elif not is_quoted and re.match(r"[A-Za-z_]+:", value):
        name = value.partition(":")[0].lower()
        reason = f"{name}: needs a value" if name in _WORDS else f"unknown word {quoted(name + ':')}"
        raise values.invalid(f"query: {reason}; known words are {known_words()}")
    else:
        _kind(found, value, 0)


def _kind(found: Sought, value: str, _: int) -> None:
    found.kind_parts += (lowered(value),)


def _error(found: Sought, value: str, _: int) -> None:
    found.errors += (lowered(value),)


def _worker(found: Sought, value: str, _: int) -> None:
    found.workers += (lowered(value),)


def _id(found: Sought, value: str, _: int) -> None:
    match = _ID.fullmatch(value)
    digits = "" if match is None else match[3].replace("-", "").lower()
    if match is None or len(digits) < LEAST_DIGITS:
        raise values.invalid(
            f"query: id: {quoted(value)} is not an id, nor the first {LEAST_DIGITS} or more digits of one or the last"
        )
    partition = match[1] or match[2]
    low, high = (_dashed(digits + filling[len(digits) :]) for filling in (_bare_of(_FIRST), _bare_of(_LAST)))
    found.id = (None if partition is None else int(partition), low, high)
    if partition is None and "-" not in value and len(digits) <= MOST_LAST_DIGITS:
        found.id_end = digits


def _bare_of(uuid: str) -> str:
    return uuid.replace("-", "")


def _dashed(digits: str) -> str:
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _tag(found: Sought, value: str, _: int) -> None:
    key, equals, wanted = value.partition("=")
    if not equals or not key:
        raise values.invalid(f"query: tag: {quoted(value)}: expected key=value, as in tag:team=red")
    found.tags += ((tag_names(key), wanted),)


def _state(found: Sought, value: str, _: int) -> None:
    known = [each.value for each in PublicState]
    for each in value.split(","):
        if each not in known:
            raise values.invalid(f"query: state: {quoted(each)} is not one of {', '.join(known)}")
    found.states = tuple(each for each in value.split(",") if found.states is None or each in found.states)


def _once(field: str, name: str, check: Callable[[str], Any]) -> Callable[[Sought, str, int], None]:
    """A word for what an execution has one of."""

    def put(found: Sought, value: str, _: int) -> None:
        if getattr(found, field) is not None:
            raise values.invalid(f"query: {name}: can be given only once")
        setattr(found, field, check(value))

    return put


def _parent(value: str) -> str:
    match = re.fullmatch(r"(\d{1,5}):(.+)", value)
    whole = value if match is None else f"{{fp:{match[1]}}}:{match[2]}"
    return str(ExecutionId.unchecked(values.execution_id(whole, "query: parent")))


def _since(found: Sought, value: str, now_ms: int) -> None:
    found.created_from = max(found.created_from or 0, moment(value, "since", now_ms))


def _until(found: Sought, value: str, now_ms: int) -> None:
    at = moment(value, "until", now_ms)
    found.created_before = at if found.created_before is None else min(found.created_before, at)


def moment(value: str, name: str, now_ms: int) -> int:
    """``2h`` is two hours ago, ``2026-07-01`` the beginning of that day in UTC. A time is in UTC unless it names its
    zone."""
    span = _SPAN.fullmatch(value)
    if span is not None:
        return max(0, now_ms - int(span[1]) * _UNITS[span[2]])
    try:
        at = datetime.fromisoformat(value)
        return max(0, int((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1_000))
    except (ValueError, OverflowError):
        expected = "expected a time span such as 15min, 2h or 7d, or a time such as 2026-07-01T12:00Z"
        raise values.invalid(f"query: {name}: {quoted(value)}: {expected}") from None


_WORDS: Mapping[str, Callable[[Sought, str, int], None]] = {
    "kind": _kind,
    "id": _id,
    "state": _state,
    "lane": _once("lane_id", "lane", values.lane),
    "tag": _tag,
    "error": _error,
    "worker": _worker,
    "flow": _once("flow_id", "flow", values.flow_id),
    "parent": _once("parent", "parent", _parent),
    "namespace": _once("namespace", "namespace", lambda value: value),
    "ns": _once("namespace", "namespace", lambda value: value),
    "since": _since,
    "until": _until,
}
#: Other names of words.
_ALSO = frozenset({"ns"})
