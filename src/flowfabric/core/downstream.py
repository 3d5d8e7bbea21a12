"""What waits for an execution moves when it ends, in the same commit."""

from __future__ import annotations

from msgspec import Struct

from flowfabric.core.context import Context
from flowfabric.core.view import View
from flowfabric.model.changes import Act
from flowfabric.model.events import Event
from flowfabric.model.records import Execution


class Moved(Struct, gc=False):
    """What an end set in motion. ``complete`` says that no outgoing edge is left to resolve."""

    acts: tuple[Act, ...] = ()
    events: tuple[Event, ...] = ()
    wakes: tuple[tuple[str, int], ...] = ()
    then: tuple[object, ...] = ()
    complete: bool = False


def advance(view: View, context: Context, execution: Execution, outcome: str, result: bytes | None) -> Moved:
    """Resolve the outgoing edges of a member that has just ended; its end is folded already."""
    return Moved()
