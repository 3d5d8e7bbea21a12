"""Questions about lanes as SQL, for every SQL store."""

from __future__ import annotations

from flowfabric.stores import questions as ask
from flowfabric.stores.sql.flows import Asked, Text
from flowfabric.stores.sql.rows import Dialect, KindRows
from flowfabric.stores.sql.search import one_of


class LaneQuestions:
    """Compiles them for one dialect."""

    _dialect: Dialect
    _lanes: KindRows

    def _ListLanes(self, q: ask.ListLanes) -> Asked:  # noqa: N802
        text = Text()
        first = "1 = 1"
        if q.after is not None:
            first = f"{{}}{self._dialect.bytewise} {'>=' if q.inclusive else '>'} {text.mark(q.after)}"
        text.add(first.format("t.lane_id"))
        visible = "" if q.namespaces is None else self._visible(q, q.namespaces, first, text)
        sql = (
            f"{visible}SELECT {self._lanes.select_list} FROM ff_lane_registry t WHERE {text.where()} "
            f"ORDER BY t.lane_id{self._dialect.bytewise} LIMIT {int(q.limit)}"
        )
        return Asked(sql, text.params, lambda rows: [self._lanes.read(row) for row in rows])

    def _visible(self, q: ask.ListLanes, namespaces: tuple[str, ...], first: str, text: Text) -> str:
        """Lanes that these namespaces use. Of those with executions no more are looked for than are wanted, jumping
        from each lane to the next one in the index, however many executions and foreign lanes there are."""
        text.add("t.lane_id IN (SELECT v.lane FROM visible v)")
        if not namespaces:
            return "WITH visible(lane) AS (SELECT '' WHERE 1 = 0) "
        marks = ", ".join(f"({text.mark(each)})" for each in namespaces)
        then = f"{{}}{self._dialect.bytewise} > u.lane"
        served, now = self._dialect.each_name.format("w.lanes"), text.mark(q.now)
        return (
            f"WITH RECURSIVE own(namespace) AS (VALUES {marks}), used(lane, place) AS ("
            f"SELECT {self._lowest(first)}, 1 UNION ALL SELECT {self._lowest(then)}, u.place + 1 FROM used u "
            f"WHERE u.lane IS NOT NULL AND u.place < {int(q.limit)}), visible(lane) AS (SELECT u.lane FROM used u "
            f"UNION SELECT s.lane_id FROM ff_schedule s WHERE {one_of('s.namespace', namespaces, text)} "
            f"UNION SELECT n.value FROM ff_worker_registry w CROSS JOIN {served} WHERE "
            f"{one_of('w.namespace', namespaces, text)} AND w.last_heartbeat_ms + w.liveness_ttl_ms > {now}) "
        )

    def _lowest(self, where: str) -> str:
        """The first lane behind a place in which one of the namespaces has an execution that has not ended."""
        bytewise = self._dialect.bytewise
        return (
            f"(SELECT l.lane FROM (SELECT (SELECT e.lane_id FROM ff_exec_core e WHERE e.namespace = o.namespace "
            f"AND e.terminal_at_ms IS NULL AND {where.format('e.lane_id')} "
            "AND EXISTS (SELECT 1 FROM ff_lane_registry r WHERE r.lane_id = e.lane_id) "
            f"ORDER BY e.lane_id{bytewise} LIMIT 1) AS lane FROM own o) l "
            f"ORDER BY l.lane{bytewise} NULLS LAST LIMIT 1)"
        )
