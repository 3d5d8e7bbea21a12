"""The reconciler looks at executions, some at a time, and logs what does not make sense. It repairs nothing."""

from __future__ import annotations

import logging
from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace

from flowfabric.engine import Engine
from flowfabric.model.records.executions import Attempt, Execution
from tests.contract.probe import START_MS, Probe, claimed, create, unchanged
from tests.contract.seeding import seed
from tests.contract.suspending import suspended


def row(**fields: Any) -> Execution:
    uuid = str(uuid4())
    plain = Execution(
        f"{{fp:0}}:{uuid}", 0, uuid, None, "lane", (), 0, "runnable", "unowned", "eligible_now", "waiting", "pending",
        None, 0, START_MS, None, None, None, 0, None, None, "default", None, None, 0, 0,
    )  # fmt: skip
    return replace(plain, **fields)


def active() -> list[Any]:
    states = {"lifecycle_phase": "active", "ownership_state": "leased", "eligibility_state": "not_applicable"}
    return [row(**states, public_state="running", attempt_state="running_attempt")]


def asleep() -> list[Any]:
    return [row(lifecycle_phase="suspended", eligibility_state="not_applicable", public_state="suspended")]


def held() -> list[Any]:
    one = row()
    attempt = Attempt(one.execution_id, 0, one.uuid, 0, "w", "w-1", 1, START_MS + 1_000, START_MS)
    return [one, attempt]


@pytest.mark.parametrize(
    ("make", "said"),
    [(active, "attempt 1 does not exist"), (asleep, "no open suspension"), (held, "worker w-1 holds a lease")],
)
async def test_what_makes_no_sense_is_logged(
    engine: Engine, probe: Probe, caplog: pytest.LogCaptureFixture, make: Any, said: str
) -> None:
    records = make()
    await create(engine)
    await seed(engine, *records)
    async with unchanged(probe):
        with caplog.at_level(logging.ERROR, "flowfabric.timers"):
            assert await engine.run_timer("index_reconciler", 100_000) == 1
    [line] = [each.getMessage() for each in caplog.records if each.name == "flowfabric.timers"]
    assert records[0].execution_id in line
    assert said in line


async def test_what_operations_leave_behind_makes_sense(engine: Engine, probe: Probe) -> None:
    await create(engine)
    await claimed(engine)
    await suspended(engine)
    await engine.complete(await claimed(engine, lane_id="done"))
    async with unchanged(probe):
        assert await engine.run_timer("index_reconciler", 100_000) == 0


async def test_each_tick_looks_at_others(engine: Engine) -> None:
    """However few are looked at each time, everything comes to its turn."""
    await seed(engine, *[record for _ in range(5) for record in active()])
    found = [await engine.run_timer("index_reconciler", 2) for _ in range(40)]
    assert sum(found[:40]) >= 5
