"""Running a step's function, as often as its retry allows."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Any

from flowfabric.model.policy import backoff_delay_ms
from flowfabric.sdk.context import Ctx
from flowfabric.sdk.errors import StepFailed
from flowfabric.sdk.worker.attempt import Job
from flowfabric.sdk.worker.calls import call_function, call_in_process
from flowfabric.sdk.worker.processes import RemoteError
from flowfabric.sdk.workflows.durable import CURRENT
from flowfabric.sdk.workflows.recorded_steps import Call

if TYPE_CHECKING:
    from flowfabric.sdk.definitions.tasks import Step

_log = logging.getLogger("flowfabric.workflows")


async def run_step(job: Job, call: Call, step: Step[..., Any], payload: bytes) -> bytes:
    """What the step's function returns, as JSON, or the last error it raises. ``payload`` has the call's
    arguments: every try gets a copy of them, so that it changes nothing that the workflow goes on with."""
    retry, timeout = step.options.retry, step.options.timeout
    tries = 0
    while True:
        try:
            if timeout is None:
                return await _try(job, call, step, payload)
            async with asyncio.timeout(timeout.total_seconds()):
                return await _try(job, call, step, payload)
        except Exception as error:
            remote = error.remote if isinstance(error, RemoteError) else None
            if tries == retry.most or (retry.gives_up(error) if remote is None else remote.permanent):
                if remote is not None:
                    # What will be remembered of it, so that the workflow meets the same error now and later.
                    raise StepFailed(str(error), step=call.name, type=remote.type) from error
                raise
            _log.info("step %s of %r failed and will be retried: %r", call.name, job, error)
            pause_ms = backoff_delay_ms(retry.policy().backoff, tries, random.uniform(0.5, 1.0))
            tries += 1
            await asyncio.sleep(pause_ms / 1000)


async def _try(job: Job, call: Call, step: Step[..., Any], payload: bytes) -> bytes:
    if step.options.run_in == "process":
        value = step.signature.load_result(await call_in_process(job, step, payload, call.name, call.identity))
        return step.signature.dump_result(value)
    # A step is one thing that is remembered whole: what it calls are plain functions.
    plain = CURRENT.set(None)
    try:
        return step.signature.dump_result(await _called(job, call, step, step.signature.unpack(payload)))
    except (SystemExit, KeyboardInterrupt) as error:
        # It would end the loop, and all that runs on it.
        kind = type(error)
        said = f"{kind.__name__}: {error}" if str(error) else kind.__name__
        raise StepFailed(said, step=call.name, type=f"{kind.__module__}.{kind.__qualname__}") from error
    finally:
        CURRENT.reset(plain)


async def _called(job: Job, call: Call, step: Step[..., Any], arguments: dict[str, Any]) -> Any:
    worker = job.worker
    if not step.signature.injected:
        return await call_function(worker, step, arguments, {})
    context = Ctx(job, step.name, call.name, call.identity)
    try:
        async with worker.dependencies.attempt(context) as scope:
            provided = await scope.resolve(step.signature.injected)
            value = await call_function(worker, step, arguments, provided)
        await context.flush()
    except Exception:
        # Before the next try emits: its output starts over behind this.
        await context.stream.settle()
        raise
    except BaseException:
        context.stream.drop()
        raise
    return value
