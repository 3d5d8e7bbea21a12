"""Failures that pass are tried again, failures that do not are given up, and what runs can be cancelled."""

import asyncio
from datetime import timedelta

from scratch import store_url

from flowfabric import App, Ctx, Retry, RunCancelled, RunFailed, seconds

app = App(store_url())

soon = timedelta(milliseconds=100)


@app.task(retry=Retry(3, first=soon, give_up_on=(ValueError,)))
async def charge(ctx: Ctx, card: str) -> str:
    print(f"  attempt {ctx.attempt} to charge {card!r}")
    if not card.isdigit():
        raise ValueError("that is not a card number")
    if ctx.attempt < 3:
        raise ConnectionError("the bank does not answer")
    return f"charged in attempt {ctx.attempt}"


@app.task(timeout=seconds(60))
async def watch(ctx: Ctx) -> None:
    try:
        for minute in range(1_000):
            await ctx.emit(f"minute {minute}")
            await asyncio.sleep(60)
    finally:
        print("  the task releases it")


async def main() -> None:
    async with app, app.worker():
        print("a bank that answers the third time:")
        run = await charge.start("4242")
        print(" ", await run.result())

        print("an error that another attempt would only meet again:")
        run = await charge.start("none")
        try:
            await run.result()
        except RunFailed as error:
            print(f"  {error.error_type}, {error.category}: {error.reason}")

        print("a task that would go on for hours:")
        watching = await watch.start()
        async for frame in watching.frames():
            print(f"  it says: {frame.text}")
            await watching.cancel("seen enough")
            break
        try:
            await watching.result()
        except RunCancelled as error:
            print(f"  cancelled: {error.reason}")


if __name__ == "__main__":
    asyncio.run(main())
