"""A store with a day in the life of a shop in it: what the console's tests and its pictures look at.

python -m tests.console.support.seeding sqlite:////tmp/shop.db
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import uuid
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec

from flowfabric import (
    AnyOf,
    App,
    Ask,
    Budget,
    ClaimPolicy,
    Cron,
    Ctx,
    FlowGraph,
    Quorum,
    Retry,
    RunFailed,
    days,
    gather,
    seconds,
)
from flowfabric.engine import Engine
from flowfabric.model.streams.frames import DurableSummary, Frame, FrameContent
from flowfabric.model.streams.logs import LOG_FRAME, LogLine, packed
from tests.console.support.troubled import troubled
from tests.schedules import every

NAMESPACE = "shop"
MINUTE = 60_000
#: Lanes with how much of their work is done, and how fast.
KINDS = {
    "charge_card": "payments",
    "send_receipt": "mail",
    "resize_image": "media",
    "index_product": "search",
    "sync_stock": "default",
}


class Seeded(NamedTuple):
    """Ids of what tests look for."""

    deploy: str
    ask: str
    budget_ask: str
    failed: str
    delayed: str
    streaming: str
    completed: str
    flow: str
    paused_lane: str
    budget: str
    troubled: str
    #: A workflow whose child failed twice, inside a library.
    shipment: str


@dataclass
class Verdict:
    """What an approver of a deployment answers."""

    ok: bool
    share: Literal["5 %", "50 %", "everybody"] = "everybody"
    note: str = ""
    retries: int = 0


def make_app(url: str) -> App:
    """The shop's own code."""
    app = App(url, namespace=NAMESPACE)

    @app.task
    async def build(ctx: Ctx, commit: str) -> str:
        for line in ("fetching\n", "compiling\n", "packing\n"):
            await ctx.emit(line)
        return f"shop:{commit[:7]}"

    @app.task
    async def check(image: str, suite: str) -> int:
        return len(image) * len(suite)

    @app.step
    def roll_out(image: str, share: int) -> str:
        return f"{image} on {share} % of the machines"

    @app.workflow
    async def deploy(commit: str) -> str:
        image = await build(commit)
        suites = ("unit", "integration", "end to end")
        passed = await gather(*(check.using(key=suite)(image, suite) for suite in suites))
        await roll_out(image, 5)
        verdict = await Ask(
            "deploy to everybody?",
            Verdict,
            show={"image": image, "tests": dict(zip(suites, passed, strict=True)), "changes": ["#812 faster search"]},
            of={"alice", "bob", "carol"},
            need=2,
            within=days(1),
        )
        return await roll_out(image, 100) if verdict.ok else f"not deployed: {verdict.note}"

    @app.task
    async def summarize(ctx: Ctx, book: str) -> str:
        async with ctx.spend(tokens=300, usd="0.02") as call:
            call.settle(tokens=250, usd="0.015")
        return f"{book} in one sentence"

    @app.workflow
    async def refund(order: str) -> bool:
        return await Ask(f"refund order {order}?", bool, show={"order": order, "amount": 49.9}, of={"support"})

    @app.task(retry=Retry(1, seconds(0)))
    async def book_courier(address: str) -> Any:
        return json.loads(address)

    @app.workflow
    async def ship(order: str) -> str:
        packed = await check.using(key=order)(order, "pack")
        await book_courier('{"street": ')
        return f"{packed} parcels of {order}"

    return app


def _clock(start: int) -> Any:
    class Clock:
        now = start

        def __call__(self) -> int:
            return self.now

    return Clock()


async def _past(url: str, now: int, amount: int, chance: random.Random) -> dict[str, str]:
    """Executions of the last hour, most of them done."""
    clock = _clock(now - 58 * MINUTE)
    found: dict[str, str] = {}
    async with await Engine.open(url, clock=clock, single_node=True) as engine:
        names = list(KINDS)
        batch = max(1, amount // 58)
        while clock.now < now - 2 * MINUTE:
            clock.now += MINUTE
            swing = 1 + (clock.now // MINUTE) % 5
            made: list[dict[str, Any]] = []
            for _ in range(max(1, batch * swing // 3)):
                kind = chance.choice(names)
                made.append(
                    {
                        "namespace": NAMESPACE if chance.random() < 0.8 else "warehouse",
                        "lane_id": KINDS[kind],
                        "execution_kind": kind,
                        "input_payload": msgspec.json.encode(
                            {"order": chance.randrange(10_000), "customer": "c-17", "items": ["tea", "cup"]}
                        ),
                        "payload_encoding": "json",
                        "tags": {"shop.team": chance.choice(("red", "blue"))},
                        "creator_identity": "checkout",
                    }
                )
            await engine.create_executions(made)
            await engine.record_sample(pulse=await engine.read_pulse())
            for lane in dict.fromkeys(KINDS.values()):
                policy = ClaimPolicy(f"{lane}-worker", f"{lane}-worker-1", 120_000)
                for handle in await engine.claim_many(lane, policy=policy, limit=1_000):
                    clock.now += 3
                    await _finish(engine, handle, chance, found)
        clock.now = now - MINUTE
        found["troubled"] = await troubled(engine, clock, NAMESPACE)
    return found


async def _finish(engine: Engine, handle: Any, chance: random.Random, found: dict[str, str]) -> None:
    luck = chance.random()
    identity = str(handle.execution_id) if hasattr(handle, "execution_id") else ""
    if luck < 0.9:
        await engine.complete(
            handle, msgspec.json.encode({"ok": True, "took": round(luck * 100), "page": "https://shop.example"})
        )
        found.setdefault("completed", identity)
    elif luck < 0.97:
        await engine.fail(handle, "CardDeclined: the bank said no (insufficient_funds)", "permanent")
        found.setdefault("failed", identity)
    else:
        await engine.cancel(handle, "the customer changed their mind")


async def _running(engine: Engine, now: int) -> dict[str, str]:
    """What is under way right now: leases, a stream, delays, retries, a lane that is paused."""
    found = {}
    for number in range(6):
        await engine.create_execution(
            namespace=NAMESPACE,
            lane_id="media",
            execution_kind="transcode_video",
            input_payload=msgspec.json.encode({"file": f"talk-{number}.mp4"}),
        )
    handles = await engine.claim_many("media", policy=ClaimPolicy("media-worker", "media-worker-7", 3_600_000), limit=4)
    answer = await engine.create_execution(
        namespace=NAMESPACE,
        lane_id="llm",
        execution_kind="answer_customer",
        input_payload=msgspec.json.encode({"question": "Where is my parcel?", "model": "hedgehog"}),
        tags={"llm.model": "hedgehog"},
    )
    [talking] = await engine.claim_many("llm", policy=ClaimPolicy("llm-worker", "llm-worker-1", 3_600_000))
    for word in ["Your", "parcel", "left", "the", "warehouse", "this", "morning", "and", "arrives", ""]:
        await engine.append_frame(talking, Frame(word.encode() + b" "))
    await engine.append_frame(
        talking, Frame(b'{"tokens": 9, "stage": "drafting", "confidence": 0.93}', mode=DurableSummary())
    )
    lines = [
        LogLine(now - 4_000, "INFO", "asking hedgehog with 212 tokens of context"),
        LogLine(now - 2_500, "WARNING", "the carrier's tracking page answered after 1.4 s", "look_up_parcel"),
        LogLine(now - 900, "ERROR", "no translation for 'Abholstation'; the answer stays in English"),
    ]
    [data] = packed(lines, 10_000)
    await engine.append_frame(talking, Frame(data, frame_type=LOG_FRAME, content=FrameContent.JSON))
    found["streaming"] = str(answer.execution_id)
    delayed = await engine.create_execution(
        namespace=NAMESPACE,
        lane_id="mail",
        execution_kind="send_reminder",
        delay_until=now + 3 * 3_600_000,
        input_payload=b'{"template": "abandoned cart"}',
        payload_encoding="json",
    )
    found["delayed"] = str(delayed.execution_id)
    await engine.create_execution(
        namespace=NAMESPACE,
        lane_id="media",
        execution_kind="transcribe",
        policy={"routing_requirements": {"required_capabilities": ["gpu"]}},
    )
    for number in range(9):
        await engine.create_execution(
            namespace=NAMESPACE,
            lane_id="exports",
            execution_kind="export_orders",
            input_payload=msgspec.json.encode({"month": number + 1}),
        )
    await engine.set_lane_state("exports", "paused", "the partner's server is being moved")
    retried = await engine.create_execution(
        namespace=NAMESPACE,
        lane_id="payments",
        execution_kind="settle_batch",
        policy={"retry_policy": {"max_retries": 5, "backoff": {"type": "fixed", "delay_ms": 600_000}}},
    )
    [handle] = await engine.claim_many("payments", policy=ClaimPolicy("payments-worker", "payments-worker-2", 60_000))
    await engine.fail(handle, "ConnectionError: the bank does not answer")
    found["retried"] = str(retried.execution_id)
    for name, lanes, capabilities in (
        ("media-worker", ["media"], []),
        ("mail-worker", ["mail", "default"], []),
        ("payments-worker", ["payments", "search"], ["pci"]),
        ("llm-worker", ["llm"], ["gpu", "eu"]),
    ):
        await engine.register_worker(
            worker_id=name,
            worker_instance_id=f"{name}-1",
            lanes=lanes,
            capabilities=capabilities,
            liveness_ttl_ms=86_400_000,
            namespace=NAMESPACE,
        )
    assert handles
    return found


async def _flow(engine: Engine) -> str:
    """A graph with a quorum and a race, partly done."""

    def node(kind: str) -> dict[str, Any]:
        return {"lane_id": "etl", "execution_kind": kind, "namespace": NAMESPACE}

    parts = [f"shard {number}" for number in range(5)]
    models = ["hare", "hedgehog", "snail"]
    nodes = {
        "fetch": node("fetch_orders"),
        "split": node("split"),
        "quorum": node("merge_shards"),
        "pick": node("pick_answer"),
        "publish": node("publish_report"),
        "mail": node("mail_report"),
    }
    nodes |= {part: node("count_shard") for part in parts} | {name: node(f"ask_{name}") for name in models}
    edges = [("fetch", "split"), *(("split", part) for part in parts), *((part, "quorum") for part in parts)]
    edges += [*(("split", name) for name in models), *((name, "pick") for name in models)]
    edges += [("quorum", "publish"), ("pick", "publish"), ("publish", "mail")]
    graph = FlowGraph(
        nodes=nodes,
        edges=edges,
        groups={"quorum": Quorum(3), "pick": AnyOf()},
        flow_kind="nightly_report",
        namespace=NAMESPACE,
    )
    made = await engine.submit_flow(graph)
    policy = ClaimPolicy("etl-worker", "etl-worker-1", 3_600_000)
    for _ in range(2):
        for handle in await engine.claim_many("etl", policy=policy, limit=1):
            await engine.complete(handle, b'"done"')
            await engine.run_due()
    kinds = {str(made.execution_ids[name]): name for name in nodes}
    claimed = await engine.claim_many("etl", policy=policy, limit=8)
    shards = sorted(
        (kinds[str(each.execution_id)], number)
        for number, each in enumerate(claimed)
        if kinds[str(each.execution_id)].startswith("shard")
    )
    for name, number in shards:
        if name in ("shard 0", "shard 3"):
            await engine.complete(claimed[number], b"42")
        elif name == "shard 2":
            await engine.fail(claimed[number], "ValueError: shard 2 is empty", "permanent")
    await engine.run_due()
    return str(made.flow_id)


async def _budgets(engine: Engine) -> str:
    """Budgets of all sorts: fine, nearly used up, beyond."""
    first = ""
    for name, tokens, used, cents in (
        ("tenant:acme", 1_000_000, 940_000, 8_000),
        ("tenant:globex", 500_000, 120_000, 900),
        ("team:search", 200_000, 210_000, 4_100),
    ):
        identity = str(uuid.uuid5(uuid.NAMESPACE_URL, name))
        await engine.create_budget(
            budget_id=identity,
            scope_type="named",
            scope_id=name,
            dimensions=["tokens", "usd"],
            on_hard_limit="fail",
            enforcement_mode="warn" if name.startswith("team") else "strict",
            hard_limits=[tokens, 100_000_000],
            soft_limits=[tokens // 2, 0],
            reset_interval_ms=86_400_000,
        )
        await engine.report_usage_admin(budget_id=identity, dimensions=["tokens", "usd"], deltas=[used, cents * 10_000])
        first = first or identity
    await engine.create_quota_policy(
        quota_policy_id=str(uuid.uuid5(uuid.NAMESPACE_URL, "bank")),
        window_seconds=60,
        max_requests_per_window=100,
        max_concurrent=8,
    )
    return first


async def _schedules(engine: Engine) -> None:
    await engine.put_schedule(
        "nightly report",
        spec=Cron("0 6 * * mon-fri", "Europe/Paris"),
        execution_kind="publish_report",
        namespace=NAMESPACE,
        lane_id="etl",
    )
    await engine.put_schedule("stock", spec=every(15 * MINUTE), execution_kind="sync_stock", namespace=NAMESPACE)
    await engine.put_schedule(
        "newsletter",
        spec=Cron("30 9 * * 1", "UTC"),
        execution_kind="send_newsletter",
        namespace=NAMESPACE,
        lane_id="mail",
    )
    await engine.pause_schedule("newsletter", NAMESPACE)


async def seed(url: str, amount: int = 240) -> Seeded:
    """Fill a store; what is in it afterwards is the same every time, but for ids and times."""
    chance = random.Random(7)
    app = make_app(url)
    async with app:
        engine = app.engine
        with contextlib.suppress(Exception):
            await engine.seed_waitpoint_hmac_secret(kid="k1", secret_hex="ab" * 32)
        now = await engine.now_ms()
        found = await _past(url, now, amount, chance)
        found |= await _running(engine, now)
        flow = await _flow(engine)
        budget = await _budgets(engine)
        spent = {"tokens": 1_850, "usd": 210_000}
        await engine.record_spend(budget_id=budget, execution_id=found["streaming"], deltas=spent)
        await _schedules(engine)
        asks = await _asked(app)
    return Seeded(
        asks["deploy"],
        asks["ask"],
        asks["budget"],
        found["failed"],
        found["delayed"],
        found["streaming"],
        found["completed"],
        flow,
        "exports",
        budget,
        found["troubled"],
        asks["shipment"],
    )


async def _asked(app: App) -> dict[str, str]:
    """Workflows that run until they ask."""
    deploy, refund = app.definitions["deploy"], app.definitions["refund"]
    batch = Budget("batch of books", tokens=400, usd=1, on_breach="ask")
    async with app.worker(name="workflows"):
        run = await deploy.start("9f3c2a1d77")  # type: ignore[attr-defined]
        shipped = await app.definitions["ship"].using(id="order A-1044").start("A-1044")  # type: ignore[attr-defined]
        refunded = await refund.start("A-1044")  # type: ignore[attr-defined]
        costly = []
        for book in ("Emma", "Ulysses"):
            costly.append(await app.definitions["summarize"].using(budget=batch).start(book))  # type: ignore[attr-defined]
            if len(costly) == 1:
                await costly[0].result(timeout=seconds(60))
        [ask] = await app.asks(run, wait=seconds(60))
        await ask.answer(Verdict(ok=True, note="looks good"), by="alice")
        [money] = await app.asks(costly[-1], wait=seconds(60))
        await app.asks(refunded, wait=seconds(60))
        with contextlib.suppress(RunFailed):
            await shipped.result(timeout=seconds(60))
    return {"deploy": run.id, "ask": ask.id, "budget": money.id, "shipment": shipped.id}


if __name__ == "__main__":
    print(asyncio.run(seed(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 240)))  # noqa: T201
