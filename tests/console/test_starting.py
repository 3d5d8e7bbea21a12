"""Starting executions in the console: a form made from the signature of the function that runs them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import pytest_asyncio
from playwright.async_api import expect

from flowfabric import App, Limit
from flowfabric.sdk.durations import minutes
from tests.console.conftest import Pages
from tests.console.support.running import ServerProcess, serving
from tests.console.support.watched_page import Watched

pytestmark = pytest.mark.asyncio(loop_scope="session")
SOON = minutes(1)


class Parcel(msgspec.Struct):
    """What is sent."""

    weight: int
    street: str
    express: bool = False


def shipping(store: str, namespace: str = "shop") -> App:
    """An app whose tasks are started by people."""
    app = App(store, namespace=namespace)

    @app.task(lane="parcels", tags={"team": "post"}, id="ship:{order}", reuse="reject")
    async def ship(order: int, parcel: Parcel, size: Literal["small", "large"] = "small", note: str = "-") -> list[Any]:
        """Sends a parcel
        to a customer.

        By van.
        """
        return [order, parcel, size, note]

    @app.task(limits=[Limit(1, key="customer")])
    async def refund(customer: str) -> None:
        """Gives money back."""

    @app.workflow
    async def restock() -> str:
        return "full"

    return app


@pytest.fixture(scope="module")
def depot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    store = f"sqlite:///{tmp_path_factory.mktemp('depot') / 'depot.db'}"
    with serving(store) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def app(depot: ServerProcess) -> AsyncIterator[App]:
    """The app, with a worker that has announced it."""
    opened = shipping(depot.store)
    async with opened, opened.worker(lanes=["parcels", "default", "night"]):
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def watched(depot: ServerProcess, app: App, pages: Pages) -> Watched:
    return await pages.of(depot.url)


async def chosen(watched: Watched, part: str, kind: str) -> None:
    await watched.go("executions")
    await watched.button("Start…").click()
    await watched.at("#field-kind").fill(part)
    await watched.at(f"[data-choice={kind}]").click()
    await expect(watched.at("#field-kind")).to_have_value(kind)


async def fill(watched: Watched, **texts: str) -> None:
    for path, text in texts.items():
        await watched.at(f"#f-answer-{path.replace('__', '-')}").fill(text)


async def started(watched: Watched, app: App) -> tuple[str, Any]:
    """The run that the console shows, and what came of it."""
    await expect(watched.at("[data-why]")).to_be_visible()
    identity = await watched.at("[data-id]").inner_text()
    return identity, await app.run(identity).result(timeout=SOON)


async def test_a_form_starts_a_task(watched: Watched, app: App) -> None:
    await chosen(watched, "SHI", "ship")
    await expect(watched.at("[data-about]")).to_have_text("task Sends a parcel to a customer.")
    await expect(watched.at("#field-lane")).to_have_value("parcels")
    await expect(watched.at("#field-namespace")).to_have_value("shop")
    await expect(watched.at("#f-answer-note")).to_have_value("-")
    await fill(watched, order="x", parcel__weight="12", parcel__street="Elm Street 1")
    await watched.at("dialog").get_by_role("button", name="Start", exact=True).click()
    await expect(watched.at("[data-unsent]")).to_contain_text("Not started. Correct the marked field.")
    await expect(watched.at("#f-answer-order-problem")).to_have_text("Enter a whole number.")
    assert not await watched.findings()
    await fill(watched, order="7")
    await watched.at("#f-answer-size").select_option(label="large")
    await watched.confirm("Start")
    identity, result = await started(watched, app)
    assert result == [7, {"weight": 12, "street": "Elm Street 1", "express": False}, "large", "-"]
    info = await app.engine.read_execution_info(identity)
    assert info is not None
    assert (info.lane_id, info.namespace, info.execution_kind) == ("parcels", "shop", "ship")
    assert (await app.engine.read_execution_context(identity)).tags["user.team"] == "post"
    # Its id is taken from now on.
    watched.provoked.add(409)
    await chosen(watched, "hip", "ship")
    await fill(watched, order="7", parcel__weight="1", parcel__street="x")
    await watched.at("dialog").get_by_role("button", name="Start", exact=True).click()
    await expect(watched.at("dialog .problem")).to_contain_text("An execution with the id 'ship:7' exists")


async def test_the_same_as_json(watched: Watched, app: App) -> None:
    await chosen(watched, "hip", "ship")
    await fill(watched, order="8")
    await watched.button("As JSON").click()
    shown = msgspec.json.decode(await watched.at("#field-input").input_value())
    assert shown == {"order": 8, "size": "small", "note": "-"}
    watched.provoked.add(422)
    await watched.at("dialog").get_by_role("button", name="Start", exact=True).click()
    await expect(watched.at("dialog .problem")).to_contain_text("Invalid input: parcel is missing.")
    await watched.button("Form", exact=True).click()
    await expect(watched.at("dialog .problem").first).to_contain_text("This does not fit the form")
    text = '{"order": 9007199254740993, "parcel": {"weight": 1, "street": "x", "express": true}}'
    await watched.at("#field-input").fill(text)
    await watched.at("#field-lane").fill("night")
    await watched.confirm("Start")
    identity, result = await started(watched, app)
    assert result[0] == 9007199254740993
    info = await app.engine.read_execution_info(identity)
    assert info is not None
    assert info.lane_id == "night"


async def test_start_again_with_the_form(watched: Watched, app: App) -> None:
    await chosen(watched, "hip", "ship")
    await fill(watched, order="20", parcel__weight="1", parcel__street="First Street")
    await watched.confirm("Start")
    first, _ = await started(watched, app)
    await watched.choose("More", "Start again with edited input")
    await expect(watched.at("#f-answer-parcel-street")).to_have_value("First Street")
    await fill(watched, parcel__street="Second Street")
    await watched.confirm("Start")
    await expect(watched.at("[data-id]")).not_to_have_text(first)
    _, result = await started(watched, app)
    assert result[1]["street"] == "Second Street"


async def test_what_only_code_can_start(watched: Watched, app: App) -> None:
    await chosen(watched, "ref", "refund")
    told = watched.at("[data-by-code]")
    why = "its limits apply to each value of 'customer'"
    await expect(told).to_contain_text(f"This kind can be started only from code: {why}")
    await expect(told).to_contain_text("flowfabric submit APP refund")
    await expect(watched.at("dialog").get_by_role("button", name="Start", exact=True)).to_be_disabled()
    await expect(watched.at("#field-input")).to_have_count(0)


async def test_from_the_kinds_page_on_a_phone(depot: ServerProcess, app: App, pages: Pages) -> None:
    await (await app.definitions["restock"].start()).result(timeout=SOON)  # type: ignore[attr-defined]
    watched = await pages.of(depot.url, phone=True, theme="dark")
    await watched.go("kinds")
    await watched.button("Start restock").click()
    await expect(watched.at("dialog")).to_contain_text("It takes no arguments.")
    assert not await watched.findings()
    assert await watched.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert await watched.page.evaluate("document.querySelector('dialog').scrollWidth <= innerWidth")
    await watched.confirm("Start")
    assert (await started(watched, app))[1] == "full"


async def test_roles_see_their_own(tmp_path: Path, pages: Pages) -> None:
    store = f"sqlite:///{tmp_path / 'roles.db'}"
    tokens = {}
    for name in ("mine", "theirs"):
        async with shipping(store, name) as own, own.worker(lanes=["none"]):
            scopes = ["read", "submit"]
            made = await own.engine.create_credential(name=name, scopes=scopes, namespaces=[name])
            tokens[name] = made.token.reveal()
            read = await own.engine.create_credential(name="r", scopes=["read"], namespaces=[name])
    with serving(store) as server:
        watched = await pages.of(server.url, token=tokens["mine"])
        await watched.go("executions")
        await watched.button("Start…").click()
        await expect(watched.at("[data-choice]")).to_have_count(3)
        await watched.at("[data-choice=ship]").click()
        await expect(watched.at("#field-namespace")).to_have_value("mine")
        await fill(watched, order="1", parcel__weight="1", parcel__street="x")
        await watched.confirm("Start")
        await expect(watched.at("[data-why]")).to_be_visible()
        reader = await pages.of(server.url, token=read.token.reveal())
        await reader.go("kinds")
        await expect(reader.at("h1")).to_have_text("Kinds")
        await expect(reader.button("Start")).to_have_count(0)
