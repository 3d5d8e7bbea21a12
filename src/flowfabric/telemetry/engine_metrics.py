"""Metrics of an engine: an observer of its commits, timers and claims.

Everything is read from what was committed, so it is counted once, wherever it was asked for, and nothing is counted
that did not happen. Labels are lanes, outcomes and reasons, never ids; the number of label sets is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from flowfabric.core.admission.admit import exhausted_dimension, is_rate
from flowfabric.core.admission.budgets import RecordSpend, ReportUsage
from flowfabric.core.admission.quotas import CheckAdmission
from flowfabric.core.admission.reservations import ReserveBudget
from flowfabric.core.flows.cascade import SIBLING_IMPOSSIBLE, SIBLING_SATISFIED, CancelSiblings
from flowfabric.core.flows.reconcile import ReconcileSiblings
from flowfabric.core.leases.hold import Renew, RenewLease
from flowfabric.engine.timers.loop import TIMERS
from flowfabric.engine.transact import Outcome
from flowfabric.model import states as lit
from flowfabric.model.decisions import Writes
from flowfabric.model.errors import Contextual, EngineError, Transport
from flowfabric.model.events import CompletionEvent
from flowfabric.model.operations.budgets import BudgetAsked, ConcurrencyExceeded, HardBreach, RateExceeded
from flowfabric.model.operations.flows import AllOf, AnyOf, SiblingsCancelled, read_edge_policy
from flowfabric.model.records.executions import Attempt, Execution
from flowfabric.model.records.flows import EdgeGroup
from flowfabric.telemetry.metrics import OTHER, Counter, Histogram, Labels, Metric

#: Lanes that are told apart; further ones are ``other``.
MAX_LANES = 32
#: How attempts end, by what is stored. What goes on later, elsewhere or under another lease is no end.
ATTEMPT_OUTCOMES = {
    lit.OUTCOME_SUCCESS: "ok",
    lit.OUTCOME_FAILED: "error",
    lit.OUTCOME_EXPIRED: "timeout",
    lit.OUTCOME_CANCELLED: "cancelled",
    lit.OUTCOME_RETRY: "retry",
}
_BLOCKS = frozenset({lit.BLOCKED_BY_BUDGET, lit.BLOCKED_BY_QUOTA})
_SIBLING_REASONS = frozenset({SIBLING_SATISFIED, SIBLING_IMPOSSIBLE})


class LaneNames:
    """The first lanes that are heard of keep their names."""

    def __init__(self, most: int = MAX_LANES) -> None:
        self._most = most
        self._known: dict[str, Labels] = {}

    def label(self, lane_id: str) -> Labels:
        """The label of a lane."""
        found = self._known.get(lane_id)
        if found is None:
            if len(self._known) >= self._most - 1:
                return (OTHER,)
            found = self._known[lane_id] = (lane_id,)
        return found


class EngineMetrics:
    """Counts what engines of this process do. Set it as their ``observer``; several may share it."""

    def __init__(self) -> None:
        self.lanes = LaneNames()
        lanes = MAX_LANES
        self.cycles = Counter(
            "ff_scanner_cycle_total", "Timer runs, including idle ones.", ("scanner", "result"), 2 * len(TIMERS) + 1
        )
        self.cycle_durations = Histogram(
            "ff_scanner_cycle_duration_seconds", "Duration of timer runs.", ("scanner",), len(TIMERS) + 1
        )
        self.claims = Histogram(
            "ff_claim_from_grant_duration_seconds", "Duration of claims that found work.", ("lane",), lanes
        )
        self.to_complete = Histogram(
            "ff_claim_to_complete_seconds", "Duration of attempts from claim to end.", ("lane",), lanes
        )
        self.renewals = Counter("ff_lease_renewal_total", "Lease renewals.", ("outcome",), 3)
        self.attempts = Counter("ff_attempt_outcome_total", "Attempts that ended.", ("lane", "outcome"), 5 * lanes)
        self.ended = Counter("ff_execution_ended_total", "Executions that ended.", ("outcome",), 7)
        self.budget_hits = Counter(
            "ff_budget_hit_total", "Admissions and charges denied by a hard limit.", ("dimension",)
        )
        self.quota_hits = Counter("ff_quota_hit_total", "Admissions denied by a quota.", ("reason",), 3)
        self.policies = Counter("ff_edge_group_policy_total", "Edge group policies set.", ("policy",), 4)
        self.siblings = Counter(
            "ff_sibling_cancel_dispatched_total", "Flow members cancelled as no longer needed.", ("reason",), 3
        )
        self.dispositions = Counter(
            "ff_sibling_cancel_disposition_total", "Outcomes of members no longer needed.", ("disposition",), 4
        )
        self.reconciled = Counter(
            "ff_sibling_cancel_reconcile_total", "Reconciled lists of members to cancel.", ("action",), 5
        )
        self.store_errors = Counter("ff_store_error_total", "Failed commits, by kind of error.", ("kind",), 12)
        #: Commands whose answers tell something.
        self._answers: Mapping[type, Callable[[Any], None]] = {
            Renew: self._renewed,
            RenewLease: self._renewed,
            ReportUsage: self._charged,
            RecordSpend: self._charged,
            ReserveBudget: self._charged,
            CheckAdmission: self._admitted,
            CancelSiblings: self._siblings_cancelled,
            ReconcileSiblings: self._siblings_reconciled,
        }

    def __iter__(self) -> Iterator[Metric]:
        return iter([each for each in vars(self).values() if isinstance(each, Metric)])

    # -- what an engine tells ------------------------------------------------------------------------------------

    def ticked(self, timer: str, seconds: float, error: BaseException | None) -> None:
        """A timer has had a turn."""
        self.cycles.add((timer, "ok" if error is None else "error"))
        self.cycle_durations.observe(seconds, (timer,))

    def claimed(self, lanes: Sequence[str], seconds: float) -> None:
        """A claim has found work."""
        for lane in lanes:
            self.claims.observe(seconds, self.lanes.label(lane))

    def failed(self, commands: Sequence[Any], error: BaseException) -> None:
        """A batch could not be committed."""
        while isinstance(error, Contextual):
            error = error.inner
        kind = str(error.kind) if isinstance(error, Transport) else getattr(error, "family", OTHER)
        self.store_errors.add((kind,))
        lost = sum(type(command) in (Renew, RenewLease) for command in commands)
        if lost:
            self.renewals.add(("error",), lost)

    def committed(self, commands: Sequence[Any], outcome: Outcome) -> None:
        """A batch is durable."""
        handlers = self._answers
        for command, answer in zip(commands, outcome.answers, strict=True):
            handler = handlers.get(type(command))
            if handler is not None:
                handler(answer)
        writes = outcome.writes
        if writes is None:
            return
        puts = writes.puts
        if Attempt in puts:
            self._count_attempts(writes)
        if Execution in puts:
            self._count_executions(writes)
        if EdgeGroup in puts:
            self._count_groups(writes)
        for event in writes.events:
            if type(event) is CompletionEvent:
                self.ended.add((event.outcome,))

    # -- answers -------------------------------------------------------------------------------------------------

    def _renewed(self, answer: Any) -> None:
        self.renewals.add(("error",) if isinstance(answer, EngineError) else ("ok",))

    def _charged(self, answer: Any) -> None:
        breach = answer.breach if isinstance(answer, BudgetAsked) else answer
        if isinstance(breach, HardBreach):
            self.budget_hits.add((breach.dimension,))

    def _admitted(self, answer: Any) -> None:
        if isinstance(answer, RateExceeded | ConcurrencyExceeded):
            self.quota_hits.add(("rate" if isinstance(answer, RateExceeded) else "concurrency",))

    def _siblings_cancelled(self, answer: Any) -> None:
        if isinstance(answer, SiblingsCancelled):
            for disposition, count in (("already_terminal", answer.already_ended), ("not_found", answer.not_found)):
                if count:
                    self.dispositions.add((disposition,), count)

    def _siblings_reconciled(self, answer: Any) -> None:
        if isinstance(answer, str):
            self.reconciled.add((answer,))

    # -- writes --------------------------------------------------------------------------------------------------

    def _count_attempts(self, writes: Writes) -> None:
        records, executions = writes.records[Attempt], writes.records.get(Execution, {})
        for key, fields in writes.puts[Attempt].items():
            if fields is not None and "outcome" not in fields:
                continue
            attempt = records[key]
            ended = ATTEMPT_OUTCOMES.get(attempt.outcome)
            execution = executions.get(key[0])
            if ended is None or execution is None:
                continue
            lane = self.lanes.label(execution.lane_id)
            self.attempts.add((*lane, ended))
            if attempt.started_at_ms is not None and attempt.terminal_at_ms is not None:
                self.to_complete.observe(max(attempt.terminal_at_ms - attempt.started_at_ms, 0) / 1000, lane)

    def _count_executions(self, writes: Writes) -> None:
        records = writes.records[Execution]
        for key, fields in writes.puts[Execution].items():
            execution = records[key]
            if execution is None or fields is None:
                continue
            if execution.eligibility_state in _BLOCKS:
                if "blocking_detail" in fields:
                    self._count_block(execution)
            elif "cancellation_reason" in fields and execution.cancellation_reason in _SIBLING_REASONS:
                self.siblings.add((execution.cancellation_reason,))
                self.dispositions.add(("cancelled",))

    def _count_block(self, execution: Execution) -> None:
        detail = execution.blocking_detail
        text = detail if isinstance(detail, str) else None
        if execution.eligibility_state == lit.BLOCKED_BY_QUOTA:
            self.quota_hits.add(("rate" if is_rate(text) else "concurrency",))
        else:
            self.budget_hits.add((exhausted_dimension(text) or OTHER,))

    def _count_groups(self, writes: Writes) -> None:
        records = writes.records[EdgeGroup]
        for key, fields in writes.puts[EdgeGroup].items():
            if fields is None or "policy" in fields:
                policy = read_edge_policy(records[key].policy)
                kind = "all_of" if isinstance(policy, AllOf) else "any_of" if isinstance(policy, AnyOf) else "quorum"
                self.policies.add((kind,))
