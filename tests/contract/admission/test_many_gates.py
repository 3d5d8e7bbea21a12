"""Quotas and budgets by the ten thousand delay nothing that falls due: what is asked of the store is counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from flowfabric.engine import Engine
from flowfabric.engine.timers.budgets import BUDGETS_LOOKED_AT
from flowfabric.engine.timers.loop import _PROMPT, TIMERS
from flowfabric.model.limits import QUOTA_IDLE_MS
from tests.conftest import full_run
from tests.contract.probe import ManualClock, claimed

TIDYING = ("budget_reconciler", "quota_reconciler", "idle_gates")


async def make_gates(engine: Engine, number: int) -> None:
    """So many quotas and budgets, as an app makes them for the values of keys."""
    for start in range(0, number, 1_000):
        ids = [f"{each:08d}-1111-4111-8111-111111111111" for each in range(start, min(start + 1_000, number))]
        made: list[Any] = [
            engine.create_quota_policy(quota_policy_id=each, max_concurrent=1, namespace="n", kept=False)
            for each in ids
        ]
        made += [
            engine.create_budget(
                budget_id=each,
                dimensions=["usd"],
                hard_limits=[5],
                soft_limits=[0],
                namespace="n",
                kept=False,
            )
            for each in ids
        ]
        await asyncio.gather(*made)


@pytest.mark.parametrize("store_url", ["memory", "sqlite"], indirect=True)
async def test_expiry_asks_for_nothing_more(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[str] = Counter()

    def counting(whose: Any, name: str) -> None:
        call = getattr(whose, name)

        def counted(*arguments: Any, **more: Any) -> Any:
            asked[name] += 1
            return call(*arguments, **more)

        monkeypatch.setattr(whose, name, counted)

    counting(engine.store, "query")
    counting(engine.store, "read")
    counting(engine, "_submit")

    async def turns(names: Any) -> dict[str, int]:
        asked.clear()
        for each in names:
            await engine.run_timer(each)
        return dict(asked)

    async def expiry() -> dict[str, int]:
        """Of a lease, beside all others that work waits for."""
        await claimed(engine, lane_id="one", ttl_ms=50)
        clock.advance(100)
        return await turns(timer.name for timer in TIMERS if timer.name in _PROMPT)

    await expiry()  # the first time they ask for more
    alone = await expiry()
    number = 100_000 if full_run() else 10_000
    await make_gates(engine, number)
    assert await expiry() == alone
    # Those that tidy up ask by the page, not by the key, and write nothing while there is nothing to change.
    found = await turns(TIDYING)
    assert "_submit" not in found
    assert found["query"] + found["read"] <= 3 * BUDGETS_LOOKED_AT // 100 + 20
    # Once none is used any more, each is looked at once.
    clock.advance(QUOTA_IDLE_MS)
    while await engine.run_timer("idle_gates", 1_000):
        pass
    assert (await engine.list_quota_policies()).policies == ()
    await expiry()  # after a day they look at more again
    assert await expiry() == alone
