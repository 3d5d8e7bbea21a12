"""Looking after the whole: how much there is of what, what an execution went through, who waits for a person."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from flowfabric.core.admission.admit import named_budgets
from flowfabric.core.batch.view import View
from flowfabric.core.documents import parse_document
from flowfabric.core.kind_figures import Seen, by_kind
from flowfabric.core.leases.lease import how_it_ended, is_live, last_instance
from flowfabric.core.ownership.owners import found
from flowfabric.core.suspension.waits import read_terms
from flowfabric.engine.checks import values
from flowfabric.engine.checks.values import sorted_namespaces
from flowfabric.engine.operations.workflows import FORKED_FROM
from flowfabric.engine.reads.flow_lists import FlowLists
from flowfabric.engine.reads.search import cursor_at, waiting_place
from flowfabric.model.decisions import Get, GetFull, Select
from flowfabric.model.errors import NotFound
from flowfabric.model.ids import ExecutionId, FlowId
from flowfabric.model.limits import (
    MAX_COUNTED,
    MAX_KINDS_SAMPLED,
    MAX_KINDS_WINDOW_MS,
    MAX_LEASES_SHOWN,
    MAX_PAGE,
    RETENTION_MS,
)
from flowfabric.model.ownership import places, shown_id, shown_ids, shown_policy
from flowfabric.model.quoting import quoted
from flowfabric.model.reads.overview import (
    AttemptLine,
    Ended,
    EndedCounts,
    History,
    KindFigures,
    LeaseLine,
    NamedBudget,
    Pulse,
    SignalLine,
    SpendLine,
    SuspendedLine,
    SuspendedSearchPage,
    SuspensionLine,
    WaitpointLine,
)
from flowfabric.model.records.budgets import Budget, BudgetAsk, BudgetSpend
from flowfabric.model.records.executions import Attempt, Execution, Signal, Suspension, Waitpoint
from flowfabric.model.records.past_leases import LeaseEnd, PastLease
from flowfabric.model.records.streams import StreamSummary
from flowfabric.model.states import SCOPE_NAMED, BlockingReason, canonical_public_state
from flowfabric.stores.questions import (
    CountEnded,
    CountUnended,
    Due,
    ListNamespaces,
    LiveWorkers,
    SearchExecutions,
    SearchSuspended,
    SummaryRow,
)
from flowfabric.stores.sql.search import MOST_MERGED

#: How long it is told again how late retention is.
LATE_KEPT_MS = 60_000


class Overview(FlowLists):
    """The part of the engine that answers those who look after it."""

    #: When it was looked how late retention is, and what was found.
    _retention_late: tuple[int, int] = (-LATE_KEPT_MS, 0)

    async def list_namespaces(self, after: str | None = None, limit: int = 100) -> tuple[str, ...]:
        """Namespaces that executions, schedules or workers are in, by name; quick however many there are."""
        size = values.integer(limit, "limit", 1, MAX_PAGE)
        return tuple(await self._ask(ListNamespaces(values.optional_text(after, "after"), size)))

    async def read_kinds(self, *, namespaces: Iterable[str] | None = None, window_ms: int = 3_600_000) -> KindFigures:
        """What was created in the last ``window_ms``, by kind: how much, how many failed, how long they took. Looks at
        the newest ``MAX_KINDS_SAMPLED`` executions at most."""
        window = values.integer(window_ms, "window_ms", 1_000, MAX_KINDS_WINDOW_MS)
        now = await self.now_ms()
        since = max(now - window, 0)
        own: tuple[str | None, ...] | None = sorted_namespaces(namespaces)
        if own is None:
            known = await self._ask(ListNamespaces(None, MOST_MERGED))
            own = (None, *known) if len(known) < MOST_MERGED else None
        found: list[SummaryRow] = await self._ask(
            SearchExecutions(MAX_KINDS_SAMPLED + 1, None, own, created_from_ms=since)
        )
        complete = len(found) <= MAX_KINDS_SAMPLED
        looked = found[:MAX_KINDS_SAMPLED]
        lines = by_kind(
            Seen(
                each.execution_kind or "",
                canonical_public_state(each.public_state),
                each.started_at_ms,
                each.terminal_at_ms,
            )
            for each in looked
        )
        return KindFigures(since if complete else looked[-1].created_at_ms, now, complete, lines)

    async def search_suspended(
        self,
        *,
        reasons: Iterable[BlockingReason | str] = (BlockingReason.WAITING_FOR_APPROVAL,),
        namespaces: Iterable[str] | None = None,
        flow_id: FlowId | str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> SuspendedSearchPage:
        """Suspended executions that wait for one of these reasons, those that were suspended last first. One that is
        suspended again meanwhile comes before the first page then."""
        size = values.integer(limit, "limit", 1, MAX_PAGE)
        wanted = tuple(dict.fromkeys(_reason(each) for each in values.few(reasons, "reasons")))
        own = sorted_namespaces(namespaces)
        flow = None if flow_id is None else values.flow_id(flow_id)
        key = None if flow is None else (self._flow_partition(flow), flow)
        found: list[SummaryRow] = await self._ask(SearchSuspended(size + 1, wanted, waiting_place(cursor), own, key))
        page = tuple(
            SuspendedLine(
                ExecutionId.of(row.partition, row.uuid),
                row.namespace or "",
                row.execution_kind or "",
                row.blocking_reason or "",
                row.created_at_ms,
                row.suspended_at_ms,
            )
            for row in found[:size]
        )
        last = found[size - 1] if len(found) > size else None
        place = None if last is None else (last.suspended_at_ms, last.uuid, last.partition)
        return SuspendedSearchPage(page, cursor_at(place))

    async def read_pulse(self) -> Pulse:
        """How much there is of what has not ended, right now."""
        counts: tuple[int, int, int, int, int, int] = await self._ask(CountUnended(MAX_COUNTED))
        now = await self.now_ms()
        workers = await self._ask(LiveWorkers(now, MAX_PAGE))
        queues = await self.queue_depths()
        return Pulse(now, *counts, len(workers), queues, await self._retention_late_ms(now))

    async def _retention_late_ms(self, now: int) -> int:
        """Looked at once a minute: members of open flows may stand before the first that is due."""
        looked_at_ms, late_ms = self._retention_late
        if not looked_at_ms <= now < looked_at_ms + LATE_KEPT_MS:
            late_ms = await self._look_for_late(now)
            self._retention_late = (now, late_ms)
        return late_ms

    async def _look_for_late(self, now: int) -> int:
        purge = await self._ask(Due("purge", now, 1))
        retention = await self._ask(Due("retention", now - RETENTION_MS, 1))
        view = await self._view(*map(GetFull, (*purge, *retention)))
        late = [0]
        if purge and (first := view.full(purge[0])) is not None:
            late.append(now - (first.purge_at_ms or now))
        if retention and (first := view.full(retention[0])) is not None:
            late.append(now - RETENTION_MS - (first.terminal_at_ms or now))
        return max(late)

    async def count_ended(self, after: int | None = None, stretch_ms: int = 60_000) -> EndedCounts:
        """How many ended and how, by stretches of time, behind the place of an earlier answer; without one, the last
        ``MAX_COUNTED``."""
        since = None if after is None else values.integer(after, "after", 0, 2**63 - 1)
        stretch = values.integer(stretch_ms, "stretch_ms", 1, 2**31)
        last, found = await self._ask(CountEnded(since, stretch, MAX_COUNTED))
        return EndedCounts(last, tuple(sorted((Ended(*each) for each in found), key=lambda each: each.from_ms)))

    async def read_history(self, execution_id: ExecutionId | str) -> History:
        """What an execution went through, as far as it is stored: attempts, waits, signals, spending."""
        identity = values.execution_id(execution_id)
        key = (identity.partition, identity.uuid_text)
        view = await self._view(
            GetFull(identity),
            Get(Suspension, key),
            Select(Attempt, ("partition", "uuid"), key),
            Select(PastLease, ("partition", "uuid"), key),
            Select(Waitpoint, ("partition", "uuid"), key),
            Select(Signal, ("partition", "uuid"), key),
            Select(BudgetSpend, ("uuid",), key[1:]),
            Select(BudgetAsk, ("partition", "uuid"), key),
        )
        execution = view.full(identity)
        if execution is None:
            raise NotFound("execution", identity)
        stream = Get(StreamSummary, (identity, execution.attempt_index))
        spends = [each for each in view.select(BudgetSpend, uuid=key[1]) if each.delta_total]
        asked = [each.budget_id for each in view.select(BudgetAsk, partition=key[0], uuid=key[1])]
        charged = {*asked, *(each.budget_id for each in spends)}.union(
            *(places(name, execution.namespace) for name in named_budgets(execution.budget_ids or ""))
        )
        more = await self._view(stream, *(Get(Budget, each) for each in charged))
        summary = more.get(StreamSummary, stream.key)
        attempts = view.select(Attempt, partition=key[0], uuid=key[1])
        past = view.select(PastLease, partition=key[0], uuid=key[1])
        waitpoints = view.select(Waitpoint, partition=key[0], uuid=key[1])
        signals = view.select(Signal, partition=key[0], uuid=key[1])
        suspension = view.get(Suspension, key)
        named = () if suspension is None else read_terms(suspension).waitpoints
        raw = parse_document(execution.raw_fields, "raw_fields")
        tags = raw.get("tags")
        return History(
            execution_id=identity,
            created_at=execution.created_at_ms,
            started_at=execution.started_at_ms,
            ended_at=execution.terminal_at_ms,
            deadline_at=execution.deadline_at_ms,
            delay_until=execution.delay_until_ms,
            retry_count=execution.retry_count,
            lease_reclaim_count=execution.lease_reclaim_count,
            failure_reason=execution.failure_reason or execution.last_failure_message or None,
            cancellation_reason=execution.cancellation_reason or None,
            cancelled_by=execution.cancelled_by or None,
            creator_identity=str(raw.get("creator_identity") or ""),
            payload_encoding=raw.get("payload_encoding") or None,
            parent=None if execution.parent is None else ExecutionId.of(identity.partition, execution.parent),
            forked_from=tags.get(FORKED_FROM) if isinstance(tags, dict) else None,
            budget_ids=shown_ids(execution.budget_ids),
            quota_policy_id=None if execution.quota_policy_id is None else shown_id(execution.quota_policy_id),
            required_capabilities=tuple(execution.required_capabilities),
            policy=shown_policy(execution.policy),
            has_summary=summary is not None,
            attempts=tuple(_attempt_line(each) for each in sorted(attempts, key=lambda each: each.attempt_index)),
            leases=_lease_lines(past, attempts)[-MAX_LEASES_SHOWN:],
            suspension=_suspension_line(suspension, named),
            waitpoints=tuple(map(_waitpoint_line, _in_order(waitpoints, named))),
            signals=tuple(_signal_line(each) for each in sorted(signals, key=lambda each: each.sequence)),
            spends=tuple(_spend_line(each, more.get(Budget, each.budget_id), self._within) for each in spends),
            budgets=_budgets_of(execution, asked, more, self._within),
        )


def _reason(value: Any) -> str:
    known = [each.value for each in BlockingReason]
    if not isinstance(value, str) or str.__str__(value) not in known:
        raise values.invalid(f"reasons: {quoted(value)} is not one of {', '.join(known)}")
    return str.__str__(value)


def _attempt_line(attempt: Attempt) -> AttemptLine:
    return AttemptLine(
        attempt.attempt_index,
        attempt.attempt_type or "",
        attempt.worker_id or None,
        attempt.worker_instance_id or None,
        attempt.lease_epoch,
        attempt.lease_expires_at_ms,
        attempt.renewed_at_ms,
        attempt.started_at_ms,
        attempt.terminal_at_ms,
        attempt.outcome,
        attempt.retry_at_ms,
    )


def _lease_lines(past: Iterable[PastLease], attempts: Iterable[Attempt]) -> tuple[LeaseLine, ...]:
    """Those that are over while their attempt went on, and the last one of each attempt, from its row."""
    lines: dict[str | None, tuple[int, LeaseLine]] = {}
    for each in sorted(past, key=lambda each: each.lease_epoch):
        line = LeaseLine(
            each.attempt_index,
            each.worker_id,
            each.worker_instance_id,
            each.began_at_ms,
            each.ended_at_ms,
            None,
            LeaseEnd(each.ended),
            each.reason,
        )
        lines.setdefault(each.lease_id, (each.lease_epoch, line))
    rows = list(attempts)
    last = max((row.attempt_index for row in rows), default=0)
    for row in rows:
        live = is_live(row)
        if row.started_at_ms is None or not (live or row.terminal_at_ms is not None):
            continue
        how = how_it_ended(row)
        if how == LeaseEnd.RECLAIMED and row.attempt_index == last:
            how = LeaseEnd.EXPIRED  # It was lost once too often: nobody took it over.
        line = LeaseLine(
            row.attempt_index,
            row.worker_id or None,
            row.worker_instance_id or last_instance(row),
            row.started_at_ms,
            None if live else row.terminal_at_ms,
            row.lease_expires_at_ms if live else None,
            None if live else how,
            None,
        )
        lines.setdefault(row.lease_id, (row.lease_epoch, line))
    return tuple(line for _, line in sorted(lines.values(), key=lambda each: each[0]))


def _in_order(waitpoints: Iterable[Waitpoint], named: Sequence[str]) -> list[Waitpoint]:
    """Oldest first; those of the suspension as its terms name them, the primary one first."""
    places = {each: place for place, each in enumerate(named)}
    return sorted(
        waitpoints, key=lambda each: (each.created_at_ms, places.get(each.waitpoint_id, -1), each.waitpoint_id)
    )


def _suspension_line(suspension: Suspension | None, named: tuple[str, ...]) -> SuspensionLine | None:
    if suspension is None:
        return None
    return SuspensionLine(
        suspension.reason_code or "",
        suspension.suspended_at_ms,
        suspension.timeout_at_ms,
        suspension.timeout_behavior,
        suspension.closed_at_ms,
        suspension.close_reason,
        suspension.attempt_index,
        named,
    )


def _waitpoint_line(waitpoint: Waitpoint) -> WaitpointLine:
    return WaitpointLine(
        waitpoint.waitpoint_id,
        waitpoint.waitpoint_key,
        waitpoint.state,
        waitpoint.created_at_ms,
        waitpoint.expires_at_ms,
        waitpoint.closed_at_ms,
        waitpoint.signal_count,
        waitpoint.last_signal_at_ms,
    )


def _signal_line(signal: Signal) -> SignalLine:
    return SignalLine(
        signal.signal_id,
        signal.waitpoint_key,
        signal.signal_name,
        signal.source_type,
        signal.source_identity,
        signal.accepted_at_ms,
        signal.effect,
        signal.payload,
        signal.payload_encoding,
        signal.waitpoint_id,
    )


def _spend_line(spend: BudgetSpend, budget: Budget | None, within: frozenset[str] | None) -> SpendLine:
    owner = None if budget is None else budget.namespace
    name = None if budget is None or not (within is None or owner in within) else _budget_name(budget)
    return SpendLine(shown_id(spend.budget_id), spend.dimensions_key, spend.delta_total, owner, name)


def _budget_name(budget: Budget) -> str | None:
    return budget.scope_id if budget.scope_type == SCOPE_NAMED and budget.scope_id else None


def _budgets_of(
    execution: Execution, asked: Iterable[str], view: View, within: frozenset[str] | None
) -> tuple[NamedBudget, ...]:
    """The budgets that an execution names, or has asked; for a caller who is limited to namespaces, those of them."""
    named = [found(view.get, Budget, name, execution.namespace) for name in named_budgets(execution.budget_ids or "")]
    known = {each.budget_id: each for each in (*named, *(view.get(Budget, name) for name in asked)) if each is not None}
    return tuple(
        NamedBudget(shown_id(each.budget_id), each.namespace, _budget_name(each))
        for each in known.values()
        if within is None or each.namespace in within
    )
