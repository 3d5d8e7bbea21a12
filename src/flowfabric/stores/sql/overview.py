"""Questions of operators about the whole, as SQL for every SQL store, answered from small indexes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowfabric.model import states as lit
from flowfabric.stores import questions as ask
from flowfabric.stores.sql.flows import Asked, Text
from flowfabric.stores.sql.rows import Dialect, KindRows
from flowfabric.stores.sql.search import SUSPENDED_AT, SearchQuestions, one_of

#: Those that have an index; what an operator blocked is told by name only.
SET_ASIDE = (lit.BLOCKED_BY_BUDGET, lit.BLOCKED_BY_QUOTA, lit.BLOCKED_BY_ROUTE, lit.BLOCKED_BY_LANE_STATE)


def _counted(source: str, limit: int) -> str:
    return f"(SELECT count(*) FROM (SELECT 1 FROM {source} LIMIT {limit}) c)"


def _lowest(where: str) -> str:
    tables = ("ff_exec_core", "ff_schedule", "ff_worker_registry")
    each = " UNION ALL ".join(f"SELECT min(namespace) AS namespace FROM {table}{where}" for table in tables)
    return f"SELECT min(m.namespace) FROM ({each}) m"


class OverviewQuestions(SearchQuestions):
    """Compiles them for one dialect."""

    _dialect: Dialect
    _flows: KindRows
    _samples: KindRows
    _uuid: Callable[[str], Any]

    def _ListNamespaces(self, q: ask.ListNamespaces) -> Asked:  # noqa: N802
        # Jumps from each namespace to the next one in the indexes, however many rows they have.
        text = Text()
        where = "" if q.after is None else f" WHERE namespace > {text.mark(q.after)}"
        sql = (
            f"WITH RECURSIVE n(namespace) AS (SELECT ({_lowest(where)}) UNION ALL "
            f"SELECT ({_lowest(' WHERE namespace > n.namespace')}) FROM n WHERE n.namespace IS NOT NULL) "
            f"SELECT namespace FROM n WHERE namespace IS NOT NULL LIMIT {int(q.limit)}"
        )
        return Asked(sql, text.params, lambda rows: [row[0] for row in rows])

    def _SearchFlows(self, q: ask.SearchFlows) -> Asked:  # noqa: N802
        text = Text()
        if q.namespaces is not None:
            # A flow's document is read like an execution's.
            kind = self._dialect.derived["execution_kind"].replace("e.raw_fields", "t.raw_fields")
            text.add(one_of(kind.replace("execution_kind", "namespace"), q.namespaces, text))
        if q.after is not None:
            text.add(f"(t.created_at_ms, t.flow_id, t.partition_key) < ({self._marks(q.after, text)})")
        sql = (
            f"SELECT {self._flows.select_list} FROM ff_flow_core t WHERE {text.where()} "
            f"ORDER BY t.created_at_ms DESC, t.flow_id DESC, t.partition_key DESC LIMIT {int(q.limit)}"
        )
        return Asked(sql, text.params, lambda rows: [self._flows.read(row) for row in rows])

    def _SearchSuspended(self, q: ask.SearchSuspended) -> Asked:  # noqa: N802
        text = Text()
        text.add(f"e.lifecycle_phase = '{lit.SUSPENDED}'")
        if q.flow is not None:
            text.add(f"e.partition_key = CAST({text.mark(q.flow[0])} AS integer)")
            text.add(f"e.flow_id = {text.mark(self._uuid(q.flow[1]))}")
        if q.namespaces is not None:
            text.add(one_of("e.namespace", q.namespaces, text))
        if q.after is not None:
            # SQLite finds a place among the values of an expression by that alone.
            text.add(f"{SUSPENDED_AT} <= {text.mark(q.after[0])}")
        return self._newest(
            "e.blocking_reason", q.reasons, q.after, q.limit, text, merged=q.flow is None, time=SUSPENDED_AT
        )

    def _CountUnended(self, q: ask.CountUnended) -> Asked:  # noqa: N802
        most, waits = int(q.limit), lit.BLOCKED_BY_DEPENDENCIES
        states = ", ".join(f"'{state}'" for state in SET_ASIDE)
        counts = (
            _counted("ff_attempt WHERE lease_expires_at_ms IS NOT NULL", most),
            _counted(f"ff_exec_core WHERE lifecycle_phase = '{lit.SUSPENDED}'", most),
            _counted(f"ff_exec_core WHERE delay_until_ms IS NOT NULL AND eligibility_state <> '{waits}'", most),
            _counted(f"ff_exec_core WHERE eligibility_state IN ({states})", most),
            _counted(f"ff_exec_core WHERE eligibility_state = '{waits}'", most),
            _counted("ff_cancel_backlog_member", most),
        )
        return Asked(f"SELECT {', '.join(counts)}", [], lambda rows: tuple(rows[0]))

    def _ListSamples(self, q: ask.ListSamples) -> Asked:  # noqa: N802
        text = Text()
        text.add(f"t.minute_ms >= {text.mark(q.since_ms)}")
        sql = (
            f"SELECT {self._samples.select_list} FROM ff_sample t WHERE {text.where()} "
            f"ORDER BY t.minute_ms LIMIT {int(q.limit)}"
        )
        return Asked(sql, text.params, lambda rows: [self._samples.read(row) for row in rows])

    def _CountEnded(self, q: ask.CountEnded) -> Asked:  # noqa: N802
        text = Text()
        top = "(SELECT coalesce(max(event_id), 0) FROM ff_completion_event)"
        after = text.mark(q.after) if q.after is not None else f"{top} - {int(q.limit)}"
        stretch = int(q.stretch_ms)
        sql = (
            f"SELECT t.top, c.stretch, c.outcome, c.n FROM (SELECT {top} AS top) t LEFT JOIN ("
            f"SELECT occurred_at_ms - occurred_at_ms % {stretch} AS stretch, outcome, count(*) AS n "
            f"FROM ff_completion_event WHERE event_id > {after} GROUP BY 1, 2) c ON 1 = 1"
        )
        return Asked(sql, text.params, _ended)


def _ended(rows: list[Any]) -> tuple[int, list[tuple[int, str, int]]]:
    return rows[0][0], [(row[1], row[2], row[3]) for row in rows if row[1] is not None]
