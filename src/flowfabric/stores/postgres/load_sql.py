"""The statements that load records, as text."""

from __future__ import annotations

from functools import cache
from typing import Any

from flowfabric.model.decisions import SELECT_LIMIT
from flowfabric.model.states import GRANT_CLAIM, PENDING_CLAIM
from flowfabric.stores.postgres.codec import DIALECT, SENT
from flowfabric.stores.sql.rows import ENDED_LIST, LISTED, STREAM_HEAD_COLUMNS, WAITING_LIST, KindRows, execution_select

NARROW = execution_select(DIALECT)
WIDE = execution_select(DIALECT, wide=True)
BY_IDS = (
    " JOIN unnest($1::smallint[], $2::uuid[]) AS k(p, u) ON k.p = e.partition_key AND k.u = e.execution_id"
    " ORDER BY e.partition_key, e.execution_id"
)
BY_ID = " WHERE e.partition_key = $1 AND e.execution_id = $2"
LOCKED = " FOR UPDATE OF e"
SKIPPING = f"{LOCKED} SKIP LOCKED"
_ORDER = "e.priority DESC, e.fair_rank, e.created_at_ms, e.execution_id"
ANY_FORGOTTEN = (
    f"SELECT 1 FROM ff_claim_grant g WHERE g.kind = '{GRANT_CLAIM}' AND g.expires_at_ms > 0 AND g.expires_at_ms <= {{}}"
)


def _telling(select: str, mark: str) -> str:
    """The select with a last column that tells whether any claim grant has been forgotten."""
    columns, source = select.split(" FROM ff_exec_core e", 1)
    return f"{columns}, EXISTS ({ANY_FORGOTTEN.format(mark)}) FROM ff_exec_core e{source}"


#: Claims of workers without capabilities: one run of the claim index, locked as it is walked.
CLAIM_PLAIN = (
    f"{_telling(NARROW, '$3')} WHERE e.lane_id = $1 AND e.requirement_key = '' AND e.claimable "
    f"ORDER BY {_ORDER} LIMIT $2{SKIPPING}"
)
# Within namespaces: keys are compared as rows and named by the order, so that only the index that begins with the
# namespace fits, however few namespaces the statistics know of.
_QUEUE = "{0}.lane_id, {0}.namespace, {0}.requirement_key"
_SET_ORDER = f"ORDER BY {_QUEUE.format('c')}"
#: Claims of workers without capabilities within one namespace.
CLAIM_WITHIN = (
    f"{_telling(NARROW, '$3')} WHERE ({_QUEUE.format('e')}) >= ($1, $4, '') AND ({_QUEUE.format('e')}) <= ($1, $4, '') "
    f"AND e.claimable ORDER BY {_QUEUE.format('e')}, {_ORDER} LIMIT $2{SKIPPING}"
)
# Distinct requirement sets that have work, found by jumping from one to the next in the claim index.
_SETS = """WITH RECURSIVE sets(key, required) AS (
    (SELECT c.requirement_key, c.required_capabilities FROM ff_exec_core c WHERE c.lane_id = $1 AND c.claimable
     ORDER BY c.requirement_key LIMIT 1)
    UNION ALL
    SELECT n.requirement_key, n.required_capabilities FROM sets CROSS JOIN LATERAL (
        SELECT c.requirement_key, c.required_capabilities FROM ff_exec_core c WHERE c.lane_id = $1 AND c.claimable
        AND c.requirement_key > sets.key ORDER BY c.requirement_key LIMIT 1) n)"""
#: Claims of workers with capabilities: the head of each run they cover, merged, then locked in order.
CLAIM_ABLE = f"""{_SETS},
heads AS MATERIALIZED (
    SELECT h.partition_key AS p, h.execution_id AS u FROM sets CROSS JOIN LATERAL (
        SELECT c.partition_key, c.execution_id, c.priority, c.fair_rank, c.created_at_ms FROM ff_exec_core c
        WHERE c.lane_id = $1 AND c.requirement_key = sets.key AND c.claimable
        ORDER BY c.priority DESC, c.fair_rank, c.created_at_ms, c.execution_id LIMIT $3) h
    WHERE sets.required <@ $2::text[]
    ORDER BY h.priority DESC, h.fair_rank, h.created_at_ms, h.execution_id LIMIT $3)
{_telling(NARROW, "$5")} JOIN heads ON heads.p = e.partition_key AND heads.u = e.execution_id
WHERE e.claimable ORDER BY {_ORDER} LIMIT $4{SKIPPING}"""
#: The same within some namespaces: a run for each namespace and set.
CLAIM_ABLE_WITHIN = f"""WITH RECURSIVE sets(namespace, key, required) AS (
    SELECT n.namespace, f.requirement_key, f.required_capabilities FROM unnest($6::text[]) AS n(namespace)
    CROSS JOIN LATERAL (
        SELECT c.requirement_key, c.required_capabilities FROM ff_exec_core c WHERE c.claimable
        AND (c.lane_id, c.namespace) >= ($1, n.namespace) AND (c.lane_id, c.namespace) <= ($1, n.namespace)
        {_SET_ORDER} LIMIT 1) f
    UNION ALL
    SELECT sets.namespace, n.requirement_key, n.required_capabilities FROM sets CROSS JOIN LATERAL (
        SELECT c.requirement_key, c.required_capabilities FROM ff_exec_core c WHERE c.claimable
        AND ({_QUEUE.format("c")}) > ($1, sets.namespace, sets.key)
        AND (c.lane_id, c.namespace) <= ($1, sets.namespace) {_SET_ORDER} LIMIT 1) n),
heads AS MATERIALIZED (
    SELECT h.partition_key AS p, h.execution_id AS u FROM sets CROSS JOIN LATERAL (
        SELECT c.partition_key, c.execution_id, c.priority, c.fair_rank, c.created_at_ms FROM ff_exec_core c
        WHERE c.claimable AND ({_QUEUE.format("c")}) >= ($1, sets.namespace, sets.key)
        AND ({_QUEUE.format("c")}) <= ($1, sets.namespace, sets.key)
        {_SET_ORDER}, c.priority DESC, c.fair_rank, c.created_at_ms, c.execution_id LIMIT $3) h
    WHERE sets.required <@ $2::text[]
    ORDER BY h.priority DESC, h.fair_rank, h.created_at_ms, h.execution_id LIMIT $3)
{_telling(NARROW, "$5")} JOIN heads ON heads.p = e.partition_key AND heads.u = e.execution_id
WHERE e.claimable ORDER BY {_ORDER} LIMIT $4{SKIPPING}"""
#: Rows hidden by a claim grant that nobody used in time.
FORGOTTEN = (
    f"{NARROW} WHERE e.lane_id = $1 AND e.eligibility_state = '{PENDING_CLAIM}' "
    f"AND e.lifecycle_phase IN ({WAITING_LIST}) "
    "AND (e.partition_key, e.execution_id) IN "
    f"(SELECT g.partition_key, g.execution_id FROM ff_claim_grant g WHERE g.kind = '{GRANT_CLAIM}' "
    "AND g.expires_at_ms > 0 AND g.expires_at_ms <= $2) AND NOT EXISTS (SELECT 1 FROM ff_claim_grant o WHERE "
    f"o.partition_key = e.partition_key AND o.execution_id = e.execution_id AND o.kind = '{GRANT_CLAIM}' "
    f"AND (o.expires_at_ms = 0 OR o.expires_at_ms > $2)) ORDER BY {_ORDER} "
    f"LIMIT {SELECT_LIMIT}{SKIPPING}"
)
#: Members of a flow that have not ended, behind a UUID if one is given.
LIVE_MEMBERS = (
    f"{NARROW} WHERE e.partition_key = $1 AND e.flow_id = $2 AND e.lifecycle_phase NOT IN ({ENDED_LIST}) "
    "AND e.execution_id > coalesce($3::uuid, '00000000-0000-0000-0000-000000000000') ORDER BY e.execution_id LIMIT $4"
)
#: Which of some executions have ended.
ENDED_AMONG = (
    "SELECT e.partition_key, e.execution_id::text FROM ff_exec_core e "
    "JOIN unnest($1::smallint[], $2::uuid[]) AS k(p, u) ON k.p = e.partition_key AND k.u = e.execution_id "
    f"WHERE e.lifecycle_phase IN ({ENDED_LIST})"
)


@cache
def kind_rows(kind: Any) -> KindRows:
    """Select list and decoder of a kind."""
    return KindRows(kind, DIALECT)


@cache
def select_by(kind: Any, fields: tuple[str, ...], locked: bool, limit: int = SELECT_LIMIT + 1) -> str:
    """All rows of a kind whose columns equal one of many sets of values."""
    rows = kind_rows(kind)
    columns = [rows.table.column(field) for field in fields]
    arrays = ", ".join(f"${n}::{SENT[column.type]}[]" for n, column in enumerate(columns, 1) if column)
    names = ", ".join(f"v{n}" for n in range(len(columns)))
    match = " AND ".join(f"t.{column.name} = k.v{n}" for n, column in enumerate(columns) if column)
    order = ", ".join(f"t.{column.name}" for field in rows.table.key if (column := rows.table.column(field)))
    lock = " FOR UPDATE OF t" if locked else ""
    return (
        f"SELECT {rows.select_list} FROM {rows.table.name} t JOIN unnest({arrays}) AS k({names}) ON {match} "
        f"ORDER BY {order} LIMIT {limit}{lock}"
    )


HEADS = (
    f"SELECT k.p, k.u::text, k.i, {STREAM_HEAD_COLUMNS}, m.xmin FROM unnest($1::smallint[], $2::uuid[], $3::int[]) "
    "AS k(p, u, i) LEFT JOIN ff_stream_meta m "
    "ON m.partition_key = k.p AND m.execution_id = k.u AND m.attempt_index = k.i"
)

LISTS = {what: f"{NARROW} {tail.replace('?', '$')}" for what, tail in LISTED.items()}
_WINDOW = "FROM ff_quota_window w WHERE w.partition_key = k.p AND w.quota_policy_id = k.q AND w.dimension = k.d"
_WINDOWS = "unnest($1::int[], $2::smallint[], $3::text[], $4::text[], $5::bigint[]) AS k(n, p, q, d, since)"
#: Of each of some windows: the oldest admission it holds and the newest there is, with their numbers. Several may have
#: the same time.
RECENTLY = f"""SELECT k.n, f.at, l.at, (SELECT min(w.number) {_WINDOW} AND w.admitted_at_ms = f.at),
(SELECT max(w.number) {_WINDOW} AND w.admitted_at_ms = l.at) FROM {_WINDOWS}
LEFT JOIN LATERAL (SELECT w.admitted_at_ms AS at {_WINDOW} AND w.admitted_at_ms > k.since
    ORDER BY w.admitted_at_ms LIMIT 1) f ON true
LEFT JOIN LATERAL (SELECT w.admitted_at_ms AS at {_WINDOW} ORDER BY w.admitted_at_ms DESC LIMIT 1) l ON true"""
#: How many admissions each of some windows holds, counted one by one.
RECENTLY_ONE_BY_ONE = f"SELECT k.n, (SELECT count(*) {_WINDOW} AND w.admitted_at_ms > k.since) FROM {_WINDOWS}"
#: How many executions hold a slot of each of some quotas.
SLOTS_TAKEN = (
    "SELECT k.q, (SELECT count(*) FROM ff_exec_core e WHERE e.quota_policy_id = k.q AND e.admitted_at_ms > 0) "
    "FROM unnest($1::text[]) AS k(q)"
)
