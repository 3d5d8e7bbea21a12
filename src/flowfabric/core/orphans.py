"""Children whose parent was cancelled or ran out of time: nobody waits for them any more, so they are cancelled too."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from flowfabric.core.context import Context
from flowfabric.core.downstream import Cascade
from flowfabric.core.view import View
from flowfabric.model import literals as lit
from flowfabric.model.changes import Decision, LiveMembers, Need
from flowfabric.model.records import Execution

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

    def needs(self) -> tuple[Need, ...]:
        return (LiveMembers(self.partition, self.flow_id, self.after, AT_ONCE),)


def left_behind(execution: Execution, outcome: str) -> tuple[Any, ...]:
    """What to do right after the end of an execution that may have children."""
    if outcome not in TAKING_ALONG or execution.flow_id is None or execution.signal_count is None:
        return ()
    return (CancelChildren(execution.partition, execution.flow_id, execution.uuid),)


def cancel_children(command: CancelChildren, view: View, context: Context) -> Decision:
    """As many as one transaction may; the rest, and the children's children, follow at once."""
    members = view.live_members(command.partition, command.flow_id, command.after, AT_ONCE)[:AT_ONCE]
    children = [each for each in members if each.parent == command.parent]
    cascade = Cascade(view, context)
    following: list[Any] = []
    for child in children:
        cascade.cancel(child, PARENT_CANCELLED)
        following += left_behind(child, lit.ENDED_CANCELLED)
    cascade.run()
    moved = cascade.moved()
    if len(members) == AT_ONCE:
        following.append(CancelChildren(command.partition, command.flow_id, command.parent, members[-1].uuid))
    return Decision(len(children), (), moved.events, moved.wakes, (*moved.then, *following))
