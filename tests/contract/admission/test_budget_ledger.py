"""Random charges, releases, resets and reservations against a ledger that knows nothing but sums."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from flowfabric import AlreadyApplied, Handle, HardBreach, Reserved, Settled
from flowfabric.core.invariants.budgets import check_budgets, check_quota
from flowfabric.engine import Engine
from flowfabric.model.records.budgets import (
    Budget,
    BudgetSpend,
    BudgetUsage,
    QuotaAdmitted,
    QuotaPolicy,
    QuotaWindow,
    Reservation,
)
from flowfabric.model.records.executions import Execution
from tests.contract.admission.test_admit import named, settled
from tests.contract.admission.test_budgets import ONE, THREE, TWO, budget, report
from tests.contract.admission.test_quotas import quota
from tests.contract.admission.test_reservations import policy
from tests.contract.probe import ManualClock, Probe, claimed, id_of

#: Each budget with those above it, and what it allows of each dimension.
CHAINS = {ONE: (ONE,), TWO: (TWO, ONE), THREE: (THREE, TWO, ONE)}
LIMITS = {ONE: {"a": 60, "b": 40}, TWO: {"a": 50}, THREE: {"a": 30, "b": 30}}
ACTS = ("report", "spend", "reserve", "reserve", "settle", "release", "free", "reset", "end")
STEPS = {"memory": 400, "sqlite": 200, "postgres": 60, "valkey": 100}


class Ledger:
    """What every budget must show."""

    def __init__(self) -> None:
        self.spent: Counter[tuple[str, str]] = Counter()
        self.reserved: Counter[tuple[str, str]] = Counter()
        #: (budget, execution) -> level -> dimension -> amount.
        self.recorded: dict[tuple[str, str], dict[str, Counter[str]]] = {}
        self.open: dict[str, tuple[str, str, dict[str, int]]] = {}

    def fits(self, budget_id: str, amounts: dict[str, int]) -> bool:
        return all(
            self.spent[level, name] + self.reserved[level, name] + amount <= LIMITS[level].get(name, 10**9)
            for level in CHAINS[budget_id]
            for name, amount in amounts.items()
        )

    def charge(self, budget_id: str, amounts: dict[str, int], execution: str | None = None) -> bool:
        if not self.fits(budget_id, amounts):
            return False
        for level in CHAINS[budget_id]:
            for name, amount in amounts.items():
                self.spent[level, name] += amount
                if execution is not None:
                    levels = self.recorded.setdefault((budget_id, execution), {})
                    levels.setdefault(level, Counter())[name] += amount
        return True

    def release(self, budget_id: str, execution: str) -> None:
        for level, amounts in self.recorded.pop((budget_id, execution), {}).items():
            for name, amount in amounts.items():
                self.spent[level, name] -= amount

    def reset(self, budget_id: str) -> None:
        for key in self.spent:
            if key[0] == budget_id:
                self.spent[key] = 0
        for levels in self.recorded.values():
            levels.pop(budget_id, None)

    def hold(self, budget_id: str, amounts: dict[str, int], sign: int) -> None:
        for level in CHAINS[budget_id]:
            for name, amount in amounts.items():
                self.reserved[level, name] += sign * amount

    def settle(self, which: str, used: dict[str, int]) -> bool:
        budget_id, _, held = self.open.pop(which)
        self.hold(budget_id, held, -1)
        if self.charge(budget_id, used):
            return True
        assert self.charge(budget_id, {name: min(used.get(name, 0), amount) for name, amount in held.items()})
        return False


class Game:
    """One random run."""

    def __init__(self, engine: Engine, chance: random.Random) -> None:
        self.engine = engine
        self.chance = chance
        self.ledger = Ledger()
        self.handles: list[Handle] = []
        self.made = 0

    async def start(self) -> None:
        for budget_id, above in ((ONE, None), (TWO, ONE), (THREE, TWO)):
            await budget(self.engine, budget_id, LIMITS[budget_id], parent_budget_id=above)
        for _ in range(4):
            await self.begin()

    async def begin(self) -> None:
        self.made += 1
        self.handles.append(await claimed(self.engine, lane_id=f"lane-{self.made}", ttl_ms=10**9))

    def amounts(self) -> dict[str, int]:
        names = self.chance.sample(["a", "b"], self.chance.randint(1, 2))
        return {name: self.chance.randint(0, 12) for name in names}

    async def step(self) -> None:
        budget_id, handle = self.chance.choice([ONE, TWO, THREE]), self.chance.choice(self.handles)
        execution = str(id_of(handle))
        amounts = self.amounts()
        match self.chance.choice(
            ["report", "spend", "reserve", "reserve", "settle", "release", "free", "reset", "end"]
        ):
            case "report":
                answer = await report(self.engine, budget_id, **amounts)
                assert isinstance(answer, HardBreach) != self.ledger.charge(budget_id, amounts)
            case "spend":
                answer = await self.engine.record_spend(budget_id=budget_id, execution_id=execution, deltas=amounts)
                assert isinstance(answer, HardBreach) != self.ledger.charge(budget_id, amounts, execution)
            case "release":
                await self.engine.release_budget(budget_id=budget_id, execution_id=execution)
                self.ledger.release(budget_id, execution)
            case "reset":
                if self.chance.random() < 0.3:
                    await self.engine.reset_budget(budget_id=budget_id)
                    self.ledger.reset(budget_id)
            case "reserve":
                found = await self.engine.reserve_budget(handle, budget_id, amounts)
                assert isinstance(found, Reserved) == self.ledger.fits(budget_id, amounts)
                if isinstance(found, Reserved):
                    self.ledger.hold(budget_id, amounts, 1)
                    self.ledger.open[found.reservation_id] = (budget_id, execution, amounts)
            case "settle" if self.ledger.open:
                which = self.chance.choice(sorted(self.ledger.open))
                answer = await self.engine.settle_reservation(which, amounts)
                assert isinstance(answer, Settled) == self.ledger.settle(which, amounts)
                assert await self.engine.settle_reservation(which, amounts) == AlreadyApplied()
            case "free" if self.ledger.open:
                which = self.chance.choice(sorted(self.ledger.open))
                await self.engine.release_reservation(which)
                self.give_back(which)
            case "end":
                await self.engine.complete(handle, None)
                self.handles.remove(handle)
                for which, (_, owner, _) in list(self.ledger.open.items()):
                    if owner == execution:
                        self.give_back(which)
                await self.begin()

    def give_back(self, which: str) -> None:
        budget_id, _, held = self.ledger.open.pop(which)
        self.ledger.hold(budget_id, held, -1)

    async def compare(self) -> None:
        for budget_id in CHAINS:
            status = await self.engine.get_budget_status(budget_id)
            for name in ("a", "b"):
                shown = (status.usage.get(name, 0), status.reserved.get(name, 0))
                assert shown == (self.ledger.spent[budget_id, name], self.ledger.reserved[budget_id, name])


async def violations(probe: Probe, ids: tuple[str, ...] = (ONE, TWO, THREE)) -> list[Any]:
    """What the stored rows break."""
    rows: dict[Any, list[Any]] = {
        kind: [row for each in ids for row in await probe.select(kind, budget_id=each)]
        for kind in (Budget, BudgetUsage, Reservation, BudgetSpend)
    }
    return check_budgets(rows[Budget], rows[BudgetUsage], rows[Reservation], rows[BudgetSpend])


@pytest.mark.parametrize("seed", range(3))
async def test_a_random_run_agrees_with_the_ledger(engine: Engine, probe: Probe, seed: int) -> None:
    game = Game(engine, random.Random(seed))
    await game.start()
    for number in range(STEPS[engine.backend_label]):
        await game.step()
        if number % 10 == 0:
            await game.compare()
    await game.compare()
    assert await violations(probe) == []


async def test_concurrent_holders_never_exceed_a_limit(engine: Engine, probe: Probe) -> None:
    chance = random.Random(7)
    await budget(engine, ONE, {"a": 50})
    await budget(engine, TWO, {"a": 40}, parent_budget_id=ONE)
    await budget(engine, THREE, {"a": 40}, parent_budget_id=ONE)

    async def holder(number: int) -> None:
        handle = await claimed(engine, lane_id=f"lane-{number}", ttl_ms=10**9)
        for _ in range(8):
            amount = chance.randint(1, 9)
            found = await engine.reserve_budget(handle, chance.choice([ONE, TWO, THREE]), {"a": amount})
            if isinstance(found, Reserved) and chance.random() < 0.7:
                await engine.settle_reservation(found.reservation_id, {"a": chance.randint(0, amount)})
            if chance.random() < 0.2:
                await engine.reset_budget(budget_id=chance.choice([ONE, TWO, THREE]))
        await engine.complete(handle, None)

    await asyncio.gather(*(holder(number) for number in range(24)))
    assert await violations(probe) == []
    assert (await engine.get_budget_status(ONE)).reserved == {}


async def test_a_busy_quota_holds_its_promises(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    chance = random.Random(11)
    await quota(engine, ONE, window=10, rate=6, cap=4)
    ids = [await named(engine, quota=ONE) for _ in range(40)]
    running: list[Handle] = []
    ended = 0
    for _ in range(600):
        running += await engine.claim_many("work", (), policy(ttl_ms=10**9), chance.randint(1, 5))
        assert len(running) <= 4
        if running and chance.random() < 0.8:
            await engine.complete(running.pop(chance.randrange(len(running))), None)
            ended += 1
        clock.advance(chance.randint(0, 2_000))
        await engine.run_timer("quota_window")
        await settled(engine)
        [row] = await probe.select(QuotaPolicy, quota_policy_id=ONE)
        guards = await probe.select(QuotaAdmitted, quota_policy_id=ONE)
        windows = await probe.select(QuotaWindow, quota_policy_id=ONE)
        assert check_quota(row, guards, windows, await probe.select(Execution, quota_policy_id=ONE)) == []
        if ended == len(ids):
            break
    assert ended == len(ids)


def test_the_checks_can_fail() -> None:
    one = Budget(0, ONE, '{"hard_limits":{"a":5}}', 0, 0)
    over = BudgetUsage(0, ONE, "a", 4, None, 0, 2)
    held = Reservation("r", 0, "u", 0, 1, ONE, '{"a":3}', "open", 0)
    spend = BudgetSpend(0, ONE, "u", "a", 9, 0)
    broken = check_budgets([one], [over], [held], [spend])
    assert sorted(each.invariant for each in broken) == ["I30", "I30", "I31"]
    busy = QuotaPolicy(0, ONE, 10, 1, 1, 2, 0, 0)
    entries = [QuotaWindow(0, ONE, "", at, "e") for at in (0, 9_999)]
    assert len(check_quota(busy, [], entries)) == 3
    assert (
        check_quota(QuotaPolicy(0, ONE, 10, 1, 0, 0, 0, 0), [], [entries[0], QuotaWindow(0, ONE, "", 10_000, "e")])
        == []
    )
