"""Ranks of fair lanes in PostgreSQL."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

from flowfabric.model.decisions import Misplaced, Ranked
from flowfabric.model.operations.lanes import FAIR_SEPARATOR
from flowfabric.stores.postgres.codec import DIALECT
from flowfabric.stores.protocol import Filling

Fetch = Callable[..., Awaitable[list[Any]]]

#: Two batches that rank executions of one key must take turns; the lock is theirs until they have committed.
_LOCK = "SELECT pg_advisory_xact_lock(k) FROM unnest($1::bigint[]) AS k"
_WAITING = "c.lane_id = k.l AND c.priority = k.p AND c.claimable"
_COLUMNS = "k.l, k.p, k.f, r.partition_key, r.execution_id::text, r.fair_rank"
#: The highest ranks of keys, highest first.
LAST = (
    f"SELECT {_COLUMNS} FROM unnest($1::text[], $2::int[], $3::text[], $4::int[]) AS k(l, p, f, n) CROSS JOIN LATERAL "
    f"(SELECT c.partition_key, c.execution_id, c.fair_rank FROM ff_exec_core c WHERE {_WAITING} AND c.fair_key = k.f "
    "ORDER BY c.fair_rank DESC LIMIT k.n) r"
)
#: The lowest ranks of a lane and priority, lowest first.
FRONT = (
    f"SELECT {_COLUMNS} FROM unnest($1::text[], $2::int[], $3::text[], $4::int[]) AS k(l, p, f, n) CROSS JOIN LATERAL "
    f"(SELECT c.partition_key, c.execution_id, c.fair_rank FROM ff_exec_core c WHERE {_WAITING} AND c.fair_rank < 0 "
    "ORDER BY c.fair_rank LIMIT k.n) r"
)
_VALUE = f"CASE WHEN $3::text IS NULL THEN {DIALECT.derived['namespace']} ELSE e.raw_fields->'tags'->>($3::text) END"
#: Ranked executions of a lane whose key was given under another setting.
STRAY = (
    f"SELECT e.partition_key, e.execution_id::text, {_VALUE} FROM ff_exec_core e WHERE e.lane_id = $1 AND e.claimable "
    "AND e.fair_key IS NOT NULL AND ($4::text IS NULL OR NOT starts_with(ltrim(e.fair_key, '+'), $4::text)) LIMIT $2"
)
#: Unranked executions of a lane, found by jumping from one requirement set and priority to the next.
UNRANKED = f"""WITH RECURSIVE classes(k, p) AS (
    (SELECT c.requirement_key, c.priority FROM ff_exec_core c WHERE c.lane_id = $1 AND c.claimable
     ORDER BY c.requirement_key, c.priority DESC LIMIT 1)
    UNION ALL
    SELECT n.k, n.p FROM classes CROSS JOIN LATERAL (SELECT x.k, x.p FROM (
        (SELECT c.requirement_key AS k, c.priority AS p FROM ff_exec_core c WHERE c.lane_id = $1 AND c.claimable
         AND c.requirement_key = classes.k AND c.priority < classes.p ORDER BY c.priority DESC LIMIT 1)
        UNION ALL
        (SELECT c.requirement_key, c.priority FROM ff_exec_core c WHERE c.lane_id = $1 AND c.claimable
         AND c.requirement_key > classes.k ORDER BY c.requirement_key, c.priority DESC LIMIT 1)) x LIMIT 1) n)
SELECT r.* FROM classes CROSS JOIN LATERAL (
    SELECT e.partition_key, e.execution_id::text, {_VALUE} FROM ff_exec_core e WHERE e.lane_id = $1 AND e.claimable
    AND e.requirement_key = classes.k AND e.priority = classes.p AND e.fair_rank = 0
    ORDER BY e.created_at_ms, e.execution_id LIMIT $2) r LIMIT $2"""


async def load_ranked(fetch: Fetch, needs: list[Ranked], view: Filling) -> None:
    """Ranks that wait, keys locked against others who rank."""
    keyed = [need for need in needs if need.fair_key is not None]
    if keyed:
        await fetch(_LOCK, sorted({_number(need) for need in keyed}))
    for statement, asked in ((LAST, keyed), (FRONT, [need for need in needs if need.fair_key is None])):
        if not asked:
            continue
        found: dict[Any, list[tuple[str, int]]] = {need[:3]: [] for need in asked}
        for lane, priority, key, partition, uuid, rank in await fetch(statement, *map(list, zip(*asked, strict=True))):
            found[(lane, priority, key)].append((f"{{fp:{partition}}}:{uuid}", rank))
        for need in asked:
            view.put_ranked(need, found[need[:3]])


async def misplaced(fetch: Fetch, need: Misplaced) -> list[tuple[str, str | None]]:
    """Ids and values of what is not ranked as the lane is set."""
    by = need.fair_by
    tag = by.removeprefix("tag:") if by is not None and by.startswith("tag:") else None
    prefix = None if by is None else by + FAIR_SEPARATOR
    rows = await fetch(STRAY, need.lane_id, need.limit, tag, prefix)
    if not rows and by is not None:
        rows = await fetch(UNRANKED, need.lane_id, need.limit, tag)
    return [(f"{{fp:{row[0]}}}:{row[1]}", row[2]) for row in rows]


def _number(need: Ranked) -> int:
    """A lock's number: the same in every process."""
    text = f"{need.lane_id}\x1f{need.priority}\x1f{need.fair_key}"
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), signed=True)
