"""What the oracle keeps: rows as plain as they can be, and the few questions every rule asks of them.

Nothing here, nor in the oracle, knows the engine: all of it is written from the specification, to be obvious, not fast.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

HOUR = 3_600_000
DAY = 24 * HOUR
WAITING = ("submitted", "runnable")
ENDED = ("terminal", "cancelled")
#: A lease that nobody has, because the store has lost it.
NO_LEASE = -1


class _Any:
    """Equal to everything: where the specification leaves a value open."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "*"


ANY = _Any()


class Refused(Exception):
    """The call is refused and has changed nothing."""

    def __init__(self, family: str, kind: str) -> None:
        super().__init__(f"{family}({kind})")
        self.family = family
        self.kind = kind


class Held(NamedTuple):
    """A handle, as far as it can be foreseen."""

    kind: str
    execution_id: str
    index: int
    epoch: int
    ttl: int
    lane: str
    instance: str
    #: Stand for the attempt id and the lease id; only the oracle knows them.
    identity: Any = ANY
    lease: Any = ANY


class Grant(NamedTuple):
    """Permission for a worker."""

    kind: str
    worker: str
    instance: str
    issued: int
    expires: int


@dataclass
class Try:
    """One attempt, with its lease while it has one."""

    epoch: int = 0
    worker: Any = None
    instance: str | None = None
    expires: int | None = None
    began: int | None = None
    ended: Any = None
    outcome: str | None = None
    type: Any = None
    timeout_at: int | None = None
    retry_at: Any = None
    #: Stands for the attempt id: new with each claim, kept when an attempt is resumed by name.
    identity: int = 0
    #: Stands for the lease id: new with each grant, kept when the lease is over.
    lease: int = 0

    def release(self, outcome: str | None, ended: Any = None) -> None:
        """The lease is over. What the attempt timer was set to no longer matters."""
        self.instance = self.expires = self.timeout_at = None
        self.worker = ANY
        self.outcome = outcome
        if ended is not None:
            self.ended = ended

    def take(self, outcome: str | None, ended: Any = None) -> None:
        """The lease is taken away: the holder's handle never works again."""
        self.release(outcome, ended)
        self.epoch += 1


@dataclass
class Row:
    """One execution."""

    id: str
    namespace: str
    lane: str
    needs: frozenset[str]
    priority: int
    created: int
    policy: dict[str, Any] | None
    deadline: int | None
    delay: int | None
    tags: dict[str, str]
    phase: str = "submitted"
    ownership: str = "unowned"
    eligibility: str = "eligible_now"
    public: str = "waiting"
    attempt_state: str = "pending"
    blocking: Any = ANY
    index: int = 0
    attempts: dict[int, Try] = field(default_factory=dict)
    grants: list[Grant] = field(default_factory=list)
    retries: int = 0
    reclaims: int = 0
    replays: int = 0
    total: int = 0
    started: int | None = None
    ended: int | None = None
    outcome: str | None = None
    result: bytes | None = None
    cancelled_by: str | None = None
    cancel_reason: Any = None
    progress: dict[str, Any] = field(default_factory=dict)
    frames: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    summaries: dict[int, tuple[int, dict[str, Any]]] = field(default_factory=dict)

    @property
    def uuid(self) -> str:
        return self.id.rpartition(":")[2]

    @property
    def current(self) -> Try | None:
        """The attempt the execution points at, if it was ever started."""
        return self.attempts.get(self.index)

    @property
    def leased(self) -> bool:
        """A worker's name is on the current attempt."""
        return self.current is not None and self.current.instance is not None

    @property
    def over(self) -> bool:
        return self.phase in ENDED

    def live_grant(self, kind: str, now: int) -> Grant | None:
        """The grant of a kind that has not expired; there is at most one."""
        return next((grant for grant in self.grants if grant.kind == kind and grant.expires > now), None)

    def drop_grants(self, kind: str) -> None:
        self.grants = [grant for grant in self.grants if grant.kind != kind]

    def drop_expired(self, kind: str, now: int) -> int:
        """Remove expired grants of a kind; how many there were."""
        before = len(self.grants)
        self.grants = [grant for grant in self.grants if grant.kind != kind or grant.expires > now]
        return before - len(self.grants)

    def claimable(self, now: int) -> bool:
        """Waiting, eligible, and nobody has a live promise."""
        if self.phase not in WAITING:
            return False
        expired = self.eligibility == "pending_claim" and self.live_grant("claim", now) is None
        return self.eligibility == "eligible_now" or expired

    def reclaimable(self, now: int) -> bool:
        """Running under a lease that is marked as lost or past its time."""
        if self.phase != "active":
            return False
        if self.ownership in ("lease_expired_reclaimable", "lease_revoked"):
            return True
        return self.current is not None and self.current.expires is not None and self.current.expires <= now

    def order(self) -> tuple[int, int, str]:
        """Claim order: priority, age, id."""
        return (-self.priority, self.created, self.uuid)

    def state(self, phase: str, ownership: str, eligibility: str, attempt_state: str, public: str) -> None:
        """Move to another state; what the state blocks on is left open unless the caller says."""
        self.phase, self.ownership, self.eligibility = phase, ownership, eligibility
        self.attempt_state, self.public = attempt_state, public
        self.blocking = ANY

    # -- policy --------------------------------------------------------------------------------------------------

    def _policy(self, *path: str) -> Any:
        found: Any = self.policy
        for name in path:
            found = found.get(name) if isinstance(found, dict) else None
        return found

    @property
    def retry_policy(self) -> dict[str, Any] | None:
        return self._policy("retry_policy")

    @property
    def attempt_timeout(self) -> int | None:
        return self._policy("timeout_policy", "attempt_timeout_ms")

    @property
    def max_replays(self) -> int:
        found = self._policy("max_replay_count")
        return 10 if found is None else found

    @property
    def max_frames(self) -> int:
        found = self._policy("stream_policy", "retention_maxlen")
        return 10_000 if found is None else found

    def reclaim_cap(self, asked: int | None) -> int:
        """The policy goes before the caller; a policy that does not say means 100."""
        if self.policy is not None:
            found = self.policy.get("max_reclaim_count")
            return 100 if found is None else found
        return 1000 if asked is None else asked


def backoff_ms(retry_policy: dict[str, Any], retries: int) -> int:
    """The pause before the next retry; ``retries`` counts those before this failure."""
    backoff = retry_policy.get("backoff", {"type": "exponential"})
    if backoff["type"] == "fixed":
        return backoff["delay_ms"]
    first, last = backoff.get("initial_delay_ms", 1000), backoff.get("max_delay_ms", 60_000)
    return int(min(first * backoff.get("multiplier", 2.0) ** retries, last))
