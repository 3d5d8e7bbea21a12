"""Nobody outside sets the clock: a time that a caller gives is kept, and decides nothing that is decided by the time.

Stores with a server of their own follow the times in the rows that they read, since another process may have heard the
server with less delay. A time that a caller has put there would take the clock of all tenants along.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from flowfabric.engine.transact import Settings
from flowfabric.stores.memory.store import _MemoryTransaction
from tests.server.attacks.world.asking_tenants import asked
from tests.server.attacks.world.naming import Place, atoms, places
from tests.server.attacks.world.tenants import opened, work_on

#: Less than what a clock is followed by at once.
AHEAD_MS = 4_000
_TIME = re.compile(r"(^|_)(now|at|until|from|before|since|deadline)($|_)")


def is_time(place: Place) -> bool:
    # Policies hold durations.
    return bool(_TIME.search(place.steps[-1])) and "policy" not in place.steps and int in set(atoms(place.hint))


TIMES = {str(each): each for each in places() if is_time(each)}


def test_there_are_times_to_be_said() -> None:
    assert len([text for text in TIMES if text.endswith(" now")]) > 10
    assert "http create_execution body now" in TIMES


@pytest.mark.parametrize("text", TIMES)
async def test_what_a_caller_says_of_the_time_moves_no_clock(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = TIMES[text]
    async with opened() as world:
        now = await world.engine.now_ms()
        decided: list[int] = []
        followed: list[int] = []
        context, read = Settings.context, _MemoryTransaction.now

        def deciding(settings: Settings, at: int) -> Any:
            decided.append(at)
            return context(settings, at)

        async def reading(transaction: Any, written_ms: int = 0) -> int:
            followed.append(written_ms)
            return await read(transaction, written_ms)

        monkeypatch.setattr(Settings, "context", deciding)
        monkeypatch.setattr(_MemoryTransaction, "now", reading)
        await asked(world.client, place, world.a, now + AHEAD_MS)  # type: ignore[arg-type]
        await work_on(world, world.a.things["budget_id"])
        await world.engine.run_due()
        assert decided
        assert max(decided) == now
        assert max(followed) <= now
