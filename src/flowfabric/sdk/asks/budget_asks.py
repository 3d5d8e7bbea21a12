"""Budgets that ask: a run that would spend beyond its limit waits for a yes or a no, like any other question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from flowfabric.model.errors import NotFound
from flowfabric.model.operations.budgets import APPROVED
from flowfabric.sdk.asks.answer import APPROVE, DECLINED
from flowfabric.sdk.asks.ask import OpenAsk
from flowfabric.sdk.asks.questions import Question
from flowfabric.sdk.options import shown_amount
from flowfabric.sdk.schemas.from_types import schema_of

if TYPE_CHECKING:
    from flowfabric.engine import Engine
    from flowfabric.model.operations.executions import ExecutionContext
    from flowfabric.sdk.app import App

#: What the answer looks like, whatever is shown.
YES_OR_NO: Final = Question("may the run spend more?", None, (), 1, None, schema_of(bool), "")


class BudgetQuestion(OpenAsk):
    """Whether a run may spend beyond a budget: ``True`` lets exactly what it asked for through, once."""

    def __init__(
        self, app: App, execution_id: str, context: ExecutionContext, waitpoint: str, budgets: dict[str, Any]
    ) -> None:
        name = context.execution_kind or "the run"
        text = f"may {name} spend beyond {', '.join(budgets) or 'its budget'}?"
        shown = Question(text, budgets, (), 1, None, YES_OR_NO.schema, YES_OR_NO.approves)
        self._begin(app, execution_id, shown, context.tags.get("ff.run", execution_id))
        self._waitpoint_id = waitpoint

    def waitpoint(self, by: str | None) -> str:
        return self._waitpoint_id

    def signal_name(self, said: str) -> str:
        return budget_signal(said)


def budget_signal(said: str) -> str:
    """The engine's word for a yes or a no to a budget's question."""
    return APPROVED if said == APPROVE else DECLINED


async def budget_question(app: App, execution_id: str, context: ExecutionContext) -> BudgetQuestion | None:
    """The question of a suspended run, if it is still open."""
    suspension = (await app.engine.read_history(execution_id)).suspension
    if suspension is None or suspension.closed_at is not None or not suspension.waitpoints:
        return None
    # The run may hold waitpoints of its own beside the one that asks.
    asked = suspension.waitpoints[0]
    return BudgetQuestion(app, execution_id, context, asked, await budgets_of(app.engine, execution_id))


async def budgets_of(engine: Engine, execution_id: str) -> dict[str, Any]:
    """The run's budgets that ask and those above them, as they stand: by name and dimension, what is spent and what is
    allowed."""
    history = await engine.read_history(execution_id)
    found: dict[str, Any] = {}
    left = [(each.budget_id, each.namespace) for each in history.budgets]
    for budget_id, namespace in left:
        try:
            status = await engine.get_budget_status(budget_id, namespace)
        except NotFound:
            continue
        if status.parent_budget_id is not None and (above := (status.parent_budget_id, status.namespace)) not in left:
            left.append(above)
        if status.on_hard_limit != "ask":
            continue
        name = status.scope_id or budget_id
        if name in found:
            name = f"{name} ({budget_id} of {status.namespace or 'the operator'})"
        found[name] = {
            dimension: {
                "spent": float(shown_amount(dimension, status.usage.get(dimension, 0))),
                "allowed": float(shown_amount(dimension, limit)),
            }
            for dimension, limit in status.hard_limits.items()
        }
    return found
