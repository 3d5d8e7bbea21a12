"""Tags of executions and flows. A dotted key is one flat member; the last write wins."""

from __future__ import annotations

from msgspec import Struct

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.core.documents import dump_document, parse_document
from flowfabric.model import states as lit
from flowfabric.model.decisions import Decision, Get, GetFull, Need, change
from flowfabric.model.errors import NotFound, Validation, ValidationKind
from flowfabric.model.events import Event, InstanceTagEvent
from flowfabric.model.records.executions import Execution
from flowfabric.model.records.flows import Flow


class SetExecutionTags(Struct, gc=False):
    """Tags to set on an execution, all or none; keys have been checked."""

    execution_id: str
    tags: dict[str, str]

    def needs(self) -> tuple[Need, ...]:
        return (GetFull(self.execution_id),)


def set_execution_tags(command: SetExecutionTags, view: View, context: Context) -> Decision:
    """The tags merged into the execution's; the instance tag is an event too."""
    execution = view.full(command.execution_id)
    if execution is None:
        raise NotFound("execution")
    fields = parse_document(execution.raw_fields, "raw_fields")
    tags = fields.get("tags", {})
    if not isinstance(tags, dict):
        raise Validation(ValidationKind.CORRUPTION, "raw_fields: tags is not an object")
    if {**tags, **command.tags} == tags and lit.INSTANCE_TAG not in command.tags:
        # To attach the instance tag is an event, whatever it was before.
        return Decision(None)
    fields["tags"] = {**tags, **command.tags}
    changed: dict[str, object] = {"raw_fields": dump_document(fields), "last_mutation_at_ms": context.now}
    events: tuple[Event, ...] = ()
    if lit.INSTANCE_TAG in command.tags:
        value = command.tags[lit.INSTANCE_TAG] or None
        changed |= {"instance_tag": value, "namespace": execution.namespace}
        events = _tag_events(execution, value, context.now)
    return Decision(None, (change(execution, **changed),), events)


def _tag_events(execution: Execution, value: str | None, now: int) -> tuple[Event, ...]:
    """What becomes of the instance tag; an empty text takes it away."""
    tag, kind = (value, lit.TAG_ATTACHED) if value is not None else (execution.instance_tag, lit.TAG_CLEARED)
    if tag is None:
        return ()
    return (InstanceTagEvent(execution.partition, execution.uuid, tag, kind, now, execution.namespace),)


class SetFlowTags(Struct, gc=False):
    """Tags to set on a flow, all or none; keys have been checked."""

    partition: int
    flow_id: str
    tags: dict[str, str]

    def needs(self) -> tuple[Need, ...]:
        return (Get(Flow, (self.partition, self.flow_id)),)


def set_flow_tags(command: SetFlowTags, view: View, context: Context) -> Decision:
    """Flow tags live at the top level of the flow's raw fields."""
    flow = view.get(Flow, (command.partition, command.flow_id))
    if flow is None:
        raise NotFound("flow")
    stored = parse_document(flow.raw_fields, "ff_flow_core.raw_fields")
    fields = {**stored, **command.tags}
    if fields == stored:
        return Decision(None)
    fields["last_mutation_at_ms"] = context.now
    return Decision(None, (change(flow, raw_fields=dump_document(fields)),))
