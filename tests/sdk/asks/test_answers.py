"""An answer that does not fit is refused at every door, and the question stays open."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4, uuid5

import httpx
import pytest

from flowfabric import App, Ask, BadAnswer, BadOptions, seconds
from flowfabric.cli.application import run as flowfabric
from flowfabric.model.errors import Validation
from flowfabric.sdk.asks.ask import OpenAsk
from flowfabric.sdk.asks.raw_answers import check_signal
from tests.sdk.serving import serving

SOON = seconds(30)


@dataclass
class Payment:
    amount: Decimal
    due: date
    note: str = ""


GOOD = {"amount": "12.50", "due": "2030-01-31"}
#: Answers that a check of types alone would take, and that the workflow could not read.
BAD: list[tuple[Any, str]] = [
    ({"amount": "", "due": "2030-01-31"}, "amount is not a decimal"),
    ({"amount": "12,50", "due": "2030-01-31"}, "amount is not a decimal"),
    ({"amount": "1", "due": ""}, "due is not a date"),
    ({"amount": "1", "due": "31.1.2030"}, "due is not a date"),
    ({"amount": "1"}, "due is missing"),
    ({"amount": "1", "due": "2030-01-31", "note": 5}, "note is not string"),
    ([], "it is not object"),
]


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ff.db"


@pytest.fixture
def address(store: str) -> Iterator[str]:
    with serving(store) as found:
        yield found


def make(url: str) -> App:
    app = App(url)

    @app.workflow
    async def pay() -> str:
        payment = await Ask("how much?", Payment)
        return f"{payment.amount} by {payment.due}"

    return app


@pytest.fixture
async def app(address: str, store: str) -> AsyncIterator[App]:
    made = make(store)
    async with made, made.worker():
        yield made


class Refused(Exception):
    """What a door said no with."""


Door = Callable[[OpenAsk, Any, str, str], Awaitable[None]]


async def by_sdk(ask: OpenAsk, value: Any, store: str, address: str) -> None:
    await ask.answer(value)


async def by_link(ask: OpenAsk, value: Any, store: str, address: str) -> None:
    await ask._app.answer(await ask.link(), value)


async def by_remote_sdk(ask: OpenAsk, value: Any, store: str, address: str) -> None:
    async with make(address) as remote:
        [same] = await remote.asks(ask.run_id)
        await same.answer(value)


async def by_remote_link(ask: OpenAsk, value: Any, store: str, address: str) -> None:
    async with make(address) as remote:
        await remote.answer(await ask.link(), value)


async def posted(url: str, body: dict[str, Any]) -> None:
    async with httpx.AsyncClient() as client:
        response = await client.post(url, json=body)
    if response.status_code != 200:
        assert response.status_code == 422
        raise Refused(response.json()["error"])


async def by_http(ask: OpenAsk, value: Any, store: str, address: str) -> None:
    await posted(f"{address}/v1/asks/{quote(ask.id, safe='')}/answer", {"value": value})


async def by_http_link(ask: OpenAsk, value: Any, store: str, address: str) -> None:
    await posted(f"{address}/v1/answers", {"link": await ask.link(), "value": value})


async def signal_for(ask: OpenAsk, value: Any, **more: Any) -> dict[str, Any]:
    """An answer as a signal of one's own making."""
    told = {"waitpoint_id": ask.waitpoint(None), "waitpoint_token": (await ask.token()).reveal()}
    return {**told, "signal_name": "approve", "payload": json.dumps(value).encode(), **more}


async def posted_signal(ask: OpenAsk, address: str, signal: dict[str, Any]) -> httpx.Response:
    payload = {"payload": list(signal["payload"])} if signal["payload"] is not None else {}
    rest = dict.fromkeys(("signal_category", "source_type", "source_identity", "target_scope"), "x")
    async with httpx.AsyncClient() as client:
        return await client.post(
            f"{address}/v1/executions/{quote(ask.id, safe='')}/signal", json=signal | rest | payload
        )


async def by_http_signal(ask: OpenAsk, value: Any, store: str, address: str) -> None:
    response = await posted_signal(ask, address, await signal_for(ask, value))
    if response.status_code != 200:
        assert response.status_code == 422
        raise Refused(response.json()["error"])


async def by_remote_signal(ask: OpenAsk, value: Any, store: str, address: str) -> None:
    async with make(address) as remote:
        try:
            await remote.engine.deliver_signal(execution_id=ask.id, **await signal_for(ask, value))
        except Validation as error:
            raise Refused(str(error)) from None


def by_command(by: str, where: str) -> Door:
    async def door(ask: OpenAsk, value: Any, store: str, address: str) -> None:
        named = await ask.link() if by == "link" else ask.id
        url = store if where == "store" else address
        capture: list[int] = []
        typed = ["approve", named, json.dumps(value), "--url", url]
        if by == "signal":
            typed = ["signal", named, "approve", json.dumps(value), "--url", url]
        capture.append(await asyncio.to_thread(flowfabric, typed))
        if capture[0]:
            raise Refused("")

    door.__name__ = f"by_command_{by}_{where}"
    return door


DOORS: list[Door] = [
    by_sdk, by_link, by_remote_sdk, by_remote_link, by_http, by_http_link, by_http_signal, by_remote_signal,
    *(by_command(by, where) for by in ("link", "id", "signal") for where in ("store", "server")),
]  # fmt: skip


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
async def test_what_does_not_fit_is_refused_and_the_question_stays_open(
    app: App, store: str, address: str, door: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = await app.definitions["pay"].start()  # type: ignore[attr-defined]
    [ask] = await app.asks(run, wait=SOON)
    for value, words in BAD:
        with pytest.raises((BadAnswer, Refused)) as refused:
            await door(ask, value, store, address)
        assert words in f"{refused.value} {capsys.readouterr().err}", value
        [still] = await app.asks(run)
        assert still.id == ask.id
    await door(ask, GOOD, store, address)
    assert await run.result(timeout=SOON) == "12.50 by 2030-01-31"


async def test_signals_that_are_no_answers(app: App, address: str) -> None:
    run = await app.definitions["pay"].start()  # type: ignore[attr-defined]
    [ask] = await app.asks(run, wait=SOON)
    for more, words in (
        ({"payload": None}, "it is not object"),
        ({"payload": b"{"}, "it is not object"),
        ({"signal_name": "decline"}, "signal_name does not match: the answer says 'approve'"),
    ):
        refused = await posted_signal(ask, address, await signal_for(ask, GOOD, **more))
        assert (refused.status_code, words in refused.json()["error"]) == (422, True), refused.text
    other = await posted_signal(ask, address, await signal_for(ask, "?", signal_name="hint"))
    assert other.status_code == 200, "the question does not take it for an answer"
    assert len(await app.asks(run)) == 1


async def test_whoever_lacks_the_token_learns_nothing_of_the_question(app: App, address: str) -> None:
    run = await app.definitions["pay"].start()  # type: ignore[attr-defined]
    [ask] = await app.asks(run, wait=SOON)
    token = (await ask.token()).reveal()
    changed = token[:-1] + ("0" if token[-1] != "0" else "1")
    for wrong in ("", "k1", changed, f"k9{token[2:]}"):
        good, bad = [
            await posted_signal(ask, address, await signal_for(ask, value, waitpoint_token=wrong))
            for value in (GOOD, BAD[0][0])
        ]
        assert (bad.status_code, bad.json()) == (good.status_code, good.json())
        assert "_token" in bad.json()["error"]
        assert "amount" not in bad.text
    await ask.answer(GOOD)
    await run.result(timeout=SOON)
    signal = {"waitpoint_id": ask.waitpoint(None), "waitpoint_token": token, "signal_name": "approve", "payload": b"5"}
    late = await posted_signal(ask, address, signal)
    assert late.status_code == 409, "a question that is closed says so, and nothing of its type"


async def test_other_signals_are_delivered_without_a_look(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    async def looked(*_: Any) -> None:
        raise AssertionError("nothing has to be read for it")

    monkeypatch.setattr(app.engine, "read_execution_context", looked)
    addressed = {"execution_id": "{fp:0}:" + str(uuid4()), "waitpoint_token": "k1:00"}
    await check_signal(app.engine, **addressed, waitpoint_id=str(uuid5(uuid4(), "x")), signal_name="paid")
    await check_signal(app.engine, **addressed, waitpoint_id=str(uuid4()), signal_name="approve")


async def test_answers_that_are_values(app: App, store: str) -> None:
    run = await app.definitions["pay"].start()  # type: ignore[attr-defined]
    [ask] = await app.asks(run, wait=SOON)
    deep: Any = []
    for _ in range(500):
        deep = [deep]
    for wrong in (deep, object(), Payment(1, 2)):  # type: ignore[arg-type]
        with pytest.raises(BadAnswer):
            await ask.answer(wrong)
    await ask.answer(Payment(Decimal(3), date(2031, 1, 1)))
    assert await run.result(timeout=SOON) == "3 by 2031-01-01"


def test_what_cannot_be_shown_is_not_asked() -> None:
    deep: Any = []
    for _ in range(500):
        deep = [deep]
    with pytest.raises(BadOptions, match="show"):
        Ask("publish?", bool, show=deep)
