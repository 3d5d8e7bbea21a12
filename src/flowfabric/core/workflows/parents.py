"""Parents and children: an execution that was started by another tells it when it ends.

Telling always writes the parent's row, also when the parent is not waiting. A parent that is about to park has decided
upon that row, so it finds out at its commit and looks again: no end is ever missed between the look and the wait.
"""

from __future__ import annotations

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.core.suspension import waits
from flowfabric.model import states as lit
from flowfabric.model.decisions import Act, change
from flowfabric.model.records.executions import Execution, Suspension

#: Why a parked execution goes on.
CHILDREN_ENDED = "children_ended"
TIME_CAME = "time_came"


def parent_told(view: View, context: Context, execution: Execution, outcome: str) -> tuple[Act, ...]:
    """What the end of a child does to its parent: it goes on, or waits for one child less, or merely takes note. One
    that waits for several may want to hear of the first that has not succeeded."""
    if execution.parent is None:
        return ()
    parent = view.execution(f"{{fp:{execution.partition}}}:{execution.parent}")
    if parent is None or parent.lifecycle_phase in lit.ENDED_PHASES:
        return ()
    noted = change(parent, last_mutation_at_ms=context.now)
    if parent.lifecycle_phase != lit.SUSPENDED:
        return (noted,)
    suspension = view.get(Suspension, (parent.partition, parent.uuid))
    if suspension is None or suspension.closed_at_ms is not None or not suspension.wake_after:
        return (noted,)
    left = suspension.wake_after
    if left > 1 or (left < -1 and outcome == lit.ENDED_SUCCESS):
        return (noted, change(suspension, wake_after=left - 1 if left > 0 else left + 1))
    return waits.resumed(view, context, parent, suspension, waits.Closing(CHILDREN_ENDED))
