"""A store with a run in every interesting state, and a way to type commands."""

from __future__ import annotations

import pytest

from flowfabric import App, Ask, Ctx, days, sleep
from flowfabric.cli.application import run as flowfabric

Output = pytest.CaptureFixture[str]

#: A file with an app, as users write it.
WORK = """
import asyncio

from flowfabric import App, Ctx, days, sleep

app = App("sqlite:///flowfabric.db")


@app.task
async def double(value: int, ctx: Ctx) -> int:
    await ctx.emit("working ")
    await ctx.emit("hard")
    return 2 * value


@app.task
async def greet(name: str, times: int = 1, *, loud: bool = False) -> str:
    return ", ".join(["HELLO" if loud else "hello"] * times) + " " + name


@app.task(retry=0)
async def broken(name: str = "x") -> None:
    raise ValueError(f"no good {name}")


@app.task
async def slow(seconds: float, ctx: Ctx) -> str:
    for number in range(int(seconds * 10)):
        await ctx.emit(f"{number} ")
        await asyncio.sleep(0.1)
    return "done"


@app.workflow
async def nap(milliseconds: int) -> str:
    from datetime import timedelta

    await double(1)
    await sleep(timedelta(milliseconds=milliseconds))
    return "rested"


@app.workflow
async def sleeper() -> None:
    await sleep(days(30))
"""


async def fill(url: str) -> dict[str, str]:
    """Runs in every interesting state; their ids by name."""
    app = App(url)

    @app.task
    async def double(value: int, ctx: Ctx) -> int:
        await ctx.emit("working ")
        await ctx.emit("hard")
        return 2 * value

    @app.task(retry=0)
    async def broken() -> None:
        raise ValueError("no good")

    @app.workflow
    async def review(page: int) -> bool:
        await double(page)
        return await Ask("publish?", show={"page": page}, of="ann")

    @app.workflow
    async def sleeper() -> None:
        await sleep(days(30))

    async with app:
        async with app.worker():
            done = await double.using(tags={"team": "docs"}).start(21)
            failed = await broken.start()
            asking = await review.start(7)
            asleep = await sleeper.start()
            await done.result()
            await app.asks(asking, wait=days(1))
            while (await failed.status()).value != "failed" or (await asleep.status()).value != "suspended":
                await sleep(days(0))
        waiting = await double.start(1)
        await app.engine.run_timer("intake")
        [ask] = await app.asks(asking)
        return {
            "done": done.id,
            "failed": failed.id,
            "asking": asking.id,
            "asleep": asleep.id,
            "waiting": waiting.id,
            "ask": ask.id,
            "link": await ask.link("ann"),
        }


def typed(capsys: Output, *arguments: str, code: int = 0) -> str:
    """What a command prints; it must end with this code."""
    capsys.readouterr()
    assert flowfabric(list(arguments)) == code, (arguments, capsys.readouterr())
    return capsys.readouterr().out


def complaint(capsys: Output, *arguments: str, code: int = 2) -> str:
    """What a command that is refused says: one line, no traceback."""
    capsys.readouterr()
    assert flowfabric(list(arguments)) == code, (arguments, capsys.readouterr())
    said = capsys.readouterr()
    assert said.err.count("\n") == 1, said.err
    assert "Traceback" not in said.err
    assert len(said.err) > 20, said.err
    return said.err
