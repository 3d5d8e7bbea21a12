"""Service calls by id and fence triple: every gate in its order, and what an operator may override."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from flowfabric import (
    Completed,
    Contention,
    ContentionKind,
    Delayed,
    ExecutionId,
    LeaseFence,
    Moved,
    NotFound,
    PublicState,
    Renewed,
    State,
    StateKind,
    TerminalFailed,
    Validation,
    ValidationKind,
)
from flowfabric.engine import Engine
from flowfabric.model.records.executions import Execution
from tests.contract.probe import START_MS, ManualClock, Probe, claimed, fence_of, id_of, policy, refused, unchanged
from tests.contract.seeding import alter, alter_attempt, remove

OTHER_ID = "00000000-0000-4000-8000-000000000000"


class Named(NamedTuple):
    """What a caller names instead of holding a handle."""

    execution_id: ExecutionId
    attempt_index: int
    fence: LeaseFence | None


OPERATIONS: dict[str, Callable[..., Awaitable[Any]]] = {
    "renew_lease": lambda engine, named, **more: engine.renew_lease(**named._asdict(), lease_ttl_ms=60_000, **more),
    "complete_execution": lambda engine, named, **more: engine.complete_execution(**named._asdict(), **more),
    "fail_execution": lambda engine, named, **more: engine.fail_execution(
        **named._asdict(), failure_reason="boom", **more
    ),
    "delay_execution": lambda engine, named, **more: engine.delay_execution(
        **named._asdict(), delay_until=START_MS + 1_000, **more
    ),
    "move_to_waiting_children": lambda engine, named, **more: engine.move_to_waiting_children(
        **named._asdict(), **more
    ),
}
#: These look at attempt and epoch before they look at the execution.
ATTEMPT_FIRST = ("renew_lease", "fail_execution")
OVERRIDABLE = ("complete_execution", "fail_execution", "delay_execution", "move_to_waiting_children")
every_operation = pytest.mark.parametrize("operation", OPERATIONS)


async def _named(engine: Engine) -> Named:
    handle = await claimed(engine)
    return Named(id_of(handle), 0, fence_of(handle))


def _stale(named: Named) -> Named:
    assert named.fence is not None
    return named._replace(fence=LeaseFence(named.fence.lease_id, 2, named.fence.attempt_id))


def _lost(named: Named) -> Named:
    assert named.fence is not None
    return named._replace(fence=LeaseFence(OTHER_ID, named.fence.lease_epoch, named.fence.attempt_id))


# Each case breaks its gate and every gate behind it, so that the order shows.


async def _missing_everything(engine: Engine, clock: ManualClock, named: Named) -> Named:
    return _stale(named)._replace(execution_id=ExecutionId.of(named.execution_id.partition, OTHER_ID))


async def _unknown_partition(engine: Engine, clock: ManualClock, named: Named) -> Named:
    return named._replace(execution_id=ExecutionId.of(65_535, named.execution_id.uuid_text))


async def _stale_without_row(engine: Engine, clock: ManualClock, named: Named) -> Named:
    await remove(engine, Execution, str(named.execution_id))
    return _stale(named)


async def _no_row(engine: Engine, clock: ManualClock, named: Named) -> Named:
    await remove(engine, Execution, str(named.execution_id))
    clock.advance(30_000)
    return named


async def _revoked(engine: Engine, clock: ManualClock, named: Named) -> Named:
    await alter(engine, named.execution_id, lifecycle_phase="runnable", ownership_state="lease_revoked")
    clock.advance(30_000)
    return named


async def _revoked_elsewhere(engine: Engine, clock: ManualClock, named: Named) -> Named:
    return _stale(await _revoked(engine, clock, named))._replace(attempt_index=7)


async def _not_active(engine: Engine, clock: ManualClock, named: Named) -> Named:
    await alter(engine, named.execution_id, lifecycle_phase="runnable")
    clock.advance(30_000)
    return named


async def _not_active_elsewhere(engine: Engine, clock: ManualClock, named: Named) -> Named:
    return _stale(await _not_active(engine, clock, named))._replace(attempt_index=7)


async def _no_attempt(engine: Engine, clock: ManualClock, named: Named) -> Named:
    return _stale(named)._replace(attempt_index=7)


async def _stale_and_expired(engine: Engine, clock: ManualClock, named: Named) -> Named:
    clock.advance(30_000)
    return _stale(named)


async def _expired(engine: Engine, clock: ManualClock, named: Named) -> Named:
    clock.advance(30_000)
    return _lost(named)


async def _no_expiry(engine: Engine, clock: ManualClock, named: Named) -> Named:
    await alter_attempt(engine, named.execution_id, lease_expires_at_ms=None)
    return _lost(named)


async def _other_lease(engine: Engine, clock: ManualClock, named: Named) -> Named:
    return _lost(named)


_NO_ROW, _NO_ATTEMPT = (NotFound, "execution"), (NotFound, "attempt")
_STALE = (State, StateKind.STALE_LEASE)
_REVOKED, _EXPIRED = (State, StateKind.LEASE_REVOKED), (State, StateKind.LEASE_EXPIRED)
_NOT_ACTIVE = (Contention, ContentionKind.EXECUTION_NOT_ACTIVE)
#: Case -> (what attempt-first calls answer, what the others answer).
GATES: list[tuple[Any, tuple[Any, Any], tuple[Any, Any]]] = [
    (_missing_everything, _NO_ATTEMPT, _NO_ROW),
    (_unknown_partition, _NO_ATTEMPT, _NO_ROW),
    (_stale_without_row, _STALE, _NO_ROW),
    (_no_row, _NO_ROW, _NO_ROW),
    (_revoked, _REVOKED, _REVOKED),
    (_revoked_elsewhere, _NO_ATTEMPT, _REVOKED),
    (_not_active, _NOT_ACTIVE, _NOT_ACTIVE),
    (_not_active_elsewhere, _NO_ATTEMPT, _NOT_ACTIVE),
    (_no_attempt, _NO_ATTEMPT, _NO_ATTEMPT),
    (_stale_and_expired, _STALE, _STALE),
    (_expired, _EXPIRED, _EXPIRED),
    (_no_expiry, _EXPIRED, _EXPIRED),
    (_other_lease, _STALE, _STALE),
]


@pytest.mark.parametrize(("arrange", "attempt_first", "row_first"), GATES, ids=[gate[0].__name__ for gate in GATES])
async def test_gates_refuse_in_order_and_leave_no_trace(
    engine: Engine, probe: Probe, clock: ManualClock, arrange: Any, attempt_first: Any, row_first: Any
) -> None:
    named = await arrange(engine, clock, await _named(engine))
    async with unchanged(probe):
        for name, operation in OPERATIONS.items():
            family, kind = attempt_first if name in ATTEMPT_FIRST else row_first
            with pytest.raises(family) as caught:
                await operation(engine, named)
            error: Any = caught.value
            assert (name, error.kind) == (name, kind)


async def test_an_earlier_attempt_is_stale_even_with_its_own_epoch(engine: Engine, probe: Probe) -> None:
    first = await claimed(engine, lane_id="retried")
    await engine.fail(first, "boom")
    second = await engine.claim("retried", (), policy("w1-i2"))
    assert second is not None
    async with unchanged(probe):
        for operation in OPERATIONS.values():
            with pytest.raises(State) as caught:
                await operation(engine, Named(id_of(first), 0, fence_of(first)))
            assert caught.value.kind is StateKind.STALE_LEASE
    assert await engine.complete_execution(execution_id=id_of(first), attempt_index=1, fence=fence_of(second))


@every_operation
async def test_a_fence_is_required_and_whole(engine: Engine, probe: Probe, operation: str) -> None:
    named = await _named(engine)
    whole = named.fence
    assert whole is not None
    call = OPERATIONS[operation]
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT, "fence_required"):
        await call(engine, named._replace(fence=None))
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT, "fence_required"):
        await call(engine, named._replace(fence=LeaseFence()))
    parts = (whole.lease_id, whole.lease_epoch, whole.attempt_id)
    sources = ({"source": "operator_override"}, {"source": ""}) if operation in OVERRIDABLE else ({},)
    for left_out in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2)):
        given: Any = [None if position in left_out else part for position, part in enumerate(parts)]
        for more in sources:
            async with refused(probe, Validation, ValidationKind.INVALID_INPUT, "partial_fence_triple"):
                await call(engine, named._replace(fence=LeaseFence(*given)), **more)


@pytest.mark.parametrize("source", ["", "lease_holder", "flow_cascade", "OPERATOR_OVERRIDE"])
async def test_nobody_but_an_operator_goes_without_a_fence(engine: Engine, probe: Probe, source: str) -> None:
    named = (await _named(engine))._replace(fence=None)
    for name in OVERRIDABLE:
        async with refused(probe, Validation, ValidationKind.INVALID_INPUT, "fence_required"):
            await OPERATIONS[name](engine, named, source=source)


async def test_epoch_and_lease_id_decide_not_the_attempt_id_beside_them(engine: Engine) -> None:
    answers = []
    for name, operation in OPERATIONS.items():
        handle = await claimed(engine, lane_id=name)
        fence = fence_of(handle, attempt_id=OTHER_ID)
        answers.append((await operation(engine, Named(id_of(handle), 0, fence)), id_of(handle)))
    assert [answer for answer, _ in answers] == [
        Renewed(START_MS + 60_000),
        Completed(answers[1][1], PublicState.COMPLETED),
        TerminalFailed(),
        Delayed(answers[3][1], PublicState.DELAYED),
        answers[4][0],
    ]
    assert isinstance(answers[4][0], Moved)
    assert answers[4][0].execution_id == answers[4][1]


@pytest.mark.parametrize("operation", OVERRIDABLE)
async def test_an_operator_needs_no_fence(engine: Engine, probe: Probe, operation: str) -> None:
    named = (await _named(engine))._replace(fence=None)
    await OPERATIONS[operation](engine, named, source="operator_override")
    assert (await probe.execution(named.execution_id)).ownership_state == "unowned"
    assert await probe.lease_events(named.execution_id) == ["acquired", "revoked"]


@pytest.mark.parametrize("operation", OVERRIDABLE)
async def test_an_operator_who_shows_a_fence_is_held_to_it(engine: Engine, probe: Probe, operation: str) -> None:
    named = _stale(await _named(engine))
    async with refused(probe, State, StateKind.STALE_LEASE):
        await OPERATIONS[operation](engine, named, source="operator_override")


@pytest.mark.parametrize(
    ("arrange", "attempt_first", "row_first"),
    [
        (_unknown_partition, _NO_ATTEMPT, _NO_ROW),
        (_no_row, _NO_ROW, _NO_ROW),
        (_revoked, _REVOKED, _REVOKED),
        (_not_active, _NOT_ACTIVE, _NOT_ACTIVE),
        (_expired, _EXPIRED, _EXPIRED),
    ],
)
async def test_an_override_skips_the_fence_and_nothing_else(
    engine: Engine, probe: Probe, clock: ManualClock, arrange: Any, attempt_first: Any, row_first: Any
) -> None:
    named = (await arrange(engine, clock, await _named(engine)))._replace(fence=None)
    async with unchanged(probe):
        for name in OVERRIDABLE:
            family, kind = attempt_first if name in ATTEMPT_FIRST else row_first
            with pytest.raises(family) as caught:
                await OPERATIONS[name](engine, named, source="operator_override")
            error: Any = caught.value
            assert (name, error.kind) == (name, kind)
