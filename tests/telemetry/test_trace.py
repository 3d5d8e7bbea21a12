"""The trace of whoever starts a run reaches its handler, and whatever that starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry import trace as telemetry

from flowfabric import App, Ctx, TraceContext, current_trace, trace_context
from flowfabric.engine import Engine
from flowfabric.model.trace import PARENT_TAG, STATE_TAG
from tests.server.making import created, creation

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


def known(text: str = PARENT, state: str = "vendor=1") -> TraceContext:
    found = TraceContext.read(text, state)
    assert found is not None
    return found


def test_reading() -> None:
    trace = known()
    assert (trace.trace_id, trace.span_id, trace.sampled, trace.tracestate) == (
        TRACE,
        "b7ad6b7169203331",
        True,
        "vendor=1",
    )
    assert not known(PARENT[:-2] + "00").sampled
    # A later version may say more; what is known of it is passed on.
    assert known("cc" + PARENT[2:] + "-more").traceparent == PARENT


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "00",
        PARENT.upper(),
        PARENT + "-more",
        "ff" + PARENT[2:],
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-{TRACE}-{'0' * 16}-01",
        PARENT.replace("-", "_"),
        PARENT[:-1],
    ],
)
def test_what_is_no_trace(text: str | None) -> None:
    assert TraceContext.read(text) is None


@pytest.mark.parametrize("state", ["x" * 513, "no equals", "a=\x01", ",".join(f"k{n}=1" for n in range(33)), "ä=1"])
def test_a_state_that_cannot_be_is_left_out(state: str) -> None:
    assert known(state=state).tracestate == ""


async def test_what_is_created_meanwhile_carries_it() -> None:
    async with await Engine.open("memory://") as engine:
        with trace_context(known()):
            (one,) = await engine.create_executions([{"tags": {"app.x": "1"}}])
            other = await engine.create_execution(tags={PARENT_TAG: "00-" + "1" * 32 + "-" + "2" * 16 + "-00"})
        plain = await engine.create_execution()
        contexts = await engine.read_execution_contexts([one.execution_id, other.execution_id, plain.execution_id])
    assert contexts[one.execution_id].tags == {"app.x": "1", PARENT_TAG: PARENT, STATE_TAG: "vendor=1"}
    assert contexts[other.execution_id].tags[PARENT_TAG].startswith("00-1111")
    assert contexts[plain.execution_id].tags == {}


@pytest.mark.parametrize("thread", [False, True], ids=["async", "thread"])
async def test_from_start_to_handler_to_children(tmp_path: Path, thread: bool) -> None:
    app = App(f"sqlite:///{tmp_path}/ff.db")
    seen: dict[str, Any] = {}

    @app.task
    async def child(ctx: Ctx) -> None:
        seen.setdefault("children", []).append(ctx.trace)

    if thread:

        @app.task
        def parent(ctx: Ctx) -> None:
            seen["parent"], seen["current"] = ctx.trace, current_trace()
    else:

        @app.task
        async def parent(ctx: Ctx) -> None:
            seen["parent"], seen["current"] = ctx.trace, current_trace()
            await (await child.start()).result()

    @app.workflow
    async def story() -> None:
        await child()

    async with app, app.worker():
        with trace_context(known()):
            for run in (await parent.start(), await story.start()):
                await run.result()
        assert seen["parent"] == known()
        assert seen["current"].trace_id == TRACE
        assert [each.trace_id for each in seen["children"]] == [TRACE] * (1 if thread else 2)
        seen.clear()
        await (await child.start()).result()
        assert seen["children"] == [None]


async def test_a_span_of_opentelemetry_is_passed_on(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/ff.db")
    seen: list[Any] = []

    @app.task
    async def look(ctx: Ctx) -> None:
        seen.extend([ctx.trace, telemetry.get_current_span().get_span_context()])

    remote = telemetry.SpanContext(int(TRACE, 16), 0xB7AD6B7169203331, False, telemetry.TraceFlags(1))
    async with app, app.worker():
        with telemetry.use_span(telemetry.NonRecordingSpan(remote)):
            run = await look.start()
        await run.result()
    assert seen[0].traceparent == PARENT
    assert seen[1].trace_id == int(TRACE, 16)


async def test_over_http(client: httpx.AsyncClient, engine: Engine) -> None:
    headers = {"traceparent": PARENT, "tracestate": "vendor=1"}
    response = await client.post("/v1/executions", json=creation(), headers=headers)
    identity = response.json()["Created"]["execution_id"]
    many = await client.post("/v1/executions/bulk", json={"executions": [creation()]}, headers=headers)
    (second,) = [each["Created"]["execution_id"] for each in many.json()["results"]]
    flow = await client.post(
        "/v1/flows/submit", json={"namespace": "acme", "nodes": {"a": {"execution_kind": "one"}}}, headers=headers
    )
    member = flow.json()["execution_ids"]["a"]
    plain = await created(client)
    contexts = await engine.read_execution_contexts([identity, second, member, plain])
    assert {each: context.tags.get(PARENT_TAG) for each, context in contexts.items()} == {
        identity: PARENT,
        second: PARENT,
        member: PARENT,
        plain: None,
    }
    assert contexts[next(each for each in contexts if each == identity)].tags[STATE_TAG] == "vendor=1"


@pytest.mark.parametrize("header", ["", "nonsense", "00-" + "0" * 32 + "-" + "1" * 16 + "-01"])
async def test_a_header_that_is_no_trace_is_ignored(client: httpx.AsyncClient, engine: Engine, header: str) -> None:
    response = await client.post("/v1/executions", json=creation(), headers={"traceparent": header})
    assert response.status_code == 201
    identity = response.json()["Created"]["execution_id"]
    assert (await engine.read_execution_contexts([identity]))[identity].tags == {}
