"""Regressions run on the fixtures of the contract suite."""

from tests.contract.conftest import clock, engine, open_engine, probe, store_url

__all__ = ["clock", "engine", "open_engine", "probe", "store_url"]
