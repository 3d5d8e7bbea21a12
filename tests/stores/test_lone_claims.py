"""Claims of one on PostgreSQL look without a lock; whoever loses such a race locks for a while."""

from __future__ import annotations

import asyncio

from flowfabric import ClaimPolicy
from flowfabric.engine import Engine

WORKERS, EXECUTIONS = 8, 60


async def test_processes_that_claim_one_by_one_never_take_the_same(prepared_postgres_dsn: str) -> None:
    engines = [await Engine.open(prepared_postgres_dsn) for _ in range(WORKERS)]
    try:
        wanted = {str(await _create(engines[0])) for _ in range(EXECUTIONS)}
        taken: list[str] = []

        async def drain(engine: Engine) -> None:
            while (handle := await engine.claim("default", None, ClaimPolicy("worker", "instance"))) is not None:
                taken.append(handle.execution_id)
                await engine.complete(handle, b"1")

        await asyncio.gather(*map(drain, engines))
        assert sorted(taken) == sorted(wanted)
        assert not all(engine.store.seems_alone for engine in engines), "eight claimers of one row each race"
    finally:
        for engine in engines:
            await engine.close()


async def _create(engine: Engine) -> str:
    created = await engine.create_execution(lane_id="default", execution_kind="k")
    return created.execution_id
