"""``create_execution`` and ``create_executions``: what is stored, what is refused, what a duplicate leaves alone."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from flowfabric import (
    Created,
    Duplicate,
    ExecutionId,
    ExecutionPolicy,
    LaneId,
    PublicState,
    TimeoutPolicy,
    Validation,
    ValidationKind,
)
from flowfabric.engine import Engine
from flowfabric.model.events import CompletionEvent, InstanceTagEvent, LeaseEvent, OperatorEvent
from flowfabric.model.records.executions import Binding, Lane
from tests.contract.probe import START_MS, ManualClock, Probe, create, id_of, policy, refused, unchanged

FRESH = ("submitted", "unowned", "eligible_now", "pending", "waiting", None)
DELAYED = ("submitted", "unowned", "not_eligible_until_time", "pending", "delayed", "waiting_for_delay")
MAX_MS = 2**63 - 1
INVALID_INPUT = ValidationKind.INVALID_INPUT


async def test_a_new_row(engine: Engine, probe: Probe) -> None:
    eid = ExecutionId.solo(LaneId("mail"), engine.partitions)
    answer = await engine.create_execution(
        execution_id=eid,
        namespace="tenant",
        lane_id="mail",
        execution_kind="send",
        input_payload=b"\x00\xffbytes",
        payload_encoding="binary",
        priority=7,
        creator_identity="alice",
        idempotency_key="once",
        tags={"team.name": "red", "Any Key": "is kept"},
        partition_id=12_345,
    )
    assert answer == Created(eid, PublicState.WAITING)
    row = await probe.execution(eid)
    assert await probe.stored(eid) == FRESH
    assert await probe.vector(eid) == (
        "submitted",
        "unowned",
        "eligible_now",
        "pending_first_attempt",
        "waiting",
        "none",
        "none",
    )
    assert (row.partition, row.uuid, row.lane_id) == (eid.partition, eid.uuid_text, "mail")
    assert (row.namespace, row.instance_tag) == ("tenant", None)
    assert (row.attempt_index, row.priority, row.lease_reclaim_count, row.retry_count) == (0, 7, 0, 0)
    assert (row.created_at_ms, row.last_mutation_at_ms, row.total_attempt_count) == (START_MS, START_MS, 0)
    assert (row.started_at_ms, row.terminal_at_ms, row.deadline_at_ms, row.delay_until_ms) == (None,) * 4
    assert (row.flow_id, row.policy, row.result, row.required_capabilities) == (None, None, None, ())
    assert row.payload == b"\x00\xffbytes"
    assert json.loads(row.raw_fields) == {
        "namespace": "tenant",
        "execution_kind": "send",
        "creator_identity": "alice",
        "idempotency_key": "once",
        "payload_encoding": "binary",
        "tags": {"team.name": "red", "Any Key": "is kept"},
    }
    assert await probe.attempts(eid) == []
    for kind in (LeaseEvent, CompletionEvent, OperatorEvent, InstanceTagEvent):
        assert await probe.events(kind) == []


async def test_creating_is_no_event(engine: Engine, probe: Probe) -> None:
    await create(engine, tags={"team.name": "docs"})
    await engine.create_executions([{}, {"delay_until": 2**60}])
    for kind in (LeaseEvent, CompletionEvent, OperatorEvent, InstanceTagEvent):
        assert await probe.events(kind) == []


async def test_optional_keys_stay_absent(engine: Engine, probe: Probe) -> None:
    raw = await probe.raw_fields(await create(engine))
    assert raw == {"namespace": "default", "execution_kind": "op", "creator_identity": "", "tags": {}}


async def test_budgets_and_quota_of_the_policy_are_seeded(engine: Engine, probe: Probe) -> None:
    one, two, quota = (f"{digit * 8}-1111-4111-8111-111111111111" for digit in "123")
    eid = await create(engine, policy={"budget_ids": [one, two], "quota_policy_id": quota})
    raw = await probe.raw_fields(eid)
    assert raw["budget_ids"] == f"{one},{two}"
    assert raw["quota_policy_id"] == quota
    row = await probe.execution(eid)
    assert (row.budget_ids, row.quota_policy_id) == (f"{one},{two}", quota)
    names = ["budget_ids", "quota_policy_id"]
    fields = await engine.read_exec_core_fields(eid.partition, eid, names)
    assert fields == {"budget_ids": f"{one},{two}", "quota_policy_id": quota}


# ------------------------------------------------------------------------------------------------------------------ ids


async def test_an_id_is_minted_for_the_lane(engine: Engine) -> None:
    answer = await engine.create_execution(lane_id="mail", execution_kind="op")
    assert isinstance(answer, Created)
    assert answer.execution_id.partition == ExecutionId.solo(LaneId("mail"), engine.partitions).partition
    again = await engine.create_execution(lane_id="mail", execution_kind="op")
    assert again.execution_id != answer.execution_id


UUID = "11111111-1111-4111-8111-111111111111"


@pytest.mark.parametrize(
    "bad", ["", UUID, f"fp:0:{UUID}", f"{{fp:x}}:{UUID}", f"{{fp:65536}}:{UUID}", "{fp:0}:no-uuid", "{fp:0}:", 7]
)
async def test_a_malformed_id_is_refused(engine: Engine, probe: Probe, bad: Any) -> None:
    async with refused(probe, Validation, INVALID_INPUT):
        await engine.create_execution(execution_id=bad, execution_kind="op")


async def test_a_partition_that_does_not_exist_is_refused(engine: Engine, probe: Probe) -> None:
    """On SQLite that is every partition but 0; the last one that exists is accepted everywhere."""
    count = engine.partitions.flow
    async with refused(probe, Validation, INVALID_INPUT):
        await engine.create_execution(execution_id=f"{{fp:{count}}}:{UUID}", execution_kind="op")
    last = f"{{fp:{count - 1}}}:{UUID}"
    answer = await engine.create_execution(execution_id=last, execution_kind="op", partition_id=count + 1)
    assert answer == Created(ExecutionId.parse(last), PublicState.WAITING)
    assert (await probe.execution(last)).partition == count - 1


@pytest.mark.parametrize("spelling", ["{fp:0}:ABCDEF00-1111-4111-8111-111111111111", "{fp:00}:" + UUID])
async def test_one_id_has_one_spelling(engine: Engine, spelling: str) -> None:
    eid = ExecutionId.parse(spelling)
    assert str(eid) == "{fp:0}:" + eid.uuid_text == "{fp:0}:" + spelling.rpartition(":")[2].lower()
    assert isinstance(await engine.create_execution(execution_id=spelling), Created)
    assert await engine.create_execution(execution_id=str(eid)) == Duplicate(eid)
    handle = await engine.claim("default", (), policy())
    assert handle is not None
    assert id_of(handle) == eid


# -------------------------------------------------------------------------------------- priority, delay, deadline, time


@pytest.mark.parametrize(
    ("given", "stored"),
    [(-1, 0), (0, 0), (1, 1), (9000, 9000), (9001, 9000), (2**40, 9000), (-(2**40), 0)],
)
async def test_priority_is_clamped(engine: Engine, probe: Probe, given: int, stored: int) -> None:
    assert (await probe.execution(await create(engine, priority=given))).priority == stored


@pytest.mark.parametrize("offset", [-START_MS, -1, 0])
async def test_a_delay_that_is_over_is_ignored(engine: Engine, probe: Probe, offset: int) -> None:
    answer = await engine.create_execution(execution_kind="op", delay_until=START_MS + offset)
    assert answer.public_state is PublicState.WAITING
    assert await probe.stored(answer.execution_id) == FRESH
    assert (await probe.execution(answer.execution_id)).delay_until_ms is None


@pytest.mark.parametrize("until", [START_MS + 1, MAX_MS, 2**70])
async def test_a_delay_in_the_future(engine: Engine, probe: Probe, until: int) -> None:
    answer = await engine.create_execution(execution_kind="op", delay_until=until)
    eid = answer.execution_id
    assert answer == Created(eid, PublicState.DELAYED)
    assert await probe.stored(eid) == DELAYED
    assert (await probe.execution(eid)).delay_until_ms == min(until, MAX_MS)


@pytest.mark.parametrize(
    ("argument", "after_ms", "stored"),
    [
        (None, None, None),
        (START_MS + 5, None, START_MS + 5),
        (None, 60_000, START_MS + 60_000),
        (START_MS + 5, 60_000, START_MS + 5),
        (None, 2**63, MAX_MS),
    ],
)
async def test_deadline(
    engine: Engine, probe: Probe, argument: int | None, after_ms: int | None, stored: int | None
) -> None:
    given = ExecutionPolicy(timeout_policy=TimeoutPolicy(execution_deadline_ms=after_ms))
    eid = await create(engine, execution_deadline_at=argument, policy=given)
    assert (await probe.execution(eid)).deadline_at_ms == stored


async def test_now_only_records(engine: Engine, probe: Probe) -> None:
    """The store's clock decides delay, deadline and age; the caller's time is bookkeeping."""
    given = {"timeout_policy": {"execution_deadline_ms": 1_000}}
    eid = await create(engine, now=5, delay_until=START_MS, policy=given)
    row = await probe.execution(eid)
    assert (row.created_at_ms, row.delay_until_ms, row.deadline_at_ms) == (START_MS, None, START_MS + 1_000)
    assert row.last_mutation_at_ms == 5


# ---------------------------------------------------------------------------------------------- policy and capabilities


async def test_policy_is_stored_whole(engine: Engine, probe: Probe) -> None:
    given = {"retry_policy": {"max_retries": 5}, "house_rule": {"kept": [1, None]}}
    stored = json.loads((await probe.execution(await create(engine, policy=given))).policy or "")
    assert stored["house_rule"] == {"kept": [1, None]}
    assert stored["retry_policy"]["max_retries"] == 5
    assert stored["retry_policy"]["backoff"] == {
        "type": "exponential",
        "initial_delay_ms": 1000,
        "max_delay_ms": 60_000,
        "multiplier": 2.0,
        "jitter": False,
    }
    assert (stored["max_reclaim_count"], stored["max_replay_count"], stored["budget_ids"]) == (100, 10, [])
    assert "timeout_policy" not in stored


async def test_required_capabilities_are_sorted_and_unique(engine: Engine, probe: Probe) -> None:
    given = {"routing_requirements": {"required_capabilities": ["gpu", "arm64", "gpu"]}}
    eid = await create(engine, policy=given)
    assert (await probe.execution(eid)).required_capabilities == ("arm64", "gpu")
    assert await engine.read_exec_core_fields(eid.partition, eid, ["required_capabilities"]) == {
        "required_capabilities": "arm64,gpu"
    }


def needing(tokens: Any) -> dict[str, Any]:
    return {"routing_requirements": {"required_capabilities": tokens}}


BAD_POLICY, BAD_CAPABILITIES = ValidationKind.INVALID_POLICY_JSON, ValidationKind.INVALID_CAPABILITIES


@pytest.mark.parametrize(
    ("given", "kind", "detail"),
    [
        ("{", BAD_POLICY, "malformed: Input data was truncated"),
        ("[]", BAD_POLICY, "malformed: a policy is a JSON object"),
        ("7", BAD_POLICY, "malformed: a policy is a JSON object"),
        ({"max_reclaim_count": "many"}, BAD_POLICY, "malformed: policy.max_reclaim_count must be an integer"),
        ({"retry_policy": []}, BAD_POLICY, "malformed: policy.retry_policy must be an object"),
        ({"routing_requirements": []}, BAD_POLICY, "routing_requirements:not_object"),
        ({"routing_requirements": None}, BAD_POLICY, "routing_requirements:not_object"),
        (needing("gpu"), BAD_CAPABILITIES, "required:not_array"),
        (needing(None), BAD_CAPABILITIES, "required:not_array"),
        (needing({"gpu": 1}), BAD_CAPABILITIES, "required:not_array"),
        (needing([7]), BAD_CAPABILITIES, "required:non_string_token"),
        (needing([None]), BAD_CAPABILITIES, "required:non_string_token"),
        (needing([""]), BAD_CAPABILITIES, "required:empty_token"),
        (needing(["a,b"]), BAD_CAPABILITIES, "required:comma_in_token"),
        (needing(["a b"]), BAD_CAPABILITIES, "required:control_or_whitespace"),
        (needing(["a\x7f"]), BAD_CAPABILITIES, "required:control_or_whitespace"),
        (needing(["a\n"]), BAD_CAPABILITIES, "required:control_or_whitespace"),
        (needing([f"t{n}" for n in range(257)]), BAD_CAPABILITIES, "required:too_many_tokens"),
        (needing(["x" * 4097]), BAD_CAPABILITIES, "required:too_many_bytes"),
        (needing(["ü" * 2047, "ab"]), BAD_CAPABILITIES, "required:too_many_bytes"),
    ],
)
async def test_policy_and_capability_gates(
    engine: Engine, probe: Probe, given: Any, kind: ValidationKind, detail: str
) -> None:
    """A refused create leaves nothing behind, not even its lane or its idempotency key."""
    async with refused(probe, Validation, kind, detail):
        await engine.create_execution(execution_kind="op", lane_id="untouched", idempotency_key="k", policy=given)


@pytest.mark.parametrize("tokens", [[f"t{n}" for n in range(256)], ["x" * 4096], ["ü" * 2046, "abc"], []])
async def test_bounds_of_capabilities_are_inclusive(engine: Engine, probe: Probe, tokens: list[str]) -> None:
    eid = await create(engine, policy=needing(tokens))
    assert (await probe.execution(eid)).required_capabilities == tuple(sorted(tokens))


# ------------------------------------------------------------------------------------------------- duplicates and lanes


async def test_the_same_id_again_is_a_duplicate(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    eid = await create(engine, priority=3, tags={"a.b": "c"})
    clock.advance(10)
    async with unchanged(probe):
        answer = await engine.create_execution(
            execution_id=eid,
            execution_kind="other",
            priority=9,
            input_payload=b"other",
            tags={"cairn.instance_id": "x"},
        )
    assert answer == Duplicate(eid)


async def test_a_duplicate_still_registers_its_lane(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    eid = await create(engine, lane_id="first")
    later = clock.advance(10)
    assert await engine.create_execution(execution_id=eid, lane_id="second") == Duplicate(eid)
    lanes = [(lane.lane_id, lane.registered_at_ms, lane.registered_by, lane.state) for lane in await lanes_of(probe)]
    assert lanes == [
        ("first", START_MS, "create_execution", "active"),
        ("second", later, "create_execution", "active"),
    ]
    assert (await probe.execution(eid)).lane_id == "first"


async def test_a_lane_is_registered_once(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await create(engine, lane_id="lane")
    clock.advance(10)
    await create(engine, lane_id="lane")
    assert [lane.registered_at_ms for lane in await lanes_of(probe)] == [START_MS]
    assert (await engine.list_lanes()).lanes == ("lane",)


async def lanes_of(probe: Probe) -> list[Lane]:
    return await probe.select(Lane, state="active")


async def test_concurrent_creates_of_one_id(engine: Engine, probe: Probe) -> None:
    eid = ExecutionId.solo(LaneId("default"), engine.partitions)
    answers = await asyncio.gather(
        *(engine.create_execution(execution_id=eid, execution_kind=str(n)) for n in range(20))
    )
    assert sorted(type(answer).__name__ for answer in answers) == ["Created"] + ["Duplicate"] * 19
    assert {answer.execution_id for answer in answers} == {eid}
    winner = next(n for n, answer in enumerate(answers) if isinstance(answer, Created))
    assert (await probe.raw_fields(eid))["execution_kind"] == str(winner)


async def test_the_instance_tag_is_an_event(engine: Engine, probe: Probe) -> None:
    eid = await create(engine, namespace="tenant", tags={"cairn.instance_id": "i-7", "a.b": "c"})
    assert await probe.events(InstanceTagEvent) == [
        InstanceTagEvent(eid.partition, eid.uuid_text, "i-7", "attached", START_MS, "tenant")
    ]
    assert (await probe.execution(eid)).instance_tag == "i-7"


# ----------------------------------------------------------------------------------------------------------------- bulk


async def test_many_at_once_answer_in_order(engine: Engine, probe: Probe) -> None:
    old = await create(engine)
    fresh = ExecutionId.solo(LaneId("bulk"), engine.partitions)
    answers = await engine.create_executions(
        [
            {"lane_id": "bulk", "execution_id": fresh, "delay_until": START_MS + 9, "partition_id": 3},
            {"execution_id": old},
            {"lane_id": "bulk", "idempotency_key": "k"},
            {"lane_id": "bulk", "execution_id": fresh},
            {"lane_id": "bulk", "idempotency_key": "k"},
        ]
    )
    keyed = answers[2].execution_id
    assert answers == [
        Created(fresh, PublicState.DELAYED),
        Duplicate(old),
        Created(keyed, PublicState.WAITING),
        Duplicate(fresh),
        Duplicate(keyed),
    ]
    assert await probe.stored(fresh) == DELAYED
    assert await probe.stored(keyed) == FRESH
    assert [binding.uuid for binding in await probe.select(Binding, namespace="default")] == [keyed.uuid_text]


async def test_one_bad_item_refuses_them_all(engine: Engine, probe: Probe) -> None:
    good = {"lane_id": "bulk", "tags": {"cairn.instance_id": "x"}}
    async with refused(probe, Validation, BAD_CAPABILITIES, "item 1: required:empty_token"):
        await engine.create_executions([good, {**good, "policy": needing([""])}])
    async with refused(probe, Validation, INVALID_INPUT, "item 2: unknown argument 'lane'"):
        await engine.create_executions([good, good, {"lane": "bulk"}])


async def test_no_items_no_answers(engine: Engine, probe: Probe) -> None:
    async with unchanged(probe):
        assert await engine.create_executions([]) == []
