"""Suspending and signalling with defaults that tests share."""

from __future__ import annotations

from typing import Any

from flowfabric import (
    Accepted,
    Fresh,
    Handle,
    PendingWaitpoint,
    SuspendArgs,
    Suspended,
    SuspendOutcomeDetails,
    UsePending,
    WaitpointCredential,
)
from flowfabric.conditions import ResumeCondition, Single
from flowfabric.engine import Engine
from flowfabric.model.records.executions import Signal, SignalDedup, Suspension, Waitpoint
from tests.contract.probe import Probe, claimed, id_of

KEY = "approval"
#: ``Probe.stored`` of an execution that waits for a signal, and of one that was signalled.
SUSPENDED = ("suspended", "unowned", "not_applicable", "attempt_interrupted", "suspended", "waiting_for_signal")
RESUMABLE = ("runnable", "unowned", "eligible_now", "attempt_interrupted", "resumable", "waiting_for_worker")


def asking(condition: ResumeCondition | None = None, keys: tuple[str, ...] = (KEY,), **arguments: Any) -> SuspendArgs:
    """What to wait for: any signal on one fresh waitpoint, unless something else is said."""
    arguments.setdefault("waitpoints", [Fresh(waitpoint_key=key) for key in keys])
    return SuspendArgs(resume_condition=Single(keys[0]) if condition is None else condition, **arguments)


def on_pending(pending: PendingWaitpoint, condition: ResumeCondition | None = None, **arguments: Any) -> SuspendArgs:
    """What to wait for on a waitpoint that was created before."""
    return asking(condition, waitpoints=[UsePending(pending.waitpoint_id)], **arguments)


async def suspended(
    engine: Engine, condition: ResumeCondition | None = None, keys: tuple[str, ...] = (KEY,), **arguments: Any
) -> tuple[Handle, SuspendOutcomeDetails]:
    """A new execution, claimed and suspended: the handle it was held by, and what the suspension said."""
    made = {name: arguments.pop(name) for name in ("lane_id", "policy", "namespace", "tags") if name in arguments}
    handle = await claimed(engine, **made)
    outcome = await engine.suspend(handle, asking(condition, keys, **arguments))
    assert isinstance(outcome, Suspended), outcome
    return handle, outcome.details


def credentials(details: SuspendOutcomeDetails) -> list[WaitpointCredential]:
    """Every waitpoint of a suspension with its token, the primary one first."""
    primary = WaitpointCredential(details.waitpoint_id, details.waitpoint_key, details.waitpoint_token)
    return [primary, *details.additional_waitpoints]


def addressed(handle: Handle, point: Any) -> dict[str, Any]:
    """The arguments that name a waitpoint: of a suspension (its primary one), a credential, or a pending one."""
    token = point.hmac_token if isinstance(point, PendingWaitpoint) else point.waitpoint_token
    return {"execution_id": id_of(handle), "waitpoint_id": point.waitpoint_id, "waitpoint_token": token}


async def signal(engine: Engine, handle: Handle, point: Any, name: str = "go", **arguments: Any) -> Any:
    """Deliver a signal to a waitpoint."""
    return await engine.deliver_signal(**{**addressed(handle, point), "signal_name": name, **arguments})


async def effect(engine: Engine, handle: Handle, point: Any, name: str = "go", **arguments: Any) -> str:
    """What a new signal did."""
    answer = await signal(engine, handle, point, name, **arguments)
    assert isinstance(answer, Accepted), answer
    return answer.effect


async def suspension_of(probe: Probe, handle: Handle) -> Suspension | None:
    """The suspension row of an execution."""
    identity = id_of(handle)
    found = await probe.select(Suspension, partition=identity.partition, uuid=identity.uuid_text)
    return found[0] if found else None


async def waitpoint_of(probe: Probe, handle: Handle, waitpoint_id: str) -> Waitpoint:
    """One waitpoint row."""
    identity = id_of(handle)
    rows = await probe.select(Waitpoint, partition=identity.partition, uuid=identity.uuid_text)
    return next(row for row in rows if row.waitpoint_id == waitpoint_id)


async def closings(probe: Probe, handle: Handle) -> list[tuple[str, str | None]]:
    """State and close reason of each waitpoint of an execution, in the order of their keys."""
    identity = id_of(handle)
    rows = await probe.select(Waitpoint, partition=identity.partition, uuid=identity.uuid_text)
    return [(row.state, row.close_reason) for row in sorted(rows, key=lambda each: each.waitpoint_key)]


async def signals_of(probe: Probe, handle: Handle) -> list[Signal]:
    """Every recorded signal of an execution in the order of acceptance."""
    identity = id_of(handle)
    rows = await probe.select(Signal, partition=identity.partition, uuid=identity.uuid_text)
    return sorted(rows, key=lambda each: each.sequence)


async def used_keys(probe: Probe, handle: Handle, waitpoint_id: str) -> list[SignalDedup]:
    """The idempotency keys used up on a waitpoint."""
    return await probe.select(SignalDedup, partition=id_of(handle).partition, waitpoint_id=waitpoint_id)
