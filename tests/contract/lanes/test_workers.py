"""The worker registry: who is alive, on which lanes, with which capabilities."""

from __future__ import annotations

from typing import Any

import pytest

from flowfabric import Marked, NotRegistered, Refreshed, Registered, Unavailable, Validation, ValidationKind
from flowfabric.engine import Engine
from flowfabric.model.limits import GONE_KEPT_MS
from flowfabric.model.operations.executions import GoneWorkerEntry, WorkerEntry
from flowfabric.model.records.executions import GoneWorker, Worker, WorkerEvent
from tests.contract.probe import START_MS, ManualClock, Probe, claimed, id_of, refused, unchanged

TTL_MS = 1_000


async def register(engine: Engine, instance: str = "w1-i1", worker: str = "w1", **more: Any) -> Registered | Refreshed:
    given = {"lanes": ["lane"], "capabilities": [], "liveness_ttl_ms": TTL_MS, "namespace": "ns"}
    return await engine.register_worker(worker_id=worker, worker_instance_id=instance, **given | more)


async def beat(engine: Engine, instance: str = "w1-i1", namespace: str = "ns") -> Refreshed | NotRegistered:
    return await engine.heartbeat_worker(worker_instance_id=instance, namespace=namespace)


async def rows(probe: Probe, namespace: str = "ns") -> list[Worker]:
    return await probe.select(Worker, namespace=namespace)


async def history(probe: Probe, namespace: str = "ns") -> list[tuple[str, str, int, str | None]]:
    found: list[WorkerEvent] = await probe.select(WorkerEvent, namespace=namespace)
    return [(event.worker_instance_id, event.event_kind, event.event_at_ms, event.reason) for event in found]


# ---------------------------------------------------------------------------------------------------------- registering


async def test_register(engine: Engine, probe: Probe) -> None:
    answer = await register(engine, lanes=["b", "a", "b"], capabilities=["gpu", "arm64", "gpu"], now=5)
    assert answer == Registered()
    assert await rows(probe) == [Worker("ns", "w1-i1", "w1", ("a", "b"), "arm64,gpu", START_MS, TTL_MS, START_MS)]
    assert await history(probe) == [("w1-i1", "registered", START_MS, None)]


async def test_register_again(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await register(engine, lanes=["a"], capabilities=["gpu"])
    now = clock.advance(TTL_MS - 1)
    assert await register(engine, lanes=["b"], capabilities=["cpu"], liveness_ttl_ms=70) == Refreshed(now + 70)
    assert await rows(probe) == [Worker("ns", "w1-i1", "w1", ("b",), "cpu", now, 70, START_MS)]
    assert await history(probe) == [("w1-i1", "registered", START_MS, None), ("w1-i1", "registered", now, None)]


async def test_an_instance_does_not_change_hands_while_it_lives(
    engine: Engine, probe: Probe, clock: ManualClock
) -> None:
    await register(engine)
    clock.advance(TTL_MS - 1)
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT, "instance_id reassigned"):
        await register(engine, worker="w2")
    now = clock.advance(1)
    assert await register(engine, worker="w2") == Registered(), "a row past its time counts as absent"
    assert await rows(probe) == [Worker("ns", "w1-i1", "w2", ("lane",), "", now, TTL_MS, now)]


async def test_namespaces_are_apart(engine: Engine, probe: Probe) -> None:
    assert await register(engine) == Registered()
    assert await register(engine, worker="w2", namespace="other") == Registered()
    assert [row.worker_id for row in await rows(probe) + await rows(probe, "other")] == ["w1", "w2"]
    assert await engine.mark_worker_dead(worker_instance_id="w1-i1", namespace="other") == Marked()
    assert len(await rows(probe)) == 1


async def test_bad_capabilities_and_lanes(engine: Engine, probe: Probe) -> None:
    async with refused(probe, Validation, ValidationKind.INVALID_CAPABILITIES, "worker:comma_in_token"):
        await register(engine, capabilities=["a,b"])
    for bad in ({"lanes": [""]}, {"instance": ""}, {"worker": ""}, {"liveness_ttl_ms": 0}):
        async with refused(probe, Validation, ValidationKind.INVALID_INPUT):
            await register(engine, **bad)


# ----------------------------------------------------------------------------------------------------------- heartbeats


async def test_heartbeat(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await register(engine, capabilities=["gpu"])
    now = clock.advance(TTL_MS - 1)
    assert await beat(engine) == Refreshed(now + TTL_MS)
    assert await rows(probe) == [Worker("ns", "w1-i1", "w1", ("lane",), "gpu", now, TTL_MS, START_MS)]
    assert await history(probe) == [("w1-i1", "registered", START_MS, None), ("w1-i1", "heartbeat", now, None)]
    clock.advance(TTL_MS - 1)
    assert isinstance(await beat(engine), Refreshed)


async def test_heartbeats_in_one_millisecond(engine: Engine, probe: Probe) -> None:
    await register(engine)
    for _ in range(3):
        assert await beat(engine) == Refreshed(START_MS + TTL_MS)
    kinds = sorted(event[1] for event in await history(probe))
    assert kinds == ["heartbeat", "registered"]


async def test_heartbeat_of_the_unknown(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await register(engine)
    async with unchanged(probe):
        assert await beat(engine, "w1-i2") == NotRegistered()
        assert await beat(engine, namespace="other") == NotRegistered()
        clock.advance(TTL_MS)
        assert await beat(engine) == NotRegistered(), "past its time: register again"


# ---------------------------------------------------------------------------------------------------------------- death


async def test_mark_dead(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    """Leases are left to their own time."""
    await register(engine)
    handle = await claimed(engine, instance="w1-i1")
    lease, execution = await probe.attempts(id_of(handle)), await probe.execution(id_of(handle))
    now = clock.advance(5)
    assert await engine.mark_worker_dead(worker_instance_id="w1-i1", namespace="ns", reason="oom killed") == Marked()
    assert await rows(probe) == []
    assert (await history(probe))[-1] == ("w1-i1", "marked_dead", now, "oom killed")
    assert (await probe.attempts(id_of(handle)), await probe.execution(id_of(handle))) == (lease, execution)
    async with unchanged(probe):
        answer = await engine.mark_worker_dead(worker_instance_id="w1-i1", namespace="ns", reason="again")
        assert answer == NotRegistered()


@pytest.mark.parametrize("reason", ["x" * 257, "é" * 129, "a\nb", "a\tb", "\x00", "\x1f", "a\x7f"])
async def test_reasons_that_are_refused(engine: Engine, probe: Probe, reason: str) -> None:
    await register(engine)
    async with refused(probe, Validation, ValidationKind.INVALID_INPUT) as caught:
        await engine.mark_worker_dead(worker_instance_id="w1-i1", namespace="ns", reason=reason)
    assert caught.value.detail.startswith("reason: ")


@pytest.mark.parametrize("reason", ["", "x" * 256, "é" * 128, "plain ~ text"])
async def test_reasons_that_pass(engine: Engine, probe: Probe, reason: str) -> None:
    await register(engine)
    assert await engine.mark_worker_dead(worker_instance_id="w1-i1", namespace="ns", reason=reason) == Marked()
    assert (await history(probe))[0][3] == reason


async def test_the_sweep(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await register(engine, "old")
    clock.advance(1)
    await register(engine, "young")
    await register(engine, "old", namespace="other")
    clock.advance(TTL_MS - 2)
    async with unchanged(probe):
        assert await engine.run_timer("worker_registry_ttl_sweep") == 0
    now = clock.advance(1)
    assert await engine.run_timer("worker_registry_ttl_sweep") == 1
    assert [row.worker_instance_id for row in await rows(probe)] == ["young"]
    assert ("old", "ttl_swept", now, None) in await history(probe)
    clock.advance(1)
    assert await engine.run_timer("worker_registry_ttl_sweep") == 2
    assert await rows(probe) == await rows(probe, "other") == []
    assert (await history(probe, "other"))[-1] == ("old", "ttl_swept", now + 1, None)


# -------------------------------------------------------------------------------------------------------------- listing


async def test_listing(engine: Engine, clock: ManualClock) -> None:
    await register(engine, lanes=["b", "a"], capabilities=["gpu", "arm64"])
    now = clock.advance(5)
    await beat(engine)
    await register(engine, "other", namespace="elsewhere")
    page = await engine.list_workers(namespace="ns")
    assert page.entries == (WorkerEntry("w1", "w1-i1", "ns", ("a", "b"), ("arm64", "gpu"), now, TTL_MS, START_MS),)
    assert page.cursor is None
    assert (await engine.list_workers(namespace="nobody")).entries == ()


async def test_pages(engine: Engine) -> None:
    """By the bytes of the instance id, strictly after the cursor; a cursor only where a page was full."""
    names = ["B", "Z", "_", "a", "aa", "b-1", "b1", "é", "中"]
    for name in reversed(names):
        await register(engine, name)
    found, cursor, sizes = [], None, []
    while True:
        page = await engine.list_workers(namespace="ns", after=cursor, limit=4)
        found += [entry.worker_instance_id for entry in page.entries]
        sizes.append((len(page.entries), page.cursor))
        if page.cursor is None:
            break
        cursor = page.cursor
    assert found == names
    assert sizes == [(4, "a"), (4, "é"), (1, None)]
    last = await engine.list_workers(namespace="ns", after="é", limit=1)
    assert ([entry.worker_instance_id for entry in last.entries], last.cursor) == (["中"], "中")
    assert (await engine.list_workers(namespace="ns", after="中", limit=1)).entries == ()
    assert (await engine.list_workers(namespace="ns", after="a9")).entries[0].worker_instance_id == "aa"


async def test_the_dead_are_not_listed(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await register(engine, "short")
    await register(engine, "long", liveness_ttl_ms=TTL_MS + 1)
    clock.advance(TTL_MS)
    page = await engine.list_workers(namespace="ns", limit=1)
    assert ([entry.worker_instance_id for entry in page.entries], page.cursor) == (["long"], "long")
    assert len(await rows(probe)) == 2


async def test_a_namespace_is_needed(engine: Engine) -> None:
    with pytest.raises(Unavailable):
        await engine.list_workers()


# ------------------------------------------------------------------------------------------------------ gone, and loads


async def test_those_who_have_gone_stay_visible(engine: Engine, clock: ManualClock) -> None:
    await register(engine, "stopped", lanes=["a"], capabilities=["gpu"], slots=4)
    await register(engine, "silent", "w2")
    await register(engine, "foreign", namespace="other")
    clock.advance(5)
    await engine.mark_worker_dead(worker_instance_id="stopped", namespace="ns", reason="deploy")
    await engine.mark_worker_dead(worker_instance_id="foreign", namespace="other")
    swept = clock.advance(TTL_MS)
    await engine.run_timer("worker_registry_ttl_sweep")
    found = await engine.read_worker_load(namespaces=["ns"])
    assert found.gone == (
        GoneWorkerEntry("w2", "silent", "ns", ("lane",), (), START_MS, START_MS, swept, None, None),
        GoneWorkerEntry("w1", "stopped", "ns", ("a",), ("gpu",), START_MS, START_MS, START_MS + 5, "deploy", 4),
    )
    assert len((await engine.read_worker_load()).gone) == 3
    # Whoever comes back is not gone, and may go again.
    await register(engine, "silent", "w2")
    assert [each.worker_instance_id for each in (await engine.read_worker_load(namespaces=["ns"])).gone] == ["stopped"]
    await engine.mark_worker_dead(worker_instance_id="silent", namespace="ns", reason="one")
    await register(engine, "silent", "w2")
    await engine.mark_worker_dead(worker_instance_id="silent", namespace="ns", reason="two")
    assert [each.reason for each in (await engine.read_worker_load(namespaces=["ns"])).gone] == ["two", "deploy"]
    clock.advance(found.kept_ms + 1)
    assert (await engine.read_worker_load()).gone == ()


async def test_the_gone_are_forgotten(engine: Engine, probe: Probe, clock: ManualClock) -> None:
    await register(engine)
    await engine.mark_worker_dead(worker_instance_id="w1-i1", namespace="ns")
    clock.advance(GONE_KEPT_MS)
    await engine.run_timer("retention_trimmer")
    assert len(await probe.select(GoneWorker, namespace="ns")) == 1
    clock.advance(1)
    await engine.run_timer("retention_trimmer")
    assert await probe.select(GoneWorker, namespace="ns") == []


async def test_what_workers_hold(engine: Engine, clock: ManualClock) -> None:
    """Of the namespaces that are asked for only; what has run out, or ended, is not held."""
    await register(engine, slots=8)
    assert (await engine.list_workers(namespace="ns")).entries[0].slots == 8
    handles = [await claimed(engine, "w1-i1", lane_id=f"l{n}", namespace="ns") for n in range(3)]
    await claimed(engine, "w2-i1", lane_id="other", namespace="ns")
    await claimed(engine, "w1-i1", lane_id="foreign", namespace="foreign")
    await engine.complete(handles[0], None)
    assert (await engine.read_worker_load(namespaces=["ns"])).held == {"w1-i1": 2, "w2-i1": 1}
    assert (await engine.read_worker_load()).held == {"w1-i1": 3, "w2-i1": 1}
    assert (await engine.read_worker_load(namespaces=["nobody"])).held == {}
    clock.advance(30_000)
    assert (await engine.read_worker_load()).held == {}
