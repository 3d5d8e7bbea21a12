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


def parent_told(view: View, context: Context, execution: Execution) -> tuple[Act, ...]:
    """What the end of a child does to its parent: it goes on, or waits for one child less, or merely takes note."""
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
    if suspension.wake_after > 1:
        return (noted, change(suspension, wake_after=suspension.wake_after - 1))
    return waits.resumed(view, context, parent, suspension, waits.Closing(CHILDREN_ENDED))
