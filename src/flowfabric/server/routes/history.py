"""What an execution was given, went through and remembers; and starting anew from the middle."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from flowfabric.model.ids import ExecutionId
from flowfabric.model.overview import History
from flowfabric.model.steps import Forked
from flowfabric.server.access import Scope
from flowfabric.server.answers import Answer, plain
from flowfabric.server.operations import Call, Operation
from flowfabric.server.requests import LARGE, Blob

#: Bytes of a step's value that a list shows.
SHOWN_BYTES = 65_536


class Input(Struct, frozen=True):
    """What an execution was given; the payload in base64."""

    execution_kind: str
    payload: bytes
    tags: dict[str, str]


class StepLine(Struct, frozen=True):
    """One remembered step; ``value`` in base64, and only the beginning of it if it is longer than a list shows."""

    name: str
    sequence: int
    outcome: str
    attempt_index: int
    recorded_at: int
    size: int
    value: bytes | None


class StepsPage(Struct, frozen=True):
    """Steps in the order they were remembered; ``next_after`` leads on."""

    steps: tuple[StepLine, ...]
    next_after: int | None


class StepsQuery(Struct, kw_only=True):
    """Behind which step, by its sequence."""

    after: Annotated[int, Meta(ge=0, le=2**31)] = 0
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 200


class ForkBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Before which step, and with which input; all steps and the same input if left out."""

    at: str | None = None
    input_payload: Blob | None = None


async def given(call: Call) -> Answer:
    """The input."""
    found = await call.engine.read_execution_context(call.execution_id)
    return plain(Input(found.execution_kind, found.input_payload, found.tags))


async def history(call: Call) -> Answer:
    """Attempts, waits, signals, spending."""
    return plain(await call.engine.read_history(call.execution_id))


async def steps(call: Call) -> Answer:
    """What it remembers."""
    query: StepsQuery = call.query
    behind = [each for each in await call.engine.read_steps(call.execution_id) if each.sequence > query.after]
    lines = tuple(
        StepLine(
            each.name,
            each.sequence,
            each.outcome.value,
            each.attempt_index,
            each.recorded_at_ms,
            len(each.value or b""),
            None if each.value is None else each.value[:SHOWN_BYTES],
        )
        for each in behind[: query.limit]
    )
    return plain(StepsPage(lines, lines[-1].sequence if len(behind) > len(lines) else None))


async def fork(call: Call) -> Answer:
    """Start anew with what it remembers from before a step."""
    body: ForkBody = call.body
    identity = call.execution_id
    new = None
    if call.key is not None:
        new = ExecutionId.of(identity.partition, call.mint("fork"))
    payload = None if body.input_payload is None else bytes(body.input_payload)
    found = await call.engine.fork_execution(
        execution_id=identity, at=body.at, new_execution_id=new, input_payload=payload
    )
    return plain(found, 201)


_ID = "/v1/executions/{id}"

OPERATIONS = (
    Operation(
        name="read_input",
        method="GET",
        path=f"{_ID}/input",
        scope=Scope.READ,
        summary="What an execution was given",
        handler=given,
        owner="execution",
        answers={200: Input},
    ),
    Operation(
        name="read_history",
        method="GET",
        path=f"{_ID}/history",
        scope=Scope.READ,
        summary="What an execution went through: attempts, waits, signals, spending",
        handler=history,
        owner="execution",
        answers={200: History},
    ),
    Operation(
        name="read_steps",
        method="GET",
        path=f"{_ID}/steps",
        scope=Scope.READ,
        summary="What a durable function remembers, in order",
        handler=steps,
        query=StepsQuery,
        owner="execution",
        answers={200: StepsPage},
    ),
    Operation(
        name="fork_execution",
        method="POST",
        path=f"{_ID}/fork",
        scope=Scope.OPERATOR,
        summary="Start anew with what an execution remembers from before a step",
        handler=fork,
        body=ForkBody,
        limit=LARGE,
        owner="execution",
        answers={201: Forked},
        audited=True,
    ),
)
