"""Who watches an engine: told after each commit, each turn of a timer and each claim. Nobody, unless somebody asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from flowfabric.engine.transact import Outcome


class Observer(Protocol):
    """Plain functions that must neither block nor raise. Engines on several threads may share one."""

    def committed(self, commands: Sequence[Any], outcome: Outcome) -> None:
        """A batch is durable; ``outcome`` has one answer or error for each command, and what was written."""

    def failed(self, commands: Sequence[Any], error: BaseException) -> None:
        """A batch could not be committed."""

    def ticked(self, timer: str, seconds: float, error: BaseException | None) -> None:
        """A timer has had a turn, whether or not there was anything to do."""

    def claimed(self, lanes: Sequence[str], seconds: float) -> None:
        """A claim has found work in these lanes, after so long; waiting for work is not part of it."""
