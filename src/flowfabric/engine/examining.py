"""Looking through a whole store for promises that its rows break. Nothing is repaired here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from flowfabric.core.budget_invariants import check_ledger, check_quota
from flowfabric.core.flow_invariants import check_flow
from flowfabric.core.invariants import check_execution, standing
from flowfabric.core.owner_invariants import (
    check_block,
    check_budget_owners,
    check_quota_owner,
    check_schedule_owner,
    holder_of,
)
from flowfabric.core.view import View
from flowfabric.core.wait_invariants import check_waits
from flowfabric.engine import checks
from flowfabric.engine.examining_log import LOGS, ExaminingLog
from flowfabric.engine.places import pair, paired
from flowfabric.model import literals as lit
from flowfabric.model.budget_records import (
    OPEN,
    Budget,
    BudgetSpend,
    BudgetUsage,
    QuotaAdmitted,
    QuotaPolicy,
    QuotaWindow,
    Reservation,
)
from flowfabric.model.changes import Get, GetFull, Select
from flowfabric.model.errors import EngineError, Validation
from flowfabric.model.examination import Examination, Violation
from flowfabric.model.ids import ExecutionId
from flowfabric.model.limits import MAX_PAGE
from flowfabric.model.ownership import is_name
from flowfabric.model.records import (
    Attempt,
    Edge,
    EdgeGroup,
    Execution,
    Grant,
    Signal,
    StreamHead,
    StreamSummary,
    Suspension,
    Waitpoint,
)
from flowfabric.model.start_records import Schedule
from flowfabric.stores.questions import CountRows, Integrity, ListExecutions, ListFlows, ListGates, SearchSchedules

#: What is looked at, in this order.
_STAGES = ("store", "executions", "flows", "budgets", "quotas", "schedules", "ends", "events")
#: Rows are not read at one moment, and what a commit sets off may be under way: what is not so any more after one of
#: these pauses was never wrong.
_PAUSES_S = (0.05, 0.2, 1.0)
#: Budgets whose ledgers are compared; those above each other must be looked at together.
_MOST_BUDGETS = 10_000
#: Where executions wait for room, by their state.
_GATES: dict[str, type[Budget] | type[QuotaPolicy]] = {lit.BLOCKED_BY_BUDGET: Budget, lit.BLOCKED_BY_QUOTA: QuotaPolicy}
#: What is loaded of an execution besides itself.
_OF_EXECUTIONS = (Attempt, Grant, Waitpoint, Signal, StreamHead, StreamSummary)

_LOG_NUMBERS = tuple(map(str, range(len(LOGS))))
_Item = TypeVar("_Item")


class Examining(ExaminingLog):
    """The part of the engine that checks what is stored."""

    async def examine(self, cursor: str | None = None, limit: int = 500) -> Examination:
        """Look at the next stretch of a store that may be busy, and say which promises its rows break.

        Begins with the database's own pages, goes on with executions and their streams, flows, budgets, quotas,
        schedules and the log of events. ``limit`` is how many are looked at; pass ``next_cursor`` to go on. Nothing is
        changed.
        """
        size = checks.integer(limit, "limit", 1, MAX_PAGE)
        stage, partition, after = _place(cursor)
        if stage == "store":
            total = sum((await self._ask(CountRows())).values())
            return Examination(0, await self._pages(), "executions.0.", total, await self._events_there())
        if stage == "executions":
            return await self._stretch(stage, partition, after, size, self._ids, self._judge_executions)
        if stage == "flows":
            return await self._stretch(stage, partition, after, size, self._flows, self._judge_flows)
        if stage == "schedules":
            return await self._schedules(after, size)
        if stage == "ends":
            return Examination(0, await self._surely([stage], lambda _: self._judge_ends()), "events.0.")
        if stage == "events":
            return await self._next_events(partition, int(after or 0), size)
        return await (self._budgets() if stage == "budgets" else self._quotas(after, size))

    async def _pages(self) -> tuple[Violation, ...]:
        found: list[str] = await self._ask(Integrity())
        # A store that may lose what it has acknowledged knows what was missed.
        lost: list[str] = await self.store.losses() if hasattr(self.store, "losses") else []
        broken = [Violation("store", "database", text) for text in found]
        return (*broken, *(Violation("lost", "server", text) for text in lost))

    async def _stretch(
        self,
        stage: str,
        partition: int,
        after: str | None,
        size: int,
        list_some: Callable[[int, str | None, int], Awaitable[list[str]]],
        judge: Callable[[list[str]], Awaitable[list[Violation]]],
    ) -> Examination:
        """Some of what is listed by partition, and where to go on."""
        ids: list[str] = []
        while partition < self.partitions.flow and len(ids) < size:
            page = await list_some(partition, after, size - len(ids))
            ids += page
            after = page[-1].rpartition(":")[2] if page else None
            if len(ids) < size:
                partition, after = partition + 1, None
        following = f"{_STAGES[_STAGES.index(stage) + 1]}.0."
        if partition < self.partitions.flow:
            following = f"{stage}.{partition}.{after or ''}"
        return Examination(len(ids), await self._surely(ids, judge), following)

    async def _surely(
        self, ids: list[_Item], judge: Callable[[list[_Item]], Awaitable[list[Violation]]]
    ) -> tuple[Violation, ...]:
        """What is wrong at every one of several looks."""
        found: tuple[Violation, ...] = tuple(await judge(ids)) if ids else ()
        for pause in _PAUSES_S:
            if not found:
                break
            await asyncio.sleep(pause)
            again = await judge(ids)
            found = tuple(each for each in again if each in found)
        return found

    # -- executions ----------------------------------------------------------------------------------------------

    async def _ids(self, partition: int, after: str | None, limit: int) -> list[str]:
        found: list[str] = await self._ask(ListExecutions(partition, after, limit))
        return found

    async def _judge_executions(self, ids: list[str]) -> list[Violation]:
        needs: list[Any] = []
        for identity in ids:
            key = _key(identity)
            needs += [GetFull(identity), Get(Suspension, key)]
            needs += [Select(kind, ("partition", "uuid"), key) for kind in _OF_EXECUTIONS]
        found: list[Violation] = []
        try:
            view = await self._view(*needs)
            now = await self.now_ms()
            for identity in ids:
                found += _judged(view, identity, now)
            found += await self._judge_blocks(ids, view)
            found += await self._judge_streams(ids, view)
        except Validation as error:
            # One row that cannot be read must not hide the others.
            if len(ids) == 1:
                return [Violation("I12", ids[0], f"it cannot be read: {error.detail}")]
            found = [one for each in ids for one in await self._judge_executions([each])]
        return found

    async def _judge_blocks(self, ids: list[str], view: View) -> list[Violation]:
        """Whoever is kept waiting, with what keeps it."""
        executions = [each for identity in ids if (each := view.full(identity)) is not None]
        waiting = [each for each in executions if each.blocked_by and each.eligibility_state in _GATES]
        needs = [Get(_GATES[each.eligibility_state], each.blocked_by or "") for each in waiting]
        gates = await self._view(*dict.fromkeys(needs))
        found: list[Violation] = []
        for execution, need in zip(waiting, needs, strict=True):
            gate = gates.get(need.kind, need.key)
            found += [] if gate is None else check_block(execution, gate)
        return found

    # -- flows ---------------------------------------------------------------------------------------------------

    async def _flows(self, partition: int, after: str | None, limit: int) -> list[str]:
        page = await self._ask(ListFlows(partition, after, limit))
        return [f"{partition}:{flow}" for flow, _, _ in page]

    async def _judge_flows(self, ids: list[str]) -> list[Violation]:
        found: list[Violation] = []
        for each in ids:
            partition, _, flow = each.partition(":")
            where = (("partition", "flow_id"), (int(partition), flow))
            equal: dict[str, Any] = dict(zip(*where, strict=True))
            try:
                view = await self._view(*(Select(kind, *where) for kind in (Edge, EdgeGroup)))
                edges = view.select(Edge, **equal)
                if not edges:
                    continue
                members = (await self._view(Select(Execution, *where))).select(Execution, **equal)
            except EngineError as error:
                found.append(Violation("I24", flow, f"it could not be checked: {error}"))
                continue
            broken = check_flow(members, edges, view.select(EdgeGroup, **equal))
            found += [Violation(one.invariant, f"flow {flow}", f"{one.subject}: {one.detail}") for one in broken]
        return found

    # -- budgets and quotas --------------------------------------------------------------------------------------

    async def _budgets(self) -> Examination:
        ids: list[str] = await self._ask(ListGates("budgets", 0, None, _MOST_BUDGETS))
        return Examination(len(ids), await self._surely(ids, self._judge_budgets), "quotas.0.")

    async def _judge_budgets(self, ids: list[str]) -> list[Violation]:
        budgets: list[Budget] = []
        usage: list[BudgetUsage] = []
        held: list[Reservation] = []
        spends: list[BudgetSpend] = []
        for each in ids:
            own = ((("budget_id",), (each,)), (("budget_id", "state"), (each, OPEN)))
            view = await self._view(Select(Budget, *own[0]), Select(BudgetUsage, *own[0]), Select(Reservation, *own[1]))
            budgets += view.select(Budget, budget_id=each)
            usage += view.select(BudgetUsage, budget_id=each)
            held += view.select(Reservation, budget_id=each, state=OPEN)
            try:
                spends += (await self._view(Select(BudgetSpend, *own[0]))).select(BudgetSpend, budget_id=each)
            except EngineError:  # more than can be added up here; the rest of the ledger is still compared
                continue
        executions = await self._executions_of({holder_of(each) for each in held})
        return check_ledger(budgets, usage, held, spends) + check_budget_owners(budgets, held, executions)

    async def _executions_of(self, ids: set[str]) -> dict[str, Execution]:
        """Those of some executions that exist, by their ids."""
        view = await self._view(*(Get(Execution, each) for each in sorted(ids)))
        return {each: found for each in ids if (found := view.execution(each)) is not None}

    async def _quotas(self, after: str | None, size: int) -> Examination:
        listed: list[str] = await self._ask(ListGates("quotas", 0, after, size + 1))
        ids = listed[:size]
        following = f"quotas.0.{ids[-1]}" if len(listed) > size else "schedules.0."
        return Examination(len(ids), await self._surely(ids, self._judge_quotas), following)

    async def _judge_quotas(self, ids: list[str]) -> list[Violation]:
        found: list[Violation] = []
        for each in ids:
            own = (("quota_policy_id",), (each,))
            view = await self._view(*(Select(kind, *own) for kind in (QuotaPolicy, QuotaAdmitted, QuotaWindow)))
            for policy in view.select(QuotaPolicy, quota_policy_id=each):
                guards = view.select(QuotaAdmitted, quota_policy_id=each)
                windows = view.select(QuotaWindow, quota_policy_id=each)
                named = await self._named_by(each)
                found += check_quota(policy, guards, windows, named)
                executions = await self._executions_of({guard.execution_id for guard in guards})
                executions |= {execution.execution_id: execution for execution in named}
                found += check_quota_owner(policy, guards, executions)
        return found

    # -- schedules -----------------------------------------------------------------------------------------------

    async def _schedules(self, after: str | None, size: int) -> Examination:
        listed: list[Schedule] = await self._ask(SearchSchedules(size + 1, None, pair(after)))
        found = listed[:size]
        following = f"schedules.0.{paired(found[-1].key)}" if len(listed) > size else "ends.0."
        keys = [each.key for each in found]
        return Examination(len(found), await self._surely(keys, self._judge_schedules), following)

    async def _judge_schedules(self, keys: list[tuple[str, str]]) -> list[Violation]:
        view = await self._view(*(Get(Schedule, each) for each in keys))
        schedules = [each for key in keys if (each := view.get(Schedule, key)) is not None]
        started = await self._executions_of({each.last_execution_id for each in schedules if each.last_execution_id})
        return [
            one for each in schedules for one in check_schedule_owner(each, started.get(each.last_execution_id or ""))
        ]

    # -- events --------------------------------------------------------------------------------------------------

    async def _next_events(self, number: int, after: int, size: int) -> Examination:
        stretch = await self._stretch_of(LOGS[number], after, size)
        violations = await self._surely([stretch], lambda found: self._judge_events(found[0]))
        following: str | None = f"events.{number}.{stretch.through}"
        if stretch.is_last:
            following = f"events.{number + 1}." if number + 1 < len(LOGS) else None
        return Examination(stretch.size, violations, following)

    async def _named_by(self, quota: str) -> list[Execution]:
        """The executions that name a quota; none of them if they are more than can be looked at together."""
        try:
            view = await self._view(Select(Execution, ("quota_policy_id",), (quota,)))
        except EngineError:
            return []
        return view.select(Execution, quota_policy_id=quota)


def _key(identity: str) -> tuple[int, str]:
    parsed = ExecutionId.unchecked(identity)
    return parsed.partition, parsed.uuid_text


def _judged(view: View, identity: str, now: int) -> list[Violation]:
    execution = view.full(identity)
    if execution is None:  # it has just been deleted
        return []
    partition, uuid = key = _key(identity)
    attempts = view.select(Attempt, partition=partition, uuid=uuid)
    found = check_execution(execution, attempts, view.select(Grant, partition=partition, uuid=uuid), now)
    if standing(execution) is None:
        found.append(Violation("I13", identity, f"{execution.lifecycle_phase}, {execution.eligibility_state}"))
    current = next((each for each in attempts if each.attempt_index == execution.attempt_index), None)
    waitpoints = view.select(Waitpoint, partition=partition, uuid=uuid)
    signals = view.select(Signal, partition=partition, uuid=uuid)
    suspension = view.get(Suspension, key)
    if suspension is not None or waitpoints or signals:
        found += check_waits(execution, current, suspension, waitpoints, signals)
    return found


def _place(cursor: Any) -> tuple[str, int, str | None]:
    if cursor is None:
        return _STAGES[0], 0, None
    stage, _, rest = checks.text(cursor, "cursor").partition(".")
    number, dot, after = rest.partition(".")
    numbered = number.isascii() and number.isdigit() and len(number) < 6
    # Places of schedules are checked where they are read.
    named = not after or stage == "schedules" or is_name(after)
    if stage == "events":
        named = (not after or (after.isascii() and after.isdigit() and len(after) < 19)) and number in _LOG_NUMBERS
    if stage not in _STAGES or not numbered or not dot or not named:
        raise checks.invalid("cursor: not a valid cursor; pass the next_cursor of an examination unchanged")
    return stage, int(number), after or None
