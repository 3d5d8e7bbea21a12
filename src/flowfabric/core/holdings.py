"""What an execution holds, and how it comes back: reservations when its lease ends, slots when it ends itself."""

from __future__ import annotations

from flowfabric.core import lapsing, quotas
from flowfabric.core.context import Context
from flowfabric.core.view import View
from flowfabric.model.changes import Act
from flowfabric.model.records import Attempt, Execution


def lapsed(view: View, context: Context, execution: Execution, attempt: Attempt | None) -> tuple[Act, ...]:
    """What was reserved under a lease that ends now goes back. It may be folded, so the caller may not refuse
    afterwards."""
    if attempt is not None and attempt.reservation_count:
        lapsing.lapse(view, context, execution, attempt)
    return ()


def freed(view: View, context: Context, execution: Execution, attempt: Attempt | None) -> tuple[Act, ...]:
    """What an execution that ends now gives back, its lease's reservations included. It may be folded, so the caller
    may not refuse afterwards."""
    if execution.quota_policy_id is not None:
        quotas.give_back(view, context, execution)
    if execution.guarded:
        quotas.leave_guarded(view, context, execution)
    return lapsed(view, context, execution, attempt)
