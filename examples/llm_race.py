"""Three models race. The first whole answer wins, the others are cancelled, and tokens are followed while they come."""

import asyncio

import model
from scratch import store_url

from flowfabric import App, Ctx, Run, first, seconds

app = App(store_url())

PROMPT = "What is a durable execution, in one sentence?"
ANSWER = "Work that is written down before it is done, and goes on elsewhere when its worker is gone."
#: Name, and how long the stand-in takes to the first token and between tokens.
MODELS = {"hare": (0.1, 0.02), "hedgehog": (0.5, 0.2), "snail": (1.0, 0.5)}


@app.task(retry=2, timeout=seconds(60))
async def answer(ctx: Ctx, name: str, prompt: str) -> str:
    tokens = model.stream(prompt) if model.is_real() else model.stand_in(ANSWER, *MODELS[name])
    async for token in tokens:
        await ctx.emit(token)  # durable, in order, and live; readers may come late
    return ctx.stream.text.strip()


@app.workflow
async def race(prompt: str) -> str:
    return await first(*(answer.using(key=name, tags={"model": name})(name, prompt) for name in MODELS))


async def runner(name: str, run: Run[str]) -> Run[str]:
    """The race's run of one model, once it has begun."""
    while True:
        async for found in app.runs(tags={"ff.run": run.id, "model": name}):
            return found
        await asyncio.sleep(0.02)


async def main() -> None:
    async with app, app.worker():
        run = await race.start(PROMPT)
        runs = {name: await runner(name, run) for name in MODELS}
        print(f"hare, live: {PROMPT}")
        async for frame in runs["hare"].frames():
            print(frame.text, end="", flush=True)
        print(f"\nthe race gives: {await run.result(timeout=seconds(60))}")
        for name, each in runs.items():
            print(f"{name + ':':10}", await each.status())


if __name__ == "__main__":
    asyncio.run(main())
