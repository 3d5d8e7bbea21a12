"""The same console on other stores: every page, something live, something done."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from flowfabric.engine import Engine
from tests.console.conftest import Pages, apart
from tests.console.support.running import serving
from tests.console.support.seeding import seed
from tests.console.test_pages import PAGES, shown

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("store", ["prepared_postgres_dsn", "valkey_url"], ids=["postgres", "valkey"])
async def test_every_page(store: str, request: pytest.FixtureRequest, pages: Pages) -> None:
    url = request.getfixturevalue(store)
    seeded = apart(seed(url, 60))
    with serving(url) as server:
        watched = await pages.of(server.url)
        await watched.go()
        for place, text in PAGES.items():
            await shown(watched, place, text, loaded=False)
        await watched.go(f"flows/{seeded.flow}")
        await expect(watched.at("canvas")).to_have_attribute("data-drawn", "14")
        await watched.open(seeded.delayed)
        await watched.button("Cancel…").click()
        await watched.confirm("Cancel")
        await expect(watched.at(".badge").first).to_have_text("cancelled")
        await watched.go("executions?q=lane%3Afresh")
        await expect(watched.page.get_by_text("No matches.")).to_be_visible()

        async def create() -> None:
            async with await Engine.open(url) as engine:
                await engine.create_execution(namespace="shop", lane_id="fresh", execution_kind="newcomer")

        apart(create())
        await expect(watched.at(".list-row .name")).to_have_text(["newcomer"])
        await watched.page.goto("about:blank")
