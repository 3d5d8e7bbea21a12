"""An import: every line of a file is a run, a few at once for each supplier, and retried when the warehouse is busy.

``python importing.py items.csv`` imports the file. After a crash, and when the file comes again, it loads what is
missing and nothing twice.
"""

import asyncio
import csv
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import httpx

from flowfabric import App, Ctx, Depends, Limit, Retry, Run, RunFailed, injected, minutes, seconds

app = App(os.environ.get("STORE_URL", "sqlite:///import.db"))
PER_SUPPLIER = 4
#: How long after a crash a new start waits before it takes over what was under way.
LEASE = seconds(float(os.environ.get("LEASE_S", "30")))


class Refused(Exception):
    """The warehouse does not want the item, today or tomorrow."""


@dataclass
class Item:
    sku: str
    supplier: str
    count: int


async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=os.environ["SERVICES_URL"], timeout=60) as found:
        yield found


@app.task(
    id="item:{item.sku}",
    retry=Retry(5, first=seconds(0.1), give_up_on=(Refused,)),
    limits=[Limit(PER_SUPPLIER, key="item.supplier")],
)
async def load(ctx: Ctx, item: Item, http: Annotated[httpx.AsyncClient, Depends(client)] = injected) -> int:
    body = {"sku": item.sku, "supplier": item.supplier, "count": item.count}
    answer = await http.post("/stock", json=body, headers={"Idempotency-Key": ctx.idempotency_key})
    if answer.status_code == 422:
        raise Refused(answer.text)
    answer.raise_for_status()  # anything else may pass: it is retried
    return item.count


async def outcome(run: Run[int]) -> int | None:
    try:
        return await run.result(timeout=minutes(10))
    except RunFailed as error:
        print(f"failed: {error.reason}")
        return None


async def main(path: str) -> None:
    with Path(path).open() as file:
        items = [Item(row["sku"], row["supplier"], int(row["count"])) for row in csv.DictReader(file)]
    async with app, app.worker(lease_ttl=LEASE):
        runs = await load.start_many(items)  # all of them or none; those that are stored already are found again
        counts = []
        for done in asyncio.as_completed([outcome(run) for run in runs]):
            counts.append(await done)
            if len(counts) % max(len(runs) // 4, 1) == 0:
                print(f"{len(counts)} of {len(runs)}", flush=True)
    loaded = [count for count in counts if count is not None]
    print(f"{len(loaded)} items loaded, {sum(loaded)} pieces")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
