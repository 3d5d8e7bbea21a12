"""Searches for executions and lists of credentials as SQL, for every SQL store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowfabric.stores import questions as ask
from flowfabric.stores.sql.flows import Asked, Text
from flowfabric.stores.sql.rows import Dialect, KindRows

#: How many namespaces are read side by side.
MOST_MERGED = 40
#: How many executions the beginning of an id may stand for.
MOST_BY_ID = 10_000
#: When an execution was suspended last; the index of who waits for whom is in the order of this very expression.
SUSPENDED_AT = "coalesce(e.suspended_at_ms, e.created_at_ms)"
#: The message of the last failure.
ERROR = "coalesce(nullif(e.failure_reason, ''), nullif(e.last_failure_message, ''))"


class SearchQuestions:
    """Compiles them for one dialect."""

    _dialect: Dialect
    _tag_value: str
    _credentials: KindRows
    _audit: KindRows
    _uuid: Callable[[str], Any]

    def _SearchExecutions(self, q: ask.SearchExecutions) -> Asked:  # noqa: N802
        text = Text()
        self._fitting(q, text)
        return self._newest("e.namespace", q.namespaces, q.after, q.limit, text, merged=q.flow is None, ids=q.ids)

    def _CountExecutions(self, q: ask.CountExecutions) -> Asked:  # noqa: N802
        text = Text()
        self._fitting(q.search, text)
        if q.leaving_out:
            kind = self._dialect.derived["execution_kind"]
            begins = f"substr({kind}, 1, {len(q.leaving_out)})"
            text.add(f"coalesce({begins}, '') <> {text.mark(q.leaving_out)}")
        if q.search.namespaces is not None:
            text.add(one_of("e.namespace", q.search.namespaces, text))
        sql = f"SELECT count(*) FROM ff_exec_core e WHERE {text.where()}"
        return Asked(sql, text.params, lambda rows: rows[0][0])

    def _CountStates(self, q: ask.CountStates) -> Asked:  # noqa: N802
        text = Text()
        self._fitting(q.search, text)
        if q.search.namespaces is not None:
            text.add(one_of("e.namespace", q.search.namespaces, text))
        source = "ff_exec_core e" if q.search.ids is None else self._by_id(q.search.ids, text)
        sql = f"SELECT e.public_state, count(*) FROM {source} WHERE {text.where()} GROUP BY e.public_state"
        return Asked(sql, text.params, lambda rows: [tuple(row) for row in rows])

    def _SearchEdge(self, q: ask.SearchEdge) -> Asked:  # noqa: N802
        text, search = Text(), q.search
        self._created(search, text)
        if search.after is not None:
            text.add(self._place("<", search.after, text))
        read = self._dialect.read.get("uuid", "{}").format
        source, where = "ff_exec_core e", text.where()
        if search.namespaces is not None and 1 < len(search.namespaces) <= MOST_MERGED:
            merged = self._merged("e.namespace", search.namespaces, "e.created_at_ms", q.rows, text)
            source, where = f"({merged}) e", "1 = 1"
        elif search.namespaces is not None:
            where = f"{where} AND {one_of('e.namespace', search.namespaces, text)}"
        sql = (
            f"SELECT e.created_at_ms, {read('e.execution_id')}, e.partition_key FROM {source} WHERE {where} "
            f"ORDER BY {_newest('e.created_at_ms')} "
            f"LIMIT 1 OFFSET {int(q.rows) - 1}"
        )
        decode = self._dialect.decode.get("uuid", str)
        return Asked(sql, text.params, lambda rows: (rows[0][0], decode(rows[0][1]), rows[0][2]) if rows else None)

    def _by_id(self, ids: tuple[tuple[int, ...], str, str], text: Text) -> str:
        """Rows whose UUIDs lie between two: found in each partition by the primary key, before anything is sorted."""
        partitions, low, high = ids
        found = (
            "SELECT i.partition_key, i.execution_id FROM ff_exec_core i "
            f"WHERE i.partition_key IN ({', '.join(str(int(each)) for each in partitions)}) "
            f"AND i.execution_id BETWEEN {text.mark(self._uuid(low))} AND {text.mark(self._uuid(high))} "
            f"LIMIT {MOST_BY_ID}"
        )
        return f"({found}) k JOIN ff_exec_core e USING (partition_key, execution_id)"

    def _place(self, sign: str, place: ask.ListPlace, text: Text, time: str = "e.created_at_ms") -> str:
        """A condition on where a row stands in the order of lists."""
        columns = ", ".join((time, "e.execution_id", "e.partition_key"))
        return f"({columns}) {sign} ({self._marks(place, text)})"

    def _marks(self, place: ask.ListPlace, text: Text) -> str:
        at, uuid, partition = place
        return f"{text.mark(at)}, {text.mark(self._uuid(uuid))}, CAST({text.mark(partition)} AS integer)"

    def _tagged(self, names: tuple[str, ...], value: str, text: Text) -> None:
        wanted = text.mark(value)
        found = [f"{self._tag_value.format(text.mark(name))} = {wanted}" for name in names]
        text.add(found[0] if len(found) == 1 else f"({' OR '.join(found)})")

    def _created(self, q: ask.SearchExecutions, text: Text) -> None:
        if q.created_from_ms is not None:
            text.add(f"e.created_at_ms >= {text.mark(q.created_from_ms)}")
        if q.created_before_ms is not None:
            text.add(f"e.created_at_ms < {text.mark(q.created_before_ms)}")

    def _texts(self, q: ask.SearchExecutions, text: Text) -> None:
        """Parts of texts, which no index knows."""
        contains = self._dialect.contains.format
        for part in q.kind_parts:
            text.add(contains(f"coalesce({self._dialect.derived['execution_kind']}, '')", text.mark(part)))
        if q.id_end is not None:
            text.add(f"{self._dialect.uuid_end.format('e.execution_id', len(q.id_end))} = {text.mark(q.id_end)}")
        for part in q.errors:
            text.add(contains(f"coalesce({ERROR}, '')", text.mark(part)))
        for part in q.workers:
            mark = text.mark(part)
            names = ("worker_instance_id", "last_instance_id", "worker_id")
            fits = " OR ".join(contains(f"coalesce(a.{name}, '')", mark) for name in names)
            text.add(
                "(SELECT 1 FROM ff_attempt a WHERE a.partition_key = e.partition_key AND a.execution_id = "
                f"e.execution_id AND a.attempt_index = e.attempt_index AND ({fits})) IS NOT NULL"
            )

    def _fitting(self, q: ask.SearchExecutions, text: Text) -> None:
        """What a search asks for, but for namespaces."""
        if q.flow is not None:
            text.add(f"e.partition_key = CAST({text.mark(q.flow[0])} AS integer)")
            text.add(f"e.flow_id = {text.mark(self._uuid(q.flow[1]))}")
        if q.parent is not None:
            text.add(f"e.partition_key = CAST({text.mark(q.parent[0])} AS integer)")
            text.add(f"e.parent_eid = {text.mark(self._uuid(q.parent[1]))}")
        if q.lane_id is not None:
            text.add(f"e.lane_id = {text.mark(q.lane_id)}")
        if q.states:
            text.add(one_of("e.public_state", q.states, text))
        if q.kind is not None:
            text.add(f"{self._dialect.derived['execution_kind']} = {text.mark(q.kind)}")
        if q.roots:
            text.add("e.parent_eid IS NULL")
        for names, value in q.tags:
            self._tagged(names, value, text)
        self._created(q, text)
        if q.down_to is not None:
            text.add(self._place(">=", q.down_to, text))
        if q.ended_from_ms is not None:
            text.add(f"e.terminal_at_ms >= {text.mark(q.ended_from_ms)}")
        if q.ended_before_ms is not None:
            text.add(f"e.terminal_at_ms < {text.mark(q.ended_before_ms)}")
        self._texts(q, text)

    def _newest(
        self,
        column: str,
        wanted: tuple[str | None, ...] | None,
        after: ask.ListPlace | None,
        limit: int,
        text: Text,
        *,
        merged: bool,
        time: str = "e.created_at_ms",
        ids: tuple[tuple[int, ...], str, str] | None = None,
    ) -> Asked:
        """Lines of what fits and has one of the ``wanted`` values in a column, newest first, behind a place. Each of a
        few values is read in order from an index, and the newest of them all are taken (``merged``)."""
        if after is not None:
            text.add(self._place("<", after, text, time))
        source, where = "ff_exec_core e", text.where()
        if ids is not None:
            source, merged = self._by_id(ids, text), False
        if merged and wanted is not None and 1 < len(wanted) <= MOST_MERGED:
            found = self._merged(column, wanted, time, limit, text)
            source, where = f"({found}) k JOIN ff_exec_core e USING (partition_key, execution_id)", "1 = 1"
        elif wanted is not None:
            where = f"{where} AND {one_of(column, wanted, text)}"
        read = self._dialect.read.get("uuid", "{}").format
        sql = (
            f"SELECT e.partition_key, {read('e.execution_id')}, {self._dialect.derived['namespace']}, e.lane_id, "
            f"{self._dialect.derived['execution_kind']}, e.public_state, e.priority, e.created_at_ms, "
            f"e.started_at_ms, e.terminal_at_ms, e.attempt_index, {read('e.flow_id')}, e.blocking_reason, "
            f"{ERROR}, e.cancellation_reason, {self._dialect.tags}, {read('e.parent_eid')}, {SUSPENDED_AT} "
            f"FROM {source} WHERE {where} ORDER BY {_newest(time)} LIMIT {int(limit)}"
        )
        return Asked(sql, text.params, lambda rows: [self._summary(row) for row in rows])

    def _merged(self, column: str, wanted: tuple[str | None, ...], time: str, limit: int, text: Text) -> str:
        where = text.where()
        parts = []
        for number, value in enumerate(wanted):
            own = f"{column} IS NULL" if value is None else f"{column} = {text.mark(value)}"
            parts.append(
                "SELECT * FROM (SELECT e.created_at_ms, e.partition_key, e.execution_id "
                f"FROM ff_exec_core e WHERE {where} AND {own} ORDER BY {_newest(time)} LIMIT {int(limit)}) n{number}"
            )
        return " UNION ALL ".join(parts)

    def _ListCredentials(self, q: ask.ListCredentials) -> Asked:  # noqa: N802
        text = Text()
        identity = f"t.credential_id{self._dialect.bytewise}"
        if q.after is not None:
            text.add(f"{identity} > {text.mark(q.after)}")
        sql = (
            f"SELECT {self._credentials.select_list} FROM ff_credential t WHERE {text.where()} "
            f"ORDER BY {identity} LIMIT {int(q.limit)}"
        )
        return Asked(sql, text.params, lambda rows: [self._credentials.read(row) for row in rows])

    def _QueueDepths(self, q: ask.QueueDepths) -> Asked:  # noqa: N802
        text = Text()
        text.add("e.claimable")
        if q.namespaces is not None:
            # Says what is always so, to be answered from the index of what is open in a namespace.
            text.add(f"e.terminal_at_ms IS NULL AND {one_of('e.namespace', q.namespaces, text)}")
        sql = (
            f"SELECT e.lane_id, count(*), min(e.created_at_ms) FROM ff_exec_core e WHERE {text.where()} "
            f"GROUP BY e.lane_id ORDER BY e.lane_id{self._dialect.bytewise}"
        )
        return Asked(sql, text.params, lambda rows: [tuple(row) for row in rows])

    def _ListAudit(self, q: ask.ListAudit) -> Asked:  # noqa: N802
        text = Text()
        if q.after is not None:
            text.add(f"t.number < (SELECT a.number FROM ff_audit a WHERE a.audit_id = {text.mark(q.after)})")
        sql = (
            f"SELECT {self._audit.select_list} FROM ff_audit t WHERE {text.where()} "
            f"ORDER BY t.number DESC LIMIT {int(q.limit)}"
        )
        return Asked(sql, text.params, lambda rows: [self._audit.read(row) for row in rows])

    def _summary(self, row: Any) -> ask.SummaryRow:
        values = list(row)
        decode = self._dialect.decode.get("uuid", str)
        values[1] = decode(values[1])
        for place in (11, 16):
            values[place] = None if values[place] is None else decode(values[place])
        return ask.SummaryRow(*values)


def _newest(time: str) -> str:
    return f"{time} DESC, e.execution_id DESC, e.partition_key DESC"


def one_of(column: str, values: tuple[str | None, ...], text: Text) -> str:
    """A condition: the column holds one of these."""
    # One value is an equality, so that rows come in order from an index.
    known = [value for value in values if value is not None]
    if len(known) == 1:
        found = f"{column} = {text.mark(known[0])}"
    else:
        found = f"{column} IN ({', '.join(text.mark(value) for value in known)})" if known else "1 = 0"
    return found if len(known) == len(values) else f"({found} OR {column} IS NULL)"
