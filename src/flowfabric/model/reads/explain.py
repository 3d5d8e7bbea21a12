"""The answer to "why is it not running?"."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from flowfabric.model.ids import ExecutionId


class Gate(StrEnum):
    """What an execution stands before."""

    RUNNING = "running"
    #: Its lease has run out, or was taken away, and nobody has taken it over yet.
    LEASE_EXPIRED = "lease_expired"
    TERMINAL = "terminal"
    #: Nothing keeps it: the next worker that asks and can run it gets it.
    WAITING_FOR_WORKER = "waiting_for_worker"
    #: Workers are registered for its lane, and none of them can run it.
    MISSING_CAPABILITY = "missing_capability"
    #: Promised to one worker, for a short time.
    GRANTED = "granted"
    LANE_PAUSED = "lane_paused"
    LANE_DISABLED = "lane_disabled"
    DELAYED = "delayed"
    RETRY_BACKOFF = "retry_backoff"
    RESUME_DELAY = "resume_delay"
    DEPENDENCIES = "blocked_by_dependencies"
    SUSPENDED = "suspended"
    #: A durable function that waits for executions it has started.
    CHILDREN = "waiting_for_children"
    #: A durable function that waits for a time.
    ASLEEP = "asleep"
    BUDGET = "budget"
    QUOTA = "quota"
    #: Set aside until a worker registers that can run it.
    ROUTE = "blocked_by_route"
    OPERATOR = "operator_block"
    #: Set aside because of its lane's state, until the lane is activated.
    LANE_STATE = "blocked_by_lane_state"
    FLOW_CANCELLED = "flow_cancelled"
    #: The row says something that no operation of this engine leaves behind.
    UNKNOWN = "unknown"


class QueuePlace(Struct, frozen=True):
    """Where it stands among those that can be claimed, and who could take it."""

    #: How many are before it; ``None`` if more than were looked at.
    ahead: int | None
    #: Live workers registered for the lane, and those among them that can run it. Claims need no registration.
    workers: int
    capable: int
    #: What no single live worker of the lane offers beside the rest, if none can run it.
    missing: tuple[str, ...] = ()


class LeaseHolder(Struct, frozen=True):
    """Who has it, or may have it, and until when."""

    worker_id: str
    worker_instance_id: str
    until_ms: int | None


class OpenDependencies(Struct, frozen=True):
    """What has to happen upstream."""

    #: ``all_of``, ``any_of`` or ``quorum``, and how many have to succeed.
    policy: str
    needed: int
    succeeded: int
    failed: int
    skipped: int
    #: Upstream executions that have not ended, as far as they were looked at.
    open: tuple[ExecutionId, ...]
    #: How many it depends on.
    total: int = 0


class OpenWaitpoint(Struct, frozen=True):
    """A mailbox that waits for signals."""

    waitpoint_id: str
    waitpoint_key: str
    #: Names of the signals it asks for; empty means any.
    required_signals: tuple[str, ...]
    signals: int


class OpenQuestion(Struct, frozen=True):
    """A question to people that is not decided."""

    question: str
    #: How many more yeses decide it.
    needed: int
    #: Who may still answer; empty means anyone who has its link.
    of: tuple[str, ...]
    #: Who has answered.
    answered: tuple[str, ...] = ()


class OpenSuspension(Struct, frozen=True):
    """What a suspended execution waits for."""

    reason: str
    waitpoints: tuple[OpenWaitpoint, ...]
    timeout_at_ms: int | None
    #: If people are asked.
    question: OpenQuestion | None = None


class OpenChildren(Struct, frozen=True):
    """The executions a durable function has started that have not ended, and how many more must end to wake it."""

    #: As many as are named.
    execution_ids: tuple[str, ...]
    more_needed: int
    #: How many there are.
    count: int = 0


class ExhaustedBudget(Struct, frozen=True):
    """The budget that has no room, and where it has none."""

    budget_id: str
    dimension: str | None
    spent: int
    reserved: int
    limit: int
    next_reset_at_ms: int | None
    #: What it is called, if it has a name.
    name: str = ""


class FullQuota(Struct, frozen=True):
    """The quota that has no room, and when it will, if that is known."""

    quota_policy_id: str
    retry_at_ms: int | None


GateDetail: TypeAlias = (
    QueuePlace | LeaseHolder | OpenDependencies | OpenSuspension | OpenChildren | ExhaustedBudget | FullQuota | None
)


class ChainLink(Struct, frozen=True):
    """One execution on the way from the one that was asked about to the cause."""

    execution_id: ExecutionId
    execution_kind: str
    gate: Gate
    #: What this one waits for.
    sentence: str
    lane_id: str
    since_ms: int
    until_ms: int | None = None
    detail: GateDetail = None


class Explanation(Struct, frozen=True):
    """Why an execution is where it is."""

    execution_id: ExecutionId
    gate: Gate
    #: One plain sentence. If the execution waits for another one, it says what that one waits for, and so on to the
    #: end of the chain.
    sentence: str
    lane_id: str
    #: Since when, as far as the row tells.
    since_ms: int
    #: When it opens by itself, if it does.
    until_ms: int | None = None
    detail: GateDetail = None
    #: From this execution to the cause, each waiting for the next; empty if it waits for no other one.
    chain: tuple[ChainLink, ...] = ()
    #: Which limit was reached, if not everything was looked at.
    left_out: str | None = None
