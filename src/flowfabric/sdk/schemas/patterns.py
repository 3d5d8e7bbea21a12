"""Regular expressions of schemas, matched in bounded time.

A pattern may come from anybody who can ask a question, and ``re`` may take longer than a lifetime over it. Here a
pattern is followed from all places of the text at once, so that nothing is tried twice. It says the same as ``re``
but for ``$``, which means the very end. Lookbehinds, back references, flags, and groups and repetitions that never
give back are not followed: a question with such a pattern is not asked.
"""

from __future__ import annotations

import re
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final, TypeAlias

#: Characters of a pattern that is followed, and how deep its groups may nest.
MAX_PATTERN: Final = 1_000
MAX_GROUPS: Final = 40
#: Steps that reading a pattern is worth, per character of it.
READING: Final = 3

_parser: Any = re._parser  # type: ignore[attr-defined]
_CATEGORIES: Final[dict[str, Callable[[str], bool]]] = {
    "CATEGORY_DIGIT": str.isdecimal,
    "CATEGORY_NOT_DIGIT": lambda one: not one.isdecimal(),
    "CATEGORY_SPACE": str.isspace,
    "CATEGORY_NOT_SPACE": lambda one: not one.isspace(),
    "CATEGORY_WORD": lambda one: one.isalnum() or one == "_",
    "CATEGORY_NOT_WORD": lambda one: not (one.isalnum() or one == "_"),
}
_BEGINNINGS: Final = ("AT_BEGINNING", "AT_BEGINNING_STRING")
_ENDS: Final = ("AT_END", "AT_END_STRING")
#: Ranges of a class that have no more characters than this are written out.
_FEW: Final = 512
#: Places that one step is worth, for what is simple and for what is not.
_MANY_PLACES, _SOME_PLACES, _FEW_PLACES = 16, 8, 2

#: Is told of the work before it is done, and raises if there has been too much of it.
Step: TypeAlias = Callable[[int], None]
#: Where a part of a pattern leads to in a text, from any of these places.
_Part: TypeAlias = Callable[[str, set[int], Step], set[int]]


class NotFollowed(Exception):
    """The pattern has something in it that is not followed."""


class Pattern:
    """A pattern that is followed."""

    def __init__(self, parts: Iterable[Any]) -> None:
        said = list(parts)
        self._parts = _sequence(said, 0)
        self._at_beginning = bool(said) and _name(said[0][0]) == "AT" and _name(said[0][1]) in _BEGINNINGS

    def is_in(self, text: str, step: Step) -> bool:
        """Whether it is found in a text."""
        if self._at_beginning:
            return bool(_through(self._parts, text, {0}, step))
        step(1 + len(text) // _MANY_PLACES)
        return bool(_through(self._parts, text, set(range(len(text) + 1)), step))


def read_pattern(pattern: str) -> Pattern | None:
    """What a pattern means; ``None`` if it is malformed or not supported."""
    return None if len(pattern) > MAX_PATTERN else _read(pattern)


@lru_cache(maxsize=256)
def _read(pattern: str) -> Pattern | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = _parser.parse(pattern)
        return Pattern(found) if found.state.flags in (0, re.UNICODE) else None
    except (re.error, RecursionError, OverflowError, ValueError, NotFollowed):
        return None


def _name(constant: Any) -> str:
    return str(constant)


def _through(parts: tuple[_Part, ...], text: str, places: set[int], step: Step) -> set[int]:
    """The places behind these parts, beginning at any of these places."""
    for part in parts:
        if not places:
            break
        places = part(text, places, step)
    return places


# -- what the parts of a pattern do ----------------------------------------------------------------------------------


def _sequence(parts: Iterable[Any], depth: int) -> tuple[_Part, ...]:
    if depth > MAX_GROUPS:
        raise NotFollowed("it nests too deeply")
    return tuple(_part(_name(kind), what, depth) for kind, what in parts)


def _part(kind: str, what: Any, depth: int) -> _Part:
    match kind:
        case "LITERAL":
            return _literal(chr(what))
        case "NOT_LITERAL":
            return _one_of(frozenset(chr(what)), True)
        case "ANY":
            return _one_of(frozenset("\n"), True)
        case "IN":
            return _class(what)
        case "BRANCH":
            return _branch([_sequence(each, depth + 1) for each in what[1]])
        case "SUBPATTERN" if not what[1] and not what[2]:
            return _group(_sequence(what[3], depth + 1))
        case "MAX_REPEAT" | "MIN_REPEAT":
            return _repeat(int(what[0]), int(what[1]), _sequence(what[2], depth + 1))
        case "AT" if _name(what) in _BEGINNINGS:
            return _at(lambda text: 0)
        case "AT" if _name(what) in _ENDS:
            return _at(len)
        case "AT" if _name(what) in ("AT_BOUNDARY", "AT_NON_BOUNDARY"):
            return _boundary(_name(what) == "AT_BOUNDARY")
        case "ASSERT" | "ASSERT_NOT" if what[0] == 1:
            return _ahead(_sequence(what[1], depth + 1), kind == "ASSERT")
    raise NotFollowed(kind)


def _literal(one: str) -> _Part:
    def follow(text: str, places: set[int], step: Step) -> set[int]:
        step(1 + len(places) // _SOME_PLACES)
        return {each + 1 for each in places if text[each : each + 1] == one}

    return follow


def _one_of(chars: frozenset[str], negated: bool) -> _Part:
    # Behind the end of a text there is no character, and so nothing that could be none of these.
    unfit = chars | {""} if negated else chars

    def follow(text: str, places: set[int], step: Step) -> set[int]:
        step(1 + len(places) // _SOME_PLACES)
        return {each + 1 for each in places if (text[each : each + 1] in unfit) is not negated}

    return follow


def _class(members: Iterable[Any]) -> _Part:
    negated = False
    chars: set[str] = set()
    ranges: list[tuple[int, int]] = []
    categories: dict[str, Callable[[str], bool]] = {}
    for kind, what in members:
        match _name(kind):
            case "NEGATE":
                negated = True
            case "LITERAL":
                chars.add(chr(what))
            case "RANGE" if what[1] - what[0] < _FEW:
                chars.update(map(chr, range(what[0], what[1] + 1)))
            case "RANGE":
                ranges.append((what[0], what[1]))
            case "CATEGORY" if _name(what) in _CATEGORIES:
                categories[_name(what)] = _CATEGORIES[_name(what)]
            case other:
                raise NotFollowed(other)
    if not ranges and not categories:
        return _one_of(frozenset(chars), negated)
    return _any_of(frozenset(chars), _Ranges(ranges), tuple(categories.values()), negated)


def _any_of(
    chars: frozenset[str], ranges: _Ranges, categories: tuple[Callable[[str], bool], ...], negated: bool
) -> _Part:
    def fits(one: str) -> bool:
        found = one in chars or ranges.holds(ord(one)) or any(each(one) for each in categories)
        return found is not negated

    def follow(text: str, places: set[int], step: Step) -> set[int]:
        step(1 + len(places) // _FEW_PLACES)
        return {each + 1 for each in places if each < len(text) and fits(text[each])}

    return follow


class _Ranges:
    """Ranges of characters, however many, looked up in a few steps."""

    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        joined: list[tuple[int, int]] = []
        for low, high in sorted(ranges):
            if joined and low <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(joined[-1][1], high))
            else:
                joined.append((low, high))
        self._lows = [low for low, _ in joined]
        self._highs = [high for _, high in joined]

    def holds(self, one: int) -> bool:
        at = bisect_right(self._lows, one) - 1
        return at >= 0 and one <= self._highs[at]


def _branch(choices: list[tuple[_Part, ...]]) -> _Part:
    def follow(text: str, places: set[int], step: Step) -> set[int]:
        step(len(choices) * (1 + len(places) // _MANY_PLACES))
        return set().union(*(_through(each, text, places, step) for each in choices))

    return follow


def _group(parts: tuple[_Part, ...]) -> _Part:
    def follow(text: str, places: set[int], step: Step) -> set[int]:
        step(1)
        return _through(parts, text, places, step)

    return follow


def _repeat(least: int, most: int, parts: tuple[_Part, ...]) -> _Part:
    def follow(text: str, places: set[int], step: Step) -> set[int]:
        for _ in range(least):
            if not places:
                return places
            step(1)
            places = _through(parts, text, places, step)
        step(1 + len(places) // _MANY_PLACES)
        found, new, count = set(places), places, least
        while new and count < most:
            step(len(new) // _MANY_PLACES)
            new = _through(parts, text, new, step) - found
            found |= new
            count += 1
        return found

    return follow


def _at(place_in: Callable[[str], int]) -> _Part:
    def follow(text: str, places: set[int], step: Step) -> set[int]:
        step(1)
        return places & {place_in(text)}

    return follow


def _boundary(wanted: bool) -> _Part:
    is_word = _CATEGORIES["CATEGORY_WORD"]

    def here(text: str, place: int) -> bool:
        before = place > 0 and is_word(text[place - 1])
        return before is not (place < len(text) and is_word(text[place]))

    def follow(text: str, places: set[int], step: Step) -> set[int]:
        step(1 + len(places) // _FEW_PLACES)
        # Whether an empty text has a place that is no boundary depends on who is asked: it is safe to say no.
        return {each for each in places if text and here(text, each) is wanted}

    return follow


def _ahead(parts: tuple[_Part, ...], wanted: bool) -> _Part:
    def follow(text: str, places: set[int], step: Step) -> set[int]:
        step(1 + len(places))
        return {each for each in places if bool(_through(parts, text, {each}, step)) is wanted}

    return follow
