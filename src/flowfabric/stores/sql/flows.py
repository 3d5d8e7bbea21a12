"""Questions about flows as SQL, for every SQL store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from flowfabric.model import states as lit
from flowfabric.model.operations.flows import EdgeState
from flowfabric.stores import questions as ask
from flowfabric.stores.sql.rows import ENDED_LIST, Dialect
from flowfabric.stores.sql.schema import split_wire


class Asked(Struct):
    """One statement and how to read its answer."""

    sql: str
    params: list[Any]
    read: Callable[[list[Any]], Any]


class Text:
    """Builds a condition and its parameters side by side."""

    def __init__(self) -> None:
        self.params: list[Any] = []
        self.conditions: list[str] = []

    def mark(self, value: Any) -> str:
        self.params.append(value)
        return f"?{len(self.params)}"

    def add(self, condition: str) -> None:
        self.conditions.append(condition)

    def where(self) -> str:
        return " AND ".join(self.conditions) or "1 = 1"


def any_row(rows: str) -> str:
    """Whether there is such a row. Unlike ``EXISTS`` this is never answered by reading a whole table beforehand."""
    return f"(SELECT 1 FROM {rows} LIMIT 1) IS NOT NULL"


_ENDED_FLOW = ", ".join(repr(state) for state in sorted(lit.ENDED_FLOW_STATES))
#: A retention candidate that belongs to a flow must belong to one that is over, as far as anybody has noticed.
FLOW_IS_OVER = "(e.flow_id IS NULL OR {} OR NOT {})".format(
    any_row(
        "ff_flow_summary s WHERE s.partition_key = e.partition_key AND s.flow_id = e.flow_id "
        "AND s.public_flow_state IN ('completed', 'failed')"
    ),
    any_row(
        "ff_flow_core f WHERE f.partition_key = e.partition_key AND f.flow_id = e.flow_id "
        f"AND f.public_flow_state NOT IN ({_ENDED_FLOW})"
    ),
)
ALL_DISPATCHED = "NOT " + any_row(
    "ff_completion_event c WHERE c.partition_key = e.partition_key AND c.execution_id = e.execution_id "
    "AND c.dispatched_at_ms IS NULL AND c.flow_id IS NOT NULL"
)
_WAITED_FOR = (
    "t.partition_key = w.partition_key AND t.flow_id = w.flow_id AND t.downstream_eid = w.execution_id "
    f"AND t.edge_state = '{EdgeState.APPLIED}'"
)
#: Whether a member that waits should not: an edge left behind by an ended upstream, or none to wait for.
_STUCK = "{} OR NOT {}".format(
    any_row(
        "ff_edge t JOIN ff_exec_core u ON u.partition_key = t.partition_key AND u.execution_id = t.upstream_eid "
        f"WHERE {_WAITED_FOR} AND u.lifecycle_phase IN ({ENDED_LIST})"
    ),
    any_row(f"ff_edge t WHERE {_WAITED_FOR}"),
)


_ANY_MEMBER = any_row("ff_exec_core e WHERE e.partition_key = w.partition_key AND e.flow_id = w.flow_id")


class FlowQuestions:
    """Compiles questions about flows for one dialect."""

    _dialect: Dialect
    _tag_value: str

    def _uuid(self, text: str) -> Any:
        encode = self._dialect.encode.get("uuid")
        return text if encode is None else encode(text)

    def _bare(self, uuid: Any) -> str:
        decode = self._dialect.decode.get("uuid")
        return str(uuid if decode is None else decode(uuid))

    def _reading(self, column: str) -> str:
        return self._dialect.read.get("uuid", "{}").format(column)

    def _keys(self, rows: list[Any]) -> list[Any]:
        """``(partition, flow id, …)``: the first column as it is, the others as UUIDs."""
        return [(row[0], *map(self._bare, tuple(row)[1:])) for row in rows]

    def _behind(self, text: Text, alias: str, column: str, after: tuple[int, str] | None) -> None:
        if after is not None:
            partition, uuid = text.mark(after[0]), text.mark(self._uuid(after[1]))
            text.add(f"({alias}.partition_key, {alias}.{column}) > (CAST({partition} AS integer), {uuid})")

    def _ListFlows(self, q: ask.ListFlows) -> Asked:  # noqa: N802
        text = Text()
        text.add(f"t.partition_key = CAST({text.mark(q.partition)} AS integer)")
        if q.after is not None:
            text.add(f"t.flow_id > {text.mark(self._uuid(q.after))}")
        sql = (
            f"SELECT {self._reading('t.flow_id')}, t.created_at_ms, t.public_flow_state FROM ff_flow_core t "
            f"WHERE {text.where()} ORDER BY t.flow_id LIMIT {int(q.limit)}"
        )
        return Asked(sql, text.params, lambda rows: [(self._bare(row[0]), row[1], row[2]) for row in rows])

    def _StuckMembers(self, q: ask.StuckMembers) -> Asked:  # noqa: N802
        text = Text()
        text.add(f"e.eligibility_state = '{lit.BLOCKED_BY_DEPENDENCIES}'")
        self._behind(text, "e", "execution_id", None if q.after is None else split_wire(q.after))
        if q.namespace is not None:
            text.add(f"{self._dialect.derived['namespace']} = {text.mark(q.namespace)}")
        if q.tag is not None:
            text.add(f"{self._tag_value.format(text.mark(q.tag[0]))} = {text.mark(q.tag[1])}")
        sql = (
            f"SELECT w.partition_key, {self._reading('w.execution_id')}, {_STUCK} FROM (SELECT e.partition_key, "
            f"e.execution_id, e.flow_id FROM ff_exec_core e WHERE {text.where()} "
            f"ORDER BY e.partition_key, e.execution_id LIMIT {int(q.window)}) w"
        )

        def read(rows: list[Any]) -> tuple[list[str], str | None]:
            found = [(f"{{fp:{row[0]}}}:{self._bare(row[1])}", row[2]) for row in rows]
            full = len(found) == q.window
            return [wire for wire, stuck in found if stuck], found[-1][0] if full else None

        return Asked(sql, text.params, read)

    def _PendingGroups(self, q: ask.PendingGroups) -> Asked:  # noqa: N802
        join = (
            "LEFT JOIN ff_edge_group g ON g.partition_key = p.partition_key AND g.flow_id = p.flow_id "
            "AND g.downstream_eid = p.downstream_eid"
        )
        columns = f"partition_key, {self._reading('{0}.flow_id')}, {self._reading('{0}.downstream_eid')}"
        items = f"SELECT p.{columns.format('p')} FROM ff_pending_cancel_groups p"
        order = f"ORDER BY p.enqueued_at_ms LIMIT {int(q.limit)}"
        if q.actionable:
            where = "WHERE g.partition_key IS NULL OR g.cancel_siblings_pending_flag"
            return Asked(f"{items} {join} {where} {order}", [], self._keys)
        lost = (
            f"SELECT g.{columns.format('g')} FROM ff_edge_group g WHERE g.cancel_siblings_pending_flag AND NOT EXISTS "
            "(SELECT 1 FROM ff_pending_cancel_groups p WHERE p.partition_key = g.partition_key "
            f"AND p.flow_id = g.flow_id AND p.downstream_eid = g.downstream_eid) LIMIT {int(q.limit)}"
        )
        return Asked(f"SELECT * FROM ({items} {order}) a UNION ALL SELECT * FROM ({lost}) b", [], self._keys)

    def _BacklogDue(self, q: ask.BacklogDue) -> Asked:  # noqa: N802
        sql = (
            f"SELECT b.partition_key, {self._reading('b.flow_id')} FROM ff_cancel_backlog b WHERE "
            f"b.grace_until_ms IS NULL OR b.grace_until_ms <= ?1 ORDER BY b.requested_at_ms LIMIT {int(q.limit)}"
        )
        return Asked(sql, [q.now], self._keys)

    def _BacklogMembers(self, q: ask.BacklogMembers) -> Asked:  # noqa: N802
        sql = (
            "SELECT execution_id FROM ff_cancel_backlog_member WHERE partition_key = CAST(?1 AS integer) "
            f"AND flow_id = ?2 ORDER BY execution_id LIMIT {int(q.limit)}"
        )
        return Asked(sql, [q.partition, self._uuid(q.flow_id)], lambda rows: [row[0] for row in rows])

    def _OpenFlows(self, q: ask.OpenFlows) -> Asked:  # noqa: N802
        text = Text()
        text.add("(s.partition_key IS NULL OR s.public_flow_state NOT IN ('completed', 'failed'))")
        self._behind(text, "f", "flow_id", q.after)
        sql = (
            f"SELECT f.partition_key, {self._reading('f.flow_id')} FROM ff_flow_core f LEFT JOIN ff_flow_summary s "
            f"ON s.partition_key = f.partition_key AND s.flow_id = f.flow_id WHERE {text.where()} "
            f"ORDER BY f.partition_key, f.flow_id LIMIT {int(q.limit)}"
        )
        return Asked(sql, text.params, self._keys)

    def _EmptyFlows(self, q: ask.EmptyFlows) -> Asked:  # noqa: N802
        text = Text()
        self._behind(text, "f", "flow_id", q.after)
        sql = (
            f"SELECT w.partition_key, {self._reading('w.flow_id')}, NOT {_ANY_MEMBER} FROM (SELECT f.partition_key, "
            f"f.flow_id FROM ff_flow_core f WHERE {text.where()} ORDER BY f.partition_key, f.flow_id "
            f"LIMIT {int(q.window)}) w"
        )

        def read(rows: list[Any]) -> tuple[list[tuple[int, str]], tuple[int, str] | None]:
            found = [((row[0], self._bare(row[1])), row[2]) for row in rows]
            full = len(found) == q.window
            return [key for key, empty in found if empty], found[-1][0] if full else None

        return Asked(sql, text.params, read)

    def _CountMembers(self, q: ask.CountMembers) -> Asked:  # noqa: N802
        text = Text()
        for partition, flow_id in q.flows:
            marks = f"CAST({text.mark(partition)} AS integer)", text.mark(self._uuid(flow_id))
            text.add(
                "SELECT partition_key, flow_id, public_state, count(*) FROM ff_exec_core "
                f"WHERE partition_key = {marks[0]} AND flow_id = {marks[1]} "
                "GROUP BY partition_key, flow_id, public_state"
            )
        union = " UNION ALL ".join(text.conditions)
        columns = f"c.partition_key, {self._reading('c.flow_id')}, c.public_state, c.n"
        sql = f"WITH c(partition_key, flow_id, public_state, n) AS ({union}) SELECT {columns} FROM c"

        def read(rows: list[Any]) -> dict[tuple[int, str], dict[str, int]]:
            found: dict[tuple[int, str], dict[str, int]] = {key: {} for key in q.flows}
            for partition, flow_id, state, count in rows:
                found[(partition, self._bare(flow_id))][state] = count
            return found

        return Asked(sql, text.params, read)
