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
