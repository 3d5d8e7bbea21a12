"""Looking closely at an execution: where it is and why, its tags, its summary, what it remembers."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from flowfabric.model.explain import Explanation
from flowfabric.model.frames import SummaryDocument
from flowfabric.model.results import ExecutionSnapshot
from flowfabric.server.access import Scope
from flowfabric.server.answers import Answer, plain
from flowfabric.server.operations import Call, Operation, missing


class Tags(Struct, frozen=True):
    """Labels by key."""

    tags: dict[str, str]


class ExplanationAnswer(Struct, frozen=True):
    """Why an execution is where it is; ``detail`` depends on the gate."""

    execution_id: str
    gate: str
    sentence: str
    lane_id: str
    since_ms: int
    until_ms: int | None
    detail: dict[str, Any] | None


async def snapshot(call: Call) -> Answer:
    """What a person asks first."""
    found = await call.engine.describe_execution(call.execution_id)
    if found is None:
        raise missing("execution", call.execution_id)
    return plain(found)


async def explain(call: Call) -> Answer:
    """Why it is not running."""
    found: Explanation = await call.engine.explain(call.execution_id)
    return plain(found)


async def get_tags(call: Call) -> Answer:
    """Its labels."""
    found = await call.engine.describe_execution(call.execution_id)
    if found is None:
        raise missing("execution", call.execution_id)
    return plain(Tags(found.tags))


async def set_tags(call: Call) -> Answer:
    """Set some labels; the others stay."""
    await call.engine.set_execution_tags(call.execution_id, call.body.tags)
    return await get_tags(call)


async def summary(call: Call) -> Answer:
    """The rolling document of an attempt."""
    found = await call.engine.read_summary(call.execution_id, call.index("idx"))
    if found is None:
        raise missing("summary", call.execution_id)
    return plain(found)


_ID = "/v1/executions/{id}"

OPERATIONS = (
    Operation(
        name="describe_execution",
        method="GET",
        path=f"{_ID}/snapshot",
        scope=Scope.READ,
        summary="Where an execution is, who holds it, what it waits for",
        handler=snapshot,
        owner="execution",
        answers={200: ExecutionSnapshot},
    ),
    Operation(
        name="explain",
        method="GET",
        path=f"{_ID}/explain",
        scope=Scope.READ,
        summary="Why an execution is not running",
        handler=explain,
        owner="execution",
        answers={200: ExplanationAnswer},
    ),
    Operation(
        name="get_execution_tags",
        method="GET",
        path=f"{_ID}/tags",
        scope=Scope.READ,
        summary="Labels of an execution",
        handler=get_tags,
        owner="execution",
        answers={200: Tags},
    ),
    Operation(
        name="set_execution_tags",
        method="PUT",
        path=f"{_ID}/tags",
        scope=Scope.OPERATOR,
        summary="Set some labels of an execution; the others stay",
        handler=set_tags,
        body=Tags,
        owner="execution",
        answers={200: Tags},
        audited=True,
    ),
    Operation(
        name="read_summary",
        method="GET",
        path=f"{_ID}/attempts/{{idx}}/summary",
        scope=Scope.READ,
        summary="The rolling document of an attempt",
        handler=summary,
        owner="execution",
        answers={200: SummaryDocument},
    ),
)
