"""The gate of service calls that name an execution and a fence instead of holding a handle."""

from __future__ import annotations

from msgspec import Struct

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.core.leases import lease
from flowfabric.model import states as lit
from flowfabric.model.decisions import Get, Need
from flowfabric.model.errors import NotFound, State, StateKind, Validation, ValidationKind
from flowfabric.model.ids import LeaseFence
from flowfabric.model.records.executions import Attempt, Execution

OPERATOR_OVERRIDE = "operator_override"


class Fence(Struct, gc=False):
    """Which lease the caller believes to act for; an operator may act for none."""

    execution_id: str
    attempt_index: int
    fence: LeaseFence | None
    source: str = ""
    overridable: bool = True

    def needs(self) -> tuple[Need, ...]:
        return (Get(Execution, self.execution_id),)

    @property
    def overrides(self) -> bool:
        return self.overridable and self.fence is None and self.source == OPERATOR_OVERRIDE


def check_fence(command: Fence) -> None:
    """A fence is whole or, for an operator, absent. Needs no storage, so it is checked first."""
    if command.fence is None:
        if not command.overrides:
            raise Validation(ValidationKind.INVALID_INPUT, "fence_required")
    elif command.fence.partial:
        raise Validation(ValidationKind.INVALID_INPUT, "partial_fence_triple")
    elif not command.fence.complete:
        raise Validation(ValidationKind.INVALID_INPUT, "fence_required")


def fenced(command: Fence, view: View, context: Context, *, attempt_first: bool = False) -> tuple[Execution, Attempt]:
    """The execution and attempt the fence stands for, or the gate's error. ``attempt_first`` moves the attempt and
    epoch gates before those of the execution; the lease id is compared last."""
    check_fence(command)
    execution = view.execution(command.execution_id)
    index = command.attempt_index
    if command.overrides and execution is not None:
        index = execution.attempt_index
    attempt = view.attempt(command.execution_id, index)
    if attempt_first:
        _check_attempt(command, execution, attempt)
    if execution is None:
        raise NotFound("execution")
    where = f"execution {execution.execution_id}"
    if execution.ownership_state == lit.LEASE_REVOKED:
        raise State(StateKind.LEASE_REVOKED, where)
    lost = _is_lost(command.fence, attempt)
    if execution.lifecycle_phase != lit.ACTIVE:
        raise lease.not_active(execution, attempt, lost=lost)
    if not attempt_first:
        _check_attempt(command, execution, attempt)
    assert attempt is not None
    if attempt.lease_expires_at_ms is None or attempt.lease_expires_at_ms <= context.now:
        raise State(StateKind.LEASE_EXPIRED, where)
    if lost:
        raise State(StateKind.STALE_LEASE, f"{where}: {lease.LOST}")
    return execution, attempt


def _check_attempt(command: Fence, execution: Execution | None, attempt: Attempt | None) -> None:
    if attempt is None:
        raise NotFound("attempt")
    if command.overrides:
        return
    stale = command.fence is not None and command.fence.lease_epoch != attempt.lease_epoch
    if stale or (execution is not None and execution.attempt_index != command.attempt_index):
        raise State(StateKind.STALE_LEASE, f"execution {command.execution_id}")


def _is_lost(fence: LeaseFence | None, attempt: Attempt | None) -> bool:
    """Whether the fence stands for a lease that the store has forgotten, its epoch being granted again."""
    if fence is None or attempt is None:
        return False
    return fence.lease_epoch == attempt.lease_epoch and lease.is_lost(attempt, fence.lease_id)
