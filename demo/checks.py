"""Holds the stored rows against the plan. Every check names what it found wrong; nothing found means it held."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Self

from demo.plan import BACKLOG, JOBS, LOCKED, STORY, Job, attempts_planned
from demo.rows import Stored
from demo.scenario import Story
from flowfabric import ExecutionId
from flowfabric.core.invariants import executions
from flowfabric.model.events import CompletionEvent, LeaseEvent, OperatorEvent

OUTCOMES = {"completed": "success", "failed": "failed", "cancelled": "cancelled", "expired": "expired"}
#: Names of the invariants that speak of leases and epochs; the others speak of rows and events.
ABOUT_LEASES = ("I1", "I2", "I3", "I4")


class Check(NamedTuple):
    """One promise, and where it was broken."""

    promise: str
    violations: list[str]


class Checker:
    """Everything that must be true once all is done."""

    def __init__(self, story: Story, stored: dict[ExecutionId, Stored], now_ms: int) -> None:
        self.story = story
        self.missing = [job.title for job in JOBS if story.ids.get(job) not in stored]
        self.extra = len(stored) - (len(JOBS) - len(self.missing))
        self.jobs: list[tuple[Job, Stored]] = [
            (job, stored[story.ids[job]]) for job in JOBS if job.title not in self.missing
        ]
        self.leases = story.rows.events(LeaseEvent)
        self.ends = story.rows.events(CompletionEvent)
        self.acts = story.rows.events(OperatorEvent)
        self._invariants = [violation for _, each in self.jobs for violation in self._violations(each, now_ms)]

    @classmethod
    async def read(cls, story: Story) -> Self:
        """A checker of what is stored now."""
        return cls(story, await story.rows.executions(), await story.engine.server_time_ms())

    def _violations(self, stored: Stored, now_ms: int) -> list[executions.Violation]:
        execution, attempts, grants = stored
        bare = execution.uuid
        events = (*self.leases.get(bare, ()), *self.ends.get(bare, ()), *self.acts.get(bare, ()))
        return [
            *executions.check_execution(execution, attempts, grants, now_ms),
            *executions.check_events(execution, attempts, events),
        ]

    def run(self) -> list[Check]:
        """Every check with its findings."""
        checks: dict[str, Callable[[], Iterator[str]]] = {
            f"{len(JOBS)} executions are stored, though {len(BACKLOG)} of them were submitted twice": self._stored_once,
            "each ended as planned, after as many attempts as planned": self._as_planned,
            "each end was announced once (the replayed one had two ends)": self._announced,
            "results are, byte for byte, those whose completion was acknowledged": self._results,
            "at any time at most one holder, each under a higher epoch": self._leases,
            "rows and events agree, in every state, count and time": self._agreement,
            "no lease, no grant and no delay is left": self._nothing_left,
            "the stream shows each line once and in order, across the take-over": self._stream,
            "the killed worker was refused when it came back": self._ghost,
        }
        return [Check(promise, list(check())) for promise, check in checks.items()]

    def _stored_once(self) -> Iterator[str]:
        for title in self.missing:
            yield f"{title} is not stored"
        if self.extra:
            yield f"{self.extra} executions that nobody planned"

    def _as_planned(self) -> Iterator[str]:
        for job, (execution, _, _) in self.jobs:
            if execution.public_state != job.ending:
                yield f"{job.title}: {execution.public_state} instead of {job.ending}"
            planned = attempts_planned(job) + (job == LOCKED)
            if execution.total_attempt_count != planned:
                yield f"{job.title}: {execution.total_attempt_count} attempts instead of {planned}"

    def _announced(self) -> Iterator[str]:
        for job, (execution, _, _) in self.jobs:
            told = [event.outcome for event in self.ends.get(execution.uuid, ())]
            expected = ["failed", "success"] if job == LOCKED else [OUTCOMES[job.ending]]
            if told != expected:
                yield f"{job.title}: announced {told} instead of {expected}"

    def _results(self) -> Iterator[str]:
        acknowledged = self.story.board.acknowledged
        for job, (execution, _, _) in self.jobs:
            expected = job.result if job.ending == "completed" else None
            if execution.result != expected:
                yield f"{job.title}: stored result {execution.result!r}"
            # A worker that was killed may have missed an answer, but no answer may be wrong.
            if acknowledged.get(self.story.ids[job], expected) != execution.result:
                yield f"{job.title}: another result was acknowledged"

    def _leases(self) -> Iterator[str]:
        for found in self._invariants:
            if found.invariant in ABOUT_LEASES:
                yield f"{found.invariant} {found.subject}: {found.detail}"

    def _agreement(self) -> Iterator[str]:
        for found in self._invariants:
            if found.invariant not in ABOUT_LEASES:
                yield f"{found.invariant} {found.subject}: {found.detail}"

    def _nothing_left(self) -> Iterator[str]:
        for job, (execution, attempts, grants) in self.jobs:
            if execution.ownership_state != "unowned" or any(attempt.worker_instance_id for attempt in attempts):
                yield f"{job.title}: a lease"
            if grants:
                yield f"{job.title}: {len(grants)} grants"
            if execution.delay_until_ms is not None:
                yield f"{job.title}: a delay"

    def _stream(self) -> Iterator[str]:
        seen = tuple(text for _, text in self.story.board.tail)
        if seen != STORY:
            yield f"a reader saw {len(seen)} lines, {len(STORY)} were planned, or their order is wrong"
        for job in self.story.ids:
            positions = self.story.rows.frames(self.story.ids[job]) if job.kind == "report" else []
            if positions != sorted(set(positions)):
                yield f"{job.title}: frame positions do not rise"

    def _ghost(self) -> Iterator[str]:
        if self.story.ghost_refused is None:
            yield "its completion was accepted"
