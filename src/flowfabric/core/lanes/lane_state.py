"""The state of a lane: whether it hands work out, and whether it takes new work in.

A lane that nobody has changed is active, whether it is on record or not. What runs goes on in every state; a state is a
gate at the entrance (``draining``, ``disabled``) or at the exit (``paused``, ``disabled``) of the queue.
"""

from __future__ import annotations

from msgspec import Struct

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.core.documents import dump_document
from flowfabric.model import states as lit
from flowfabric.model.decisions import Decision, Get, Need, change, insert
from flowfabric.model.errors import State, StateKind
from flowfabric.model.events import OperatorEvent
from flowfabric.model.operations.executions import AlreadySatisfied
from flowfabric.model.operations.lanes import LaneStateChanged
from flowfabric.model.records.executions import Lane
from flowfabric.model.states import LaneState

#: What the operators' history calls the way into each state.
EVENTS = {
    lit.LANE_ACTIVE: "lane_activated",
    lit.LANE_PAUSED: "lane_paused",
    lit.LANE_DRAINING: "lane_draining",
    lit.LANE_DISABLED: "lane_disabled",
}


def withholds(view: View, lane_id: str) -> bool:
    """Whether a lane grants nothing at the moment."""
    lane = view.get(Lane, lane_id)
    return lane is not None and lane.state in lit.WITHHOLDING_LANES


def refuse_withholding(view: View, lane_id: str) -> None:
    """Refuse a grant by name from a lane that grants nothing."""
    lane = view.get(Lane, lane_id)
    if lane is not None and lane.state in lit.WITHHOLDING_LANES:
        raise State(StateKind.LANE_PAUSED, f"lane {lane_id} is {lane.state}")


def refuse_closed(lane: Lane | None) -> None:
    """Refuse new work for a lane that takes none."""
    if lane is not None and lane.state in lit.CLOSED_LANES:
        raise State(StateKind.LANE_CLOSED, f"lane {lane.lane_id} is {lane.state}")


class SetLaneState(Struct, gc=False):
    """An operator opens or closes a lane. ``partition`` is where its events are kept."""

    lane_id: str
    partition: int
    state: str
    reason: str
    recorded_at_ms: int | None

    def needs(self) -> tuple[Need, ...]:
        return (Get(Lane, self.lane_id),)


def set_lane_state(command: SetLaneState, view: View, context: Context) -> Decision:
    """The new state and one line in the operators' history; nothing if it was in that state already."""
    lane = view.get(Lane, command.lane_id)
    previous = lit.LANE_ACTIVE if lane is None else lane.state
    if previous == command.state:
        return Decision(AlreadySatisfied(f"lane_is_{command.state}"))
    at = context.now if command.recorded_at_ms is None else command.recorded_at_ms
    if lane is None:
        new = Lane(command.lane_id, context.now, "set_lane_state", command.state, command.reason or None, context.now)
        act = insert(new)
    else:
        act = change(lane, state=command.state, state_reason=command.reason or None, state_changed_at_ms=context.now)
    details = {"previous": previous, "state": command.state, "reason": command.reason}
    event = OperatorEvent(
        command.partition, command.lane_id, EVENTS[command.state], dump_document(details), at, None, None
    )
    answer = LaneStateChanged(command.lane_id, LaneState(previous), LaneState(command.state))
    return Decision(answer, (act,), (event,))


class SeedLanes(Struct, gc=False):
    """Lanes that should be known before anything was created in them."""

    lane_ids: tuple[str, ...]

    def needs(self) -> tuple[Need, ...]:
        return tuple(Get(Lane, each) for each in self.lane_ids)


def seed_lanes(command: SeedLanes, view: View, context: Context) -> Decision:
    """How many were new; those that are there stay as they are."""
    new = [each for each in command.lane_ids if view.get(Lane, each) is None]
    return Decision(len(new), tuple(insert(Lane(each, context.now, "seed_lanes")) for each in new))
