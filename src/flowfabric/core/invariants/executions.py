"""Invariants of executions, judged from stored rows and written events alone.

The checks know no operation: they take records as a store holds them and say which promise is broken. Tests run them
after every step; a person runs them on a live store. Names of promises (``I3``) are those of the reliability design.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import msgspec

from flowfabric.core.batch.view import View
from flowfabric.core.leases.lease import is_live
from flowfabric.model import states as lit
from flowfabric.model.counting import counted
from flowfabric.model.decisions import Get
from flowfabric.model.errors import Validation
from flowfabric.model.events import CompletionEvent, Event, LeaseEvent, OperatorEvent
from flowfabric.model.policy import read_policy
from flowfabric.model.reads.examine import Violation
from flowfabric.model.records.executions import Attempt, Execution, Grant, Suspension
from flowfabric.model.states import (
    StateVector,
    TerminalOutcome,
    canonical_attempt_state,
    canonical_blocking_reason,
    canonical_eligibility,
    canonical_ownership,
    canonical_phase,
    canonical_public_state,
    derive_terminal_outcome,
    legal,
)

#: Caps for executions whose policy names none.
DEFAULT_RECLAIM_CAP = 1000
MAX_PRIORITY = 9000
#: The reason every blocked state goes with.
_REASONS = {
    lit.BLOCKED_BY_DEPENDENCIES: lit.WAITING_FOR_CHILDREN,
    lit.BLOCKED_BY_BUDGET: lit.WAITING_FOR_BUDGET,
    lit.BLOCKED_BY_QUOTA: lit.WAITING_FOR_QUOTA,
    lit.BLOCKED_BY_ROUTE: lit.WAITING_FOR_CAPABLE_WORKER,
    lit.BLOCKED_BY_OPERATOR: lit.PAUSED_BY_OPERATOR,
    lit.BLOCKED_BY_LANE_STATE: lit.PAUSED_BY_POLICY,
}
_GRANTS = (lit.LEASE_ACQUIRED, lit.LEASE_RECLAIMED)
_ENDS = (lit.LEASE_EXPIRED, lit.LEASE_ENDED)


class _Findings:
    """Collects what does not hold about one subject."""

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self.found: list[Violation] = []

    def expect(self, holds: object, invariant: str, detail: str) -> None:
        if not holds:
            self.found.append(Violation(invariant, self._subject, detail))


# -- rows ------------------------------------------------------------------------------------------------------------


def check_execution(
    execution: Execution, attempts: Sequence[Attempt], grants: Sequence[Grant], now: int
) -> list[Violation]:
    """Everything that can be judged from one execution's rows. ``attempts`` are all of its attempts, by index."""
    findings = _Findings(execution.execution_id)
    current = _current(execution, attempts)
    _check_state(findings, execution, current)
    _check_lease(findings, execution, attempts, current)
    _check_attempts(findings, execution, attempts)
    _check_counts(findings, execution, attempts)
    _check_grants(findings, execution, grants, now)
    _check_times(findings, execution, attempts, now)
    return findings.found


def _current(execution: Execution, attempts: Sequence[Attempt]) -> Attempt | None:
    return next((each for each in attempts if each.attempt_index == execution.attempt_index), None)


def outcome_of(execution: Execution, current: Attempt | None) -> TerminalOutcome:
    """How the execution ended, ``none`` while it has not."""
    stored = execution.terminal_outcome if isinstance(execution.terminal_outcome, str) else None
    attempt = current.outcome if current is not None else None
    return derive_terminal_outcome(execution.lifecycle_phase, attempt, stored, execution.public_state)


def _check_state(findings: _Findings, execution: Execution, current: Attempt | None) -> None:
    try:
        vector = StateVector(
            lifecycle_phase=canonical_phase(execution.lifecycle_phase),
            ownership_state=canonical_ownership(execution.ownership_state),
            eligibility_state=canonical_eligibility(execution.eligibility_state),
            blocking_reason=canonical_blocking_reason(execution.blocking_reason),
            terminal_outcome=outcome_of(execution, current),
            attempt_state=canonical_attempt_state(execution.attempt_state),
            public_state=canonical_public_state(execution.public_state),
        )
    except Validation as error:
        findings.expect(False, "I12", f"unknown literal: {error.detail}")
        return
    findings.expect(legal(vector), "I12", f"states that contradict each other: {vector}")
    findings.expect(vector.is_consistent(), "I12", f"public_state does not follow from the other states: {vector}")
    ended = execution.lifecycle_phase in lit.ENDED_PHASES
    findings.expect((execution.terminal_at_ms is not None) == ended, "I12", "terminal_at_ms is set iff it has ended")
    delayed = execution.eligibility_state == lit.NOT_ELIGIBLE_UNTIL_TIME
    findings.expect(
        execution.delay_until_ms is None or delayed or execution.eligibility_state == lit.BLOCKED_BY_DEPENDENCIES,
        "I12",
        f"a wake time on a row that is {execution.eligibility_state}",
    )
    if execution.cancel_at_ms is not None and not ended:
        limit = execution.deadline_at_ms
        findings.expect(limit == execution.cancel_at_ms, "I12", f"it was asked to cancel, but its deadline is {limit}")
    reason = _REASONS.get(execution.eligibility_state)
    if reason is not None:
        stored = execution.blocking_reason
        findings.expect(stored == reason, "I12", f"{execution.eligibility_state} because of {stored}")
    if isinstance(execution.result, bytes):
        findings.expect(
            execution.public_state == lit.PUBLIC_COMPLETED, "I10", "a result on an execution that is not completed"
        )


def _check_lease(
    findings: _Findings, execution: Execution, attempts: Sequence[Attempt], current: Attempt | None
) -> None:
    owned = current is not None and bool(current.worker_instance_id)
    active = execution.lifecycle_phase == lit.ACTIVE
    # A revoked lease may leave an active row without an owner, waiting to be reclaimed.
    findings.expect(
        owned == active or execution.ownership_state == lit.LEASE_REVOKED,
        "I3",
        f"owner is {current.worker_instance_id if current else None!r} in phase {execution.lifecycle_phase}",
    )
    if execution.ownership_state == lit.LEASED and current is not None:
        findings.expect(current.lease_expires_at_ms is not None, "I3", "a lease without an expiry")
        findings.expect(current.outcome is None, "I12", f"a running attempt with outcome {current.outcome}")
    for attempt in attempts:
        findings.expect(attempt is current or not attempt.worker_instance_id, "I1", f"{_spoken(attempt)} has an owner")
        findings.expect(
            attempt.lease_expires_at_ms is None or attempt.worker_instance_id,
            "I3",
            f"{_spoken(attempt)} has a lease expiry and no owner",
        )
        if lit.is_claimable(execution.lifecycle_phase, execution.eligibility_state):
            findings.expect(attempt.lease_expires_at_ms is None, "I1", f"claimable with a lease on {_spoken(attempt)}")


def _spoken(attempt: Attempt) -> str:
    """An attempt as people count them."""
    return f"attempt {attempt.attempt_index + 1}"


def _check_attempts(findings: _Findings, execution: Execution, attempts: Sequence[Attempt]) -> None:
    indexes = [attempt.attempt_index for attempt in attempts]
    numbers = [index + 1 for index in indexes]
    findings.expect(indexes == list(range(len(indexes))), "I11", f"attempts {numbers} have gaps")
    due = (max(len(indexes) - 1, 0), len(indexes))
    findings.expect(
        execution.attempt_index in due, "I11", f"points at attempt {execution.attempt_index + 1} of {numbers}"
    )
    for before, after in pairwise(attempts):
        findings.expect(
            before.lease_epoch < after.lease_epoch,
            "I2",
            f"epoch {after.lease_epoch} of {_spoken(after)} is not above {before.lease_epoch}",
        )


def _check_counts(findings: _Findings, execution: Execution, attempts: Sequence[Attempt]) -> None:
    policy = read_policy(execution.policy)
    if policy.retry_policy is not None:
        limit = policy.retry_policy.max_retries
        findings.expect(
            execution.retry_count <= limit, "I11", f"{counted(execution.retry_count, 'retry', 'retries')} of {limit}"
        )
    cap = DEFAULT_RECLAIM_CAP if policy.max_reclaim_count is None else policy.max_reclaim_count
    findings.expect(
        execution.lease_reclaim_count <= cap, "I11", f"{counted(execution.lease_reclaim_count, 'reclaim')} of {cap}"
    )
    started = sum(attempt.lease_epoch > 0 for attempt in attempts)
    total = execution.total_attempt_count
    findings.expect(total >= started, "I11", f"{counted(started, 'attempt')} started, {total} counted")
    replays = replay_count(execution)
    if replays is not None:
        findings.expect(
            replays <= policy.max_replay_count, "I11", f"{counted(replays, 'replay')} of {policy.max_replay_count}"
        )
        findings.expect(
            total <= started + replays, "I11", f"{total} counted, {started} started, {counted(replays, 'replay')}"
        )
    findings.expect(0 <= execution.priority <= MAX_PRIORITY, "I11", f"priority {execution.priority}")


def replay_count(execution: Execution) -> int | None:
    """How often the execution was replayed; ``None`` if its document was not loaded."""
    if not isinstance(execution.raw_fields, str):
        return None
    try:
        document = msgspec.json.decode(execution.raw_fields or "{}")
    except (msgspec.DecodeError, RecursionError):
        return None
    found = document.get("replay_count", 0) if isinstance(document, dict) else 0
    return found if isinstance(found, int) else 0


def _check_grants(findings: _Findings, execution: Execution, grants: Sequence[Grant], now: int) -> None:
    live = Counter(grant.kind for grant in grants if not grant.expires_at_ms or grant.expires_at_ms > now)
    for kind, count in live.items():
        findings.expect(count == 1, "I1", f"{counted(count, 'live grant')} of kind {kind}")
    claims = any(grant.kind == lit.GRANT_CLAIM for grant in grants)
    hidden = execution.eligibility_state == lit.PENDING_CLAIM
    findings.expect(claims == hidden, "I1", "the state pending_claim and its claim grants disagree")


def _check_times(findings: _Findings, execution: Execution, attempts: Sequence[Attempt], now: int) -> None:
    born, started, ended = execution.created_at_ms, execution.started_at_ms, execution.terminal_at_ms
    findings.expect(born <= now, "I18", "created in the future")
    findings.expect(started is None or born <= started <= now, "I18", "started before it was created, or in the future")
    findings.expect(
        ended is None or max(born, started or 0) <= ended <= now,
        "I18",
        "ended before it was created or started, or in the future",
    )
    findings.expect(
        (started is not None) == (execution.total_attempt_count > 0),
        "I11",
        "started_at_ms and the number of attempts disagree",
    )
    for attempt in attempts:
        began = attempt.started_at_ms
        findings.expect(began is None or began <= now, "I18", f"{_spoken(attempt)} begins in the future")


# -- two looks at one execution --------------------------------------------------------------------------------------


def check_transition(
    before: tuple[Execution, Sequence[Attempt]], after: tuple[Execution, Sequence[Attempt]]
) -> list[Violation]:
    """What no number of steps may do to one execution between two looks at it."""
    (old, old_attempts), (new, new_attempts) = before, after
    findings = _Findings(new.execution_id)
    for field in ("lane_id", "namespace", "required_capabilities", "created_at_ms", "policy"):
        findings.expect(getattr(old, field) == getattr(new, field), "I12", f"{field} changed")
    findings.expect(old.flow_id in (None, new.flow_id), "I12", "left its flow")
    findings.expect(old.started_at_ms in (None, new.started_at_ms), "I12", "started_at_ms is set once")
    findings.expect(new.total_attempt_count >= old.total_attempt_count, "I11", "fewer attempts than before")
    findings.expect(len(new_attempts) >= len(old_attempts), "I11", "an attempt vanished")
    for was, now in zip(old_attempts, new_attempts, strict=False):
        where = _spoken(now)
        findings.expect(now.lease_epoch >= was.lease_epoch, "I2", f"{where}: epoch fell")
        same = now.lease_epoch == was.lease_epoch and now.worker_instance_id and was.worker_instance_id
        findings.expect(not same or now.lease_id == was.lease_id, "I2", f"{where}: two leases with one epoch")
        if same and now.lease_expires_at_ms is not None and was.lease_expires_at_ms is not None:
            findings.expect(now.lease_expires_at_ms >= was.lease_expires_at_ms, "I6", f"{where}: the lease got shorter")
    replayed = (replay_count(new) or 0) > (replay_count(old) or 0)
    # A member may be given the result of another as its input, until it ends.
    handed = new.flow_id is not None and (replayed or old.lifecycle_phase not in lit.ENDED_PHASES)
    findings.expect(old.payload == new.payload or handed, "I12", "payload changed")
    if old.lifecycle_phase in lit.ENDED_PHASES and not replayed:
        findings.expect(new.lifecycle_phase == old.lifecycle_phase, "I8", "an ended execution went on")
        for field in ("terminal_at_ms", "public_state", "result", "terminal_outcome", "cancelled_by"):
            findings.expect(getattr(old, field) == getattr(new, field), "I8", f"{field} changed after the end")
    findings.expect(old.lifecycle_phase != lit.CANCELLED or not replayed, "I8", "a cancelled execution was replayed")
    return findings.found


# -- events ----------------------------------------------------------------------------------------------------------


class _Lease(NamedTuple):
    attempt_index: int
    epoch: int


def _lease_of(event: LeaseEvent) -> _Lease | None:
    """Attempt and epoch from the text ``<store>:<uuid>:<attempt_index>:<epoch>``."""
    parts = (event.lease_id or "").split(":")
    if len(parts) != 4 or parts[1] != event.uuid or not (parts[2].isdigit() and parts[3].isdigit()):
        return None
    return _Lease(int(parts[2]), int(parts[3]))


def check_events(execution: Execution, attempts: Sequence[Attempt], events: Iterable[Event]) -> list[Violation]:
    """One execution's events against each other and against how the execution stands now.

    Events of one outbox come in the order of their ids; outboxes may be mixed in any way.
    """
    findings = _Findings(execution.execution_id)
    own = [event for event in events if _subject(event) == execution.uuid]
    leases = [event for event in own if isinstance(event, LeaseEvent)]
    completions = [event for event in own if isinstance(event, CompletionEvent)]
    replays = [event for event in own if isinstance(event, OperatorEvent) and event.event_type == "replayed"]
    for kind in (LeaseEvent, CompletionEvent, OperatorEvent):
        times = [event.occurred_at_ms for event in own if isinstance(event, kind)]
        findings.expect(times == sorted(times), "I19", f"{kind.__name__} times run backwards: {times}")
    _check_lease_log(findings, execution, attempts, leases)
    _check_ends(findings, execution, attempts, completions, replays)
    return findings.found


def _subject(event: Event) -> str:
    return event.subject if isinstance(event, OperatorEvent) else event.uuid


def _check_lease_log(
    findings: _Findings, execution: Execution, attempts: Sequence[Attempt], events: Sequence[LeaseEvent]
) -> None:
    newest: _Lease | None = None
    state = lit.LEASE_ENDED
    for event in events:
        named = _lease_of(event)
        if named is None:
            findings.expect(False, "I20", f"lease id {event.lease_id!r} does not name a lease of this execution")
            continue
        live = state not in _ENDS
        if event.event_type in _GRANTS:
            # Only a take-over may end a lease that nobody has declared lost.
            taken_over = event.event_type == lit.LEASE_RECLAIMED
            findings.expect(not live or taken_over, "I1", f"{named} while {newest} is live")
            findings.expect(newest is None or named.epoch > newest.epoch, "I2", f"epoch of {named} after {newest}")
            newest = named
        else:
            findings.expect(named == newest, "I4", f"{event.event_type} of {named} while {newest} is the newest lease")
            # A lease marked as lost may still be taken away; one that was taken away is gone.
            over = state == lit.LEASE_ENDED or (state == lit.LEASE_EXPIRED and event.event_type != lit.LEASE_ENDED)
            findings.expect(not over, "I1", f"{event.event_type} of {named}, which is over")
        state = event.event_type
    current = _current(execution, attempts)
    if execution.ownership_state == lit.LEASED and current is not None:
        held = _Lease(current.attempt_index, current.lease_epoch)
        findings.expect(state not in _ENDS and newest == held, "I20", f"{held} is held, the log ends with {newest}")
    elif execution.ownership_state == lit.LEASE_EXPIRED_RECLAIMABLE:
        findings.expect(state == lit.LEASE_EXPIRED, "I20", f"marked as expired, the log ends with {state}")
    elif execution.cancelled_by != "cancel_flow_header":
        # A flow whose header is cancelled announces that once, not for each lease.
        findings.expect(state in _ENDS, "I20", f"nobody holds a lease, the log says {newest} {state}")


def _check_ends(
    findings: _Findings,
    execution: Execution,
    attempts: Sequence[Attempt],
    completions: Sequence[CompletionEvent],
    replays: Sequence[OperatorEvent],
) -> None:
    """One end for each generation; a replay opens the next one."""
    ended = execution.lifecycle_phase in lit.ENDED_PHASES
    wanted = len(replays) + ended
    findings.expect(
        len(completions) == wanted,
        "I8",
        f"{counted(len(completions), 'end')} announced, {counted(len(replays), 'replay')}, ended: {ended}",
    )
    for end, again in zip(completions, replays, strict=False):
        findings.expect(end.occurred_at_ms <= again.occurred_at_ms, "I8", "replayed before it ended")
    for again, end in zip(replays, completions[1:], strict=False):
        findings.expect(again.occurred_at_ms <= end.occurred_at_ms, "I8", "ended twice between two replays")
    if ended and completions:
        last, outcome = completions[-1], outcome_of(execution, _current(execution, attempts))
        findings.expect(last.outcome == outcome, "I20", f"announced as {last.outcome}, ended as {outcome}")
        findings.expect(
            last.occurred_at_ms == execution.terminal_at_ms, "I20", "announced at another time than the end"
        )


# -- all of them -----------------------------------------------------------------------------------------------------

#: ``(namespace, lane)``.
Place: TypeAlias = tuple[str | None, str]


def standing(execution: Execution) -> str | None:
    """Where an execution is counted; ``None`` if it is nowhere, which must not be."""
    phase, eligibility = execution.lifecycle_phase, execution.eligibility_state
    if phase in lit.ENDED_PHASES:
        return "terminal"
    if phase == lit.ACTIVE:
        return "active"
    if phase == lit.SUSPENDED:
        return "suspended"
    if phase not in lit.WAITING_PHASES:
        return None
    if eligibility in lit.GRANTABLE_STATES:
        return "ready"
    if eligibility == lit.NOT_ELIGIBLE_UNTIL_TIME:
        return "delayed"
    blocked = eligibility in lit.ADMISSION_BLOCKS or eligibility == lit.BLOCKED_BY_DEPENDENCIES
    return "blocked" if blocked else None


def conservation(executions: Iterable[Execution]) -> dict[Place, Counter[str]]:
    """How many executions stand where, per namespace and lane."""
    counts: dict[Place, Counter[str]] = {}
    for execution in executions:
        place = counts.setdefault((execution.namespace, execution.lane_id), Counter())
        place[standing(execution) or "nowhere"] += 1
    return counts


def check_conservation(executions: Iterable[Execution], submitted: Mapping[Place, int]) -> list[Violation]:
    """Nothing is lost and nothing appears: what was submitted and not purged stands somewhere, once."""
    counts = conservation(executions)
    found: list[Violation] = []
    for place in counts.keys() | submitted.keys():
        stands = counts.get(place, Counter())
        findings = _Findings(f"{place[0]}/{place[1]}")
        wanted = submitted.get(place, 0)
        findings.expect(stands.total() == wanted, "I13", f"{wanted} submitted, {dict(stands)}")
        findings.expect(
            not stands["nowhere"],
            "I13",
            f"{counted(stands['nowhere'], 'execution is', 'executions are')} in no state",
        )
        found += findings.found
    return found


# -- a few things that must hold of every stored execution, cheap enough to be looked at all the time ----------------
#
# The checks above want whole histories; these need one look at a row and what stands beside it.


def unsound(execution_id: str, view: View) -> str | None:
    """What does not hold about an execution; ``None`` if all does, or if there is no such execution."""
    execution = view.execution(execution_id)
    if execution is None:
        return None
    attempt = view.attempt(execution_id, execution.attempt_index)
    if execution.lifecycle_phase == lit.ACTIVE and attempt is None:
        return f"it is active, but its attempt {execution.attempt_index + 1} does not exist"
    if execution.lifecycle_phase == lit.SUSPENDED and not _is_suspended(view, execution):
        return "it is suspended, but has no open suspension"
    waits = lit.is_claimable(execution.lifecycle_phase, execution.eligibility_state)
    if waits and attempt is not None and is_live(attempt):
        return f"it can be claimed, but worker {attempt.worker_instance_id} holds a lease on it"
    return None


def _is_suspended(view: View, execution: Execution) -> bool:
    key = (execution.partition, execution.uuid)
    view.require((Get(Suspension, key),))
    suspension = view.get(Suspension, key)
    return suspension is not None and suspension.closed_at_ms is None
