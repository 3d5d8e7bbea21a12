"""What several commands of a batch select is read together, and each gets all of its own."""

from __future__ import annotations

import pytest

from flowfabric.engine import Engine
from flowfabric.model.decisions import Select
from flowfabric.model.errors import ResourceExhausted
from flowfabric.model.operations.workflows import Step
from flowfabric.stores.postgres import load
from tests.contract.seeding import seed


async def test_the_limit_of_one_selection_cuts_nothing_off_another(
    prepared_postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "SELECT_LIMIT", 3)
    async with await Engine.open(prepared_postgres_dsn) as engine:
        keys = [(0, f"00000000-0000-4000-8000-00000000000{number}") for number in range(3)]
        for key in keys[:2]:
            await seed(engine, *(Step(*key, f"step {place}", place, 0, 1, "ok", None, 0) for place in range(1, 4)))
        selections = [Select(Step, ("partition", "uuid"), key) for key in keys]
        view = await engine._view(*selections)
        assert [len(view.select(Step, partition=key[0], uuid=key[1])) for key in keys] == [3, 3, 0]
        await seed(engine, Step(*keys[1], "step 4", 4, 0, 1, "ok", None, 0))
        with pytest.raises(ResourceExhausted):
            await engine._view(*selections)
