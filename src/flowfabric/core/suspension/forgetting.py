"""An execution that waits again and again, or makes waitpoints again and again, keeps the latest of them, with the
signals that they heard.
"""

from __future__ import annotations

from flowfabric.core.batch.view import View
from flowfabric.core.suspension import waits
from flowfabric.model.decisions import Act, Drop
from flowfabric.model.limits import WAITPOINTS_KEPT
from flowfabric.model.records.executions import Execution, Signal, Waitpoint

#: Waitpoints that one commit deletes of an execution that has more than are kept: as many as some suspensions bring.
FORGOTTEN_AT_ONCE = 5_000
#: Signals that one commit looks through, those with the lowest ids, which ascend.
SIGNALS_AT_ONCE = 1_000


def forgotten(view: View, execution: Execution, new_id: str) -> tuple[Act, ...]:
    """What goes because there is more of it than is kept. One time in sixteen looks, by the id of what is new."""
    if not new_id.endswith("0") or not waits.has_waits(execution):
        return ()
    limit = WAITPOINTS_KEPT + FORGOTTEN_AT_ONCE
    found = view.first(limit, Waitpoint, partition=execution.partition, uuid=execution.uuid)
    older = [each for each in found[: max(len(found) - WAITPOINTS_KEPT, 0)] if each.state not in waits.OPEN_STATES]
    if not any(each.signal_count or each.close_reason == waits.TIMED_OUT for each in older):
        return tuple(map(Drop, older))
    # A made-up signal of a timeout is not counted by its waitpoint.
    heard: dict[str, list[Signal]] = {}
    timeouts: dict[str, list[Signal]] = {}
    for signal in view.first(SIGNALS_AT_ONCE, Signal, partition=execution.partition, uuid=execution.uuid):
        kind = timeouts if signal.waitpoint_key == waits.TIMEOUT_KEY else heard
        kind.setdefault(signal.waitpoint_id, []).append(signal)
    # One whose signals were not all among those stays until they are.
    gone = [each for each in older if len(heard.get(each.waitpoint_id, ())) == each.signal_count]
    stay = {each.waitpoint_id for each in found}.difference(each.waitpoint_id for each in gone)
    rows: list[Waitpoint | Signal] = []
    for each in gone:
        rows += [each, *heard.get(each.waitpoint_id, ())]
    if len(found) < limit:
        rows += [signal for name, signals in timeouts.items() if name not in stay for signal in signals]
    return tuple(map(Drop, rows))
