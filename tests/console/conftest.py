"""One browser for all tests of a process, servers of their own, and a watched page for each test."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Playwright, async_playwright

from tests.console.support.browser import chromium
from tests.console.support.running import ServerProcess, serving
from tests.console.support.seeding import Seeded, seed
from tests.console.support.watched_page import Watched

HERE = Path(__file__).parent

#: Above what a test here waits in all, so that it says what it did not see, and the limit only ends what hangs.
LIMIT_S = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give these tests that limit; they are asked about all there are."""
    for item in items:
        if item.path.parent == HERE and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LIMIT_S))


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


class Browsers:
    """The machine's Chromium, without a window; a fresh one after a failure.

    A test that runs into its limit is interrupted anywhere, also in the middle of what drives the browser.
    """

    def __init__(self) -> None:
        self.worn = False
        self._driver: Playwright | None = None
        self._launched: Browser | None = None

    async def current(self) -> Browser:
        """One that no failed test has used."""
        if self.worn:
            await self.close()
        if self._launched is None:
            self._driver = await async_playwright().start()
            arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
            self._launched = await self._driver.chromium.launch(executable_path=chromium(), args=arguments)
        return self._launched

    async def close(self) -> None:
        """End it; one that does not answer is left to its driver, which ends with this process."""
        launched, driver, worn = self._launched, self._driver, self.worn
        self._launched, self._driver, self.worn = None, None, False
        with contextlib.suppress(*([Exception] if worn else [])):
            async with asyncio.timeout(GOODBYE_S):
                if launched is not None:
                    await launched.close()
                if driver is not None:
                    await driver.stop()


#: For a browser to end.
GOODBYE_S = 30
_BROWSERS = pytest.StashKey[Browsers]()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browsers(request: pytest.FixtureRequest) -> AsyncIterator[Browsers]:
    """The browsers of this process, one after the other."""
    made = request.config.stash[_BROWSERS] = Browsers()
    yield made
    await made.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember that a test of the console failed."""
    report = yield
    browsers = item.config.stash.get(_BROWSERS, None)
    if report.failed and browsers is not None:
        browsers.worn = True
    return report


@pytest_asyncio.fixture(loop_scope="session")
async def browser(browsers: Browsers) -> Browser:
    """The browser that drives this test."""
    return await browsers.current()


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
