"""Lanes: opening and closing them, and looking at them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import structs

from flowfabric.core.admission.block import UnblockExecution
from flowfabric.core.lanes.fairness import BY_NAMESPACE, BY_TAG, RankAnew, SetLaneFairness
from flowfabric.core.lanes.lane_state import SeedLanes, SetLaneState
from flowfabric.engine import hints
from flowfabric.engine.checks import values
from flowfabric.engine.checks.values import sorted_namespaces
from flowfabric.engine.timers.executions import Timers
from flowfabric.model import states as lit
from flowfabric.model.decisions import Get, Select
from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.ids import LaneId, LaneIdError
from flowfabric.model.limits import MAX_PAGE
from flowfabric.model.operations.executions import AlreadySatisfied, LanePage
from flowfabric.model.operations.lanes import LaneFairnessChanged, LaneSnapshot, LaneStateChanged
from flowfabric.model.partitions import lane_partition
from flowfabric.model.quoting import quoted
from flowfabric.model.records.executions import Lane
from flowfabric.model.states import LaneState
from flowfabric.stores.questions import Due, ListLanes

#: Executions blocked by their lane's state that are let go at a time.
_RELEASE_BATCH = 1_000


class Lanes(Timers):
    """The part of the engine that lanes are governed by."""

    async def set_lane_state(
        self, lane_id: str, state: LaneState | str, reason: str = "", now: int | None = None
    ) -> LaneStateChanged | AlreadySatisfied:
        """Open or close a lane: ``active``, ``paused`` and ``disabled`` (grant nothing), ``draining`` and ``disabled``
        (accept nothing new). What runs goes on; what the change lets go is woken at once, in other processes too."""
        lane = values.lane(lane_id)
        wanted = _state(state)
        answer: LaneStateChanged | AlreadySatisfied = await self._submit(
            SetLaneState(
                lane,
                lane_partition(lane, self.partitions),
                wanted,
                values.reason(reason),
                values.optional_time_ms(now, "now"),
            )
        )
        if wanted not in lit.WITHHOLDING_LANES:
            # Also when nothing changed: repeating the call finishes what a lost process has left.
            await self._released(lane)
            self._lanes.stir(lane)
            self.store.publish({hints.LANE + lane})
        return answer

    async def seed_lanes(self, lane_ids: Iterable[str]) -> int:
        """Make lanes known before anything is created in them; how many were new."""
        lanes = tuple(dict.fromkeys(values.lane(each, "lane_ids") for each in values.sequence(lane_ids, "lane_ids")))
        if len(lanes) > MAX_PAGE:
            raise values.invalid(f"lane_ids: at most {MAX_PAGE} at once, got {len(lanes)}")
        added: int = await self._submit(SeedLanes(lanes)) if lanes else 0
        return added

    async def set_lane_fairness(self, lane_id: str, by: str | None = None) -> LaneFairnessChanged | AlreadySatisfied:
        """Let keys take turns among executions of equal priority: ``by="namespace"``, ``by="tag:<key>"`` for the value
        of a tag, or ``None`` for no turns. What waits already is ranked again, beginning at once."""
        answer: LaneFairnessChanged | AlreadySatisfied = await self._submit(
            SetLaneFairness(values.lane(lane_id), _fair_by(by))
        )
        return answer

    async def _tick_lane_fairness(self, limit: int) -> int:
        """Go on ranking the lanes whose setting has changed."""
        marked = Select(Lane, ("fair_pending",), (True,))
        lanes = (await self._view(marked)).select(Lane, fair_pending=True)
        return await self._submit_all("lane_fairness", [lane.lane_id for lane in lanes][:limit], RankAnew)

    async def _released(self, lane: str) -> None:
        """Let go what was blocked because of the lane's state."""
        while True:
            due = await self._ask(Due("lane_blocked", await self.now_ms(), _RELEASE_BATCH, lane_id=lane))
            if not due:
                return
            done = await self._submit_all("lane", due, lambda item: UnblockExecution(item, lit.PAUSED_BY_POLICY))
            if not done:
                return

    async def describe_lane(self, lane_id: str, *, namespaces: Iterable[str] | None = None) -> LaneSnapshot | None:
        """A lane as it is; ``None`` if it was never used, which means active. To ``namespaces`` a lane that they do
        not use looks unused, and what is told about the others leaves out what other namespaces do there."""
        lane, own = values.lane(lane_id), sorted_namespaces(namespaces)
        if own is None:
            found = (await self._view(Get(Lane, lane))).get(Lane, lane)
            return None if found is None else _snapshot(found)
        first: list[Lane] = await self._ask(ListLanes(lane, 1, own, await self.now_ms(), inclusive=True))
        if not first or first[0].lane_id != lane:
            return None
        return structs.replace(_snapshot(first[0]), registered_at_ms=None, registered_by=None, fair_pending=None)

    async def list_lanes(
        self, cursor: str | None = None, limit: int = 100, *, namespaces: Iterable[str] | None = None
    ) -> LanePage:
        """Every lane ever used, by name, with its state; with ``namespaces`` only the lanes that these use: those that
        have an execution that has not ended, a schedule or a live worker of one of them."""
        size = min(values.integer(limit, "limit", 0, 2**31), MAX_PAGE)
        own = sorted_namespaces(namespaces)
        if size == 0:
            return LanePage((), None)
        after = None if cursor is None else values.text(cursor, "cursor")
        now = 0 if own is None else await self.now_ms()
        found: list[Lane] = await self._ask(ListLanes(after, size + 1, own, now))
        page = [_snapshot(lane) for lane in found[:size]]
        listed = tuple(lane.lane_id for lane in page)
        return LanePage(
            listed,
            listed[-1] if len(found) > size else None,
            tuple(lane.state for lane in page),
            tuple(lane.state_reason for lane in page),
            tuple(lane.fair_by for lane in page),
        )


def _state(value: Any) -> str:
    known = [each.value for each in LaneState]
    if not isinstance(value, str) or str.__str__(value) not in known:
        raise values.invalid(f"state: {quoted(value)} is not one of {', '.join(known)}")
    return str.__str__(value)


def _fair_by(value: Any) -> str | None:
    if value is None:
        return None
    by = values.text(value, "by")
    if by != BY_NAMESPACE and not (by.startswith(BY_TAG) and by != BY_TAG and by.isprintable()):
        raise values.invalid(f"by: {quoted(by)} is neither {BY_NAMESPACE!r} nor {BY_TAG + '<key>'!r} nor None")
    return by


def _snapshot(lane: Lane) -> LaneSnapshot:
    try:
        LaneId(lane.lane_id)
    except LaneIdError as error:
        raise Validation(ValidationKind.CORRUPTION, f"lane_id: {error}") from None
    return LaneSnapshot(
        lane.lane_id,
        LaneState(lane.state),
        lane.state_reason,
        lane.state_changed_at_ms,
        lane.registered_at_ms,
        lane.registered_by,
        lane.fair_by,
        lane.fair_pending,
    )
