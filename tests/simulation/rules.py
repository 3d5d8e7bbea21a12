"""The machine with all its operations."""

from __future__ import annotations

from tests.simulation.rules_control import Control
from tests.simulation.rules_work import Work


class Model(Work, Control):
    """See ``machine.py``."""
