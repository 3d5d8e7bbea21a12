"""The commands of operators, as they are typed, on a store with something in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowfabric import App, Ask, Ctx, days, sleep
from flowfabric.cli.application import run as flowfabric

Output = pytest.CaptureFixture[str]


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    found = f"sqlite:///{tmp_path}/ff.db"
    monkeypatch.setenv("FF_URL", found)
    monkeypatch.setenv("COLUMNS", "200")
    return found


async def fill(url: str) -> dict[str, str]:
    """A store with a run in every interesting state."""
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


def test_a_tour(url: str, capsys: Output) -> None:
    import asyncio

    ids = asyncio.run(fill(url))
    listed = typed(capsys, "list")
    assert all(ids[name] in listed for name in ("done", "failed", "asking", "asleep", "waiting"))
    assert [each["execution_id"] for each in json.loads(typed(capsys, "list", "--state", "failed", "--json"))] == [
        ids["failed"]
    ]
    assert ids["done"] in typed(capsys, "list", "--tag", "team=docs")
    assert "no runs fit" in typed(capsys, "list", "--kind", "nothing")
    shown = typed(capsys, "show", ids["asking"])
    assert "review" in shown
    assert "✓" in shown
    assert "It sleeps until its time has come." in typed(capsys, "why", ids["asleep"])
    assert json.loads(typed(capsys, "why", ids["waiting"], "--json"))["gate"] == "waiting_for_worker"
    assert typed(capsys, "tail", ids["done"]) == "working hard\n"
    assert "publish?" in typed(capsys, "asks")
    assert "answered" in typed(capsys, "approve", ids["link"], "true")
    assert "cancelled" in typed(capsys, "cancel", ids["asleep"], "--reason", "enough")
    assert "cancelled" in typed(capsys, "list", "--state", "cancelled")
    assert "waiting again" in typed(capsys, "replay", ids["failed"])
    assert "priority 9" in typed(capsys, "priority", ids["waiting"], "9")
    assert "double" in typed(capsys, "flows", ids["asking"])
    assert "paused" in typed(capsys, "lanes", "pause", "default", "--reason", "tea")
    lanes = typed(capsys, "lanes")
    assert "paused" in lanes
    assert "tea" in lanes
    assert "active" in typed(capsys, "lanes", "resume", "default")
    assert "no worker" in typed(capsys, "workers")
    assert "no schedules" in typed(capsys, "schedules")
    assert "there are no budgets" in typed(capsys, "budgets")
    ends = [json.loads(line) for line in typed(capsys, "events").splitlines()]
    assert {each["execution_id"] for each in ends} >= {ids["done"], ids["failed"], ids["asleep"]}
    assert "up to date" in typed(capsys, "db", "migrate")
    assert "sqlite" in typed(capsys, "db", "check")
    assert "ok" in typed(capsys, "doctor")


def test_what_is_typed_wrongly(url: str, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    typed(capsys, "show", "nonsense", code=1)
    typed(capsys, "show", "{fp:1}:00000000-0000-4000-8000-000000000000", code=1)
    typed(capsys, "list", "--tag", "nothing", code=2)
    typed(capsys, "events", "nothing", code=2)
    typed(capsys, "approve", "nonsense", "not json", code=2)
    typed(capsys, "approve", "nonsense", "true", code=1)
    monkeypatch.delenv("FF_URL")
    typed(capsys, "list", code=2)
