"""Searches for executions and lists of credentials as SQL, for every SQL store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowfabric.stores import questions as ask
from flowfabric.stores.flowquestions import Asked, Text
from flowfabric.stores.rows import Dialect, KindRows

#: How many namespaces are read side by side.
MOST_MERGED = 40


class SearchQuestions:
    """Compiles them for one dialect."""

    _dialect: Dialect
    _tag_value: str
    _credentials: KindRows
    _audit: KindRows
    _uuid: Callable[[str], Any]

    def _SearchExecutions(self, q: ask.SearchExecutions) -> Asked:  # noqa: N802
        text = Text()
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
        if q.tag is not None:
            text.add(f"{self._tag_value.format(text.mark(q.tag[0]))} = {text.mark(q.tag[1])}")
        if q.created_from_ms is not None:
            text.add(f"e.created_at_ms >= {text.mark(q.created_from_ms)}")
        if q.created_before_ms is not None:
            text.add(f"e.created_at_ms < {text.mark(q.created_before_ms)}")
        return self._newest(q.namespaces, q.after, q.limit, text, merged=q.flow is None)

    def _newest(
        self,
        namespaces: tuple[str | None, ...] | None,
        after: tuple[int, int, str] | None,
        limit: int,
        text: Text,
        *,
        merged: bool,
    ) -> Asked:
        """Lines of what fits, newest first, behind a place. Each of a few namespaces is read in order from the index,
        and the newest of them all are taken (``merged``)."""
        if after is not None:
            created, partition, uuid = after
            marks = f"{text.mark(created)}, CAST({text.mark(partition)} AS integer), {text.mark(self._uuid(uuid))}"
            text.add(f"(e.created_at_ms, e.partition_key, e.execution_id) < ({marks})")
        source, where = "ff_exec_core e", text.where()
        if merged and namespaces is not None and 1 < len(namespaces) <= MOST_MERGED:
            source = (
                f"({self._merged(namespaces, limit, text)}) k JOIN ff_exec_core e USING (partition_key, execution_id)"
            )
            where = "1 = 1"
        elif namespaces is not None:
            where = f"{where} AND {one_of('e.namespace', namespaces, text)}"
        read = self._dialect.read.get("uuid", "{}").format
        sql = (
            f"SELECT e.partition_key, {read('e.execution_id')}, {self._dialect.derived['namespace']}, e.lane_id, "
            f"{self._dialect.derived['execution_kind']}, e.public_state, e.priority, e.created_at_ms, "
            f"e.started_at_ms, e.terminal_at_ms, e.attempt_index, {read('e.flow_id')}, e.blocking_reason "
            f"FROM {source} WHERE {where} "
            f"ORDER BY e.created_at_ms DESC, e.partition_key DESC, e.execution_id DESC LIMIT {int(limit)}"
        )
        return Asked(sql, text.params, lambda rows: [self._summary(row) for row in rows])

    def _merged(self, namespaces: tuple[str | None, ...], limit: int, text: Text) -> str:
        where = text.where()
        parts = []
        for number, namespace in enumerate(namespaces):
            own = "e.namespace IS NULL" if namespace is None else f"e.namespace = {text.mark(namespace)}"
            parts.append(
                f"SELECT * FROM (SELECT e.partition_key, e.execution_id FROM ff_exec_core e WHERE {where} AND {own} "
                "ORDER BY e.created_at_ms DESC, e.partition_key DESC, e.execution_id DESC "
                f"LIMIT {int(limit)}) n{number}"
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
        sql = (
            "SELECT e.lane_id, count(*), min(e.created_at_ms) FROM ff_exec_core e WHERE e.claimable "
            f"GROUP BY e.lane_id ORDER BY e.lane_id{self._dialect.bytewise}"
        )
        return Asked(sql, [], lambda rows: [tuple(row) for row in rows])

    def _ListAudit(self, q: ask.ListAudit) -> Asked:  # noqa: N802
        text = Text()
        identity = f"t.audit_id{self._dialect.bytewise}"
        if q.after is not None:
            text.add(f"{identity} < {text.mark(q.after)}")
        sql = (
            f"SELECT {self._audit.select_list} FROM ff_audit t WHERE {text.where()} "
            f"ORDER BY {identity} DESC LIMIT {int(q.limit)}"
        )
        return Asked(sql, text.params, lambda rows: [self._audit.read(row) for row in rows])

    def _summary(self, row: Any) -> ask.SummaryRow:
        values = list(row)
        decode = self._dialect.decode.get("uuid", str)
        values[1] = decode(values[1])
        values[11] = None if values[11] is None else decode(values[11])
        return ask.SummaryRow(*values)


def one_of(column: str, values: tuple[str | None, ...], text: Text) -> str:
    """A condition: the column holds one of these."""
    # One value is an equality, so that rows come in order from an index.
    known = [value for value in values if value is not None]
    if len(known) == 1:
        found = f"{column} = {text.mark(known[0])}"
    else:
        found = f"{column} IN ({', '.join(text.mark(value) for value in known)})" if known else "1 = 0"
    return found if len(known) == len(values) else f"({found} OR {column} IS NULL)"
