"""Outboxes as SQL, for every SQL store: reading pages, and deleting what is too old."""

from __future__ import annotations

from typing import Any

from flowfabric.model.events import InstanceTagEvent
from flowfabric.stores.event_questions import EventRows, ReadEvents, Unreadable
from flowfabric.stores.sql.rows import Dialect
from flowfabric.stores.sql.schema import OUTBOXES


def horizon(table: str) -> str:
    """The expression for the id up to which an outbox was deleted by age."""
    return f"coalesce((SELECT trimmed_through FROM ff_event_horizon WHERE outbox = '{table}'), 0)"


class OutboxRows:
    """Select list and decoder of one outbox."""

    def __init__(self, kind: Any, dialect: Dialect) -> None:
        table = OUTBOXES[kind]
        self.kind = kind
        self.table = table.name
        self.tag_column = "tag" if kind is InstanceTagEvent else "instance_tag"
        self._decoders = tuple(dialect.decode.get(column.type) for column in table.columns)
        self._plain = not any(self._decoders)
        self.columns = ", ".join(f"e.{column.name}" for column in table.columns)
        self.select_list = ", ".join(
            f"{dialect.read.get(column.type, '{}').format(column.name)} AS {column.name}" for column in table.columns
        )

    def read(self, row: tuple[Any, ...]) -> Any:
        """The row's struct; what cannot be read is said instead."""
        if self._plain:
            return self.kind(*row)
        try:
            return self.kind(
                *[
                    value if decode is None or value is None else decode(value)
                    for value, decode in zip(row, self._decoders, strict=True)
                ]
            )
        except (AttributeError, TypeError, ValueError) as error:
            return Unreadable(str(error))

    def page(self, question: ReadEvents) -> tuple[str, list[Any]]:
        """One statement, so one moment: the horizon, the end, and the rows between two ids."""
        params: list[Any] = [question.after]
        conditions = ["event_id > ?1"]
        for condition, value in (
            ("event_id <= {}", question.through),
            ("namespace = {}", question.namespace),
            (f"{self.tag_column} = {{}}", question.instance_tag),
        ):
            if value is not None:
                params.append(value)
                conditions.append(condition.format(f"?{len(params)}"))
        sql = (
            f"SELECT h.trimmed, h.top, e.event_id, {self.columns} FROM (SELECT {horizon(self.table)} AS trimmed, "
            f"coalesce((SELECT max(event_id) FROM {self.table}), 0) AS top) h "
            f"LEFT JOIN (SELECT event_id, {self.select_list} FROM {self.table} WHERE {' AND '.join(conditions)} "
            f"ORDER BY event_id LIMIT {int(question.limit)}) e ON 1 = 1 ORDER BY e.event_id"
        )
        return sql, params

    def bounds(self, last_id: str) -> str:
        """How far events were deleted, and the last id handed out."""
        return f"SELECT {horizon(self.table)}, coalesce({last_id.format(self.table)}, 0)"

    def log(self, last_id: str) -> str:
        """As ``bounds``, with the time before which events were deleted and the highest id there is."""
        before = f"coalesce((SELECT trimmed_before_ms FROM ff_event_horizon WHERE outbox = '{self.table}'), 0)"
        highest = f"coalesce((SELECT max(event_id) FROM {self.table}), 0)"
        return f"{self.bounds(last_id)}, {before}, {highest}"

    def answer(self, found: list[Any]) -> EventRows:
        """The answer in the rows of such a statement; there is always at least one."""
        read = self.read
        trimmed, top, first = found[0][0], found[0][1], found[0][2]
        rows = [] if first is None else [(row[2], read(tuple(row)[3:])) for row in found]
        return EventRows(trimmed, top, rows)


#: Outboxes by age: which old rows may go, and the column that says how old.
_MAY_GO = {"ff_completion_event": "WHERE dispatched_at_ms IS NOT NULL "}
_TIME = {"ff_signal_event": "delivered_at_ms"}


def old_events(table: str, limit: int) -> str:
    """The ids of events older than ``?1`` among the first of an outbox. Looking at the first ones only keeps this
    cheap when nothing is old; what waits for dispatch stays."""
    time = _TIME.get(table, "occurred_at_ms")
    return (
        f"SELECT o.event_id FROM (SELECT event_id, {time} AS at FROM {table} {_MAY_GO.get(table, '')}ORDER BY event_id "
        f"LIMIT {int(limit)}) o WHERE o.at < ?1"
    )


#: Remembers how far an outbox was deleted, in the transaction that deletes.
HORIZON_RISES = "ON CONFLICT (outbox) DO UPDATE SET " + ", ".join(
    f"{each} = CASE WHEN excluded.{each} > {table}.{each} THEN excluded.{each} ELSE {table}.{each} END"
    for table in ("ff_event_horizon",)
    for each in ("trimmed_through", "trimmed_before_ms")
)
RAISE_HORIZON = (
    f"INSERT INTO ff_event_horizon (outbox, trimmed_through, trimmed_before_ms) VALUES (?1, ?2, ?3) {HORIZON_RISES}"
)
