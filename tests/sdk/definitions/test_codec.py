"""Values to JSON and back, by annotation."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import namedtuple
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, Optional, Union
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given, strategies as st
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import TypedDict

from flowfabric import ExecutionId
from flowfabric.sdk.definitions.codec import NOTHING, CodecError, PydanticCodec, codec_for, mentions_pydantic


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1


class Word(StrEnum):
    YES = "yes"


@dataclass
class Point:
    x: int
    y: int = 0
    names: list[str] = field(default_factory=list)


@dataclass
class Nested:
    points: dict[str, Point]
    when: datetime
    price: Decimal | None = None


class Item(msgspec.Struct):
    name: str
    tags: frozenset[str] = frozenset()


class Cat(msgspec.Struct, tag="cat"):
    lives: int


class Dog(msgspec.Struct, tag="dog"):
    name: str


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class Pair(NamedTuple):
    left: int
    right: str


class Doc(pydantic.BaseModel):
    url: str
    tenant: str = "acme"


class Reply(pydantic.BaseModel):
    docs: list[Doc]
    at: datetime


@pydantic_dataclass
class Checked:
    n: int


@dataclass
class Holder:
    doc: Doc
    point: Point


class DocDict(TypedDict):
    doc: Doc


UserId = NewType("UserId", int)
DAY = datetime(2024, 2, 29, 12, 30, tzinfo=UTC)
IDENTITY = UUID("12345678-1234-5678-1234-567812345678")


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 5),
        (int, -(2**63)),
        (str, "żółw \U0001f422 \x00"),
        (str, ""),
        (bool, True),
        (float, 1.5),
        (float, 3),
        (None, None),
        (type(None), None),
        (bytes, b"\x00\xff\xfe"),
        (bytearray, bytearray(b"x")),
        (Decimal, Decimal("0.10")),
        (datetime, DAY),
        (date, date(2024, 2, 29)),
        (time, time(12, 30)),
        (timedelta, timedelta(days=3, seconds=5)),
        (UUID, IDENTITY),
        (Colour, Colour.BLUE),
        (Level, Level.LOW),
        (Word, Word.YES),
        (Literal["a", 1], "a"),
        (Optional[int], None),  # noqa: UP045
        (Union[int, str], "x"),  # noqa: UP007
        (int | str | None, 7),
        (list[int], [1, 2]),
        (list, [1, "a", None]),
        (dict[str, list[int]], {"a": [1]}),
        (dict[int, str], {1: "a"}),
        (dict[UUID, int], {IDENTITY: 1}),
        (dict, {"a": 1}),
        (tuple[int, str], (1, "a")),
        (tuple[int, ...], (1, 2, 3)),
        (set[int], {1, 2}),
        (frozenset[str], frozenset("ab")),
        (Point, Point(1)),
        (Nested, Nested({"a": Point(1, 2, ["b"])}, DAY, Decimal("1.5"))),
        (list[Point | None], [Point(1), None]),
        (Item, Item("a", frozenset({"b"}))),
        (Cat | Dog, Dog("rex")),
        (Movie, {"title": "a"}),
        (Pair, Pair(1, "a")),
        (UserId, UserId(5)),
        (ExecutionId, ExecutionId(f"{{fp:7}}:{IDENTITY}")),
        (Annotated[int, "note"], 5),
        (Any, {"a": [1, None, 2.5, "x", True]}),
        (object, [1]),
        (NOTHING, {"a": 1}),
        (Doc, Doc(url="u")),
        (list[Doc], [Doc(url="u"), Doc(url="v", tenant="t")]),
        (dict[str, Doc | None], {"a": None, "b": Doc(url="u")}),
        (Reply, Reply(docs=[Doc(url="u")], at=DAY)),
        (Checked, Checked(n=5)),
        (Holder, Holder(Doc(url="u"), Point(1))),
        (DocDict, {"doc": Doc(url="u")}),
        (tuple[Doc, bytes], (Doc(url="u"), b"\x00\xff")),
        (Annotated[int, pydantic.Field(gt=0)], 5),
    ],
)
def test_there_and_back(annotation: Any, value: Any) -> None:
    codec = codec_for(annotation)
    data = codec.encode(value)
    msgspec.json.decode(data)
    again = codec.decode(data)
    assert again == value
    if annotation not in (float, Any, object, NOTHING):
        assert type(again) is type(value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, "5"),
        (int, 1.5),
        (int, None),
        (int, True),
        (str, 5),
        (str, b"x"),
        (str, DAY),
        (str, IDENTITY),
        (str, Colour.RED),
        (str | None, Decimal(1)),
        (list[str], [b"x"]),
        (dict[str, str], {"a": DAY}),
        (dict[str, int], Point(1)),
        (Point, Item("a")),
        (bool, 1),
        (float, "1.5"),
        (float, math.nan),
        (float, math.inf),
        (bytes, "not base64!"),
        (list[int], [1, "2"]),
        (dict[str, int], {"a": "b"}),
        (tuple[int, str], (1,)),
        (Point, {"x": "1"}),
        (Point, {}),
        (Item, Point(1)),
        (Movie, {"year": 1}),
        (Colour, "green"),
        (Literal["a"], "b"),
        (Cat | Dog, {"type": "cow"}),
        (datetime, "yesterday"),
        (UUID, "x"),
        (Decimal, "x"),
        (Doc, {"tenant": "t"}),
        (Doc, 5),
        (list[Doc], Doc(url="u")),
        (Checked, {"n": "x"}),
        (Annotated[int, pydantic.Field(gt=0)], 0),
    ],
)
def test_what_does_not_fit_is_refused(annotation: Any, value: Any) -> None:
    with pytest.raises(CodecError):
        codec_for(annotation).encode(value)


class Plain:
    """A class without any JSON form."""


@dataclass
class Hiding:
    inside: list[Plain]


@pytest.mark.parametrize("value", [object(), Plain(), {1, object()}, {"a": Plain()}, lambda: 1, {(1, 2): 3}, 1 + 2j])
def test_any_takes_what_json_has(value: Any) -> None:
    with pytest.raises(CodecError, match="use a dataclass"):
        codec_for(Any).encode(value)


def test_any_writes_what_it_knows_and_reads_json() -> None:
    codec = codec_for(Any)
    assert codec.decode(codec.encode([Point(1), Doc(url="u"), Colour.RED])) == [
        {"x": 1, "y": 0, "names": []},
        {"url": "u", "tenant": "acme"},
        "red",
    ]


@pytest.mark.parametrize("annotation", [Plain, list[Plain], Hiding, dict[str, Plain | None], Point | Nested, type])
def test_annotations_without_a_json_form_are_refused(annotation: Any) -> None:
    with pytest.raises(CodecError, match="no JSON form"):
        codec_for(annotation)


def test_structs_within_pydantic_are_refused_by_name() -> None:
    with pytest.raises(CodecError, match="pydantic cannot handle"):
        codec_for(tuple[Doc, Item])


def test_a_dictionary_may_stand_for_a_model() -> None:
    codec = codec_for(Doc)
    assert codec.decode(codec.encode({"url": "u"})) == Doc(url="u")


def test_stored_json_is_read_strictly_and_tells_where() -> None:
    with pytest.raises(CodecError, match=r"\$\.points"):
        codec_for(Nested).decode(b'{"points": {"a": {"x": "1"}}, "when": "2024-01-01T00:00:00Z"}')
    with pytest.raises(CodecError, match=r"docs\.0\.url"):
        codec_for(Reply).decode(b'{"docs": [{}], "at": "2024-01-01T00:00:00Z"}')
    for broken in (b"", b"{", b"nonsense", b"\xff"):
        for annotation in (Any, Point, Doc):
            with pytest.raises(CodecError):
                codec_for(annotation).decode(broken)


def test_pydantic_is_found_wherever_it_hides() -> None:
    for annotation in (Doc, list[Doc], Holder, DocDict, Checked, dict[str, tuple[Doc, ...]], Doc | None):
        assert mentions_pydantic(annotation)
        assert isinstance(codec_for(annotation), PydanticCodec)
    for annotation in (int, Point, Nested, list[Item], Movie, Literal["Doc"], Any, namedtuple("Two", "a b")):
        assert not mentions_pydantic(annotation)


def test_pydantic_is_not_imported_for_others() -> None:
    program = (
        "import sys, dataclasses\n"
        "from flowfabric.sdk.definitions.codec import codec_for\n"
        "Point = dataclasses.make_dataclass('Point', [('x', int)])\n"
        "codec = codec_for(dict[str, list[Point] | None])\n"
        "assert codec.decode(codec.encode({'a': [Point(1)]})) == {'a': [Point(1)]}\n"
        "sys.exit('pydantic' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
)
JSON = st.recursive(
    SCALARS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)
POINTS = st.builds(Point, st.integers(-(2**63), 2**63))
NUMBERS = st.none() | st.decimals(allow_nan=False, allow_infinity=False)


@given(JSON)
def test_any_json_travels(value: Any) -> None:
    codec = codec_for(Any)
    assert codec.decode(codec.encode(value)) == value


@given(st.builds(Nested, st.dictionaries(TEXTS, POINTS, max_size=3), st.datetimes(timezones=st.just(UTC)), NUMBERS))
def test_any_dataclass_travels(value: Nested) -> None:
    codec = codec_for(Nested)
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize(
    ("annotation", "given", "read"),
    [
        (str, Word.YES, "yes"),
        (tuple[int, ...], [1, 2], (1, 2)),
        (list[int], (1, 2), [1, 2]),
        (set[int], [1, 2], {1, 2}),
        (Point, {"x": 1}, Point(1)),
        (Decimal, 5, Decimal(5)),
        (datetime, "2024-02-29T12:30:00Z", DAY),
        (float, 5, 5.0),
        (Colour, "red", Colour.RED),
        (bytes, memoryview(b"x"), b"x"),
    ],
)
def test_what_means_the_same_is_taken(annotation: Any, given: Any, read: Any) -> None:
    codec = codec_for(annotation)
    assert codec.decode(codec.encode(given)) == read
