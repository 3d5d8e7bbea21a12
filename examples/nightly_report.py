"""A report every night: started once, whatever number of workers there is, and out of turn if somebody asks."""

import asyncio
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from scratch import store_url

from flowfabric import App, gather, seconds

app = App(store_url())


@app.task(retry=3)
async def count_orders(shop: str) -> int:
    return len(shop) * 7


@app.cron("30 2 * * *", tz="Europe/Paris", overlap="skip", catch_up="last")
@app.workflow
async def nightly_report() -> str:
    shops = ("Lyon", "Nantes", "Paris")
    counts = await gather(*(count_orders.using(key=shop)(shop) for shop in shops))
    return ", ".join(f"{shop}: {count}" for shop, count in zip(shops, counts, strict=True))


async def main() -> None:
    async with app, app.worker(), app.worker():
        schedule = await app.schedules.get("nightly_report")
        assert schedule.next_at_ms is not None
        following = datetime.fromtimestamp(schedule.next_at_ms / 1000, UTC).astimezone(ZoneInfo("Europe/Paris"))
        print(f"next: {following:%Y-%m-%d}, at {following:%H.%M} in Paris, with two workers that could start it")
        run = await app.schedules.trigger("nightly_report")
        assert run is not None
        print("now: ", await run.result(timeout=seconds(30)))
        await app.schedules.pause("nightly_report")
        print("next, while paused:", (await app.schedules.get("nightly_report")).next_at_ms)
        await app.schedules.resume("nightly_report")


if __name__ == "__main__":
    asyncio.run(main())
