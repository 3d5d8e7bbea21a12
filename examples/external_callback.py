"""A workflow waits for somebody outside: it sends a link away, and goes on when a webhook brings it back."""

import asyncio
import json
from dataclasses import dataclass

from scratch import store_url

from flowfabric import App, Ask, BadAnswer, Ctx, EngineError, gather, hours, seconds

app = App(store_url())


@dataclass
class Payment:
    reference: str
    cents: int


class PaymentProvider:
    """Stands in for a company that calls back some time later, or several times, or not at all."""

    def __init__(self) -> None:
        self.links: asyncio.Queue[str] = asyncio.Queue()

    async def request(self, order: str, link: str) -> None:
        print(f"[provider] asked to collect the money for order {order}")
        await self.links.put(link)


provider = PaymentProvider()


@app.task(retry=5)
async def request_payment(order: str, run_id: str) -> None:
    """Send the link of the open question away. The token in it is signed, and good for this question alone."""
    [ask] = await app.asks(run_id, wait=seconds(30))
    await provider.request(order, await ask.link())


@app.step
def ship(order: str, payment: Payment) -> str:
    return f"order {order} shipped, {payment.cents / 100:.2f} paid as {payment.reference}"


@app.workflow
async def sell(ctx: Ctx, order: str) -> str:
    payment, _ = await gather(
        Ask("payment", Payment, show={"order": order}, within=hours(1)),
        request_payment(order, ctx.run_id),
    )
    return await ship(order, payment)


async def webhook(link: str, body: str) -> None:
    """What a web application does with ``POST /callbacks/{link}``; see fastapi_app.py for a real one."""
    try:
        answered = await app.answer(link, json.loads(body), identity="provider")
    except BadAnswer as error:
        print(f"[webhook]  400: {error}")
    except EngineError as error:
        print(f"[webhook]  403: {error.code}")
    else:
        print(f"[webhook]  200{': answered before' if answered.repeated else ''}")


async def main() -> None:
    async with app, app.worker():
        run = await sell.start("A-17")
        link = await provider.links.get()
        print(f"[order]    {await run.status()}: it holds no worker, for an hour if need be")

        body = json.dumps({"reference": "P-99", "cents": 4_200})
        forged = link[:-4] + ("AAAA" if link[-4:] != "AAAA" else "BBBB")
        await webhook(forged, body)
        await webhook(link, '{"reference": "P-99", "cents": "a lot"}')
        await webhook(link, body)
        print(f"[order]    {await run.result(timeout=seconds(30))}")
        await webhook(link, body)  # providers like to call twice


if __name__ == "__main__":
    asyncio.run(main())
