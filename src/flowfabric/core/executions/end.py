"""The end of an execution: one place for every terminal transition, so that each is announced exactly once and moves
whatever waited for it."""

from __future__ import annotations

from flowfabric.core.admission import release
from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.core.executions.terminal import completion
from flowfabric.core.flows import cascade
from flowfabric.core.workflows import orphans, parents
from flowfabric.model.decisions import Decision
from flowfabric.model.records.executions import Attempt, Execution


def concluded(
    view: View,
    context: Context,
    decision: Decision,
    execution: Execution,
    attempt: Attempt | None,
    outcome: str,
    *,
    result: bytes | None = None,
    with_flow: bool = False,
    as_asked: bool = False,
) -> Decision:
    """A decision that ends an execution, with what every end brings: what it held goes back, what waits for it moves,
    and one announcement. ``with_flow`` says that the whole flow ends, so nobody is left to move.
    ``as_asked`` says that it was asked to cancel, so what it leaves behind is asked too.

    The decision may be folded here, so the caller may not refuse afterwards.
    """
    decision.acts += release.freed(view, context, execution, attempt)
    if not with_flow:
        decision.acts += parents.parent_told(view, context, execution, outcome)
        decision.then += orphans.left_behind(execution, outcome, as_asked)
    if execution.flow_id is None or with_flow:
        decision.events += (completion(execution, context.now, outcome, dispatched=True),)
        return decision
    view.fold(decision)
    moved = cascade.advance(view, context, execution, outcome, result)
    return Decision(
        decision.result,
        moved.acts,
        (completion(execution, context.now, outcome, dispatched=moved.complete), *moved.events),
        decision.wakes + moved.wakes,
        decision.then + moved.then,
    )
