"""An execution's input, history and records; and starting it again from the middle."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from flowfabric.model.ids import ExecutionId
from flowfabric.model.operations.workflows import Forked, StepPlace, StepRecord
from flowfabric.model.reads.overview import AttemptErrors, History
from flowfabric.server.http.pieces import MOST_STEPS, Pieces, in_pieces
from flowfabric.server.http.request import LARGE, Blob
from flowfabric.server.http.response import Answer, Streamed, encode, plain
from flowfabric.server.operations import Call, Route
from flowfabric.server.remembered_steps import step_portions

#: Bytes of a step's value that a list shows.
SHOWN_BYTES = 65_536


class Input(Struct, frozen=True):
    """The input of an execution; the payload in base64."""

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

    after: Annotated[int, Meta(ge=0, le=2**31 - 2)] = 0
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
    async with call.server.turns.one():
        return plain(await call.engine.read_history(call.execution_id))


async def errors(call: Call) -> Answer:
    """What its failed attempts failed with."""
    async with call.server.turns.one():
        return plain(await call.engine.read_errors(call.execution_id))


async def steps(call: Call) -> Answer | Streamed:
    """What it remembers."""
    return await in_pieces(_page(call))


async def _page(call: Call) -> Pieces:
    query: StepsQuery = call.query
    identity = call.execution_id
    # No name stands before the empty one: whatever has a later number is behind it.
    behind = StepPlace(query.after + 1, "", 0)
    places = await call.engine.list_steps(identity, behind, query.limit)
    begun = b'{"steps":['
    async for found in step_portions(call, identity, places):
        ready = [begun + b",".join([encode(_line(each)) for each in found])]
        begun = b","
        del found
        yield ready.pop()
    goes_on = len(places) == query.limit and await call.engine.list_steps(identity, places[-1], 1)
    following = encode(places[-1].sequence if goes_on else None)
    yield (b"" if begun == b"," else begun) + b'],"next_after":' + following + b"}"


def _line(step: StepRecord) -> StepLine:
    value = step.value
    return StepLine(
        step.name,
        step.sequence,
        step.outcome.value,
        step.attempt_index,
        step.recorded_at_ms,
        len(value or b""),
        None if value is None else value[:SHOWN_BYTES],
    )


async def fork(call: Call) -> Answer:
    """Start again with what it remembers from before a step."""
    body: ForkBody = call.body
    identity = call.execution_id
    new = None
    if call.key is not None:
        new = ExecutionId.of(identity.partition, call.mint("fork"))
    payload = None if body.input_payload is None else bytes(body.input_payload)
    async with call.server.steps_at_once.some(MOST_STEPS):
        found = await call.engine.fork_execution(
            execution_id=identity, at=body.at, new_execution_id=new, input_payload=payload
        )
    return plain(found, 201)


_ID = "/v1/executions/{id}"

ROUTES = (
    Route(
        name="read_input",
        method="GET",
        path=f"{_ID}/input",
        summary="The input of an execution",
        handler=given,
        answers={200: Input},
    ),
    Route(
        name="read_history",
        method="GET",
        path=f"{_ID}/history",
        summary="The history of an execution: attempts, waits, signals, spending",
        handler=history,
        answers={200: History},
    ),
    Route(
        name="read_errors",
        method="GET",
        path=f"{_ID}/errors",
        summary="The errors of failed attempts, with their tracebacks",
        handler=errors,
        answers={200: AttemptErrors},
    ),
    Route(
        name="read_steps",
        method="GET",
        path=f"{_ID}/steps",
        summary="The recorded steps of a workflow, in order",
        handler=steps,
        query=StepsQuery,
        answers={200: StepsPage},
    ),
    Route(
        name="fork_execution",
        method="POST",
        path=f"{_ID}/fork",
        summary="Start a new execution with the steps recorded before a given step",
        handler=fork,
        body=ForkBody,
        limit=LARGE,
        answers={201: Forked},
    ),
)
