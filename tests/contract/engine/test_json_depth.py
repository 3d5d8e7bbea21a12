"""What is stored as JSON nests no deeper than whoever reads it later can follow."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric import Every, Validation, ValidationKind
from flowfabric.engine import Engine
from flowfabric.engine.checks import values
from flowfabric.model.limits import MAX_JSON_DEPTH
from tests.contract.probe import Probe, claimed, create, fence_of, id_of, unchanged
from tests.contract.suspending import addressed, suspended


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def within(depth: int) -> str:
    """An object that nests as deep."""
    return f'{{"a":{nested(depth - 1)}}}'


def nested_value(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


async def creating(engine: Engine, depth: int) -> None:
    await engine.create_execution(input_payload=nested(depth).encode(), payload_encoding="json")


async def creating_many(engine: Engine, depth: int) -> None:
    await engine.create_executions([{"input_payload": nested(depth).encode(), "payload_encoding": "json"}])


async def scheduling(engine: Engine, depth: int) -> None:
    payload = nested(depth).encode()
    how = {"execution_kind": "op", "input_payload": payload, "payload_encoding": "json"}
    await engine.put_schedule(schedule_id="s", spec=Every(60_000), **how)  # type: ignore[arg-type]


async def with_policy(engine: Engine, depth: int) -> None:
    await engine.create_execution(policy=within(depth))


async def with_policy_object(engine: Engine, depth: int) -> None:
    await engine.create_execution(policy={"a": nested_value(depth - 1)})


async def failing(engine: Engine, depth: int) -> None:
    handle = await claimed(engine, lane_id="failing")
    fence = fence_of(handle)
    await engine.fail_execution(
        execution_id=id_of(handle), fence=fence, failure_reason="no", retry_policy_json=within(depth)
    )


async def signalling(engine: Engine, depth: int) -> None:
    handle, details = await suspended(engine)
    await engine.deliver_signal(**addressed(handle, details), signal_name="go", payload=nested(depth).encode())


DOORS: list[Callable[[Engine, int], Awaitable[None]]] = [
    creating, creating_many, scheduling, with_policy, with_policy_object, failing, signalling,
]  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
async def test_too_deep_is_refused_at_the_door(engine: Engine, probe: Probe, door: Any) -> None:
    await door(engine, MAX_JSON_DEPTH)
    for depth in (MAX_JSON_DEPTH + 1, 500, 30_000 if door is not with_policy_object else 800):
        with pytest.raises(Validation) as refused:
            await door(engine, depth)
        assert refused.value.kind in (ValidationKind.INVALID_INPUT, ValidationKind.INVALID_POLICY_JSON)


async def test_a_refused_payload_leaves_no_trace(engine: Engine, probe: Probe) -> None:
    await create(engine)
    async with unchanged(probe):
        for door in (creating, creating_many, scheduling, with_policy):
            with pytest.raises(Validation):
                await door(engine, MAX_JSON_DEPTH + 1)


async def test_bytes_that_are_no_json_are_nobodys_business(engine: Engine) -> None:
    for payload in (b"[{" * 500 + b"\xff", b"\x00" + b"[" * 500, b"(" * 500 + b"[" * 100):
        await create(engine, input_payload=payload, payload_encoding="json")
    await create(engine, input_payload=nested(2_000).encode())
    await create(engine, input_payload=nested(2_000).encode(), payload_encoding="mine")


def test_a_policy_for_one_attempt() -> None:
    assert values.json_object(within(MAX_JSON_DEPTH), "attempt_policy_json")
    for depth in (MAX_JSON_DEPTH + 1, 2_000):
        with pytest.raises(Validation):
            values.json_object(within(depth), "attempt_policy_json")
