"""The oracle of coordination: everything together."""

from __future__ import annotations

from tests.simulation.coordination.oracle_budgets import Budgets


class Coordination(Budgets):
    """Flows, suspensions, budgets and quotas on top of the oracle of single executions."""
