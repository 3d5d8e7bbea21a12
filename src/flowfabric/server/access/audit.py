"""Who has done what: one line per act on the logger ``audit``, and one in the store. Never payloads, never tokens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct, structs

from flowfabric.core.access import RecordAct, shown
from flowfabric.core.batch.notes import Note
from flowfabric.engine.operation_table import NAMED_BY, Operation
from flowfabric.engine.operations.access import act_entropy
from flowfabric.model.errors import EngineError
from flowfabric.model.operations.access import Credential, CredentialInfo, CredentialRevoked
from flowfabric.model.operations.budgets import CreateBudgetResult, CreateQuotaPolicyResult
from flowfabric.model.operations.executions import AlreadySatisfied
from flowfabric.model.operations.lanes import LaneStateChanged
from flowfabric.model.operations.schedules import BackfillResult, Cron, Every, FireResult, PutScheduleResult
from flowfabric.model.operations.suspension import RotateSecret
from flowfabric.model.operations.workflows import Forked
from flowfabric.server.operations import Call, Variants

_log = logging.getLogger("audit")
#: A fact longer than this is cut.
MAX_FACT_CHARS = 250


def record(event: str, who: str, **facts: Any) -> None:
    """Write one act to the log."""
    _log.info("%s", msgspec.json.encode({"event": event, "who": who, **facts}).decode())


class Account:
    """The account of one act. It is stored in the act's own commit, and written to the log once that is done; what only
    reveals something has no commit, and is accounted for before anybody is told."""

    def __init__(
        self, call: Call, operation: Operation, arguments: Callable[[], Mapping[str, Any]], status: Callable[[Any], int]
    ) -> None:
        self._call = call
        self._operation = operation
        self._arguments = arguments
        self._status = status
        self._entropy = act_entropy()
        self._act: RecordAct | None = None

    def of(self, result: Any) -> RecordAct | None:
        """The act, given what came of it."""
        operation, who = self._operation, self._call.principal.name
        self._act = None
        if not isinstance(result, _UNCHANGED):
            told = msgspec.json.encode(self._told(result)).decode()
            self._act = RecordAct(who, operation.name, told, self._status(result), self._entropy)
        return self._act

    async def settle(self, note: Note, result: Any = None) -> None:
        """The act is done, with what the note says, or there was none."""
        if note.remembered or self._call.idle:
            return
        if not note.decided and (act := self.of(result)) is not None:
            await self._store(act)
        if self._act is not None and (note.changed or not note.decided):
            told = msgspec.json.decode(self._act.subject)
            record(self._act.act, self._act.who, status=self._act.status, **told)

    async def _store(self, act: RecordAct) -> None:
        told, engine = msgspec.json.decode(act.subject), self._call.server.engine
        if self._call.receipt is not None and not self._call.unfinished:
            # Once for a request that is made again under its key.
            engine = engine.noting(Note(receipt=self._call.receipt("record_act", "account")))
        try:
            await engine.record_act(who=act.who, act=act.act, subject=told, status=act.status)
        except EngineError as error:
            if not self._operation.many:
                raise
            # All of it is done and on record; a caller that got an error would do it again.
            _log.error("%s was done, but is not in the audit log: %s", act.act, error)

    def _told(self, result: Any) -> dict[str, str]:
        """What it was about, and what it has changed."""
        added = _OUTCOMES[type(result)](result) if type(result) in _OUTCOMES else {}
        arguments, names = self._arguments(), (*NAMED_BY[self._operation.subject], *self._operation.tells)
        facts = {name: arguments.get(name) for name in names} | added | dict(self._call.told)
        return {
            name: _said(value)[:MAX_FACT_CHARS] for name, value in facts.items() if value not in (None, "", [], {}, ())
        }


def account_of(call: Call) -> Account | None:
    """The account of a request; what only asks what would happen is no act."""
    if not call.operation.audited or getattr(call.body, "dry_run", False):
        return None
    return Account(call, call.operation, lambda: _asked(call), lambda result: _status(call, result))


def _status(call: Call, result: Any) -> int:
    """The status of the answer that says this."""
    answers = call.route.answers
    kinds = {status: each.kinds for status, each in answers.items() if isinstance(each, Variants)}
    return next((status for status, each in kinds.items() if isinstance(result, each)), next(iter(answers)))


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
    Credential: lambda made: _credential(shown(made)),
    CredentialRevoked: _credential,
    BackfillResult.Started: lambda filled: {"runs": str(len(filled.execution_ids))},
    FireResult.Started: lambda fired: {"started": fired.execution_ids},
    Forked: lambda forked: {"new_execution_id": forked.execution_id},
    LaneStateChanged: lambda changed: {"previous": changed.previous},
    RotateSecret.Rotated: lambda rotated: {"previous_kid": rotated.previous_kid},
}
#: Results that say that everything was so already: the call has changed nothing, and that is no act.
_UNCHANGED = (
    AlreadySatisfied,
    BackfillResult.Previewed,
    CreateBudgetResult.AlreadySatisfied,
    CreateQuotaPolicyResult.AlreadySatisfied,
    PutScheduleResult.Unchanged,
    RotateSecret.Noop,
)
