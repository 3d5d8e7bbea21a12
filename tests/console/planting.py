"""A store that holds nothing nice: two hundred hostile texts in every field that people fill and the console shows."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec

from flowfabric import ClaimPolicy, Cron, FlowGraph, Frame, Fresh, SuspendArgs
from flowfabric.conditions import ByName, Count, CountKind, Single
from flowfabric.engine import Engine
from flowfabric.model.frames import DurableSummary
from flowfabric.model.steps import NewStep
from flowfabric.model.suspension import SuspensionReason
from flowfabric.sdk.asks import Question, make_link, waitpoint_of
from tests.console.hostile import payloads

ALL = payloads()
JSON = msgspec.json.encode({each: each for each in ALL})


def lane_of(text: str) -> str:
    """The text as far as a lane's name may go: 64 printable characters."""
    return text.replace("\t", "/")[:64]


def capability_of(text: str) -> str:
    """The text without what separates capabilities; browsers take a slash for a blank in a tag."""
    return "/".join(text.replace(",", "/").split())


async def _signalled(engine: Engine, identity: Any, text: str) -> None:
    [point] = (await engine.list_pending_waitpoints(execution_id=identity)).entries
    token = await engine.read_waitpoint_token(identity.partition, point.waitpoint_id)
    await engine.deliver_signal(
        execution_id=identity, waitpoint_id=point.waitpoint_id, waitpoint_token=str.__str__(token), signal_name=text,
        source_type=text, source_identity=text, payload=msgspec.json.encode({text: text}),
    )  # fmt: skip


async def single(engine: Engine, text: str, budget: str) -> str:
    """An execution that has this one text in every field that holds one: failed, to be tried again, then cancelled."""
    lane, capability = lane_of(text), capability_of(text)
    created = await engine.create_execution(
        namespace=text, lane_id=lane, execution_kind=text, creator_identity=text,
        input_payload=msgspec.json.encode(text), payload_encoding="json", tags={text: text},
        policy={
            "routing_requirements": {"required_capabilities": [capability]},
            "retry_policy": {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 3_600_000}},
        },
    )  # fmt: skip
    identity = created.execution_id

    async def take() -> Any:
        handle = await engine.claim(lane, [capability], ClaimPolicy(text, text, 3_600_000))
        assert handle is not None
        assert handle.execution_id == identity
        return handle

    await engine.advance(await take(), steps=[NewStep(text, msgspec.json.encode(text))])
    await engine.record_spend(budget_id=budget, execution_id=identity, deltas={text: 1})
    await engine.revoke_lease(execution_id=identity, reason=text)
    wait = SuspendArgs(waitpoints=[Fresh(None, text)], resume_condition=Single(text, ByName(text)), reason_code=text)
    await engine.suspend(await take(), wait)
    await _signalled(engine, identity, text)
    await engine.fail(await take(), text)
    await engine.cancel_execution(execution_id=identity, reason=text)
    return str(identity)


async def monster(engine: Engine) -> str:
    """One execution with all of them in every field that holds many."""
    policy = ClaimPolicy("monster", "monster-1", 3_600_000)
    created = await engine.create_execution(
        namespace="default", lane_id="monster", execution_kind="monster", input_payload=JSON, payload_encoding="json",
        tags={each: each for each in ALL},
    )  # fmt: skip
    handle = await engine.claim("monster", policy=policy)
    assert handle is not None
    await engine.advance(handle, steps=[NewStep(each, msgspec.json.encode(each)) for each in ALL])
    for each in ALL:
        await engine.append_frame(handle, Frame(each.encode() + b"\n"))
    await engine.append_frame(handle, Frame(JSON, mode=DurableSummary()))
    await engine.complete(handle, JSON)
    return str(created.execution_id)


async def listed(engine: Engine, text: str) -> dict[str, str]:
    """The text wherever lists show it: schedules, workers, lanes, budgets, the audit log, credentials, flows."""
    lane, capability = lane_of(text), capability_of(text)
    await engine.put_schedule(
        text, spec=Cron("0 0 1 1 *", "UTC"), execution_kind=text, namespace=text, lane_id=lane, source=text
    )
    await engine.register_worker(
        worker_id=text, worker_instance_id=text, lanes=[lane], capabilities=[capability],
        liveness_ttl_ms=86_400_000, namespace=text,
    )  # fmt: skip
    budget = str(uuid.uuid4())
    await engine.create_budget(
        budget_id=budget, scope_type=text, scope_id=text, dimensions=[text], hard_limits=[10], soft_limits=[0]
    )
    await engine.record_act(who=text, act=text, subject={text: text}, status=200)
    made = await engine.create_credential(name=text, scopes=["read"], namespaces=[text])
    node = {"lane_id": "flow", "execution_kind": text, "namespace": text}
    flow = await engine.submit_flow(FlowGraph(nodes={"only": node}, edges=[], flow_kind=text, namespace=text))
    await engine.cancel_flow(flow.flow_id, "cancel_all", reason=text)
    return {"budget": budget, "token": made.token, "flow": str(flow.flow_id)}


async def asked(engine: Engine, text: str, form: bool = False) -> tuple[str, str]:
    """A question whose every part is this text, one of two answered; with a form of all texts if asked for."""
    texts = ALL if form else [text]
    schema = {
        "type": "object", "title": text, "required": ["ok"],
        "properties": {
            "ok": {"type": "boolean", "title": text, "description": text},
            **{each: {"type": "string", "title": each, "description": each, "default": each} for each in texts},
            "choice": {"enum": texts, "title": text},
        },
    }  # fmt: skip
    names = (text, f"{text} too")
    payload = msgspec.json.encode(Question(text, {each: each for each in texts}, names, 2, None, schema, "ok"))
    created = await engine.create_execution(
        namespace=text, lane_id="ask", execution_kind="$ask", input_payload=payload, tags={"ff.run": text}
    )
    handle = await engine.claim("ask", policy=ClaimPolicy("w", "w-1"))
    assert handle is not None
    identity = str(created.execution_id)
    points = {name: waitpoint_of(identity, payload, name) for name in names}
    await engine.suspend(handle, SuspendArgs(
        waitpoints=[Fresh(point, name) for name, point in points.items()],
        resume_condition=Count(2, CountKind.DISTINCT_WAITPOINTS, tuple(points)),
        reason_code=SuspensionReason.WAITING_FOR_APPROVAL,
    ))  # fmt: skip
    first, second = [
        str.__str__(await engine.read_waitpoint_token(created.execution_id.partition, point) or "")
        for point in points.values()
    ]
    await engine.deliver_signal(
        execution_id=identity, waitpoint_id=points[text], waitpoint_token=first, signal_name="approve",
        source_type="ask", source_identity=f"{text} himself", payload=msgspec.json.encode({"ok": True, text: text}),
    )  # fmt: skip
    return identity, make_link(identity, points[names[1]], second)


async def plant(store: str) -> dict[str, Any]:
    """All of it; ids by what they are."""
    async with await Engine.open(store, single_node=True) as engine:
        await engine.seed_waitpoint_hmac_secret(kid="k1", secret_hex="ab" * 32)
        found: dict[str, Any] = {"singles": [], "flows": [], "asks": [], "links": [], "tokens": []}
        for text in ALL:
            kept = await listed(engine, text)
            found["flows"].append(kept["flow"])
            found["tokens"].append(kept["token"])
            found["singles"].append(await single(engine, text, kept["budget"]))
            identity, link = await asked(engine, text)
            found["asks"].append(identity)
            found["links"].append(link)
        found["form"], found["form_link"] = await asked(engine, "a form", form=True)
        found["monster"] = await monster(engine)
        nodes = {each: {"lane_id": "graph", "execution_kind": each} for each in ALL}
        edges = [(ALL[0], each) for each in ALL[1:]]
        graph = await engine.submit_flow(FlowGraph(nodes=nodes, edges=edges, flow_kind="graph", namespace="default"))
        found["graph"] = str(graph.flow_id)
        for text in ALL:
            await engine.create_execution(namespace=text, lane_id=lane_of(text), execution_kind=text)
            await engine.set_lane_state(lane_of(text), "paused", text)
            if text.isprintable():
                await engine.set_lane_fairness(lane_of(text), f"tag:{text}")
        admin = await engine.create_credential(name=ALL[0], scopes=["admin", "read", "operator"])
        found["admin"] = admin.token
    return found
