"""``docs/asks.md`` lists every refusal of an answer: each is provoked, in a program and over HTTP."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest

from flowfabric import App, Ask, AskTimedOut, EngineError, OpenAsk, RunFailed, SdkError, seconds
from flowfabric.model.limits import MAX_PAYLOAD_BYTES
from flowfabric.model.records.executions import Execution
from flowfabric.sdk.asks.links import make_link
from flowfabric.server import ServerConfig, create_app
from tests.contract.seeding import overwrite
from tests.server.conftest import client_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "asks.md"
Refusal = tuple[str, str]


def listed() -> set[Refusal]:
    """The code in a program and the status (with the kind, if there is one) over HTTP of each row."""
    section = PAGE.read_text().split("## Refusals\n")[1].split("\nWhat asking itself")[0]
    rows = re.findall(r"^\| (`[^|]+) \| ([^|]*) \|", section, re.MULTILINE)
    return {(code, http.strip().replace("`", "")) for codes, http in rows for code in re.findall(r"`(\w+)`", codes)}


class World:
    """An app with a question that nobody has answered, and a client of its server."""

    def __init__(self, app: App, client: httpx.AsyncClient) -> None:
        self.app = app
        self.client = client

    async def ask(self, name: str = "review") -> OpenAsk:
        run = await self.app.definitions[name].start()  # type: ignore[attr-defined]
        [found] = await self.app.asks(run, wait=seconds(30))
        return found

    async def by_http(self, ask: OpenAsk, value: Any, by: str | None = "ann") -> httpx.Response:
        return await self.client.post(f"/v1/asks/{quote(ask.id, safe='')}/answer", json={"value": value, "by": by})

    async def by_link(self, link: str, value: Any) -> httpx.Response:
        return await self.client.post("/v1/answers", json={"link": link, "value": value})


@pytest.fixture
async def world() -> Any:
    app = App("memory://")

    @app.workflow
    async def review() -> bool:
        return await Ask("publish?", of={"ann", "bob"}, need=2)

    @app.workflow
    async def write() -> str:
        return await Ask("what?", str)

    async with app, app.worker(), client_of(create_app(app.engine, ServerConfig())) as client:
        yield World(app, client)


async def bad_answer(w: World) -> tuple[Awaitable[Any], httpx.Response]:
    ask = await w.ask()
    return ask.answer("perhaps", by="ann"), await w.by_http(ask, "perhaps")


async def no_link(w: World) -> tuple[Awaitable[Any], httpx.Response]:
    return w.app.answer("no link", True), await w.by_link("no link", True)


async def already_answered(w: World) -> tuple[Awaitable[Any], httpx.Response]:
    ask = await w.ask()
    await ask.answer(True, by="ann")
    return ask.answer(False, by="ann"), await w.by_http(ask, False)


async def closed(w: World) -> tuple[Awaitable[Any], httpx.Response]:
    ask = await w.ask()
    await ask.answer(False, by="bob")
    return ask.answer(True, by="ann"), await w.by_http(ask, True)


async def not_an_approver(w: World) -> tuple[Awaitable[Any], httpx.Response]:
    ask = await w.ask()
    return ask.answer(True, by="eve"), await w.by_http(ask, True, "eve")


async def forged(w: World) -> tuple[Awaitable[Any], httpx.Response]:
    ask = await w.ask()
    link = make_link(ask.id, ask.waitpoint("ann"), await ask.token("bob"))
    return w.app.answer(link, True), await w.by_link(link, True)


async def decided(w: World) -> tuple[Awaitable[Any], httpx.Response]:
    """The run has not gone on yet."""
    ask = await w.ask()
    link = await ask.link("ann")
    await w.app.engine.set_lane_state("default", "paused", "for a look")
    await ask.answer(False, by="bob")
    return w.app.answer(link, True), await w.by_link(link, True)


async def ended(w: World) -> tuple[Awaitable[Any], httpx.Response]:
    ask = await w.ask()
    link = await ask.link("ann")
    await ask.answer(False, by="bob")
    await w.app.run(ask.run_id).result(seconds(30))
    return w.app.answer(link, True), await w.by_link(link, True)


async def deleted(w: World) -> tuple[Awaitable[Any], httpx.Response]:
    link = make_link(f"{{fp:0}}:{uuid4()}", str(uuid4()), "k1:00")
    return w.app.answer(link, True), await w.by_link(link, True)


async def too_many(w: World) -> tuple[Awaitable[Any], httpx.Response]:
    ask = await w.ask()
    await overwrite(w.app.engine, Execution, ask.id, signal_count=2**31 - 1)
    return ask.answer(True, by="ann"), await w.by_http(ask, True)


async def too_large(w: World) -> tuple[Awaitable[Any], httpx.Response]:
    ask = await w.ask("write")
    text = "x" * (MAX_PAYLOAD_BYTES + 1)
    return ask.answer(text), await w.by_http(ask, text, None)


CASES: tuple[Callable[[World], Awaitable[tuple[Awaitable[Any], httpx.Response]]], ...] = (
    bad_answer, no_link, already_answered, closed, not_an_approver, forged, decided, ended, deleted, too_many,
    too_large,
)  # fmt: skip


async def test_every_refusal_is_listed(world: World) -> None:
    found: set[Refusal] = set()
    for case in CASES:
        program, response = await case(world)
        with pytest.raises((SdkError, EngineError)) as refused:
            await program
        kind = response.json().get("kind", "")
        assert response.status_code >= 400, case.__name__
        found.add((refused.value.code, f"{response.status_code} {kind}".strip()))
        await world.app.engine.set_lane_state("default", "active", "")
    assert found == listed()


async def test_what_the_workflow_gets(world: World) -> None:
    """The second table: what ``await Ask(…)`` raises."""
    page = PAGE.read_text()
    for code in (AskTimedOut.code, "ask_closed", "bad_answer", "bad_options"):
        assert f"| `{code}` | in " in page or f"| `{code}` | when " in page
    ask = await world.ask()
    await world.app.engine.resume_execution(execution_id=ask.id, trigger_type="operator")
    with pytest.raises(RunFailed, match="closed by an operator"):
        await world.app.run(ask.run_id).result(seconds(30))
