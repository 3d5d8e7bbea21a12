"""Tags of executions and flows: keys, values, bulk writes, and the instance tag."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flowfabric import NotFound, Validation, ValidationKind
from flowfabric.engine import Engine
from flowfabric.model.events import CompletionEvent, InstanceTagEvent, LeaseEvent
from flowfabric.model.records.flows import Flow
from tests.contract.probe import START_MS, ManualClock, Probe, claimed, create, id_of, policy, refused, unchanged
from tests.contract.seeding import alter, flow_of, seed

NOBODY = "{fp:0}:00000000-0000-4000-8000-000000000000"
NO_FLOW = "99999999-9999-4999-8999-999999999999"
GOOD_KEYS = ["a.b", "team.name", "a1_.x", "a._", "a.0", "a.b.c..d.", "cairn.instance_id", "x_y.z_0.w"]
BAD_KEYS = [
    "", "plain", ".", "a.", ".a", "A.b", "a.B", "1a.b", "_a.b", "a-b.c", "a b.c", "a.b c", "a.b-c", "ż.a", "a.ż",
    "a..", " a.b", "a.b ", "a.b\n", "a.b\x00", "a.\ud800", "a'.b", "a\".b", "a.b'; DROP TABLE ff_exec_core; --",
]  # fmt: skip


# -- executions ------------------------------------------------------------------------------------------------------


async def test_a_tag_is_set_and_read(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    identity = await create(engine, namespace="acme", tags={"team.name": "blue", "plain": "kept"})
    assert await engine.get_execution_tag(identity, "team.name") == "blue"
    assert await engine.get_execution_tag(identity, "team.lead") is None
    before = await probe.raw_fields(identity)
    clock.advance(5)
    assert await engine.set_execution_tag(identity, "team.lead", "ann") is None
    await engine.set_execution_tag(identity, "team.name", "red")
    await engine.set_execution_tag(identity, "team.note", "")
    tags = {"team.name": "red", "plain": "kept", "team.lead": "ann", "team.note": ""}
    assert await probe.raw_fields(identity) == {**before, "tags": tags}
    assert [await engine.get_execution_tag(identity, key) for key in ("team.name", "team.note")] == ["red", ""]
    snapshot = await engine.describe_execution(identity)
    assert snapshot is not None
    assert (snapshot.tags, snapshot.last_mutation_at) == (tags, START_MS + 5)
    assert list(snapshot.tags) == sorted(tags)
    assert await probe.events(InstanceTagEvent) == []


@pytest.mark.parametrize("key", GOOD_KEYS)
async def test_a_dotted_key_is_one_flat_name(engine: Engine, probe: Probe, key: str) -> None:
    identity = await create(engine)
    await engine.set_execution_tag(identity, key, "v")
    assert (await probe.raw_fields(identity))["tags"] == {key: "v"}
    assert await engine.get_execution_tag(identity, key) == "v"


async def test_what_is_no_key(engine: Engine, probe: Probe) -> None:
    """Judged before any row is looked at: the execution and the flow need not exist."""
    async with unchanged(probe):
        for key in BAD_KEYS:
            for call in (
                engine.set_execution_tag(NOBODY, key, "v"),
                engine.get_execution_tag(NOBODY, key),
                engine.set_flow_tag(NO_FLOW, key, "v"),
                engine.get_flow_tag(NO_FLOW, key),
            ):
                with pytest.raises(Validation) as caught:
                    await call
                assert caught.value.kind is ValidationKind.INVALID_INPUT
                assert repr(key) in caught.value.detail
            for bulk in (
                engine.set_execution_tags(NOBODY, {"a.b": "v", key: "v"}),
                engine.set_flow_tags(NO_FLOW, {"a.b": "v", key: "v"}),
            ):
                with pytest.raises(Validation) as caught:
                    await bulk
                assert caught.value.kind is ValidationKind.INVALID_TAG_KEY
                assert repr(key) in caught.value.detail


async def test_tags_of_what_is_not_there(engine: Engine, probe: Probe) -> None:
    async with refused(probe, NotFound, "execution"):
        await engine.set_execution_tag(NOBODY, "a.b", "v")
    async with refused(probe, NotFound, "execution"):
        await engine.set_execution_tags(NOBODY, {"a.b": "v"})
    async with refused(probe, NotFound, "flow"):
        await engine.set_flow_tag(NO_FLOW, "a.b", "v")
    async with refused(probe, NotFound, "flow"):
        await engine.set_flow_tags(NO_FLOW, {"a.b": "v"})
    assert await engine.get_execution_tag(NOBODY, "a.b") is None
    assert await engine.get_flow_tag(NO_FLOW, "a.b") is None


async def test_many_tags_at_once_or_none(engine: Engine, probe: Probe) -> None:
    identity = await create(engine, tags={"a.kept": "1", "a.old": "2"})
    await engine.set_execution_tags(identity, {"a.old": "3", "a.new": "4"})
    tags = {"a.kept": "1", "a.old": "3", "a.new": "4"}
    assert (await probe.raw_fields(identity))["tags"] == tags
    bad: list[dict[str, Any]] = [{"a.x": "1", "bad": "2"}, {"a.x": "1", "a.y": 5}, {"a.x": "1", "a.y": "\x00"}]
    for mapping in bad:
        async with refused(probe, Validation):
            await engine.set_execution_tags(identity, mapping)


async def test_a_running_execution_can_be_tagged(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine, lane_id="tagged")
    await engine.set_execution_tag(id_of(handle), "a.b", "one")
    await engine.progress(handle, 50)
    await engine.set_execution_tag(id_of(handle), "a.b", "two")
    assert (await probe.raw_fields(id_of(handle)))["progress_pct"] == 50
    await engine.renew(handle)
    await engine.complete(handle)
    await engine.set_execution_tag(id_of(handle), "a.b", "three")
    assert await engine.get_execution_tag(id_of(handle), "a.b") == "three"
    assert await probe.lease_events(id_of(handle)) == ["acquired", "renewed", "revoked"]
    assert await engine.claim("tagged", (), policy()) is None


async def test_unreadable_tags_are_corruption(engine: Engine, probe: Probe) -> None:
    identity = await create(engine)
    await alter(engine, identity, raw_fields='{"tags": []}')
    async with refused(probe, Validation, ValidationKind.CORRUPTION):
        await engine.set_execution_tag(identity, "a.b", "v")
    assert await engine.get_execution_tag(identity, "a.b") is None
    await alter(engine, identity, raw_fields='{"tags": {"a.b": 5, "a.c": "text"}}')
    assert await engine.get_execution_tag(identity, "a.b") is None
    assert await engine.get_execution_tag(identity, "a.c") == "text"


# -- the instance tag ------------------------------------------------------------------------------------------------


async def test_the_instance_tag_is_an_event(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    identity = await create(engine, namespace="acme", tags={"cairn.instance_id": "one"})
    clock.advance(5)
    await engine.set_execution_tags(identity, {"a.b": "c", "cairn.instance_id": "two"})
    await engine.set_execution_tag(identity, "a.b", "d")
    events: list[InstanceTagEvent] = await probe.events(InstanceTagEvent, identity)
    assert [(event.tag, event.occurred_at_ms, event.namespace) for event in events] == [
        ("one", START_MS, "acme"),
        ("two", START_MS + 5, "acme"),
    ]
    assert {event.partition for event in events} == {identity.partition}


async def test_later_events_carry_the_instance_tag(engine: Engine, probe: Probe) -> None:
    handle = await claimed(engine, namespace="acme")
    await engine.set_execution_tag(id_of(handle), "cairn.instance_id", "blue")
    await engine.renew(handle)
    await engine.set_execution_tag(id_of(handle), "cairn.instance_id", "green")
    await engine.complete(handle)
    leases = await probe.events(LeaseEvent, id_of(handle))
    assert [event.instance_tag for event in leases] == [None, "blue", "green"]
    (end,) = await probe.events(CompletionEvent, id_of(handle))
    assert (end.instance_tag, end.namespace) == ("green", "acme")


# -- flows -----------------------------------------------------------------------------------------------------------


async def test_flow_tags_live_in_the_flow_document(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    flow = flow_of(engine, namespace="acme", node_count=3)
    await seed(engine, flow)
    clock.advance(5)
    assert await engine.get_flow_tag(flow.flow_id, "a.b") is None
    assert await engine.set_flow_tag(flow.flow_id, "a.b", "one") is None
    await engine.set_flow_tags(flow.flow_id, {"a.b": "two", "c.d.e": "three"})
    (row,) = await probe.select(Flow, partition=flow.partition, flow_id=flow.flow_id)
    assert json.loads(row.raw_fields) == {
        "namespace": "acme",
        "node_count": 3,
        "a.b": "two",
        "c.d.e": "three",
        "last_mutation_at_ms": START_MS + 5,
    }
    assert [await engine.get_flow_tag(flow.flow_id, key) for key in ("a.b", "c.d.e")] == ["two", "three"]
    assert await engine.get_flow_tag(flow.flow_id.upper(), "a.b") == "two"
    async with refused(probe, Validation, ValidationKind.INVALID_TAG_KEY):
        await engine.set_flow_tags(flow.flow_id, {"a.x": "1", "node_count": "9"})


async def test_unreadable_flow_documents(engine: Engine, probe: Probe) -> None:
    flow, odd = flow_of(engine), flow_of(engine, **{"a.b": 5})
    flow.raw_fields = "[]"
    await seed(engine, flow, odd)
    async with refused(probe, Validation, ValidationKind.CORRUPTION):
        await engine.set_flow_tag(flow.flow_id, "a.b", "v")
    with pytest.raises(Validation) as caught:
        await engine.get_flow_tag(flow.flow_id, "a.b")
    assert caught.value.kind is ValidationKind.CORRUPTION
    assert await engine.get_flow_tag(odd.flow_id, "a.b") is None
