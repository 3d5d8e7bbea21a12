"""Forms made from schemas: whatever is typed, nothing leaves them that the workflow cannot read."""

from __future__ import annotations

import random
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.async_api import Browser
from pydantic.errors import PydanticUserError

from flowfabric.sdk.asks.answer_checks import check_against
from flowfabric.sdk.asks.ask import Ask
from flowfabric.sdk.definitions.codec import CodecError, codec_for
from flowfabric.sdk.errors import BadOptions
from tests.console.conftest import Shop
from tests.console.support.shapes import Shape, json_of, shape
from tests.console.support.watched_page import Watched

pytestmark = pytest.mark.asyncio(loop_scope="session")
FILLING = (Path(__file__).parent / "filling.js").read_text()
FORMS = 200


def asked_of(kind: Any) -> dict[str, Any]:
    """What a page is told of a question."""
    stored = Ask("go on?", kind)._stored
    return {"schema": msgspec.to_builtins(stored.schema), "approves": stored.approves}


def questions(count: int, seed: int) -> list[tuple[Shape, dict[str, Any]]]:
    """Random types that can be asked for, each with a value of it."""
    chance = random.Random(seed)
    found: list[tuple[Shape, dict[str, Any]]] = []
    while len(found) < count:
        try:
            made = shape(chance)
            value = json_of(made.make(chance))
            codec_for(made.type).decode(msgspec.json.encode(value))
            found.append((made, {**asked_of(made.type), "value": value}))
        except (BadOptions, CodecError, TypeError, ValueError, NotImplementedError, PydanticUserError):
            continue  # it cannot be asked for
    return found


async def filled(browser: Browser, shop: Shop, asked: list[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """Every form, filled in several ways, in a clock that is half an hour off."""
    context = await browser.new_context(timezone_id="America/St_Johns")
    watched = await Watched.opened(context, shop.url)
    watched.provoked.add(404)
    await watched.page.goto(f"{shop.url}answer#nothing")
    found: list[dict[str, Any]] = await watched.page.evaluate(FILLING, {"asked": asked, "seed": seed})
    await watched.check()
    await context.close()
    return found


async def test_no_form_sends_what_a_workflow_cannot_read(browser: Browser, shop: Shop) -> None:
    made = questions(FORMS, seed=16)
    sent = 0
    for each in await filled(browser, shop, [asked for _, asked in made], 16):
        kind, asked = made[each["index"]]
        if each["answer"] is None:
            assert each["unsent"], (kind.type, asked, each)
            assert all(each["told"] or [""]), (kind.type, asked, each)
            # What is a value of the type can be sent: nobody is kept from a good answer.
            assert each["way"] != "prefilled", (kind.type, asked, each)
            continue
        sent += 1
        answer = each["answer"].encode()
        assert check_against(asked["schema"], msgspec.json.decode(answer)) is None, (kind.type, asked, each)
        try:
            codec_for(kind.type).decode(answer)
        except CodecError as error:
            pytest.fail(f"{error}: {kind.type}, {asked}, {each}")
    assert sent > FORMS * 2, "most ways to fill a form lead to an answer"


class Refund(msgspec.Struct):
    """What a person says about a refund."""

    amount: Decimal
    due: date
    share: int = 50
    to: Refund | None = None


async def test_what_is_empty_is_said_at_its_field(browser: Browser, shop: Shop) -> None:
    [first, *_, prefilled] = await filled(
        browser, shop, [{**asked_of(Refund), "value": {"amount": "12.50", "due": "2030-12-31"}}], 1
    )
    assert first["answer"] is None
    assert first["told"] == ["Enter a decimal number such as 12.50.", "Enter a date such as 2030-12-31."]
    # Defaults are there from the beginning, and what is optional is left out.
    assert msgspec.json.decode(prefilled["answer"]) == {
        "amount": "12.50", "due": "2030-12-31", "share": 50, "to": None,
    }  # fmt: skip
