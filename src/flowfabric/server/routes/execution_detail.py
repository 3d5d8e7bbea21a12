"""Looking closely at an execution: where it is and why, its tags, its summary, what it remembers."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from flowfabric.model.operations.executions import ExecutionSnapshot
from flowfabric.model.reads.explain import Explanation
from flowfabric.model.reads.preview import Preview
from flowfabric.model.streams.frames import SummaryDocument
from flowfabric.server.http.response import Answer, plain
from flowfabric.server.operations import Call, Route, missing


class Tags(Struct, frozen=True):
    """Labels by key."""

    tags: dict[str, str]


class LinkAnswer(Struct, frozen=True):
    """One execution on the way to the cause; ``detail`` depends on the gate."""

    execution_id: str
    execution_kind: str
    gate: str
    sentence: str
    lane_id: str
    since_ms: int
    until_ms: int | None
    detail: dict[str, Any] | None


class ExplanationAnswer(Struct, frozen=True):
    """Why an execution is where it is; ``detail`` depends on the gate. ``chain`` leads from it to the cause."""

    execution_id: str
    gate: str
    sentence: str
    lane_id: str
    since_ms: int
    until_ms: int | None
    detail: dict[str, Any] | None
    chain: list[LinkAnswer]
    left_out: str | None


async def snapshot(call: Call) -> Answer:
    """What a person asks first."""
    found = await call.engine.describe_execution(call.execution_id)
    if found is None:
        raise missing("execution", call.execution_id)
    return plain(found)


async def explain(call: Call) -> Answer:
    """Why it is not running."""
    found: Explanation = await call.engine.explain(call.execution_id, namespaces=call.principal.namespaces)
    return plain(found)


async def preview(call: Call) -> Answer:
    """What acts would do to it."""
    return plain(await call.engine.preview_actions(call.execution_id))


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
    """The summary document of an attempt."""
    found = await call.engine.read_summary(call.execution_id, call.index("idx"))
    if found is None:
        raise missing("summary", call.execution_id)
    return plain(found)


_ID = "/v1/executions/{id}"

ROUTES = (
    Route(
        name="describe_execution",
        method="GET",
        path=f"{_ID}/snapshot",
        summary="State, owner and blocker of an execution",
        handler=snapshot,
        answers={200: ExecutionSnapshot},
    ),
    Route(
        name="explain",
        method="GET",
        path=f"{_ID}/explain",
        summary="Why an execution is not running",
        handler=explain,
        answers={200: ExplanationAnswer},
    ),
    Route(
        name="preview_actions",
        method="GET",
        path=f"{_ID}/preview",
        summary="What cancelling, replaying or forking an execution would do to it now",
        handler=preview,
        answers={200: Preview},
    ),
    Route(
        name="get_execution_tags",
        method="GET",
        path=f"{_ID}/tags",
        summary="Labels of an execution",
        handler=get_tags,
        answers={200: Tags},
    ),
    Route(
        name="set_execution_tags",
        method="PUT",
        path=f"{_ID}/tags",
        summary="Set some labels of an execution; the others stay",
        handler=set_tags,
        body=Tags,
        answers={200: Tags},
    ),
    Route(
        name="read_summary",
        method="GET",
        path=f"{_ID}/attempts/{{idx}}/summary",
        summary="The summary document of an attempt",
        handler=summary,
        answers={200: SummaryDocument},
    ),
)
