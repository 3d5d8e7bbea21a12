"""The view's knowledge of graphs: members of a flow, edges to be resolved, and who can be reached from whom."""

from __future__ import annotations

from typing import Any

from flowfabric.model.decisions import Descendants, Downstream, Key, LiveMembers, Need, Select
from flowfabric.model.operations.flows import EdgeState
from flowfabric.model.records.executions import Execution
from flowfabric.model.records.flows import Edge
from flowfabric.model.states import ENDED_PHASES


class Missing(Exception):
    """A rule asked for records that the batch has not loaded."""

    def __init__(self, *needs: Need) -> None:
        self.needs = needs


class GraphView:
    """The part of a view that knows graphs."""

    def __init__(self) -> None:
        self._selected: dict[Need, list[Key]] = {}
        self._descendants: dict[Descendants, frozenset[str]] = {}
        #: What a rule sees: loaded and held records, with folded ones on top.
        self._current: dict[Any, dict[Key, Any]] = {}
        #: Edges this batch has written, by flow and upstream.
        self._edges: dict[tuple[str, str], dict[Key, None]] = {}

    def _found(self, need: Select, keys: list[Key]) -> list[Any]:
        raise NotImplementedError

    def put_descendants(self, need: Descendants, uuids: frozenset[str]) -> None:
        """The answer to a ``Descendants``."""
        self._descendants[need] = uuids

    def live_members(self, partition: int, flow_id: str, after: str, limit: int) -> list[Execution]:
        """Members behind a UUID that have not ended, folded changes included: at least ``limit`` if there are."""
        need = LiveMembers(partition, flow_id, after, limit)
        keys = self._selected.get(need)
        if keys is None:
            raise Missing(need)
        found = self._found(Select(Execution, ("partition", "flow_id"), (partition, flow_id)), keys)
        return [each for each in found if each.lifecycle_phase not in ENDED_PHASES and each.uuid > after]

    def unresolved(self, partition: int, flow_id: str, uuid: str) -> list[Edge]:
        """The first unresolved edges out of a member, in key order, folded changes included."""
        need = Downstream(partition, flow_id, uuid)
        keys = self._selected.get(need)
        if keys is None:
            raise Missing(need)
        own = self._edges.get((flow_id, uuid))
        if own:
            keys = sorted({**dict.fromkeys(keys), **own})
        current = self._current.get(Edge, {})
        found = [current[key] for key in keys]
        return [edge for edge in found if edge is not None and edge.edge_state == EdgeState.APPLIED]

    def descendants(self, partition: int, flow_id: str, uuid: str) -> frozenset[str]:
        """Every member that can be reached from one, edges of this batch included."""
        reached: set[str] = set()
        starts = [uuid]
        added = [(upstream, key) for (flow, upstream), keys in self._edges.items() if flow == flow_id for key in keys]
        while starts:
            need = Descendants(partition, flow_id, starts.pop())
            found = self._descendants.get(need)
            if found is None:
                raise Missing(need)
            reached |= found
            current = self._current.get(Edge, {})
            for upstream, key in added:
                edge = current[key]
                if edge is not None and (upstream == uuid or upstream in reached) and edge.downstream not in reached:
                    reached.add(edge.downstream)
                    starts.append(edge.downstream)
        return frozenset(reached)

    def _note_edge(self, edge: Edge) -> None:
        own = self._edges.get((edge.flow_id, edge.upstream))
        if own is None:
            own = self._edges[(edge.flow_id, edge.upstream)] = {}
        own[edge.key] = None
