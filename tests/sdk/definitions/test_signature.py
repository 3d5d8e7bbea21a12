"""What travels, what is provided, what comes back, and where dotted paths lead."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from flowfabric import BadArguments, BadOptions, BadPayload, BadResult, BadSignature, Depends, injected
from flowfabric.sdk.definitions.signature import Signature


class Doc(pydantic.BaseModel):
    url: str
    tenant: str = "acme"


class Kind(Enum):
    BIG = "big"


@dataclass
class Order:
    id: int
    doc: Doc | None = None
    kind: Kind = Kind.BIG

    @property
    def shard(self) -> str:
        return f"s{self.id % 2}"


class Item(msgspec.Struct):
    name: str
    price: Decimal = Decimal(1)


class Movie(TypedDict):
    title: str


def provider() -> str:
    return "provided"


def signature(function: Callable[..., Any]) -> Signature:
    return Signature(function, function.__name__)


def there_and_back(function: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    made = signature(function)
    return made.unpack(made.pack(args, kwargs))


def test_arguments_travel_by_name() -> None:
    def task(doc: Doc, item: Item, count: int = 3, *, note: str | None = None, rest: Any = None) -> str: ...

    found = there_and_back(task, Doc(url="u"), Item("a"), note="x")
    assert found == {"doc": Doc(url="u"), "item": Item("a"), "note": "x"}
    data = signature(task).pack((Doc(url="u"), Item("a")), {})
    assert msgspec.json.decode(data) == {
        "doc": {"url": "u", "tenant": "acme"},
        "item": {"name": "a", "price": "1"},
    }


def test_defaults_are_those_of_the_code_that_runs() -> None:
    def task(a: int = 1, b: list[int] = []) -> None: ...  # noqa: B006

    assert signature(task).pack((), {}) == b"{}"
    assert signature(task).unpack(b"") == {}
    assert signature(task).unpack(None) == {}
    assert there_and_back(task, b=[1]) == {"b": [1]}


def test_a_none_that_is_given_is_not_a_default() -> None:
    def task(a: int | None = 5) -> None: ...

    assert there_and_back(task, None) == {"a": None}


def test_parameters_that_are_provided_do_not_travel() -> None:
    def task(
        a: int,
        b: Annotated[str, Depends(provider)],
        c: Annotated[str, Depends(provider)] = injected,
        d: str = Depends(provider),  # type: ignore[assignment]
    ) -> None: ...

    made = signature(task)
    assert set(made.injected) == {"b", "c", "d"}
    assert made.parameters == ("a",)
    assert made.pack((1,), {}) == b'{"a":1}'
    with pytest.raises(BadArguments, match="'b' is provided by the worker"):
        made.pack((1,), {"b": "x"})


def test_types_of_the_place_where_a_function_is_written() -> None:
    @dataclass
    class Local:
        x: int

    def task(value: Local) -> Local: ...

    assert there_and_back(task, Local(5)) == {"value": Local(5)}


class Later:
    """Replaced below: annotations are looked up when they are needed."""


def early(value: DefinedLater) -> DefinedLater: ...


early_signature = signature(early)


@dataclass
class DefinedLater:
    x: int


def test_types_that_are_defined_later() -> None:
    assert early_signature.unpack(early_signature.pack((DefinedLater(1),), {})) == {"value": DefinedLater(1)}


def test_types_that_are_nowhere() -> None:
    def task(value: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    made = signature(task)
    with pytest.raises(BadSignature, match="'Nowhere'") as caught:
        made.pack((1,), {})
    assert caught.value.ids["task"] == "task"


@pytest.mark.parametrize(
    ("args", "kwargs", "parameter", "said"),
    [
        ((), {}, None, "missing a required argument: 'doc'"),
        ((Doc(url="u"), 1, 2), {}, None, "too many positional"),
        ((Doc(url="u"),), {"nope": 1}, None, "unexpected keyword argument 'nope'"),
        ((Doc(url="u"), "1"), {}, "count", "Expected `int`, got `str`"),
        (({"tenant": "x"},), {}, "doc", "Field required at url"),
        ((Doc(url="u"),), {"rest": object()}, "rest", "use a dataclass"),
    ],
)
def test_wrong_arguments_are_named(args: Any, kwargs: Any, parameter: str | None, said: str) -> None:
    def task(doc: Doc, count: int = 1, *, rest: Any = None) -> None: ...

    with pytest.raises(BadArguments, match=said) as caught:
        signature(task).pack(args, kwargs)
    assert caught.value.code == "bad_arguments"
    assert caught.value.ids.get("parameter") == parameter
    assert str(caught.value).startswith("task: ")


@pytest.mark.parametrize(
    "data",
    [b"{", b"[]", b"5", b"null", b"\xff", b"{}", b'{"a":"1"}', b'{"a":1,"b":2}', b'{"a":1,"doc":{}}', b'{"a":null}'],
)  # fmt: skip
def test_stored_arguments_that_do_not_fit(data: bytes) -> None:
    def task(a: int, doc: Doc | None = None) -> None: ...

    with pytest.raises(BadPayload, match="the stored arguments do not match") as caught:
        signature(task).unpack(data)
    assert caught.value.code == "bad_payload"


def test_results() -> None:
    def task() -> list[Item]: ...

    made = signature(task)
    assert made.load_result(made.dump_result([Item("a")])) == [Item("a")]
    with pytest.raises(BadResult, match="does not match"):
        made.dump_result(["a"])
    with pytest.raises(BadResult, match="does not match"):
        made.load_result(b"5")


def test_results_without_annotation_or_value() -> None:
    def nothing() -> None: ...
    def anything(): ...  # type: ignore[no-untyped-def]

    assert signature(nothing).load_result(signature(nothing).dump_result(None)) is None
    assert signature(nothing).load_result(b"") is None
    assert signature(nothing).load_result(None) is None
    with pytest.raises(BadResult):
        signature(nothing).dump_result(5)
    made = signature(anything)
    assert made.load_result(made.dump_result({"a": [1]})) == {"a": [1]}


class Strange:
    """Without a JSON form."""


def test_what_cannot_be_a_task() -> None:
    def stars(*values: int) -> None: ...
    def names(**values: int) -> None: ...
    def strange(value: Strange) -> None: ...
    def giving() -> Strange: ...
    def asking(value: int = injected) -> None: ...
    def forgetful(value: Annotated[int, Depends]) -> None: ...

    for function, said in (
        (stars, "has no name; list"),
        (names, "has no name; list"),
        (strange, "strange: value: .*Strange has no JSON form"),
        (giving, "its result: .*Strange"),
        (asking, "injected"),
        (forgetful, "name the provider"),
    ):
        with pytest.raises(BadSignature, match=said):
            signature(function)


def test_positional_only_parameters() -> None:
    def task(a: int, /, b: int) -> int:
        return a - b

    made = signature(task)
    args, kwargs = made.call(made.unpack(made.pack((5, 3), {})), {})
    assert task(*args, **kwargs) == 2


def test_other_callables() -> None:
    class Doing:
        def __call__(self, a: int) -> str: ...

        def method(self, a: int) -> str: ...

    def two(a: int, b: str) -> None: ...

    assert Signature(Doing(), "x").parameters == ("a",)
    assert Signature(Doing().method, "x").parameters == ("a",)
    assert Signature(functools.partial(two, 5), "x").parameters == ("b",)


# -- paths -------------------------------------------------------------------------------------------------------------


def pathed(order: Order, doc: Doc, item: Item, movie: Movie, n: int = 5, free: Any = None) -> None: ...


ARGUMENTS: dict[str, Any] = {
    "order": Order(7, Doc(url="u"), Kind.BIG),
    "doc": Doc(url="http://x", tenant="t"),
    "item": Item("a", Decimal("1.50")),
    "movie": {"title": "m"},
    "free": {"a": {"b": True}, "id": UUID(int=1)},
}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("doc.tenant", "t"),
        ("order.id", "7"),
        ("order.doc.url", "u"),
        ("order.kind", "big"),
        ("order.shard", "s1"),
        ("item.price", "1.50"),
        ("movie.title", "m"),
        ("n", "5"),
        ("free.a.b", "true"),
        ("free.id", "00000000-0000-0000-0000-000000000001"),
    ],
)
def test_paths_lead_to_texts(path: str, text: str) -> None:
    made = signature(pathed)
    made.check_path(path, "key")
    assert made.path(ARGUMENTS, path) == text


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nope", "does not begin with a parameter; parameters: order, doc"),
        ("doc.nope", "Doc has no 'nope'"),
        ("item.nope", "Item has no 'nope'"),
        ("movie.nope", "Movie has no 'nope'"),
        ("order.nope", "Order has no 'nope'"),
    ],
)
def test_paths_that_lead_nowhere_are_refused_early(path: str, said: str) -> None:
    with pytest.raises(BadOptions, match=said):
        signature(pathed).check_path(path, "limits")


def test_paths_that_turn_out_to_lead_nowhere() -> None:
    made = signature(pathed)
    for path in ("free.a.c", "free.a.b.c", "order.doc.url"):
        with pytest.raises(BadArguments, match="has no"):
            made.path({**ARGUMENTS, "order": Order(1)}, path)
    with pytest.raises(BadArguments, match="there is no 'doc'"):
        made.path({}, "doc.tenant")
