"""More than two hundred awkward texts through every field that takes free text: each comes back as it was."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from flowfabric import (
    Cancelled,
    Created,
    Duplicate,
    DurableSummary,
    ExecutionId,
    FailureClass,
    Frame,
    Handle,
    Marked,
    RetryScheduled,
    ScannerFilter,
    TerminalFailed,
)
from flowfabric.engine import Engine
from flowfabric.model.events import InstanceTagEvent, LeaseEvent, OperatorEvent
from flowfabric.model.records.executions import WorkerEvent
from flowfabric.model.records.flows import CancelBacklog, Flow
from tests.contract.hostile import HOSTILE, LANES, SHORT, TOKENS
from tests.contract.probe import START_MS, ManualClock, Probe, create, fence_of, id_of, payload_of, policy
from tests.contract.seeding import flow_of, seed

LONGEST = ["x" * 65_536, "🐢" * 16_384, "'\"\\\n" * 16_384]


async def _each(check: Callable[..., Awaitable[None]], *columns: Iterable[Any]) -> None:
    """The same for every row, all at once."""
    await asyncio.gather(*(check(*row) for row in zip(*columns, strict=True)))


async def _created(engine: Engine) -> list[ExecutionId]:
    """One execution for every text."""
    answers = await engine.create_executions([{"lane_id": "hostile"} for _ in HOSTILE])
    assert all(isinstance(answer, Created) for answer in answers)
    return [answer.execution_id for answer in answers]


async def _claimed(engine: Engine) -> list[Handle]:
    await _created(engine)
    handles = await engine.claim_many("hostile", (), policy(), len(HOSTILE))
    assert len(handles) == len(HOSTILE)
    return handles


async def test_creations(engine: Engine, probe: Probe) -> None:
    answers = await engine.create_executions(
        {
            "namespace": text,
            "lane_id": "hostile",
            "execution_kind": text,
            "payload_encoding": text,
            "creator_identity": text,
            "idempotency_key": text,
            "input_payload": text.encode(),
            "tags": {text: text, "cairn.instance_id": text},
            "policy": {"unknown": text, f"key {text}": 1, "retry_policy": {"retryable_categories": [text]}},
        }
        for text in HOSTILE
    )

    async def check(text: str, answer: Any) -> None:
        assert isinstance(answer, Created), (text, answer)
        snapshot = await engine.describe_execution(answer.execution_id)
        context = await engine.read_execution_context(answer.execution_id)
        assert snapshot is not None
        tags = {text: text, "cairn.instance_id": text}
        assert (snapshot.namespace, snapshot.tags) == (text, tags)
        assert (context.execution_kind, context.input_payload, context.tags) == (text, text.encode(), tags)
        assert await engine.get_execution_namespace(answer.execution_id) == text
        row = await probe.execution(answer.execution_id)
        raw = json.loads(row.raw_fields)
        assert (raw["payload_encoding"], raw["creator_identity"], raw["idempotency_key"]) == (text, text, text)
        kept = json.loads(row.policy or "")
        assert (kept["unknown"], kept[f"key {text}"], kept["retry_policy"]["retryable_categories"]) == (text, 1, [text])
        assert row.instance_tag == text

    await _each(check, HOSTILE, answers)
    events: list[InstanceTagEvent] = await probe.events(InstanceTagEvent)
    assert [(event.tag, event.namespace) for event in events] == [(text, text) for text in HOSTILE]
    again = await engine.create_executions({"namespace": text, "idempotency_key": text} for text in HOSTILE)
    assert again == [Duplicate(answer.execution_id) for answer in answers]


async def test_worker_names(engine: Engine, probe: Probe) -> None:
    await _created(engine)

    async def check(text: str) -> None:
        handle = await engine.claim("hostile", (), policy(text, worker=text))
        assert handle is not None
        assert payload_of(handle).worker_instance_id == text
        snapshot = await engine.describe_execution(id_of(handle))
        assert snapshot is not None
        assert snapshot.current_lease is not None
        assert snapshot.current_lease.worker_instance_id == text
        (attempt,) = await probe.attempts(id_of(handle))
        assert (attempt.worker_id, attempt.worker_instance_id) == (text, text)
        await engine.complete(Handle(handle.backend, handle.kind, handle.opaque), text.encode())
        assert await engine.get_execution_result(id_of(handle)) == text.encode()

    await _each(check, HOSTILE)
    events: list[LeaseEvent] = await probe.events(LeaseEvent)
    assert sorted(str(event.worker_instance_id) for event in events) == sorted(HOSTILE * 2)


async def test_reasons_of_cancellations(engine: Engine, probe: Probe) -> None:
    texts = HOSTILE + LONGEST
    identities = [*await _created(engine), *[await create(engine) for _ in LONGEST]]

    async def check(text: str, identity: ExecutionId) -> None:
        source = text[:250]
        assert isinstance(await engine.cancel_execution(execution_id=identity, reason=text, source=source), Cancelled)
        row = await probe.execution(identity)
        assert (row.cancellation_reason, row.cancelled_by) == (text, source)
        found = await engine.read_exec_core_fields(identity.partition, identity, ["cancel_reason"])
        assert found == {"cancel_reason": text}

    await _each(check, texts, identities)


async def test_messages_of_failures_and_progress(engine: Engine, probe: Probe) -> None:
    async def check(text: str, handle: Handle) -> None:
        await engine.progress(handle, 5, text)
        assert (await probe.raw_fields(id_of(handle)))["progress_message"] == text
        assert await engine.fail(handle, text, FailureClass.PERMANENT) == TerminalFailed()
        row = await probe.execution(id_of(handle))
        assert (row.failure_reason, row.last_failure_message) == (text, text)

    await _each(check, HOSTILE, await _claimed(engine))


async def test_categories_of_failures(engine: Engine) -> None:
    async def check(text: str, handle: Handle) -> None:
        given = json.dumps({"retryable_categories": [text], "backoff": {"type": "fixed", "delay_ms": 0}})
        named: dict[str, Any] = {"execution_id": id_of(handle), "fence": fence_of(handle), "failure_reason": text}
        answer = await engine.fail_execution(**named, failure_category=text, retry_policy_json=given)
        assert answer == RetryScheduled(START_MS, 1), text

    await _each(check, HOSTILE, await _claimed(engine))


async def test_reasons_of_operators(engine: Engine, probe: Probe) -> None:
    async def check(text: str, handle: Handle) -> None:
        await engine.revoke_lease(execution_id=id_of(handle), reason=text)
        await engine.block_route(execution_id=id_of(handle), detail=text)
        row = await probe.execution(id_of(handle))
        assert (row.lease_revoke_reason, row.blocking_detail) == (text, text)
        snapshot = await engine.describe_execution(id_of(handle))
        assert snapshot is not None
        assert snapshot.blocking_detail == text

    await _each(check, HOSTILE, await _claimed(engine))


async def test_frames(engine: Engine) -> None:
    await create(engine, lane_id="frames", policy={"stream_policy": {"retention_maxlen": 10_000}})
    handle = await engine.claim("frames", (), policy())
    assert handle is not None
    for text in HOSTILE:
        await engine.append_frame(handle, Frame(text.encode(), frame_type=text, correlation_id=text))
    frames = (await engine.read_stream(id_of(handle), count_limit=10_000)).frames
    assert [frame.fields for frame in frames] == [
        {"frame_type": text, "payload": text, "correlation_id": text, "encoding": "utf8", "source": "worker"}
        for text in HOSTILE
    ]


async def test_summaries(engine: Engine) -> None:
    await create(engine, lane_id="frames")
    handle = await engine.claim("frames", (), policy())
    assert handle is not None
    for text in HOSTILE:
        patch = json.dumps({text: {"value": text, "list": [text]}}, ensure_ascii=len(text) % 2 == 0)
        await engine.append_frame(handle, Frame(patch.encode(), mode=DurableSummary()))
    found = await engine.read_summary(id_of(handle))
    assert found is not None
    null = "__ff_null__"
    assert json.loads(found.document_json) == {
        text: {"value": None if text == null else text, "list": [None if text == null else text]} for text in HOSTILE
    }


async def test_tags(engine: Engine) -> None:
    identity, flow = await create(engine), flow_of(engine)
    await seed(engine, flow)
    many = {f"a.n{number}": text for number, text in enumerate(HOSTILE)}
    await engine.set_execution_tags(identity, many)
    await engine.set_flow_tags(flow.flow_id, many)
    assert (await engine.read_execution_context(identity)).tags == many

    async def check(key: str, text: str) -> None:
        assert await engine.get_execution_tag(identity, key) == text
        assert await engine.get_flow_tag(flow.flow_id, key) == text

    await _each(check, list(many), HOSTILE)
    for text in LONGEST:
        await engine.set_execution_tag(identity, "a.b", text)
        await engine.set_flow_tag(flow.flow_id, "a.b", text)
        await check("a.b", text)


async def test_cancelled_flows(engine: Engine, probe: Probe) -> None:
    flows = [flow_of(engine, namespace=text) for text in HOSTILE]
    await seed(engine, *flows)

    async def check(text: str, flow: Flow) -> None:
        await engine.cancel_flow_header(flow_id=flow.flow_id, reason=text, cancellation_policy=text)
        again: Any = await engine.cancel_flow_header(flow_id=flow.flow_id, cancellation_policy="x")
        assert (again.stored_cancellation_policy, again.stored_cancel_reason) == (text, text)
        where = {"partition": flow.partition, "flow_id": flow.flow_id}
        (backlog,) = await probe.select(CancelBacklog, **where)
        assert (backlog.reason, backlog.cancellation_policy) == (text, text)
        (row,) = await probe.select(Flow, **where)
        assert json.loads(row.raw_fields)["namespace"] == text

    await _each(check, HOSTILE, flows)
    details = [json.loads(event.details) for event in await probe.events(OperatorEvent)]
    found = sorted((each["reason"], each["cancellation_policy"]) for each in details)
    assert found == sorted((text, text) for text in HOSTILE)


async def test_grants(engine: Engine, probe: Probe) -> None:
    async def check(text: str, identity: ExecutionId) -> None:
        await engine.issue_claim_grant(
            execution_id=identity,
            lane_id="hostile",
            worker_id=text,
            worker_instance_id=text,
            capability_hash=text,
            route_snapshot_json=text,
            admission_summary=text,
        )
        (grant,) = await probe.grants(identity)
        assert (grant.worker_id, grant.worker_instance_id) == (text, text)
        assert (grant.capability_hash, grant.route_snapshot_json, grant.admission_summary) == (text, text, text)

    await _each(check, HOSTILE, await _created(engine))


async def test_lanes(engine: Engine) -> None:
    assert len(LANES) > 80
    for lane in LANES:
        identity = await create(engine, lane_id=lane)
        assert await engine.scan_eligible_executions(lane) == (identity,)
        handle = await engine.claim(lane, (), policy())
        assert handle is not None
        assert (id_of(handle), payload_of(handle).lane_id) == (identity, lane)
        info = await engine.read_execution_info(identity)
        assert info is not None
        assert info.lane_id == lane
    assert (await engine.list_lanes(limit=1_000)).lanes == tuple(sorted(LANES))


async def test_capabilities(engine: Engine) -> None:
    assert len(TOKENS) > 100
    for token in TOKENS:
        needs = {"routing_requirements": {"required_capabilities": [token, "gpu"]}}
        identity = await create(engine, lane_id="able", policy=needs)
        others = [other for other in TOKENS if other != token and len(other) < 30]
        assert await engine.claim("able", ["gpu", *others], policy()) is None
        handle = await engine.claim("able", ["gpu", token], policy())
        assert handle is not None
        assert id_of(handle) == identity
        found = await engine.read_exec_core_fields(identity.partition, identity, ["required_capabilities"])
        assert found == {"required_capabilities": ",".join(sorted([token, "gpu"]))}


async def test_the_registry(engine: Engine, probe: Probe) -> None:
    async def check(text: str) -> None:
        await engine.register_worker(
            worker_id=text, worker_instance_id=text, lanes=LANES, capabilities=TOKENS[:30], namespace=text
        )
        (entry,) = (await engine.list_workers(namespace=text)).entries
        assert (entry.worker_id, entry.worker_instance_id, entry.namespace) == (text, text, text)
        assert (entry.lanes, entry.capabilities) == (tuple(sorted(LANES)), tuple(sorted(TOKENS[:30])))
        await engine.heartbeat_worker(worker_instance_id=text, namespace=text)

    async def bury(number: int, text: str) -> None:
        await engine.register_worker(worker_id="w", worker_instance_id=f"i{number}", lanes=[], namespace="dead")
        answer = await engine.mark_worker_dead(worker_instance_id=f"i{number}", namespace="dead", reason=text)
        assert answer == Marked()
        where = {"namespace": "dead", "worker_instance_id": f"i{number}", "event_kind": "marked_dead"}
        (event,) = await probe.select(WorkerEvent, **where)
        assert event.reason == text

    await _each(check, HOSTILE)
    await _each(bury, range(len(SHORT)), SHORT)


async def test_names_that_are_asked_for(engine: Engine) -> None:
    """As cursors and filters they find nothing, or what stands behind them; they never break the question."""
    identity = await create(engine, lane_id="only")

    async def check(text: str) -> None:
        assert await engine.read_exec_core_fields(identity.partition, identity, [text]) == {text: None}
        assert (await engine.list_lanes(text)).lanes == (("only",) if text < "only" else ())
        assert (await engine.list_workers(namespace=text, after=text)).entries == ()
        assert (await engine.list_expired_leases(namespace=text)).entries == ()

    await _each(check, HOSTILE)


@pytest.mark.parametrize("what", ["namespace", "tag"])
async def test_filters(engine: Engine, clock: ManualClock, what: str) -> None:
    answers = await engine.create_executions(
        {"namespace": text, "tags": {text: text, "other": text}, "execution_deadline_at": START_MS} for text in HOSTILE
    )
    assert await engine.run_timer("execution_deadline", 10_000) == len(HOSTILE)
    clock.advance(1_000)

    async def check(text: str, answer: Any) -> None:
        wanted = ScannerFilter(text) if what == "namespace" else ScannerFilter(None, (text, text))
        assert await engine.trim_retention(retention_ms=0, filter=wanted) == 1, text
        assert await engine.read_execution_state(answer.execution_id) is None

    await _each(check, HOSTILE, answers)
