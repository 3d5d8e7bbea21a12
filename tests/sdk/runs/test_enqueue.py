"""Starting a run inside one's own transaction: it exists if and only if that commits, whatever the driver."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiosqlite
import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from flowfabric import (
    App,
    BadOptions,
    Debounce,
    NotCommitted,
    StartRefused,
    StillPending,
    UnknownRun,
    minutes,
    seconds,
)
from flowfabric.model.operations.enqueue import RequestPage
from tests.contract.probe import sql_stores_only

SOON = seconds(20)
UNKNOWN = "{fp:0}:00000000-0000-4000-8000-000000000000"


class Open(NamedTuple):
    """A connection in a transaction, and how that ends."""

    tx: Any
    commit: Callable[[], Any]
    rollback: Callable[[], Any]


def path_of(url: str) -> str:
    return url.removeprefix("sqlite:///")


@asynccontextmanager
async def with_sqlite3(url: str) -> AsyncIterator[Open]:
    connection = sqlite3.connect(path_of(url))
    connection.execute("CREATE TABLE IF NOT EXISTS orders (id integer)")
    connection.commit()
    try:
        yield Open(connection, connection.commit, connection.rollback)
    finally:
        connection.close()


@asynccontextmanager
async def with_aiosqlite(url: str) -> AsyncIterator[Open]:
    async with aiosqlite.connect(path_of(url)) as connection:
        yield Open(connection, connection.commit, connection.rollback)


@asynccontextmanager
async def with_psycopg(url: str) -> AsyncIterator[Open]:
    with psycopg.connect(url) as connection:
        yield Open(connection, connection.commit, connection.rollback)


@asynccontextmanager
async def with_psycopg_async(url: str) -> AsyncIterator[Open]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield Open(connection, connection.commit, connection.rollback)


@asynccontextmanager
async def with_asyncpg(url: str) -> AsyncIterator[Open]:
    connection = await asyncpg.connect(url)
    # What a program tells the driver about JSON is its own affair.
    await connection.set_type_codec("jsonb", encoder=repr, decoder=str, schema="pg_catalog")
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield Open(connection, transaction.commit, transaction.rollback)
    finally:
        await connection.close()


@asynccontextmanager
async def with_asyncpg_pool(url: str) -> AsyncIterator[Open]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        yield Open(connection, transaction.commit, transaction.rollback)


def _alchemy(url: str, driver: str) -> str:
    scheme, rest = url.split(":", 1)
    return f"{scheme}+{driver}:{rest}"


def with_alchemy(driver: str, session: bool) -> Callable[[str], Any]:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Open]:
        engine = sqlalchemy.create_engine(_alchemy(url, driver))
        try:
            with Session(engine) if session else engine.connect() as connection:
                yield Open(connection, connection.commit, connection.rollback)
        finally:
            engine.dispose()

    return opened


def with_async_alchemy(driver: str, session: bool) -> Callable[[str], Any]:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Open]:
        engine = create_async_engine(_alchemy(url, driver))
        try:
            async with AsyncSession(engine) if session else engine.connect() as connection:
                yield Open(connection, connection.commit, connection.rollback)
        finally:
            await engine.dispose()

    return opened


SQLITE: dict[str, Callable[[str], Any]] = {
    "sqlite3": with_sqlite3,
    "aiosqlite": with_aiosqlite,
    "SQLAlchemy Connection": with_alchemy("pysqlite", False),
    "SQLAlchemy Session": with_alchemy("pysqlite", True),
    "SQLAlchemy AsyncConnection": with_async_alchemy("aiosqlite", False),
    "SQLAlchemy AsyncSession": with_async_alchemy("aiosqlite", True),
}
POSTGRES: dict[str, Callable[[str], Any]] = {
    "psycopg": with_psycopg,
    "psycopg async": with_psycopg_async,
    "asyncpg": with_asyncpg,
    "asyncpg from a pool": with_asyncpg_pool,
    "SQLAlchemy Connection": with_alchemy("psycopg", False),
    "SQLAlchemy Session": with_alchemy("psycopg", True),
    "SQLAlchemy AsyncConnection": with_async_alchemy("asyncpg", False),
    "SQLAlchemy AsyncSession": with_async_alchemy("asyncpg", True),
}
EVERY = pytest.mark.parametrize(
    ("store_url", "connect"),
    [
        *[pytest.param("sqlite", each, id=f"sqlite-{name}") for name, each in SQLITE.items()],
        *[pytest.param("postgres", each, id=f"postgres-{name}") for name, each in POSTGRES.items()],
    ],
    indirect=["store_url"],
)


async def done(answer: Any) -> None:
    """What a driver returns, awaited if it wants to be."""
    if answer is not None and hasattr(answer, "__await__"):
        await answer


def define(app: App) -> Any:
    @app.task
    async def send(order: int, to: str = "żółw") -> str:
        return f"{order} to {to}"

    return send


def anyone(store_url: str) -> Callable[[str], Any]:
    return with_sqlite3 if store_url.startswith("sqlite") else with_asyncpg


@EVERY
async def test_it_runs_after_the_commit(store_url: str, connect: Callable[[str], Any]) -> None:
    app = App(store_url)
    send = define(app)
    async with app, connect(store_url) as (tx, commit, _):
        run = await send.using(tx=tx, priority=5, tags={"team": "docs"}).start(7)
        with pytest.raises(NotCommitted, match="commit it first"):
            await run.status()
        with pytest.raises(NotCommitted):
            await run.result(timeout=SOON)
        with pytest.raises(NotCommitted):
            await anext(run.frames())
        await done(commit())
        assert await run.status() == "pending"
        assert await app.run(run.id).status() == "pending"
        async with app.worker():
            assert await run.result(timeout=SOON) == "7 to żółw"
        assert [frame async for frame in run.frames()] == []
        info = await run.info()
        assert info.tags["user.team"] == "docs"


@sql_stores_only
async def test_what_needs_the_run_says_that_it_is_on_its_way(store_url: str) -> None:
    app = App(store_url)
    send = define(app)
    connect = with_sqlite3 if store_url.startswith("sqlite") else with_psycopg
    async with app, connect(store_url) as (tx, commit, _):
        run = await send.using(tx=tx).start(7)
        for call in (run.explain, run.info):
            with pytest.raises(NotCommitted):
                await call()
        commit()
        for handle in (run, app.run(run.id)):
            for call in (handle.explain, handle.info, handle.cancel, handle.replay, handle.fork):
                with pytest.raises(StillPending, match="picks it up within a second"):
                    await call()
        assert await app.engine.run_timer("enqueue_requests") == 1
        assert (await run.explain()).gate == "waiting_for_worker"
        await run.cancel()
        assert await run.status() == "cancelled"
        for call in (app.run(UNKNOWN).explain, app.run(UNKNOWN).info, app.run(UNKNOWN).cancel):
            with pytest.raises(UnknownRun):
                await call()


@sql_stores_only
async def test_a_run_that_existed_before_is_the_one_that_is_meant(store_url: str) -> None:
    app = App(store_url)
    send = define(app)
    connect = with_sqlite3 if store_url.startswith("sqlite") else with_psycopg
    async with app:
        first = await send.using(id="once").start(7)
        async with connect(store_url) as (tx, commit, _):
            again = await send.using(id="once", tx=tx).start(7)
            commit()
        await app.engine.run_timer("enqueue_requests")
        assert (await again.explain()).execution_id == first.id
        assert again == first


@EVERY
async def test_a_rollback_leaves_nothing(store_url: str, connect: Callable[[str], Any]) -> None:
    app = App(store_url)
    send = define(app)
    async with app, connect(store_url) as (tx, _, rollback):
        run = await send.using(tx=tx).start(7)
        await done(rollback())
        with pytest.raises(NotCommitted):
            await run.status()
        assert await app.engine.run_timer("enqueue_requests") == 0
        assert await app.engine.list_requests() == RequestPage((), None)
        with pytest.raises(UnknownRun):
            await app.run(run.id).status()


PROGRAM = """
import asyncio, os, signal, sys
from flowfabric import App
sys.path.insert(0, {folder!r})
from tests.sdk.runs.test_enqueue import anyone, define, done

async def main():
    app = App({url!r})
    send = define(app)
    async with app, anyone(app.url)(app.url) as (tx, commit, _):
        run = await send.using(tx=tx).start(7)
        if {committing}:
            await done(commit())
        print(run.id, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@sql_stores_only
@pytest.mark.parametrize("committing", [True, False])
async def test_a_process_that_is_killed(store_url: str, committing: bool) -> None:
    """Between its commit and the pick-up, or before the commit."""
    text = PROGRAM.format(folder=os.getcwd(), url=store_url, committing=committing)
    process = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", text], capture_output=True, text=True, check=False
    )
    assert process.returncode == -signal.SIGKILL, process.stderr
    app = App(store_url)
    send = define(app)
    run = app.run(process.stdout.strip(), send)
    async with app, app.worker():
        if committing:
            assert await run.result(timeout=SOON) == "7 to żółw"
        else:
            with pytest.raises(UnknownRun):
                await run.status()


@sql_stores_only
async def test_ids(store_url: str) -> None:
    """A second start of an id is the first run, in a transaction or not."""
    app = App(store_url)

    @app.task(id="order:{order}")
    async def send(order: int) -> int:
        return order

    async with app, anyone(store_url)(store_url) as (tx, commit, _):
        before = await send.start(1)
        again = await send.using(tx=tx).start(1)
        first = await send.using(tx=tx).start(2)
        twice = await send.using(tx=tx).start(2)
        assert first == twice
        await done(commit())
        async with app.worker():
            assert [await each.result(timeout=SOON) for each in (before, again, first, twice)] == [1, 1, 2, 2]
        assert again.id == before.id
        assert (await send.start(2)).id == first.id


@sql_stores_only
async def test_what_cannot_be_created(store_url: str) -> None:
    app = App(store_url, lane="closed")
    send = define(app)
    async with app, anyone(store_url)(store_url) as (tx, commit, _):
        run = await send.using(tx=tx).start(7)
        await done(commit())
        await app.engine.set_lane_state("closed", "disabled")
        await app.engine.run_timer("enqueue_requests")
        with pytest.raises(StartRefused, match="retry_request"):
            await run.result()
        await app.engine.set_lane_state("closed", "active")
        [request] = (await app.engine.list_requests(refused=True)).requests
        await app.engine.retry_request(request.request_id)
        assert await run.status() == "pending"


@sql_stores_only
async def test_frames_of_a_run_that_is_not_there_yet(store_url: str) -> None:
    app = App(store_url)
    send = define(app)
    async with app, anyone(store_url)(store_url) as (tx, commit, _):
        run = await send.using(tx=tx).start(7)
        await done(commit())
        reading = asyncio.ensure_future(_all(run))
        async with app.worker():
            assert await asyncio.wait_for(reading, 20) == []


async def _all(run: Any) -> list[Any]:
    return [frame async for frame in run.frames()]


async def test_what_is_no_transaction(store_url: str) -> None:
    app = App(store_url)
    send = define(app)
    async with app:
        for wrong in (5, "tx", object(), sqlalchemy.create_engine("sqlite://")):
            with pytest.raises(BadOptions, match="tx"):
                await send.using(tx=wrong).start(7)
        if store_url.startswith("postgres"):
            connection = sqlite3.connect(":memory:")
            with pytest.raises(BadOptions, match="the same database"):
                await send.using(tx=connection).start(7)
            connection.close()
        with pytest.raises(BadOptions):
            await send.using(tx=5, debounce=Debounce("k", seconds(1))).start(7)


@pytest.mark.parametrize("store_url", ["valkey"], indirect=True)
async def test_no_transaction_reaches_valkey(store_url: str) -> None:
    """Not even one that would do elsewhere: it could commit, and the run could not be started with it."""
    app = App(store_url)
    send = define(app)
    connection = sqlite3.connect(":memory:")
    async with app:
        with pytest.raises(BadOptions, match=r"same SQL database.* are in Valkey: leave tx= out"):
            await send.using(tx=connection).start(7)
        assert await app.engine.list_requests() == RequestPage((), None)
        assert not connection.in_transaction
    connection.close()


@sql_stores_only
def test_blocking_calls_use_the_connection_in_their_own_thread(store_url: str) -> None:
    app = App(store_url)
    send = define(app)
    with app.sync as blocking:
        on_sqlite = store_url.startswith("sqlite")
        connection: Any = sqlite3.connect(path_of(store_url)) if on_sqlite else psycopg.connect(store_url)
        run = blocking.start(send.using(tx=connection), 7)
        with pytest.raises(NotCommitted):
            run.status()
        connection.commit()
        connection.close()
        with blocking.entering(app.worker()):
            assert run.result(timeout=SOON) == "7 to żółw"


@sql_stores_only
async def test_reuse_that_cannot_be_decided(store_url: str) -> None:
    app = App(store_url)
    send = define(app)
    async with app, anyone(store_url)(store_url) as (tx, _, rollback):
        for reuse in ("reject", "after_completion"):
            with pytest.raises(BadOptions, match="reuse"):
                await send.using(tx=tx, id="x", reuse=reuse).start(7)
        await done(rollback())


async def test_debounce(store_url: str) -> None:
    app = App(store_url)
    send = define(app)
    quiet = send.using(debounce=Debounce("order {to}", wait=seconds(0.3), at_most=minutes(1)))
    async with app:
        runs = await asyncio.gather(*(quiet.start(n) for n in range(20)))
        last = await quiet.start(99)
        other = await quiet.start(1, "b")
        assert {run.id for run in runs} == {last.id}
        assert other.id != last.id
        async with app.worker():
            assert await last.result(timeout=SOON) == "99 to żółw"
            assert await other.result(timeout=SOON) == "1 to b"
            assert (await quiet.start(100)).id != last.id


async def test_debounce_and_what_it_excludes(store_url: str) -> None:
    app = App(store_url)
    send = define(app)
    wait = Debounce("k", wait=seconds(1))
    async with app:
        for options in ({"id": "x"}, {"delay": seconds(1)}):
            with pytest.raises(BadOptions, match="debounce"):
                await send.using(debounce=wait, **options).start(7)
    with pytest.raises(BadOptions):
        Debounce("", wait=seconds(1))
    with pytest.raises(BadOptions, match="nothing"):
        send.using(debounce=Debounce("{nothing}", wait=seconds(1)))
    with pytest.raises(BadOptions):
        send.using(debounce=seconds(1))
