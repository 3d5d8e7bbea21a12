"""What there is to do, and how each piece of it should end."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from flowfabric import (
    ExecutionPolicy,
    ExponentialBackoff,
    FixedBackoff,
    RetryPolicy,
    RoutingRequirements,
    TimeoutPolicy,
)

LANE = "demo"
#: Short, so that a dead worker is noticed while you watch. Thirty seconds is a usual value.
LEASE_TTL_MS = 1_200
NIGHTLY_AFTER_MS = 4_500
STUCK_AFTER_MS = 2_500

STORY = (
    "A piece of work was written down before it ran,",
    "so nobody could forget it.",
    "A worker took it, for a while and not for ever:",
    "the lease says until when, the epoch says whose.",
    "Then the worker was gone in the middle of a line.",
    "No one had to notice. The lease ran out,",
    "the work went back into the queue,",
    "and the next worker read how far the first had come",
    "and went on from there.",
    "If the old one wakes up and wants to finish,",
    "it is told no: its epoch has passed.",
    "Every end is announced, and announced once.",
)


@dataclass(frozen=True)
class Job:
    """One execution: what its input says, and what the demo asks of the engine for it."""

    kind: str
    number: int
    priority: int = 0
    needs: tuple[str, ...] = ()
    #: Attempts that fail before one succeeds; more than the policy allows means that none does.
    failures: int = 0
    ending: str = "completed"
    delay_ms: int = 0
    policy: ExecutionPolicy | None = field(default=None, compare=False)

    @property
    def title(self) -> str:
        """How people call it."""
        return f"{self.kind} {self.number}"

    @property
    def payload(self) -> bytes:
        """The input a worker gets: everything that decides what it does."""
        return json.dumps({"kind": self.kind, "number": self.number, "failures": self.failures}).encode()

    def creation(self, now_ms: int) -> dict[str, Any]:
        """The arguments of ``create_execution``."""
        return {
            "lane_id": LANE,
            "execution_kind": self.kind,
            "input_payload": self.payload,
            "priority": self.priority,
            "policy": self.policy,
            "delay_until": now_ms + self.delay_ms if self.delay_ms else None,
            "idempotency_key": self.title,
            "creator_identity": "demo",
        }

    @property
    def result(self) -> bytes:
        """What a worker must hand in, to the byte."""
        if self.kind == "report":
            return "\n".join(STORY).encode()
        return hashlib.sha256(self.payload).hexdigest().encode()


def parse_job(payload: bytes) -> Job:
    """The job an input describes."""
    return Job(**json.loads(payload))


def _needing(*capabilities: str) -> ExecutionPolicy:
    return ExecutionPolicy(routing_requirements=RoutingRequirements(capabilities))


_RETRIED = ExecutionPolicy(retry_policy=RetryPolicy(max_retries=3, backoff=ExponentialBackoff(200, 2_000, 2.0)))
_HOPELESS = ExecutionPolicy(retry_policy=RetryPolicy(max_retries=2, backoff=FixedBackoff(400)))
_STUCK = ExecutionPolicy(
    timeout_policy=TimeoutPolicy(attempt_timeout_ms=STUCK_AFTER_MS), routing_requirements=RoutingRequirements(("net",))
)


def _index(number: int) -> Job:
    failures = 2 if number % 24 == 6 else 1 if number % 6 == 0 else 0
    return Job("index", number, 20, failures=failures, policy=_RETRIED)


FEATURED = Job("report", 1, 90, ("text",), policy=_needing("text"))
RUNAWAY = Job("crawl", 1, 80, ("net",), ending="cancelled", policy=_needing("net"))
LOCKED = Job("import", 1, 80)
STUCK = Job("scan", 1, 80, ("net",), ending="expired", policy=_STUCK)

#: There at the start.
BACKLOG: tuple[Job, ...] = (
    FEATURED,
    *(Job("report", number, 90, ("text",), policy=_needing("text")) for number in (2, 3)),
    RUNAWAY,
    LOCKED,
    STUCK,
    *(Job("mail", number, 60, failures=99, ending="failed", policy=_HOPELESS) for number in (1, 2)),
    *(Job("transcode", number, 50, ("gpu",), policy=_needing("gpu")) for number in range(1, 37)),
    *(Job("nightly", number, 30, delay_ms=NIGHTLY_AFTER_MS) for number in range(1, 17)),
    *(_index(number) for number in range(1, 61)),
    *(Job("thumbnail", number) for number in range(1, 41)),
)
#: What comes in while the workers are busy, part by part.
ARRIVALS: tuple[tuple[Job, ...], ...] = tuple(
    (
        *(_index(number) for number in range(61 + 4 * part, 65 + 4 * part)),
        *(Job("thumbnail", number) for number in range(41 + 16 * part, 57 + 16 * part)),
    )
    for part in range(7)
)
JOBS: tuple[Job, ...] = (*BACKLOG, *(job for part in ARRIVALS for job in part))


def attempts_planned(job: Job) -> int:
    """How many attempts the job needs until it ends, if every worker lives."""
    policy = job.policy.retry_policy if job.policy else None
    return 1 + min(job.failures, policy.max_retries if policy else 0)
