"""One browser for all tests of a process, servers of their own, and a watched page for each test."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright

from tests.console.browser import chromium
from tests.console.running import ServerProcess, serving
from tests.console.seeding import Seeded, seed
from tests.console.watching import Watched


def apart(work: Any) -> Any:
    """Run a coroutine on a thread of its own: the tests' loop is another one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


class Shop(NamedTuple):
    """A server with a day's work in its store."""

    server: ServerProcess
    seeded: Seeded

    @property
    def url(self) -> str:
        return self.server.url


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """The machine's Chromium, without a window."""
    program = chromium()
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(executable_path=program, args=arguments)
        yield launched
        await launched.close()


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """An open server on SQLite; tests change only what they have made."""
    store = f"sqlite:///{tmp_path_factory.mktemp('shop') / 'shop.db'}"
    seeded = apart(seed(store))
    with serving(store) as server:
        yield Shop(server, seeded)


@pytest.fixture
def store(tmp_path: Path) -> str:
    """An empty store."""
    return f"sqlite:///{tmp_path / 'store.db'}"


class Pages:
    """Makes watched pages and looks at them in the end."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._open: list[tuple[Any, Watched]] = []

    async def of(self, url: str, *, theme: str = "light", phone: bool = False, token: str | None = None) -> Watched:
        """A new tab in a new browser profile."""
        size = {"width": 390, "height": 844} if phone else {"width": 1366, "height": 820}
        context = await self._browser.new_context(
            viewport=size,  # type: ignore[arg-type]
            color_scheme=theme,  # type: ignore[arg-type]
            reduced_motion="reduce",
            has_touch=phone,
        )
        if token is not None:
            await context.add_init_script(f"if (origin !== 'null') sessionStorage.setItem('ff.token', {token!r})")
        watched = await Watched.opened(context, url)
        self._open.append((context, watched))
        return watched

    async def close(self) -> None:
        """Nothing may have gone wrong in any of them."""
        try:
            for _, watched in self._open:
                await watched.check()
        finally:
            for context, _ in self._open:
                await context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def pages(browser: Browser) -> AsyncIterator[Pages]:
    """Watched pages of one test."""
    made = Pages(browser)
    yield made
    await made.close()
