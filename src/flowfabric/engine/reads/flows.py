"""Reading flows: what they are made of, and how far they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flowfabric.core.documents import parse_document
from flowfabric.core.flows.build import edge_snapshot, number
from flowfabric.core.flows.edges import applied_total
from flowfabric.engine.base import EngineBase
from flowfabric.engine.checks import values
from flowfabric.engine.checks.values import sorted_namespaces
from flowfabric.model.decisions import Get, Select
from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.ids import EdgeId, ExecutionId, FlowId
from flowfabric.model.limits import MAX_PAGE
from flowfabric.model.operations.flows import (
    EdgeGroupSnapshot,
    EdgeSnapshot,
    FlowPage,
    FlowProjection,
    FlowSnapshot,
    FlowSummary,
    GroupState,
    Incoming,
    Outgoing,
    flow_status,
    read_edge_policy,
)
from flowfabric.model.records.flows import Edge, EdgeGroup, Flow, FlowCounts
from flowfabric.stores.questions import ListFlows


class FlowReads(EngineBase):
    """The part of the engine that answers questions about flows."""

    async def describe_flow(
        self, flow_id: FlowId | str, *, namespaces: Iterable[str] | None = None
    ) -> FlowSnapshot | None:
        """What a person asks first about a flow; ``None`` without one. With ``namespaces`` the groups of members
        of others are left out."""
        flow, own = values.flow_id(flow_id), sorted_namespaces(namespaces)
        key = (self._flow_partition(flow), flow)
        groups = Select(EdgeGroup, ("partition", "flow_id"), key)
        view = await self._view(Get(Flow, key), groups)
        record = view.get(Flow, key)
        if record is None:
            return None
        raw = parse_document(record.raw_fields, "ff_flow_core.raw_fields")
        cancelled = record.public_flow_state == "cancelled"
        members = tuple(map(_group_snapshot, view.select(EdgeGroup, partition=key[0], flow_id=key[1])))
        foreign = await self._foreign((each.downstream_execution_id for each in members), own)
        return FlowSnapshot(
            FlowId.unchecked(flow),
            _text(raw.get("flow_kind")) or "",
            _text(raw.get("namespace")) or "",
            record.public_flow_state,
            record.graph_revision,
            number(raw.get("node_count")),
            number(raw.get("edge_count")),
            record.created_at_ms,
            number(raw.get("last_mutation_at_ms")) or record.created_at_ms,
            record.terminal_at_ms if cancelled else None,
            _text(raw.get("cancel_reason")),
            _text(raw.get("cancellation_policy")),
            {name: value for name, value in sorted(raw.items()) if "." in name and isinstance(value, str)},
            tuple(each for each in members if each.downstream_execution_id not in foreign),
        )

    async def list_flows(self, partition: int, cursor: FlowId | str | None = None, limit: int = 100) -> FlowPage:
        """Flows of a partition, ascending by id, strictly after the cursor."""
        size = min(values.integer(limit, "limit", 0, 2**31), MAX_PAGE)
        where = values.partition(partition)
        after = None if cursor is None else values.uuid(cursor, "cursor")
        if size == 0:
            return FlowPage((), None)
        found = await self._ask(ListFlows(where, after, size + 1))
        page = tuple(FlowSummary(FlowId.unchecked(flow), at, flow_status(state)) for flow, at, state in found[:size])
        return FlowPage(page, page[-1].flow_id if len(found) > size else None)

    async def list_flow_edges(
        self, flow_id: FlowId | str, *, namespaces: Iterable[str] | None = None
    ) -> list[EdgeSnapshot]:
        """All edges of a flow, by edge id; with ``namespaces`` those between members of these."""
        flow = values.flow_id(flow_id)
        return await self._edges(
            {"partition": self._flow_partition(flow), "flow_id": flow}, sorted_namespaces(namespaces)
        )

    async def list_edges(
        self, flow_id: FlowId | str, direction: Outgoing | Incoming, *, namespaces: Iterable[str] | None = None
    ) -> list[EdgeSnapshot]:
        """The edges out of a member or into one, by edge id; with ``namespaces`` those between members of these."""
        flow = values.flow_id(flow_id)
        if isinstance(direction, Outgoing):
            end, node = "upstream", values.execution_id(direction.from_node, "upstream")
        elif isinstance(direction, Incoming):
            end, node = "downstream", values.execution_id(direction.to_node, "downstream")
        else:
            raise values.invalid(f"direction: expected Outgoing or Incoming, got {type(direction).__name__}")
        # A member's partition is its flow's; any other id names nobody in this flow.
        return await self._edges(
            {"partition": node.partition, "flow_id": flow, end: node.uuid_text}, sorted_namespaces(namespaces)
        )

    async def _edges(self, where: dict[str, Any], own: tuple[str, ...] | None) -> list[EdgeSnapshot]:
        view = await self._view(Select(Edge, tuple(where), tuple(where.values())))
        found = [edge_snapshot(edge) for edge in view.select(Edge, **where)]
        ends = {each.edge_id: (each.upstream_execution_id, each.downstream_execution_id) for each in found}
        foreign = await self._foreign((end for both in ends.values() for end in both), own)
        return [each for each in found if foreign.isdisjoint(ends[each.edge_id])]

    async def describe_edge(self, flow_id: FlowId | str, edge_id: EdgeId | str) -> EdgeSnapshot | None:
        """One edge; ``None`` if it does not exist."""
        flow = values.flow_id(flow_id)
        key = (self._flow_partition(flow), flow, values.uuid(edge_id, "edge_id"))
        edge = (await self._view(Get(Edge, key))).get(Edge, key)
        return None if edge is None else edge_snapshot(edge)

    async def get_flow_summary(self, flow_id: FlowId | str) -> FlowProjection | None:
        """Members counted by state, as the ``flow_projector`` timer last saw them; ``None`` before that."""
        flow = values.flow_id(flow_id)
        key = (self._flow_partition(flow), flow)
        found = (await self._view(Get(FlowCounts, key))).get(FlowCounts, key)
        if found is None:
            return None
        return FlowProjection(
            FlowId.unchecked(flow),
            **{name: getattr(found, name) for name in FlowProjection.__struct_fields__ if name != "flow_id"},
        )


def _group_snapshot(group: EdgeGroup) -> EdgeGroupSnapshot:
    try:
        state = GroupState(group.group_state)
    except ValueError:
        raise Validation(ValidationKind.CORRUPTION, f"group_state: unknown value {group.group_state!r}") from None
    return EdgeGroupSnapshot(
        ExecutionId.of(group.partition, group.downstream),
        read_edge_policy(group.policy),
        applied_total(group),
        group.success_count,
        group.fail_count,
        group.skip_count,
        group.running_count,
        state,
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
