"""An agent that plans a trip: a model thinks, tools search and book, and a person approves what costs money.

``python agent.py Rome`` plans a trip to Rome, prints the model's words as they come and asks before it books.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

import httpx

from flowfabric import App, Ask, Budget, Ctx, Depends, days, gather, injected, minutes, seconds

app = App(os.environ.get("STORE_URL", "sqlite:///agent.db"))
budget = Budget("trips", tokens=1_000)


async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=os.environ["SERVICES_URL"], timeout=60) as found:
        yield found


Http = Annotated[httpx.AsyncClient, Depends(client)]


@dataclass
class Trip:
    choice: str
    ticket: str


@app.step
async def think(ctx: Ctx, prompt: str, http: Http = injected) -> str:
    """What the model says. Its words are stored and printed as they come."""
    words = []
    async with ctx.spend(tokens=300) as call:
        async with http.stream("POST", "/model", json={"prompt": prompt}) as answer:
            async for line in answer.aiter_lines():
                words.append(line)
                await ctx.emit(line + " ")
        call.settle(tokens=10 * len(words))
    return " ".join(words)


@app.task(retry=3)
async def search(kind: str, city: str, http: Http = injected) -> str:
    return (await http.post("/search", json={"kind": kind, "city": city})).raise_for_status().text


@app.task(retry=3)
async def book(ctx: Ctx, choice: str, http: Http = injected) -> str:
    headers = {"Idempotency-Key": ctx.idempotency_key}  # the same if this has to be done again
    return (await http.post("/book", json={"choice": choice}, headers=headers)).raise_for_status().text


@app.workflow(id="trip:{city}", budget=budget)
async def trip(city: str) -> Trip | None:
    plan = await think(f"What do I need for a trip to {city}?")
    found = await gather(*(search.using(key=kind)(kind, city) for kind in plan.split()))
    choice = await think(f"Choose from {', '.join(found)}.")
    if not await Ask("book it?", show=choice, within=days(3), otherwise=False):
        return None
    return Trip(choice, await book(choice))


async def main(city: str) -> None:
    async with app, app.worker(lease_ttl=seconds(3)):
        run = await trip.start(city)
        printing = asyncio.create_task(print_words(run.id))
        for ask in await app.asks(run, wait=minutes(1)):
            print(f"\n{ask.question} {ask.show}")
            await ask.answer(await asyncio.to_thread(sys.stdin.readline) == "yes\n")
        found = await run.result(timeout=minutes(1))
        await printing
    print(f"\n{found.ticket}" if found else "\nnothing was booked")


async def print_words(run_id: str) -> None:
    async for frame in app.run(run_id).frames():
        print(frame.text, end="", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
