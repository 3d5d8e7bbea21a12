"""The oracle of coordination: everything together."""

from __future__ import annotations

from tests.simulation.coordination.oracle_flows import Flows


class Coordination(Flows):
    """Flows on top of the oracle of single executions."""
