"""Flows as people look for them: what their roots are, how far they are, and who belongs to whom in them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flowfabric.core.documents import listed_document
from flowfabric.core.flows.build import FOUNDER, number
from flowfabric.core.flows.status import FLOW_STATES, state_seen
from flowfabric.engine.checks import values
from flowfabric.engine.checks.values import sorted_namespaces
from flowfabric.engine.reads.search import Searching, cursor_at, place
from flowfabric.model.decisions import Get, Select
from flowfabric.model.errors import NotFound
from flowfabric.model.ids import ExecutionId, FlowId, canonical_uuid
from flowfabric.model.limits import MAX_PAGE
from flowfabric.model.quoting import quoted
from flowfabric.model.reads.overview import FlowLine, FlowSearchPage, FlowTree, Relative
from flowfabric.model.records.executions import Binding, Execution
from flowfabric.model.records.flows import Flow
from flowfabric.stores.questions import CountMembers, ReadDocuments, SearchFlows

#: Flows that are looked at together, and by one call at most: a page may end before it is full.
CHUNK = 200
MOST_LOOKED_AT = 4_000
#: The tag of a child that says under which name its parent's code knows it.
STEP_TAG = "ff.step"


class FlowLists(Searching):
    """The part of the engine that lists flows and their members."""

    async def search_flows(
        self,
        *,
        namespaces: Iterable[str] | None = None,
        states: Iterable[str] = (),
        flow_kind: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> FlowSearchPage:
        """Flows that fit all that is given, newest first. ``flow_kind`` is a part of the flow's kind or of its root's.

        A page may have fewer than asked for, or none, although there are more: ``next_cursor`` says so.
        """
        size = values.integer(limit, "limit", 1, MAX_PAGE)
        own, wanted = (
            sorted_namespaces(namespaces),
            frozenset(_state(each) for each in values.few(states, "states")),
        )
        part = (values.optional_text(flow_kind, "flow_kind") or "").casefold()
        behind = place(cursor)
        found: list[FlowLine] = []
        chunk = size if not (wanted or part) else max(size, CHUNK)
        chunk = min(chunk, MAX_PAGE)
        for _ in range(max(1, MOST_LOOKED_AT // chunk)):
            flows: list[Flow] = await self._ask(SearchFlows(chunk + 1, behind, own))
            lines = await self._flow_lines(flows[:chunk], own)
            for flow, line in zip(flows, lines, strict=False):
                behind = (flow.created_at_ms, flow.flow_id, flow.partition)
                if (wanted and line.public_flow_state not in wanted) or part not in _kinds(line):
                    continue
                found.append(line)
                if len(found) == size:
                    return FlowSearchPage(tuple(found), None if flow is flows[-1] else cursor_at(behind))
            if len(flows) <= chunk:
                return FlowSearchPage(tuple(found), None)
        return FlowSearchPage(tuple(found), cursor_at(behind))

    async def read_flow_tree(
        self,
        flow_id: FlowId | str,
        *,
        parent: ExecutionId | str | None = None,
        namespaces: Iterable[str] | None = None,
        cursor: str | None = None,
        limit: int = 200,
    ) -> FlowTree:
        """A flow in one line and its members, newest first, with who started each of them and under which name; with
        ``parent`` those that it has started."""
        flow = values.flow_id(flow_id)
        key = (self._flow_partition(flow), flow)
        row = (await self._view(Get(Flow, key))).get(Flow, key)
        own = sorted_namespaces(namespaces)
        if row is None:
            raise NotFound("flow", flow)
        [line] = await self._flow_lines([row], own)
        page = await self.search_executions(namespaces=own, flow_id=flow, parent=parent, cursor=cursor, limit=limit)
        ids = [each.execution_id for each in page.executions]
        view = await self._view(*(Get(Execution, each) for each in ids))
        documents = await self._documents(ids)
        parents = {
            each: ExecutionId.of(key[0], stored.parent)
            for each in ids
            if (stored := view.execution(each)) is not None and stored.parent is not None
        }
        foreign = await self._foreign(set(parents.values()), own)
        members = []
        for each in page.executions:
            above = parents.get(each.execution_id)
            tags = listed_document(documents.get(str(each.execution_id), ""), "tags").get("tags")
            step = tags.get(STEP_TAG) if isinstance(tags, dict) else None
            members.append(
                Relative(
                    each.execution_id,
                    each.execution_kind,
                    None if above in foreign else above,
                    step if isinstance(step, str) else None,
                    each.lane_id,
                    each.public_state,
                    each.blocking_reason,
                    each.created_at,
                    each.started_at,
                    each.completed_at,
                )
            )
        return FlowTree(line, tuple(members), page.next_cursor)

    async def _documents(self, ids: Iterable[ExecutionId]) -> dict[str, str]:
        wanted = tuple(dict.fromkeys(map(str, ids)))
        return dict(await self._ask(ReadDocuments(wanted))) if wanted else {}

    async def _flow_lines(self, flows: list[Flow], own: tuple[str, ...] | None) -> list[FlowLine]:
        """What a list tells of flows. Roots in other namespaces are not told of."""
        if not flows:
            return []
        raws = [listed_document(flow.raw_fields, "flow_kind") for flow in flows]
        roots = [_root(flow, raw) for flow, raw in zip(flows, raws, strict=True)]
        known = [each for each in roots if each is not None]
        view = await self._view(
            *(Get(Execution, each) for each in known),
            *(Select(Binding, ("partition", "uuid"), (each.partition, each.uuid_text)) for each in known),
        )
        documents = await self._documents(known)
        counts = await self._ask(CountMembers(tuple(flow.key for flow in flows)))
        lines = []
        for flow, raw, root in zip(flows, raws, roots, strict=True):
            founder = None if root is None else view.execution(root)
            ended_at = flow.terminal_at_ms
            if founder is not None and founder.terminal_at_ms is not None:
                ended_at = founder.terminal_at_ms
            shown, kind, run_key = None, "", None
            if root is not None and founder is not None and (own is None or founder.namespace in own):
                shown = root
                kind = str(listed_document(documents.get(str(root), ""), "execution_kind").get("execution_kind") or "")
                bound = view.select(Binding, partition=root.partition, uuid=root.uuid_text)
                run_key = min((each.idempotency_key for each in bound), default=None)
            lines.append(
                FlowLine(
                    FlowId.unchecked(flow.flow_id),
                    str(raw.get("flow_kind") or ""),
                    str(raw.get("namespace") or ""),
                    state_seen(flow, None if founder is None else founder.public_state, counts[flow.key]),
                    number(raw.get("node_count")),
                    flow.created_at_ms,
                    ended_at,
                    shown,
                    kind,
                    run_key,
                )
            )
        return lines


def _root(flow: Flow, raw: dict[str, Any]) -> ExecutionId | None:
    founder = raw.get(FOUNDER)
    uuid = canonical_uuid(founder) if isinstance(founder, str) else None
    return None if uuid is None else ExecutionId.of(flow.partition, uuid)


def _kinds(line: FlowLine) -> str:
    return f"{line.flow_kind}\n{line.root_kind}".casefold()


def _state(value: object) -> str:
    if not isinstance(value, str) or value not in FLOW_STATES:
        raise values.invalid(f"states: {quoted(value)} is not one of {', '.join(FLOW_STATES)}")
    return str(value)
