"""Questions about schedules and requests as SQL, for every SQL store."""

from __future__ import annotations

from flowfabric.stores import questions as ask
from flowfabric.stores.flowquestions import Asked, Text
from flowfabric.stores.rows import Dialect, KindRows


class StartQuestions:
    """Compiles questions about what starts executions for one dialect."""

    _dialect: Dialect
    _schedules: KindRows

    def _ListSchedules(self, q: ask.ListSchedules) -> Asked:  # noqa: N802
        text = Text()
        text.add(f"t.namespace = {text.mark(q.namespace)}")
        name = f"t.schedule_id{self._dialect.bytewise}"
        if q.after is not None:
            text.add(f"{name} > {text.mark(q.after)}")
        return self._schedule_rows(f"{text.where()} ORDER BY {name} LIMIT {int(q.limit)}", text)

    def _DueSchedules(self, q: ask.DueSchedules) -> Asked:  # noqa: N802
        text = Text()
        text.add(f"t.next_at_ms <= {text.mark(q.now)}")
        if q.namespace is not None:
            text.add(f"t.namespace = {text.mark(q.namespace)}")
        return self._schedule_rows(f"{text.where()} ORDER BY t.next_at_ms LIMIT {int(q.limit)}", text)

    def _schedule_rows(self, tail: str, text: Text) -> Asked:
        sql = f"SELECT {self._schedules.select_list} FROM ff_schedule t WHERE {tail}"
        return Asked(sql, text.params, lambda rows: [self._schedules.read(row) for row in rows])
