"""Requests left in the callers' own transactions: each committed one becomes one execution, by the ordinary rule."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from flowfabric import (
    AlreadySatisfied,
    EnqueueDraft,
    ExecutionId,
    NotFound,
    RequestDropped,
    RequestRetried,
    RequestSnapshot,
)
from flowfabric.engine import Engine
from flowfabric.model.limits import REFUSED_KEPT_MS
from flowfabric.model.partitions import lane_partition
from flowfabric.model.records.executions import Execution
from flowfabric.model.records.starts import EnqueueRequest
from tests.contract import seeding
from tests.contract.probe import (
    ManualClock,
    Probe,
    create,
    policy,
    refused,
    shared_stores_only,
    sql_stores_only,
    unchanged,
)

TIMER = "enqueue_requests"
SOON = policy(max_wait=20_000)


async def leave(engine: Engine, draft: EnqueueDraft) -> None:
    """Commit a request as somebody else would."""
    await seeding.seed(engine, EnqueueRequest(draft.request_id, 5, draft.execution_id, draft.command))


async def leave_json(engine: Engine, command: Any, request_id: str | None = None) -> str:
    """Commit a request that names no execution, as SQL would."""
    request_id = request_id or str(uuid4())
    text = command if isinstance(command, str) else json.dumps(command)
    await seeding.seed(engine, EnqueueRequest(request_id, 5, None, text))
    return request_id


async def insert(engine: Engine, draft: EnqueueDraft) -> None:
    """Write a request with a connection of one's own."""
    if engine.backend_label == "postgres":
        async with engine.store.raw() as connection:
            await connection.execute(
                "INSERT INTO ff_enqueue_request (request_id, execution_id, command) VALUES ($1, $2, $3)",
                draft.request_id, str(draft.execution_id), draft.command,
            )  # fmt: skip
    else:
        engine.store.raw().execute(
            "INSERT INTO ff_enqueue_request (request_id, execution_id, command) VALUES (?, ?, ?)",
            (UUID(draft.request_id).bytes, str(draft.execution_id), draft.command),
        )


async def test_a_request_becomes_an_execution(engine: Engine, probe: Probe) -> None:
    draft = engine.draft_request({
        "lane_id": "lane", "namespace": "n", "execution_kind": "op", "input_payload": b"\x00\xff", "priority": 7,
        "payload_encoding": "raw", "tags": {"a": "b"}, "policy": {"priority": 7}, "idempotency_key": "k",
        "creator_identity": "me",
    })  # fmt: skip
    assert draft.execution_id.partition == lane_partition("lane", engine.partitions)
    async with unchanged(probe):
        assert await engine.find_request(draft.execution_id) is None
    await leave(engine, draft)
    assert await engine.find_request(draft.execution_id) == RequestSnapshot(
        draft.request_id, draft.execution_id, 5, (await engine.list_requests()).requests[0].command, None, None
    )
    assert await engine.run_timer(TIMER) == 1
    assert await engine.run_timer(TIMER) == 0
    row = await probe.execution(draft.execution_id)
    assert (row.payload, row.priority, row.lane_id, row.namespace) == (b"\x00\xff", 7, "lane", "n")
    document = await probe.raw_fields(draft.execution_id)
    assert document["execution_kind"] == "op"
    assert document["tags"] == {"a": "b"}
    assert (document["payload_encoding"], document["creator_identity"]) == ("raw", "me")
    assert (await engine.list_requests()).requests == ()
    assert await engine.find_request(draft.execution_id) is None
    assert await engine.find_execution("k", "n") == draft.execution_id
    assert await engine.find_execution("k") is None


@pytest.mark.parametrize("payload", [None, b""])
async def test_payloads_that_are_hardly_there(engine: Engine, probe: Probe, payload: bytes | None) -> None:
    draft = engine.draft_request({"input_payload": payload})
    await leave(engine, draft)
    await engine.run_timer(TIMER)
    assert (await probe.execution(draft.execution_id)).payload == payload


async def test_a_request_by_sql(engine: Engine, probe: Probe) -> None:
    request = await leave_json(engine, {"execution_kind": "op", "lane_id": "lane", "input": {"to": ["a", 1]}})
    eid = ExecutionId.of(lane_partition("lane", engine.partitions), request)
    found = await engine.find_request(eid)
    assert found is not None
    assert (found.request_id, found.execution_id) == (request, None)
    assert await engine.run_timer(TIMER) == 1
    row = await probe.execution(eid)
    assert json.loads(row.payload or b"") == {"to": ["a", 1]}
    assert (await probe.raw_fields(eid))["payload_encoding"] == "json"


async def test_the_id_was_taken(engine: Engine, probe: Probe) -> None:
    first = await create(engine, idempotency_key="k")
    draft = engine.draft_request({"idempotency_key": "k"})
    await leave(engine, draft)
    assert await engine.run_timer(TIMER) == 1
    assert (await engine.list_requests()).requests == ()
    assert await engine.find_execution("k") == first
    assert await engine.read_execution_state(draft.execution_id) is None


@pytest.mark.parametrize(
    ("command", "error"),
    [("5", "command: not a JSON object"), ("[]", "command: not a JSON object"), ({"nonsense": 1}, "unknown argument"),
     ({"lane_id": ""}, "lane_id"), ({"lane_id": 5}, "lane_id"), ({"tags": {"a": 5}}, "tag"), ({"policy": 5}, "policy"),
     ({"input": 1, "input_base64": ""}, "not both"), ({"input_base64": "*"}, "not base64"),
     ({"input_base64": 5}, "not base64"), ({"input": "x" * 1_048_577}, "input_payload")],
)  # fmt: skip
async def test_what_is_refused_is_kept(
    engine: Engine, probe: Probe, caplog: pytest.LogCaptureFixture, command: Any, error: str
) -> None:
    good = await leave_json(engine, {"lane_id": "lane"})
    bad = await leave_json(engine, command)
    with caplog.at_level(logging.ERROR, "flowfabric.timers"):
        assert await engine.run_timer(TIMER) == 2
    [kept] = (await engine.list_requests(refused=True)).requests
    assert kept.request_id == bad
    assert error in (kept.error or "")
    assert kept.refused_at_ms == await engine.server_time_ms()
    assert bad in caplog.text
    async with unchanged(probe):
        assert await engine.run_timer(TIMER) == 0, "it is not tried for ever"
    assert await engine.read_execution_state(ExecutionId.of(lane_partition("lane", engine.partitions), good))


@sql_stores_only
async def test_what_was_refused_goes_after_a_month(engine: Engine, clock: ManualClock) -> None:
    await leave_json(engine, {"nonsense": 1})
    await engine.run_timer(TIMER)
    clock.advance(REFUSED_KEPT_MS)
    await engine.run_timer("retention_trimmer")
    assert len((await engine.list_requests(refused=True)).requests) == 1
    clock.advance(1)
    await engine.run_timer("retention_trimmer")
    assert (await engine.list_requests(refused=True)).requests == ()


async def test_a_closed_lane(engine: Engine, probe: Probe) -> None:
    await engine.set_lane_state("lane", "disabled")
    draft = engine.draft_request({"lane_id": "lane"})
    await leave(engine, draft)
    await engine.run_timer(TIMER)
    [kept] = (await engine.list_requests()).requests
    assert kept.error is not None
    assert "lane" in kept.error
    await engine.set_lane_state("lane", "active")
    assert await engine.run_timer(TIMER) == 0
    assert await engine.retry_request(kept.request_id) == RequestRetried(kept.request_id)
    assert await engine.retry_request(kept.request_id) == AlreadySatisfied("request_is_pending")
    assert await engine.run_timer(TIMER) == 1
    assert await engine.read_execution_state(draft.execution_id) == "waiting"


async def test_dropping(engine: Engine, probe: Probe) -> None:
    request = await leave_json(engine, {})
    assert await engine.drop_request(request) == RequestDropped(request)
    assert await engine.drop_request(request) == AlreadySatisfied("request_is_gone")
    assert await engine.run_timer(TIMER) == 0
    async with refused(probe, NotFound, "enqueue_request"):
        await engine.retry_request(request)


async def test_pages(engine: Engine) -> None:
    ids = sorted([await leave_json(engine, {}) for _ in range(5)])
    page = await engine.list_requests(limit=3)
    assert ([each.request_id for each in page.requests], page.next_cursor) == (ids[:3], ids[2])
    page = await engine.list_requests(cursor=page.next_cursor, limit=3)
    assert ([each.request_id for each in page.requests], page.next_cursor) == (ids[3:], None)
    assert (await engine.list_requests(limit=0)).requests == ()
    assert (await engine.list_requests(refused=True)).requests == ()


@shared_stores_only
async def test_many_processes_make_one_execution_of_each(
    engine: Engine, probe: Probe, open_engine: Callable[..., Any]
) -> None:
    engines = [engine, *[await open_engine() for _ in range(3)]]
    drafts = [engine.draft_request({"lane_id": "lane"}) for _ in range(100)]
    for draft in drafts:
        await leave(engine, draft)
    await asyncio.gather(*(each.run_timer(TIMER, 30) for each in engines for _ in range(5)))
    while await engine.run_timer(TIMER):
        pass
    found = await probe.select(Execution, lane_id="lane")
    assert sorted(each.execution_id for each in found) == sorted(draft.execution_id for draft in drafts)
    assert (await engine.list_requests()).requests == ()


@sql_stores_only
async def test_a_commit_is_picked_up_at_once(open_engine: Callable[..., Any]) -> None:
    """By an engine whose own interval is far away."""
    engine = await open_engine(clock=None)
    engine.start_timers({TIMER: 600_000})
    for _ in range(3):
        draft = engine.draft_request({"lane_id": "lane"})
        await insert(engine, draft)
        handle = await engine.claim("lane", (), SOON)
        assert handle is not None
        assert handle.execution_id == draft.execution_id


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
async def test_a_trigger_leaves_requests(open_engine: Callable[..., Any]) -> None:
    engine = await open_engine(clock=None)
    engine.start_timers({TIMER: 600_000})
    async with engine.store.raw() as connection:
        await connection.execute("CREATE TABLE orders (id int PRIMARY KEY, run uuid)")
        await connection.execute("""
            CREATE FUNCTION send_order() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                NEW.run := ff_enqueue(jsonb_build_object(
                    'execution_kind', 'send', 'lane_id', 'orders', 'input', jsonb_build_object('order', NEW.id)));
                RETURN NEW;
            END $$;
            CREATE TRIGGER orders_send BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION send_order();
        """)
        await connection.execute("BEGIN; INSERT INTO orders VALUES (1); ROLLBACK")
        await connection.execute("INSERT INTO orders VALUES (2)")
        run = await connection.fetchval("SELECT run FROM orders WHERE id = 2")
    handle = await engine.claim("orders", (), SOON)
    assert handle is not None
    assert handle.execution_id == ExecutionId.of(lane_partition("orders", engine.partitions), run)
    context = await engine.read_execution_context(handle.execution_id)
    assert json.loads(context.input_payload or b"") == {"order": 2}
    assert await engine.claim("orders", (), policy()) is None, "what was rolled back never was"
