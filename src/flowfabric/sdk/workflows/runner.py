"""One attempt of a workflow: run the function with what is remembered, until it ends or is parked."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

from flowfabric.model.handles import HandleKind
from flowfabric.model.operations.workflows import StepRecord
from flowfabric.sdk.context import Ctx
from flowfabric.sdk.definitions.tasks import Workflow
from flowfabric.sdk.errors import CancelRequested
from flowfabric.sdk.worker.attempt import Interruption, Job, Parked
from flowfabric.sdk.workflows.branches import BRANCH, Contained, Exited, branch_out
from flowfabric.sdk.workflows.cancellation import raised_by
from flowfabric.sdk.workflows.conductor import Conductor
from flowfabric.sdk.workflows.durable import CURRENT
from flowfabric.sdk.workflows.recorded_steps import Memory
from flowfabric.sdk.workflows.second_pass import IS_SECOND, SecondPass, compare, remembered_at_the_end
from flowfabric.sdk.workflows.timeouts import notice_limits

#: The tag of a run that began with the memory of another.
FORKED_FROM = "ff.forked_from"


async def run_workflow(job: Job, workflow: Workflow[..., Any]) -> None:
    """Complete the run, fail it by raising, or raise ``Parked``, or ``CancelRequested`` if it ends because it was asked
    to."""
    held = job.handle.payload
    is_new = job.handle.kind is HandleKind.FRESH and held.attempt_index == 0 and held.lease_epoch == 1
    # A run that has never been held before remembers nothing, unless it is a fork.
    blank = is_new and FORKED_FROM not in job.context.tags
    steps = [] if blank else await job.repeated(lambda: job.engine.read_steps(job.execution_id))
    arguments = workflow.signature.unpack(job.context.input_payload)
    conductor = Conductor(job, _memory(job, steps))
    if not workflow.signature.injected:
        data = await _run(workflow, conductor, arguments, {})
        if _runs_again(conductor):
            await _run_again(workflow, conductor, data, {})
        await job.complete(data, conductor.done_last(), conductor.memory.count)
        return
    if not blank:
        job.logs.doubt()
    ctx = Ctx(job, workflow.name)
    try:
        async with job.worker.dependencies.attempt(ctx) as scope:
            data = await _run(workflow, conductor, arguments, await scope.resolve(workflow.signature.injected))
    except CancelRequested:
        await ctx.flush()
        raise
    await ctx.flush()
    if _runs_again(conductor):
        await _run_again_with(Ctx(job, workflow.name), workflow, conductor, data)
    await job.complete(data, conductor.done_last(), conductor.memory.count)


def _runs_again(conductor: Conductor) -> bool:
    """Whether the function is called once more to see whether it does the same."""
    return conductor.job.app.second_pass and not conductor.job.asked and not conductor.is_once


def _memory(job: Job, steps: list[StepRecord]) -> Memory:
    """What it remembers, and where this trial begins in it: a retry and a replay begin one."""
    trial = f"{job.handle.payload.attempt_index}.{job.context.replays}"
    if FORKED_FROM not in job.context.tags:
        return Memory(steps, trial="" if trial == "0.0" else trial, asked=job.asked)
    own = job.handle.execution_id.uuid_text
    return Memory(steps, trial=f"{own}.{trial}", source=own, asked=job.asked)


async def _run(
    workflow: Workflow[..., Any], conductor: Conductor, arguments: dict[str, Any], provided: dict[str, Any]
) -> bytes:
    """Let the function run; its result as it will be stored."""
    args, kwargs = workflow.signature.call(arguments, provided)
    surroundings = contextvars.copy_context()
    surroundings.run(CURRENT.set, conductor)
    surroundings.run(BRANCH.set, conductor.root)
    loop = asyncio.get_running_loop()
    branch_out(loop)
    notice_limits(loop)
    main = loop.create_task(
        Contained(workflow.function(*args, **kwargs), conductor),
        name=f"workflow {workflow.name}",
        context=surroundings,
    )
    conductor.root.runs_in(main)
    conductor.tasks.add(main)
    try:
        await conductor.conduct(main)
    except BaseException as error:
        why = error if isinstance(error, Parked | asyncio.CancelledError) else asyncio.CancelledError()
        await conductor.let_go(main, why)
        if conductor.job.interruption is Interruption.TIMEOUT:
            conductor.failed()
        raise
    try:
        result = main.result()
    except Exited as error:
        raise error.exit from None
    except BaseException as error:
        left = raised_by(error)
        if left is None:
            await conductor.cancelled()
            raise error if isinstance(error, CancelRequested) else CancelRequested(_reason(error)) from error
        if isinstance(left, Exception):
            conductor.failed()
        if left is error:
            raise
        raise left from error
    finally:
        await conductor.ended(main)
    return workflow.signature.dump_result(result)


async def _run_again_with(ctx: Ctx, workflow: Workflow[..., Any], conductor: Conductor, data: bytes) -> None:
    """With dependencies of its own, as after a pause."""
    job = conductor.job
    job.logs.doubt()
    async with job.worker.dependencies.attempt(ctx) as scope:
        await _run_again(workflow, conductor, data, await scope.resolve(workflow.signature.injected))
    job.logs.forget()


async def _run_again(workflow: Workflow[..., Any], conductor: Conductor, data: bytes, provided: dict[str, Any]) -> None:
    """Let a test find what only shows when the function is called again."""
    job = conductor.job
    second = SecondPass(job, _memory(job, remembered_at_the_end(conductor)), conductor)
    told = IS_SECOND.set(True)
    try:
        compare(job, data, await _run(workflow, second, workflow.signature.unpack(job.context.input_payload), provided))
    finally:
        IS_SECOND.reset(told)


def _reason(error: BaseException) -> str:
    """The reason of the first request in a group of them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error.reason if isinstance(error, CancelRequested) else ""
