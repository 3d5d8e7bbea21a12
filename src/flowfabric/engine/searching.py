"""Finding executions by what they are, newest first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flowfabric.core.graph import edge_snapshot
from flowfabric.engine import checks
from flowfabric.engine.base import EngineBase
from flowfabric.engine.places import names
from flowfabric.model.changes import Select
from flowfabric.model.flows import EdgeSnapshot
from flowfabric.model.ids import ExecutionId, FlowId, canonical_uuid
from flowfabric.model.limits import MAX_PAGE
from flowfabric.model.records import Edge
from flowfabric.model.search import ExecutionSummary, QueueDepth, SearchPage
from flowfabric.model.states import PublicState, canonical_public_state
from flowfabric.stores.questions import ListNamespaces, QueueDepths, SearchExecutions, SummaryRow
from flowfabric.stores.searchquestions import MOST_MERGED


class Searching(EngineBase):
    """The part of the engine that finds."""

    async def search_executions(
        self,
        *,
        namespaces: Iterable[str] | None = None,
        lane_id: str | None = None,
        states: Iterable[PublicState | str] = (),
        execution_kind: str | None = None,
        tag: tuple[str, str] | None = None,
        flow_id: FlowId | str | None = None,
        created_from: int | None = None,
        created_before: int | None = None,
        parent: ExecutionId | str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> SearchPage:
        """Executions that fit all that is given, newest first. Naming one namespace makes it quick in a large store
        with very many of them, and so does naming the flow of a ``parent``: whoever started them.

        A cursor stays good: what is created meanwhile comes before the first page, and nothing is shown twice.
        """
        size = checks.integer(limit, "limit", 1, MAX_PAGE)
        flow = None if flow_id is None else checks.flow_id(flow_id)
        started_by = None if parent is None else checks.execution_id(parent)
        own: tuple[str | None, ...] | None = names(namespaces)
        if own is None and flow is None:
            # Each namespace has its own order; a few of them are read side by side.
            known = await self._ask(ListNamespaces(None, MOST_MERGED))
            own = (None, *known) if len(known) < MOST_MERGED else None
        found: list[SummaryRow] = await self._ask(
            SearchExecutions(
                size + 1,
                place(cursor),
                own,
                None if lane_id is None else checks.lane(lane_id),
                tuple(_state(each) for each in checks.sequence(states, "states")),
                checks.optional_text(execution_kind, "execution_kind"),
                _tag(tag),
                None if flow is None else (self._flow_partition(flow), flow),
                checks.optional_time_ms(created_from, "created_from"),
                checks.optional_time_ms(created_before, "created_before"),
                None if started_by is None else (started_by.partition, started_by.uuid_text),
            )
        )
        page = tuple(map(_summary, found[:size]))
        last = found[size - 1] if len(found) > size else None
        return SearchPage(page, None if last is None else f"{last.created_at_ms}.{last.partition}.{last.uuid}")

    async def queue_depths(self) -> tuple[QueueDepth, ...]:
        """What can be claimed in each lane; lanes where nothing waits are left out."""
        found = await self._ask(QueueDepths())
        now = await self.now_ms()
        return tuple(QueueDepth(lane, count, max(now - oldest, 0)) for lane, count, oldest in found)

    async def list_flow_edges(self, flow_id: FlowId | str) -> list[EdgeSnapshot]:
        """All edges of a flow, by edge id."""
        flow = checks.flow_id(flow_id)
        key = (self._flow_partition(flow), flow)
        view = await self._view(Select(Edge, ("partition", "flow_id"), key))
        return [edge_snapshot(edge) for edge in view.select(Edge, partition=key[0], flow_id=key[1])]


def _state(value: Any) -> str:
    known = [each.value for each in PublicState]
    if not isinstance(value, str) or str.__str__(value) not in known:
        raise checks.invalid(f"states: {value!r:.80} is none of {', '.join(known)}")
    return str.__str__(value)


def _tag(value: Any) -> tuple[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, tuple) or len(value) != 2:
        raise checks.invalid("tag: expected a key and a value")
    return checks.text(value[0], "tag", empty=False), checks.text(value[1], "tag")


def place(cursor: Any) -> tuple[int, int, str] | None:
    """Where a cursor stands."""
    if cursor is None:
        return None
    parts = checks.text(cursor, "cursor").split(".")
    uuid = canonical_uuid(parts[-1])
    if len(parts) != 3 or uuid is None or not all(_is_number(part) for part in parts[:2]):
        raise checks.invalid("cursor: it is none; pass the next_cursor of a page, unchanged")
    return checks.time_ms(int(parts[0]), "cursor"), checks.partition(int(parts[1])), uuid


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20


def _summary(row: SummaryRow) -> ExecutionSummary:
    return ExecutionSummary(
        ExecutionId.of(row.partition, row.uuid),
        row.namespace or "",
        row.lane_id,
        row.execution_kind or "",
        canonical_public_state(row.public_state),
        row.priority,
        row.created_at_ms,
        row.started_at_ms,
        row.terminal_at_ms,
        row.attempt_index,
        None if row.flow_id is None else FlowId(row.flow_id),
        row.blocking_reason or None,
    )
