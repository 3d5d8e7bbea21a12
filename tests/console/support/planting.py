"""A store that holds nothing nice: hostile texts in every field that people fill and the console shows.

What is alike for all texts is done for all of them at once, so that they share commits.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from flowfabric import ClaimPolicy, Cron, FlowGraph, Frame, Fresh, SuspendArgs
from flowfabric.conditions import AllOf, ByName, Count, CountKind, Single
from flowfabric.engine import Engine
from flowfabric.engine.operations.workflows import FORKED_FROM
from flowfabric.model.ids import ExecutionId
from flowfabric.model.operations.suspension import SuspensionReason
from flowfabric.model.operations.workflows import NewStep
from flowfabric.model.streams.frames import DurableSummary
from flowfabric.model.waitpoint_tokens import revealed
from flowfabric.sdk.asks.ask import Question, waitpoint_of
from flowfabric.sdk.asks.links import make_link
from tests.conftest import full_run
from tests.console.support.hostile import few, payloads

T = TypeVar("T")
#: A full run takes all of them, a plain one every kind.
ALL = payloads() if full_run() else few()
JSON = msgspec.json.encode({each: each for each in ALL})
HOUR_MS = 3_600_000
#: How many the timeline of an execution draws of those that it has started.
FAMILY = 40


def lane_of(text: str) -> str:
    """The text as far as a lane's name may go: 64 printable characters."""
    return text.replace("\t", "/")[:64]


def capability_of(text: str) -> str:
    """The text without what separates capabilities; browsers take a slash for a blank in a tag."""
    return "/".join(text.replace(",", "/").split())


def key_of(text: str) -> str:
    """The text as far as the name of a key may go: without a colon."""
    return text.replace(":", "/")


async def for_all(work: Callable[[str], Awaitable[T]]) -> list[T]:
    """Do this for every text, at once; what comes of it in the order of the texts."""
    return await asyncio.gather(*map(work, ALL))


# -- executions --------------------------------------------------------------------------------------------------------


async def _signalled(engine: Engine, identity: Any, text: str) -> None:
    [point] = (await engine.list_pending_waitpoints(execution_id=identity)).entries
    token = await engine.read_waitpoint_token(identity.partition, point.waitpoint_id)
    # Who has no name is called by what kind of source it is.
    for name, source in ((f"{text} first", ""), (text, text)):
        await engine.deliver_signal(
            execution_id=identity, waitpoint_id=point.waitpoint_id, waitpoint_token=token,
            signal_name=name, source_type=text, source_identity=source, payload=msgspec.json.encode({text: text}),
        )  # fmt: skip


async def single(engine: Engine, text: str, budget: str) -> str:
    """An execution that has this one text in every field that holds one: failed, to be tried again, then cancelled."""
    lane, capability = lane_of(text), capability_of(text)
    created = await engine.create_execution(
        namespace=text, lane_id=lane, execution_kind=text, creator_identity=text,
        input_payload=msgspec.json.encode(text), payload_encoding="json",
        tags={text: text, FORKED_FROM: text},
        policy={
            "routing_requirements": {"required_capabilities": [capability]},
            "retry_policy": {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": HOUR_MS}},
        },
    )  # fmt: skip
    identity = created.execution_id

    async def take() -> Any:
        handle = await engine.claim(lane, [capability], ClaimPolicy(text, text, HOUR_MS))
        assert handle is not None
        assert handle.execution_id == identity
        return handle

    await engine.advance(await take(), steps=[NewStep(text, msgspec.json.encode(text))])
    # Nearly all that its budget has.
    await engine.record_spend(budget_id=budget, execution_id=identity, deltas={text: 9})
    await engine.revoke_lease(execution_id=identity, reason=text)
    wait = SuspendArgs(waitpoints=[Fresh(None, text)], resume_condition=Single(text, ByName(text)), reason_code=text)
    await engine.suspend(await take(), wait)
    await _signalled(engine, identity, text)
    await engine.fail(await take(), f"{text} failed")
    await engine.cancel_execution(execution_id=identity, reason=text)
    return str(identity)


async def monster(engine: Engine) -> str:
    """One execution with all of them in every field that holds many; values are JSON, plain text and bytes."""
    created = await engine.create_execution(
        namespace="default", lane_id="monster", execution_kind="monster", input_payload=JSON, payload_encoding="json",
        tags={each: each for each in ALL},
    )  # fmt: skip
    handle = await engine.claim("monster", policy=ClaimPolicy("monster", "monster-1", HOUR_MS))
    assert handle is not None
    steps = [NewStep(each, msgspec.json.encode(each)) for each in ALL]
    steps += [NewStep(f"{each} plain", f"plain {each}".encode()) for each in ALL]
    steps += [NewStep(f"{each} bytes", b"\xff" + each.encode()) for each in ALL]
    await engine.advance(handle, steps=steps)
    for each in ALL:
        await engine.append_frame(handle, Frame(each.encode() + b"\n"))
    await engine.append_frame(handle, Frame(JSON, mode=DurableSummary()))
    await engine.complete(handle, JSON)
    return str(created.execution_id)


async def waiter(engine: Engine) -> str:
    """One execution that waits for all of them."""
    created = await engine.create_execution(namespace="default", lane_id="waiter", execution_kind="waiter")
    handle = await engine.claim("waiter", policy=ClaimPolicy("waiter", "waiter-1", HOUR_MS))
    assert handle is not None
    points = {each: str(uuid.uuid4()) for each in ALL}
    await engine.suspend(handle, SuspendArgs(
        waitpoints=[Fresh(point, each) for each, point in points.items()],
        resume_condition=AllOf(tuple(Single(each, ByName(each)) for each in ALL)),
        reason_code=SuspensionReason.WAITING_FOR_SIGNAL,
    ))  # fmt: skip
    return str(created.execution_id)


# -- what lists show ---------------------------------------------------------------------------------------------------


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
    # What looks like an execution becomes a link.
    await engine.record_act(who=text, act=text, subject={text: text, "of": f"{{fp:0}}:{text}"}, status=200)
    made = await engine.create_credential(name=text, scopes=["read"], namespaces=[text])
    node = {"lane_id": "flow", "execution_kind": text, "namespace": text}
    flow = await engine.submit_flow(FlowGraph(nodes={"only": node}, edges=[], flow_kind=text, namespace=text))
    await engine.cancel_flow(flow.flow_id, "cancel_all", reason=text)
    return {"budget": budget, "token": made.token.reveal(), "flow": str(flow.flow_id)}


async def graph(engine: Engine) -> str:
    """A flow whose members are called like all of them."""
    nodes = {each: {"lane_id": "graph", "execution_kind": each} for each in ALL}
    edges = [(ALL[0], each) for each in ALL[1:]]
    made = await engine.submit_flow(FlowGraph(nodes=nodes, edges=edges, flow_kind="graph", namespace="default"))
    return str(made.flow_id)


async def families(engine: Engine) -> list[tuple[str, str, Sequence[str]]]:
    """Executions that have started as many as their pages show, with one of these each. They wait, in paused lanes."""

    policy = ClaimPolicy("family", "family-1", HOUR_MS)

    async def family(number: int, texts: Sequence[str]) -> tuple[str, str, Sequence[str]]:
        created = await engine.create_execution(namespace="default", lane_id=f"family {number}", execution_kind="root")
        handle = await engine.claim(f"family {number}", policy=policy)
        assert handle is not None
        ids = [str(ExecutionId.of(created.execution_id.partition, str(uuid.uuid4()))) for _ in texts]
        children = [
            {"execution_id": own, "namespace": each, "lane_id": lane_of(each), "execution_kind": each}
            for own, each in zip(ids, texts, strict=True)
        ]
        await engine.advance(handle, children=children)
        return str(created.execution_id), ids[0], texts

    found = await asyncio.gather(*(family(at, ALL[at : at + FAMILY]) for at in range(0, len(ALL), FAMILY)))

    async def close(text: str) -> None:
        await engine.set_lane_state(lane_of(text), "paused", text)
        if text.isprintable():
            await engine.set_lane_fairness(lane_of(text), f"tag:{text}")

    await for_all(close)
    return list(found)


# -- questions ---------------------------------------------------------------------------------------------------------


def form_of(text: str, texts: Sequence[str]) -> dict[str, Any]:
    """The schema of an answer: fields of every kind that are called, titled and explained by the text."""
    told = {"title": text, "description": text}
    return {
        "type": "object", "title": text, "required": ["ok", f"number {text}"],
        "properties": {
            "ok": {"type": "boolean", **told},
            **{each: {"type": "string", "title": each, "description": each, "default": each} for each in texts},
            "choice": {"enum": list(texts), **told},
            f"number {text}": {"type": "number"},
            f"flag {text}": {"type": "boolean", **told},
            f"list {text}": {"type": "array", "items": {"type": "string", "default": text}, **told},
            f"part {text}": {"type": "object", "properties": {text: {"type": "string"}}, **told},
            f"any {text}": {"default": {text: text}, **told},
            f"note {text}": {"type": "string", "default": text, **told},
        },
    }  # fmt: skip


async def asked(engine: Engine, questions: Sequence[Question], namespaces: Sequence[str]) -> list[Any]:
    """Open questions: executions, what tokens of them are good for, and the waitpoint of each approver."""

    async def begin(question: Question, namespace: str) -> tuple[Any, bytes]:
        payload = msgspec.json.encode(question)
        created = await engine.create_execution(
            namespace=namespace, lane_id="ask", execution_kind="$ask", input_payload=payload, tags={"ff.run": namespace}
        )
        return created.execution_id, payload

    begun = await asyncio.gather(*map(begin, questions, namespaces))
    handles = await engine.claim_many("ask", policy=ClaimPolicy("w", "w-1", HOUR_MS), limit=len(begun))
    by_id = {handle.execution_id: handle for handle in handles}

    async def wait(question: Question, identity: Any, payload: bytes) -> Any:
        points = {name: waitpoint_of(str(identity), payload, name) for name in question.of}
        await engine.suspend(by_id[identity], SuspendArgs(
            waitpoints=[Fresh(point, name) for name, point in points.items()],
            resume_condition=Count(question.need, CountKind.DISTINCT_WAITPOINTS, tuple(points)),
            reason_code=SuspensionReason.WAITING_FOR_APPROVAL,
        ))  # fmt: skip
        tokens = {
            name: revealed(await engine.read_waitpoint_token(identity.partition, point) or "")
            for name, point in points.items()
        }
        return identity, points, tokens

    return await asyncio.gather(*(wait(each, *made) for each, made in zip(questions, begun, strict=True)))


async def answered(engine: Engine, question: Any, by: str, who: str, value: Any) -> None:
    """Answer for one of those who were asked."""
    identity, points, tokens = question
    await engine.deliver_signal(
        execution_id=identity, waitpoint_id=points[by], waitpoint_token=tokens[by], signal_name="approve",
        source_type="ask", source_identity=who, payload=msgspec.json.encode(value),
    )  # fmt: skip


async def questions_of(engine: Engine) -> dict[str, Any]:
    """Questions of one each, with a form of many kinds; one with the longest form; and two of everybody."""

    def of(text: str, names: Sequence[str], texts: Sequence[str] = ()) -> Question:
        show = {each: each for each in texts}
        schema = form_of(text, texts) if texts else {"type": "object", "properties": {"ok": {"type": "boolean"}}}
        return Question(text, show, tuple(names), len(names), None, schema, "ok")

    [waiting, given] = await asked(engine, [of("all", ALL), of("all but one", [*ALL, "one"])], ["default"] * 2)
    await for_all(lambda text: answered(engine, given, text, f"{text} himself", {"ok": True, text: text}))
    [form] = await asked(engine, [of("a form", ["a form"], ALL)], ["default"])
    alone = await asked(engine, [of(text, [text], [text]) for text in ALL], ALL)

    def link(question: Any, by: str) -> str:
        identity, points, tokens = question
        return make_link(str(identity), points[by], tokens[by])

    return {
        "asks": [str(each[0]) for each in alone],
        "links": [link(each, text) for each, text in zip(alone, ALL, strict=True)],
        "form": str(form[0]),
        "form_link": link(form, "a form"),
        "everybody": str(waiting[0]),
        "answered": str(given[0]),
    }


async def plant(store: str) -> dict[str, Any]:
    """All of it; ids by what they are, in the order of the texts."""
    async with await Engine.open(store, single_node=True) as engine:
        await engine.seed_waitpoint_hmac_secret(kid="k1", secret_hex="ab" * 32)
        for text in ALL:
            await engine.rotate_waitpoint_hmac_secret_all(new_kid=key_of(text), new_secret_hex="cd" * 32)
        kept = await for_all(lambda text: listed(engine, text))
        budgets = dict(zip(ALL, (each["budget"] for each in kept), strict=True))
        found = {
            "flows": [each["flow"] for each in kept],
            "tokens": [each["token"] for each in kept],
            "singles": await for_all(lambda text: single(engine, text, budgets[text])),
            "monster": await monster(engine),
            "waiter": await waiter(engine),
            "graph": await graph(engine),
            **await questions_of(engine),
            "families": await families(engine),
        }
        admin = await engine.create_credential(name=ALL[0], scopes=["admin", "read", "operator"])
        found["admin"] = admin.token.reveal()
    return found
