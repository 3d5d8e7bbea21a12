"""Creating executions. A duplicate never changes what is stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context, saturate
from flowfabric.core.lanes.lane_state import refuse_closed
from flowfabric.model import states as lit
from flowfabric.model.decisions import Act, Decision, Get, Need, insert
from flowfabric.model.events import Event, InstanceTagEvent
from flowfabric.model.ids import ExecutionId
from flowfabric.model.operations.executions import Created, CreateResult, Duplicate
from flowfabric.model.ownership import shown_id
from flowfabric.model.policy import PolicyView, read_policy
from flowfabric.model.records.executions import Binding, Execution, Lane
from flowfabric.model.states import PublicState

PRIORITY_RANGE = (0, 9000)
#: When an idempotency key may be bound again before its window is over: never, or when its execution has ended.
KEY_REUSES = ("never", "ended")
_encode = msgspec.json.Encoder().encode
_WAITING = PublicState.WAITING
_DELAYED = PublicState.DELAYED


def clamp_priority(priority: int) -> int:
    """Priorities live between 0 and 9000; anything beyond is moved to the nearer end."""
    low, high = PRIORITY_RANGE
    return low if priority < low else min(priority, high)


class CreateExecution(Struct, gc=False):
    """One execution to create. ``policy`` and ``required_capabilities`` have passed their checks."""

    execution_id: str
    partition: int
    uuid: str
    namespace: str
    lane_id: str
    execution_kind: str
    input_payload: bytes | None
    payload_encoding: str | None
    priority: int
    creator_identity: str
    idempotency_key: str | None
    tags: dict[str, str] | None
    policy: str | None
    required_capabilities: tuple[str, ...]
    delay_until_ms: int | None
    execution_deadline_at_ms: int | None
    recorded_at_ms: int | None
    key_reuse: str = "never"

    def needs(self) -> tuple[Need, ...]:
        lane, core = Get(Lane, self.lane_id), Get(Execution, self.execution_id)
        if self.idempotency_key:
            return (lane, core, Get(Binding, (self.namespace, self.idempotency_key)))
        return (lane, core)


class CreateExecutions(Struct, gc=False):
    """Many executions, all or nothing, in the order given."""

    items: tuple[CreateExecution, ...]

    def needs(self) -> tuple[Need, ...]:
        lanes = [Get(Lane, lane_id) for lane_id in dict.fromkeys([item.lane_id for item in self.items])]
        cores = [Get(Execution, item.execution_id) for item in self.items]
        keys = [(item.namespace, item.idempotency_key) for item in self.items if item.idempotency_key]
        return (*lanes, *cores, *[Get(Binding, key) for key in keys])


def create_execution(command: CreateExecution, view: View, context: Context) -> Decision:
    """A new row, its lane, its idempotency binding; or the execution that was there before."""
    acts: list[Act] = []
    lane = view.get(Lane, command.lane_id)
    if lane is None:
        acts.append(insert(Lane(command.lane_id, context.now, "create_execution")))
    policy = read_policy(command.policy)
    if command.idempotency_key:
        binding = view.get(Binding, (command.namespace, command.idempotency_key))
        if binding is not None and _binds(binding, command, view, context.now):
            return Decision(Duplicate(ExecutionId.of(binding.partition, binding.uuid)), tuple(acts))
    if view.execution(command.execution_id) is not None:
        return Decision(Duplicate(ExecutionId.unchecked(command.execution_id)), tuple(acts))
    refuse_closed(lane)
    if command.idempotency_key:
        acts.append(_bind(command, binding, policy.dedup_window_ms, context.now))
    execution = _new_row(command, policy, context.now)
    acts.append(insert(execution))
    delayed = execution.delay_until_ms is not None
    return Decision(
        Created(ExecutionId.unchecked(command.execution_id), _DELAYED if delayed else _WAITING),
        tuple(acts),
        _tag_events(execution, context.now),
    )


def create_executions(command: CreateExecutions, view: View, context: Context) -> Decision:
    """Each item as ``create_execution`` decides it, later ones seeing the earlier."""
    refuse_all_closed(command.items, view, context)
    results: list[CreateResult] = []
    for item in command.items:
        decision = create_execution(item, view, context)
        view.fold(decision)
        results.append(decision.result)
    return Decision(results)


def refuse_all_closed(items: Sequence[CreateExecution], view: View, context: Context) -> None:
    """Refuse a call of many if one of them is new and its lane takes none; before anything is folded."""
    lanes = {lane_id: view.get(Lane, lane_id) for lane_id in dict.fromkeys([item.lane_id for item in items])}
    if not any(lane is not None and lane.state in lit.CLOSED_LANES for lane in lanes.values()):
        return
    for item in items:
        if not _exists(item, view, context.now):
            refuse_closed(lanes[item.lane_id])


def _exists(item: CreateExecution, view: View, now: int) -> bool:
    if item.idempotency_key:
        binding = view.get(Binding, (item.namespace, item.idempotency_key))
        if binding is not None and _binds(binding, item, view, now):
            return True
    return view.execution(item.execution_id) is not None


def _binds(binding: Binding, command: CreateExecution, view: View, now: int) -> bool:
    """Whether the key leads to an execution, or may be bound to a new one."""
    if binding.expires_at_ms <= now:
        return False
    if command.key_reuse == "never":
        return True
    bound = view.execution(ExecutionId.of(binding.partition, binding.uuid))
    return bound is not None and bound.lifecycle_phase not in lit.ENDED_PHASES


def _bind(command: CreateExecution, stale: Binding | None, window_ms: int, now: int) -> Act:
    binding = Binding(
        command.namespace,
        command.idempotency_key or "",
        command.partition,
        command.uuid,
        now,
        saturate(now + window_ms),
    )
    fresh = insert(binding)
    if stale is not None:
        fresh.fields = ("partition", "uuid", "created_at_ms", "expires_at_ms")
    return fresh


def _new_row(command: CreateExecution, policy: PolicyView, now: int) -> Execution:
    deadline = command.execution_deadline_at_ms
    if deadline is None and policy.execution_deadline_ms is not None:
        deadline = saturate(now + policy.execution_deadline_ms)
    delay = command.delay_until_ms
    if delay is not None and delay <= now:
        delay = None
    tags = command.tags
    return Execution(
        command.execution_id,
        command.partition,
        command.uuid,
        None,
        command.lane_id,
        command.required_capabilities,
        0,
        lit.SUBMITTED,
        lit.UNOWNED,
        lit.ELIGIBLE_NOW if delay is None else lit.NOT_ELIGIBLE_UNTIL_TIME,
        lit.PUBLIC_WAITING if delay is None else lit.PUBLIC_DELAYED,
        lit.ATTEMPT_PENDING,
        None if delay is None else lit.WAITING_FOR_DELAY,
        clamp_priority(command.priority),
        now,
        None,
        deadline,
        None,
        0,
        delay,
        command.policy,
        command.namespace,
        (tags.get(lit.INSTANCE_TAG) or None) if tags else None,
        now if command.recorded_at_ms is None else command.recorded_at_ms,
        0,
        0,
        ",".join(dict.fromkeys(policy.budget_ids)) or None,
        policy.quota_policy_id,
        payload=command.input_payload,
        raw_fields=_raw_fields(command),
    )


def _raw_fields(command: CreateExecution) -> str:
    fields: dict[str, Any] = {
        "namespace": command.namespace,
        "execution_kind": command.execution_kind,
        "creator_identity": command.creator_identity,
    }
    if command.idempotency_key is not None:
        fields["idempotency_key"] = command.idempotency_key
    if command.payload_encoding is not None:
        fields["payload_encoding"] = command.payload_encoding
    fields["tags"] = command.tags or {}
    if command.policy is not None:
        policy = read_policy(command.policy)
        if policy.budget_ids:
            fields["budget_ids"] = ",".join(map(shown_id, policy.budget_ids))
        if policy.quota_policy_id:
            fields["quota_policy_id"] = shown_id(policy.quota_policy_id)
    return _encode(fields).decode()


def _tag_events(execution: Execution, now: int) -> tuple[Event, ...]:
    if execution.instance_tag is None:
        return ()
    return (
        InstanceTagEvent(
            execution.partition, execution.uuid, execution.instance_tag, lit.TAG_ATTACHED, now, execution.namespace
        ),
    )
