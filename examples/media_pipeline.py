"""Work that needs something special waits for a worker that has it: transcribing needs a GPU, the rest does not."""

import asyncio

from scratch import store_url

from flowfabric import App, Ctx, gather, seconds

app = App(store_url())


@app.task(needs={"gpu"}, retry=2)
async def transcribe(ctx: Ctx, file: str) -> str:
    for second in range(0, 30, 10):
        await ctx.progress(second * 100 // 30, "listening")
        await asyncio.sleep(0.05)
    return f"words of {file}"


@app.task
async def thumbnail(file: str) -> str:
    return f"{file}.png"


@app.task
def summarize(text: str) -> str:  # a plain def runs in a thread
    return text.upper()


@app.workflow
async def publish(file: str) -> dict[str, str]:
    picture, text = await gather(thumbnail(file), transcribe(file))
    return {"picture": picture, "summary": await summarize(text)}


async def main() -> None:
    async with app, app.worker(name="cheap"):
        runs = await publish.start_many(["talk.mp3", "song.mp3"])
        alone = await transcribe.start("memo.mp3")
        why = await alone.explain()
        print(f"{alone.id}: {why.gate}")
        print(f"  {why.sentence}")

        async with app.worker(name="big", capabilities={"gpu"}):
            print("a GPU arrives:     ", await alone.result(timeout=seconds(30)))
            for run in runs:
                print("published:         ", await run.result(timeout=seconds(30)))


if __name__ == "__main__":
    asyncio.run(main())
