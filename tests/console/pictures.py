"""Draws the pictures of the README and the console's guide again: ``./dev run python -m tests.console.pictures``."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from urllib.parse import quote

from playwright.async_api import async_playwright

from tests.console.support.browser import chromium
from tests.console.support.running import serving
from tests.console.support.seeding import seed

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
WIDTH = 1280
#: Time for charts and graphs to be drawn.
SETTLING_MS = 4_000


async def main() -> None:
    """Seed a store, serve it, and look at four pages."""
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/shop.db"
        seeded = await seed(store)
        pages = {
            "console-overview": ("overview", 1010),
            "console-execution": (f"executions/{quote(seeded.deploy, safe='')}?tab=steps", 860),
            "console-flow": (f"flows/{quote(seeded.flow, safe='')}", 800),
            "console-approvals": ("approvals", 860),
        }
        with serving(store) as server:
            await draw(server.url, pages)


async def draw(url: str, pages: dict[str, tuple[str, int]]) -> None:
    """One picture for each page."""
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=arguments)
        for name, (page, height) in pages.items():
            tab = await browser.new_page(viewport={"width": WIDTH, "height": height}, color_scheme="light")
            await tab.goto(f"{url}/#/{page}")
            await tab.wait_for_timeout(SETTLING_MS)
            await tab.screenshot(path=IMAGES / f"{name}.png")
        await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
