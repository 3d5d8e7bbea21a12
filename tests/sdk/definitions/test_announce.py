"""What workers announce of their tasks and workflows: all that a start needs, or why only code can start them."""

from __future__ import annotations

import dataclasses
import logging
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pydantic
import pytest

from flowfabric import App, Budget, Ctx, Depends, Limit, Rate, Retry, injected, minutes
from flowfabric.core.ownership.limited_callers import owned_policy
from flowfabric.model.errors import Unavailable
from flowfabric.model.operations.kinds import KindDescription
from flowfabric.model.policy import parse_policy
from flowfabric.sdk.asks.answer_checks import check_against
from flowfabric.sdk.definitions.announce import described, id_for
from flowfabric.sdk.options import StartOptions
from flowfabric.sdk.runs.start import prepare
from flowfabric.sdk.schemas.checks import check_asked

FIVE = minutes(5)


class Address(msgspec.Struct):
    """Where something goes."""

    street: str
    number: int = 1


class Order(pydantic.BaseModel):
    """What is sent."""

    number: int
    when: datetime
    customer: str = "nobody"


@dataclasses.dataclass
class Line:
    """A line of it."""

    article: UUID
    price: Decimal


class Other:
    """Types of the same name elsewhere."""

    class Address(msgspec.Struct):
        planet: str


def somebody() -> str:
    return "somebody"


async def told(definition: Any) -> KindDescription:
    return msgspec.convert(await described(definition), KindDescription)


async def test_a_worker_announces_its_app(app: App) -> None:
    @app.task(lane="mail", priority=4, tags={"team": "shop"})
    async def send(order: Order, to: Address, copies: int = 2) -> None:
        """Sends an order
        somewhere.

        Slowly.
        """

    @app.workflow
    async def whole(ctx: Ctx = injected) -> None: ...

    @app.step
    async def part() -> None: ...

    async with app.worker():
        page = await app.engine.list_kind_definitions(namespaces=[app.namespace])
        assert [each.kind for each in page.kinds] == ["send", "whole"]
        found = await app.engine.read_kind_definition(app.namespace, "send")
        assert found is not None
        definition = found.definition
        assert (definition.noun, definition.description) == ("task", "Sends an order somewhere.")
        assert (definition.lane_id, definition.priority, definition.tags) == ("mail", 4, {"user.team": "shop"})
        assert definition.input["required"] == ["order", "to"]
        assert list(definition.input["properties"]) == ["order", "to", "copies"], "as the function has them"
        assert definition.input["properties"]["copies"] == {"type": "integer", "default": 2}
        assert definition.by_code is None
        other = await app.engine.read_kind_definition(app.namespace, "whole")
        assert other is not None
        assert other.definition.noun == "workflow"
        assert other.definition.input["properties"] == {}
    async with app.worker():
        again = await app.engine.list_kind_definitions(namespaces=[app.namespace])
        assert again == page, "the same needs no write"


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
async def test_schemas_say_what_functions_take(app: App) -> None:
    @app.task
    async def everything(
        plain,  # type: ignore[no-untyped-def]
        order: Order,
        first: Address,
        second: Other.Address,
        third: Address,
        lines: list[Line],
        when: date | None = None,
        size: Literal["s", "m"] = "m",
        share: Annotated[int, msgspec.Meta(ge=0, le=100, title="Share in percent")] = 50,
        wait: timedelta = FIVE,
        price: Decimal = Decimal("1.50"),
        anything: dict[str, Any] = {},  # noqa: B006
        odd: Annotated[str, msgspec.Meta(pattern="(?<=a)b")] = "ab",
        who: Annotated[str, Depends(somebody)] = "",
        ctx: Ctx = injected,
    ) -> None: ...

    schema = (await told(everything)).input
    assert check_asked(schema) is None
    properties = schema["properties"]
    assert set(schema["required"]) == {"plain", "order", "first", "second", "third", "lines"}
    assert "who" not in properties
    assert "ctx" not in properties
    assert properties["plain"] == {}
    # A lookbehind is no pattern that every door can check: then anything goes, and the worker decides.
    assert properties["odd"] == {"default": "ab"}
    assert (properties["first"]["title"], properties["third"]["title"]) == ("First", "Third")
    assert properties["first"]["$ref"] == properties["third"]["$ref"] != properties["second"]["$ref"]
    assert properties["share"]["title"] == "Share in percent"
    defaults = {name: each["default"] for name, each in properties.items() if "default" in each}
    assert defaults == {
        "when": None, "size": "m", "share": 50, "wait": "PT300S", "price": "1.50", "anything": {}, "odd": "ab",
    }  # fmt: skip
    value = {
        "plain": [1], "order": {"number": 1, "when": "2030-01-01T00:00:00Z"}, "first": {"street": "x"},
        "second": {"planet": "p"}, "third": {"street": "y", "number": 2},
        "lines": [{"article": "00000000-0000-4000-8000-000000000000", "price": "1"}],
    }  # fmt: skip
    assert check_against(schema, value) is None
    everything.signature.unpack(msgspec.json.encode(value))
    for name, wrong in (
        ("second", {"street": "x"}),
        ("lines", [{"article": "x", "price": "1"}]),
        ("share", 101),
        ("size", "l"),
        ("unknown", 1),
    ):
        flaw = check_against(schema, {**value, name: wrong})
        assert flaw is not None
        assert flaw.startswith(name)


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
async def test_the_policy_is_that_of_a_start(app: App) -> None:
    @app.task(
        retry=Retry(3),
        timeout=minutes(1),
        deadline=minutes(9),
        needs={"gpu"},
        retention=minutes(60),
        limits=[Limit(2), Rate(5, per=minutes(1))],
        budget=Budget("all", usd=5),
        id="n:{n}",
        reuse="after_completion",
    )
    async def work(n: int) -> None: ...

    @app.workflow(cancel_grace=minutes(2))
    async def flow() -> None: ...

    for definition, arguments in ((work, {"n": 1}), (flow, {})):
        start = (await prepare(definition, arguments, StartOptions())).arguments
        found = await told(definition)
        given = owned_policy(parse_policy(found.policy), app.namespace)
        assert msgspec.json.decode(given or "") == msgspec.json.decode(parse_policy(start["policy"]) or "")
        assert id_for(found, arguments) == start.get("idempotency_key")
    assert (await told(work)).reuse == "after_completion"
    budgets = (await app.engine.list_budgets(namespaces=[app.namespace])).budgets
    assert len(budgets) == 1, "what it names is there before anybody starts it"


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
async def test_ids_that_the_input_gives(app: App) -> None:
    @app.task(id="order:{order.number}:{order.customer}:{to.number}:{tag}:{count}")
    async def send(order: Order, to: Address, tag: str = "x", count: int = 3) -> None: ...

    found = await told(send)
    assert found.by_code is None
    value: Any = {"order": {"number": 7, "when": "2030-01-01T00:00:00Z"}, "to": {"street": "s"}}
    given = send.signature.unpack(msgspec.json.encode(value))
    expected = (await prepare(send, given, StartOptions())).id
    assert id_for(found, value) == expected == "order:7:nobody:1:x:3"
    more = {**value, "tag": "ä{}", "count": -1, "to": {"street": "s", "number": 9}}
    assert id_for(found, more) == "order:7:nobody:9:ä{}:-1"


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
async def test_what_only_code_can_start(app: App) -> None:
    @app.task(limits=[Limit(2, key="order.customer")])
    async def keyed(order: Order) -> None: ...

    @app.task(id="{order.when}")
    async def timed(order: Order) -> None: ...

    @app.task(id="{anything}")
    async def untyped(anything: Any) -> None: ...

    @app.task(id="{maybe}")
    async def optional(maybe: str | None = None) -> None: ...

    for definition, reason in (
        (keyed, "its limits apply to each value of 'order.customer' by itself"),
        (timed, "its id '{order.when}' is made of more than plain texts and whole numbers of its input"),
        (untyped, "its id '{anything}' is made of"),
        (optional, "its id '{maybe}' is made of"),
    ):
        found = await told(definition)
        assert (found.by_code or "").startswith(reason)
        assert found.policy is None


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
async def test_large_types_are_left_open(app: App) -> None:
    large = Literal[tuple(f"choice number {number} of very many" for number in range(4_000))]  # type: ignore[valid-type]

    @app.task
    async def pick(one: large, two: int) -> None: ...  # type: ignore[valid-type]

    async with app.worker():
        found = await app.engine.read_kind_definition(app.namespace, "pick")
    assert found is not None
    assert found.definition.input["properties"] == {"one": {}, "two": {}}


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
async def test_a_worker_works_without_it(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async def refused(*_: Any) -> None:
        raise Unavailable("announce_kinds")

    monkeypatch.setattr(app.engine, "announce_kinds", refused)
    with caplog.at_level(logging.WARNING, "flowfabric.worker"):
        async with app.worker():
            assert await (await double.start(2)).result(timeout=minutes(1)) == 4
    assert "the console has no forms for them" in caplog.text
