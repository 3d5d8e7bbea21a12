"""Deleting what ended long ago."""

from __future__ import annotations

from msgspec import Struct

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.core.flows.status import RemoveFlow, is_over
from flowfabric.model import states as lit
from flowfabric.model.decisions import Act, Decision, Drop, Get, Need, PurgeExecution, Select
from flowfabric.model.ids import ExecutionId
from flowfabric.model.policy import WHILE_KEPT_MS, read_policy
from flowfabric.model.records.executions import Binding, Execution


class TrimExecution(Struct, gc=False):
    """Delete one execution if it ended at least ``retention_ms`` ago; its own policy goes before that figure."""

    execution_id: str
    retention_ms: int

    def needs(self) -> tuple[Need, ...]:
        where = ExecutionId.unchecked(self.execution_id)
        return (
            Get(Execution, self.execution_id),
            Select(Binding, ("partition", "uuid"), (where.partition, where.uuid_text)),
        )


def trim_execution(command: TrimExecution, view: View, context: Context) -> Decision:
    """Gone with everything that is its own. Members stay while their flow goes on; with the last one the flow goes.

    Its idempotency key stays for the time it was bound for: who repeats the call until then must not get a second one.
    """
    execution = view.execution(command.execution_id)
    if execution is None or execution.lifecycle_phase not in lit.ENDED_PHASES or execution.terminal_at_ms is None:
        return Decision(False)
    own = read_policy(execution.policy).retention_ttl_ms
    retention_ms = command.retention_ms if own is None else own
    if execution.terminal_at_ms > context.now - retention_ms:
        return Decision(False)
    bound = view.select(Binding, partition=execution.partition, uuid=execution.uuid)
    gone: tuple[Act, ...] = (
        PurgeExecution(execution.execution_id, execution.partition, execution.uuid),
        *(Drop(each) for each in bound if each.expires_at_ms >= WHILE_KEPT_MS),
    )
    if execution.flow_id is None:
        return Decision(True, gone)
    if not is_over(view, execution.partition, execution.flow_id):
        return Decision(False)
    left = view.first(2, Execution, partition=execution.partition, flow_id=execution.flow_id)
    last = [each.uuid for each in left] == [execution.uuid]
    flow = RemoveFlow(execution.partition, execution.flow_id, command.retention_ms)
    return Decision(True, gone, then=(flow,) if last else ())
