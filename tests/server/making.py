"""Bodies as clients send them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import httpx

from flowfabric.engine import Engine
from flowfabric.model.handles import Handle
from flowfabric.model.operations.executions import ClaimPolicy


def creation(**changes: Any) -> dict[str, Any]:
    """A new execution with all that must be said."""
    body = {
        "namespace": "acme",
        "lane_id": "default",
        "execution_kind": "resize",
        "input_payload": [123, 125],
        "priority": 0,
        "creator_identity": "tests",
    }
    return {key: value for key, value in {**body, **changes}.items() if value is not ...}


async def created(client: httpx.AsyncClient, **changes: Any) -> str:
    """Create one; its id."""
    response = await client.post("/v1/executions", json=creation(**changes))
    assert response.status_code == 201, response.text
    identity: str = response.json()["Created"]["execution_id"]
    return identity


def at(identity: str, *rest: str) -> str:
    """The address of an execution."""
    return "/".join(["/v1/executions", quote(identity, safe=""), *rest])


async def claimed(engine: Engine, lane: str = "default") -> Handle:
    """A lease on the next execution of a lane."""
    handle = await engine.claim(lane, policy=ClaimPolicy("w", "w-1"))
    assert handle is not None
    return handle


async def until(condition: Callable[[], bool]) -> None:
    """Let others go on until something has come true."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came true")
