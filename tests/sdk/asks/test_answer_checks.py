"""Answers are checked before they are taken: whatever the check accepts, the reader of the type accepts."""

from __future__ import annotations

import enum
import itertools
import json
import time as clock
import uuid
from collections.abc import Callable
from dataclasses import make_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import event, given, settings, strategies as st
from msgspec import Meta

from flowfabric.sdk.asks.answer_checks import MAX_STEPS, check_against
from flowfabric.sdk.definitions.codec import CodecError, codec_for
from flowfabric.sdk.schemas.checks import check_asked
from flowfabric.sdk.schemas.from_types import schema_of
from tests.conftest import full_run

EXAMPLES = 5_000 if full_run() else 400
ID = "0f6a1a3c-6f0e-4d8e-9b54-2d1f8a7c9e10"


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    S = 1
    M = 2


class Payment(pydantic.BaseModel):
    amount: Annotated[Decimal, pydantic.Field(gt=0, max_digits=6, decimal_places=2)]
    due: date
    note: str | None = None


class Card(msgspec.Struct, tag=True):
    number: str
    until: date


class Cash(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    at: datetime


class Pair(NamedTuple):
    left: int
    right: Decimal


class Tree(msgspec.Struct):
    kids: list[Tree]
    at: time | None = None


#: Types, what fits, and what does not, with the place that is named.
TABLE: list[tuple[Any, list[Any], list[tuple[Any, str]]]] = [
    (bool, [True, False], [(1, "it"), ("true", "it"), (None, "it")]),
    (int, [0, -5, 2**80], [(True, "it"), (1.5, "it"), ("1", "it"), ("", "it")]),
    (float, [0, 1.5, -1e300], [("1.5", "it"), (10**400, "it"), (False, "it")]),
    (Annotated[int, Meta(ge=1, lt=10, multiple_of=3)], [3, 9], [(0, "it"), (10, "it"), (4, "it")]),
    (Annotated[float, Meta(gt=0, le=1)], [0.5, 1], [(0, "it"), (1.01, "it")]),
    (Annotated[str, Meta(min_length=2, max_length=3)], ["ab", "äöü"], [("", "it"), ("a", "it"), ("abcd", "it")]),
    (Annotated[str, Meta(pattern="^[A-Z]{2}-(\\d+|none)$")], ["AB-1", "AB-none"], [("ab-1", "it"), ("AB-", "it")]),
    (Decimal, ["1", "-12.50", "1E+3"], [("", "it"), ("x", "it"), ("NaN", "it"), (" 1", "it"), ("1_0", "it")]),
    (date, ["2030-02-28"], [("", "it"), ("2030-02-30", "it"), ("28.2.2030", "it")]),
    (datetime, ["2030-02-28T12:00:00", "2030-02-28T12:00:00Z"], [("", "it"), ("2030-02-28", "it"), (0, "it")]),
    (Annotated[datetime, Meta(tz=True)], ["2030-02-28T12:00:00+02:00"], [("2030-02-28T12:00:00", "it")]),
    (Annotated[datetime, Meta(tz=False)], ["2030-02-28T12:00:00"], [("2030-02-28T12:00:00Z", "it")]),
    (time, ["12:30:00"], [("", "it"), ("25:00:00", "it")]),
    (timedelta, ["P1DT2H"], [("", "it"), ("1 day", "it")]),
    (uuid.UUID, [ID], [("", "it"), (ID[:-1], "it")]),
    (Annotated[bytes, Meta(min_length=2, max_length=3)], ["QUI="], [("QQ==", "it"), ("QUJDRA==", "it"), ("?", "it")]),
    (Colour, ["red"], [("green", "it"), ("", "it")]),
    (Size, [1], [(3, "it"), (True, "it")]),
    (Literal["a", 1], ["a", 1], [("b", "it"), (True, "it")]),
    (Decimal | None, [None, "1"], [("", "it")]),
    (list[date], [[], ["2030-01-01"]], [(["2030-01-01", ""], "[1]"), ({}, "it")]),
    (Annotated[list[int], Meta(min_length=1)], [[1]], [([], "it")]),
    (set[int], [[1, 2]], [(["1"], "[0]")]),
    (tuple[int, str], [[1, "a"]], [([1], "it"), ([1, "a", 2], "it"), (["a", 1], "[0]")]),
    (dict[str, Decimal], [{"a": "1"}], [({"a": ""}, "a")]),
    (dict[Decimal, bool], [{"1": True}, {"-1.5E+3": False}], [({"01": True}, "01"), ({"+1": True}, "+1")]),
    (dict[int, str], [{"1": "a"}], [({"a": "a"}, "a"), ({"": "a"}, "''")]),
    (dict[date, int], [{"2030-01-01": 1}], [({"soon": 1}, "soon")]),
    (dict[Colour, int], [{"red": 1}], [({"green": 1}, "green")]),
    (Pair, [[1, "2"]], [([1, ""], "[1]"), ([1], "it")]),
    (Card | Cash | None, [None, {"type": "Cash", "at": "2030-01-01T00:00:00"}], [
        ({"type": "Cash", "at": ""}, "at"), ({"type": "Card", "number": "1"}, "until"), ({"type": "Coin"}, "it"),
        ({"type": "Cash", "at": "2030-01-01T00:00:00", "tip": 1}, "tip"),
    ]),
    (Tree, [{"kids": [{"kids": [], "at": "12:00:00"}]}], [({"kids": [{"kids": [], "at": ""}]}, "kids[0].at")]),
    (Payment, [{"amount": "12.50", "due": "2030-01-01"}, {"amount": 3, "due": "2030-01-01"}], [
        ({"amount": "", "due": "2030-01-01"}, "amount"), ({"amount": "12.505", "due": "2030-01-01"}, "amount"),
        ({"amount": "0", "due": "2030-01-01"}, "amount"), ({"amount": "1", "due": ""}, "due"), ({"due": 1}, "amount"),
        ({"amount": "12345.6", "due": "2030-01-01"}, "amount"),
    ]),
    (Annotated[str, pydantic.Field(pattern="^a+$")], ["aaa"], [("", "it"), ("b", "it")]),
    (Annotated[dict[Annotated[str, pydantic.Field(pattern="^a")], int], pydantic.Field(min_length=1)], [{"ab": 1}], [
        ({"b": 1}, "b"), ({}, "it"),
    ]),
    (pydantic.AwareDatetime, ["2030-01-01T00:00:00Z"], [("2030-01-01T00:00:00", "it"), ("", "it")]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "good", "bad"), TABLE, ids=[str(each[0]) for each in TABLE])
def test_what_fits_and_what_does_not(kind: Any, good: list[Any], bad: list[tuple[Any, str]]) -> None:
    schema, codec = schema_of(kind), codec_for(kind)
    assert check_asked(schema) is None
    assert json.loads(json.dumps(schema)) == schema
    for value in good:
        assert check_against(schema, value) is None, value
        codec.decode(msgspec.json.encode(value))
    for value, place in bad:
        problem = check_against(schema, value)
        assert problem is not None, value
        assert problem.startswith(f"{place} "), problem


class Noted(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", title="N", json_schema_extra={"example": {"one": 1}})

    one: int = pydantic.Field(1, title="o", description="d", examples=[2], deprecated=True, gt=0)
    kind: Literal["noted"] = "noted"


class Other(pydantic.BaseModel):
    kind: Literal["other"]
    more: list[Other] = []


class Loose(TypedDict, total=False):
    name: Annotated[str, pydantic.Field(pattern=r"^\w+(?!\d)$")]


@pytest.mark.parametrize(
    "kind",
    [
        Noted, Loose, Annotated[Noted | Other, pydantic.Field(discriminator="kind")], pydantic.HttpUrl,
        pydantic.PostgresDsn, pydantic.IPvAnyNetwork, pydantic.ByteSize, pydantic.Json[list[int]], pydantic.SecretStr,
        pydantic.SecretBytes, pydantic.Base64UrlBytes, pydantic.FilePath, pydantic.PastDatetime, pydantic.JsonValue,
        pydantic.conlist(int, min_length=1), pydantic.condecimal(max_digits=3), pydantic.NameEmail, Path,
        dict[Annotated[str, pydantic.Field(pattern="^a")], Noted], set[int], tuple[int, ...], complex,
        Annotated[str, Meta(title="t", description="d", examples=["a"], extra_json_schema={"default": "b"})],
    ],
    ids=str,
)  # fmt: skip
def test_what_types_say_can_be_asked(kind: Any) -> None:
    assert check_asked(schema_of(kind)) is None


# -- types and values by chance --------------------------------------------------------------------------------------

#: Texts that are something to one type or almost so.
NEAR = [
    "", " ", "0", "1", "-1", "01", "1.5", "1.", ".5", "1e5", "1E400", "NaN", "inf", "-0", "+1", "1_0", "\u0661",
    "true", "null", "2030-01-01", "2030-1-1", "2030-02-30", "0000-01-01", "9999-12-31", "20300101",
    "2030-01-01T00:00:00", "2030-01-01T00:00:00Z", "2030-01-01 00:00:00", "2030-01-01T24:00:00",
    "2030-01-01T23:59:60Z", "2030-01-01T00:00:00.1234567Z", "2030-01-01T00:00:00+23:59", "2030-01-01T00:00:00-00:00",
    "0001-01-01T00:00:00+01:00", "2030-01-01T00:00", "2030-01-01T00:00:00+0100", "2030-01-01t00:00:00z", "12:00:00",
    "12:00", "12:00:00Z", "12:00:00+02:00", "24:00:00", "23:59:60", "12:00:00.5", "P1D", "PT2H", "P1DT2H3M4.5S",
    "P1W", "-P1D", "+P1D", "PT0.5H", "P0.5D", "P1Y", "P1M", "P", "PT", "p1d", "P999999999D", "P9999999999D",
    "PT1.1234567S", ID, ID.upper(), ID.replace("-", ""), "{" + ID + "}", "urn:uuid:" + ID, "QQ==", "QUI=", "QUJD",
    "QUJDRA==", "QQ", "Q-_=", "-_-_", "Q Q=", "red", "blue", "RED", "a", "aa", "ab", "abc", "a\n", "\u00e9", "AB-12",
    "1" * 400,
]  # fmt: skip
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(NEAR),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NEAR), inner, max_size=3),
    max_leaves=5,
)
TEXTS = st.sampled_from(NEAR) | st.text(max_size=5)
NUMBERS = st.integers(-20, 20) | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.just(10**400)
#: Two classes of one name cannot be told apart in a schema.
NUMBER = itertools.count()
Made = tuple[Any, st.SearchStrategy[Any]]

BOUNDS: list[Any] = [
    Annotated[int, Meta(ge=-3, lt=7)],
    Annotated[int, Meta(multiple_of=3)],
    Annotated[float, Meta(gt=0, le=5.5)],
    Annotated[float, Meta(multiple_of=0.5)],
]
SHAPED: list[Any] = [
    Decimal, date, datetime, Annotated[datetime, Meta(tz=True)], Annotated[datetime, Meta(tz=False)],
    time, Annotated[time, Meta(tz=True)], Annotated[time, Meta(tz=False)], timedelta, uuid.UUID, bytes,
    Annotated[bytes, Meta(min_length=2, max_length=3)], Colour, Literal["a", "ab"],
    Annotated[str, Meta(min_length=1, max_length=2)], Annotated[str, Meta(pattern="^a|b+$")], str,
]  # fmt: skip
PYDANTIC: list[Any] = [
    Annotated[Decimal, pydantic.Field(ge=-1, lt=100, decimal_places=1)],
    Annotated[Decimal, pydantic.Field(max_digits=3)],
    Annotated[int, pydantic.Field(ge=-3, lt=7)], Annotated[float, pydantic.Field(gt=0, le=5.5)],
    Annotated[str, pydantic.Field(pattern="^(a|b)+$", max_length=3)], Annotated[bytes, pydantic.Field(max_length=3)],
    pydantic.AwareDatetime, pydantic.NaiveDatetime, pydantic.UUID4, pydantic.IPvAnyAddress,
]  # fmt: skip
LEAVES: list[Made] = [
    (bool, st.booleans()), (int, NUMBERS), (float, NUMBERS), (Size, NUMBERS), (Literal[1, None, "a"], ANYTHING),
    *((each, NUMBERS) for each in BOUNDS), *((each, TEXTS) for each in SHAPED),
]  # fmt: skip
KEYS: list[Any] = [
    str,
    int,
    float,
    date,
    datetime,
    uuid.UUID,
    Decimal,
    Colour,
    Size,
    Literal["a", "b"],
    timedelta,
    bytes,
]


@st.composite
def composed(draw: st.DrawFn, inner: st.SearchStrategy[Made]) -> Made:
    first, second = draw(inner), draw(inner)
    match draw(st.integers(0, 6)):
        case 0:
            return list[first[0]], st.lists(first[1], max_size=3)  # type: ignore[valid-type]
        case 1:
            return Annotated[list[first[0]], Meta(min_length=1, max_length=2)], st.lists(first[1], max_size=3)  # type: ignore[valid-type]
        case 2:
            key = draw(st.sampled_from(KEYS))
            return dict[key, first[0]], st.dictionaries(TEXTS, first[1], max_size=2)  # type: ignore[valid-type]
        case 3:
            return tuple[first[0], second[0]], st.tuples(first[1], second[1]).map(list)  # type: ignore[valid-type]
        case 4:
            return first[0] | None, first[1] | st.none()
        case 5:
            made = make_dataclass(f"Made{next(NUMBER)}", [("one", first[0]), ("two", second[0] | None, None)])
            return made, st.fixed_dictionaries({"one": first[1]}, optional={"two": second[1], "three": second[1]})
        case _:
            struct = msgspec.defstruct(f"Closed{next(NUMBER)}", [("one", first[0])], forbid_unknown_fields=True)
            return struct, st.fixed_dictionaries({"one": first[1]}, optional={"two": second[1]})


TYPES = st.recursive(st.sampled_from(LEAVES), composed, max_leaves=4)


def agreed(kind: Any, value: Any) -> None:
    """The check may refuse more than the reader, never less."""
    schema = schema_of(kind)
    assert schema or kind is Any
    assert check_asked(schema) is None
    if check_against(schema, value) is not None:
        return
    event("accepted")
    codec_for(kind).decode(msgspec.json.encode(value))


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_what_is_accepted_can_be_read(data: st.DataObject) -> None:
    kind, values = data.draw(TYPES)
    try:
        codec_for(kind)
    except CodecError:
        return
    for _ in range(4):
        agreed(kind, data.draw(values | ANYTHING))


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_what_is_accepted_can_be_read_by_pydantic(data: st.DataObject) -> None:
    plain = [(each, values) for each, values in LEAVES if not hasattr(each, "__metadata__")]
    leaf, values = data.draw(st.sampled_from([*plain, *((each, TEXTS | NUMBERS) for each in PYDANTIC)]))
    key = data.draw(st.sampled_from(KEYS[:-1]))
    model = pydantic.create_model("Model", one=(leaf, ...), many=(dict[key, leaf] | None, None))  # type: ignore[call-overload]
    for _ in range(4):
        value = data.draw(
            st.fixed_dictionaries({"one": values}, optional={"many": st.dictionaries(TEXTS, values, max_size=2)})
        )
        agreed(model, value)


# -- schemas that anybody may have stored ------------------------------------------------------------------------------


def doubling(levels: int) -> dict[str, Any]:
    again = {f"n{each}": {"anyOf": [{"$ref": f"#/$defs/n{each + 1}"}] * 2} for each in range(levels)}
    return {"$ref": "#/$defs/n0", "$defs": {**again, f"n{levels}": {"type": "integer"}}}


def again(count: int, part: Any) -> dict[str, Any]:
    """One schema, to be met again and again by the whole answer."""
    return {"allOf": [{"$ref": "#/$defs/a"}] * count, "$defs": {"a": part}}


def loosely(count: int, part: Any) -> dict[str, Any]:
    """The same, whether it fits or not."""
    return again(count, {"anyOf": [part, {}]})


def of_texts(count: int) -> list[str]:
    return [f"text {each}" for each in range(count)]


#: Characters of a class of a pattern, none of them beside another.
CLASS = "[" + "".join(chr(0x400 + 2 * each) for each in range(990)) + "]"
RANGES = "[" + "".join(f"{chr(low)}-{chr(low + 999)}" for low in range(0x400, 0xC000, 2_000)) + r"\d\s]"

#: Schemas and answers that take long if they are let, by how much of them there is; at 1.0 they are as large as they
#: may be (answers of 256 kB, schemas of 1 MB and 5,000 parts), or so large that it would show.
SIZED: dict[str, Callable[[float], tuple[Any, Any]]] = {
    "a large class": lambda size: ({"pattern": CLASS}, "a" * int(250_000 * size)),
    "a large class, repeated": lambda size: ({"pattern": f"^{CLASS}*$"}, CLASS[1] * int(80_000 * size)),
    "many large classes": lambda size: (
        {"allOf": [{"anyOf": [{"pattern": f"{CLASS}{each}"}, {}]} for each in range(int(300 * size))]},
        CLASS[1] * 80_000,
    ),
    "a class of ranges": lambda size: ({"pattern": RANGES + "{900}"}, "\uffff" * int(80_000 * size)),
    "an empty pattern": lambda size: ({"allOf": [{"pattern": ""}] * 500}, "a" * int(250_000 * size)),
    "patterns to be read": lambda size: (
        {"allOf": [{"anyOf": [{"pattern": "(a|b)?" * 150 + f"b{each}"}, {}]} for each in range(int(1_000 * size))]},
        "a",
    ),
    "empty branches": lambda size: ({"pattern": "(|||||||||)" * 80}, "a" * int(250_000 * size)),
    "branches": lambda size: ({"pattern": "(?:a|b)" * 140}, "ab" * int(125_000 * size)),
    "looking ahead": lambda size: ({"pattern": "(?=)" * 200}, "a" * int(250_000 * size)),
    "looking far ahead": lambda size: ({"pattern": "(?=.*b)"}, "a" * int(250_000 * size)),
    "boundaries": lambda size: ({"pattern": r"(?:\b|\B)" * 100}, "a" * int(250_000 * size)),
    "ends without end": lambda size: ({"pattern": "(?:" + "$" * int(900 * size) + "){60000}"}, ""),
    "unique texts": lambda size: (again(200, {"uniqueItems": True, "minItems": 1}), of_texts(int(20_000 * size))),
    "unique numbers of one hash": lambda size: (
        again(200, {"uniqueItems": True, "minItems": 1}), [each * (2**61 - 1) for each in range(int(12_000 * size))]
    ),
    "unique lists": lambda size: (
        again(200, {"uniqueItems": True, "minItems": 1}), [[each] for each in range(int(30_000 * size))]
    ),
    "one large choice": lambda size: (again(500, {"enum": [["a"] * int(60_000 * size)]}), ["a"] * int(60_000 * size)),
    "one large constant": lambda size: (again(500, {"const": "a" * int(250_000 * size)}), "a" * int(250_000 * size)),
    "many choices": lambda size: (loosely(1_600, {"enum": of_texts(int(60_000 * size))}), "text"),
    "choices to be shown": lambda size: (loosely(1_600, {"enum": [{"a": ["a"] * int(200_000 * size)}] * 2}), "b"),
    "choices told apart": lambda size: (
        {
            "items": {
                "oneOf": [{"$ref": "#/$defs/a"}] * int(4_000 * size) + [{"$ref": "#/$defs/b"}],
                "discriminator": {"propertyName": "t", "mapping": {"b": "#/$defs/b"}},
            },
            "$defs": {"a": {}, "b": {}},
        },
        [{"t": "b"}] * 20_000,
    ),
    "long names that are required": lambda size: (
        again(4_000, {"required": ["a" * int(200_000 * size)] * 5}), {"a" * int(200_000 * size): 1}
    ),
    "many names that are required": lambda size: (again(4_000, {"required": ["a"] * int(200_000 * size)}), {"a": 1}),
    "long names that are known": lambda size: (
        again(2_000, {"properties": {"k" * int(200_000 * size): {}}}), {"k" * int(200_000 * size): 1}
    ),
    "a long reference": lambda size: (
        {"items": {"$ref": "#/$defs/" + "a" * int(400_000 * size)}, "$defs": {"a" * int(400_000 * size): {}}},
        [1] * 60_000,
    ),
    "types over and over": lambda size: ({"items": {"type": ["string", "null"] * int(50_000 * size)}}, [1] * 60_000),
    "large numbers": lambda size: (
        {
            "items": {"allOf": [{"$ref": "#/$defs/a"}] * 1_500},
            "$defs": {"a": {"anyOf": [{"x-maxDigits": 3}, {"multipleOf": 7}, {}]}},
        },
        [10**4_000 + 1] * int(60 * size),
    ),
    "large bounds": lambda size: ({"items": {"anyOf": [{"minimum": 10**4_000}] * 4_000}}, [1] * int(60 * size)),
    **{
        f"a long {name}": lambda size, name=name: (  # type: ignore[misc]
            loosely(1_600, {"format": name, "minimum": 5, "x-maxDigits": 5, "x-maxBytes": 1}), "1" * int(250_000 * size)
        )
        for name in ("decimal", "ipv6", "ipvanyaddress", "date-time", "duration", "uuid4", "base64url", "binary")
    },
    "many addresses": lambda size: ({"items": {"format": "ipv6"}}, ["1:2:3:4:5:6:7:8"] * int(14_000 * size)),
    "many decimals": lambda size: (
        {"items": {"format": "decimal", "minimum": 1, "maximum": 10**300, "x-maxDigits": 30}},
        ["20.5"] * int(36_000 * size),
    ),
    "many items": lambda size: ({"items": {"type": "integer", "minimum": 0}}, [1] * int(130_000 * size)),
    "many members": lambda size: (
        {"items": {"required": ["a"], "properties": {"a": {"type": "integer"}}}}, [{"a": 1}] * int(32_000 * size)
    ),
    "many constants": lambda size: ({"items": {"const": 5}}, [5] * int(130_000 * size)),
}  # fmt: skip

HOSTILE: dict[str, tuple[Any, Any]] = {
    **{name: make(1.0) for name, make in SIZED.items()},
    "doubling": (doubling(40), "x"),
    "circle": ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, 1),
    "circle of two": (
        {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}},
        },
        1,
    ),
    "nowhere": ({"$ref": "#/$defs/a"}, 1),
    "elsewhere": ({"$ref": "https://example.org/schema"}, 1),
    "wide": ({"anyOf": [{"type": "integer"}] * 6_000}, "x"),
    "many items": ({"items": {"anyOf": [{"type": "integer"}] * 1_000}}, ["x"] * 1_000),
    "backtracking": ({"pattern": "^(a+)+$"}, "a" * 60_000 + "!"),
    "backtracking by choice": ({"pattern": "^(a|a)*b"}, "a" * 60_000),
    "repeating": ({"pattern": "((a{0,999}){0,999}){0,999}b"}, "a" * 60_000),
    **{
        f"malformed {word} {bad!r}": ({word: bad}, value)
        for word in ("$ref", "$defs", "anyOf", "allOf", "enum", "required", "type", "properties", "items",
                     "prefixItems", "additionalProperties", "propertyNames", "pattern", "format", "minimum",
                     "multipleOf", "minLength", "maxItems", "minProperties", "x-offset", "x-maxDigits")
        for bad, value in ((None, {"a": [1]}), (-1.5, "x"), ([7], [1]), ({"a": 7}, {"a": 1}), ("(", "x"))
    },
}  # fmt: skip


#: Processor seconds that no check takes; what is too little to be compared; and how many times as long as half of it.
CEILING_S, FLOOR_S, GROWTH = 1.5, 0.2, 2.5


def taken(schema: Any, value: Any, tries: int) -> float:
    """The least time that a check takes: others may be at work here too."""

    def once() -> float:
        began = clock.process_time()
        check_against(schema, value)
        return clock.process_time() - began

    return min(once() for _ in range(tries))


@pytest.mark.parametrize("name", [each for each in HOSTILE if each not in SIZED])
def test_no_schema_takes_long_or_breaks_the_check(name: str) -> None:
    schema, value = HOSTILE[name]
    assert taken(schema, value, 1) < CEILING_S
    problem = check_against(schema, value)
    if not name.startswith("malformed"):
        assert problem is not None


@pytest.mark.parametrize("name", SIZED)
def test_twice_the_size_takes_twice_as_long(name: str) -> None:
    large, small = SIZED[name](1.0), SIZED[name](0.5)
    whole = taken(*large, 2)
    assert whole < CEILING_S
    if whole >= FLOOR_S:
        half = taken(*small, 2)
        if whole >= GROWTH * half:
            # A machine that has other things to do gets a chance to show it.
            whole, half = min(whole, taken(*large, 8)), taken(*small, 8)
        assert whole < GROWTH * half


def test_a_type_may_contain_itself() -> None:
    value: Any = {"kids": []}
    for _ in range(50):
        value = {"kids": [value]}
    assert check_against(schema_of(Tree), value) is None
    for _ in range(500):
        value = {"kids": [value]}
    problem = check_against(schema_of(Tree), value)
    assert problem is not None
    assert "too many steps" in problem


def test_large_answers_are_within_the_steps() -> None:
    value = [1] * 32_000
    assert len(value) * 3 < MAX_STEPS
    assert check_against(schema_of(list[int | None]), value) is None


ANY_SCHEMA = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from(["#/$defs/a", "string", "object", "date", "^a*$", "("]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["$ref", "$defs", "a", "anyOf", "items", "properties", "type", "enum", "pattern", "minimum"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=EXAMPLES)
@given(st.dictionaries(st.sampled_from(["$ref", "$defs", "anyOf", "properties", "type"]), ANY_SCHEMA), ANYTHING)
def test_any_document_is_safe_as_a_schema(schema: dict[str, Any], value: Any) -> None:
    check_against(schema, value)
