"""Workflows that sleep cost a row in the store and nothing in the worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.processes import Peer
from tests.conftest import full_run
from tests.sdk.sleepers import ENDED, FIRST, PARKED

#: Sleepers of a plain run, and of a full one.
COUNT = 10_000 if full_run() else 2_000
PATIENCE_S = 300.0


@pytest.mark.timeout(PATIENCE_S + 60)
def test_thousands_of_sleepers_hold_no_slot_and_hardly_any_memory(tmp_path: Path) -> None:
    with Peer("tests.sdk.sleepers", f"sqlite:///{tmp_path}/ff.db", str(COUNT)) as process:
        found = process.hear(PATIENCE_S)
    assert found["running"] == 0
    assert found["phases"] == {PARKED: COUNT, ENDED: FIRST}
    assert found["bytes"] < COUNT * 1024, f"{found['bytes'] / COUNT:.0f} bytes for each"
    assert found["after"] == {ENDED: COUNT + FIRST}
