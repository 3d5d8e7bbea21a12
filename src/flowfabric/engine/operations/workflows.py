"""Durable functions: remembering steps, starting children, parking, forking."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from flowfabric.ascending import ascending_bytes, ascending_uuid
from flowfabric.core.context import uuid_text
from flowfabric.core.documents import parse_document
from flowfabric.core.executions.cancel import CancelChild
from flowfabric.core.flows.build import CreateFlow
from flowfabric.core.workflows.steps import Advance, ForkExecution, shown
from flowfabric.engine.checks import steps as step_checks, values
from flowfabric.engine.operations.create import Intake
from flowfabric.model.decisions import Get, GetFull, Select
from flowfabric.model.errors import LimitReached, NotFound
from flowfabric.model.handles import Handle
from flowfabric.model.ids import ExecutionId
from flowfabric.model.limits import MAX_BULK, MAX_PAGE, MAX_STEPS_PER_EXECUTION
from flowfabric.model.operations.executions import Cancelled, Cancelling
from flowfabric.model.operations.workflows import (
    Advanced,
    ChildWait,
    Ended,
    Forked,
    LiveStep,
    NewStep,
    Step,
    StepPlace,
    StepRecord,
)
from flowfabric.model.partitions import flow_partition
from flowfabric.model.policy import read_policy
from flowfabric.model.states import canonical_public_state
from flowfabric.stores.questions import ListSteps, LiveSteps

#: The kind of the flows that durable functions found for their children.
WORKFLOW_FLOW = "workflow"


class Steps(Intake):
    """The part of the engine that durable functions stand on."""

    async def advance(
        self,
        handle: Handle,
        *,
        steps: Iterable[NewStep] = (),
        known_steps: int | None = None,
        children: Iterable[Mapping[str, Any]] = (),
        wait: ChildWait | None = None,
        cancel_known: bool = False,
    ) -> Advanced:
        """Everything a durable function has to say at once, in one commit under its lease.

        ``steps`` that have ended are remembered; one that is remembered already stays, and the answer tells what it
        holds. ``children`` (arguments of ``create_execution`` with ids in the parent's partition) are started in the
        parent's flow, each once. With ``wait`` the lease is given up until enough children have ended or the time has
        come, unless that is so already. ``known_steps`` is how many steps the caller knows to be remembered,
        which saves looking; without it the new ones are numbered behind those that are there.
        An execution that was asked to cancel is not parked unless the caller says with ``cancel_known`` that it knows.
        """
        payload = self._payload(handle)
        identity = ExecutionId.unchecked(payload.execution_id)
        told = step_checks.brought(identity, steps, known_steps)
        started = tuple(self._child(child, identity.partition) for child in values.sequence(children, "children"))
        if len(started) > MAX_BULK:
            raise LimitReached("MAX_BULK", MAX_BULK)
        uuid = identity.uuid_text
        flow = CreateFlow(
            identity.partition,
            self._flow_in(identity.partition) if started else uuid,
            WORKFLOW_FLOW,
            started[0].namespace if started else "default",
            (),
            None,
        )
        answer: Advanced = await self._submit(
            Advance(
                payload,
                identity.partition,
                uuid,
                told,
                started,
                None if wait is None else step_checks.wait_for(wait),
                flow,
                uuid if wait is None else ascending_uuid(),
                values.flag(cancel_known, "cancel_known"),
            )
        )
        return answer

    async def cancel_child(
        self, handle: Handle, execution_id: ExecutionId | str, reason: str = ""
    ) -> Cancelled | Cancelling:
        """Give up a child: the holder of an execution cancels another that it has started by ``advance``, or asks it
        to end if it may clean up; see ``request_cancel``."""
        answer: Cancelled | Cancelling = await self._submit(
            CancelChild(self._payload(handle), values.execution_id(execution_id), values.reason(reason))
        )
        return answer

    def _child(self, arguments: Any, partition: int) -> Any:
        child = self._creation_of(arguments)
        if arguments.get("execution_id") is None or child.partition != partition:
            raise values.invalid(
                f"children: {child.execution_id} is not in the parent's partition {{fp:{partition}}}; "
                "a child's id has the partition of its parent"
            )
        return child

    def _flow_in(self, partition: int) -> str:
        """A new flow id that falls into a partition."""
        start = ascending_bytes()
        # Of its random bits the last ones are tried out.
        head, tail = start[:14], int.from_bytes(start[14:], "big")
        for each in range(2**16):
            flow_id = uuid_text(head + (tail ^ each).to_bytes(2, "big"))
            if flow_partition(flow_id, self.partitions) == partition:
                return flow_id
        raise AssertionError("no id falls into the partition")

    async def read_steps(self, execution_id: ExecutionId | str, names: Sequence[str] | None = None) -> list[StepRecord]:
        """What an execution remembers, in the order it was remembered; nothing if there is no such execution. With
        ``names`` only those steps."""
        identity = values.execution_id(execution_id)
        where = (identity.partition, identity.uuid_text)
        if names is None:
            view = await self._view(Select(Step, ("partition", "uuid"), where))
            rows = view.select(Step, partition=where[0], uuid=where[1])
        else:
            keys = [(*where, each) for each in _step_names(names)]
            view = await self._view(*[Get(Step, key) for key in keys])
            rows = [row for key in keys if (row := view.get(Step, key)) is not None]
        return [shown(row) for row in sorted(rows, key=lambda each: (each.sequence, each.name))]

    async def list_steps(
        self, execution_id: ExecutionId | str, after: StepPlace | None = None, limit: int = MAX_PAGE
    ) -> list[StepPlace]:
        """What an execution remembers behind a step, in the order it was remembered, without the values."""
        identity = values.execution_id(execution_id)
        size = min(values.integer(limit, "limit", 0, 2**31), MAX_PAGE)
        place = None
        if after is not None:
            if not isinstance(after, StepPlace):
                raise values.invalid(f"after: expected StepPlace, got {type(after).__name__}")
            place = (values.integer(after.sequence, "after", 0, 2**31 - 1), values.text(after.name, "after.name"))
        found = await self._ask(ListSteps(identity.partition, identity.uuid_text, place, size)) if size else []
        return [StepPlace(*each) for each in found]

    async def remembered_bytes(self, execution_id: ExecutionId | str, names: Sequence[str]) -> int:
        """How large the values of some steps are that an execution may remember."""
        identity, wanted, size = values.execution_id(execution_id), _step_names(names), 0
        for start in range(0, len(wanted), MAX_PAGE):
            some = tuple(wanted[start : start + MAX_PAGE])
            found = await self._ask(ListSteps(identity.partition, identity.uuid_text, None, len(some), some))
            size += sum(each[2] for each in found)
        return size

    async def list_live_steps(self, after: LiveStep | None = None, limit: int = MAX_PAGE) -> tuple[LiveStep, ...]:
        """What executions that have not ended remember, execution by execution, behind a step."""
        size = min(values.integer(limit, "limit", 0, 2**31), MAX_PAGE)
        if size == 0:
            return ()
        position = None
        if after is not None:
            if not isinstance(after, LiveStep):
                raise values.invalid(f"after: expected LiveStep, got {type(after).__name__}")
            identity = values.execution_id(after.execution_id, "after.execution_id")
            position = (identity.partition, identity.uuid_text, values.text(after.name, "after.name"))
        found = await self._ask(LiveSteps(position, size))
        return tuple(LiveStep(ExecutionId.unchecked(each), name) for each, name in found)

    async def read_ends(
        self, execution_ids: Sequence[ExecutionId | str], *, namespaces: Iterable[str] | None = None
    ) -> list[Ended]:
        """How some executions stand, with results and failures; those that do not exist are left out, and with
        ``namespaces`` also those of others."""
        given, own = list(values.sequence(execution_ids, "execution_ids")), values.namespaces(namespaces)
        if len(given) > MAX_BULK:
            raise LimitReached("MAX_BULK", MAX_BULK)
        identities = [values.execution_id(each, "execution_ids") for each in given]
        if not identities:
            return []
        view = await self._view(*[GetFull(each) for each in dict.fromkeys(identities)])
        found = [view.full(each) for each in identities]
        return [
            Ended(
                ExecutionId.unchecked(row.execution_id),
                canonical_public_state(row.public_state),
                row.result or None,
                row.failure_reason or None,
                row.cancellation_reason or None,
                row.terminal_at_ms,
            )
            for row in found
            if row is not None and (own is None or row.namespace in own)
        ]

    async def fork_execution(
        self,
        *,
        execution_id: ExecutionId | str,
        at: str | None = None,
        new_execution_id: ExecutionId | str | None = None,
        input_payload: bytes | None = None,
    ) -> Forked:
        """Start again with what an execution remembers from before the step ``at``, by the name of its call; without
        ``at``, with all of it.

        The new execution has the input (unless another is given), kind, lane, policy and tags of the old one, which
        stays as it is. Results of children count as steps. A fork of a child is nobody's child.
        """
        identity = values.execution_id(execution_id)
        name = values.optional_text(at, "at")
        new = None if new_execution_id is None else values.execution_id(new_execution_id, "new_execution_id")
        source = (await self._view(GetFull(identity))).full(identity)
        if source is None:
            raise NotFound("execution")
        raw = parse_document(source.raw_fields, "raw_fields")
        arguments = {
            "execution_id": new,
            "namespace": source.namespace or "default",
            "lane_id": source.lane_id,
            "execution_kind": raw.get("execution_kind") or "",
            "input_payload": source.payload if input_payload is None else input_payload,
            "payload_encoding": raw.get("payload_encoding") or None,
            "priority": source.priority,
            "creator_identity": raw.get("creator_identity") or "",
            "tags": {**_own(raw.get("tags") or {}), FORKED_FROM: identity},
        }
        policy = source.policy or None
        able = read_policy(policy).required_capabilities
        creation = replace(self._creation_of(arguments), policy=policy, required_capabilities=able)
        answer: Forked = await self._submit(
            ForkExecution(creation, identity, identity.partition, identity.uuid_text, name)
        )
        return answer


def _step_names(names: Sequence[str]) -> list[str]:
    found = [values.text(each, "names") for each in values.sequence(names, "names")]
    if len(found) > MAX_STEPS_PER_EXECUTION:
        raise LimitReached("MAX_STEPS_PER_EXECUTION", MAX_STEPS_PER_EXECUTION)
    return list(dict.fromkeys(found))


#: The tag by which a fork names the execution it was made from.
FORKED_FROM = "ff.forked_from"
#: Tags by which a child names the run and the call that it belongs to.
_OF_A_CHILD = frozenset({"ff.run", "ff.step"})


def _own(tags: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in tags.items() if name not in _OF_A_CHILD}
