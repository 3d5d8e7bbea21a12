"""Time stands still while a clock goes back a little, and follows one that was set right."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowfabric.engine import Engine
from flowfabric.stores import server_clock
from flowfabric.stores.server_clock import RisingClock, ServerClock

HOUR_MS = 3_600_000


def test_a_little_is_waited_for_and_more_is_followed(caplog: pytest.LogCaptureFixture) -> None:
    clock = RisingClock()
    assert [clock.risen(at) for at in (9_000, 10_000, 9_000, 5_000)] == [9_000, 10_000, 10_000, 10_000]
    assert not caplog.records
    assert [clock.risen(at) for at in (4_999, 4_000, 6_000)] == [4_999, 4_999, 6_000]
    assert [record.message for record in caplog.records] == ["the clock went back by 5.0 s and is followed"]


def test_a_server_that_was_ahead_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    local = 1_000.0
    monkeypatch.setattr(server_clock.time, "monotonic", lambda: local)
    clock = ServerClock()
    clock.heard(HOUR_MS + local * 1_000)
    assert clock.now() == HOUR_MS + 1_000_000
    for _ in range(5):
        local += 2
        clock.heard(local * 1_000)
    assert clock.now() == local * 1_000


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{folder}/ff.db"])
async def test_a_machine_whose_clock_was_ahead_lives_in_the_true_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    at_ms = 2 * HOUR_MS
    monkeypatch.setattr(server_clock.time, "time_ns", lambda: at_ms * 1_000_000)
    async with await Engine.open(url.format(folder=tmp_path), single_node=True) as engine:
        assert await engine.now_ms() == at_ms
        at_ms -= HOUR_MS
        assert await engine.now_ms() == at_ms
