"""A shop: a request writes its order and starts the order's workflow in one transaction.

``python service.py 8000`` serves it. The shop's table and the runs are in one database, SQLite or PostgreSQL.
"""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import httpx
import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from flowfabric import App, Ask, Ctx, Depends, ResultTimeout, days, injected, seconds

URL = os.environ.get("STORE_URL", "sqlite:///shop.db")
app = App(URL)
database = create_async_engine(
    URL.replace("sqlite:", "sqlite+aiosqlite:").replace("postgresql:", "postgresql+psycopg:")
)


class Base(DeclarativeBase):
    pass


class OrderRow(Base):
    __tablename__ = "shop_order"
    number: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    euros: Mapped[int]
    run_id: Mapped[str]


class Order(BaseModel):
    number: int
    item: str
    euros: int


class Answer(BaseModel):
    yes: bool


def services() -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=os.environ["SERVICES_URL"], timeout=60)


async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with services() as found:
        yield found


Http = Annotated[httpx.AsyncClient, Depends(client)]


@app.step
async def charge(ctx: Ctx, number: int, euros: int, http: Http = injected) -> str:
    headers = {"Idempotency-Key": ctx.idempotency_key}
    return (await http.post("/charge", json={"order": number, "euros": euros}, headers=headers)).raise_for_status().text


@app.task(retry=5)
async def ship(ctx: Ctx, number: int, item: str, http: Http = injected) -> str:
    headers = {"Idempotency-Key": ctx.idempotency_key}
    return (await http.post("/ship", json={"order": number, "item": item}, headers=headers)).raise_for_status().text


@app.workflow(id="order:{order.number}")
async def fulfil(order: Order) -> str:
    if order.euros > 1000 and not await Ask("sell?", show=order, of={"ann"}, within=days(3), otherwise=False):
        return "declined"
    receipt = await charge(order.number, order.euros)
    return f"{receipt}, {await ship(order.number, order.item)}"


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with app, app.worker(lease_ttl=seconds(3)):
        async with database.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        yield
    await database.dispose()


web = FastAPI(lifespan=lifespan)


@web.post("/orders", status_code=202)
async def take(order: Order) -> dict[str, str]:
    async with AsyncSession(database) as session, session.begin():
        known = await session.get(OrderRow, order.number)
        if known is not None:
            return {"run": known.run_id}
        run = await fulfil.using(tx=session).start(order)  # one more row in this transaction
        session.add(OrderRow(**order.model_dump(), run_id=run.id))
        await session.flush()
        async with services() as http:
            credit = await http.get(f"/credit/{order.number}")
        if credit.status_code != 200:
            raise HTTPException(402, "no credit")  # rolls both back
    return {"run": run.id}


@web.get("/orders")
async def orders() -> list[int]:
    async with AsyncSession(database) as session:
        return sorted(await session.scalars(select(OrderRow.number)))


@web.get("/orders/{number}")
async def look(number: int) -> dict[str, str]:
    run = app.run(await run_of(number), fulfil)
    try:
        return {"status": "completed", "result": await run.result(timeout=seconds(0.1))}
    except ResultTimeout:
        status = await run.status()
        # A moment after the commit it is still pending, and there is nothing to explain.
        return {"status": status, "why": "" if status == "pending" else (await run.explain()).sentence}


@web.post("/orders/{number}/answer")
async def answer(number: int, given: Answer) -> dict[str, int]:
    asks = await app.asks(await run_of(number), wait=seconds(10))
    for ask in asks:
        await ask.answer(given.yes, by="ann")
    return {"answered": len(asks)}


async def run_of(number: int) -> str:
    async with AsyncSession(database) as session:
        row = await session.get(OrderRow, number)
    if row is None:
        raise HTTPException(404, "no such order")
    return row.run_id


if __name__ == "__main__":
    uvicorn.run(web, port=int(sys.argv[1]), log_level="warning")
