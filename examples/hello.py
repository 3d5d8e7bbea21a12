"""The smallest program: a task, a worker, a result."""

import asyncio

from scratch import store_url

from flowfabric import App, seconds

app = App(store_url())


@app.task
async def greet(name: str) -> str:
    return f"Hello, {name}!"


async def main() -> None:
    async with app:
        run = await greet.start("world")  # it is in the database now, and nobody works on it
        print("started:", await run.status())
        async with app.worker():  # usually a process of its own
            print("result: ", await run.result(timeout=seconds(30)))
        print("ended:  ", await run.status())


if __name__ == "__main__":
    asyncio.run(main())
