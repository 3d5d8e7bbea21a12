"""Processes hear their server with different delays; what they write is in order all the same."""

from __future__ import annotations

import pytest

from flowfabric import ClaimPolicy
from flowfabric.engine import Engine

#: How much later one process hears everything.
DELAY_MS = 900
#: How far ahead a caller says that it is.
SAID_MS = 4_000


@pytest.mark.parametrize("fixture", ["prepared_postgres_dsn", "valkey_url"])
async def test_a_process_that_hears_late_dates_nothing_before_what_it_has_read(
    fixture: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    url: str = request.getfixturevalue(fixture)
    async with await Engine.open(url) as prompt, await Engine.open(url) as late:
        clock = late.store._server_clock
        heard = clock.heard
        monkeypatch.setattr(clock, "heard", lambda server_ms: heard(server_ms - DELAY_MS))
        clock._offsets, clock._last = [float("-inf"), float("-inf")], 0
        clock.heard(await prompt.now_ms())
        run = (await prompt.create_execution()).execution_id
        assert await late.now_ms() < await prompt.now_ms() - DELAY_MS / 2
        handle = await late.claim("default", policy=ClaimPolicy("w", "w-1", 30_000))
        assert handle is not None
        await late.complete(handle, b"done")
        info = await prompt.read_execution_info(run)
        assert info is not None
        assert info.created_at <= (info.started_at or "") <= (info.completed_at or "")


@pytest.mark.parametrize("fixture", ["prepared_postgres_dsn", "valkey_url"])
async def test_what_callers_say_of_the_time_does_not_take_the_clock_along(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    """Each of these would move it a little further, until all leases have run out."""
    async with await Engine.open(request.getfixturevalue(fixture)) as engine:
        began = await engine.now_ms()
        for _ in range(5):
            await engine.create_execution(now=await engine.now_ms() + SAID_MS)
            assert await engine.claim("default", policy=ClaimPolicy("w", "w-1", 30_000)) is not None
        assert await engine.now_ms() - began < SAID_MS
