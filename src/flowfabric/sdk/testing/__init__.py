"""Tests of tasks and workflows: the real engine in memory, on a clock that skips what nobody has to wait for."""

from flowfabric.sdk.testing.clock import VirtualClock
from flowfabric.sdk.testing.kit import Stuck, Testing

__all__ = ["Stuck", "Testing", "VirtualClock"]
