"""A worker process for tests: ``python -m tests.sdk.program URL [lease ms] [grace ms]``."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

from flowfabric.sdk.app import App
from flowfabric.sdk.context import Ctx
from flowfabric.sdk.errors import StepFailed
from flowfabric.sdk.options import Retry

app = App(sys.argv[1] if __name__ == "__main__" else "memory://")


@app.task
async def die(log: str) -> None:
    """Take the worker along."""
    with Path(log).open("a") as file:
        file.write(f"{os.getpid()}\n")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task
async def wait(log: str, seconds: float) -> str:
    """Say who runs it, and take some time."""
    with Path(log).open("a") as file:
        file.write("began\n")
    await asyncio.sleep(seconds)
    return "waited"


@app.task
def wait_in_thread(log: str, seconds: float) -> str:
    """The same where nobody can cancel it."""
    with Path(log).open("a") as file:
        file.write("began\n")
    time.sleep(seconds)
    return "waited"


@app.task(run_in="process")
def square(n: int) -> int:
    """In a process of the worker's."""
    return n * n


@app.task(run_in="process")
async def square_slowly(n: int) -> int:
    """A coroutine function there."""
    await asyncio.sleep(0)
    return n * n


@app.task(run_in="process", timeout=timedelta(seconds=1))
def for_ever() -> None:
    """Until it is killed."""
    while True:
        pass


@app.task(run_in="process")
def quit_process() -> None:
    """Take the process along."""
    os._exit(7)


@app.task(run_in="process")
def talk(n: int) -> int:
    """What is printed does not get in the way."""
    print("hello", flush=True)  # noqa: T201
    if n < 0:
        raise ValueError(f"{n} is negative")
    return n


@app.task(run_in="process")
def until_cancelled(log: str, ctx: Ctx) -> None:
    """Until it is told to stop."""
    with Path(log).open("a") as file:
        file.write(f"{ctx.run_id} {ctx.attempt} {ctx.tags.get('user.team')} {ctx.idempotency_key} {ctx.cancelled}\n")
        file.flush()
        while not ctx.cancelled:
            time.sleep(0.01)
        file.write(f"told {ctx.lease_healthy}\n")


@app.task(run_in="process")
def logs_in_process(fails: bool, ctx: Ctx) -> None:
    """Log, and fail if told to."""
    ctx.log.info("in %s", "a process")
    if fails:
        raise ValueError("told to")


@app.task(run_in="process")
async def raises_there(on_the_loop: bool, name: str) -> None:
    """Raise what is no ``Exception``."""
    error = {each.__name__: each for each in (SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError)}
    if on_the_loop:
        await asyncio.sleep(0)
    raise error[name]("no")


@app.step(run_in="process")
def where_it_runs(n: int, ctx: Ctx) -> tuple[int, str]:
    """The process, and whether a step is known as one there."""
    ctx.log.info("as a step")
    return os.getpid(), f"{n} {ctx.idempotency_key.partition(':')[2]}"


@app.step(run_in="process", retry=Retry(3, first=timedelta(0), give_up_on=(ValueError,)))
def fails_there(log: str, permanent: bool) -> None:
    """Fail, for good or not."""
    with Path(log).open("a") as file:
        file.write("tried\n")
    raise ValueError("no") if permanent else OSError("not now")


@app.workflow
async def steps_in_processes(log: str) -> tuple[int, str, list[str]]:
    """Steps there, and what becomes of their errors."""
    process, told = await where_it_runs(1)
    errors = []
    for permanent in (True, False):
        try:
            await fails_there(log, permanent)
        except StepFailed as error:
            errors.append(str(error))
    return process, told, errors


@app.task(run_in="process")
def deaf(ctx: Ctx) -> None:
    """It never looks."""
    while True:
        time.sleep(0.01)


@app.task(run_in="process")
async def emits_in_process(ctx: Ctx) -> None:
    """Ask for what is not there."""
    await ctx.emit("hello")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    app.run_worker(
        lease_ttl=timedelta(milliseconds=int(sys.argv[2]) if len(sys.argv) > 2 else 30_000),
        drain_grace=timedelta(milliseconds=int(sys.argv[3]) if len(sys.argv) > 3 else 30_000),
    )
