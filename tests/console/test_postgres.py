"""The same console on PostgreSQL: every page, something live, something done."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from flowfabric.engine import Engine
from tests.console.conftest import Pages, apart
from tests.console.running import serving
from tests.console.seeding import seed
from tests.console.test_pages import PAGES, shown

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_every_page(prepared_postgres_dsn: str, pages: Pages) -> None:
    seeded = apart(seed(prepared_postgres_dsn, 60))
    with serving(prepared_postgres_dsn) as server:
        watched = await pages.of(server.url)
        for place, text in PAGES.items():
            await shown(watched, place, text)
        await watched.go(f"flows/{seeded.flow}")
        await expect(watched.at("canvas")).to_have_attribute("data-drawn", "14")
        await watched.open(seeded.delayed)
        await watched.button("Cancel…").click()
        await watched.confirm("Cancel it")
        await expect(watched.at(".badge").first).to_have_text("cancelled")
        await watched.go("executions?q=lane%3Afresh")
        await expect(watched.page.get_by_text("Nothing fits.")).to_be_visible()

        async def create() -> None:
            async with await Engine.open(prepared_postgres_dsn) as engine:
                await engine.create_execution(namespace="shop", lane_id="fresh", execution_kind="newcomer")

        apart(create())
        await expect(watched.at(".list-row .name")).to_have_text(["newcomer"])
        await watched.page.goto("about:blank")
