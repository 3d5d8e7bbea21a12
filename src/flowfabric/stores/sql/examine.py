"""Questions of an examination about events and streams, as SQL, for every SQL store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowfabric.model.streams.frames import MODE_SUMMARY
from flowfabric.stores import questions as ask
from flowfabric.stores.event_questions import EventLog, LogState
from flowfabric.stores.sql.events import OutboxRows
from flowfabric.stores.sql.flows import Asked
from flowfabric.stores.sql.rows import Dialect


class ExamineQuestions:
    """Compiles them for one dialect."""

    _dialect: Dialect
    _last_id: str
    _outboxes: dict[Any, OutboxRows]
    _wire: Callable[[int, Any], str]
    _key_table: Callable[[tuple[str, ...]], tuple[str, list[Any]]]

    def _EventLog(self, q: EventLog) -> Asked:  # noqa: N802
        sql = self._outboxes[q.kind].log(self._last_id)
        return Asked(sql, [], lambda rows: LogState(*rows[0]))

    def _OddEnds(self, q: ask.OddEnds) -> Asked:  # noqa: N802
        # Both tables in one heap, put in order once: a join would look up every execution where no index helps.
        uuid = self._dialect.read.get("uuid", "{}").format("u")
        sql = (
            f"SELECT p, {uuid}, sum(told), max(at) FROM ("
            "SELECT partition_key AS p, execution_id AS u, terminal_at_ms AS over, 0 AS told, 1 AS there, "
            "CAST(NULL AS bigint) AS at FROM ff_exec_core UNION ALL "
            "SELECT partition_key, execution_id, CAST(NULL AS bigint), 1, 0, occurred_at_ms FROM ff_completion_event"
            ") o GROUP BY p, u HAVING max(there) = 1 AND (sum(told) > 1 OR (sum(told) = 1 AND max(over) IS NULL) OR "
            "(max(over) >= ?1 AND (max(at) IS NULL OR max(at) <> max(over)))) "
            f"ORDER BY p, u LIMIT {int(q.limit)}"
        )
        return Asked(sql, [q.since_ms], lambda rows: [(self._wire(row[0], row[1]), row[2], row[3]) for row in rows])

    def _CountFrames(self, q: ask.CountFrames) -> Asked:  # noqa: N802
        keys, params = self._key_table(q.execution_ids)
        uuid = self._dialect.read.get("uuid", "{}").format("f.execution_id")
        newest = (
            "(SELECT n.seq FROM ff_stream_frame n WHERE n.partition_key = f.partition_key "
            "AND n.execution_id = f.execution_id AND n.attempt_index = f.attempt_index "
            "ORDER BY n.ts_ms DESC, n.seq DESC LIMIT 1)"
        )
        sql = (
            f"WITH k(p, u) AS {keys} SELECT f.partition_key, {uuid}, f.attempt_index, count(*), "
            f"sum(CASE WHEN f.mode = '{MODE_SUMMARY}' THEN 1 ELSE 0 END), max(f.ts_ms), {newest} "
            "FROM (SELECT DISTINCT p, u FROM k) k CROSS JOIN ff_stream_frame f "
            "WHERE f.partition_key = k.p AND f.execution_id = k.u "
            "GROUP BY f.partition_key, f.execution_id, f.attempt_index"
        )

        def read(rows: list[Any]) -> list[ask.StoredStream]:
            return [
                ask.StoredStream(self._wire(row[0], row[1]), row[2], row[3], row[4], (row[5], row[6])) for row in rows
            ]

        return Asked(sql, params, read)
