"""The view's knowledge of claim candidates: what the store found, what this batch took, and what it makes claimable."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import Any

from flowfabric.core.batch.graph_view import GraphView, Missing
from flowfabric.core.batch.ranks import Turns
from flowfabric.model.decisions import Claimable, Key, Ranked
from flowfabric.model.records.executions import Execution, Grant
from flowfabric.model.states import PENDING_CLAIM, is_claimable


class _Scan:
    """Claim candidates of one lane and capability set, in claim order."""

    __slots__ = ("asked", "exhausted", "keys", "position")

    def __init__(self, keys: list[str], asked: int, exhausted: bool) -> None:
        self.keys = keys
        self.asked = asked
        self.exhausted = exhausted
        self.position = 0


def claim_order(execution: Execution) -> tuple[int, int, int, str]:
    """Priority first, then turn (in fair lanes), then age, then id: the one order of every lane."""
    return (-execution.priority, execution.fair_rank, execution.created_at_ms, execution.uuid)


class CandidatesView(GraphView):
    """The part of a view that knows the queues of lanes."""

    def __init__(self) -> None:
        super().__init__()
        self._scans: dict[tuple[str, frozenset[str], frozenset[str] | None], _Scan] = {}
        self._bound: list[Execution] = []
        self._turns = Turns()
        #: What this batch writes, by kind and key, and what its purges take away.
        self._puts: dict[Any, dict[Key, tuple[str, ...] | None]] = {}
        self._purged: dict[Any, set[Key]] = {}
        #: Executions that this batch leaves claimable, by lane, in claim order.
        self._fresh: dict[str, list[tuple[int, int, int, str, str]]] = {}

    def _restart_queues(self) -> None:
        """Forget what the batch has done; keep what was loaded."""
        self._fresh = {}
        self._turns.restart()
        for scan in self._scans.values():
            scan.position = 0

    def has_scan(self, need: Claimable) -> bool:
        """Whether the candidates are known as far as asked for."""
        scan = self._scans.get((need.lane_id, need.capabilities, need.namespaces))
        return scan is not None and (scan.exhausted or scan.asked >= need.limit)

    def put_claimable(self, need: Claimable, keys: list[str]) -> None:
        """The answer to a ``Claimable``; its executions and attempts were put one by one."""
        executions = self._current.get(Execution, {})
        for key in keys:
            execution = executions[key]
            if execution.budget_ids is not None or execution.quota_policy_id is not None:
                self._bound.append(execution)
        exhausted = len(keys) < need.limit
        self._scans[(need.lane_id, need.capabilities, need.namespaces)] = _Scan(keys, need.limit, exhausted)

    def newly_bound(self) -> list[Execution]:
        """Claim candidates that name a budget or a quota, each once."""
        bound, self._bound = self._bound, []
        return bound

    def put_ranked(self, need: Ranked, ranks: list[tuple[str, int]]) -> None:
        """The answer to a ``Ranked``."""
        self._turns.put(need, ranks)

    def claimable(
        self, lane_id: str, capabilities: frozenset[str], limit: int, namespaces: frozenset[str] | None = None
    ) -> list[Execution]:
        """The next executions in claim order; those already taken in this batch are gone."""
        scan = self._scans.get((lane_id, capabilities, namespaces))
        if scan is None:
            raise Missing(Claimable(lane_id, capabilities, limit, namespaces))
        touched: Mapping[Key, Any] = self._puts.get(Execution, {})
        purged = self._purged.get(Execution, ())
        current: Mapping[Key, Any] = self._current.get(Execution, {})
        keys, position, end = scan.keys, scan.position, len(scan.keys)
        while position < end and (
            keys[position] in purged or (keys[position] in touched and self._moved(keys[position]))
        ):
            position += 1
        scan.position = position
        found: list[Execution] = []
        while position < end and len(found) < limit:
            key = keys[position]
            if key not in purged and (key not in touched or not self._moved(key)):
                found.append(current[key])
            position += 1
        if len(found) < limit and not scan.exhausted:
            raise Missing(Claimable(lane_id, capabilities, 2 * scan.asked + limit, namespaces))
        fresh = self._fresh.get(lane_id)
        return self._with_fresh(found, fresh, capabilities, limit, namespaces) if fresh else found

    def rank(self, lane_id: str, priority: int, fair_key: str | None) -> int | None:
        """The lowest rank that waits in a fair lane at a priority, or the highest one of a key; see ``Ranked``."""
        touched: Mapping[Key, Any] = self._puts.get(Execution, {})
        purged = self._purged.get(Execution, ())
        found = self._turns.rank((lane_id, priority, fair_key), lambda key: key in touched or key in purged)
        if type(found) is Ranked:
            raise Missing(found)
        return found  # type: ignore[return-value]

    def fresh_in(self, lane_id: str) -> list[Execution]:
        """Executions of a lane that this batch itself has made claimable."""
        current = self._current.get(Execution, {})
        return [current[entry[-1]] for entry in self._fresh.get(lane_id, ())]

    def fresh_work(self) -> dict[str, list[Execution]]:
        """Executions this batch leaves claimable, by lane: whom to wake."""
        current = self._current.get(Execution, {})
        return {lane: [current[entry[-1]] for entry in entries] for lane, entries in self._fresh.items() if entries}

    def _moved(self, key: Key) -> bool:
        """Whether a candidate this batch has written to is one no longer, or stands among the fresh ones. One whose
        promise had run out is still a candidate unless it was promised again."""
        execution = self._current[Execution][key]
        if execution.eligibility_state != PENDING_CLAIM:
            return True
        grants = self._current.get(Grant, {})
        return any(grants[each].uuid == execution.uuid for each in self._puts.get(Grant, ()))

    def _with_fresh(
        self,
        found: list[Execution],
        fresh: list[tuple[int, int, int, str, str]],
        able: frozenset[str],
        limit: int,
        namespaces: frozenset[str] | None,
    ) -> list[Execution]:
        """Candidates of the scan merged with those this batch itself has made claimable."""
        current = self._current[Execution]
        count = 0
        for entry in fresh:
            execution = current[entry[-1]]
            if able.issuperset(execution.required_capabilities) and (
                namespaces is None or execution.namespace in namespaces
            ):
                found.append(execution)
                count += 1
                if count == limit:
                    break
        found.sort(key=claim_order)
        return found[:limit]

    def _note_claimable(self, execution: Execution, before: Execution | None) -> None:
        """Keep the list of executions that this batch leaves claimable, in claim order."""
        if execution.fair_key is not None or (before is not None and before.fair_key is not None):
            self._turns.note(execution)
        lane = self._fresh.get(execution.lane_id)
        if before is not None and lane:
            position = bisect_left(lane, (*claim_order(before), before.execution_id))
            if position < len(lane) and lane[position][-1] == execution.execution_id:
                del lane[position]
        if is_claimable(execution.lifecycle_phase, execution.eligibility_state):
            if lane is None:
                lane = self._fresh[execution.lane_id] = []
            insort(lane, (*claim_order(execution), execution.execution_id))
