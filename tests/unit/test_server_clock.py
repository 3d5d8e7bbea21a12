"""The estimate of a server's clock: processes that hear it with different delays agree on what came first."""

from __future__ import annotations

import time

import pytest

from flowfabric.stores.server_clock import ServerClock

SERVER_MS = 1_700_000_000_000


@pytest.fixture
def monotonic(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of this process, as a list of one that tests change."""
    seconds = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: seconds[0])
    return seconds


def test_what_others_wrote_has_happened(monotonic: list[float]) -> None:
    clock = ServerClock()
    clock.heard(SERVER_MS)
    written = SERVER_MS + 7
    assert clock.now() == SERVER_MS
    assert clock.now(written) == written
    assert clock.now() == written, "it stays so"
    monotonic[0] += 0.003
    assert clock.now() == written + 3, "and goes on from there"
    assert clock.now(SERVER_MS) == written + 3, "older times say nothing"


def test_a_clock_that_was_set_back_is_believed(monotonic: list[float]) -> None:
    clock = ServerClock()
    clock.heard(SERVER_MS)
    assert clock.now(SERVER_MS + 3_600_000) == SERVER_MS
    monotonic[0] += 10
    clock.heard(SERVER_MS + 10_000)
    assert clock.now() == SERVER_MS + 10_000
