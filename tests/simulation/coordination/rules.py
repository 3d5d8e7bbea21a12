"""The machine of coordination with all its operations."""

from __future__ import annotations

from tests.simulation.coordination.rules_budgets import Budgets
from tests.simulation.coordination.rules_flows import Flows
from tests.simulation.coordination.rules_signals import Signals


class Coordination(Budgets, Signals, Flows):
    """See ``machine.py``."""
