"""What a run emits as server-sent events: over its attempts, with its children, continued where it was left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from flowfabric import App, Ctx, Retry, gather, seconds
from flowfabric.engine import Engine
from tests.server.listening import Event, events, listening
from tests.server.making import at, claimed, created

SOON = seconds(30)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ff.db"


@pytest.fixture
async def engine(url: str) -> AsyncIterator[Engine]:
    async with await Engine.open(url, single_node=True) as opened:
        yield opened


async def tell(url: str) -> str:
    """A run that has ended, with children that have failed once."""
    app = App(url)

    @app.task(retry=Retry(1, first=seconds(0), jitter=False))
    async def leaf(name: str, ctx: Ctx) -> None:
        for number in range(3):
            await ctx.emit(f"{name}{number} ")
        if ctx.attempt == 1:
            raise OSError("no")

    @app.step
    async def look(ctx: Ctx) -> None:
        await ctx.emit("look")

    @app.workflow
    async def root() -> None:
        await look()
        await gather(leaf.using(key="a")("a"), leaf.using(key="b")("b"))

    async with app, app.worker():
        run = await root.start()
        await run.result(timeout=SOON)
    return run.id


def seen(found: list[Event]) -> list[tuple[str, str]]:
    return [(each.data["run_id"], each.data["id"]) for each in found if each.name != "ended"]


async def test_a_run_is_followed_over_its_attempts(url: str, engine: Engine) -> None:
    await tell(url)
    page = await engine.search_executions(execution_kind="leaf")
    leaf = str(page.executions[0].execution_id)
    async with listening(engine) as client:
        path = at(leaf, "stream", "events")
        found = [each async for each in events(client, path)]
        names = ["frame"] * 3 + ["restart"] + ["frame"] * 3 + ["ended"]
        assert [each.name for each in found] == names
        assert [each.data.get("attempt") for each in found] == [1] * 3 + [2] * 4 + [None]
        assert all(each.identity == each.data["id"] for each in found[:-1])
        assert found[3].data["fields"]["payload"] == '{"attempt":2,"step":null,"reason":"retry"}'
        for number, each in enumerate(found[:-1]):
            rest = [other async for other in events(client, path, last=each.identity)]
            assert rest == found[number + 1 :]


async def test_a_run_is_followed_with_its_children(url: str, engine: Engine) -> None:
    run = await tell(url)
    async with listening(engine) as client:
        path = at(run, "stream", "events")
        alone = [each async for each in events(client, path)]
        assert [each.data.get("fields", {}).get("step") for each in alone] == ["look", None]
        whole = [each async for each in events(client, f"{path}?children=true")]
        assert len(whole) == 1 + 2 * 7 + 1
        assert len({run_id for run_id, _ in seen(whole)}) == 3
        assert [each.name for each in whole].count("restart") == 2
        marked = [number for number, each in enumerate(whole) if each.identity is not None]
        assert marked
        for number in marked:
            rest = [each async for each in events(client, f"{path}?children=true", last=whole[number].identity)]
            assert seen(rest) == seen(whole[number + 1 :]), "nothing is left out, nothing comes twice"


async def test_children_are_followed_while_they_run(url: str, engine: Engine) -> None:
    app = App(url)
    go = asyncio.Event()

    @app.task
    async def leaf(ctx: Ctx) -> None:
        await ctx.emit("first")
        await go.wait()
        await ctx.emit("second")

    @app.workflow
    async def root() -> None:
        await leaf()

    async with app, app.worker(), listening(engine) as client:
        run = await root.start()
        path = f"{at(run.id, 'stream', 'events')}?children=true"
        async with aclosing(events(client, path)) as following:  # type: ignore[type-var]
            first: Any = await asyncio.wait_for(anext(following), 30)
            assert first.data["fields"]["payload"] == "first"
        go.set()
        async with aclosing(events(client, path, last=first.identity)) as following:  # type: ignore[type-var]
            rest = [each async for each in following]
    assert [each.data.get("fields", {}).get("payload") for each in rest] == ["second", None]
    assert rest[-1].name == "ended"


async def test_what_is_no_place(engine: Engine) -> None:
    async with listening(engine) as client:
        identity = await created(client)
        path = at(identity, "stream", "events")
        uuid = identity.partition("}:")[2]
        for bad in ("x", "start", "1:", "0:1-0", "1:1", "5;x@0", f"5;{uuid}@x", "9" * 50, "-1"):
            for children in ("false", "true"):
                answer = await client.get(path, params={"after": bad, "children": children})
                assert answer.status_code == 400, bad
                assert "is not the id of an event" in answer.json()["error"]
        assert (await client.get(path, params={"after": f"5;{uuid}@0"})).status_code == 400, "only with children"
        await engine.complete(await claimed(engine))
        assert (await client.get(path, params={"after": "1:5-0"})).status_code == 200
        assert (await client.get(path, params={"after": f"5;{uuid}@0", "children": "true"})).status_code == 200
