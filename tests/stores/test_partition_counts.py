"""How many partitions a SQLite file has changes no order and costs no statement: claims, searches and timers do not go
partition by partition."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from flowfabric import ClaimPolicy
from flowfabric.engine import Engine
from flowfabric.engine.timers.loop import TIMERS
from flowfabric.model.ids import ExecutionId
from flowfabric.model.partitions import PartitionCounts
from tests.contract.probe import ManualClock

LANE = "work"
#: The reconciler takes samples, from a limited number of partitions at a time; no work waits for it.
TIMERS_OF_WORK = [each.name for each in TIMERS if each.name != "index_reconciler"]
UUIDS = [f"{count:08x}-1111-4111-8111-111111111111" for count in range(40)]


class Traced:
    """What a scenario gave, and the statements it took, without their numbers."""

    def __init__(self) -> None:
        self.statements: Counter[str] = Counter()
        self.found: list[Any] = []

    def note(self, statement: str) -> None:
        self.statements[re.sub(r"x?'[^']*'|-?\d+", "?", statement)] += 1


async def scenario(path: Path, counts: PartitionCounts) -> Traced:
    """The same work on a file with so many partitions; ids are spread over all of them."""
    traced, clock = Traced(), ManualClock()
    async with await Engine.open(f"sqlite:///{path}", single_node=True, partitions=counts, clock=clock) as engine:
        for at, uuid in enumerate(UUIDS):
            clock.advance(1)
            await engine.create_execution(
                execution_id=ExecutionId.of((at * 37) % counts.flow, uuid),
                lane_id=LANE,
                priority=at % 3,
                delay_until=clock() + 5_000 if at % 5 == 0 else None,
                tags={"test.group": str(at % 2)},
            )
        for connection in (engine.store._writer, engine.store._reader):
            connection.set_trace_callback(traced.note)
        policy = ClaimPolicy("w", "w-1", lease_ttl_ms=1_000)
        held = [await engine.claim(LANE, policy=policy) for _ in range(10)]
        traced.found.append([handle.execution_id.uuid for handle in held])
        for handle in held[:5]:
            await engine.complete(handle)
        clock.advance(10_000)
        for timer in TIMERS_OF_WORK:
            traced.found.append((timer, await engine.run_timer(timer)))
        cursor = None
        while True:
            page = await engine.search_executions(tag=("test.group", "1"), cursor=cursor, limit=7)
            traced.found.append([each.execution_id[-36:] for each in page.executions])
            cursor = page.next_cursor
            if cursor is None:
                break
        traced.found.append([each[-36:] for each in await engine.scan_eligible_executions(LANE, limit=100)])
        claimed = await engine.claim_many(LANE, policy=policy, limit=20)
        traced.found.append([handle.execution_id.uuid for handle in claimed])
        for connection in (engine.store._writer, engine.store._reader):
            connection.set_trace_callback(None)
    return traced


async def test_the_number_of_partitions_changes_nothing(tmp_path: Path) -> None:
    one = await scenario(tmp_path / "one.db", PartitionCounts(1, 1, 1))
    many = await scenario(tmp_path / "many.db", PartitionCounts(256, 32, 32))
    assert many.found == one.found
    assert many.statements == one.statements
    assert sum(one.statements.values()) > 100
