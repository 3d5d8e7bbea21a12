"""The engine behind its public API, as the benchmarks use it."""

from __future__ import annotations

from typing import Any

from bench.shape import INSTANCE, KIND, LANE, LEASE_MS, PAYLOAD, RESULT, WORKER
from flowfabric.engine import Engine
from flowfabric.model.handles import Handle
from flowfabric.model.operations.executions import ClaimPolicy

POLICY = ClaimPolicy(WORKER, INSTANCE, LEASE_MS)


async def open_engine(url: str, **options: Any) -> Engine:
    """The engine with its defaults: durable commits on either store, no timers."""
    return await Engine.open(url, single_node=True, **options)


class EngineSystem:
    """``create_execution``, ``claim`` and ``complete``, with nothing between."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def create(self) -> None:
        """One new execution."""
        await self.engine.create_execution(lane_id=LANE, execution_kind=KIND, input_payload=PAYLOAD)

    async def claim(self) -> Handle | None:
        """The next execution."""
        return await self.engine.claim(LANE, None, POLICY)

    async def complete(self, claimed: Handle) -> None:
        """End with success."""
        await self.engine.complete(claimed, RESULT)

    async def close(self) -> None:
        """Close the engine."""
        await self.engine.close()
