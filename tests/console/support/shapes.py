"""Random types of answers, each with values of it: what forms are made from and filled with."""

from __future__ import annotations

import base64
import dataclasses
import enum
import random
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
from msgspec import Meta

#: Makes a value of its type.
Make = Callable[[random.Random], Any]


class Shape(NamedTuple):
    """A type and how its values are made."""

    type: Any
    make: Make


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


def _digits(random: random.Random) -> Decimal:
    return Decimal(random.randint(1, 9_999)) / 100


_SCALARS: tuple[Callable[[random.Random], Shape], ...] = (
    lambda _: Shape(str, lambda r: r.choice(["", "two words", "ü 😀", "a\nb"])),
    lambda _: Shape(Annotated[str, Meta(min_length=2, max_length=5)], lambda r: r.choice(["ab", "abcde", "ü😀x"])),
    lambda _: Shape(Annotated[str, Meta(pattern=r"^[A-Z]{2}-\d+$")], lambda r: f"AB-{r.randint(0, 99)}"),
    lambda _: Shape(int, lambda r: r.randint(-(10**15), 10**15)),
    lambda _: Shape(Annotated[int, Meta(ge=1, lt=10)], lambda r: r.randint(1, 9)),
    lambda _: Shape(Annotated[int, Meta(multiple_of=5)], lambda r: 5 * r.randint(-9, 9)),
    lambda _: Shape(float, lambda r: r.choice([0.5, -1e-9, 3.0, 12345.678])),
    lambda _: Shape(Annotated[float, Meta(gt=0, le=1)], lambda r: r.choice([0.25, 1.0, 0.001])),
    lambda _: Shape(bool, lambda r: r.random() < 0.5),
    lambda _: Shape(Decimal, _digits),
    lambda _: Shape(date, lambda r: date(2000 + r.randint(0, 99), r.randint(1, 12), r.randint(1, 28))),
    lambda _: Shape(datetime, lambda r: datetime(2031, r.randint(1, 12), 3, r.randint(0, 23), 30, tzinfo=UTC)),
    lambda _: Shape(
        Annotated[datetime, Meta(tz=True)],
        lambda r: datetime(2031, r.randint(1, 12), 3, 4, 5, 6, 7, tzinfo=UTC),
        "string",
    ),
    lambda _: Shape(
        Annotated[datetime, Meta(tz=False)], lambda r: datetime.fromisoformat(f"2031-1{r.randint(0, 2)}-03")
    ),
    lambda _: Shape(time, lambda r: time(r.randint(0, 23), 15)),
    lambda _: Shape(Annotated[time, Meta(tz=True)], lambda r: time(r.randint(0, 23), 15, tzinfo=UTC)),
    lambda _: Shape(timedelta, lambda r: timedelta(days=r.randint(0, 9), seconds=r.randint(0, 9_999))),
    lambda _: Shape(uuid.UUID, lambda r: uuid.UUID(int=r.getrandbits(128), version=4)),
    lambda _: Shape(bytes, lambda r: r.randbytes(r.randint(0, 9))),
    lambda _: Shape(Colour, lambda r: r.choice(list(Colour))),
    lambda _: Shape(Size, lambda r: r.choice(list(Size))),
    lambda _: Shape(Literal["yes", "no", "later"], lambda r: r.choice(["yes", "no", "later"])),
    lambda _: Shape(Literal["only"], lambda r: "only"),
    lambda _: Shape(Any, lambda r: r.choice([1, "a", [1, {"b": None}], {"x": 0.5}])),
)
#: Of pydantic's, for the fields of its models.
_PYDANTIC: tuple[Callable[[random.Random], Shape], ...] = (
    lambda _: Shape(Annotated[Decimal, pydantic.Field(gt=0, max_digits=6, decimal_places=2)], _digits),
    lambda _: Shape(Annotated[str, pydantic.Field(pattern="^[a-z]+$", max_length=4)], lambda r: "abc"),
    lambda _: Shape(pydantic.AwareDatetime, lambda r: datetime(2031, 1, 2, 3, 4, r.randint(0, 59), tzinfo=UTC)),
    lambda _: Shape(pydantic.PositiveInt, lambda r: r.randint(1, 99)),
)


def shape(random: random.Random, depth: int = 0, *, pydantic_too: bool = False) -> Shape:
    """Any type that an ``Ask`` can ask for."""
    if depth >= 3 or random.random() < (0.15 if depth == 0 else 0.6):
        return random.choice((*_SCALARS, *_PYDANTIC) if pydantic_too else _SCALARS)(random)
    makers = (_struct, _struct, _dataclass, _typed_dict, _model, _list, _set, _dict, _tuple, _optional, _union)
    return random.choice(makers)(random, depth + 1, pydantic_too)


def _fields(random: random.Random, depth: int, too: bool) -> dict[str, tuple[Shape, bool]]:
    """Names, with whether there is a default."""
    names = random.sample(
        ["amount", "due", "note", "share", "ok", "constructor", "to_whom", "a b"], random.randint(1, 4)
    )
    names = [each for each in names if each != "a b"] or ["amount"]
    return {name: (shape(random, depth, pydantic_too=too), random.random() < 0.4) for name in names}


def _made(fields: dict[str, tuple[Shape, bool]], kind: Callable[..., Any]) -> Make:
    return lambda r: kind(**{name: each.make(r) for name, (each, _) in fields.items()})


def _default(random: random.Random, each: Shape) -> Any:
    return each.make(random)


def _struct(random: random.Random, depth: int, too: bool) -> Shape:
    fields = _fields(random, depth, False)
    listed: list[Any] = []
    for name, (each, has_default) in fields.items():
        made = _default(random, each)
        plain = isinstance(made, list | dict | set) or type(made).__hash__ is None
        listed.append(
            (name, each.type)
            if not has_default
            else (name, each.type, msgspec.field(default_factory=lambda made=made: made) if plain else made)  # type: ignore[misc]
        )
    kind = msgspec.defstruct(f"Struct{random.getrandbits(40)}", listed, kw_only=True)
    return Shape(kind, _made(fields, kind))


def _dataclass(random: random.Random, depth: int, too: bool) -> Shape:
    fields = _fields(random, depth, False)
    listed: list[Any] = []
    for name, (each, has_default) in sorted(fields.items(), key=lambda one: one[1][1]):
        made = _default(random, each)
        value = dataclasses.field(default_factory=lambda made=made: made)  # type: ignore[misc]
        listed.append((name, each.type, value) if has_default else (name, each.type))
    kind = dataclasses.make_dataclass(f"Data{random.getrandbits(40)}", listed)
    return Shape(kind, _made(fields, kind))


def _typed_dict(random: random.Random, depth: int, too: bool) -> Shape:
    fields = _fields(random, depth, False)
    kind: Any = TypedDict(  # type: ignore[operator]
        f"Typed{random.getrandbits(40)}",
        {name: each.type for name, (each, _) in fields.items()},
        total=random.random() < 0.5,
    )
    return Shape(kind, _made(fields, dict))


def _model(random: random.Random, depth: int, too: bool) -> Shape:
    fields = _fields(random, depth, True)
    given: dict[str, Any] = {
        name: (each.type, _default(random, each) if has_default else ...)
        for name, (each, has_default) in fields.items()
        if name != "constructor"
    } or {"amount": (int, ...)}
    if "amount" in given and "amount" not in fields:
        fields = {"amount": (Shape(int, lambda r: 1), False)}
    fields = {name: each for name, each in fields.items() if name in given}
    kind = pydantic.create_model(f"Model{random.getrandbits(40)}", **given)
    return Shape(kind, _made(fields, kind))


def _several(each: Shape, kind: Callable[[Any], Any], least: int) -> Make:
    return lambda r: kind([each.make(r) for _ in range(r.randint(least, 3))])


def _list(random: random.Random, depth: int, too: bool) -> Shape:
    each = shape(random, depth, pydantic_too=too)
    if too or random.random() < 0.6:
        return Shape(list[each.type], _several(each, list, 0))
    return Shape(Annotated[list[each.type], Meta(min_length=1, max_length=3)], _several(each, list, 1))


def _set(random: random.Random, depth: int, too: bool) -> Shape:
    return Shape(set[int], lambda r: set(r.sample(range(9), r.randint(0, 3))))


def _dict(random: random.Random, depth: int, too: bool) -> Shape:
    each = shape(random, depth, pydantic_too=too)
    if random.random() < 0.5:
        return Shape(dict[str, each.type], lambda r: {"a": each.make(r), "b c": each.make(r)})
    return Shape(dict[int, each.type], lambda r: {7: each.make(r)})


def _tuple(random: random.Random, depth: int, too: bool) -> Shape:
    first, second = (shape(random, depth, pydantic_too=too) for _ in range(2))
    return Shape(tuple[first.type, second.type], lambda r: (first.make(r), second.make(r)))


def _optional(random: random.Random, depth: int, too: bool) -> Shape:
    each = shape(random, depth, pydantic_too=too)
    return Shape(each.type | None, lambda r: None if r.random() < 0.3 else each.make(r))


def _union(random: random.Random, depth: int, too: bool) -> Shape:
    second = _struct(random, depth, too)
    made: Any = int | second.type if random.random() < 0.5 else date | int | second.type
    return Shape(made, lambda r: r.choice([0, second.make(r)]))


def json_of(value: Any) -> Any:
    """A value as JSON, as it is stored."""
    return msgspec.to_builtins(value, enc_hook=_hook, builtin_types=(), str_keys=True)


def _hook(value: Any) -> Any:
    if isinstance(value, pydantic.BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise NotImplementedError(type(value))
