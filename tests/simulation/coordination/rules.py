"""The machine of coordination with all its operations."""

from __future__ import annotations

from tests.simulation.coordination.rules_flows import Flows


class Coordination(Flows):
    """See ``machine.py``."""
