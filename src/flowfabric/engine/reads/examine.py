"""Looking through a whole store, its events and its streams for promises that are broken. Nothing is repaired here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from flowfabric.core.batch.view import View
from flowfabric.core.invariants.budgets import check_ledger, check_quota
from flowfabric.core.invariants.events import check_bounds, check_ends, check_numbers, check_outcome, check_times
from flowfabric.core.invariants.executions import check_execution, standing
from flowfabric.core.invariants.flows import check_flow
from flowfabric.core.invariants.owners import (
    check_block,
    check_budget_owners,
    check_quota_owner,
    check_schedule_owner,
    holder_of,
)
from flowfabric.core.invariants.streams import check_stream, check_summary
from flowfabric.core.invariants.waits import check_waits
from flowfabric.engine.base import EngineBase
from flowfabric.engine.checks import values
from flowfabric.engine.checks.values import cursor_of_pair, pair_of_cursor
from flowfabric.engine.reads.subscriptions import shown
from flowfabric.model import states as lit
from flowfabric.model.decisions import Get, GetFull, Select
from flowfabric.model.errors import EngineError, Validation
from flowfabric.model.events import CompletionEvent
from flowfabric.model.ids import ExecutionId
from flowfabric.model.limits import MAX_PAGE
from flowfabric.model.ownership import is_name
from flowfabric.model.reads.examine import Examination, Violation
from flowfabric.model.reads.subscriptions import SHOWN, EventFamily
from flowfabric.model.records.budgets import (
    OPEN,
    Budget,
    BudgetSpend,
    BudgetUsage,
    QuotaAdmitted,
    QuotaPolicy,
    QuotaWindow,
    Reservation,
)
from flowfabric.model.records.executions import Attempt, Execution, Grant, Signal, Suspension, Waitpoint
from flowfabric.model.records.flows import Edge, EdgeGroup
from flowfabric.model.records.starts import Schedule
from flowfabric.model.records.streams import StreamHead, StreamSummary
from flowfabric.model.streams.frames import MAX_STREAM_READ_COUNT, MODE_SUMMARY
from flowfabric.stores.event_questions import EventLog, EventRows, LogState, ReadEvents, Unreadable
from flowfabric.stores.questions import (
    CountFrames,
    CountRows,
    Integrity,
    ListExecutions,
    ListFlows,
    ListGates,
    OddEnds,
    ReadFrames,
    SearchSchedules,
    StoredStream,
)
from flowfabric.stores.sql.schema import OUTBOXES

# -- looking through the log of events and the streams for promises that they break ----------------------------------

#: The logs, in the order they are looked at.
LOGS = tuple(EventFamily)
#: Executions with odd ends that are told of; where there are more, something larger is wrong.
MOST_ODD_ENDS = 10_000
_FIRST, _LAST = (0, 0), (2**63 - 1, 2**31 - 1)
#: Events that are read at once to find one of them.
_MOST_READ = 1_000


class Stretch(NamedTuple):
    """Some events of one log: those behind a number, and the last of them."""

    family: EventFamily
    after: int
    through: int
    size: int
    #: Whether the log ends here.
    is_last: bool


class ExaminingLog(EngineBase):
    """The part of the engine that checks events and streams."""

    # -- events --------------------------------------------------------------------------------------------------

    async def _events_there(self) -> int:
        """About how many events there are."""
        states: list[LogState] = [await self._ask(EventLog(SHOWN[each][0])) for each in LOGS]
        return sum(map(_size, states))

    async def _stretch_of(self, family: EventFamily, after: int, size: int) -> Stretch:
        """The next events of a log behind a number."""
        found: EventRows = await self._ask(ReadEvents(SHOWN[family][0], after, None, size))
        through = found.rows[-1][0] if found.rows else after
        return Stretch(family, after, through, len(found.rows), len(found.rows) < size)

    async def _judge_events(self, stretch: Stretch) -> list[Violation]:
        kind, show = SHOWN[stretch.family]
        log = OUTBOXES[kind].name
        found: list[Violation] = []
        through = None if stretch.is_last else stretch.through
        page: EventRows = await self._ask(ReadEvents(kind, stretch.after, through, max(stretch.size, 1)))
        if self.store.numbers_without_breaks:
            numbers = [number for number, _ in page.rows]
            found += check_numbers(log, max(stretch.after, page.trimmed), numbers, page.breaks)
        readable: list[tuple[int, Any]] = []
        for number, row in page.rows:
            event = shown(show, stretch.family, number, row)
            if isinstance(event, EngineError):
                found.append(Violation("I20", log, f"event {number} cannot be read: {event.detail}"))
            elif not isinstance(row, Unreadable):
                readable.append((number, row))
        found += check_times(log, readable)
        if kind is CompletionEvent:
            # Of several ends of one that was replayed, the last one counts.
            ends = {(row.partition, row.uuid): (number, row) for number, row in readable}
            found += await self._judge_outcomes(list(ends.values()))
        if stretch.is_last:
            state: LogState = await self._ask(EventLog(kind))
            dense = self.store.numbers_without_breaks
            found += check_bounds(log, state.trimmed, state.top, state.last, state.breaks, dense=dense)
        return found

    async def _judge_outcomes(self, events: list[tuple[int, CompletionEvent]]) -> list[Violation]:
        ids = [str.__str__(ExecutionId.of(each.partition, each.uuid)) for _, each in events]
        try:
            view = await self._view(*(Get(Execution, each) for each in dict.fromkeys(ids)))
        except Validation:
            # One that cannot be read is told of among the executions, and hides no other.
            return [one for each in events for one in await self._judge_outcomes([each])] if len(events) > 1 else []
        there = {identity: each for identity in dict.fromkeys(ids) if (each := view.execution(identity)) is not None}
        attempts = await self._view(*(Get(Attempt, (name, each.attempt_index)) for name, each in there.items()))
        found: list[Violation] = []
        for identity, (number, event) in zip(ids, events, strict=True):
            execution = there.get(identity)
            if execution is not None:
                attempt = attempts.get(Attempt, (identity, execution.attempt_index))
                wrong = check_outcome(execution, attempt, event)
                if wrong and not await self._ends_again(number, event):
                    found += wrong
        return found

    async def _ends_again(self, number: int, event: CompletionEvent) -> bool:
        """Whether a later event tells of another end of the same execution."""
        while True:
            page: EventRows = await self._ask(ReadEvents(CompletionEvent, number, None, _MOST_READ))
            ends = (row for _, row in page.rows if isinstance(row, CompletionEvent))
            if any((each.partition, each.uuid) == (event.partition, event.uuid) for each in ends):
                return True
            if len(page.rows) < _MOST_READ:
                return False
            number = page.rows[-1][0]

    async def _judge_ends(self) -> list[Violation]:
        state: LogState = await self._ask(EventLog(CompletionEvent))
        odd: list[tuple[str, int, int | None]]
        odd = await self._ask(OddEnds(state.trimmed_before_ms, MOST_ODD_ENDS))
        # What was deleted meanwhile is not missing.
        state = await self._ask(EventLog(CompletionEvent))
        found: list[Violation] = []
        for start in range(0, len(odd), 500):
            some = odd[start : start + 500]
            view = await self._view(*(GetFull(each) for each, _, _ in some))
            for identity, told, last_ms in some:
                execution = view.full(identity)
                if execution is not None:
                    found += check_ends(execution, told, last_ms, state.trimmed_before_ms)
        return found

    # -- streams -------------------------------------------------------------------------------------------------

    async def _judge_streams(self, ids: list[str], view: View) -> list[Violation]:
        """Heads, frames and summaries of executions whose attempts, heads and summaries the view has."""
        counted: list[StoredStream] = await self._ask(CountFrames(tuple(ids)))
        stored = {(each.execution_id, each.attempt_index): each for each in counted}
        found: list[Violation] = []
        for identity in ids:
            parsed = ExecutionId.unchecked(identity)
            own: dict[str, Any] = {"partition": parsed.partition, "uuid": parsed.uuid_text}
            begun = {each.attempt_index for each in view.select(Attempt, **own)}
            heads = {each.attempt_index: each for each in view.select(StreamHead, **own)}
            summaries = {each.attempt_index: each for each in view.select(StreamSummary, **own)}
            streams = heads.keys() | summaries.keys() | {index for name, index in stored if name == identity}
            for index in sorted(streams):
                frames = stored.get((identity, index)) or StoredStream(identity, index, 0, 0, _FIRST)
                stream = f"{identity} attempt {index + 1}"
                newest = frames.newest if frames.frames else None
                found += check_stream(stream, frames.frames, newest, heads.get(index), index in begun)
                summary = summaries.get(index)
                deltas = None if summary is None else await self._deltas(frames)
                found += check_summary(stream, summary, frames.deltas, deltas)
        return found

    async def _deltas(self, stream: StoredStream) -> list[str] | None:
        """The fields of the stored deltas; nothing if the stream is too long to be read at once."""
        if not 0 < stream.frames <= MAX_STREAM_READ_COUNT:
            return None
        parsed = ExecutionId.unchecked(stream.execution_id)
        where = (parsed.partition, parsed.uuid_text, stream.attempt_index)
        rows = await self._ask(ReadFrames(*where, _FIRST, _LAST, stream.frames))
        return [fields for _, _, fields, mode in rows if mode == MODE_SUMMARY]


def _size(log: LogState) -> int:
    """About how many events a log has."""
    skipped = sum(start - max(end, log.trimmed) for end, start in log.breaks if log.trimmed < start <= log.top)
    return max(log.top - log.trimmed - skipped, 0)


# -- looking through a whole store for promises that its rows break --------------------------------------------------
# Nothing is repaired here.

#: What is looked at, in this order.
_STAGES = ("store", "executions", "flows", "budgets", "quotas", "schedules", "ends", "events")
#: Rows are not read at one moment, and what a commit sets off may be under way: what is not so any more after one of
#: these pauses was never wrong.
_PAUSES_S = (0.05, 0.2, 1.0)
#: Budgets whose ledgers are compared; those above each other must be looked at together.
_MOST_BUDGETS = 10_000
#: Where executions wait for room, by their state.
_GATES: dict[str, type[Budget] | type[QuotaPolicy]] = {lit.BLOCKED_BY_BUDGET: Budget, lit.BLOCKED_BY_QUOTA: QuotaPolicy}
#: What is loaded with an execution.
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
        size = values.integer(limit, "limit", 1, MAX_PAGE)
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
        """Executions that are kept waiting, with what keeps them."""
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
        listed: list[Schedule] = await self._ask(SearchSchedules(size + 1, None, pair_of_cursor(after)))
        found = listed[:size]
        following = f"schedules.0.{cursor_of_pair(found[-1].key)}" if len(listed) > size else "ends.0."
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
    stage, _, rest = values.text(cursor, "cursor").partition(".")
    number, dot, after = rest.partition(".")
    numbered = number.isascii() and number.isdigit() and len(number) < 6
    # Places of schedules are checked where they are read.
    named = not after or stage == "schedules" or is_name(after)
    if stage == "events":
        named = (not after or (after.isascii() and after.isdigit() and len(after) < 19)) and number in _LOG_NUMBERS
    if stage not in _STAGES or not numbered or not dot or not named:
        raise values.invalid("cursor: not a valid cursor; pass the next_cursor of an examination unchanged")
    return stage, int(number), after or None
