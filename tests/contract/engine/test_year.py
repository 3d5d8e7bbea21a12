"""A year of an installation that nobody ever stops: what grows is trimmed, what is taken is given back, and nothing
fails that no user code failed.

Time is skipped, and everything that happens in a year happens: limits for values that come and go, runs without end,
workers that vanish, two deploys with two versions at work, three rotations of keys, clocks that step, a day without the
database, and a restore. A plain run has few runs a day and looks at fewer days.
"""

from __future__ import annotations

import asyncio
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from flowfabric import FlowGraph, Handle
from flowfabric.engine import Engine
from flowfabric.engine.timers.loop import TIMERS
from flowfabric.model.errors import StreamGap, Validation
from flowfabric.model.operations.schedules import Every
from flowfabric.model.ownership import owned_name
from flowfabric.model.reads.subscriptions import CompletionOutcome, EventFamily
from flowfabric.stores.sql.schema import OUTBOXES, TABLES
from tests.conftest import full_run
from tests.contract.probe import ManualClock, Probe, id_of, payload_of, policy

HOUR, DAY = 3_600_000, 86_400_000
YEAR = 365
LANE, NAMESPACE = "work", "n"
#: Days between two looks in a plain run, and runs of each step: memory is fast, and the rules are the same.
STEPS = {"memory": (6, 8), "sqlite": (13, 8), "postgres": (16, 8)}
ALL_RUNS = {"memory": 1_000_000, "sqlite": 100_000, "postgres": 20_000}
DEPLOYS, ROTATIONS = (100, 200), (60, 150, 240)
CLOCK_AHEAD, OUTAGE, BACKUP, RESTORE = 80, 170, 290, 300
LOOKS = (128, 248, 360)
#: Rows that are one for each thing there is, not for each that was.
FAR = 10**6


def name_of(*parts: object) -> str:
    """The id of something that is named."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, "/".join(map(str, parts))))


class Installation:
    """One store, the processes on it, and what they have to do."""

    def __init__(self, url: str, clock: ManualClock, label: str) -> None:
        self.url, self.clock, self.label = url, clock, label
        self.engine: Engine = None  # type: ignore[assignment]
        self.day = 0
        self.made = 0
        self.ends: Counter[str] = Counter()
        self._cursor = b""
        self.counts: dict[int, Counter[str]] = {}

    async def open(self) -> None:
        """A process begins, as a server does."""
        self.engine = await Engine.open(self.url, single_node=True, clock=self.clock)
        if (await self.engine.list_waitpoint_hmac_kids()).current_kid is None:
            await self.engine.seed_waitpoint_hmac_secret(kid="k0", secret_hex="00" * 32)

    # -- what people and apps do -------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """What is there all year: a schedule, a quota and a budget made by hand, and a run without end."""
        await self.engine.create_quota_policy(quota_policy_id=name_of("all"), max_concurrent=FAR)
        await self.engine.create_budget(
            budget_id=name_of("all"), dimensions=["usd"], hard_limits=[FAR], soft_limits=[0], reset_interval_ms=30 * DAY
        )
        await self.engine.put_schedule("nightly", spec=Every(DAY), execution_kind="old", lane_id=LANE)
        await self.engine.create_execution(lane_id="endless", execution_kind="endless")

    async def start(self, number: int) -> None:
        """Runs of tenants that come and go: each has a quota and a budget, as apps make them."""
        kinds = ["old", "new"] if any(self.day >= deploy for deploy in DEPLOYS) else ["old"]
        wanted = []
        for each in range(min(number, 4)):
            gate = name_of("tenant", self.day, each)
            await self.engine.create_quota_policy(
                quota_policy_id=gate,
                window_seconds=HOUR // 1000,
                max_requests_per_window=FAR,
                max_concurrent=max(3, number // 8),
                namespace=NAMESPACE,
                kept=False,
            )
            await self.engine.create_budget(
                budget_id=gate,
                dimensions=["usd"],
                hard_limits=[FAR],
                soft_limits=[0],
                reset_interval_ms=DAY,
                namespace=NAMESPACE,
                kept=False,
            )
        for each in range(number):
            gate = owned_name(name_of("tenant", self.day, each % min(number, 4)), NAMESPACE)
            wanted.append(
                {
                    "lane_id": LANE,
                    "namespace": NAMESPACE,
                    "execution_kind": kinds[each % len(kinds)],
                    "input_payload": b"in",
                    "idempotency_key": f"{self.day}-{each}",
                    "policy": {"quota_policy_id": gate, "budget_ids": [gate]},
                }
            )
        await self.engine.create_executions(wanted)
        nodes = {each: {"lane_id": LANE, "execution_kind": "old", "namespace": NAMESPACE} for each in ("a", "b", "c")}
        flow = await self.engine.submit_flow(FlowGraph(nodes, [("a", "b"), ("b", "c")], namespace=NAMESPACE))
        if self.day % 3 == 0:
            await self.engine.cancel_flow(flow.flow_id, "cancel_all" if self.day % 2 else "cancel_pending")

    async def work(self) -> None:
        """Workers do what there is to do, until nothing is left that is due within an hour."""
        until = self.clock.now_ms + HOUR
        versions = self._versions()
        idle = 0
        while idle < 3 and self.clock.now_ms < until:
            done = 0
            versions.reverse()  # now one is first and now another
            for version, known in versions:
                await self.engine.register_worker(
                    worker_id=version, worker_instance_id=version, lanes=[LANE], namespace=NAMESPACE
                )
                handles = await self.engine.claim_many(LANE, (), policy(version, version), 1_000)
                kinds = await self.engine.read_execution_kinds(id_of(each) for each in handles)
                if handles and not done and not payload_of(handles[0]).lease_epoch:
                    handles = handles[1:]  # its worker vanishes
                done += len(kinds)
                await asyncio.gather(*(self._handle(each, kinds[id_of(each)] in known) for each in handles))
            idle = 0 if done else idle + 1
            self.clock.advance(31_000)
            await self.tick(("lease_expiry", "delayed_promoter", "quota_window", "unblock"))
        endless = await self.engine.claim("endless", (), policy())
        if endless is not None:
            await self.engine.delay(endless, self.clock.now_ms + DAY)

    async def _handle(self, handle: Handle, is_known: bool) -> None:
        if not is_known:
            assert (await self.engine.decline(handle)).until_ms is not None, "another worker knows it"
            return
        execution = await self.engine.read_exec_core_fields(
            handle.execution_id.partition, handle.execution_id, ["budget_ids"]
        )
        for each in filter(None, (execution["budget_ids"] or "").split(",")):
            await self.engine.record_spend(
                budget_id=each[:36],
                execution_id=handle.execution_id,
                deltas={"usd": 1},
                idempotency_key=handle.execution_id,
            )
        await self.engine.complete(handle, b"done")

    def _versions(self) -> list[tuple[str, frozenset[str]]]:
        """Workers and what they know: while a deploy goes on, the old one and the new one."""
        before = sum(self.day >= deploy + 20 for deploy in DEPLOYS)
        after = sum(self.day >= deploy for deploy in DEPLOYS)
        known = [frozenset({"old"}), frozenset({"old", "new"}), frozenset({"old", "new", "newer"})]
        return [(f"v{each}", known[each]) for each in range(before, after + 1)]

    # -- what time does ----------------------------------------------------------------------------------------------

    async def tick(self, names: Iterable[str] | None = None) -> None:
        """All timers have their turn, as often as they find something."""
        for timer in TIMERS:
            if names is None or timer.name in names:
                for _ in range(1_000):
                    if await self.engine.run_timer(timer.name) < timer.batch:
                        break

    async def follow(self) -> None:
        """Somebody reads what has ended, and counts it."""
        while True:
            try:
                batch = await self.engine.read_events(EventFamily.COMPLETION, self._cursor, limit=1_000)
            except (StreamGap, Validation):
                self._cursor = b""  # restored: some ends were lost, and the reader is told so
                continue
            self._cursor = batch.cursor
            self.ends.update(type(each.outcome).__name__ for each in batch.events)
            if not batch.more:
                return

    async def rows(self) -> Counter[str]:
        """How many rows each table has."""
        names = [table.name for table in (*TABLES.values(), *OUTBOXES.values())]
        if self.label == "memory":
            store = self.engine.store
            found = {table.name: len(dict(store._tables.all(kind))) for kind, table in TABLES.items()}
            return Counter(found | {table.name: len(store.events(kind)) for kind, table in OUTBOXES.items()})
        sql = " UNION ALL ".join(f"SELECT '{each}', count(*) FROM {each}" for each in names)
        return Counter(dict(map(tuple, await Probe(self.engine)._fetch(sql))))

    async def pass_day(self, runs: int, days: int) -> None:
        """Some days go by; the first of them is told in full."""
        for each in range(self.day, self.day + days):
            await self._unusual(each)
        await self.start(runs)
        await self.work()
        await self.follow()
        for _ in range(days):
            self.clock.advance(DAY)
            await self.tick()
        before, self.day = self.day, self.day + days
        if any(before < look <= self.day for look in LOOKS):
            self.counts[self.day] = await self.rows()

    async def _unusual(self, day: int) -> None:
        if day in ROTATIONS:
            kid = f"k{1 + ROTATIONS.index(day)}"
            await self.engine.rotate_waitpoint_hmac_secret_all(new_kid=kid, new_secret_hex=f"{day:02x}"[-2:] * 32)
        if day == CLOCK_AHEAD:
            self.clock.advance(2 * HOUR)
            await self.work()
            self.clock.advance(-2 * HOUR)
        if self.label == "memory":
            return
        if day in (OUTAGE, *DEPLOYS):
            await self.engine.close()
            self.clock.advance(DAY if day == OUTAGE else 0)
            await self.open()
        if self.label == "sqlite" and day in (BACKUP, RESTORE):
            path = self.url.removeprefix("sqlite:///")
            await self.engine.close()
            shutil.copy(*((path, f"{path}.saved") if day == BACKUP else (f"{path}.saved", path)))
            await self.open()


def grown(before: Counter[str], after: Counter[str], allowed: Callable[[int], float]) -> dict[str, tuple[int, int]]:
    """Tables that have more rows than they had, beyond what is allowed."""
    return {name: (before[name], after[name]) for name in after if after[name] > allowed(before[name])}


@pytest.mark.parametrize("store_url", ["memory", "sqlite", "postgres"], indirect=True)
async def test_a_year(store_url: str, clock: ManualClock, request: pytest.FixtureRequest) -> None:
    label = request.node.callspec.params["store_url"]
    days, runs = STEPS[label]
    if full_run():
        runs = max(ALL_RUNS[label] * days // YEAR, runs)
    here = Installation(store_url, clock, label)
    await here.open()
    try:
        await here.begin()
        while here.day < YEAR:
            await here.pass_day(runs, days)
        first, *others = here.counts.values()
        assert len(others) == len(LOOKS) - 1
        for each in others:
            assert grown(first, each, lambda rows: 1.25 * rows + 10 * days) == {}
        await over(here)
    finally:
        await here.engine.close()


async def over(here: Installation) -> None:
    """Nothing is left of the year but what was made by hand, and nothing has failed."""
    engine = here.engine
    await here.work()
    await engine.delete_schedule("nightly")
    for _ in range(3):
        await here.work()
        for _ in range(2):
            here.clock.advance(20 * DAY)
            await here.tick()
    await here.follow()
    assert set(here.ends) <= {CompletionOutcome.Success.__name__, CompletionOutcome.Cancelled.__name__}
    assert here.ends[CompletionOutcome.Success.__name__] > YEAR // STEPS[here.label][0]
    quotas = (await engine.list_quota_policies()).policies
    assert [(each.quota_policy_id, each.active_concurrency) for each in quotas] == [(name_of("all"), 0)]
    [budget] = (await engine.list_budgets()).budgets
    assert (budget.budget_id, budget.reserved) == (name_of("all"), {})
    rows = await here.rows()
    assert rows["ff_exec_core"] == 1, "the run without end"
    kept = {"ff_exec_core", "ff_attempt", "ff_past_lease", "ff_quota_policy", "ff_budget_policy", "ff_budget_usage"}
    kept |= {"ff_lane_registry", "ff_waitpoint_hmac", "ff_sample", "ff_event_horizon", "ff_partition_config"}
    assert {name: count for name, count in rows.items() if count and name not in kept and "event" not in name} == {}
    cursor: str | None = ""
    while cursor is not None:
        found = await engine.examine(cursor or None)
        assert found.violations == ()
        cursor = found.next_cursor
