"""Counting again: what a store keeps for speed must say the same as its rows."""

from __future__ import annotations

from typing import Any

from tests import valkey_rows
from tests.simulation.world import World

#: What each check finds must be nothing. Plain SQL, as every SQL store understands it.
_WAITING = "('runnable', 'submitted', 'pending', 'eligible', 'blocked')"
_OWNER = "c.partition_key = t.partition_key AND c.execution_id = t.execution_id"
RECOUNTS = {
    "claimable rows are those that wait and are eligible": (
        "SELECT t.execution_id FROM ff_exec_core t WHERE CAST(t.claimable AS integer) <> CASE WHEN "
        f"t.eligibility_state = 'eligible_now' AND t.lifecycle_phase IN {_WAITING} THEN 1 ELSE 0 END"
    ),
    "claimable rows have no owner": (
        "SELECT t.execution_id FROM ff_attempt t JOIN ff_exec_core c ON "
        f"{_OWNER} WHERE c.claimable AND (t.worker_instance_id <> '' OR t.lease_expires_at_ms IS NOT NULL)"
    ),
    "one owner at most": (
        "SELECT t.execution_id FROM ff_attempt t WHERE t.worker_instance_id <> '' "
        "GROUP BY t.partition_key, t.execution_id HAVING count(*) > 1"
    ),
    "running rows have an owner": (
        "SELECT t.execution_id FROM ff_exec_core t WHERE t.lifecycle_phase = 'active' AND NOT EXISTS (SELECT 1 FROM "
        f"ff_attempt c WHERE {_OWNER} AND c.attempt_index = t.attempt_index AND c.worker_instance_id <> '')"
    ),
    "frames are as many as their stream says": (
        "SELECT t.execution_id FROM ff_stream_meta t WHERE t.frame_count <> (SELECT count(*) FROM ff_stream_frame c "
        f"WHERE {_OWNER} AND c.attempt_index = t.attempt_index)"
    ),
    "ended rows have a time": (
        "SELECT t.execution_id FROM ff_exec_core t WHERE (t.terminal_at_ms IS NOT NULL) <> "
        "(t.lifecycle_phase IN ('terminal', 'cancelled'))"
    ),
    **{
        f"rows of {table} have their execution": (
            f"SELECT t.execution_id FROM {table} t WHERE NOT EXISTS (SELECT 1 FROM ff_exec_core c WHERE {_OWNER})"
        )
        for table in ("ff_attempt", "ff_claim_grant", "ff_stream_frame", "ff_stream_meta", "ff_stream_summary")
    },
}
_SQLITE = {
    "the requirement of a row is that of its junction rows": (
        "SELECT t.execution_id FROM ff_exec_core t WHERE t.requirement_key <> coalesce((SELECT "
        "group_concat(capability, ',') FROM (SELECT capability FROM ff_execution_capabilities j "
        "WHERE j.execution_id = t.execution_id ORDER BY capability)), '')"
    ),
    "junction rows have their execution": (
        "SELECT j.execution_id FROM ff_execution_capabilities j "
        "WHERE NOT EXISTS (SELECT 1 FROM ff_exec_core c WHERE c.execution_id = j.execution_id)"
    ),
}
#: The same question with and without its index.
_QUEUE = "SELECT execution_id FROM ff_exec_core {} WHERE claimable AND lane_id = '{}' ORDER BY execution_id"
_INDEX = "ff_exec_core_claim_idx"


def recount(world: World) -> list[str]:
    """What does not fit, in words; nothing if all is well."""
    if world.label == "memory":
        try:
            world.store.check_indexes()
        except AssertionError as error:
            return [str(error)]
        return []
    if world.label == "valkey":
        return world.run(valkey_rows.wrong_indexes(world.store))
    checks = RECOUNTS if world.label == "postgres" else {**RECOUNTS, **_SQLITE}
    asked = [(name, query) for name, query in checks.items()]
    found = world.run(_answers(world, [query for _, query in asked]))
    problems = [f"{name}: not so for {rows}" for (name, _), rows in zip(asked, found, strict=True) if rows]
    return problems + world.run(_compare_queues(world))


async def _answers(world: World, queries: list[str]) -> list[Any]:
    if world.label == "sqlite":
        return [world.raw.execute(query).fetchall() for query in queries]
    async with world.store.raw() as connection:
        return [await connection.fetch(query) for query in queries]


async def _compare_queues(world: World) -> list[str]:
    """The claim index holds exactly the claimable rows."""
    problems = []
    for lane in ("red", "blue"):
        if world.label == "sqlite":
            hints = (f"INDEXED BY {_INDEX}", "NOT INDEXED")
            by_index, by_rows = await _answers(world, [_QUEUE.format(hint, lane) for hint in hints])
        else:
            async with world.store.raw() as connection, connection.transaction():
                await connection.execute("SET LOCAL enable_seqscan = off")
                by_index = await connection.fetch(_QUEUE.format("", lane))
                await connection.execute("SET LOCAL enable_seqscan = on")
                await connection.execute("SET LOCAL enable_indexscan = off")
                await connection.execute("SET LOCAL enable_indexonlyscan = off")
                await connection.execute("SET LOCAL enable_bitmapscan = off")
                by_rows = await connection.fetch(_QUEUE.format("", lane))
        if by_index != by_rows:
            problems.append(f"lane {lane}: the index has {by_index}, the rows say {by_rows}")
    return problems
