"""Every disagreement that the machine or the batching test ever found, as the smallest story that shows it."""

from __future__ import annotations

from tests.contract.conftest import clock, engine, probe, store_url  # noqa: F401
