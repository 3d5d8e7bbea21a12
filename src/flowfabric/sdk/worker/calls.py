"""Calls of the functions that tasks and steps are made of: on the loop, in a thread, or in a process of the worker."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flowfabric.sdk.context import Ctx
from flowfabric.sdk.definitions.tasks import Definition, Task
from flowfabric.sdk.worker.processes import Facts

if TYPE_CHECKING:
    from flowfabric.sdk.worker.attempt import Job
    from flowfabric.sdk.worker.shared import WorkerShared


async def run_task(job: Job, task: Task[..., Any]) -> bytes:
    """Run a task's function; its result as it will be stored. What it emitted is stored when this returns."""
    arguments = task.signature.unpack(job.context.input_payload)
    options = task.options
    if options.run_in == "process":
        return await call_in_process(job, task, job.context.input_payload, begins=functools.partial(job.limit, options))
    job.limit(options)
    wanted = task.signature.injected
    if not wanted:
        return task.signature.dump_result(await call_function(job.worker, task, arguments, {}))
    ctx = Ctx(job, task.name)
    async with job.worker.dependencies.attempt(ctx) as scope:
        result = await call_function(job.worker, task, arguments, await scope.resolve(wanted))
    data = task.signature.dump_result(result)
    await ctx.flush()
    return data


async def call_in_process(
    job: Job,
    definition: Definition[..., Any],
    payload: bytes,
    step: str | None = None,
    identity: str | None = None,
    begins: Callable[[], None] = lambda: None,
) -> bytes:
    """Call a definition's function in a process of the worker's; its result as JSON. ``step`` is the name of a step's
    call and ``identity`` what tells it from all others, ``begins`` is called when there is a process for it."""
    uuid = job.handle.execution_id.uuid_text
    key = uuid if identity is None else f"{uuid}:{identity}"
    tags, stored = job.context.tags, job.app.stored_logs
    facts = Facts(definition.name, job.execution_id, job.attempt, tags, key, stored, step)
    return await job.worker.processes.call(definition, payload, facts, job.logs.add, begins)


async def call_function(
    worker: WorkerShared, definition: Definition[..., Any], arguments: dict[str, Any], provided: dict[str, Any]
) -> Any:
    """Call a definition's function: on the loop if it is a coroutine function, else in a thread of the worker."""
    args, kwargs = definition.signature.call(arguments, provided)
    function = definition.function
    if definition.is_async:
        return await function(*args, **kwargs)
    return await worker.executor.call(lambda: function(*args, **kwargs))
