"""Budgets and reservations: what callers do with them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flowfabric.ascending import ascending_uuid
from flowfabric.core.admission.budgets import (
    CreateBudget,
    RecordSpend,
    ReleaseBudget,
    ReportUsage,
    ResetBudget,
    SetBudgetLimits,
    usage_of,
)
from flowfabric.core.admission.charge import ancestors
from flowfabric.core.admission.reservations import ReleaseReservation, ReserveBudget, SettleReservation
from flowfabric.core.batch.view import View
from flowfabric.core.documents import UNREADABLE
from flowfabric.core.ownership.owners import found
from flowfabric.engine.base import EngineBase
from flowfabric.engine.checks import budgets, values
from flowfabric.model.decisions import Get
from flowfabric.model.errors import NotFound, Validation
from flowfabric.model.handles import Handle
from flowfabric.model.ids import ExecutionId
from flowfabric.model.limits import MAX_PAGE
from flowfabric.model.operations.budgets import (
    BudgetPage,
    BudgetStatus,
    BudgetTerms,
    CreateBudgetResult,
    LimitsSet,
    OnHardLimit,
    ReportUsageResult,
    ReservationReleased,
    ReserveResult,
    Reset,
    Settled,
    SettleResult,
    SoftBreach,
    UsageAndLimits,
    UsageDimensions,
    read_terms,
)
from flowfabric.model.ownership import places, shown_id, stored_name
from flowfabric.model.partitions import budget_partition
from flowfabric.model.records.budgets import Budget, BudgetUsage
from flowfabric.stores.questions import ListGates

_log = logging.getLogger("flowfabric.budgets")


class Budgets(EngineBase):
    """The part of the engine that counts what executions spend."""

    async def create_budget(
        self,
        *,
        budget_id: str,
        scope_type: str = "",
        scope_id: str = "",
        enforcement_mode: str = "strict",
        on_hard_limit: str = OnHardLimit.FAIL,
        on_soft_limit: str = "warn",
        reset_interval_ms: int = 0,
        dimensions: Iterable[str] = (),
        hard_limits: Iterable[int] = (),
        soft_limits: Iterable[int] = (),
        parent_budget_id: str | None = None,
        namespace: str | None = None,
        kept: bool = True,
        now: int | None = None,
    ) -> CreateBudgetResult.Created | CreateBudgetResult.AlreadySatisfied:
        """Define a budget. Limits stand beside their dimensions, 0 means none. What is charged to it is charged to the
        budget it stands under, too.

        It belongs to a namespace, whose executions may name it, or to the operator. Two namespaces may use one id.
        Unless it is ``kept``, it is deleted when nothing has used it for 30 days and all its counters are 0: make it
        again before each use then, or at least once an hour.
        """
        values.optional_time_ms(now, "now")
        budget_id, owner = values.uuid(budget_id, "budget_id"), self._owner(namespace)
        names = list(values.sequence(dimensions, "dimensions"))
        terms = BudgetTerms(
            budgets.parallel_amounts(names, hard_limits, "hard_limits"),
            budgets.parallel_amounts(names, soft_limits, "soft_limits"),
            values.integer(reset_interval_ms, "reset_interval_ms", 0, 2**50),
            values.text(on_hard_limit, "on_hard_limit"),
            values.text(on_soft_limit, "on_soft_limit"),
        )
        answer: CreateBudgetResult.Created | CreateBudgetResult.AlreadySatisfied = await self._submit(
            CreateBudget(
                budget_partition(budget_id, self.partitions),
                stored_name(budget_id, owner),
                owner,
                values.text(scope_type, "scope_type"),
                values.text(scope_id, "scope_id"),
                values.text(enforcement_mode, "enforcement_mode"),
                terms,
                None if parent_budget_id is None else values.uuid(parent_budget_id, "parent_budget_id"),
                values.flag(kept, "kept"),
            )
        )
        return answer

    async def set_budget_limits(
        self,
        *,
        budget_id: str,
        hard_limits: Mapping[str, int] | None = None,
        soft_limits: Mapping[str, int] | None = None,
        namespace: str | None = None,
    ) -> LimitsSet:
        """Raise or lower limits by dimension, 0 for none; what is not named stays. Those waiting for the room that a
        raised limit makes goes on at once."""
        answer: LimitsSet = await self._submit(
            SetBudgetLimits(
                *self._budget_name(budget_id, namespace),
                budgets.optional_amounts(hard_limits, "hard_limits"),
                budgets.optional_amounts(soft_limits, "soft_limits"),
            )
        )
        return answer

    # -- charging ------------------------------------------------------------------------------------------------

    async def report_usage(self, handle: Handle, budget_id: str, usage: UsageDimensions) -> ReportUsageResult:
        """Charge what a worker has used. A lease that was lost meanwhile does not matter: used is used."""
        execution_id = self._payload(handle).execution_id
        custom, built_in, key = budgets.usage(usage)
        name = values.uuid(budget_id, "budget_id")
        return await self._charge(ReportUsage(name, None, custom, built_in, key, execution_id))

    async def report_usage_admin(
        self,
        *,
        budget_id: str,
        dimensions: Iterable[str],
        deltas: Iterable[int],
        dedup_key: str | None = None,
        namespace: str | None = None,
        now: int | None = None,
    ) -> ReportUsageResult:
        """Charge amounts beside their dimensions."""
        values.optional_time_ms(now, "now")
        amounts = budgets.parallel_amounts(list(values.sequence(dimensions, "dimensions")), deltas, "deltas")
        key = budgets.key(dedup_key, "dedup_key")
        return await self._charge(ReportUsage(*self._budget_name(budget_id, namespace), amounts, {}, key))

    async def record_spend(
        self,
        *,
        budget_id: str,
        execution_id: ExecutionId | str,
        deltas: Mapping[str, int],
        idempotency_key: str | None = None,
        now: int | None = None,
    ) -> ReportUsageResult:
        """Charge what an execution has spent, so that ``release_budget`` can give it back."""
        values.optional_time_ms(now, "now")
        identity = values.execution_id(execution_id)
        amounts = budgets.amounts(deltas, "deltas")
        key = budgets.key(idempotency_key, "idempotency_key")
        return await self._charge(RecordSpend(*_spender(budget_id, identity), amounts, key))

    async def release_budget(self, *, budget_id: str, execution_id: ExecutionId | str, now: int | None = None) -> None:
        """Give back what ``record_spend`` has charged for an execution since the budget's last reset."""
        values.optional_time_ms(now, "now")
        identity = values.execution_id(execution_id)
        await self._submit(ReleaseBudget(*_spender(budget_id, identity)))

    async def reset_budget(self, *, budget_id: str, namespace: str | None = None, now: int | None = None) -> Reset:
        """Set the counters back to 0. Reservations stay."""
        values.optional_time_ms(now, "now")
        answer: Reset = await self._submit(ResetBudget(*self._budget_name(budget_id, namespace), False))
        return answer

    def _budget_name(self, budget_id: Any, namespace: str | None) -> tuple[str, str | None]:
        """What a caller's id means: the name it is stored under, and whose it is."""
        owner = self._owner(namespace)
        return stored_name(values.uuid(budget_id, "budget_id"), owner), owner

    async def _charge(self, command: Any) -> ReportUsageResult:
        answer: ReportUsageResult = await self._submit(command)
        if isinstance(answer, SoftBreach):
            _warn(answer)
        return answer

    # -- reservations --------------------------------------------------------------------------------------------

    async def reserve_budget(
        self, handle: Handle, budget_id: str, amounts: Mapping[str, int], idempotency_key: str | None = None
    ) -> ReserveResult:
        """Set amounts aside under this lease, before they are used. They come back when they are settled or released,
        or when the lease ends."""
        answer: ReserveResult = await self._submit(
            ReserveBudget(
                self._payload(handle),
                values.uuid(budget_id, "budget_id"),
                budgets.amounts(amounts, "amounts"),
                budgets.key(idempotency_key, "idempotency_key"),
                ascending_uuid(),
                ascending_uuid(),
                ascending_uuid(),
                os.urandom(32),
            )
        )
        return answer

    async def settle_reservation(
        self, reservation_id: str, amounts: Mapping[str, int], handle: Handle | None = None, also: Iterable[str] = ()
    ) -> SettleResult:
        """Charge what was really used and free the rest. More than was reserved must fit; if it does not, the
        reservation is charged in full and the answer is the hard breach. With a handle, the reservation must belong to
        its execution.

        ``also`` names reservations of other budgets that the same amounts are charged to, in the same commit: all of
        them or none. The answer is then the first hard breach, or that of ``reservation_id``.
        """
        answer: SettleResult = await self._submit(
            SettleReservation(
                values.uuid(reservation_id, "reservation_id"),
                budgets.amounts(amounts, "amounts"),
                None if handle is None else self._payload(handle).execution_id,
                budgets.reservations(also, "also", reservation_id),
            )
        )
        if isinstance(answer, Settled) and answer.soft_breach is not None:
            _warn(answer.soft_breach)
        return answer

    async def release_reservation(self, reservation_id: str, handle: Handle | None = None) -> ReservationReleased:
        """Give back what was set aside without charging anything. With a handle, the reservation must belong to its
        execution."""
        answer: ReservationReleased = await self._submit(
            ReleaseReservation(
                values.uuid(reservation_id, "reservation_id"),
                None if handle is None else self._payload(handle).execution_id,
            )
        )
        return answer

    # -- reads ---------------------------------------------------------------------------------------------------

    async def get_budget_status(self, budget_id: str, namespace: str | None = None) -> BudgetStatus:
        """A budget with its counters and limits."""
        status = await self._status(budget_id, namespace)
        if status is None:
            raise NotFound("budget")
        return status

    async def _status(self, budget_id: Any, namespace: str | None) -> BudgetStatus | None:
        name, owner = self._budget_name(budget_id, namespace)
        view = await self._view(*(Get(Budget, place) for place in places(name, owner)))
        budget = found(view.get, Budget, name, owner)
        return None if budget is None else (await self._statuses([budget.budget_id]))[0]

    async def read_budget_usage_and_limits(self, budget_id: str, namespace: str | None = None) -> UsageAndLimits:
        """Counters and limits as texts; empty for a budget that does not exist."""
        status = await self._status(budget_id, namespace)
        if status is None:
            return UsageAndLimits({}, {})
        limits = {f"hard:{name}": str(limit) for name, limit in status.hard_limits.items()}
        limits |= {f"soft:{name}": str(limit) for name, limit in status.soft_limits.items()}
        return UsageAndLimits(limits, {name: str(value) for name, value in status.usage.items()})

    async def list_budgets(
        self, after: str | None = None, limit: int = 100, namespaces: Iterable[str] | None = None
    ) -> BudgetPage:
        """Budgets in the order of their ids, from behind ``after`` on; only those of some namespaces if any are
        given."""
        size = values.integer(limit, "limit", 1, MAX_PAGE)
        cursor = None if after is None else values.gate_name(after, "after")
        ids = await self._ask(ListGates("budgets", 0, cursor, size + 1, self._owners(namespaces)))
        statuses = await self._statuses(ids[:size], _listed_terms)
        following = ids[size - 1] if len(ids) > size else None
        return BudgetPage(tuple(each for each in statuses if each is not None), following)

    async def _statuses(
        self, ids: list[str], terms: Callable[[str], BudgetTerms] = read_terms
    ) -> list[BudgetStatus | None]:
        view = await self._view(*(Get(Budget, each) for each in ids))
        budgets = [view.get(Budget, each) for each in ids]
        counters = await self._view(*(usage_of(budget) for budget in budgets if budget is not None))
        return [None if each is None else _status(each, terms(each.policy_json), counters) for each in budgets]


def _spender(budget_id: Any, execution: ExecutionId) -> tuple[str, None, str, str]:
    """A budget as an execution names it, and the execution."""
    return values.uuid(budget_id, "budget_id"), None, str.__str__(execution), str.__str__(execution.uuid_text)


def _listed_terms(document: str) -> BudgetTerms:
    try:
        return read_terms(document)
    except Validation:
        return BudgetTerms(on_hard_limit=UNREADABLE, on_soft_limit=UNREADABLE)


def _status(budget: Budget, terms: BudgetTerms, view: View) -> BudgetStatus:
    rows = view.select(BudgetUsage, partition=budget.partition, budget_id=budget.budget_id)
    rows = [row for row in rows if row.dimensions_key != "_init"]
    above = ancestors(budget)
    return BudgetStatus(
        shown_id(budget.budget_id),
        budget.scope_type,
        budget.scope_id,
        budget.enforcement_mode,
        {row.dimensions_key: row.current_value for row in rows},
        dict(terms.hard_limits),
        dict(terms.soft_limits),
        budget.breach_count,
        budget.soft_breach_count,
        _text(budget.last_breach_at_ms),
        budget.last_breach_dim,
        _text(budget.next_reset_at_ms),
        _text(budget.created_at_ms),
        {row.dimensions_key: row.reserved_value for row in rows if row.reserved_value},
        terms.on_hard_limit,
        terms.on_soft_limit,
        shown_id(above[0]) if above else None,
        _text(budget.breached_at_ms),
        budget.namespace,
    )


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)


def _warn(breach: SoftBreach) -> None:
    _log.warning(
        "budget %s: %s is at %d, above its limit of %d",
        breach.budget_id,
        breach.dimension,
        breach.current_usage,
        breach.soft_limit,
    )
