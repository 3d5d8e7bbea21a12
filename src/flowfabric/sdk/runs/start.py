"""From a definition and arguments to executions: ids, policies, limits, budgets.

An id binds through the engine's idempotency keys, within the app's namespace, for as long as the run is stored:

* ``existing``: a second start gives the first run, whatever became of it;
* ``reject``: a second start raises ``IdConflict``;
* ``after_completion``: a second start gives the first run while that is under way, and a new one once it has ended.
  Whether it has ended is decided by the engine in the transaction that creates the new run, so of many starts at the
  same time one creates it and the others get it; there are no generations to be counted or searched through.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from flowfabric.model.limits import MAX_CLAIM
from flowfabric.model.operations.executions import CreateResult, Duplicate
from flowfabric.model.ownership import owned_name
from flowfabric.model.policy import WHILE_KEPT_MS, ExecutionPolicy, RoutingRequirements, StreamPolicy, TimeoutPolicy
from flowfabric.sdk.durations import milliseconds
from flowfabric.sdk.errors import BadOptions, IdConflict
from flowfabric.sdk.options import CANCEL_GRACE, FREE_PROCESS, Reuse, StartOptions
from flowfabric.sdk.runs.run import Run
from flowfabric.tracing import current_trace

if TYPE_CHECKING:
    from flowfabric.sdk.definitions.tasks import Startable

#: The worker ends an attempt that runs out of time; the engine does if it has not after this much more.
TIMEOUT_SLACK_MS = 30_000
_formatter = string.Formatter()


# -- ids ---------------------------------------------------------------------------------------------------------------


def _paths(definition: Startable[..., Any], template: str) -> list[str]:
    try:
        parts = list(_formatter.parse(template))
    except ValueError as error:
        raise BadOptions(f"{definition.name}: id: {template!r}: {error}", task=definition.name, option="id") from None
    paths = []
    for _, path, spec, conversion in parts:
        if path is None:
            continue
        if not path or spec or conversion or not all(each.isidentifier() for each in path.split(".")):
            raise BadOptions(
                f"{definition.name}: id: {template!r} may contain only dotted paths such as {{doc.url}}",
                task=definition.name,
                option="id",
            )
        paths.append(path)
    return paths


def check_template(definition: Startable[..., Any], template: str) -> None:
    """Refuse an id template that names no argument."""
    for path in _paths(definition, template):
        definition.signature.check_path(path, "id")


def check_templates(definition: Startable[..., Any]) -> None:
    """Refuse what cannot be, when a definition is made."""
    if definition.options.id is not None:
        check_template(definition, definition.options.id)
    for limit in definition.options.limits:
        if limit.key is not None:
            definition.signature.check_path(limit.key, "limits")


def id_of(definition: Startable[..., Any], template: str | None, arguments: Mapping[str, Any]) -> str | None:
    """The id that a template gives for these arguments."""
    if template is None:
        return None
    written = []
    for text, path, _, _ in _formatter.parse(template):
        written.append(text)
        if path is not None:
            written.append(definition.signature.path(arguments, path))
    return "".join(written)


# -- one start ---------------------------------------------------------------------------------------------------------


class Start:
    """One start, worked out: what ``create_execution`` takes, and what to do if its id is taken."""

    __slots__ = ("arguments", "id", "reuse")

    def __init__(self, arguments: dict[str, Any], id: str | None, reuse: Reuse) -> None:
        self.arguments = arguments
        self.id = id
        self.reuse = reuse


async def prepare(
    definition: Startable[Any, Any],
    arguments: Mapping[str, Any],
    options: StartOptions,
    payload: bytes | None = None,
    *,
    kept: bool = False,
) -> Start:
    """Work out one start. Limits and budgets that it names exist afterwards, for good if they are ``kept``; the run
    itself does not yet."""
    app, task = definition.app, definition.options
    id = id_of(definition, options.id or task.id, arguments)
    reuse = options.reuse or task.reuse
    limits = await app.gates.quota(definition, arguments, kept=kept) if task.limits else None
    budget_ids = tuple([await app.gates.budget(budget) for budget in task.budget])
    budget_ids += tuple([await app.gates.budget(budget, kept=kept) for budget in options.budgets])
    created: dict[str, Any] = {
        "namespace": app.namespace,
        "lane_id": options.lane or task.lane or app.lane,
        "execution_kind": definition.kind,
        "input_payload": definition.signature.dump(arguments) if payload is None else payload,
        "payload_encoding": "json",
        "priority": task.priority if options.priority is None else options.priority,
        "policy": policy(definition, options.deadline, limits, budget_ids, bound=id is not None),
    }
    if task.tags or options.tags:
        created["tags"] = {**task.tags, **(options.tags or {})}
    # Here too, because a start may be written down first and made an execution later, elsewhere.
    if (trace := current_trace()) is not None:
        created["tags"] = trace.added_to(created.get("tags"))
    if id is not None:
        created["idempotency_key"] = id
        if reuse == "after_completion":
            created["key_reuse"] = "ended"
    if options.delay:
        created["delay_until"] = await app.engine.now_ms() + milliseconds(options.delay)
    return Start(created, id, reuse)


def policy(
    definition: Startable[Any, Any],
    deadline: timedelta | None,
    quota_policy_id: str | None,
    budget_ids: tuple[str, ...],
    *,
    bound: bool,
) -> ExecutionPolicy:
    """What the engine is told about one run. The engine reads equal ones once. Budgets and the quota are named as the
    app's own, so that nobody has to look for the operator's first."""
    task, own = definition.options, definition.app.namespace
    until = deadline or task.deadline
    needs = task.needs | {FREE_PROCESS} if task.run_in == "process" else task.needs
    timeouts = None
    if task.timeout is not None or until is not None:
        timeouts = TimeoutPolicy(
            None if task.timeout is None else milliseconds(task.timeout) + TIMEOUT_SLACK_MS,
            None if until is None else milliseconds(until),
        )
    return ExecutionPolicy(
        retry_policy=task.retry.policy(),
        timeout_policy=timeouts,
        max_reclaim_count=definition.app.lost_workers,
        routing_requirements=RoutingRequirements(tuple(sorted(needs))) if needs else None,
        stream_policy=(None if task.retention is None else StreamPolicy(retention_ttl_ms=milliseconds(task.retention))),
        budget_ids=tuple(owned_name(each, own) for each in budget_ids),
        quota_policy_id=None if quota_policy_id is None else owned_name(quota_policy_id, own),
        dedup_window_ms=WHILE_KEPT_MS if bound else None,
        cancel_grace_ms=_grace_ms(definition),
    )


def _grace_ms(definition: Startable[Any, Any]) -> int | None:
    """How long a cancelled run may go on. Tasks end at once."""
    from flowfabric.sdk.definitions.tasks import Workflow

    if not isinstance(definition, Workflow):
        return None
    grace = definition.options.cancel_grace
    return milliseconds(CANCEL_GRACE if grace is None else grace)


async def start(
    definition: Startable[Any, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], options: StartOptions
) -> Run[Any]:
    """Start one run."""
    arguments = definition.signature.bind(args, kwargs)
    if options.debounce is not None or options.tx is not None:
        from flowfabric.sdk.runs import enqueue

        return await enqueue.start(definition, arguments, options)
    prepared = await prepare(definition, arguments, options)
    answer = await definition.app.engine.create_execution(**prepared.arguments)
    await refuse_taken(definition, [prepared], [answer])
    return run_of(definition, answer.execution_id)


async def start_many(
    definition: Startable[Any, Any],
    calls: Sequence[tuple[tuple[Any, ...], Mapping[str, Any]]],
    options: StartOptions,
) -> list[Run[Any]]:
    """Start many runs in one call of the engine."""
    if options.debounce is not None or options.tx is not None:
        raise BadOptions("start_many: start runs one by one to use debounce= or tx=", option="start_many")
    prepared = [await prepare(definition, definition.signature.bind(args, kwargs), options) for args, kwargs in calls]
    if any(each.reuse == "reject" and each.id is not None for each in prepared):
        raise BadOptions(
            'start_many: reuse="reject" would leave the others started; start such runs one by one', option="reuse"
        )
    answers = await definition.app.engine.create_executions([each.arguments for each in prepared])
    await refuse_taken(definition, prepared, answers)
    return [run_of(definition, answer.execution_id) for answer in answers]


async def refuse_taken(
    definition: Startable[Any, Any], starts: Sequence[Start], answers: Sequence[CreateResult]
) -> None:
    """An id that is taken is an error if the start says so, and if it is another task's run that has it."""
    taken = {
        answer.execution_id: each for each, answer in zip(starts, answers, strict=True) if type(answer) is Duplicate
    }
    for execution_id, each in taken.items():
        if each.reuse == "reject":
            raise IdConflict(
                f"a run with the id {each.id!r} exists: {execution_id}; use that one, choose another id, or start with "
                'reuse="after_completion"',
                run_id=str(execution_id),
                id=each.id or "",
            )
    ids = list(taken)
    for first in range(0, len(ids), MAX_CLAIM):
        found = await definition.app.engine.read_execution_kinds(ids[first : first + MAX_CLAIM])
        for execution_id, kind in found.items():
            if kind != definition.kind:
                id = taken[execution_id].id or ""
                raise IdConflict(
                    f"the id {id!r} belongs to a run of {kind!r}: {execution_id}; "
                    f'ids are shared within a namespace, so give yours a prefix: id="{definition.name}:…"',
                    run_id=str(execution_id),
                    id=id,
                )


def run_of(definition: Startable[Any, Any], execution_id: str) -> Run[Any]:
    """The run of a definition."""
    return Run(definition.app, execution_id, definition.signature)
