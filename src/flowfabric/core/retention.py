"""Deleting what ended long ago."""

from __future__ import annotations

from msgspec import Struct

from flowfabric.core.context import Context
from flowfabric.core.view import View
from flowfabric.model import literals as lit
from flowfabric.model.changes import Decision, Get, Need, PurgeExecution
from flowfabric.model.policy import read_policy
from flowfabric.model.records import Execution, Flow


class TrimExecution(Struct, gc=False):
    """Delete one execution if it ended at least ``retention_ms`` ago; its own policy goes before that figure."""

    execution_id: str
    retention_ms: int

    def needs(self) -> tuple[Need, ...]:
        return (Get(Execution, self.execution_id),)


def trim_execution(command: TrimExecution, view: View, context: Context) -> Decision:
    """Gone with everything that is its own. Members stay while their flow is open."""
    execution = view.execution(command.execution_id)
    if execution is None or execution.lifecycle_phase not in lit.ENDED_PHASES or execution.terminal_at_ms is None:
        return Decision(False)
    own = read_policy(execution.policy).retention_ttl_ms
    retention_ms = command.retention_ms if own is None else own
    if execution.terminal_at_ms > context.now - retention_ms:
        return Decision(False)
    if execution.flow_id is not None:
        flow = view.get(Flow, (execution.partition, execution.flow_id))
        if flow is not None and flow.public_flow_state not in lit.ENDED_FLOW_STATES:
            return Decision(False)
    return Decision(True, (PurgeExecution(execution.execution_id, execution.partition, execution.uuid),))
