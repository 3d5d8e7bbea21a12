"""Every page under plans that delay, reorder, double, break and lose answers, while somebody presses and others act.

What must hold: nothing is done but what was shown when it was pressed, and that once; no typed text is lost; every
failure is told; and in the end the page shows what the store has.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from flowfabric.engine import Engine
from tests.conftest import full_run
from tests.console.conftest import Pages
from tests.console.support.late_bugs import BUGS
from tests.console.support.plans import Plan, World
from tests.console.support.running import ServerProcess, serving
from tests.console.support.watched_page import Watched

pytestmark = pytest.mark.asyncio(loop_scope="session")
TOKEN = "the-token-of-the-plans"
#: As many plans are in every run.
FIRST = 20
PLANS = range(500 if full_run() else FIRST)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with an administrator, so that a new credential shuts nobody out."""
    store = f"sqlite:///{tmp_path_factory.mktemp('plans') / 'plans.db'}"
    with serving(store, FF_API_TOKEN=TOKEN) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def engine(server: ServerProcess) -> AsyncIterator[Engine]:
    async with await Engine.open(server.store, single_node=True) as opened:
        yield opened


async def opened(pages: Pages, server: ServerProcess) -> Watched:
    """A page of an administrator; what is refused is written to the browser's console."""
    watched = await pages.of(server.url, token=TOKEN)
    watched.provoked.update((0, 400, 404, 409, 422, 429, 502, 503))
    return watched


@pytest.mark.parametrize("name", BUGS)
async def test_plans_find_what_was_wrong(server: ServerProcess, engine: Engine, browser: Browser, name: str) -> None:
    """Each bug that is put back makes one of the first plans fail, with what is wrong about it."""
    bug = BUGS[name]
    told = []
    for number in range(FIRST):
        pages = Pages(browser)
        watched = await opened(pages, server)
        world = await World(engine, f"bug{list(BUGS).index(name)}plan{number}").made()
        plan = Plan(number, watched, world)
        await bug.plant(watched.page)
        await plan.open()
        try:
            await plan.drive(bug.page)
        except AssertionError as wrong:
            told.append(str(wrong))
        try:
            await pages.close()
        except AssertionError as wrong:
            told.append(str(wrong))
        if any(re.search(bug.tells, each) for each in told):
            return
    raise AssertionError(f"no plan has found that {name}: {told}")


@pytest.mark.parametrize("number", PLANS)
async def test_answers_that_come_as_they_like(server: ServerProcess, engine: Engine, pages: Pages, number: int) -> None:
    watched = await opened(pages, server)
    plan = Plan(number, watched, await World(engine, f"plan{number}").made())
    await plan.open()
    names = list(plan.world.pages)
    plan.chance.shuffle(names)
    for name in names:
        await plan.drive(name)
    await plan.answer()
