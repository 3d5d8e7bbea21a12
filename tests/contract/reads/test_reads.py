"""Everything that can be read about an execution, when it is there, when it is not, and when its row is odd."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from flowfabric import (
    ExecutionContext,
    ExecutionId,
    ExecutionInfo,
    ExecutionSnapshot,
    PublicState,
    StateVector,
    Validation,
    ValidationKind,
)
from flowfabric.engine import Engine
from flowfabric.model.operations.executions import AttemptSummary, LeaseSummary
from tests.contract.probe import (
    START_MS,
    ManualClock,
    Probe,
    claimed,
    create,
    id_of,
    payload_of,
    policy,
    sql_stores_only,
    unchanged,
)
from tests.contract.seeding import (
    alter,
    alter_attempt,
    bare_execution,
    edge,
    flow_of,
    group,
    member,
    member_id,
    seed,
)

NOBODY = ExecutionId("{fp:0}:00000000-0000-4000-8000-000000000000")
FAR_AWAY = ExecutionId("{fp:65535}:00000000-0000-4000-8000-000000000000")


def _vector(*parts: str) -> StateVector:
    return StateVector(*parts)  # type: ignore[arg-type]


# -- what is not there -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nobody", [NOBODY, FAR_AWAY])
async def test_what_is_not_there(engine: Engine, nobody: ExecutionId) -> None:
    assert await engine.read_execution_state(nobody) is None
    assert await engine.read_execution_info(nobody) is None
    assert await engine.describe_execution(nobody) is None
    assert await engine.get_execution_result(nobody) is None
    assert await engine.resolve_execution_flow_id(nobody) is None
    assert await engine.get_execution_namespace(nobody) is None
    assert await engine.get_execution_tag(nobody, "a.b") is None
    assert await engine.evaluate_flow_eligibility(nobody) == "not_found"
    fields = await engine.read_exec_core_fields(nobody.partition, nobody, ["lane_id", "nonsense", "budget_ids"])
    assert fields == {"lane_id": None, "nonsense": None, "budget_ids": None}
    for read in (engine.read_execution_context, engine.read_current_attempt_index, engine.read_total_attempt_count):
        with pytest.raises(Validation) as caught:
            await read(nobody)
        assert caught.value.kind is ValidationKind.INVALID_INPUT


async def test_contexts_of_many(engine: Engine, probe: Probe) -> None:
    """One read brings what workers start from, in whatever number; what does not exist is left out."""
    ids = [
        await create(engine, execution_kind=f"kind-{n}", input_payload=b"%d" % n, tags={"a.n": str(n)})
        for n in range(5)
    ]
    nobody = ExecutionId.solo("default", engine.partitions)
    async with unchanged(probe):
        assert await engine.read_execution_contexts([]) == {}
        assert await engine.read_execution_contexts([nobody]) == {}
        for count in range(1, 6):
            found = await engine.read_execution_contexts([*ids[:count], nobody, ids[0]])
            assert found == {ids[n]: ExecutionContext(b"%d" % n, f"kind-{n}", {"a.n": str(n)}) for n in range(count)}
            assert all(type(each) is ExecutionId for each in found)


async def test_contexts_end_at_a_number_of_bytes(engine: Engine) -> None:
    ids = [await create(engine, input_payload=b"x" * size) for size in (5, 0, 5, 20, 1)]
    nobody = ExecutionId.solo("default", engine.partitions)
    for most, count in ((1, 1), (5, 1), (6, 3), (10, 3), (11, 4), (30, 4), (31, 5), (2**40, 5)):
        found = await engine.read_execution_contexts([nobody, *ids, ids[0]], most_bytes=most)
        assert found == await engine.read_execution_contexts(ids[:count]), most
    assert await engine.read_execution_contexts([ids[3]], most_bytes=1)
    assert await engine.read_execution_contexts([nobody], most_bytes=1) == {}


# -- what is there ---------------------------------------------------------------------------------------------------


async def test_a_fresh_execution(engine: Engine, probe: Probe) -> None:
    identity = await create(
        engine, namespace="acme", lane_id="gpu", priority=7, execution_kind="train", tags={"b.c": "2", "a.b": "1"}
    )
    async with unchanged(probe):
        assert await engine.read_execution_state(identity) is PublicState.WAITING
        assert await engine.read_execution_info(identity) == ExecutionInfo(
            identity,
            "acme",
            "gpu",
            7,
            "train",
            _vector("submitted", "unowned", "eligible_now", "none", "none", "pending_first_attempt", "waiting"),
            PublicState.WAITING,
            str(START_MS),
            None,
            None,
            0,
            None,
            "",
        )
        snapshot = await engine.describe_execution(identity)
        assert snapshot == ExecutionSnapshot(
            identity, None, "gpu", "acme", PublicState.WAITING, None, None, None, None, None,
            START_MS, START_MS, 0, {"a.b": "1", "b.c": "2"},
        )  # fmt: skip
        assert snapshot is not None
        assert list(snapshot.tags) == ["a.b", "b.c"]
        assert await engine.get_execution_result(identity) is None
        assert await engine.read_execution_context(identity) == ExecutionContext(
            b"in", "train", {"a.b": "1", "b.c": "2"}
        )
        assert await engine.read_execution_contexts([identity]) == {
            identity: await engine.read_execution_context(identity)
        }
        assert await engine.read_current_attempt_index(identity) == 0
        assert await engine.read_total_attempt_count(identity) == 0
        assert await engine.resolve_execution_flow_id(identity) is None
        assert await engine.get_execution_namespace(identity) == "acme"


async def test_a_running_execution(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    clock.advance(-1_000)
    identity = await create(engine, lane_id="run")
    clock.advance(1_000)
    handle = await engine.claim("run", (), policy())
    assert handle is not None
    info = await engine.read_execution_info(identity)
    assert info is not None
    assert info.state_vector == _vector(
        "active", "leased", "not_applicable", "none", "none", "running_attempt", "active"
    )
    assert (info.public_state, info.created_at, info.started_at, info.completed_at) == (
        PublicState.ACTIVE,
        str(START_MS - 1_000),
        str(START_MS),
        None,
    )
    snapshot = await engine.describe_execution(identity)
    assert snapshot is not None
    assert snapshot.current_attempt == AttemptSummary(payload_of(handle).attempt_id, 0)
    assert snapshot.current_lease == LeaseSummary(
        1, "w1-i1", START_MS + 30_000, probe.lease_id(identity, 0, 1), 0, START_MS
    )
    assert (snapshot.blocking_reason, snapshot.total_attempt_count, snapshot.last_mutation_at) == (None, 1, START_MS)


async def test_a_member_of_a_flow(engine: Engine) -> None:
    flow = flow_of(engine)
    identity = await member(engine, flow)
    info, snapshot = await engine.read_execution_info(identity), await engine.describe_execution(identity)
    assert info is not None
    assert snapshot is not None
    assert info.flow_id == snapshot.flow_id == flow.flow_id
    assert await engine.resolve_execution_flow_id(identity) == flow.flow_id


async def test_a_blocked_execution_says_why(engine: Engine) -> None:
    identity = await create(engine)
    await engine.block_route(execution_id=identity, detail="needs a gpu")
    info, snapshot = await engine.read_execution_info(identity), await engine.describe_execution(identity)
    assert info is not None
    assert snapshot is not None
    assert (info.blocking_detail, snapshot.blocking_detail) == ("needs a gpu", "needs a gpu")
    assert (snapshot.blocking_reason, snapshot.public_state) == ("waiting_for_capable_worker", PublicState.WAITING)
    await engine.unblock_execution(execution_id=identity)
    snapshot = await engine.describe_execution(identity)
    assert snapshot is not None
    assert (snapshot.blocking_reason, snapshot.blocking_detail) == ("waiting_for_worker", None)


async def test_a_missing_input_is_empty(engine: Engine) -> None:
    identity = await create(engine, input_payload=None)
    assert (await engine.read_execution_context(identity)).input_payload == b""


async def test_a_row_written_by_hand(engine: Engine) -> None:
    """State columns and nothing else: readers fall back on what there is."""
    identity = ExecutionId.of(0, str(uuid.uuid4()))
    await seed(engine, bare_execution(engine, identity))
    assert await engine.describe_execution(identity) == ExecutionSnapshot(
        identity, None, "default", "", PublicState.WAITING, None, None, None, None, None, START_MS, START_MS, 0, {}
    )
    assert await engine.read_execution_context(identity) == ExecutionContext(b"", "", {})
    assert await engine.get_execution_namespace(identity) is None
    assert await engine.get_execution_result(identity) is None
    info = await engine.read_execution_info(identity)
    assert info is not None
    assert (info.namespace, info.execution_kind) == ("", "")


@sql_stores_only
async def test_a_document_may_hold_what_columns_do_not(engine: Engine) -> None:
    identity = ExecutionId.of(0, str(uuid.uuid4()))
    raw = {"namespace": "acme", "last_mutation_at": str(START_MS + 5), "tags": {"a.b": "c", "odd": 5}}
    await seed(engine, bare_execution(engine, identity, raw_fields=json.dumps(raw)))
    snapshot = await engine.describe_execution(identity)
    assert snapshot is not None
    assert (snapshot.namespace, snapshot.last_mutation_at, snapshot.tags) == ("acme", START_MS + 5, {"a.b": "c"})
    assert await engine.get_execution_namespace(identity) == "acme"


# -- single fields ---------------------------------------------------------------------------------------------------


async def test_fields_as_text(engine: Engine) -> None:
    budgets = [str(uuid.uuid4()), str(uuid.uuid4())]
    quota = str(uuid.uuid4())
    needs = {"routing_requirements": {"required_capabilities": ["gpu", "cuda"]}}
    identity = await create(
        engine, lane_id="f", priority=3, policy={"budget_ids": budgets, "quota_policy_id": quota, **needs}
    )
    found = await engine.read_exec_core_fields(
        identity.partition,
        identity,
        ["lane_id", "priority", "required_capabilities", "budget_ids", "quota_policy_id", "flow_id", "created_at_ms"],
    )
    assert found == {
        "lane_id": "f",
        "priority": "3",
        "required_capabilities": "cuda,gpu",
        "budget_ids": ",".join(budgets),
        "quota_policy_id": quota,
        "flow_id": None,
        "created_at_ms": str(START_MS),
    }


async def test_fields_by_other_names(engine: Engine, clock: ManualClock) -> None:
    handle = await claimed(engine, instance="box-1")
    identity = id_of(handle)
    names = ["current_attempt_index", "completed_at", "cancel_reason", "current_worker_instance_id", "nonsense"]
    found = await engine.read_exec_core_fields(identity.partition, identity, names)
    assert list(found.values()) == ["0", None, None, "box-1", None]
    clock.advance(5)
    await engine.cancel_execution(execution_id=identity, reason="enough")
    found = await engine.read_exec_core_fields(identity.partition, identity, [*names, "public_state"])
    assert list(found.values()) == ["0", str(START_MS + 5), "enough", "", None, "cancelled"]


async def test_fields_of_another_partition(engine: Engine) -> None:
    identity = await create(engine)
    for partition in (identity.partition + 1, -1, "0", None):
        with pytest.raises(Validation) as caught:
            await engine.read_exec_core_fields(partition, identity, ["lane_id"])  # type: ignore[arg-type]
        assert caught.value.kind is ValidationKind.INVALID_INPUT


# -- stored literals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "stored", "canonical"),
    [
        ("lifecycle_phase", "cancelled", "terminal"),
        ("lifecycle_phase", "pending", "runnable"),
        ("lifecycle_phase", "eligible", "runnable"),
        ("lifecycle_phase", "blocked", "runnable"),
        ("ownership_state", "released", "unowned"),
        ("ownership_state", "lease_revoked", "lease_revoked"),
        ("eligibility_state", "pending_claim", "eligible_now"),
        ("eligibility_state", "cancelled", "not_applicable"),
        ("public_state", "running", "active"),
        ("public_state", "claimed", "active"),
        ("public_state", "pending", "waiting"),
        ("public_state", "success", "completed"),
        ("attempt_state", "pending", "pending_first_attempt"),
        ("attempt_state", "initial", "pending_first_attempt"),
        ("attempt_state", "pending_claim", "pending_first_attempt"),
        ("attempt_state", "running", "running_attempt"),
        ("attempt_state", "cancelled", "attempt_terminal"),
        ("attempt_state", "terminated", "attempt_terminal"),
        ("attempt_state", "terminal_failed", "attempt_terminal"),
        ("blocking_reason", None, "none"),
        ("blocking_reason", "", "none"),
        ("blocking_reason", "paused_by_operator", "paused_by_operator"),
    ],
)
async def test_old_words_are_understood(engine: Engine, column: str, stored: Any, canonical: str) -> None:
    identity = await create(engine)
    await alter(engine, identity, **{column: stored})
    info = await engine.read_execution_info(identity)
    assert info is not None
    assert getattr(info.state_vector, column) == canonical
    if column == "public_state":
        assert await engine.read_execution_state(identity) == canonical


@pytest.mark.parametrize(
    "column",
    ["lifecycle_phase", "ownership_state", "eligibility_state", "public_state", "attempt_state", "blocking_reason"],
)
async def test_unknown_words_are_corruption(engine: Engine, column: str) -> None:
    identity = await create(engine)
    await alter(engine, identity, **{column: "Weird"})
    with pytest.raises(Validation) as caught:
        await engine.read_execution_info(identity)
    assert (caught.value.kind, caught.value.detail) == (ValidationKind.CORRUPTION, f"{column}: unknown value 'Weird'")
    if column == "public_state":
        with pytest.raises(Validation) as caught:
            await engine.read_execution_state(identity)
        assert caught.value.kind is ValidationKind.CORRUPTION
    else:
        assert await engine.read_execution_state(identity) is PublicState.WAITING
    # Whoever does not interpret the column does not mind.
    assert (await engine.read_execution_context(identity)).input_payload == b"in"
    await engine.set_execution_tag(identity, "a.b", "c")


@pytest.mark.parametrize(
    ("phase", "outcome", "stored", "state", "derived"),
    [
        ("terminal", "success", None, "completed", "success"),
        ("terminal", "failure", None, "failed", "failed"),
        ("terminal", "expired", None, "expired", "expired"),
        ("terminal", "skipped", None, "skipped", "skipped"),
        ("cancelled", "success", "success", "completed", "cancelled"),
        ("terminal", "retry", "failed", "completed", "failed"),
        ("terminal", None, None, "success", "success"),
        ("terminal", None, None, "waiting", "none"),
        ("runnable", "success", "success", "completed", "none"),
    ],
)
async def test_how_an_execution_ended(
    engine: Engine, phase: str, outcome: str | None, stored: str | None, state: str, derived: str
) -> None:
    identity = id_of(await claimed(engine))
    await alter_attempt(engine, identity, outcome=outcome)
    await alter(engine, identity, lifecycle_phase=phase, terminal_outcome=stored, public_state=state)
    info = await engine.read_execution_info(identity)
    assert info is not None
    assert info.state_vector.terminal_outcome == derived


async def test_an_unreadable_document_is_corruption(engine: Engine) -> None:
    identity = await create(engine)
    await alter(engine, identity, raw_fields="[1]")
    for read in (engine.describe_execution, engine.read_execution_info, engine.read_execution_context):
        with pytest.raises(Validation) as caught:
            await read(identity)
        assert (caught.value.kind, caught.value.detail) == (
            ValidationKind.CORRUPTION,
            "raw_fields: not a JSON object",
        )
    assert await engine.read_execution_state(identity) is PublicState.WAITING


# -- eligibility -----------------------------------------------------------------------------------------------------


async def test_why_a_member_may_or_may_not_run(engine: Engine, probe: Probe) -> None:
    flow = flow_of(engine)
    standing: dict[str, dict[str, Any]] = {
        "terminal": {"lifecycle_phase": "terminal"},
        "terminal when cancelled": {"lifecycle_phase": "cancelled"},
        "not_runnable": {"lifecycle_phase": "active", "ownership_state": "leased"},
        "not_runnable when suspended": {"lifecycle_phase": "suspended"},
        "owned": {"ownership_state": "leased"},
        "blocked_by_dependencies": {"eligibility_state": "blocked_by_dependencies"},
        "eligible": {},
        "eligible when submitted": {"lifecycle_phase": "submitted"},
        "eligible alone": {"flow_id": None},
    }
    ids = {name: member_id(engine, flow) for name in standing}
    rows = [
        bare_execution(engine, ids[name], **{"flow_id": flow.flow_id, **fields}) for name, fields in standing.items()
    ]
    await seed(engine, *rows)
    grouped = {
        "impossible": {"group_state": "impossible", "running_count": 1},
        "blocked_by_dependencies when open": {"running_count": 1},
        "eligible when satisfied": {"group_state": "satisfied", "running_count": 1},
        "eligible when done": {"success_count": 1},
    }
    for name, counts in grouped.items():
        ids[name] = member_id(engine, flow)
        await seed(engine, bare_execution(engine, ids[name], flow_id=flow.flow_id), group(flow, ids[name], **counts))
        await seed(engine, edge(flow, ids["terminal"], ids[name]))
    async with unchanged(probe):
        for name, identity in ids.items():
            assert (name, await engine.evaluate_flow_eligibility(identity)) == (name, name.split()[0])


# -- leases ----------------------------------------------------------------------------------------------------------


async def test_lost_leases(engine: Engine, clock: ManualClock, probe: Probe) -> None:
    """Those that were taken away or whose execution has ended; not one that only ran out."""
    held = [await claimed(engine, lane_id=f"lane-{n}") for n in range(7)]
    _, completed, revoked, cancelled, failed, delayed, _ = held
    async with unchanged(probe):
        assert await engine.lost_leases(held) == []
        assert await engine.lost_leases([]) == []
    await engine.complete(completed)
    await engine.revoke_lease(execution_id=id_of(revoked))
    await engine.cancel_execution(execution_id=id_of(cancelled))
    await engine.fail(failed, "no")
    await engine.delay(delayed, clock.now_ms + 60_000)
    clock.advance(30_000)
    await engine.run_due()
    clock.advance(1)
    again = await engine.claim("lane-6", (), policy("other"))
    assert again is not None
    fresh = await claimed(engine, ttl_ms=100)
    clock.advance(101)
    async with unchanged(probe):
        assert await engine.lost_leases([*held, fresh]) == held
        assert await engine.lost_leases([again, fresh, completed, again]) == [completed]
