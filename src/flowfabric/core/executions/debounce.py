"""Starts that fall together become one execution: each pushes it back and brings the payload that counts."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context, saturate
from flowfabric.core.executions.create import CreateExecution, create_execution
from flowfabric.model import states as lit
from flowfabric.model.decisions import Act, Change, Decision, Get, Need, change, insert
from flowfabric.model.ids import ExecutionId
from flowfabric.model.operations.enqueue import Debounced
from flowfabric.model.records.executions import Execution
from flowfabric.model.records.starts import Burst


class DebounceExecution(Struct, gc=False):
    """One start under a key: wait for ``wait_ms`` of quiet, but not longer than ``at_most_ms`` after the first."""

    debounce_key: str
    wait_ms: int
    at_most_ms: int
    creation: CreateExecution

    def needs(self) -> tuple[Need, ...]:
        return (Get(Burst, (self.creation.namespace, self.debounce_key)), *self.creation.needs())


def debounce_execution(command: DebounceExecution, view: View, context: Context) -> Decision:
    """The delayed execution of the burst with the new payload and a later time, while it is still delayed and may be
    pushed back; else a new one, which begins a burst."""
    now, creation = context.now, command.creation
    burst = view.get(Burst, (creation.namespace, command.debounce_key))
    if burst is not None and burst.until_ms > now:
        waiting = view.execution(f"{{fp:{burst.partition}}}:{burst.uuid}")
        if waiting is not None and _waits(waiting):
            until = min(saturate(now + command.wait_ms), burst.until_ms)
            pushed = change(waiting, payload=creation.input_payload, delay_until_ms=until, last_mutation_at_ms=now)
            return Decision(Debounced(ExecutionId.unchecked(waiting.execution_id), until, False), (pushed,))
    until = saturate(now + min(command.wait_ms, command.at_most_ms))
    created = create_execution(replace(creation, delay_until_ms=until), view, context)
    created.acts += (_begun(burst, command, now),)
    created.result = Debounced(ExecutionId.unchecked(creation.execution_id), until, True)
    return created


def _waits(execution: Execution) -> bool:
    """Whether an execution has not begun and waits for its first time to come."""
    return (
        execution.lifecycle_phase in lit.WAITING_PHASES
        and execution.eligibility_state == lit.NOT_ELIGIBLE_UNTIL_TIME
        and execution.blocking_reason == lit.WAITING_FOR_DELAY
        and execution.total_attempt_count == 0
    )


def _begun(before: Burst | None, command: DebounceExecution, now: int) -> Act:
    creation = command.creation
    begun: Change = insert(
        Burst(
            creation.namespace,
            command.debounce_key,
            creation.partition,
            creation.uuid,
            now,
            saturate(now + command.at_most_ms),
        )
    )
    if before is not None:
        begun.fields = ("partition", "uuid", "first_at_ms", "until_ms")
    return begun
