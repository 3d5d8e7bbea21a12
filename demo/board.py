"""What there is to see: the one place that workers, story and screen share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flowfabric import ExecutionId

if TYPE_CHECKING:
    from demo.worker import Worker


@dataclass(frozen=True)
class Happening:
    """Something worth a line."""

    at_s: float
    text: str
    style: str


@dataclass
class Board:
    """Everything the screen shows, and what the checks need to know beyond the stored rows."""

    started_s: float = field(default_factory=time.monotonic)
    workers: list[Worker] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    happenings: list[Happening] = field(default_factory=list)
    #: The lines of the featured stream as a reader saw them: who wrote it, and what.
    tail: list[tuple[str, str]] = field(default_factory=list)
    #: Results whose ``complete`` was answered.
    acknowledged: dict[ExecutionId, bytes] = field(default_factory=dict)
    listener: Callable[[Happening], None] | None = None
    _said: set[str] = field(default_factory=set)

    @property
    def elapsed_s(self) -> float:
        """Since the demo began."""
        return time.monotonic() - self.started_s

    def say(self, text: str, style: str = "") -> None:
        """Note something worth a line."""
        happening = Happening(self.elapsed_s, text, style)
        self.happenings.append(happening)
        if self.listener is not None:
            self.listener(happening)

    def say_first(self, topic: str, text: str, style: str = "") -> None:
        """Note it the first time, and keep quiet about the many that follow."""
        if topic not in self._said:
            self._said.add(topic)
            self.say(text, style)
