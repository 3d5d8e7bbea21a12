"""A few things that must hold of every stored execution, cheap enough to be looked at all the time.

``invariants`` knows many more and wants whole histories; these need one look at a row and what stands beside it.
"""

from __future__ import annotations

from flowfabric.core.lease import is_live
from flowfabric.core.view import View
from flowfabric.model import literals as lit
from flowfabric.model.changes import Get
from flowfabric.model.records import Execution, Suspension


def unsound(execution_id: str, view: View) -> str | None:
    """What does not hold about an execution; ``None`` if all does, or if there is no such execution."""
    execution = view.execution(execution_id)
    if execution is None:
        return None
    attempt = view.attempt(execution_id, execution.attempt_index)
    if execution.lifecycle_phase == lit.ACTIVE and attempt is None:
        return f"it is active, but its attempt {execution.attempt_index + 1} does not exist"
    if execution.lifecycle_phase == lit.SUSPENDED and not _is_suspended(view, execution):
        return "it is suspended, but has no open suspension"
    waits = lit.is_claimable(execution.lifecycle_phase, execution.eligibility_state)
    if waits and attempt is not None and is_live(attempt):
        return f"it can be claimed, but worker {attempt.worker_instance_id} holds a lease on it"
    return None


def _is_suspended(view: View, execution: Execution) -> bool:
    key = (execution.partition, execution.uuid)
    view.require((Get(Suspension, key),))
    suspension = view.get(Suspension, key)
    return suspension is not None and suspension.closed_at_ms is None
