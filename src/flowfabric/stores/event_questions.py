"""Questions about outboxes: their rows, how far they go, and what is gone. Answers are rows."""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Struct

#: Where the numbers of a log go on higher up: the last one below and the one that the next event comes behind, in
#: order. A store that may have lost its newest events in a fail-over gives none of their numbers to other events.
Breaks: TypeAlias = tuple[tuple[int, int], ...]


class ReadEvents(Struct, frozen=True):
    """The first rows of an outbox between two ids, ``after`` left out -> ``EventRows``. ``kind`` is the row's type."""

    kind: Any
    after: int
    #: ``None`` means: as far as there are rows.
    through: int | None
    limit: int
    namespace: str | None = None
    instance_tag: str | None = None


class EventRows(Struct):
    """What an outbox holds at one moment."""

    #: Every event up to this id was deleted by age, or may have been.
    trimmed: int
    #: The highest id there is.
    top: int
    #: ``(event id, row)`` in order; ``Unreadable`` stands for a row that cannot be read.
    rows: list[tuple[int, Any]]
    breaks: Breaks = ()


class Unreadable(Struct):
    """A stored row that does not fit its type."""

    detail: str


class EventLog(Struct, frozen=True):
    """How an outbox stands -> ``LogState``."""

    kind: Any


class LogState(Struct, frozen=True):
    """How an outbox stands at one moment."""

    #: Every event up to this id was deleted by age, or may have been.
    trimmed: int
    #: The last id handed out.
    last: int
    #: No event that happened at this time or later was deleted.
    trimmed_before_ms: int
    #: The highest id there is.
    top: int
    breaks: Breaks = ()


class EventBounds(Struct, frozen=True):
    """How far an outbox was deleted by age, and the highest id it has ever handed out -> ``(int, int)``."""

    kind: Any
