"""The work that everything here does: the same rows for the engine and for the limits."""

from __future__ import annotations

import time
from typing import Any, Protocol

LANE = "default"
NAMESPACE = "default"
KIND = "noop"
PAYLOAD = b'{"order": 1234567, "customer": "4f1c", "note": "a payload of about a hundred bytes is a common one"}'
RESULT = b'{"done": true}'
WORKER = "bench"
INSTANCE = "bench-1"
#: So long that no lease ends during a run.
LEASE_MS = 3_600_000
#: What the engine stores for an execution without tags.
RAW_FIELDS = f'{{"namespace":"{NAMESPACE}","execution_kind":"{KIND}","creator_identity":"","tags":{{}}}}'

#: Columns of a new execution that the engine writes with a value; it writes the others as NULL, which is their default.
NEW_COLUMNS = (
    "partition_key, execution_id, lane_id, attempt_index, lifecycle_phase, ownership_state, eligibility_state, "
    "public_state, attempt_state, priority, created_at_ms, lease_reclaim_count, namespace, last_mutation_at_ms, "
    "total_attempt_count, retry_count, payload, raw_fields"
)


def now_ms() -> int:
    """The time as the tables hold it."""
    return time.time_ns() // 1_000_000


class System(Protocol):
    """Something that runs lifecycles: the engine, or a limit."""

    async def create(self) -> None:
        """Store one execution."""

    async def claim(self) -> Any | None:
        """Take one execution, whichever is next."""

    async def complete(self, claimed: Any) -> None:
        """End what was claimed."""

    async def close(self) -> None:
        """Let go of the database."""


async def lifecycle(system: System) -> int:
    """Create, claim, complete. A claim that finds nothing although work was created asks again."""
    await system.create()
    while (claimed := await system.claim()) is None:
        pass
    await system.complete(claimed)
    return 1
