"""Claiming from several lanes at once, each as often as its weight says.

Smooth weighted rotation: at every turn each lane that may have work gains its weight in credit, the richest one is
served and pays for all. A lane without work neither gains nor pays, so that nobody saves turns up.
"""

from __future__ import annotations

from msgspec import Struct

from flowfabric.core.admitting import Unfinished
from flowfabric.core.claim import Claim, claim
from flowfabric.core.context import Context
from flowfabric.core.view import View
from flowfabric.model.changes import Claimable, Decision, Get, Need
from flowfabric.model.handles import Handle
from flowfabric.model.records import Lane


class ClaimFromLanes(Struct, gc=False):
    """A worker's wish for up to ``limit`` executions of some lanes. ``entropy`` holds 32 random bytes for each."""

    #: Lanes with their weights, and what credit each has.
    lanes: tuple[tuple[str, int], ...]
    credits: tuple[int, ...]
    capabilities: frozenset[str]
    worker_id: str
    worker_instance_id: str
    lease_ttl_ms: int
    limit: int
    entropy: bytes
    namespaces: frozenset[str] | None = None

    def needs(self) -> tuple[Need, ...]:
        wanted = self.lanes
        if self.limit == 1:
            # Usually the lane whose turn it is has work; the others are looked at only if it has not.
            best = max(range(len(wanted)), key=lambda n: (self.credits[n] + wanted[n][1], -n))
            wanted = (wanted[best],)
        total = sum(weight for _, weight in wanted)
        shares = [(lane_id, -(-self.limit * weight // total)) for lane_id, weight in wanted]
        scans = [Claimable(lane_id, self.capabilities, share, self.namespaces) for lane_id, share in shares]
        return (*scans, *[Get(Lane, lane_id) for lane_id, _ in wanted])


class LanesClaimed(Struct, frozen=True):
    """What was claimed, and the credit of each lane after it."""

    handles: list[Handle]
    credits: tuple[int, ...]
    #: Whether not everything was looked at that there is.
    unfinished: bool = False


def claim_from_lanes(command: ClaimFromLanes, view: View, context: Context) -> Decision:
    """One execution after the other, from the lane whose turn it is."""
    credit = dict(zip([lane_id for lane_id, _ in command.lanes], command.credits, strict=True))
    weights = dict(command.lanes)
    handles: list[Handle] = []
    unfinished = False
    while weights and len(handles) < command.limit:
        lane_id = max(weights, key=lambda each: credit[each] + weights[each])
        decision = claim(_single(command, lane_id, len(handles)), view, context)
        if not decision.result:
            unfinished = unfinished or type(decision.result) is Unfinished
            view.fold(decision)
            del weights[lane_id]
            view.require(Claimable(each, command.capabilities, 1, command.namespaces) for each in weights)
            continue
        view.fold(decision)
        handles += decision.result
        for each, weight in weights.items():
            credit[each] += weight
        credit[lane_id] -= sum(weights.values())
    return Decision(LanesClaimed(handles, tuple(credit[lane_id] for lane_id, _ in command.lanes), unfinished))


def _single(command: ClaimFromLanes, lane_id: str, position: int) -> Claim:
    return Claim(
        lane_id,
        command.capabilities,
        command.worker_id,
        command.worker_instance_id,
        command.lease_ttl_ms,
        1,
        command.entropy[32 * position : 32 * position + 32],
        command.namespaces,
    )
