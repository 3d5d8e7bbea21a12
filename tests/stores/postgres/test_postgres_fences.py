"""What a signal is judged by is read without a lock, and nobody may be changing it when it is committed."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from flowfabric import Accepted, State
from flowfabric.conditions import ByName, Single
from flowfabric.engine import Engine
from tests.contract.suspending import addressed, suspended

#: Somebody who waits for a lock; nobody else works in the database of a test.
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest.mark.parametrize("closes", [False, True])
async def test_a_signal_waits_for_whoever_changes_what_it_is_judged_by(
    prepared_postgres_dsn: str, closes: bool
) -> None:
    async with await Engine.open(prepared_postgres_dsn) as engine:
        handle, details = await suspended(engine, Single("approval", ByName("yes")))
        other: Any = await asyncpg.connect(prepared_postgres_dsn)
        try:
            changing = other.transaction()
            await changing.start()
            await other.execute(
                "UPDATE ff_suspension_current SET closed_at_ms = $1, close_reason = 'test'", 1 if closes else None
            )
            delivery = asyncio.create_task(engine.deliver_signal(**addressed(handle, details), signal_name="no"))
            while not await other.fetchval(WAITING):
                assert not delivery.done(), "it does not wait for the change"
                await asyncio.sleep(0.01)
            if closes:
                await changing.commit()
                with pytest.raises(Exception) as caught:  # noqa: PT011
                    await delivery
                assert isinstance(caught.value, State) or "nothing waits" in str(caught.value)
            else:
                await changing.rollback()
                assert isinstance(await delivery, Accepted)
        finally:
            await other.close()
