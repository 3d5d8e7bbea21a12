"""The testing kit: month-long workflows in moments, stand-ins, workers that die where the test says."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from flowfabric import App, Ask, Ctx, Retry, RunFailed, days, gather, hours, minutes, seconds, sleep
from flowfabric.sdk.testing import Stuck, Testing

app = App("sqlite:///never-opened.db")
delivered: list[str] = []


@app.task(retry=Retry(3, first=minutes(1), longest=hours(1), jitter=False))
async def fetch(url: str) -> str:
    raise ConnectionError(f"no network in tests: {url}")


@app.task
async def summarize(text: str, ctx: Ctx) -> str:
    await ctx.emit(text)
    return text.upper()


@app.step
async def publish(text: str) -> str:
    delivered.append(text)
    return f"published {text}"


@app.workflow
async def review(url: str) -> str:
    text = await fetch(url)
    english, french = await gather(summarize(text), summarize.using(key="fr")(text + " fr"))
    await sleep(hours(1))
    if not await Ask("publish?", show=[english, french], of={"legal", "ops"}, need=2, within=days(3), otherwise=False):
        return "rejected"
    return await publish(english)


@app.workflow
async def reminders(count: int) -> int:
    for _ in range(count):
        await sleep(days(1))
    return count


@app.workflow
async def forever() -> None:
    await Ask("will anybody?")


@pytest.fixture(autouse=True)
def fresh() -> None:
    delivered.clear()


async def test_a_whole_workflow() -> None:
    async with app.testing() as t:
        t.replace(fetch, returns="hello")
        t.crash(summarize, before="complete", times=1)
        run = await review.start("u")
        ask = await t.next(Ask)
        assert t.clock.elapsed >= hours(1)
        assert ask.show == ["HELLO", "HELLO FR"]
        await ask.answer(True, by="legal")
        await ask.answer(True, by="ops")
        assert await run.result() == "published HELLO"
        assert t.attempts(summarize) == 3
        assert t.attempts(fetch) == 1
        assert (await t.steps(run))["publish"] == "published HELLO"
    assert delivered == ["HELLO"]
    assert app.url == "sqlite:///never-opened.db"


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_worker_dies_when_a_workflow_is_suspended(when: str) -> None:
    async with app.testing() as t:
        t.replace(fetch, returns="hello")
        t.crash(review, **{when: "suspend"})  # type: ignore[arg-type]
        run = await review.start("u")
        await (await t.next(Ask)).answer(False, by="legal")
        assert await run.result() == "rejected"


async def test_a_worker_dies_when_a_step_has_failed() -> None:
    async with app.testing() as t:
        t.replace(fetch, returns="hello")
        t.replace(publish, raises=ValueError("no"))
        t.crash(publish, before="step")
        run = await review.start("u")
        ask = await t.next(Ask)
        for by in ("legal", "ops"):
            await ask.answer(True, by=by)
        with pytest.raises(RunFailed, match="no"):
            await run.result()
        assert t.attempts(publish) == 2


async def test_a_crash_that_never_happens_fails_the_test() -> None:
    with pytest.raises(AssertionError, match=r"crash\(summarize, before='spend'\): no such write was made"):
        async with app.testing() as t:
            t.crash(summarize, before="spend")


async def test_nobody_answers() -> None:
    async with app.testing() as t:
        t.replace(fetch, returns="hello")
        run = await review.start("u")
        assert await run.result() == "rejected"
        assert days(3) + hours(1) <= t.clock.elapsed <= days(3) + hours(2)


async def test_a_month_passes_in_moments() -> None:
    async with app.testing() as t:
        began = time.monotonic()
        run = await reminders.start(30)
        assert await run.result() == 30
        assert t.clock.elapsed >= days(30)
        assert time.monotonic() - began < 60, "nobody waits for a month"


async def test_retries_wait_in_the_tests_time() -> None:
    async with app.testing() as t:
        run = await fetch.start("u")
        with pytest.raises(RunFailed, match="no network"):
            await run.result()
        assert t.attempts(fetch) == 4
        assert t.clock.elapsed >= minutes(1 + 2 + 4)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_worker_dies_at_a_step(when: str) -> None:
    async with app.testing() as t:
        t.replace(fetch, returns="x")
        t.replace(summarize, returns="short")
        t.crash(publish, **{when: "step"})  # type: ignore[arg-type]
        run = await review.start("u")
        ask = await t.next()
        await ask.answer(True, by="legal")
        await ask.answer(True, by="ops")
        assert await run.result() == "published short"
    # Before the step was remembered it runs again; afterwards it does not.
    assert delivered == (["short", "short"] if when == "before" else ["short"])


async def test_time_is_moved_by_hand() -> None:
    beginning = datetime(2031, 5, 1, tzinfo=UTC)
    async with app.testing(beginning=beginning) as t:
        run = await reminders.start(2)
        await t.advance(hours(23))
        assert (await run.status()).value == "suspended"
        assert list(await t.steps(run)) == ["sleep"]
        await t.advance(hours(2))
        assert list(await t.steps(run)) == ["sleep", "sleep#2"]
        assert t.clock.now == beginning + timedelta(hours=25)


async def test_waiting_in_vain_is_told() -> None:
    async with app.testing() as t:
        run = await forever.start()
        with pytest.raises(Stuck, match="will never end"):
            await run.result()
        ask = await t.next()
        await ask.answer(True)
        await run.result()
        with pytest.raises(Stuck, match="a question never comes"):
            await t.next()


async def test_stand_ins() -> None:
    async with app.testing() as t:
        t.replace(fetch, using=lambda url: f"page {url}")
        assert await (await fetch.start("a")).result() == "page a"
        t.replace(fetch, raises=ValueError("gone"))
        with pytest.raises(RunFailed, match="gone"):
            await (await fetch.start("b")).result()


async def test_results_have_their_timeout_in_real_time() -> None:
    async with app.testing() as t:
        run = await reminders.start(1)
        assert await run.result(seconds(30)) == 1
        assert isinstance(t, Testing)


CONFTEST = """
import pytest
from work import app

@pytest.fixture
def flowfabric_app():
    return app
"""
WORK = """
from flowfabric import App, days, sleep

app = App("sqlite:///x.db")

@app.workflow
async def wait() -> str:
    await sleep(days(30))
    return "done"
"""
TEST = """
from work import wait

async def test_wait(flowfabric_testing):
    run = await wait.start()
    assert await run.result() == "done"
    assert flowfabric_testing.clock.elapsed.days == 30
"""


def test_the_pytest_plugin(tmp_path: Path) -> None:
    for name, text in (("conftest.py", CONFTEST), ("work.py", WORK), ("test_wait.py", TEST)):
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "--asyncio-mode=auto"]
    done = subprocess.run(
        [*command, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
