"""Starts of another kind: inside the caller's own transaction, and those that wait for quiet.

A start with ``tx=`` writes one row with the caller's connection and nothing else: the run exists if and only if they
commit. Engines with timers (every worker has them) make an execution of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import UUID

from flowfabric.model.ids import ExecutionId
from flowfabric.model.operations.enqueue import EnqueueDraft
from flowfabric.model.partitions import lane_partition
from flowfabric.model.states import PublicState
from flowfabric.sdk.durations import milliseconds
from flowfabric.sdk.errors import BadOptions, NotCommitted, StartRefused
from flowfabric.sdk.options import StartOptions
from flowfabric.sdk.runs.limits import stable_id
from flowfabric.sdk.runs.run import Run
from flowfabric.sdk.runs.start import id_of, prepare, run_of

if TYPE_CHECKING:
    from flowfabric.sdk.app import App
    from flowfabric.sdk.definitions.signature import Signature
    from flowfabric.sdk.definitions.tasks import Startable

T = TypeVar("T")

_TABLE = "ff_enqueue_request (request_id, execution_id, command)"
#: As texts, whatever a caller has told the driver about UUIDs and JSON.
_POSTGRES = f"INSERT INTO {_TABLE} VALUES (CAST({{}} AS uuid), {{}}, CAST({{}} AS jsonb))"
_SQLITE = f"INSERT INTO {_TABLE} VALUES ({{}}, {{}}, {{}})"
#: No bound on how long starts may push each other back.
_NO_BOUND_MS = 2**50


class _Pending(StrEnum):
    PENDING = "pending"


#: The status of a run whose request is committed and not taken up yet.
PENDING = cast(PublicState, _Pending.PENDING)


async def start(definition: Startable[Any, Any], arguments: Mapping[str, Any], options: StartOptions) -> Run[Any]:
    """A start with ``tx=`` or ``debounce=``."""
    if options.tx is None:
        return await _start_debounced(definition, arguments, options)
    draft, run = await drafted(definition, arguments, options)
    written = write(options.tx, draft)
    if inspect.isawaitable(written):
        await written
    return run


# -- waiting for quiet -------------------------------------------------------------------------------------------------


async def _start_debounced(
    definition: Startable[Any, Any], arguments: Mapping[str, Any], options: StartOptions
) -> Run[Any]:
    debounce = options.debounce
    assert debounce is not None
    if options.delay is not None or options.id is not None or definition.options.id is not None:
        raise BadOptions(
            f"{definition.name}: debounce= decides which starts share a run and when it begins; leave out id= and "
            "delay=",
            task=definition.name,
            option="debounce",
        )
    prepared = await prepare(definition, arguments, options)
    key = id_of(definition, debounce.key, arguments)
    answer = await definition.app.engine.debounce_execution(
        f"{definition.kind}\x1f{key}",
        prepared.arguments,
        wait_ms=milliseconds(debounce.wait, "wait"),
        at_most_ms=_NO_BOUND_MS if debounce.at_most is None else milliseconds(debounce.at_most, "at_most"),
    )
    return run_of(definition, answer.execution_id)


# -- inside the caller's transaction -----------------------------------------------------------------------------------


async def drafted(
    definition: Startable[Any, Any], arguments: Mapping[str, Any], options: StartOptions
) -> tuple[EnqueueDraft, Run[Any]]:
    """What is to be written, and the run it asks for; everything is checked here."""
    if options.debounce is not None:
        raise BadOptions("use tx= or debounce=, not both", task=definition.name, option="debounce")
    app = definition.app
    engine = app.engine
    if app.is_remote:
        engine.draft_request({})  # says why that cannot be
    _checked(options.tx, engine.backend_label)
    prepared = await prepare(definition, arguments, options)
    if prepared.id is not None:
        if prepared.reuse != "existing":
            raise BadOptions(
                f'{definition.name}: reuse="{prepared.reuse}" is decided when the run is created, after your commit; '
                'with tx= only reuse="existing" is possible',
                task=definition.name,
                option="reuse",
            )
        partition = lane_partition(prepared.arguments["lane_id"], engine.partitions)
        own = stable_id("tx", app.namespace, prepared.id)
        prepared.arguments["execution_id"] = ExecutionId.of(partition, own)
    draft = engine.draft_request(prepared.arguments)
    return draft, RequestedRun(app, draft.execution_id, definition.signature, prepared.id)


class RequestedRun(Run[T]):
    """A run that was asked for in somebody's transaction."""

    __slots__ = ("_key",)

    def __init__(self, app: App, id: str, signature: Signature | None, key: str | None) -> None:
        super().__init__(app, id, signature)
        self._key = key

    async def _not_there(self) -> PublicState:
        found = await requested_state(self)
        if found is not None:
            return found
        if self._key is not None:
            # Another run had the id before; then that one is meant.
            bound = await self.app.engine.find_execution(self._key, self.app.namespace)
            state = None if bound is None else await self.app.engine.read_execution_state(bound)
            if bound is not None and state is not None:
                self.id = str(bound)
                return state
        raise NotCommitted(
            f"run {self.id} was asked for in a transaction that has not been committed, or was rolled back: commit it "
            "first. If it was committed, the run is past its retention",
            run=self.id,
        )


async def requested_state(run: Run[Any]) -> PublicState | None:
    """``pending`` if there is a request for a run that does not exist; its state if it came to be meanwhile."""
    engine = run.app.engine
    request = await engine.find_request(run.id)
    if request is None:
        return await engine.read_execution_state(run.id)
    if request.error is not None:
        raise StartRefused(
            f"run {run.id} could not be created: {request.error}. Fix that, then call "
            f"engine.retry_request({request.request_id!r}), or drop_request to give it up",
            run=run.id,
            request=request.request_id,
        )
    return PENDING


# -- connections -------------------------------------------------------------------------------------------------------


def _package(connection: Any) -> str | None:
    """The library that a connection is of."""
    modules = (each.__module__.partition(".")[0] for each in type(connection).__mro__)
    return next((name for name in modules if name in _STYLES), None)


def _checked(connection: Any, label: str) -> None:
    """Refuse what cannot be a connection to the app's database."""
    if label == "memory":
        raise BadOptions(
            "tx=: an app in memory has no database to share; leave tx= out, or in a test use "
            'app.testing(store="sqlite:///…") with the database of this connection',
            option="tx",
        )
    if label == "valkey":
        raise BadOptions(
            "tx=: your transaction can start a run only if the runs are in the same SQL database, and the app's runs "
            "are in Valkey: leave tx= out and start the run after your commit, or keep the runs in that database",
            option="tx",
        )
    kind, package = type(connection), _package(connection)
    if package is None or kind.__name__ in _NO_TRANSACTIONS:
        raise BadOptions(
            f"tx=: {kind.__module__}.{kind.__qualname__} is not a connection of psycopg, asyncpg, SQLAlchemy, sqlite3 "
            "or aiosqlite",
            option="tx",
        )
    speaks = _dialect(connection) if package == "sqlalchemy" else _STYLES[package]
    if speaks != label:
        raise BadOptions(
            f"tx=: this is a connection to {speaks}, and the app's runs are in {label}: both must be the same database",
            option="tx",
        )


_STYLES = {
    "psycopg": "postgres",
    "asyncpg": "postgres",
    "sqlite3": "sqlite",
    "aiosqlite": "sqlite",
    "sqlalchemy": "",
}
#: What gives connections out has no transaction of its own.
_NO_TRANSACTIONS = frozenset({"Pool", "Engine", "AsyncEngine", "ConnectionPool", "AsyncConnectionPool"})


def _dialect(connection: Any) -> str:
    bind = connection.get_bind() if hasattr(connection, "get_bind") else connection
    name: str = bind.dialect.name
    return {"postgresql": "postgres"}.get(name, name)


def write(connection: Any, draft: EnqueueDraft) -> Any:
    """One row, by the caller's connection, in the caller's transaction; to be awaited if the connection is async."""
    style = _package(connection) or ""
    values: tuple[Any, ...] = (draft.request_id, str(draft.execution_id), draft.command)
    on_postgres = _STYLES[style] == "postgres" or (style == "sqlalchemy" and _dialect(connection) == "postgres")
    if not on_postgres:
        values = (UUID(draft.request_id).bytes, *values[1:])
    template = _POSTGRES if on_postgres else _SQLITE
    if style == "sqlalchemy":
        from sqlalchemy import text

        statement = text(template.format(":request_id", ":execution_id", ":command"))
        return connection.execute(statement, dict(zip(("request_id", "execution_id", "command"), values, strict=True)))
    if style == "asyncpg":
        return connection.execute(template.format("$1::text", "$2::text", "$3::text"), *values)
    mark = "%s" if on_postgres else "?"
    return connection.execute(template.format(mark, mark, mark), values)
