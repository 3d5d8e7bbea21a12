"""Time that moves only when it is told to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

#: Where tests begin, unless they say otherwise: a Monday, at midnight.
BEGINNING = datetime(2030, 1, 7, tzinfo=UTC)


class VirtualClock:
    """What the engine takes for the time of day, in milliseconds."""

    def __init__(self, beginning: datetime = BEGINNING) -> None:
        self.beginning_ms = self.now_ms = int(beginning.timestamp() * 1000)

    def __call__(self) -> int:
        return self.now_ms

    def __repr__(self) -> str:
        return f"<clock {self.now.isoformat()}>"

    @property
    def now(self) -> datetime:
        """The time of day."""
        return datetime.fromtimestamp(self.now_ms / 1000, UTC)

    @property
    def elapsed(self) -> timedelta:
        """How much time has passed in the test's world."""
        return timedelta(milliseconds=self.now_ms - self.beginning_ms)

    def move_to(self, moment_ms: int) -> None:
        """Go forward; never back."""
        self.now_ms = max(self.now_ms, moment_ms)
