"""Who has done what: one line per act on the logger ``audit``, and one in the store. Never payloads, never tokens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, structs

from flowfabric.engine.operation_table import NAMED_BY, Operation
from flowfabric.model.operations.access import CredentialCreated, CredentialInfo, CredentialRevoked
from flowfabric.model.operations.budgets import CreateBudgetResult, CreateQuotaPolicyResult
from flowfabric.model.operations.executions import AlreadySatisfied
from flowfabric.model.operations.lanes import LaneStateChanged
from flowfabric.model.operations.schedules import BackfillResult, Cron, Every, FireResult, PutScheduleResult
from flowfabric.model.operations.suspension import RotateSecret
from flowfabric.model.operations.workflows import Forked

if TYPE_CHECKING:
    from flowfabric.server.operations import Call

_log = logging.getLogger("audit")
#: A fact longer than this is cut.
MAX_FACT_CHARS = 250


def record(event: str, who: str, **facts: Any) -> None:
    """Write one act to the log."""
    _log.info("%s", msgspec.json.encode({"event": event, "who": who, **facts}).decode())


async def account(call: Call, status: int) -> None:
    """Write the act of a request to the log and to the store; what only asks what would happen is none."""
    if not getattr(call.body, "dry_run", False):
        await account_for(call, call.operation, _asked(call), call.result, status)


async def account_for(call: Call, operation: Operation, arguments: Mapping[str, Any], result: Any, status: int) -> None:
    """Write one act to the log and to the store: what it was about, and what it has changed."""
    if isinstance(result, _UNCHANGED):
        return
    added = _OUTCOMES[type(result)](result) if type(result) in _OUTCOMES else {}
    names = (*NAMED_BY[operation.subject], *operation.tells)
    facts = {name: arguments.get(name) for name in names} | added | dict(call.told)
    told = {name: _said(value)[:MAX_FACT_CHARS] for name, value in facts.items() if value not in (None, "", [], {}, ())}
    record(operation.name, call.principal.name, status=status, **told)
    await call.engine.record_act(who=call.principal.name, act=operation.name, subject=told, status=status)


def _asked(call: Call) -> dict[str, Any]:
    """What a request asks for, by the names of the engine's arguments."""
    named = {} if call.route.owner is None else {NAMED_BY[call.route.owner][0]: call.path["id"]}
    parts = [structs.asdict(each) for each in (call.query, call.body) if isinstance(each, Struct)]
    return {key: value for part in (*parts, call.path, named) for key, value in part.items()}


def _said(value: Any) -> str:
    """A value in words. Of a mapping to anything but numbers only the keys: values may be anybody's secrets."""
    match value:
        case Mapping():
            if all(isinstance(each, int) for each in value.values()):
                return ", ".join(f"{key}={each}" for key, each in value.items())
            return ", ".join(map(str, value))
        case list() | tuple() | set() | frozenset():
            return ", ".join(map(str, value))
        case Cron(expression=expression, time_zone=zone):
            return f"{expression} {zone}"
        case Every(every_ms=every_ms):
            return f"every {every_ms} ms"
    return str(value)


def _credential(found: CredentialInfo | CredentialRevoked) -> dict[str, Any]:
    return {
        "credential_id": found.credential_id,
        "name": found.name,
        "scopes": found.scopes,
        "namespaces": "all" if found.namespaces is None else found.namespaces,
    }


#: What results add to what was asked for: ids that were made, and what was there before.
_OUTCOMES: Mapping[type, Callable[[Any], dict[str, Any]]] = {
    CreateBudgetResult.Created: lambda made: {"budget_id": made.budget_id},
    CreateQuotaPolicyResult.Created: lambda made: {"quota_policy_id": made.quota_policy_id},
    CredentialCreated: lambda made: _credential(made.credential),
    CredentialRevoked: _credential,
    BackfillResult.Started: lambda filled: {"runs": str(len(filled.execution_ids))},
    FireResult.Started: lambda fired: {"started": fired.execution_ids},
    Forked: lambda forked: {"new_execution_id": forked.execution_id},
    LaneStateChanged: lambda changed: {"previous": changed.previous},
    RotateSecret.Rotated: lambda rotated: {"previous_kid": rotated.previous_kid},
}
#: Results that say that everything was so already: whoever asked has changed nothing, and that is no act.
_UNCHANGED = (
    AlreadySatisfied,
    BackfillResult.Previewed,
    CreateBudgetResult.AlreadySatisfied,
    CreateQuotaPolicyResult.AlreadySatisfied,
    PutScheduleResult.Unchanged,
    RotateSecret.Noop,
)
