"""A batch is decided upon what is held when it looks, and its commit compares those versions: another batch of the same
process may have been committed, and what it wrote been learned, in between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric import Contention
from flowfabric.engine import Engine
from flowfabric.engine.record_cache import HeldRecords
from flowfabric.model.records.executions import Execution, Lane
from tests.contract.probe import Probe, claimed, id_of

STORES = ("prepared_postgres_dsn", "valkey_url")


def meanwhile(engine: Engine, act: Callable[[], Awaitable[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another batch act when the next one is decided and nothing of it is written."""
    store: Any = engine.store
    begin = store.transaction

    class Late:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        async def commit(self, *args: Any) -> Any:
            await act()
            return await self._inner.commit(*args)

    class Begun:
        def __init__(self, manager: Any) -> None:
            self._manager = manager

        async def __aenter__(self) -> Any:
            return Late(await self._manager.__aenter__())

        async def __aexit__(self, *error: Any) -> Any:
            return await self._manager.__aexit__(*error)

    def once(**options: Any) -> Any:
        monkeypatch.setattr(store, "transaction", begin)
        return Begun(begin(**options))

    monkeypatch.setattr(store, "transaction", once)


@pytest.mark.parametrize("place", STORES)
async def test_a_lease_that_was_revoked_after_its_end_was_decided(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    async with await Engine.open(request.getfixturevalue(place)) as engine:
        handle = await claimed(engine)
        meanwhile(engine, lambda: engine.revoke_lease(execution_id=id_of(handle)), monkeypatch)
        with pytest.raises(Contention):
            await engine.complete(handle, b"done")
        assert await Probe(engine).completions(id_of(handle)) == []


@pytest.mark.parametrize("place", STORES)
async def test_what_is_no_longer_held_is_compared_all_the_same(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    async with await Engine.open(request.getfixturevalue(place)) as engine:
        handle = await claimed(engine)

        async def forgotten() -> None:
            await engine.revoke_lease(execution_id=id_of(handle))
            engine._held.forget()

        meanwhile(engine, forgotten, monkeypatch)
        with pytest.raises(Contention):
            await engine.progress(handle, 50)


async def test_held_records_are_those_of_the_first_look() -> None:
    from flowfabric.engine.record_cache import Assumed

    held = HeldRecords()
    before, after = Lane("lane", 0, "test"), Lane("lane", 1, "test")
    held.learn_lane(before, 1)
    assumed = Assumed(held, set())
    assert assumed.version(Lane, "lane") is None, "nobody has looked"
    assert assumed.find(Lane, "lane") == (before, True)
    held.learn_lane(after, 2)
    assert (assumed.find(Lane, "lane"), assumed.version(Lane, "lane")) == ((before, True), 1)
    held.forget()
    assert (assumed.record(Lane, "lane"), assumed.version(Lane, "lane")) == (before, 1)
    assert assumed.find(Execution, "none") == (None, False)
