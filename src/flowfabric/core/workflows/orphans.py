"""Children whose parent was cancelled or ran out of time: nobody waits for them any more, so they are cancelled too.

It happens right after the parent's end, by a command of its own. If that is lost, a timer finds the children: a live
execution under a parent that has ended so is the record of what is left to do.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.core.documents import parse_document
from flowfabric.core.executions.cancel_request import BY_PARENT, asked, can_be_asked
from flowfabric.core.flows.build import FOUNDER
from flowfabric.core.flows.cancel import CANCEL_ALL, cancelled_flow
from flowfabric.core.flows.cascade import Cascade
from flowfabric.model import states as lit
from flowfabric.model.decisions import Act, Decision, Get, LiveMembers, Need
from flowfabric.model.records.executions import Execution
from flowfabric.model.records.flows import Flow

#: Members of the flow that one command looks through.
AT_ONCE = 200
PARENT_CANCELLED = "parent_cancelled"
#: Ends that take the children along.
TAKING_ALONG = frozenset({lit.ENDED_CANCELLED, lit.ENDED_EXPIRED})


class CancelChildren(Struct, gc=False):
    """Cancel what an execution has started and has not ended, and what that has started in turn."""

    partition: int
    flow_id: str
    parent: str
    after: str = ""
    #: Whether they are asked to cancel, where they can be; otherwise they end at once.
    asking: bool = False

    def needs(self) -> tuple[Need, ...]:
        return (
            LiveMembers(self.partition, self.flow_id, self.after, AT_ONCE),
            Get(Flow, (self.partition, self.flow_id)),
        )


def left_behind(execution: Execution, outcome: str, asking: bool = False) -> tuple[Any, ...]:
    """What to do right after the end of an execution that may have children."""
    if outcome not in TAKING_ALONG or execution.flow_id is None or execution.signal_count is None:
        return ()
    return (CancelChildren(execution.partition, execution.flow_id, execution.uuid, asking=asking),)


def cancel_children(command: CancelChildren, view: View, context: Context) -> Decision:
    """As many as one transaction may; the rest, and the children's children, follow at once."""
    members = view.live_members(command.partition, command.flow_id, command.after, AT_ONCE)[:AT_ONCE]
    children = [each for each in members if each.parent == command.parent]
    closed = _closed(view, command, context.now, children)
    decision = _cancelled(view, context, children, command.asking)
    decision.acts += closed
    if len(members) == AT_ONCE:
        rest = CancelChildren(command.partition, command.flow_id, command.parent, members[-1].uuid, command.asking)
        decision.then += (rest,)
    return decision


def _closed(view: View, command: CancelChildren, now: int, children: list[Execution]) -> tuple[Act, ...]:
    """A flow that was founded for its founder's children takes no more members once the founder has ended, unless some
    of them were asked to cancel: as long as they clean up, they may start others."""
    flow = view.get(Flow, (command.partition, command.flow_id))
    if flow is None or flow.public_flow_state in lit.ENDED_FLOW_STATES:
        return ()
    raw = parse_document(flow.raw_fields, "ff_flow_core.raw_fields")
    founder = raw.get(FOUNDER)
    if not isinstance(founder, str):
        return ()
    if (command.asking or founder != command.parent) and not _was_last(view, command, founder, children):
        return ()
    return (cancelled_flow(flow, raw, now, CANCEL_ALL, PARENT_CANCELLED),)


def _was_last(view: View, command: CancelChildren, founder: str, children: list[Execution]) -> bool:
    """Whether the founder has ended and nothing in its flow goes on after this command."""
    found = view.execution(f"{{fp:{command.partition}}}:{founder}")
    if found is None or found.public_state not in lit.TAKING_CHILDREN_ALONG:
        return False
    over = {each.uuid for each in children if not (command.asking and can_be_asked(each))}
    return all(each.uuid in over for each in view.live_members(command.partition, command.flow_id, "", AT_ONCE))


def _cancelled(view: View, context: Context, children: list[Execution], asking: bool) -> Decision:
    acts: list[Act] = []
    if asking:
        requests = [(child, asked(view, context, child, PARENT_CANCELLED, BY_PARENT)) for child in children]
        acts = [act for _, request in requests if request is not None for act in request.acts]
        children = [child for child, request in requests if request is None]
    cascade = Cascade(view, context)
    following: list[Any] = []
    for child in children:
        cascade.cancel(child, PARENT_CANCELLED)
        following += left_behind(child, lit.ENDED_CANCELLED)
    cascade.run()
    moved = cascade.moved()
    return Decision(len(children), tuple(acts), moved.events, moved.wakes, (*moved.then, *following))


class CancelOrphan(Struct, gc=False):
    """Look at an execution whose parent may have ended without it."""

    execution_id: str

    def needs(self) -> tuple[Need, ...]:
        return (Get(Execution, self.execution_id),)


def cancel_orphan(command: CancelOrphan, view: View, context: Context) -> Decision:
    """Cancelled, if it lives and its parent was cancelled or ran out of time."""
    child = view.execution(command.execution_id)
    if child is None or child.parent is None or child.lifecycle_phase in lit.ENDED_PHASES:
        return Decision(0)
    parent = view.execution(f"{{fp:{child.partition}}}:{child.parent}")
    if parent is None or parent.public_state not in lit.TAKING_CHILDREN_ALONG:
        return Decision(0)
    return _cancelled(view, context, [child], asking=parent.cancel_at_ms is not None)
