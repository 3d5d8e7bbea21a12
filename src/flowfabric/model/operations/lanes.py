"""Arguments and results of operations on lanes."""

from __future__ import annotations

from msgspec import Struct

from flowfabric.model.states import LaneState

#: What is between a lane's setting and a value in a stored key, and in front of the key of what came back to the queue.
FAIR_SEPARATOR = "\x1f"
FAIR_RETURNING = "+"


class LaneStateChanged(Struct, frozen=True):
    """A lane went from one state to another."""

    lane_id: str
    previous: LaneState
    state: LaneState


class LaneFairnessChanged(Struct, frozen=True):
    """A lane's keys take turns from now on, or no longer (``None``)."""

    lane_id: str
    fair_by: str | None


class LaneSnapshot(Struct, frozen=True):
    """A lane as it is."""

    lane_id: str
    state: LaneState
    #: Why it is in its state, if somebody said so, and since when, unless it always was.
    state_reason: str | None
    state_changed_at_ms: int | None
    #: When it was first used, and by which call. ``None``, as is ``fair_pending``, for callers that ask for some
    #: namespaces only: others may use the lane too.
    registered_at_ms: int | None
    registered_by: str | None
    #: What its keys are: ``namespace``, ``tag:<key>``, or nothing.
    fair_by: str | None = None
    #: Whether what waited when that changed is still being ranked.
    fair_pending: bool | None = False

    @property
    def grants(self) -> bool:
        """Whether its work is handed out."""
        return self.state in (LaneState.ACTIVE, LaneState.DRAINING)

    @property
    def accepts(self) -> bool:
        """Whether it takes new work."""
        return self.state in (LaneState.ACTIVE, LaneState.PAUSED)
