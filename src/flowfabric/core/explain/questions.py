"""Questions of a suspended execution to people, and who has yet to answer."""

from __future__ import annotations

from flowfabric.core.admission import admit
from flowfabric.core.batch.view import View
from flowfabric.core.documents import listed_document
from flowfabric.core.explain.times import at
from flowfabric.core.ownership import owners
from flowfabric.core.suspension import waits
from flowfabric.model import states as lit
from flowfabric.model.conditions import Count, leaves, satisfiers
from flowfabric.model.decisions import Peek
from flowfabric.model.operations.suspension import SuspensionReason
from flowfabric.model.ownership import places, shown_id
from flowfabric.model.quoting import quoted
from flowfabric.model.reads.explain import OpenQuestion
from flowfabric.model.records.budgets import Budget, BudgetAsk
from flowfabric.model.records.executions import Execution, Suspension

#: Budgets that one execution may have asked; the suspension is about one of them.
_MAX_ASKED = 20
#: Approvers that a sentence names.
_MAX_APPROVERS = 10


def asked(view: View, execution: Execution, suspension: Suspension, reason: str) -> OpenQuestion | None:
    """The question of a suspended execution, if it asks one."""
    if reason == SuspensionReason.WAITING_FOR_APPROVAL:
        return _approval(view, execution, suspension)
    if reason == SuspensionReason.PAUSED_BY_BUDGET:
        return _budget(view, execution, suspension)
    return None


def _approval(view: View, execution: Execution, suspension: Suspension) -> OpenQuestion | None:
    """Yeses are counted by the first count of the condition, each approver has a waitpoint."""
    condition = waits.read_terms(suspension).condition
    yes = next((leaf for leaf in leaves(condition) if isinstance(leaf, Count)), None)
    if yes is None:
        return None
    heard = waits.read_heard(suspension)
    answered = tuple(key for key in yes.waitpoints if heard.get(key))
    left = tuple(key for key in yes.waitpoints if key not in answered)
    needed = max(yes.n - len(satisfiers(yes, heard)), 0)
    anyone = yes.waitpoints == (lit.ANYONE,)
    return OpenQuestion(question_text(view, execution), needed, () if anyone else left, answered)


def question_text(view: View, execution: Execution) -> str:
    """What is asked, as its tag says; nothing if it has none."""
    tags = raw_fields(view, execution).get("tags")
    text = tags.get(lit.QUESTION_TAG) if isinstance(tags, dict) else None
    return text if isinstance(text, str) else ""


def raw_fields(view: View, execution: Execution) -> dict[str, object]:
    """The document of an execution's row, as far as it can be read."""
    full = view.full(execution.execution_id)
    return {} if full is None else listed_document(full.raw_fields, "execution_kind")


def _budget(view: View, execution: Execution, suspension: Suspension) -> OpenQuestion:
    asks = view.first(_MAX_ASKED, BudgetAsk, partition=execution.partition, uuid=execution.uuid)
    about = next((each for each in asks if each.suspension_id == suspension.suspension_id), None)
    budget = None
    if about is not None:
        view.require((Peek(Budget, about.budget_id),))
        budget = view.peek(Budget, about.budget_id)
    known = budget is not None and is_named(view, execution, budget)
    name = f"budget {budget_name(budget)}" if budget is not None and known else "its budget"
    return OpenQuestion(f"may it spend beyond {name}?", 1, ())


def is_named(view: View, execution: Execution, budget: Budget) -> bool:
    """Whether the execution names the budget, or one of the same owner below it."""
    for name in admit.named_budgets(execution.budget_ids or ""):
        view.require(Peek(Budget, place) for place in places(name, execution.namespace))
        named = owners.found(view.peek, Budget, name, execution.namespace)
        if named is not None and named.namespace == budget.namespace:
            return True
    return execution.budget_ids is None


def budget_name(budget: Budget) -> str:
    """What people call it: its name if it has one, or else its id."""
    if budget.scope_type == lit.SCOPE_NAMED and budget.scope_id:
        return quoted(budget.scope_id)
    return shown_id(budget.budget_id)


def question_sentence(question: OpenQuestion, until_ms: int | None, now_ms: int) -> str:
    """Who has to answer what, and until when."""
    who = "anyone with the link"
    if question.of:
        names = [each if each.isprintable() else quoted(each) for each in question.of[:_MAX_APPROVERS]]
        more = len(question.of) - len(names)
        listed = ", ".join(names) + (f" and {more} more" if more else "")
        who = listed if len(question.of) == 1 else f"{question.needed} of {listed}"
    what = f" {quoted(question.question)}" if question.question else ""
    until = "" if until_ms is None else f", until {at(until_ms, now_ms)}"
    return f"It is waiting for {who} to answer{what}{until}."
