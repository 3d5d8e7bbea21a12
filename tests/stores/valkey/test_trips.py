"""How often an operation on Valkey goes to the server: each trip is time that its caller waits."""

from __future__ import annotations

from typing import Any

import pytest

from flowfabric import ClaimPolicy, FlowGraph
from flowfabric.engine import Engine

POLICY = ClaimPolicy("w", "w-1", 30_000)


async def test_trips_of_the_common_operations(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with await Engine.open(valkey_url) as engine:
        calls: list[str] = []
        call = engine.store.connection.call

        async def counted(name: str, *arguments: Any, **more: Any) -> Any:
            calls.append(name)
            return await call(name, *arguments, **more)

        monkeypatch.setattr(engine.store.connection, "call", counted)

        def trips() -> list[str]:
            made = list(calls)
            calls.clear()
            return made

        async def claim() -> Any:
            return await engine.claim("default", policy=POLICY)

        await engine.create_execution()
        calls.clear()  # the first one has read the lane
        await engine.create_execution()
        assert trips() == ["commit"]
        for _ in range(2):
            handle = await claim()
            assert trips() == ["read", "commit"]
            await engine.complete(handle, b"x")
            assert trips() == ["commit"]
        assert await claim() is None
        assert trips() == ["read"], "what one trip has found needs no check"
        await engine.submit_flow(FlowGraph(nodes={"a": {}, "b": {}}, edges=[("a", "b")]))
        assert trips() == ["commit"]
        handle = await claim()
        assert trips() == ["read", "commit"]
        await engine.complete(handle, b"x")
        assert trips() == ["read", "read", "commit"], "its edges, then what they lead to"
