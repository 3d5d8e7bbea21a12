"""Charging, reserving, and being admitted."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from flowfabric.core.admission.quotas import carried_guard
from flowfabric.model.decisions import Get, Select
from flowfabric.model.operations.budgets import UsageDimensions
from flowfabric.model.records.budgets import Budget, BudgetSpend, BudgetUsage, QuotaAdmitted, QuotaPolicy, Reservation
from flowfabric.model.records.executions import Execution
from flowfabric.stores.sql.schema import split_wire
from tests.simulation.coordination.domains import (
    ALLOWED,
    AMOUNTS,
    BUDGET,
    BUDGETS,
    DEFINED,
    INTERVALS,
    KEY,
    MEMBER,
    NODE,
    QUOTA,
    QUOTAS,
    operation,
)
from tests.simulation.coordination.machine import Machine
from tests.simulation.coordination.oracle_budgets import BLOCK
from tests.simulation.domains import LANE, queued, some
from tests.simulation.world import differences

PICK = st.integers(0, 9)
REASONS = {eligibility: reason for reason, eligibility in BLOCK.items()}


def any_reservation(machine: Any) -> bool:
    return any(each.state == "open" for each in machine.oracle.reservations.values())


def holding(machine: Any) -> bool:
    return any(machine.oracle.holds(held) for _, held in machine.handles)


def kept_back(machine: Any) -> bool:
    return any(row.eligibility in REASONS for row in machine.oracle.rows.values())


class Budgets(Machine):
    """Operations on budgets and quotas."""

    def start(self, items: Any, shape: Any, policies: Any, refs: int) -> None:
        self.accounts: Any = None
        if self.theme in ("budgets", "everything"):
            for number in range(3):
                self.create_budget(number)
                self.create_quota(number)
        super().start(items, shape, policies, refs)

    # -- budgets -------------------------------------------------------------------------------------------------

    def name_of(self, number: int) -> str:
        """A budget; the last number one that is not there."""
        return BUDGETS[number] if number < 3 else QUOTAS[0]

    @operation("budget", 4, number=BUDGET, amounts=AMOUNTS, key=KEY)
    def report(self, number: int, amounts: dict[str, int], key: str | None) -> None:
        budget_id, names = self.name_of(number), list(amounts)
        self.do(
            "report_usage_admin",
            lambda e: e.report_usage_admin(
                budget_id=budget_id, dimensions=names, deltas=[amounts[name] for name in names], dedup_key=key
            ),
            lambda: self.oracle.report(budget_id, amounts, key),
        )

    @operation("budget", 4, number=st.sampled_from((0, 1, 1)), over=st.sampled_from((0, 0, 0, 1)))
    def use_up(self, number: int, over: int) -> None:
        """All that is left, or a little more."""
        self.flush()
        budget = self.oracle.budgets[BUDGETS[number]]
        left = budget.hard["tokens"] - budget.spent["tokens"] - self.oracle.reserved(budget.id, "tokens")
        self.report(number, {"tokens": max(left, 0) + over}, None)

    @operation("budget", 1, lambda machine: bool(machine.handles), pick=PICK, number=BUDGET, amounts=AMOUNTS)
    def report_late(self, pick: int, number: int, amounts: dict[str, int]) -> None:
        """Whoever has used something says so, lease or not."""
        if self.handles:
            handle, budget_id = self.handle(pick)[0], self.name_of(number)
            self.do(
                "report_usage",
                lambda e: e.report_usage(handle, budget_id, UsageDimensions(custom=amounts)),
                lambda: self.oracle.report(budget_id, amounts, None),
            )

    @operation("budget", 3, number=BUDGET, slot=MEMBER, amounts=AMOUNTS, key=KEY)
    def spend(self, number: int, slot: int, amounts: dict[str, int], key: str | None) -> None:
        budget_id, name = self.name_of(number), self.choose(slot)
        self.do(
            "record_spend",
            lambda e: e.record_spend(budget_id=budget_id, execution_id=name, deltas=amounts, idempotency_key=key),
            lambda: self.oracle.report(budget_id, amounts, key, name),
        )

    @operation("budget", 2, number=BUDGET, slot=MEMBER)
    def give_back(self, number: int, slot: int) -> None:
        budget_id, name = self.name_of(number), self.choose(slot)
        self.do(
            "release_budget",
            lambda e: e.release_budget(budget_id=budget_id, execution_id=name),
            lambda: self.oracle.release_budget(budget_id, name),
        )

    @operation("budget", 1, number=BUDGET)
    def reset(self, number: int) -> None:
        budget_id = self.name_of(number)
        self.do(
            "reset_budget",
            lambda e: e.reset_budget(budget_id=budget_id),
            lambda: self.oracle.reset_budget(budget_id),
        )

    @operation("budget", 1, number=BUDGET, limit=st.sampled_from((3, 10, 20)))
    def set_limits(self, number: int, limit: int) -> None:
        budget_id = self.name_of(number)
        self.do(
            "set_budget_limits",
            lambda e: e.set_budget_limits(budget_id=budget_id, hard_limits={"tokens": limit}),
            lambda: self.oracle.set_limits(budget_id, {"tokens": limit}),
        )

    # -- work ----------------------------------------------------------------------------------------------------

    @operation("budget", 3, lambda machine: len(machine.oracle.rows) < 9, item=NODE)
    def arrive(self, item: dict[str, Any]) -> None:
        self.create_one({**item, "slot": 0, "name": self.fresh(0)})

    @operation(
        "budget",
        6,
        some(queued),
        lane=LANE,
        number=BUDGET,
        amounts=AMOUNTS,
        end=st.sampled_from(("", "", "complete", "fail", "nothing")),
    )
    def hire(self, lane: str, number: int, amounts: dict[str, int], end: str) -> None:
        """A worker that claims something, sets something aside and may end soon."""
        self.flush()
        known = len(self.handles)
        self.claim_lane(lane, ("eu", "gpu"), ("w2", "w2-a"), 5_000, 1)
        if len(self.handles) == known:
            return
        if end != "nothing":
            self.reserve(0, number, amounts, None)
        if end == "complete":
            self.complete(0, b"made")
        elif end == "fail":
            self.fail(0, "permanent", "")

    # -- reservations --------------------------------------------------------------------------------------------

    @operation("budget", 6, holding, pick=PICK, number=BUDGET, amounts=AMOUNTS, key=KEY)
    def reserve(self, pick: int, number: int, amounts: dict[str, int], key: str | None) -> None:
        if not self.handles:
            return
        handle, held = self.handle(pick)
        budget_id, made = self.name_of(number), []

        async def call(engine: Any) -> Any:
            answer = await engine.reserve_budget(handle, budget_id, amounts, key)
            made.append(getattr(answer, "reservation_id", ""))
            return answer

        self.do(
            "reserve_budget",
            call,
            lambda: self.oracle.reserve(held, made[0] if made else "", budget_id, amounts, key),
        )

    def reservation(self, pick: int) -> tuple[str, str]:
        """A reservation and its execution, rather one that is open."""
        every = list(self.oracle.reservations.values())
        found = [each for each in every if each.state == "open" and pick < 7] or every
        if not found or pick == 9:
            return BUDGETS[0], self.name(3000)
        return found[pick % len(found)].id, found[pick % len(found)].execution_id

    @operation("budget", 4, any_reservation, pick=PICK, used=AMOUNTS, handled=st.booleans())
    def settle(self, pick: int, used: dict[str, int], handled: bool) -> None:
        self.flush()
        reservation_id, owner = self.reservation(pick)
        handles = [handle for handle, held in self.handles if held.execution_id == owner] if handled else []
        execution_id = owner if handles else None
        self.do(
            "settle_reservation",
            lambda e: e.settle_reservation(reservation_id, used, handles[-1] if handles else None),
            lambda: self.oracle.settle_reservation(reservation_id, used, execution_id),
        )

    @operation("budget", 2, any_reservation, pick=PICK)
    def release(self, pick: int) -> None:
        self.flush()
        reservation_id, _ = self.reservation(pick)
        self.do(
            "release_reservation",
            lambda e: e.release_reservation(reservation_id),
            lambda: self.oracle.release_reservation(reservation_id, None),
        )

    # -- quotas --------------------------------------------------------------------------------------------------

    @operation("quota", 1, number=st.integers(0, 2))
    def create_budget(self, number: int) -> None:
        given = {**DEFINED[number], "interval": INTERVALS[number]}
        names = list(given["hard"])
        self.do(
            "create_budget",
            lambda e: e.create_budget(
                budget_id=BUDGETS[number],
                dimensions=names,
                hard_limits=[given["hard"][name] for name in names],
                soft_limits=[given["soft"][name] for name in names],
                on_hard_limit="warn" if given["warns"] else "fail",
                reset_interval_ms=given["interval"],
                parent_budget_id=given["parent"],
            ),
            lambda: self.oracle.create_budget(BUDGETS[number], given),
        )

    @operation("quota", 1, number=QUOTA)
    def create_quota(self, number: int) -> None:
        seconds, rate, cap = ALLOWED[number]
        self.do(
            "create_quota_policy",
            lambda e: e.create_quota_policy(
                quota_policy_id=QUOTAS[number],
                window_seconds=seconds,
                max_requests_per_window=rate,
                max_concurrent=cap,
            ),
            lambda: self.oracle.create_quota(QUOTAS[number], seconds, rate, cap),
        )

    @operation("quota", 3, number=QUOTA, slot=MEMBER, uncapped=st.sampled_from((False, False, False, True)))
    def check_admission(self, number: int, slot: int, uncapped: bool) -> None:
        name = self.choose(slot)
        seconds, rate, cap = ALLOWED[number]
        cap = 0 if uncapped else cap
        self.do(
            "check_admission",
            lambda e: e.check_admission(
                QUOTAS[number],
                execution_id=name,
                window_seconds=seconds,
                rate_limit=rate,
                concurrency_cap=cap,
            ),
            lambda: self.oracle.check_admission(QUOTAS[number], name, seconds, rate, cap),
        )

    @operation("quota", 2, number=QUOTA, slot=MEMBER)
    def release_admission(self, number: int, slot: int) -> None:
        quota = self.oracle.quotas.get(QUOTAS[number])
        name = self.choose(slot, lambda row, now: quota is not None and row.id in quota.guards)
        self.do(
            "release_admission",
            lambda e: e.release_admission(quota_policy_id=QUOTAS[number], execution_id=name),
            lambda: self.oracle.release_admission(QUOTAS[number], name),
        )

    # -- time ----------------------------------------------------------------------------------------------------

    @operation("quota", 2)
    def run_accounts(self) -> None:
        for timer in ("budget_reset", "quota_window", "quota_reconciler"):
            self.run_timer(timer)

    @operation("quota", 4, kept_back)
    def let_go(self) -> None:
        """After the timer has looked nobody waits for what is there."""
        self.run_timer("unblock")
        self.flush()
        self.expect(self.oracle.stuck(), "left waiting")

    @operation("quota", 3, kept_back, early=st.sampled_from((0, 0, 0, 1)))
    def until_window_slides(self, early: int) -> None:
        quotas = self.oracle.quotas.values()
        self.jump([at + quota.window for quota in quotas for at in quota.entries.values()], early)

    # -- comparing -----------------------------------------------------------------------------------------------

    def see_who_was_let_go(self) -> None:
        """Who goes first when there is room is the engine's choice, not that there is."""
        waiting = [row for row in self.oracle.rows.values() if row.eligibility in REASONS]
        if not waiting:
            return
        rows = self.world.run(self.world._rows([row.id for row in waiting]))
        for row in waiting:
            if row.id not in rows:
                continue
            shown = rows[row.id][0].eligibility_state
            if shown != row.eligibility and shown in ("eligible_now", "blocked_by_dependencies", *REASONS):
                wrong = self.oracle.let_go(row, REASONS.get(shown))
                self.expect([wrong] if wrong else [], "let go without room")

    def compare_budgets(self, refused: bool) -> None:
        if self.theme not in ("budgets", "everything"):
            return
        rows = self.world.run(self.account_rows())
        oracle = self.oracle
        names = [*BUDGETS, *QUOTAS]
        found = {each: picture(*rows[each]) for each in names if rows[each][0] is not None}
        wanted = {each: self.picture_of_budget(each) for each in oracle.budgets}
        wanted |= {each: self.picture_of_quota(each) for each in oracle.quotas}
        self.expect(differences(found, wanted), "accounts differ")
        held = sorted((each.reservation_id, each.amounts) for each in rows["open"])
        ours = sorted((each.id, each.amounts) for each in oracle.reservations.values() if each.state == "open")
        self.expect(differences([each for each, _ in held], [each for each, _ in ours]), "what is set aside differs")
        for quota in oracle.quotas.values():
            within = quota.recent(oracle.now, quota.window)
            problem = [f"{len(within)} of {quota.rate}"] if quota.rate and len(within) > quota.rate else []
            self.expect(problem, "I32: more admissions than the window allows")
        if refused:
            self.expect([] if rows == self.accounts else ["something changed"], "I15: a refusal changed an account")
        self.accounts = rows

    async def account_rows(self) -> dict[str, Any]:
        engine = self.world.engines[0]
        first = await engine._view(
            *(Get(Budget, each) for each in BUDGETS), *(Get(QuotaPolicy, each) for each in QUOTAS)
        )
        budgets = {each: first.get(Budget, each) for each in BUDGETS}
        quotas = {each: first.get(QuotaPolicy, each) for each in QUOTAS}
        needs: list[Any] = []
        for each, row in budgets.items():
            if row is not None:
                key = (row.partition, each)
                needs += [Select(kind, ("partition", "budget_id"), key) for kind in (BudgetUsage, BudgetSpend)]
        for each, row in quotas.items():
            if row is not None:
                needs.append(Select(QuotaAdmitted, ("partition", "quota_policy_id"), (row.partition, each)))
        owners = [split_wire(each) for each in self.oracle.rows]
        needs += [Select(Reservation, ("partition", "uuid", "state"), (*owner, "open")) for owner in owners]
        needs += [Get(Execution, each) for each in self.oracle.rows]
        view = await engine._view(*needs)
        found: dict[str, Any] = {}
        for each, row in budgets.items():
            kinds = (BudgetUsage, BudgetSpend) if row else ()
            found[each] = (row, *(view.select(kind, partition=row.partition, budget_id=each) for kind in kinds))
        holders = [row for each in self.oracle.rows if (row := view.execution(each)) is not None and row.admitted_at_ms]
        for each, policy in quotas.items():
            guards = view.select(QuotaAdmitted, partition=policy.partition, quota_policy_id=each) if policy else []
            carried = [carried_guard(policy, row) for row in holders if policy and row.quota_policy_id == each]
            found[each] = (policy, guards, carried)
        found["open"] = [
            row
            for partition, uuid_text in owners
            for row in view.select(Reservation, partition=partition, uuid=uuid_text, state="open")
        ]
        return found

    def picture_of_budget(self, budget_id: str) -> dict[str, Any]:
        budget = self.oracle.budgets[budget_id]
        names = {name for name in (*budget.hard, *budget.spent) if budget.spent[name]}
        names |= {name for name in ("tokens", "calls", "other") if self.oracle.reserved(budget_id, name)}
        at, dimension = budget.last_breach or (None, None)
        return {
            "counters": {name: (budget.spent[name], self.oracle.reserved(budget_id, name)) for name in names},
            "breaches": (budget.breaches, budget.soft_breaches, at, dimension),
            "next reset": budget.next_reset,
            "ledger": {
                (split_wire(owner)[1], dimension): amount
                for (named, owner, dimension), amount in budget.ledger.items()
                if named == budget_id
            },
        }

    def picture_of_quota(self, quota_id: str) -> dict[str, Any]:
        quota = self.oracle.quotas[quota_id]
        guards = {each: (guard.since, guard.until, guard.counted) for each, guard in quota.guards.items()}
        return {"taken": quota.taken, "guards": guards}


def picture(row: Any, rows: Any, spent: Any = ()) -> dict[str, Any]:
    """A budget with its counters, or a quota with its guards."""
    if isinstance(row, QuotaPolicy):
        # Some admissions are rows of their own; others stand on their executions.
        both = [*rows, *spent]
        guards = {each.execution_id: (each.admitted_at_ms, each.expires_at_ms, each.counted) for each in both}
        return {"taken": row.active_concurrency + sum(each.counted for each in spent), "guards": guards}
    counters = {each.dimensions_key: (each.current_value, each.reserved_value) for each in rows}
    return {
        "counters": {name: values for name, values in counters.items() if values != (0, 0)},
        "breaches": (row.breach_count, row.soft_breach_count, row.last_breach_at_ms, row.last_breach_dim),
        "next reset": row.next_reset_at_ms,
        "ledger": {
            (each.uuid, each.dimensions_key): each.delta_total for each in spent if each.reset_count == row.reset_count
        },
    }
