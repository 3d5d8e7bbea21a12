"""Questions about schedules, kinds and requests as SQL, for every SQL store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowfabric.stores import questions as ask
from flowfabric.stores.sql.flows import Asked, Text
from flowfabric.stores.sql.rows import Dialect, KindRows
from flowfabric.stores.sql.search import one_of


def within(
    text: Text, dialect: Dialect, name: str, namespaces: tuple[str, ...] | None, after: tuple[str, str] | None
) -> str:
    """Only what is in one of these namespaces and behind a place; the order that makes places."""
    place = f"t.namespace{dialect.bytewise}, t.{name}{dialect.bytewise}"
    if namespaces is not None:
        text.add(one_of("t.namespace", namespaces, text))
    if after is not None:
        text.add(f"({place}) > ({text.mark(after[0])}, {text.mark(after[1])})")
    return f"ORDER BY {place}"


class StartQuestions:
    """Compiles questions about what starts executions for one dialect."""

    _dialect: Dialect
    _schedules: KindRows
    _requests: KindRows
    _uuid: Callable[[str], Any]

    def _ListSchedules(self, q: ask.ListSchedules) -> Asked:  # noqa: N802
        text = Text()
        text.add(f"t.namespace = {text.mark(q.namespace)}")
        name = f"t.schedule_id{self._dialect.bytewise}"
        if q.after is not None:
            text.add(f"{name} > {text.mark(q.after)}")
        return self._schedule_rows(f"{text.where()} ORDER BY {name} LIMIT {int(q.limit)}", text)

    def _SearchSchedules(self, q: ask.SearchSchedules) -> Asked:  # noqa: N802
        text = Text()
        order = within(text, self._dialect, "schedule_id", q.namespaces, q.after)
        return self._schedule_rows(f"{text.where()} {order} LIMIT {int(q.limit)}", text)

    def _ListKinds(self, q: ask.ListKinds) -> Asked:  # noqa: N802
        text = Text()
        order = within(text, self._dialect, "kind", q.namespaces, q.after)
        sql = (
            "SELECT t.namespace, t.kind, t.announced_at_ms FROM ff_kind_definition t "
            f"WHERE {text.where()} {order} LIMIT {int(q.limit)}"
        )
        return Asked(sql, text.params, lambda rows: [tuple(row) for row in rows])

    def _CountKinds(self, q: ask.CountKinds) -> Asked:  # noqa: N802
        text = Text()
        text.add(f"t.namespace = {text.mark(q.namespace)}")
        sql = f"SELECT count(*) FROM ff_kind_definition t WHERE {text.where()}"
        return Asked(sql, text.params, lambda rows: rows[0][0])

    def _DueSchedules(self, q: ask.DueSchedules) -> Asked:  # noqa: N802
        text = Text()
        text.add(f"t.next_at_ms <= {text.mark(q.now)}")
        if q.namespace is not None:
            text.add(f"t.namespace = {text.mark(q.namespace)}")
        return self._schedule_rows(f"{text.where()} ORDER BY t.next_at_ms LIMIT {int(q.limit)}", text)

    def _schedule_rows(self, tail: str, text: Text) -> Asked:
        sql = f"SELECT {self._schedules.select_list} FROM ff_schedule t WHERE {tail}"
        return Asked(sql, text.params, lambda rows: [self._schedules.read(row) for row in rows])

    def _PendingRequests(self, q: ask.PendingRequests) -> Asked:  # noqa: N802
        tail = f"t.refused_at_ms IS NULL ORDER BY t.requested_at_ms, t.request_id LIMIT {int(q.limit)}"
        return self._request_rows(tail, Text())

    def _ListRequests(self, q: ask.ListRequests) -> Asked:  # noqa: N802
        text = Text()
        if q.refused:
            text.add("t.refused_at_ms IS NOT NULL")
        if q.after is not None:
            text.add(f"t.request_id > {text.mark(self._uuid(q.after))}")
        return self._request_rows(f"{text.where()} ORDER BY t.request_id LIMIT {int(q.limit)}", text)

    def _request_rows(self, tail: str, text: Text) -> Asked:
        sql = f"SELECT {self._requests.select_list} FROM ff_enqueue_request t WHERE {tail}"
        return Asked(sql, text.params, lambda rows: [self._requests.read(row) for row in rows])
