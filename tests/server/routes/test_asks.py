"""Questions to people over HTTP: the inbox, answering for an approver, and links that need no account."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from flowfabric import App, Ask, Budget, BudgetAsked, ClaimPolicy, Ctx, days, seconds
from flowfabric.model.operations.access import Scope
from flowfabric.model.records.executions import SigningKey
from flowfabric.sdk.asks.ask import OpenAsk
from flowfabric.sdk.asks.links import make_link
from flowfabric.server import ServerConfig, create_app
from tests.contract.seeding import overwrite
from tests.server.conftest import client_of


@dataclass
class Verdict:
    ok: bool
    note: str = ""


@pytest.fixture
async def app() -> AsyncIterator[App]:
    made = App("memory://", namespace="acme")

    @made.workflow
    async def review(draft: str) -> str:
        verdict = await Ask("publish?", Verdict, show={"draft": draft}, of={"ann", "bob"}, need=2, within=days(3))
        return "published" if verdict.ok else f"rejected: {verdict.note}"

    @made.task
    async def summarize(ctx: Ctx) -> str:
        async with ctx.spend(tokens=30) as call:
            call.settle(tokens=30)
        return "done"

    async with made, made.worker():
        yield made


@pytest.fixture
async def client(app: App) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(create_app(app.engine, ServerConfig())) as opened:
        yield opened


async def asked(app: App) -> tuple[Any, OpenAsk]:
    run = await app.definitions["review"].start("All about tea.")  # type: ignore[attr-defined]
    [ask] = await app.asks(run, wait=seconds(60))
    return run, ask


def path(ask: OpenAsk, *rest: str) -> str:
    return "/".join(["/v1/asks", quote(ask.id, safe=""), *rest])


async def test_the_inbox(app: App, client: httpx.AsyncClient) -> None:
    run, ask = await asked(app)
    [shown] = (await client.get("/v1/asks")).json()["asks"]
    assert (shown["execution_id"], shown["run_id"], shown["namespace"]) == (ask.id, run.id, "acme")
    assert (shown["question"], shown["show"]) == ("publish?", {"draft": "All about tea."})
    assert (shown["of"], shown["need"], shown["approves"], shown["open"]) == (["ann", "bob"], 2, "ok", True)
    assert shown["schema"]["$defs"]["Verdict"]["properties"]["ok"] == {"type": "boolean"}
    assert shown["until"] > shown["asked_at"]
    assert shown["given"] == []
    given = await client.post(path(ask, "answer"), json={"value": {"ok": True, "note": "fine"}, "by": "ann"})
    assert given.json() == {"said": "approve"}
    [again] = (await client.get("/v1/asks")).json()["asks"]
    [answer] = again["given"]
    assert (answer["by"], answer["said"], answer["identity"]) == ("ann", "approve", "anybody")
    assert answer["value"] == {"ok": True, "note": "fine"}
    await client.post(path(ask, "answer"), json={"value": {"ok": False, "note": "too short"}, "by": "bob"})
    assert await run.result(timeout=seconds(60)) == "rejected: too short"
    assert (await client.get("/v1/asks")).json()["asks"] == []
    closed = (await client.get(path(ask))).json()
    assert (closed["open"], [each["said"] for each in closed["given"]]) == (False, ["approve", "decline"])
    late = await client.post(path(ask, "answer"), json={"value": {"ok": True}, "by": "ann"})
    assert (late.status_code, late.json()["kind"]) == (409, "already_answered"), "her note was another one"
    acts = [each["act"] for each in (await client.get("/v1/admin/audit")).json()["entries"]]
    assert acts == ["give_answer"] * 2


async def test_who_has_to_answer(app: App) -> None:
    run, ask = await asked(app)
    guarded = create_app(app.engine, ServerConfig(require_credential=True))
    reader = await app.engine.create_credential(name="reader", scopes=[Scope.READ], namespaces=["acme"])
    async with client_of(guarded, reader.token) as client:
        why = (await client.get(f"/v1/executions/{quote(run.id, safe='')}/explain")).json()
    assert why["sentence"].startswith("It is waiting for 2 of ann, bob to answer 'publish?', until ")
    assert [each["execution_id"] for each in why["chain"]] == [run.id, ask.id]
    last = why["chain"][-1]
    assert (last["execution_kind"], last["gate"]) == ("$ask", "suspended")
    assert last["detail"]["question"] == {"question": "publish?", "needed": 2, "of": ["ann", "bob"], "answered": []}
    assert why["left_out"] is None


async def test_answers_that_do_not_fit(app: App, client: httpx.AsyncClient) -> None:
    _, ask = await asked(app)
    for body, words in (
        ({"value": {"ok": True}}, "name one of the approvers: ann, bob"),
        ({"value": {"ok": True}, "by": "eve"}, "name one of the approvers"),
        ({"value": {"ok": "perhaps"}, "by": "ann"}, "ok is not boolean"),
        ({"value": 5, "by": "ann"}, "is not valid"),
    ):
        refused = await client.post(path(ask, "answer"), json=body)
        assert refused.status_code == 422, body
        assert words in refused.json()["error"]
    other = await app.definitions["summarize"].start()  # type: ignore[attr-defined]
    await other.result(timeout=seconds(60))
    assert (await client.post(path(ask, "answer"), json={"by": "ann"})).status_code == 422
    assert (await client.get("/v1/asks")).json()["asks"][0]["given"] == []


async def test_a_link_needs_no_account(app: App, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    run, ask = await asked(app)
    guarded = create_app(app.engine, ServerConfig(require_credential=True))
    operator = await app.engine.create_credential(name="op", scopes=[Scope.OPERATOR], namespaces=["acme"])
    reader = await app.engine.create_credential(name="reader", scopes=[Scope.READ], namespaces=["acme"])
    async with client_of(guarded, operator.token) as op, client_of(guarded, reader.token) as watcher:
        made = await op.post(path(ask, "link"), json={"by": "bob"})
        assert made.headers["cache-control"] == "no-store"
        assert (await watcher.post(path(ask, "link"), json={"by": "bob"})).status_code == 403
    link = made.json()["link"]
    assert link == await ask.link("bob")
    async with client_of(guarded) as outside:
        looked = await outside.post("/v1/answers/look", json={"link": link})
        assert looked.headers["cache-control"] == "no-store"
        seen = looked.json()
        assert (seen["question"], seen["approver"], seen["show"]) == ("publish?", "bob", {"draft": "All about tea."})
        assert (seen["need"], seen["yeses"], seen["answered"]) == (2, 0, False)
        wrong = await outside.post("/v1/answers", json={"link": link, "value": {"ok": 1}})
        assert wrong.status_code == 422
        body = {"link": link, "value": {"ok": True}, "identity": "bob@example.org"}
        assert (await outside.post("/v1/answers", json=body)).json() == {"said": "approve"}
        assert (await outside.post("/v1/answers/look", json={"link": link})).json()["answered"] is True
        await ask.answer(Verdict(ok=True), by="ann")
        await run.result(timeout=seconds(60))
        gone = await outside.post("/v1/answers/look", json={"link": link})
        assert (gone.status_code, "no open question" in gone.json()["error"]) == (404, True)
    token = link[-20:]
    assert token not in caplog.text
    assert (await ask_identity(app, ask)) == {"ann": "ann", "bob": "bob@example.org"}


@pytest.mark.parametrize("door", ["for an approver", "with a link"])
async def test_an_answer_that_comes_twice(app: App, client: httpx.AsyncClient, door: str) -> None:
    run, ask = await asked(app)
    links = {name: await ask.link(name) for name in ("ann", "bob")}

    async def post(by: str, value: Any) -> httpx.Response:
        if door == "with a link":
            return await client.post("/v1/answers", json={"link": links[by], "value": value})
        return await client.post(path(ask, "answer"), json={"value": value, "by": by})

    first = await post("ann", {"ok": True, "note": "fine"})
    assert (first.status_code, first.json()) == (200, {"said": "approve"})
    for when in ("while it is open", "when it is closed"):
        again = await post("ann", {"note": "fine", "ok": True})
        assert again.status_code == 200, when
        told = again.json()
        assert (told["said"], told["repeated"], told["at"] > 0) == ("approve", True, True)
        for other in ({"ok": False}, {"ok": True, "note": "other"}):
            refused = await post("ann", other)
            assert (refused.status_code, refused.json()["kind"]) == (409, "already_answered"), when
            assert refused.json()["error"] == (
                "ann has already answered this question (approve); an answer cannot be changed"
            )
        if when == "while it is open":
            assert len((await client.get(path(ask))).json()["given"]) == 1
            assert (await client.get(path(ask))).json()["open"], "a changed mind does not close it"
            await post("bob", {"ok": True})
            assert await run.result(timeout=seconds(60)) == "published"
    assert len((await app.engine.read_history(ask.id)).signals) == 2, "nothing was recorded twice"


async def test_a_link_of_somebody_who_did_not_answer(app: App, client: httpx.AsyncClient) -> None:
    run, ask = await asked(app)
    link = await ask.link("bob")
    await ask.answer(Verdict(ok=False), by="ann")
    await run.result(timeout=seconds(60))
    late = await client.post("/v1/answers", json={"link": link, "value": {"ok": True}})
    assert (late.status_code, "no open question" in late.json()["error"]) == (404, True)
    late = await client.post(path(ask, "answer"), json={"value": {"ok": True}, "by": "bob"})
    assert (late.status_code, late.json()["kind"]) == (409, "conflict")
    bent = await client.post("/v1/answers", json={"link": link[:-2] + "AA", "value": {"ok": True}})
    assert bent.status_code == 404


async def test_a_signal_that_comes_twice(app: App, client: httpx.AsyncClient) -> None:
    run, ask = await asked(app)
    where = f"/v1/executions/{quote(ask.id, safe='')}/signal"
    rest = dict.fromkeys(("signal_category", "source_type", "source_identity", "target_scope"), "x")
    token = (await ask.token("ann")).reveal()
    signal = {"waitpoint_id": ask.waitpoint("ann"), "waitpoint_token": token, "idempotency_key": "k", **rest}
    yes = {**signal, "signal_name": "approve", "payload": list(b'{"ok": true}')}
    no = {**signal, "signal_name": "decline", "payload": list(b'{"ok": false}')}
    first = await client.post(where, json=yes)
    assert list(first.json()) == ["Accepted"]
    for when in ("while it is open", "when it is closed"):
        again = await client.post(where, json=yes)
        assert (again.status_code, list(again.json())) == (200, ["Duplicate"]), when
        other = await client.post(where, json=no)
        assert (other.status_code, other.json()["kind"]) == (409, "already_answered"), when
        assert (
            await client.post(
                "/v1/answers", json={"link": make_link(ask.id, ask.waitpoint("ann"), token), "value": {"ok": False}}
            )
        ).status_code == 409
        if when == "while it is open":
            await ask.answer(Verdict(ok=True), by="bob")
            assert await run.result(timeout=seconds(60)) == "published"


@pytest.mark.parametrize("keys", [(None, None), ("k", "other")], ids=["without keys", "with keys of their own"])
async def test_a_yes_and_a_no_of_one_approver_at_once(
    app: App, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, keys: tuple[str | None, str | None]
) -> None:
    run, ask = await asked(app)
    both_checked, deliver = asyncio.Barrier(2), app.engine.deliver_signal

    async def together(**signal: Any) -> Any:
        await both_checked.wait()
        return await deliver(**signal)

    monkeypatch.setattr(app.engine, "deliver_signal", together)
    where = f"/v1/executions/{quote(ask.id, safe='')}/signal"
    rest = dict.fromkeys(("signal_category", "source_type", "source_identity", "target_scope"), "x")
    rest |= {"waitpoint_id": ask.waitpoint("ann"), "waitpoint_token": (await ask.token("ann")).reveal()}
    told = await asyncio.gather(
        *(
            client.post(
                where,
                json={**rest, "signal_name": name, "payload": list(value)} | ({"idempotency_key": key} if key else {}),
            )
            for name, value, key in zip(("approve", "decline"), (b'{"ok": true}', b'{"ok": false}'), keys, strict=True)
        )
    )
    assert sorted(next(iter(each.json())) for each in told) == ["Accepted", "Duplicate"]
    monkeypatch.undo()
    [given] = (await app.engine.read_history(ask.id)).signals
    if given.signal_name == "approve":
        assert [each.id for each in await app.asks(run)] == [ask.id], "it waits for the other approver"
        await ask.answer(Verdict(ok=True), by="bob")
    assert await run.result(timeout=seconds(60)) == ("published" if given.signal_name == "approve" else "rejected: ")


async def ask_identity(app: App, ask: OpenAsk) -> dict[str, str]:
    history = await app.engine.read_history(ask.id)
    return {each.waitpoint_key: each.source_identity for each in history.signals}


async def test_links_that_are_none(app: App, client: httpx.AsyncClient) -> None:
    _, ask = await asked(app)
    link = await ask.link("ann")
    for wrong in (link[:-2] + "AA", link[:40], "nonsense", "", "é" * 30, await forged(ask)):
        for used, more in (("/v1/answers/look", {}), ("/v1/answers", {"value": {"ok": True}})):
            refused = await client.post(used, json={"link": wrong, **more})
            assert refused.status_code == 404, wrong
            assert refused.json()["error"].startswith("this link has no open question")
    assert (await client.post("/v1/answers", json={"link": "x" * 5_000, "value": True})).status_code == 400


async def test_a_link_is_good_for_as_long_as_its_key(app: App, client: httpx.AsyncClient) -> None:
    _, ask = await asked(app)
    link = await ask.link("ann")
    rotate = app.engine.rotate_waitpoint_hmac_secret_all
    await rotate(new_kid="k2", new_secret_hex="ab" * 32, grace_ms=86_400_000)
    assert (await client.post("/v1/answers/look", json={"link": link})).status_code == 200
    await overwrite(app.engine, SigningKey, "k1", expires_at_ms=1)
    for used, more in (("/v1/answers/look", {}), ("/v1/answers", {"value": {"ok": True}})):
        refused = await client.post(used, json={"link": link, **more})
        assert refused.status_code == 404
        assert refused.json()["error"].startswith("this link has no open question")


async def forged(ask: OpenAsk) -> str:
    """Bob's waitpoint with Ann's token."""
    return make_link(ask.id, ask.waitpoint("bob"), await ask.token("ann"))


async def test_budgets_that_ask(app: App, client: httpx.AsyncClient) -> None:
    budget = Budget("books", tokens=40, on_breach="ask")
    task = app.definitions["summarize"]
    first = await task.using(budget=budget).start()  # type: ignore[attr-defined]
    assert await first.result(timeout=seconds(60)) == "done"
    second = await task.using(budget=budget).start()  # type: ignore[attr-defined]
    [ask] = await app.asks(second, wait=seconds(60))
    [shown] = (await client.get("/v1/asks")).json()["asks"]
    assert (shown["kind"], shown["question"]) == ("budget", "may summarize spend beyond books?")
    assert shown["show"] == {"books": {"tokens": {"spent": 30.0, "allowed": 40.0}}}
    link = (await client.post(path(ask, "link"), json={})).json()["link"]
    assert (await client.post("/v1/answers/look", json={"link": link})).json()["approver"] == "anyone"
    assert (await client.post(path(ask, "answer"), json={"value": True})).json() == {"said": "approve"}
    assert await second.result(timeout=seconds(60)) == "done"
    for again in ((path(ask, "answer"), {}), ("/v1/answers", {"link": link})):
        told = (await client.post(again[0], json={"value": True, **again[1]})).json()
        assert (told["said"], told["repeated"]) == ("approve", True)
        refused = await client.post(again[0], json={"value": False, **again[1]})
        assert (refused.status_code, refused.json()["kind"]) == (409, "already_answered")


@pytest.mark.parametrize("door", ["http", "python"])
async def test_a_budget_asks_beside_waitpoints_of_the_run(app: App, client: httpx.AsyncClient, door: str) -> None:
    """The answer goes to the waitpoint that asks, not to one that the run holds for itself."""
    engine, budget = app.engine, "11111111-1111-4111-8111-111111111111"
    await engine.create_budget(
        budget_id=budget, dimensions=["a"], hard_limits=[10], soft_limits=[0], on_hard_limit="ask", namespace="acme"
    )
    wanted = {"namespace": "acme", "lane_id": "own", "execution_kind": "op", "policy": {"budget_ids": [budget]}}
    made = await engine.create_execution(**wanted)
    handle = await engine.claim("own", (), ClaimPolicy("w", "w-1", 60_000))
    assert handle is not None
    for number in range(4):
        await engine.create_waitpoint(handle, f"mine {number}", 60_000)
    question = await engine.reserve_budget(handle, budget, {"a": 20})
    assert isinstance(question, BudgetAsked)
    [ask] = await app.asks(str(made.execution_id))
    if door == "http":
        assert (await client.post(path(ask, "answer"), json={"value": True})).json() == {"said": "approve"}
    else:
        await ask.answer(True)
    assert await engine.read_execution_state(made.execution_id) == "resumable"
    [heard] = (await engine.read_history(made.execution_id)).signals
    assert (heard.waitpoint_id, heard.signal_name) == (question.details.waitpoint_id, "approved")


async def test_foreign_questions_look_absent(app: App) -> None:
    _, ask = await asked(app)
    guarded = create_app(app.engine, ServerConfig(require_credential=True))
    other = await app.engine.create_credential(name="o", scopes=[Scope.READ, Scope.OPERATOR], namespaces=["other"])
    async with client_of(guarded, other.token) as client:
        assert (await client.get("/v1/asks")).json()["asks"] == []
        assert (await client.get("/v1/attention")).json()["matters"] == []
        assert (await client.get(path(ask))).status_code == 404
        assert (await client.post(path(ask, "link"), json={"by": "ann"})).status_code == 404
        assert (await client.post(path(ask, "answer"), json={"by": "ann", "value": True})).status_code == 404
