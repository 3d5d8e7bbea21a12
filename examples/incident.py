"""Remediation that outlives its responders: one is killed in the middle of a fix, another one goes on from there.

Its workers are processes of their own (``incident.py responder-a``). The first one dies as hard as a process can.
"""

import asyncio
import os
import signal
import sys
from dataclasses import dataclass
from typing import Literal

from scratch import store_url

from flowfabric import App, Ask, Ctx, days, seconds

app = App(store_url())
ME = sys.argv[1] if len(sys.argv) > 1 else "supervisor"


def say(text: str) -> None:
    print(f"[{ME}] {text}", flush=True)


@dataclass
class Decision:
    action: Literal["fail over", "roll back", "leave it"]
    by: str


@app.step
async def diagnose(service: str) -> str:
    say(f"diagnose {service}")
    return "disk full" if service == "orders" else "no idea"


@app.step
async def apply_fix(ctx: Ctx, service: str, fix: str) -> str:
    say(f"apply to {service}: {fix}")
    if ME == "responder-a":
        os.kill(os.getpid(), signal.SIGKILL)  # nothing is cleaned up, nobody is told
    # The key is the same in every attempt: a service that takes it does the same thing once.
    return ctx.idempotency_key.partition(":")[2]


@app.step
async def verify(service: str) -> bool:
    say(f"verify {service}")
    return True


@app.workflow
async def remediate(service: str) -> str:
    cause = await diagnose(service)
    fix = {"disk full": "delete old logs"}.get(cause)
    if fix is None:
        decision = await Ask(
            f"{service} is down and nobody knows why. What now?",
            Decision,
            show={"service": service, "diagnosis": cause},
            of="on-call",
            within=days(1),
            otherwise=Decision("leave it", by="nobody"),
        )
        if decision.action == "leave it":
            return f"{service} left to people"
        fix = f"{decision.action} (decided by {decision.by})"
    await apply_fix(service, fix)
    return f"{service}: {fix}" if await verify(service) else f"{service} is still down"


async def responder(name: str) -> asyncio.subprocess.Process:
    """A worker in a process of its own."""
    variables = {**os.environ, "FF_URL": app.url}
    return await asyncio.create_subprocess_exec(sys.executable, __file__, name, env=variables)


async def main() -> None:
    async with app:
        run = await remediate.start("orders")
        first = await responder("responder-a")
        say(f"responder-a ended with code {await first.wait()}; the run is still {await run.status()}")
        second = await responder("responder-b")
        say(f"result: {await run.result(timeout=seconds(30))}")

        run = await remediate.start("search")
        [ask] = await app.asks(run, wait=seconds(30))
        say(f"asked {', '.join(ask.of)}: {ask.question}")
        await ask.answer({"action": "fail over", "by": "Ada"})
        say(f"result: {await run.result(timeout=seconds(30))}")

        second.terminate()  # a worker that is told to stop finishes running attempts
        say(f"responder-b ended with code {await second.wait()}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        # The first one dies in the middle: its lease is short, so that the other need not wait for long.
        app.run_worker(name=ME, lease_ttl=seconds(1 if ME == "responder-a" else 30))
    else:
        asyncio.run(main())
