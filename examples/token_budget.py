"""A budget that pauses and asks: five summaries share 1,000 tokens, and a person decides when they run out."""

import asyncio
import uuid

import model
from scratch import store_url

from flowfabric import App, Budget, Ctx, RunFailed, seconds

app = App(store_url())

BOOKS = {"Emma": 250, "Ulysses": 260, "Dracula": 240, "Faust": 230, "Candide": 300}


@app.task(retry=2)
async def summarize(ctx: Ctx, book: str) -> str:
    # First reserve what it may cost at most: many at once can never spend more than there is.
    async with ctx.spend(tokens=300) as call:
        if model.is_real():
            async for token in model.stream(f"Summarize {book} in one sentence."):
                await ctx.emit(token)
        call.settle(tokens=BOOKS[book])  # the rest comes back
    return ctx.stream.text or f"{book} in one sentence"


@app.workflow
async def summaries(books: list[str]) -> list[str]:
    found = []
    for book in books:  # children pay from the budget of the workflow
        try:
            found.append(await summarize.using(key=book)(book))
        except RunFailed as error:
            found.append(f"{book} was left out, {error.reason.partition(':')[0]}")
    return found


async def main() -> None:
    budget = Budget(f"batch {uuid.uuid4()}", tokens=1_000, on_breach="ask")
    async with app, app.worker():
        run = await summaries.using(budget=budget).start(list(BOOKS))
        for decision in (True, False):
            [ask] = await app.asks(run, wait=seconds(60))
            [spent] = ask.show.values()
            print(f"{ask.question.partition(' batch')[0]} 1,000 tokens? {spent['tokens']['spent']:.0f} are spent")
            print("  owner:", "yes, this once" if decision else "no")
            await ask.answer(decision)
        for line in await run.result(timeout=seconds(60)):
            print("-", line)


if __name__ == "__main__":
    asyncio.run(main())
