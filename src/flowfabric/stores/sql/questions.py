"""Questions as SQL, for every SQL store: text with ``?1`` marks, parameters, and a reader for the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from flowfabric.model import states as lit
from flowfabric.model.operations.access import AuditEntry, Credential
from flowfabric.model.reads.samples import SampleRow
from flowfabric.model.records.executions import GoneWorker, Lane, Waitpoint, Worker
from flowfabric.model.records.flows import Flow
from flowfabric.model.records.starts import EnqueueRequest, Schedule
from flowfabric.stores import questions as ask
from flowfabric.stores.event_questions import EventBounds, ReadEvents
from flowfabric.stores.sql.budgets import BudgetQuestions, admission_trims
from flowfabric.stores.sql.events import OutboxRows
from flowfabric.stores.sql.examine import ExamineQuestions
from flowfabric.stores.sql.flows import ALL_DISPATCHED, FLOW_IS_OVER, Asked, FlowQuestions, Text
from flowfabric.stores.sql.lanes import LaneQuestions
from flowfabric.stores.sql.overview import OverviewQuestions
from flowfabric.stores.sql.rows import (
    ENDED_LIST,
    LIVE_WAITPOINT_LIST,
    TAKING_ALONG_LIST,
    WAITING_FOR_ROOM,
    WAITING_LIST,
    Dialect,
    ExecutionRows,
    KindRows,
    execution_select,
)
from flowfabric.stores.sql.schema import OUTBOXES, split_wire
from flowfabric.stores.sql.search import one_of
from flowfabric.stores.sql.starts import StartQuestions, within


class SqlQuestions(FlowQuestions, BudgetQuestions, StartQuestions, OverviewQuestions, ExamineQuestions, LaneQuestions):
    """Compiles questions for one dialect. ``tag_value`` is the expression for a tag of ``e`` named by a mark,
    ``last_id`` the one for the last id a table has handed out."""

    def __init__(self, dialect: Dialect, tag_value: str, last_id: str) -> None:
        self._dialect = dialect
        self._tag_value = tag_value
        self._rows = ExecutionRows(dialect)
        self._select = execution_select(dialect)
        self._workers = KindRows(Worker, dialect)
        self._gone = KindRows(GoneWorker, dialect)
        self._lanes = KindRows(Lane, dialect)
        self._last_id = last_id
        self._schedules = KindRows(Schedule, dialect)
        self._requests = KindRows(EnqueueRequest, dialect)
        self._credentials = KindRows(Credential, dialect)
        self._audit = KindRows(AuditEntry, dialect)
        self._samples = KindRows(SampleRow, dialect)
        self._flows = KindRows(Flow, dialect)
        self._outboxes = {kind: OutboxRows(kind, dialect) for kind in OUTBOXES}
        self._waitpoints = KindRows(Waitpoint, dialect)

    def _wire(self, partition: int, uuid: Any) -> str:
        decode = self._dialect.decode.get("uuid")
        return f"{{fp:{partition}}}:{uuid if decode is None else decode(uuid)}"

    def _wires(self, rows: list[Any]) -> list[str]:
        return [self._wire(row[0], row[1]) for row in rows]

    def _ids(self, sql: str, params: list[Any]) -> Asked:
        return Asked(sql, params, self._wires)

    @property
    def _id_columns(self) -> str:
        uuid = self._dialect.read.get("uuid", "{}").format("e.execution_id")
        return f"e.partition_key, {uuid}"

    def compile(self, question: Any) -> Asked:
        """The statement for a question."""
        handler: Callable[[Any], Asked] = getattr(self, "_" + type(question).__name__)
        return handler(question)

    def _ListExecutions(self, q: ask.ListExecutions) -> Asked:  # noqa: N802
        text = Text()
        text.add(f"e.partition_key = CAST({text.mark(q.partition)} AS integer)")
        if q.after is not None:
            text.add(f"e.execution_id > {text.mark(self._uuid(q.after))}")
        return self._ids(
            f"SELECT {self._id_columns} FROM ff_exec_core e WHERE {text.where()} "
            f"ORDER BY e.execution_id LIMIT {int(q.limit)}",
            text.params,
        )

    def _ReadContexts(self, q: ask.ReadContexts) -> Asked:  # noqa: N802
        keys, params = self._key_table(q.execution_ids)
        if q.most_bytes is None:
            return self._contexts(keys, params)
        # Sizes are summed up without the payloads, so that none is read in vain.
        keys = (
            f"(WITH g(p, u) AS {keys}, n AS (SELECT row_number() OVER () AS n, p, u FROM g), "
            "l AS MATERIALIZED (SELECT n.n, n.p, n.u, coalesce(length(e.payload), 0) AS size "
            "FROM n CROSS JOIN ff_exec_core e WHERE e.partition_key = n.p AND e.execution_id = n.u), "
            "s AS (SELECT p, u, sum(size) OVER (ORDER BY n) - size AS before FROM l) "
            f"SELECT p, u FROM s WHERE before < ?{len(params) + 1})"
        )
        return self._contexts(keys, [*params, q.most_bytes])

    def _ReadDocuments(self, q: ask.ReadDocuments) -> Asked:  # noqa: N802
        keys, params = self._key_table(q.execution_ids)
        fields = self._dialect.read.get("json", "{}").format("e.raw_fields")
        return Asked(
            f"WITH k(p, u) AS {keys} SELECT {self._id_columns}, {fields} FROM k CROSS JOIN ff_exec_core e "
            "WHERE e.partition_key = k.p AND e.execution_id = k.u",
            params,
            lambda rows: [(self._wire(row[0], row[1]), row[2]) for row in rows],
        )

    def _key_table(self, execution_ids: tuple[str, ...]) -> tuple[str, list[Any]]:
        """A table of partitions and ids, and its parameters."""
        pairs = [split_wire(each) for each in execution_ids]
        # Keys of nothing fill it up to a power of two, so that there are few statements to prepare.
        pairs += [(-1, pairs[-1][1])] * ((1 << (len(pairs) - 1).bit_length()) - len(pairs))
        # A list of keys behind IN would be looked up in for every row of the table.
        params = [each for partition, uuid in pairs for each in (partition, self._uuid(uuid))]
        return _pairs(len(pairs)), params

    def _contexts(self, keys: str, params: list[Any]) -> Asked:
        fields = self._dialect.read.get("json", "{}").format("e.raw_fields")
        return Asked(
            f"WITH k(p, u) AS {keys} SELECT {self._id_columns}, e.payload, {fields}, e.cancel_at_ms, "
            "e.cancellation_reason FROM k CROSS JOIN ff_exec_core e "
            "WHERE e.partition_key = k.p AND e.execution_id = k.u",
            params,
            lambda rows: [(self._wire(row[0], row[1]), *row[2:6]) for row in rows],
        )

    def _ListSuspended(self, q: ask.ListSuspended) -> Asked:  # noqa: N802
        text = Text()
        text.add(f"t.partition_key = CAST({text.mark(q.partition)} AS integer)")
        text.add("t.closed_at_ms IS NULL")
        if q.after is not None and q.after_ms is not None:
            marks = f"{text.mark(q.after_ms)}, {text.mark(self._uuid(q.after))}"
            text.add(f"(t.suspended_at_ms, t.execution_id) > ({marks})")
        elif q.after is not None:
            after = text.mark(self._uuid(q.after))
            position = (
                f"(SELECT c.suspended_at_ms FROM ff_suspension_current c WHERE c.partition_key = ?1 "
                f"AND c.execution_id = {after})"
            )
            text.add(
                f"CASE WHEN {position} IS NULL THEN t.execution_id > {after} ELSE "
                f"(t.suspended_at_ms, t.execution_id) > ({position}, {after}) END"
            )
        uuid = self._dialect.read.get("uuid", "{}").format("t.execution_id")
        sql = (
            f"SELECT t.partition_key, {uuid}, t.suspended_at_ms, t.reason_code FROM ff_suspension_current t "
            f"WHERE {text.where()} ORDER BY t.suspended_at_ms, t.execution_id LIMIT {int(q.limit)}"
        )
        return Asked(
            sql, text.params, lambda rows: [(self._wire(row[0], row[1]), row[2], row[3] or "") for row in rows]
        )

    def _LiveSteps(self, q: ask.LiveSteps) -> Asked:  # noqa: N802
        text = Text()
        text.add(f"e.lifecycle_phase NOT IN ({ENDED_LIST})")
        name = f"s.name{self._dialect.bytewise}"
        if q.after is not None:
            partition, uuid, step = q.after
            marks = f"CAST({text.mark(partition)} AS integer), {text.mark(self._uuid(uuid))}, {text.mark(step)}"
            text.add(f"(s.partition_key, s.execution_id, {name}) > ({marks})")
        uuid_column = self._dialect.read.get("uuid", "{}").format("s.execution_id")
        sql = (
            f"SELECT s.partition_key, {uuid_column}, s.name FROM ff_step s JOIN ff_exec_core e "
            "ON e.partition_key = s.partition_key AND e.execution_id = s.execution_id "
            f"WHERE {text.where()} ORDER BY s.partition_key, s.execution_id, {name} LIMIT {int(q.limit)}"
        )
        return Asked(sql, text.params, lambda rows: [(self._wire(row[0], row[1]), row[2]) for row in rows])

    def _ListSteps(self, q: ask.ListSteps) -> Asked:  # noqa: N802
        text = Text()
        text.add(f"s.partition_key = CAST({text.mark(q.partition)} AS integer)")
        text.add(f"s.execution_id = {text.mark(self._uuid(q.uuid))}")
        name = f"s.name{self._dialect.bytewise}"
        if q.after is not None:
            sequence, step = q.after
            text.add(f"(s.sequence, {name}) > (CAST({text.mark(sequence)} AS integer), {text.mark(step)})")
        if q.names is not None:
            # The last one fills them up to a power of two, so that there are few statements to prepare.
            names = [*q.names, *q.names[-1:] * ((1 << (len(q.names) - 1).bit_length()) - len(q.names))]
            text.add(f"s.name IN ({', '.join(text.mark(each) for each in names)})" if names else "1 = 0")
        sql = (
            f"SELECT s.sequence, s.name, coalesce(length(s.value), 0) FROM ff_step s WHERE {text.where()} "
            f"ORDER BY s.sequence, {name} LIMIT {int(q.limit)}"
        )
        return Asked(sql, text.params, lambda rows: [(row[0], row[1], row[2]) for row in rows])

    def _ListWaitpoints(self, q: ask.ListWaitpoints) -> Asked:  # noqa: N802
        text = Text()
        text.add(f"t.partition_key = CAST({text.mark(q.partition)} AS integer)")
        text.add(f"t.execution_id = {text.mark(self._uuid(q.uuid))}")
        text.add(f"t.state IN ({LIVE_WAITPOINT_LIST})")
        if q.after is not None:
            text.add(f"t.waitpoint_id > {text.mark(self._uuid(q.after))}")
        sql = (
            f"SELECT {self._waitpoints.select_list} FROM ff_waitpoint_pending t WHERE {text.where()} "
            f"ORDER BY t.waitpoint_id LIMIT {int(q.limit)}"
        )
        return Asked(sql, text.params, lambda rows: [self._waitpoints.read(row) for row in rows])

    def _ListWorkers(self, q: ask.ListWorkers) -> Asked:  # noqa: N802
        text = Text()
        text.add(f"t.namespace = {text.mark(q.namespace)}")
        text.add(f"t.last_heartbeat_ms + t.liveness_ttl_ms > {text.mark(q.now)}")
        if q.after is not None:
            text.add(f"t.worker_instance_id{self._dialect.bytewise} > {text.mark(q.after)}")
        order = f"ORDER BY t.worker_instance_id{self._dialect.bytewise}"
        return self._worker_rows(f"{text.where()} {order} LIMIT {int(q.limit)}", text)

    def _LiveWorkers(self, q: ask.LiveWorkers) -> Asked:  # noqa: N802
        text = Text()
        text.add(f"t.last_heartbeat_ms + t.liveness_ttl_ms > {text.mark(q.now)}")
        return self._worker_rows(f"{text.where()} LIMIT {int(q.limit)}", text)

    def _SearchWorkers(self, q: ask.SearchWorkers) -> Asked:  # noqa: N802
        text = Text()
        text.add(f"t.last_heartbeat_ms + t.liveness_ttl_ms > {text.mark(q.now)}")
        order = within(text, self._dialect, "worker_instance_id", q.namespaces, q.after)
        return self._worker_rows(f"{text.where()} {order} LIMIT {int(q.limit)}", text)

    def _GoneWorkers(self, q: ask.GoneWorkers) -> Asked:  # noqa: N802
        text = Text()
        text.add(f"t.gone_at_ms >= {text.mark(q.since_ms)}")
        if q.namespaces is not None:
            text.add(one_of("t.namespace", q.namespaces, text))
        sql = (
            f"SELECT {self._gone.select_list} FROM ff_worker_gone t WHERE {text.where()} "
            f"ORDER BY t.gone_at_ms DESC, t.namespace{self._dialect.bytewise} DESC, "
            f"t.worker_instance_id{self._dialect.bytewise} DESC LIMIT {int(q.limit)}"
        )
        return Asked(sql, text.params, lambda rows: [self._gone.read(row) for row in rows])

    def _HeldLeases(self, q: ask.HeldLeases) -> Asked:  # noqa: N802
        text = Text()
        text.add(f"a.lease_expires_at_ms > {text.mark(q.now)}")
        text.add("a.worker_instance_id <> ''")
        joined = ""
        if q.namespaces is not None:
            joined = " JOIN ff_exec_core e ON e.partition_key = a.partition_key AND e.execution_id = a.execution_id"
            text.add(one_of("e.namespace", q.namespaces, text))
        sql = (
            "SELECT h.worker_instance_id, count(*) FROM (SELECT a.worker_instance_id FROM ff_attempt a"
            f"{joined} WHERE {text.where()} LIMIT {int(q.limit)}) h GROUP BY 1"
        )
        return Asked(sql, text.params, lambda rows: {row[0]: row[1] for row in rows})

    def _worker_rows(self, tail: str, text: Text) -> Asked:
        sql = f"SELECT {self._workers.select_list} FROM ff_worker_registry t WHERE {tail}"
        return Asked(sql, text.params, lambda rows: [self._workers.read(row) for row in rows])

    def _DueWorkers(self, q: ask.DueWorkers) -> Asked:  # noqa: N802
        return Asked(
            "SELECT namespace, worker_instance_id FROM ff_worker_registry "
            f"WHERE last_heartbeat_ms + liveness_ttl_ms <= ?1 LIMIT {int(q.limit)}",
            [q.now],
            lambda rows: [(row[0], row[1]) for row in rows],
        )

    def _ListExpiredLeases(self, q: ask.ListExpiredLeases) -> Asked:  # noqa: N802
        text = Text()
        text.add(f"a.lease_expires_at_ms <= {text.mark(q.as_of)}")
        text.add("a.worker_instance_id <> ''")
        text.add(f"e.lifecycle_phase = {text.mark(lit.ACTIVE)}")
        order = f"('{{fp:' || CAST(e.partition_key AS text) || '}}:'){self._dialect.bytewise}"
        uuid = self._dialect.read.get("uuid", "{}").format("e.execution_id")
        if q.after_ms is not None and q.after_id is not None:
            partition, after = split_wire(q.after_id)
            at = text.mark(q.after_ms)
            prefix, bare = text.mark(f"{{fp:{partition}}}:"), text.mark(self._uuid(after))
            text.add(
                f"(a.lease_expires_at_ms > {at} OR (a.lease_expires_at_ms = {at} AND "
                f"({order} > {prefix} OR ({order} = {prefix} AND e.execution_id > {bare}))))"
            )
        if q.namespace is not None:
            text.add(f"{self._dialect.derived['namespace']} = {text.mark(q.namespace)}")
        sql = (
            f"{self._select} WHERE {text.where()} ORDER BY a.lease_expires_at_ms, {order}, {uuid} LIMIT {int(q.limit)}"
        )
        return Asked(sql, text.params, lambda rows: [self._rows.read(row)[:2] for row in rows])

    def _ListLeases(self, q: ask.ListLeases) -> Asked:  # noqa: N802
        # There is no index by worker: it would be written with every lease, and this is asked for when an answer is
        # lost. Those that stand have a small one.
        text = Text()
        text.add(f"a.lease_expires_at_ms > {text.mark(q.now)}")
        text.add(f"a.worker_instance_id = {text.mark(q.worker_instance_id)}")
        sql = f"{self._select} WHERE {text.where()} ORDER BY a.lease_expires_at_ms LIMIT {int(q.limit)}"
        return Asked(sql, text.params, lambda rows: [self._rows.read(row)[:2] for row in rows])

    def _ReadEvents(self, q: ReadEvents) -> Asked:  # noqa: N802
        outbox = self._outboxes[q.kind]
        return Asked(*outbox.page(q), outbox.answer)

    def _EventBounds(self, q: EventBounds) -> Asked:  # noqa: N802
        sql = self._outboxes[q.kind].bounds(self._last_id)
        return Asked(sql, [], lambda rows: (rows[0][0], rows[0][1]))

    def _ReadFrames(self, q: ask.ReadFrames) -> Asked:  # noqa: N802
        text = Text()
        text.add(f"partition_key = CAST({text.mark(q.partition)} AS integer)")
        text.add(f"execution_id = {text.mark(self._uuid(q.uuid))}")
        text.add(f"attempt_index = {text.mark(q.attempt_index)}")
        text.add(f"(ts_ms, seq) >= ({text.mark(q.low[0])}, {text.mark(min(q.low[1], 2**31 - 1))})")
        text.add(f"(ts_ms, seq) <= ({text.mark(q.high[0])}, {text.mark(min(q.high[1], 2**31 - 1))})")
        if q.exclude_mode is not None:
            text.add(f"mode <> {text.mark(q.exclude_mode)}")
        fields = self._dialect.read.get("json", "{}").format("fields")
        order = "ts_ms DESC, seq DESC" if q.backwards else "ts_ms, seq"
        sql = f"SELECT ts_ms, seq, {fields}, mode FROM ff_stream_frame WHERE {text.where()} ORDER BY {order}"
        return Asked(f"{sql} LIMIT {int(q.limit)}", text.params, lambda rows: [tuple(row) for row in rows])

    def _ScanEligible(self, q: ask.ScanEligible) -> Asked:  # noqa: N802
        text = Text()
        text.add(f"e.lane_id = {text.mark(q.lane_id)}")
        if q.partition is not None:
            text.add(f"e.partition_key = CAST({text.mark(q.partition)} AS integer)")
        if q.namespaces is not None:
            text.add(one_of("e.namespace", q.namespaces, text))
        now = text.mark(q.now)
        tail = f"ORDER BY e.priority DESC, e.fair_rank, e.created_at_ms, e.execution_id LIMIT {int(q.limit)}"
        rows = (
            "SELECT e.partition_key, e.execution_id, e.priority, e.fair_rank, e.created_at_ms FROM ff_exec_core e "
            f"WHERE {text.where()} AND"
        )
        # Rows hidden by a claim grant that nobody used in time.
        grants = f"FROM ff_claim_grant g WHERE g.kind = '{lit.GRANT_CLAIM}' AND"
        forgotten = (
            f"{rows} e.eligibility_state = '{lit.PENDING_CLAIM}' AND e.lifecycle_phase IN ({WAITING_LIST}) "
            f"AND (e.partition_key, e.execution_id) IN (SELECT g.partition_key, g.execution_id {grants} "
            f"g.expires_at_ms > 0 AND g.expires_at_ms <= {now}) AND NOT EXISTS (SELECT 1 {grants} "
            "g.partition_key = e.partition_key AND g.execution_id = e.execution_id "
            f"AND (g.expires_at_ms = 0 OR g.expires_at_ms > {now}))"
        )
        return self._ids(
            f"SELECT {self._id_columns} FROM (SELECT * FROM ({rows} e.claimable {tail}) c "
            f"UNION ALL {forgotten}) e {tail}",
            text.params,
        )

    def _NextDue(self, q: ask.NextDue) -> Asked:  # noqa: N802
        parts = (
            (
                "(SELECT min(delay_until_ms) FROM ff_exec_core "
                f"WHERE delay_until_ms IS NOT NULL AND eligibility_state <> '{lit.BLOCKED_BY_DEPENDENCIES}')"
            ),
            "(SELECT min(lease_expires_at_ms) FROM ff_attempt WHERE lease_expires_at_ms IS NOT NULL)",
            "(SELECT min(attempt_timeout_at_ms) FROM ff_attempt WHERE attempt_timeout_at_ms IS NOT NULL)",
            "(SELECT min(next_reset_at_ms) FROM ff_budget_policy WHERE next_reset_at_ms IS NOT NULL)",
            "(SELECT min(next_room_at_ms) FROM ff_quota_policy WHERE next_room_at_ms IS NOT NULL)",
            "(SELECT min(next_at_ms) FROM ff_schedule WHERE next_at_ms IS NOT NULL)",
            (
                "(SELECT min(deadline_at_ms) FROM ff_exec_core "
                "WHERE deadline_at_ms IS NOT NULL AND terminal_at_ms IS NULL)"
            ),
            (
                "(SELECT min(timeout_at_ms) FROM ff_suspension_current "
                "WHERE timeout_at_ms IS NOT NULL AND closed_at_ms IS NULL)"
            ),
        )

        def earliest(rows: list[Any]) -> int | None:
            return min((value for value in rows[0] if value is not None), default=None)

        return Asked(f"SELECT {', '.join(parts)}", [], earliest)

    def _Integrity(self, q: ask.Integrity) -> Asked:  # noqa: N802
        return Asked("SELECT 1 WHERE 1 = 0", [], lambda rows: [])

    def _CountRows(self, q: ask.CountRows) -> Asked:  # noqa: N802
        sql = "SELECT lifecycle_phase, count(*) FROM ff_exec_core GROUP BY lifecycle_phase"
        return Asked(sql, [], lambda rows: {row[0]: row[1] for row in rows})

    def _Due(self, q: ask.Due) -> Asked:  # noqa: N802
        text = Text()
        source, order = self._due_source(q, text)
        if q.since is not None:
            text.add(f"{order.partition(',')[0]} >= {text.mark(q.since)}")
        if q.lane_id is not None:
            text.add(f"e.lane_id = {text.mark(q.lane_id)}")
        if q.partition is not None:
            text.add(f"e.partition_key = CAST({text.mark(q.partition)} AS integer)")
        if q.namespace is not None:
            text.add(f"{self._dialect.derived['namespace']} = {text.mark(q.namespace)}")
        if q.tag is not None:
            text.add(f"{self._tag_value.format(text.mark(q.tag[0]))} = {text.mark(q.tag[1])}")
        if q.after is not None:
            created, (partition, uuid) = q.after[0], split_wire(q.after[1])
            marks = f"{text.mark(created)}, CAST({text.mark(partition)} AS integer), {text.mark(self._uuid(uuid))}"
            text.add(f"(e.created_at_ms, e.partition_key, e.execution_id) > ({marks})")
        limit = q.limit + len(q.skip)
        sql = f"SELECT {self._id_columns} FROM {source} WHERE {text.where()} ORDER BY {order} LIMIT {int(limit)}"
        skip, wanted = q.skip, q.limit
        return Asked(
            sql,
            text.params,
            lambda rows: [wire for wire in dict.fromkeys(self._wires(rows)) if wire not in skip][:wanted],
        )

    def _due_source(self, q: ask.Due, text: Text) -> tuple[str, str]:
        found = _DUE.get(q.what)
        if found is None:
            raise ValueError(f"no timer is called {q.what!r}")
        source, condition, order = found
        text.add(condition.format(text.mark(q.now)) if "{}" in condition else condition)
        return source, order


@cache
def _pairs(count: int) -> str:
    """A table of so many pairs of marks."""
    return f"(VALUES {', '.join(f'(?{2 * n + 1}, ?{2 * n + 2})' for n in range(count))})"


def _beside(table: str) -> str:
    """Rows of a table with the execution they belong to."""
    alias = table[-1]
    return (
        f"{table} JOIN ff_exec_core e ON e.partition_key = {alias}.partition_key "
        f"AND e.execution_id = {alias}.execution_id"
    )


def _then(time: str) -> str:
    """By a time, and the same from page to page where that is equal."""
    return f"{time}, e.partition_key, e.execution_id"


_CORE = "ff_exec_core e"
_ATTEMPTS = _beside("ff_attempt a") + " AND e.attempt_index = a.attempt_index"
#: Which rows a timer looks at, on which condition (``{}`` is the time), in which order. Whether they are due is
#: decided by its rule.
_DUE: Mapping[str, tuple[str, str, str]] = {
    "intake": (_CORE, f"e.lifecycle_phase = '{lit.SUBMITTED}'", _then("e.created_at_ms")),
    "delayed_promoter": (
        _CORE,
        f"e.delay_until_ms <= {{}} AND e.eligibility_state <> '{lit.BLOCKED_BY_DEPENDENCIES}'",
        _then("e.delay_until_ms"),
    ),
    "lease_expiry": (_ATTEMPTS, "a.lease_expires_at_ms <= {}", _then("a.lease_expires_at_ms")),
    "attempt_timeout": (_ATTEMPTS, "a.attempt_timeout_at_ms <= {}", _then("a.attempt_timeout_at_ms")),
    "execution_deadline": (_CORE, "e.deadline_at_ms <= {} AND e.terminal_at_ms IS NULL", _then("e.deadline_at_ms")),
    "grant_sweep": (
        _beside("ff_claim_grant g"),
        f"g.expires_at_ms <= {{}} AND g.expires_at_ms > 0 AND g.kind = '{lit.GRANT_CLAIM}'",
        _then("g.expires_at_ms"),
    ),
    "suspension_timeout": (
        _beside("ff_suspension_current s"),
        "s.timeout_at_ms <= {} AND s.closed_at_ms IS NULL",
        _then("s.timeout_at_ms"),
    ),
    "pending_wp_expiry": (
        _beside("ff_waitpoint_pending w"),
        f"w.expires_at_ms <= {{}} AND w.state = '{lit.WAITPOINT_PENDING}'",
        _then("w.expires_at_ms"),
    ),
    "orphans": (
        f"{_CORE} JOIN ff_exec_core p ON p.partition_key = e.partition_key AND p.execution_id = e.parent_eid",
        f"e.parent_eid IS NOT NULL AND e.terminal_at_ms IS NULL AND p.public_state IN ({TAKING_ALONG_LIST})",
        "e.partition_key, e.parent_eid, e.execution_id",
    ),
    "unblock": (_CORE, f"e.eligibility_state = '{lit.BLOCKED_BY_ROUTE}'", _then("e.created_at_ms")),
    "lane_blocked": (_CORE, f"e.eligibility_state = '{lit.BLOCKED_BY_LANE_STATE}'", _then("e.created_at_ms")),
    "undispatched": (
        _beside("ff_completion_event c"),
        "c.dispatched_at_ms IS NULL AND c.flow_id IS NOT NULL AND c.occurred_at_ms <= {}",
        _then("c.occurred_at_ms"),
    ),
    "ungated": (
        _CORE,
        f"e.blocked_by IS NULL AND e.eligibility_state IN ({WAITING_FOR_ROOM})",
        _then("e.created_at_ms"),
    ),
    "retention": (
        _CORE,
        f"e.terminal_at_ms <= {{}} AND e.purge_at_ms IS NULL AND {FLOW_IS_OVER} AND {ALL_DISPATCHED}",
        _then("e.terminal_at_ms"),
    ),
    "purge": (_CORE, f"e.purge_at_ms <= {{}} AND {FLOW_IS_OVER} AND {ALL_DISPATCHED}", _then("e.purge_at_ms")),
}


def history_trims(question: ask.TrimHistory) -> list[tuple[str, int]]:
    """``(table and condition, time)`` of what goes by age, outboxes apart."""
    # Audited acts are numbered as they come, so only the first ones can be old.
    oldest = f"SELECT number FROM ff_audit ORDER BY number LIMIT {int(question.limit)}"
    return [
        ("ff_worker_registry_event WHERE event_at_ms < ?1", question.registry_before_ms),
        ("ff_exec_idempotency WHERE expires_at_ms <= ?1", question.now),
        ("ff_signal_dedup WHERE expires_at_ms <= ?1", question.now),
        ("ff_kept_answer WHERE expires_at_ms <= ?1", question.now),
        ("ff_suspend_dedup WHERE created_at_ms < ?1", question.registry_before_ms),
        ("ff_sample WHERE minute_ms < ?1", question.samples_before_ms),
        ("ff_worker_gone WHERE gone_at_ms < ?1", question.gone_before_ms),
        ("ff_kind_definition WHERE announced_at_ms < ?1", question.kinds_before_ms),
        (f"ff_audit WHERE at_ms < ?1 AND number IN ({oldest})", question.audit_before_ms),
        ("ff_enqueue_request WHERE refused_at_ms < ?1", question.refused_before_ms),
    ]


def trims(question: ask.TrimHistory | ask.TrimAdmission) -> list[tuple[str, int]]:
    """``(table and condition, time)`` of what a question deletes."""
    return history_trims(question) if isinstance(question, ask.TrimHistory) else admission_trims(question)
