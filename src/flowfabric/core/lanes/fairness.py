"""Sharing a lane fairly between keys, among executions of equal priority.

A lane may be set to share by namespace or by the value of a tag. Every execution that joins the queue of such a lane
gets a rank: one above the last waiting one of its key, but never below the lowest rank that waits. Claims take the
lowest rank first, so keys take turns however long the queue of one of them is. Ranks follow from what waits and from
nothing else: nothing has to be remembered when a key's work is done, and a lane that has run empty starts afresh.

What comes back to the queue (a retry, a take-over, a member whose dependencies are met) does not go behind everything
its own key has waiting: it queues beside it, under the same key with a mark, and shares in turn. A promise that nobody
used keeps its place. Ranks are negative; zero means "no rank", so that what is still to be ranked goes last.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from flowfabric.core.context import Context
from flowfabric.model import states as lit
from flowfabric.model.decisions import Decision, Get, Misplaced, Need, Ranked, change, insert
from flowfabric.model.limits import MAX_FAIR_KEY_BYTES, RERANK_BATCH
from flowfabric.model.operations.executions import AlreadySatisfied
from flowfabric.model.operations.lanes import FAIR_RETURNING, FAIR_SEPARATOR, LaneFairnessChanged
from flowfabric.model.records.executions import Execution, Lane

if TYPE_CHECKING:
    from flowfabric.core.batch.view import View

BY_NAMESPACE = "namespace"
BY_TAG = "tag:"
#: Where ranks start in a queue that is empty.
FIRST_RANK = -(10**15)
_FIELDS = ("fair_rank", "fair_key")
#: A batch that began before the lane was changed may still commit rows of the old order for so long.
_SETTLED_MS = 60_000
_decode = msgspec.json.Decoder().decode


def key_text(by: str, value: str | None) -> str:
    """The key of a value under a lane's setting; long values are told apart by their digest."""
    text = value or ""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_FAIR_KEY_BYTES:
        text = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{by}{FAIR_SEPARATOR}{text}"


def _tag(raw_fields: Any, name: str) -> str | None:
    try:
        document = _decode(raw_fields)
    except (msgspec.DecodeError, TypeError, RecursionError):
        return None
    tags = document.get("tags") if isinstance(document, dict) else None
    found = tags.get(name) if isinstance(tags, dict) else None
    return found if isinstance(found, str) else None


def _own_key(view: View, execution: Execution, by: str, known: str | None) -> str:
    """The key an execution belongs to, without a mark: the one it is known under, or the one its document says."""
    if known is not None:
        return known.removeprefix(FAIR_RETURNING)
    if by == BY_NAMESPACE:
        return key_text(by, execution.namespace)
    raw: Any = execution.raw_fields
    if not isinstance(raw, str):
        full = view.full(execution.execution_id)
        raw = None if full is None else full.raw_fields
    return key_text(by, _tag(raw, by.removeprefix(BY_TAG)))


def stands_under(fair_key: str, by: str) -> bool:
    """Whether a stored key was given under this setting."""
    return fair_key.removeprefix(FAIR_RETURNING).startswith(by + FAIR_SEPARATOR)


def arrive(view: View, execution: Execution, before: Execution | None) -> tuple[str, ...]:
    """Give an execution that joins a queue its place there; the fields that changed. Called for every change."""
    if not _waits(execution):
        return ()
    waited = before is not None and _waits(before)
    moved = before is None or before.priority != execution.priority or before.lane_id != execution.lane_id
    if waited and not moved:
        return ()
    lane = view.get(Lane, execution.lane_id)
    if lane is None or lane.fair_by is None:
        if execution.fair_key is None:
            return ()
        execution.fair_rank, execution.fair_key = 0, None
        return _FIELDS
    known = execution.fair_key
    if known is not None and not stands_under(known, lane.fair_by):
        known = None
    if before is not None and known is not None and not moved and before.eligibility_state == lit.PENDING_CLAIM:
        return ()
    key = _own_key(view, execution, lane.fair_by, known)
    returning = (known or "").startswith(FAIR_RETURNING) if waited else before is not None
    if returning:
        key = FAIR_RETURNING + key
    execution.fair_rank, execution.fair_key = _next_rank(view, execution, key), key
    return _FIELDS


def _waits(execution: Execution) -> bool:
    return lit.is_claimable(execution.lifecycle_phase, execution.eligibility_state)


def _next_rank(view: View, execution: Execution, key: str) -> int:
    lane_id, priority = execution.lane_id, execution.priority
    view.require((Ranked(lane_id, priority, key), Ranked(lane_id, priority, None)))
    lowest, last = view.rank(lane_id, priority, None), view.rank(lane_id, priority, key)
    front = FIRST_RANK if lowest is None else lowest
    return front if last is None else max(last + 1, front)


# -- setting -------------------------------------------------------------------------------------------------------


class SetLaneFairness(Struct, gc=False):
    """An operator lets the keys of a lane take turns, or no longer."""

    lane_id: str
    by: str | None

    def needs(self) -> tuple[Need, ...]:
        return (Get(Lane, self.lane_id),)


def set_lane_fairness(command: SetLaneFairness, view: View, context: Context) -> Decision:
    """The new setting, and a mark that what waits already has to be ranked again."""
    lane = view.get(Lane, command.lane_id)
    if (None if lane is None else lane.fair_by) == command.by:
        return Decision(AlreadySatisfied("fairness_unchanged"))
    if lane is None:
        lane = Lane(command.lane_id, context.now, "set_lane_fairness")
        act = insert(lane)
        lane.fair_by, lane.fair_pending, lane.fair_changed_at_ms = command.by, True, context.now
    else:
        act = change(lane, fair_by=command.by, fair_pending=True, fair_changed_at_ms=context.now)
    return Decision(LaneFairnessChanged(command.lane_id, command.by), (act,), then=(RankAnew(command.lane_id),))


class RankAnew(Struct, gc=False):
    """Go on ranking what waited in a lane when its setting changed."""

    lane_id: str

    def needs(self) -> tuple[Need, ...]:
        return (Get(Lane, self.lane_id),)


def rank_anew(command: RankAnew, view: View, context: Context) -> Decision:
    """The next executions that stand in another order get their place in this one; how many."""
    lane = view.get(Lane, command.lane_id)
    if lane is None or not lane.fair_pending:
        return Decision(0)
    by = lane.fair_by
    found = view.misplaced(Misplaced(command.lane_id, by, RERANK_BATCH))
    found = [
        (execution, value)
        for execution, value in found
        if execution.lane_id == lane.lane_id
        and _waits(execution)
        and (execution.fair_key is not None if by is None else not stands_under(execution.fair_key or "", by))
    ]
    if not found:
        if context.now < (lane.fair_changed_at_ms or 0) + _SETTLED_MS:
            return Decision(0)
        return Decision(0, (change(lane, fair_pending=False),))
    if by is None:
        acts = tuple(change(execution, fair_rank=0, fair_key=None) for execution, _ in found)
        return Decision(len(found), acts, then=(command,))
    places = [(execution, key_text(by, value)) for execution, value in found]
    view.require(
        {
            need: None
            for execution, key in places
            for need in (
                Ranked(execution.lane_id, execution.priority, key),
                Ranked(execution.lane_id, execution.priority, None),
            )
        }
    )
    for execution, key in places:
        rank = _next_rank(view, execution, key)
        view.fold(Decision(None, (change(execution, fair_rank=rank, fair_key=key),)))
    return Decision(len(found), then=(command,))
