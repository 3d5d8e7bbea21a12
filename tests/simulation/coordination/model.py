"""What the oracle of coordination keeps beside its executions: flows, edges and groups."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

ALL_OF: dict[str, Any] = {"kind": "all_of"}
FLOW_ENDED = ("cancelled", "completed", "failed")


@dataclass
class Flow:
    """A flow's header."""

    id: str
    kind: str
    namespace: str
    created: int
    mutated: int
    state: str = "open"
    revision: int = 0
    nodes: int = 0
    edges: int = 0
    ended: int | None = None
    policy: str | None = None
    reason: str | None = None
    #: Members that have not acknowledged the header's cancel; ``None`` without a header.
    backlog: list[str] | None = None


@dataclass
class Edge:
    """One dependency: staged, applied, then resolved once."""

    id: str
    flow: str
    up: str
    down: str
    ref: str | None
    staged: int
    state: str = "pending"

    @property
    def applied(self) -> bool:
        return self.state != "pending"

    @property
    def open(self) -> bool:
        return self.state == "applied"


@dataclass
class Group:
    """Policy and counters of all edges into one member."""

    policy: dict[str, Any]
    succeeded: int = 0
    failed: int = 0
    skipped: int = 0
    running: int = 0
    state: str = "pending"

    def verdict(self, total: int) -> str:
        """What the counters say, of so many applied edges."""
        lost = self.failed + self.skipped
        if self.policy["kind"] == "all_of":
            return "satisfied" if total > 0 and self.succeeded == total else "impossible" if lost else "pending"
        wanted = self.policy.get("k", 1)
        if self.succeeded >= wanted:
            return "satisfied"
        return "impossible" if total - lost < wanted else "pending"


# -- waiting for signals ---------------------------------------------------------------------------------------------


@dataclass
class Waitpoint:
    """A mailbox of one execution."""

    id: str
    execution_id: str
    key: str
    index: int
    kid: str
    token: str
    state: str
    created: int
    expires: int | None = None
    closed: Any = None
    why: Any = None
    signals: int = 0

    @property
    def open(self) -> bool:
        return self.state in ("pending", "active")


@dataclass
class Signal:
    """One that was accepted; ``effect`` is what it did then."""

    id: str
    waitpoint: str
    key: str
    name: str
    source: tuple[str, str]
    accepted: int
    effect: str


@dataclass
class Suspension:
    """What an execution waits for, or last waited for."""

    id: str
    index: int
    condition: Any
    waitpoints: list[str]
    since: int
    timeout: int | None
    behavior: str | None
    delay: int | None
    #: Every signal on its waitpoints, in order, buffered ones and the one a timeout makes up included.
    heard: list[Signal]
    reason: str = "waiting_for_signal"
    over: str | None = None


# -- budgets and quotas ----------------------------------------------------------------------------------------------


@dataclass
class Budget:
    """Counters and limits by dimension."""

    id: str
    parent: str | None
    hard: dict[str, int]
    soft: dict[str, int]
    warns: bool
    interval: int
    next_reset: int | None
    spent: Counter[str] = field(default_factory=Counter)
    breaches: int = 0
    soft_breaches: int = 0
    last_breach: tuple[int, str] | None = None
    #: What executions have spent by name and may give back: ``(execution, dimension) -> amount``.
    ledger: Counter[tuple[str, str, str]] = field(default_factory=Counter)


@dataclass
class Reservation:
    """Amounts set aside under one lease."""

    id: str
    budget: str
    execution_id: str
    index: int
    epoch: int
    amounts: dict[str, int]
    state: str = "open"


@dataclass
class Guard:
    """An execution that was admitted."""

    since: int
    until: int
    counted: bool


@dataclass
class Quota:
    """How often in a window, and how many at once."""

    id: str
    window: int
    rate: int
    cap: int
    guards: dict[str, Guard] = field(default_factory=dict)
    #: ``(when, who)``; one entry for each execution.
    entries: dict[str, int] = field(default_factory=dict)

    @property
    def taken(self) -> int:
        return sum(guard.counted for guard in self.guards.values())

    def recent(self, now: int, window: int) -> list[int]:
        return sorted(at for at in self.entries.values() if at > now - window)
