"""Invariants of executions that wait, judged from stored rows alone; see ``executions`` for the rest.

``I27`` a suspended execution holds no lease, ``I28`` no accepted signal is lost, ``I29`` a suspension ends once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from flowfabric.core.suspension import waits
from flowfabric.model import states as lit
from flowfabric.model.conditions import Effect, Heard, satisfied
from flowfabric.model.limits import WAITPOINTS_KEPT
from flowfabric.model.reads.examine import Violation
from flowfabric.model.records.executions import Attempt, Execution, Signal, Suspension, Waitpoint


class _Findings:
    def __init__(self, subject: str) -> None:
        self._subject = subject
        self.found: list[Violation] = []

    def expect(self, holds: object, invariant: str, detail: str) -> None:
        if not holds:
            self.found.append(Violation(invariant, self._subject, detail))


def check_waits(
    execution: Execution,
    attempt: Attempt | None,
    suspension: Suspension | None,
    waitpoints: Sequence[Waitpoint],
    signals: Sequence[Signal],
) -> list[Violation]:
    """Everything that can be judged from one execution's waits. ``attempt`` is its current one."""
    findings = _Findings(execution.execution_id)
    _check_suspended(findings, execution, attempt, suspension)
    _check_waitpoints(findings, execution, suspension, waitpoints)
    _check_signals(findings, execution, waitpoints, signals)
    if suspension is not None:
        _check_ended_once(findings, suspension, waitpoints, signals)
    return findings.found


def _check_suspended(
    findings: _Findings, execution: Execution, attempt: Attempt | None, suspension: Suspension | None
) -> None:
    is_suspended = execution.lifecycle_phase == lit.SUSPENDED
    findings.expect(waits.is_open(suspension) == is_suspended, "I27", f"suspended is {is_suspended}, the row disagrees")
    if is_suspended and attempt is not None:
        owned = attempt.worker_instance_id or attempt.lease_expires_at_ms is not None
        findings.expect(not owned, "I27", "a lease on a suspended execution")
        findings.expect(attempt.outcome == lit.OUTCOME_SUSPENDED, "I27", f"suspended with outcome {attempt.outcome}")
    ended = execution.lifecycle_phase in lit.ENDED_PHASES
    findings.expect(not (ended and suspension is not None), "I29", "an ended execution with a suspension")


def _check_waitpoints(
    findings: _Findings, execution: Execution, suspension: Suspension | None, waitpoints: Sequence[Waitpoint]
) -> None:
    ended = execution.lifecycle_phase in lit.ENDED_PHASES
    owned = waits.read_terms(suspension).waitpoints if suspension is not None and waits.is_open(suspension) else ()
    for waitpoint in waitpoints:
        where = f"waitpoint {waitpoint.waitpoint_id} is {waitpoint.state}"
        findings.expect(not ended or waitpoint.state not in waits.OPEN_STATES, "I29", f"{where} after the end")
        findings.expect(
            waitpoint.state != waits.OPEN or waitpoint.waitpoint_id in owned, "I29", f"{where} and nobody waits on it"
        )
        shut = waitpoint.state in (waits.CLOSED, waits.EXPIRED)
        findings.expect(shut == (waitpoint.closed_at_ms is not None), "I29", f"{where}, {waitpoint.closed_at_ms}")
        findings.expect(shut == (waitpoint.close_reason is not None), "I29", f"{where}, {waitpoint.close_reason}")


def _check_signals(
    findings: _Findings, execution: Execution, waitpoints: Sequence[Waitpoint], signals: Sequence[Signal]
) -> None:
    heard = Counter(signal.waitpoint_id for signal in signals if signal.waitpoint_key != waits.TIMEOUT_KEY)
    for waitpoint in waitpoints:
        recorded, counted = heard.pop(waitpoint.waitpoint_id, 0), waitpoint.signal_count
        findings.expect(recorded == counted, "I28", f"signals counted: {counted}, recorded: {recorded}")
    findings.expect(not heard, "I28", f"signals on unknown waitpoints: {sorted(heard)}")
    last, newest = waits.last_sequence(execution), max((signal.sequence for signal in signals), default=0)
    if execution.signal_count:
        # Of one that waits again and again the last signal may be forgotten, with the waitpoint that heard it.
        whole = newest <= last if len(waitpoints) >= WAITPOINTS_KEPT else newest == last
        findings.expect(whole, "I28", f"signals counted: {last}, the last one is {newest}")


def _check_ended_once(
    findings: _Findings, suspension: Suspension, waitpoints: Sequence[Waitpoint], signals: Sequence[Signal]
) -> None:
    terms = waits.read_terms(suspension)
    own = [signal for signal in signals if signal.waitpoint_id in terms.waitpoints]
    closers = [signal.signal_id for signal in own if signal.effect == Effect.SATISFIED]
    findings.expect(len(closers) <= 1, "I29", f"satisfied by {closers}")
    every: dict[str, list[Heard]] = {}
    for signal in sorted(own, key=lambda each: each.sequence):
        every.setdefault(signal.waitpoint_key, []).append(waits.heard_of(signal))
    holds = satisfied(terms.condition, every)
    counted = satisfied(terms.condition, waits.read_heard(suspension))
    findings.expect(holds == counted, "I28", "the signals that count and all signals disagree")
    if suspension.closed_at_ms is None:
        findings.expect(not holds and not closers, "I29", "a condition that holds and is still open")
        return
    closer = suspension.closer_signal_id
    findings.expect(not closers or closers == [closer], "I29", f"closed by {closer}, satisfied by {closers}")
    findings.expect(closer is None or any(each.signal_id == closer for each in own), "I28", f"closer {closer} is lost")
    still = [each.waitpoint_id for each in waitpoints if each.state == waits.OPEN]
    findings.expect(not still, "I29", f"closed, but {still} are open")
