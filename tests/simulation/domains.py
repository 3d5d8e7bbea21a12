"""What operations choose from: small domains, so that they meet, and what an execution must be like for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import strategies as st

from flowfabric.model.streams.frames import BestEffortLive, Durable, DurableSummary
from tests.simulation.model import DAY, HOUR, WAITING, Row
from tests.simulation.oracle.oracle_control import BLOCKS

LANES = ("red", "blue")
SPACES = ("north", "south")
SLOT_COUNT = 5
#: Which execution: one that is there, the last number one that is not.
SLOTS = st.integers(0, SLOT_COUNT + 2)
LANE = st.sampled_from(LANES)
SPACE = st.sampled_from(SPACES)
ABLE = st.sampled_from(((), ("gpu",), ("eu", "gpu"), ("eu", "gpu")))
WORKER = st.sampled_from((("w1", "w1-a"), ("w1", "w1-b"), ("w2", "w2-a")))
LEASE_MS = st.sampled_from((1_000, 5_000, 5_000, 60_000))
GRANT_MS = st.sampled_from((500, 3_000, 3_000))
PRIORITY = st.sampled_from((0, 0, 5, 9_500, -3))
#: Which handle.
PICK = st.integers(0, 9)
LATER = st.sampled_from((-1, 0, 1_000, 3_000))
MOMENT = st.sampled_from((1, 400, 1_000, 1_000, 3_000, 3_000, 10_000, HOUR, 2 * DAY))
FIXED = {"type": "fixed", "delay_ms": 1_000}
NOW = {"type": "fixed", "delay_ms": 0}
POLICIES: tuple[dict[str, Any] | None, ...] = (
    None,
    None,
    {"retry_policy": {"max_retries": 1, "backoff": NOW}, "timeout_policy": {"attempt_timeout_ms": 1_000}},
    {
        "retry_policy": {"max_retries": 2, "backoff": FIXED, "retryable_categories": ["transient", "net"]},
        "max_replay_count": 1,
    },
    {"retry_policy": {"max_retries": 2}, "timeout_policy": {"attempt_timeout_ms": 1_000}},
    {"timeout_policy": {"attempt_timeout_ms": 3_000, "execution_deadline_ms": 10_000}},
    {"max_reclaim_count": 1, "max_replay_count": 1},
    {"routing_requirements": {"required_capabilities": ["gpu"]}, "dedup_window_ms": 2_000},
    {"routing_requirements": {"required_capabilities": ["eu", "gpu"]}, "max_reclaim_count": 0},
    {"stream_policy": {"retention_maxlen": 2}, "max_replay_count": 0},
)
ITEM = st.fixed_dictionaries(
    {
        "slot": st.integers(0, SLOT_COUNT - 1),
        "namespace": SPACE,
        "lane_id": LANE,
        "priority": PRIORITY,
        "idempotency_key": st.sampled_from((None, None, None, "k1", "k2")),
        "policy": st.sampled_from(POLICIES),
        "delay_until": st.sampled_from((None, None, None, None, 0, 1_000)),
        "execution_deadline_at": st.sampled_from((None, None, None, None, 3_000)),
        "tags": st.sampled_from((None, None, {"cairn.instance_id": "one"})),
    }
)
TIMERS = (
    "lease_expiry",
    "delayed_promoter",
    "intake",
    "attempt_timeout",
    "execution_deadline",
    "unblock",
    "grant_sweep",
    "worker_registry_ttl_sweep",
)
FRAMES = ((Durable(), b"out"), (DurableSummary(), b'{"a":1,"b":null}'), (DurableSummary(), b"[1]"))
BEST_EFFORT = (BestEffortLive(ttl_ms=1_000, maxlen_floor=2, maxlen_ceiling=2), b"\xff\x00")
FRAME = st.sampled_from((*FRAMES, FRAMES[0], BEST_EFFORT))
CLASS = st.sampled_from(("transient", "transient", "infra_crash", "permanent", "timeout", "cancelled", "novel"))
SERVED = st.sampled_from((("red",), ("red", "blue"), ("red", "blue")))
OUTCOME = st.sampled_from(("complete", "transient", "transient", "permanent"))
DETAIL = st.sampled_from(("", "", "net", "disk"))
TIMEOUT = st.sampled_from((None, None, 2_000))
DEADLINE = st.sampled_from((None, None, 5_000))
CAP = st.sampled_from((0, 0, None, 5))
LONG_GRANT_MS = st.sampled_from((500, 60_000, 60_000))
BACK = st.sampled_from((0, 0, 1))
NEAR = st.sampled_from((0, 0, 0, -1, 1))
PERCENT = st.sampled_from((None, 0, 50))
MESSAGE = st.sampled_from((None, "", "half"))
INSTANCE = st.sampled_from(("", "", "w1-a"))
EXPECTED = st.sampled_from((None, None, 0, 1))
REASON = st.sampled_from((*BLOCKS, "waiting_for_capable_worker", "boredom"))
TAG = st.sampled_from(("team.name", "cairn.instance_id"))
#: Which epoch a caller shows: the right one, the one before, the one after, or none.
EPOCH = st.sampled_from((0, 0, 0, -1, 1, None))
RETRY = st.sampled_from((None, {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 500}}))


# -- what executions must be like ------------------------------------------------------------------------------------


def running(row: Row, now: int) -> bool:
    return row.phase == "active"


def waiting(row: Row, now: int) -> bool:
    return row.phase in WAITING


def queued(row: Row, now: int) -> bool:
    return row.phase in WAITING and row.eligibility == "eligible_now"


def promised(row: Row, now: int) -> bool:
    return row.eligibility == "pending_claim"


def blocked(row: Row, now: int) -> bool:
    return row.eligibility.startswith("blocked_by")


def interrupted(row: Row, now: int) -> bool:
    return row.phase in WAITING and row.attempt_state == "attempt_interrupted"


def lost(row: Row, now: int) -> bool:
    return row.reclaimable(now)


def released(row: Row, now: int) -> bool:
    """Begun before, and without a lease that lasts."""
    return bool(row.attempts) and not row.over and (not row.leased or row.reclaimable(now))


def reclaim_granted(row: Row, now: int) -> bool:
    return any(grant.kind == "reclaim" for grant in row.grants)


def ended(row: Row, now: int) -> bool:
    return row.over


def grantable(row: Row, now: int) -> bool:
    return queued(row, now) or promised(row, now)


def some(fits: Callable[[Row, int], bool]) -> Callable[[Any], bool]:
    """Whether some execution fits."""
    return lambda machine: any(fits(row, machine.oracle.now) for row in machine.oracle.rows.values())


def any_handle(machine: Any) -> bool:
    return bool(machine.handles)


def any_worker(machine: Any) -> bool:
    return bool(machine.oracle.workers)


# -- operations ------------------------------------------------------------------------------------------------------


class Operation(NamedTuple):
    """Something the machine may do."""

    name: str
    group: str
    weight: int
    ready: Callable[[Any], bool]
    arguments: st.SearchStrategy[dict[str, Any]]


OPERATIONS: list[Operation] = []


def operation(
    group: str, weight: int, ready: Callable[[Any], bool] = lambda machine: True, **arguments: st.SearchStrategy[Any]
) -> Callable[[Any], Any]:
    """Let the machine do this, so often, when it is ready for it or, seldom, although it is not."""

    def add(function: Any) -> Any:
        OPERATIONS.append(Operation(function.__name__, group, weight, ready, st.fixed_dictionaries(arguments)))
        return function

    return add


NEED_HANDLES = ("hold", "end")
GROUPS = ("create", "claim", "grant", "take", "hold", "end", "fence", "operator", "block", "time", "purge", "how")
