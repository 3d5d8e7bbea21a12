"""Loads what waits for a member that ends, in one statement: unresolved edges, their groups, the children."""

from __future__ import annotations

from functools import cache
from typing import Any

from flowfabric.model.decisions import DOWNSTREAM_LIMIT
from flowfabric.model.operations.flows import EdgeState
from flowfabric.model.records.flows import Edge, EdgeGroup
from flowfabric.stores.postgres.codec import DIALECT
from flowfabric.stores.sql.rows import ExecutionRows, KindRows, execution_select

_EDGES, _GROUPS = KindRows(Edge, DIALECT), KindRows(EdgeGroup, DIALECT, "g")
#: Where the edge and its group begin in a row, and where their versions stand.
_EDGE = ExecutionRows(DIALECT).width
EDGE_VERSION = _EDGE + _EDGES.width
_GROUP = EDGE_VERSION + 1
GROUP_VERSION = _GROUP + _GROUPS.width

DESCENDANTS = (
    "WITH RECURSIVE reached(eid) AS (SELECT downstream_eid FROM ff_edge WHERE partition_key = $1 AND flow_id = $2 "
    "AND upstream_eid = $3 UNION SELECT t.downstream_eid FROM reached r JOIN ff_edge t ON t.partition_key = $1 "
    "AND t.flow_id = $2 AND t.upstream_eid = r.eid) SELECT eid::text FROM reached"
)


@cache
def downstream(locked: bool) -> str:
    """Unresolved edges out of many members; one that has no group or leads nowhere counts for nobody.

    Children are locked in key order, as everywhere. What is locked is as new as can be; only the child's attempt may
    be older than its lock, which the caller finds out by the child's version.
    """
    columns, source = execution_select(DIALECT).split(" FROM ff_exec_core e", 1)
    lock = " FOR UPDATE OF t, g, e" if locked else ""
    return (
        f"{columns}, {_EDGES.select_list}, {_GROUPS.select_list} "
        "FROM unnest($1::smallint[], $2::uuid[], $3::uuid[]) AS k(p, f, u) CROSS JOIN LATERAL (SELECT o.edge_id "
        "FROM ff_edge o WHERE o.partition_key = k.p AND o.flow_id = k.f AND o.upstream_eid = k.u "
        f"AND o.edge_state = '{EdgeState.APPLIED}' ORDER BY o.edge_id LIMIT {DOWNSTREAM_LIMIT}) o "
        "JOIN ff_edge t ON t.partition_key = k.p AND t.flow_id = k.f AND t.edge_id = o.edge_id "
        f"AND t.edge_state = '{EdgeState.APPLIED}' "
        "JOIN ff_edge_group g ON g.partition_key = k.p AND g.flow_id = k.f AND g.downstream_eid = t.downstream_eid "
        f"JOIN ff_exec_core e ON e.partition_key = k.p AND e.execution_id = t.downstream_eid{source} "
        f"ORDER BY e.partition_key, e.execution_id, t.edge_id{lock}"
    )


def read(row: Any) -> tuple[Edge, EdgeGroup]:
    """The edge and the group of a row; what precedes them is the child."""
    return _EDGES.read(row[_EDGE:EDGE_VERSION]), _GROUPS.read(row[_GROUP:GROUP_VERSION])
