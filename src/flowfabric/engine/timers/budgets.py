"""Timers of budgets and quotas: scheduled resets, windows that slide, slots that leaked, and who may go on."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from flowfabric.core.admission.admit import LET_GO_AT_ONCE, LetBlockedGo, LetGo
from flowfabric.core.admission.budgets import ReconcileBudget, ResetBudget, is_unsettled, usage_of
from flowfabric.core.admission.charge import LET_GO_BUDGET, LET_GO_QUOTA
from flowfabric.core.admission.forget import ForgetBudget, ForgetQuota
from flowfabric.core.admission.quotas import ReconcileQuota, ReleaseAdmission
from flowfabric.engine.base import EngineBase
from flowfabric.model.decisions import Get
from flowfabric.model.limits import GATE_KNOWN_MS
from flowfabric.model.records.budgets import Budget, QuotaPolicy
from flowfabric.stores.questions import Due, ExpiredGuards, IdleGates, ListGates, PendingRequests, TrimAdmission

_log = logging.getLogger("flowfabric.timers")

#: Budgets that one tick of their reconciler looks at: what it writes is for people, every charge looks for itself.
BUDGETS_LOOKED_AT = 1_000
#: Rows one statement deletes of what no longer counts, and statements of one tick.
TRIM_ROWS, TRIM_ROUNDS = 10_000, 10


class BudgetTimers(EngineBase):
    """The part of the engine that keeps budgets and quotas in order when time passes."""

    #: Behind which budget the reconciler goes on.
    _reconciled_after: str | None = None
    #: From which time on guards are looked at next.
    _guards_since: int = 0

    async def _tick_budget_reset(self, limit: int) -> int:
        due = await self._ask(ListGates("budget_reset", await self.now_ms(), None, limit))
        return len(await self._submit_each([ResetBudget(each, None, True) for each in due]))

    async def _tick_quota_window(self, limit: int) -> int:
        """Let those go whom a sliding window has room for."""
        due = await self._ask(ListGates("quota_room", await self.now_ms(), None, limit))
        return await self._counted([LetGo(LET_GO_QUOTA, each) for each in due])

    async def _tick_budget_reconciler(self, limit: int) -> int:
        """Look at some budgets, a page at a time, and go on behind them the next time."""
        done = 0
        for _ in range(max(BUDGETS_LOOKED_AT // limit, 1)):
            page = await self._ask(ListGates("budgets", 0, self._reconciled_after, limit))
            done += await self._counted([ReconcileBudget(each) for each in await self._unsettled(page)])
            self._reconciled_after = page[-1] if len(page) == limit else None
            if self._reconciled_after is None:
                break
        return done

    async def _unsettled(self, ids: list[str]) -> list[str]:
        """The budgets among some that have to be reconciled."""
        view = await self._view(*(Get(Budget, each) for each in ids))
        found = [budget for each in ids if (budget := view.get(Budget, each)) is not None]
        counters = await self._view(*(usage_of(budget) for budget in found))
        return [budget.budget_id for budget in found if is_unsettled(budget, counters)]

    async def _tick_idle_gates(self, limit: int) -> int:
        """Delete quotas and budgets that apps made and nothing uses any more."""
        now = await self.now_ms()
        due = {what: await self._ask(IdleGates(what, now, limit)) for what in ("quotas", "budgets")}
        oldest = await self._ask(PendingRequests(1)) if any(due.values()) else ()
        if any(request.requested_at_ms <= now - GATE_KNOWN_MS for request in oldest):
            # What a request names is used by nobody until it is an execution, and this one is late.
            return 0
        commands: list[Any] = [ForgetQuota(*each) for each in due["quotas"]]
        await self._submit_each(commands + [ForgetBudget(*each) for each in due["budgets"]])
        return max(map(len, due.values()))

    async def _tick_quota_reconciler(self, limit: int) -> int:
        """Give back slots of executions that have ended, count the rest again, and forget what no longer counts."""
        now = await self.now_ms()
        stale = await self._ask(ExpiredGuards(now, limit, self._guards_since))
        done = await self._counted([ReleaseAdmission(policy, None, execution, True) for policy, execution, _ in stale])
        self._guards_since = 0
        if len(stale) == limit:
            # Those of executions that go on stay: look behind them the next time.
            first_ms, last_ms = stale[0][2], stale[-1][2]
            self._guards_since = last_ms + (first_ms == last_ms)
        drifted = await self._ask(ListGates("quota_drift", now, None, limit))
        done += await self._counted([ReconcileQuota(each) for each in drifted])
        for _ in range(TRIM_ROUNDS):
            if await self._ask(TrimAdmission(now, TRIM_ROWS)) < TRIM_ROWS:
                break
        return done

    async def _let_room_go(self, limit: int) -> int:
        """Look at everything that keeps executions waiting for room, in case somebody was forgotten."""
        done, after = 0, None
        while page := await self._ask(ListGates("blocked", 0, after, limit)):
            done += sum([await self._let_gate_go(each, limit) for each in page])
            after = page[-1]
            if len(page) < limit:
                break
        by_hand = await self._ask(Due("ungated", await self.now_ms(), limit))
        return done + await self._counted([LetBlockedGo(each) for each in by_hand])

    async def _let_gate_go(self, gate: str, limit: int) -> int:
        view = await self._view(Get(QuotaPolicy, gate))
        kind = LET_GO_BUDGET if view.get(QuotaPolicy, gate) is None else LET_GO_QUOTA
        done = 0
        while done < limit:
            freed = await self._counted([LetGo(kind, gate)])
            done += freed
            if freed < LET_GO_AT_ONCE:
                break
        return done

    async def _counted(self, commands: list[Any]) -> int:
        return sum(int(answer) for answer in await self._submit_each(commands))

    async def _submit_each(self, commands: list[Any]) -> list[Any]:
        """The answers of those that succeeded; the others are tried again at the next turn."""
        answers = await asyncio.gather(*map(self._submit, commands), return_exceptions=True)
        for command, answer in zip(commands, answers, strict=True):
            if isinstance(answer, BaseException):
                _log.warning("%s: %s", type(command).__name__, answer)
        return [answer for answer in answers if not isinstance(answer, BaseException)]
