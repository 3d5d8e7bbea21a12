"""Ending with success, by handle and by fence."""

from __future__ import annotations

import pytest

from flowfabric import Completed, Handle, PublicState, TerminalOutcome, Validation, ValidationKind
from flowfabric.engine import Engine
from flowfabric.model.events import CompletionEvent, LeaseEvent
from flowfabric.model.states import legal
from tests.contract.probe import START_MS, ManualClock, Probe, claimed, fence_of, id_of, policy, refused
from tests.contract.seeding import flow_of, lane_of, member, seed

ENDED = "terminal / unowned / not_applicable / attempt_terminal / completed"
WAYS = ("complete", "complete_execution")


async def _complete(engine: Engine, way: str, handle: Handle, result: bytes | None) -> None:
    if way == "complete":
        assert await engine.complete(handle, result) is None
    else:
        answer = await engine.complete_execution(
            execution_id=id_of(handle), attempt_index=0, fence=fence_of(handle), result_payload=result
        )
        assert answer == Completed(id_of(handle), PublicState.COMPLETED)


@pytest.mark.parametrize("way", WAYS)
async def test_what_is_stored(engine: Engine, probe: Probe, clock: ManualClock, way: str) -> None:
    handle = await claimed(engine, instance="box-1")
    before = await probe.execution(id_of(handle))
    clock.advance(1_500)
    await _complete(engine, way, handle, b"result")
    assert await probe.state(id_of(handle)) == ENDED
    row = await probe.execution(id_of(handle))
    assert (row.terminal_at_ms, row.result, row.terminal_outcome) == (START_MS + 1_500, b"result", "success")
    assert (row.attempt_index, row.started_at_ms, row.payload) == (0, START_MS, b"in")
    assert (row.blocking_reason, row.delay_until_ms, row.raw_fields) == (None, None, before.raw_fields)
    assert row.last_mutation_at_ms == START_MS + 1_500
    (attempt,) = await probe.attempts(id_of(handle))
    assert (attempt.outcome, attempt.terminal_at_ms) == ("success", START_MS + 1_500)
    assert (attempt.worker_id, attempt.worker_instance_id) == ("w1", None)
    assert (attempt.lease_epoch, attempt.lease_expires_at_ms) == (1, None)


@pytest.mark.parametrize("way", WAYS)
async def test_what_is_announced(engine: Engine, probe: Probe, clock: ManualClock, way: str) -> None:
    handle = await claimed(engine, instance="box-1", namespace="acme", tags={"cairn.instance_id": "blue"})
    clock.advance(7)
    await _complete(engine, way, handle, None)
    identity = id_of(handle)
    assert await probe.lease_events(identity) == ["acquired", "revoked"]
    lease: LeaseEvent = (await probe.events(LeaseEvent, identity))[-1]
    assert (lease.lease_id, lease.occurred_at_ms) == (probe.lease_id(identity, 0, 1), START_MS + 7)
    assert (lease.namespace, lease.instance_tag, lease.worker_instance_id) == ("acme", "blue", "box-1")
    (end,) = await probe.events(CompletionEvent, identity)
    assert (end.partition, end.uuid, end.flow_id) == (identity.partition, identity.uuid_text, None)
    assert (end.outcome, end.occurred_at_ms, end.namespace, end.instance_tag) == (
        "success",
        START_MS + 7,
        "acme",
        "blue",
    )
    assert await probe.operator_events(identity) == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("result", [None, b"", b"\x00\xff", b"x" * 1_048_576])
async def test_results(engine: Engine, way: str, result: bytes | None) -> None:
    handle = await claimed(engine)
    assert await engine.get_execution_result(id_of(handle)) is None
    await _complete(engine, way, handle, result)
    assert await engine.get_execution_result(id_of(handle)) == result


@pytest.mark.parametrize("way", WAYS)
async def test_a_result_has_at_most_a_mebibyte(engine: Engine, probe: Probe, way: str) -> None:
    handle = await claimed(engine)
    async with refused(probe, Validation, ValidationKind.PAYLOAD_TOO_LARGE):
        await _complete(engine, way, handle, b"x" * 1_048_577)
    await _complete(engine, way, handle, b"small")


@pytest.mark.parametrize("way", WAYS)
async def test_what_readers_see(engine: Engine, way: str) -> None:
    handle = await claimed(engine)
    await _complete(engine, way, handle, b"ok")
    info = await engine.read_execution_info(id_of(handle))
    assert info is not None
    assert legal(info.state_vector)
    assert info.state_vector.is_consistent()
    assert (info.public_state, info.state_vector.terminal_outcome) == (PublicState.COMPLETED, TerminalOutcome.SUCCESS)
    assert (info.started_at, info.completed_at) == (str(START_MS), str(START_MS))
    snapshot = await engine.describe_execution(id_of(handle))
    assert snapshot is not None
    assert (snapshot.current_lease, snapshot.blocking_reason) == (None, None)


@pytest.mark.parametrize("way", WAYS)
async def test_a_member_tells_its_flow(engine: Engine, probe: Probe, way: str) -> None:
    flow = flow_of(engine)
    await seed(engine, flow)
    execution_id = await member(engine, flow)
    handle = await engine.claim(lane_of(execution_id), (), policy())
    assert handle is not None
    await _complete(engine, way, handle, None)
    (end,) = await probe.events(CompletionEvent, execution_id)
    assert (end.flow_id, end.outcome) == (flow.flow_id, "success")


async def test_a_completed_execution_is_never_claimed_again(engine: Engine) -> None:
    handle = await claimed(engine, lane_id="once")
    await engine.complete(handle)
    assert await engine.claim("once", (), policy()) is None
