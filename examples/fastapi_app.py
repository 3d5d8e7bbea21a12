"""A web application that starts runs inside the transactions of its requests: no order without its mail, and no mail
without its order. Serve it with ``uvicorn fastapi_app:web``; run as a program it sends itself some requests.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from scratch import store_url
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from flowfabric import App, seconds

app = App(store_url())
# The same database, for the application's own tables.
database = create_async_engine(
    app.url.replace("sqlite:", "sqlite+aiosqlite:").replace("postgresql:", "postgresql+psycopg:")
)


class Order(BaseModel):
    item: str
    cents: int


@app.task(retry=5)
async def send_mail(order: Order) -> str:
    return f"thank you for ordering {order.item}"


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with app, app.worker():  # or let a process of its own work: `app.run_worker()`
        async with database.begin() as connection:
            await connection.execute(text("CREATE TABLE IF NOT EXISTS example_order (item TEXT, cents INTEGER)"))
        yield
    await database.dispose()


web = FastAPI(lifespan=lifespan)


@web.post("/orders", status_code=202)
async def take_order(order: Order) -> dict[str, str]:
    async with AsyncSession(database) as session, session.begin():
        await session.execute(text("INSERT INTO example_order VALUES (:item, :cents)"), order.model_dump())
        run = await send_mail.using(tx=session).start(order)  # one more row in this transaction
        if order.cents > 100_000:
            raise HTTPException(402, "that is too much")  # rolls both back
    return {"run": run.id}


@web.get("/runs/{run_id}")
async def look(run_id: str) -> dict[str, str]:
    run = app.run(run_id, send_mail)
    return {"result": await run.result(timeout=seconds(10))}


async def main() -> None:
    transport = httpx.ASGITransport(web)
    async with lifespan(web), httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        for item, cents in (("tea", 500), ("castle", 90_000_000)):
            answer = await client.post("/orders", json={"item": item, "cents": cents})
            print(f"POST /orders {item}: {answer.status_code}")
            if "run" in answer.json():
                print(f"GET /runs/…: {(await client.get('/runs/' + answer.json()['run'])).json()}")
        async with database.connect() as connection:
            print("orders:", [item for (item,) in await connection.execute(text("SELECT item FROM example_order"))])
        print("runs:  ", [str(await run.status()) async for run in app.runs(name="send_mail")])


if __name__ == "__main__":
    asyncio.run(main())
