"""The commands of operators, as they are typed, on a store with something in it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowfabric import App
from flowfabric.conditions import Single
from flowfabric.engine import Engine
from flowfabric.server import ServerConfig
from flowfabric.stores.migrate import watched
from tests.cli.filling import Output, complaint, fill, typed
from tests.sdk.serving import serving

NOBODY = "{fp:1}:00000000-0000-4000-8000-000000000000"


TOKEN = "token-for-tests"
direct = pytest.mark.parametrize("url", ["store"], indirect=True)


@pytest.fixture(params=["store", "server", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A store's URL, to put something in; commands look at it, or at a server in front of it."""
    found = f"sqlite:///{tmp_path}/ff.db"
    monkeypatch.delenv("FF_API_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    if request.param != "server":
        found = request.getfixturevalue("prepared_postgres_dsn") if request.param == "postgres" else found
        monkeypatch.setenv("FF_URL", found)
        yield found
        return
    with serving(found, ServerConfig(port=0, api_token=TOKEN)) as address:
        monkeypatch.setenv("FF_URL", address)
        monkeypatch.setenv("FF_API_TOKEN", TOKEN)
        yield found


def test_a_tour(url: str, capsys: Output) -> None:
    ids = asyncio.run(fill(url))
    listed = typed(capsys, "list")
    assert all(ids[name] in listed for name in ("done", "failed", "asking", "asleep", "waiting"))
    assert ids["ask"] not in listed, "what the SDK starts for itself is left out"
    assert "what it has started" in listed
    assert "its time, asleep until" in listed
    assert "a worker" in listed
    assert [each["execution_id"] for each in json.loads(typed(capsys, "list", "--state", "failed", "--json"))] == [
        ids["failed"]
    ]
    assert ids["done"] in typed(capsys, "list", "--tag", "team=docs")
    assert ids["done"] in typed(capsys, "list", "--since", "1h")
    assert "no runs fit" in typed(capsys, "list", "--before", "1h")
    assert len(json.loads(typed(capsys, "list", "--limit", "2", "--json"))) == 2
    assert "no runs fit" in typed(capsys, "list", "--kind", "nothing")
    assert "It sleeps until its time has come." in typed(capsys, "why", ids["asleep"])
    assert json.loads(typed(capsys, "why", ids["waiting"], "--json"))["gate"] == "waiting_for_worker"
    assert typed(capsys, "result", ids["done"]) == "42\n"
    assert "no good" in complaint(capsys, "result", ids["failed"], code=1)
    assert "is suspended" in complaint(capsys, "result", ids["asleep"], "--no-wait", code=1)
    assert typed(capsys, "tail", ids["done"]) == "working hard\n"
    frames = [json.loads(line) for line in typed(capsys, "tail", ids["done"], "--json").splitlines()]
    assert [each["text"] for each in frames] == ["working ", "hard"]
    assert typed(capsys, "tail", ids["done"], "--after", frames[0]["id"]) == "hard\n"
    assert "publish?" in typed(capsys, "asks")
    assert "publish?" in typed(capsys, "asks", ids["asking"])
    assert "no such question" in complaint(capsys, "approve", ids["done"], "true")
    assert "answered" in typed(capsys, "approve", ids["link"], "true")
    assert "nobody is asked" in typed(capsys, "asks")
    assert "cancelled" in typed(capsys, "cancel", ids["asleep"], "--reason", "enough")
    assert "cancelled" in typed(capsys, "list", "--state", "cancelled")
    assert "waiting again" in typed(capsys, "replay", ids["failed"])
    assert "priority 9" in typed(capsys, "priority", ids["waiting"], "9")
    assert "paused" in typed(capsys, "lanes", "pause", "default", "--reason", "tea")
    lanes = typed(capsys, "lanes")
    assert "paused" in lanes
    assert "tea" in lanes
    assert "its lane is paused" in typed(capsys, "list")
    assert "active" in typed(capsys, "lanes", "resume", "default")
    assert "3 runs" in typed(capsys, "lanes")
    assert "no worker" in typed(capsys, "workers")
    assert "no schedules" in typed(capsys, "schedules")
    assert "there are no budgets" in typed(capsys, "budgets")
    ends = [json.loads(line) for line in typed(capsys, "events").splitlines()]
    assert {each["execution_id"] for each in ends} >= {ids["done"], ids["failed"], ids["asleep"]}
    assert len(typed(capsys, "events", "--limit", "1").splitlines()) == 1


def test_the_story_of_a_run(url: str, capsys: Output) -> None:
    ids = asyncio.run(fill(url))
    shown = typed(capsys, "show", ids["asking"])
    assert shown.startswith(f"review  {ids['asking']}\n")
    for line in (
        "state    suspended",
        'input    {"page":7}',
        "✓",
        "remembers",
        "started",
        "completed  double",
        "attempts",
    ):
        assert line in shown
    assert not any(line.endswith(" ") for line in shown.splitlines())
    failed = typed(capsys, "show", ids["failed"])
    assert "ValueError: no good" in failed
    assert "where it failed" in failed
    assert 'raise ValueError("no good")' in failed
    story = json.loads(typed(capsys, "show", ids["done"], "--json"))
    assert (story["result"], story["public_state"], story["tags"]["user.team"]) == ("42", "completed", "docs")
    steps = json.loads(typed(capsys, "show", ids["asking"], "--json"))["steps"]
    assert (steps[0]["name"], steps[0]["value"]) == ("double", "14")
    waiting = typed(capsys, "show", ids["ask"])
    assert "waits for" in waiting
    typed(capsys, "approve", ids["link"], "true")
    told = typed(capsys, "show", ids["ask"])
    assert "was told" in told
    assert "approver" in told
    assert [each["outcome"] for each in json.loads(typed(capsys, "show", ids["failed"], "--json"))["attempts"]] == [
        "failed"
    ]


def test_what_a_run_has_spent(url: str, capsys: Output) -> None:
    from flowfabric.engine import Engine

    budget = "11111111-1111-4111-8111-111111111111"

    async def spend() -> str:
        async with await Engine.open(url, single_node=True) as engine:
            run = (await engine.create_execution(execution_kind="pay")).execution_id
            await engine.create_budget(
                budget_id=budget, dimensions=["tokens"], hard_limits=[1_000], soft_limits=[0], scope_type="team"
            )
            await engine.record_spend(budget_id=budget, execution_id=run, deltas={"tokens": 250}, idempotency_key="k")
            return str(run)

    run = asyncio.run(spend())
    assert f"250 tokens  of budget {budget}" in typed(capsys, "show", run)
    table = typed(capsys, "budgets")
    assert "250" in table
    assert "1,000" in table


def test_the_graph_of_a_flow(url: str, capsys: Output) -> None:
    from flowfabric import AnyOf, FlowGraph
    from flowfabric.engine import Engine

    async def submit() -> str:
        async with await Engine.open(url, single_node=True) as engine:
            graph = FlowGraph(
                nodes={name: {"execution_kind": name} for name in ("fetch", "parse", "scan", "join")},
                edges=[("fetch", "parse"), ("fetch", "scan"), ("parse", "join"), ("scan", "join")],
                groups={"join": AnyOf()},
            )
            return str((await engine.submit_flow(graph)).flow_id)

    flow = asyncio.run(submit())
    drawn = typed(capsys, "flows", flow)
    lines = drawn.splitlines()
    assert "4 runs" in lines[0]
    assert [line.split("·")[1].split()[0] for line in lines[1:]].count("join") == 1
    depth = {line.split("·")[1].split()[0]: line.index("·") for line in lines[1:]}
    assert depth["fetch"] < depth["parse"] == depth["scan"] < depth["join"]
    assert "any of them" in drawn
    assert "← also" in drawn
    assert flow in typed(capsys, "flows")
    assert json.loads(typed(capsys, "flows", "--json"))[0]["node_count"] == 4
    document = json.loads(typed(capsys, "flows", flow, "--json"))
    assert len(document["members"]) == len(document["edges"]) == 4


def test_cancelling_and_replaying_by_filter(url: str, capsys: Output) -> None:
    ids = asyncio.run(fill(url))
    preview = typed(capsys, "cancel", "--kind", "double", "--dry-run")
    assert ids["waiting"] in preview
    assert "1 run would be cancelled" in preview
    assert json.loads(typed(capsys, "cancel", "--all", "--dry-run", "--json"))["would"] == "cancel"
    assert "waiting" in typed(capsys, "list", "--kind", "double"), "nothing was done"
    assert "--yes" in complaint(capsys, "cancel", "--kind", "double"), "there is nobody to ask"
    done = json.loads(typed(capsys, "cancel", "--kind", "double", "--yes", "--json"))
    assert done == {"cancelled": [ids["waiting"]], "refused": {}}
    assert "nothing to cancel" in typed(capsys, "cancel", "--kind", "double", "--yes")
    assert "replayed 1 run" in typed(capsys, "replay", "--state", "failed", "--yes")
    assert "cancelled 3 runs" in typed(capsys, "cancel", "--all", "--yes")
    complaint(capsys, "cancel")
    complaint(capsys, "cancel", ids["done"], "--all")
    complaint(capsys, "replay", "--state", "nonsense")
    complaint(capsys, "replay", "--since", "yesterday")


def test_a_signal(url: str, capsys: Output) -> None:
    from flowfabric import ClaimPolicy, Fresh, SuspendArgs
    from flowfabric.engine import Engine

    async def suspend() -> str:
        async with await Engine.open(url, single_node=True) as engine:
            await engine.seed_waitpoint_hmac_secret(kid="k1", secret_hex="ab" * 32)
            await engine.create_execution(execution_kind="pay")
            handle = await engine.claim("default", policy=ClaimPolicy("w", "w-1", 30_000))
            assert handle is not None
            await engine.suspend(
                handle, SuspendArgs(waitpoints=[Fresh(waitpoint_key="paid")], resume_condition=Single("paid"))
            )
            return str(handle.execution_id)

    run = asyncio.run(suspend())
    assert "paid" in typed(capsys, "show", run)
    refused = complaint(capsys, "signal", run, "paid", "--waitpoint-token", "k1:" + "00" * 32, code=1)
    assert "invalid_token" in refused
    assert "open are: paid" in complaint(capsys, "signal", run, "paid", "--waitpoint", "other")
    complaint(capsys, "signal", run, "paid", "not json")
    answer = json.loads(typed(capsys, "signal", run, "paid", '{"amount": 12}', "--source", "shop", "--json"))
    assert answer["effect"] == "resume_condition_satisfied"
    assert "waits for no signal" in complaint(capsys, "signal", run, "paid")


def test_credentials(url: str, capsys: Output) -> None:
    asyncio.run(_make(url))
    assert "there are no credentials" in typed(capsys, "token", "list")
    token = typed(capsys, "token", "create", "ci", "--scope", "read", "--scope", "submit", "--for", "acme").strip()
    assert token.startswith("ff_")
    made = json.loads(typed(capsys, "token", "create", "me", "-s", "admin", "--expires", "1d", "--json"))
    assert made["credential"]["expires_at_ms"] is not None
    listed = json.loads(typed(capsys, "token", "list", "--json"))
    assert {(each["name"], tuple(each["scopes"])) for each in listed} == {
        ("ci", ("read", "submit")),
        ("me", ("admin",)),
    }
    table = typed(capsys, "token", "list")
    assert "acme" in table
    assert token not in table
    identity = next(each["credential_id"] for each in listed if each["name"] == "ci")
    assert "revoked" in typed(capsys, "token", "revoke", identity)
    assert "already" in typed(capsys, "token", "revoke", identity)
    assert "revoked" in typed(capsys, "token", "list")
    assert "none of" in complaint(capsys, "token", "create", "x", "--scope", "everything", code=1)
    complaint(capsys, "token", "revoke", "nobody", code=1)
    complaint(capsys, "token", "create", "x")


async def _make(url: str) -> None:
    async with App(url):
        pass


@direct
def test_the_database(url: str, tmp_path: Path, capsys: Output) -> None:
    assert "to do" in typed(capsys, "db", "plan", code=3)
    assert "CREATE TABLE" in typed(capsys, "db", "plan", "--sql", code=3)
    assert not (tmp_path / "ff.db").exists(), "a plan makes nothing"
    assert "there is no database" in complaint(capsys, "db", "check")
    assert "0001_engine" in typed(capsys, "db", "migrate")
    assert "nothing" in typed(capsys, "db", "migrate")
    assert "nothing to do" in typed(capsys, "db", "plan")
    assert json.loads(typed(capsys, "db", "plan", "--json"))["pending"] == []
    assert json.loads(typed(capsys, "db", "check", "--json"))["store"] == "sqlite"
    (tmp_path / "empty.db").write_bytes(b"")
    assert "migrations are missing" in typed(capsys, "db", "check", "--url", f"sqlite:///{tmp_path}/empty.db", code=3)
    (tmp_path / "torn.db").write_bytes(b"not a database" * 1000)
    assert "not a database" in complaint(capsys, "db", "plan", "--url", f"sqlite:///{tmp_path}/torn.db", code=1)
    assert "the store itself" in complaint(capsys, "db", "migrate", "--url", "http://127.0.0.1:1")


@pytest.mark.parametrize("prepared", [False, True])
def test_an_empty_postgresql_database(
    postgres_dsn: str, prepared: bool, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FF_URL", postgres_dsn)
    plan = json.loads(typed(capsys, "db", "plan", "--json", code=3))
    assert plan["dialect"] == "postgres"
    assert plan["applied"] == []
    assert "migrations are missing" in typed(capsys, "db", "check", code=3)
    heard: list[str] = []

    async def make() -> None:
        with watched(lambda each: heard.append(f"{each.version:04}_{each.name}")):
            async with await Engine.open(postgres_dsn):
                pass

    if prepared:
        asyncio.run(make())
    assert json.loads(typed(capsys, "db", "migrate", "--json"))["applied"] == ([] if prepared else plan["pending"])
    assert heard == (plan["pending"] if prepared else [])
    assert "nothing to do" in typed(capsys, "db", "plan")
    assert json.loads(typed(capsys, "db", "check", "--json"))["store"] == "postgres"
    assert "nothing is stuck" in typed(capsys, "doctor")
    nobody = postgres_dsn.rpartition("/")[0] + "/nowhere"
    assert "cannot open the database" in complaint(capsys, "db", "plan", "--url", nobody, code=1)
    assert "cannot open the database" in complaint(capsys, "list", "--url", nobody, code=1)


def test_a_server_that_is_not_there_or_does_not_know_us(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FF_API_TOKEN", raising=False)
    with serving(f"sqlite:///{tmp_path}/ff.db", ServerConfig(port=0, api_token=TOKEN)) as address:
        monkeypatch.setenv("FF_URL", address)
        assert "FF_API_TOKEN" in complaint(capsys, "list", code=1)
        assert "FF_API_TOKEN" in complaint(capsys, "list", "--token", "another", code=1)
        assert "no runs" in typed(capsys, "list", "--token", TOKEN)
        made = typed(capsys, "token", "create", "reader", "--scope", "read", "--token", TOKEN).strip()
        assert "no runs" in typed(capsys, "list", "--token", made)
        assert "scope" in complaint(capsys, "submit", "greet", "--token", made, code=1)
        assert "scope" in complaint(capsys, "doctor", "--token", made, code=1)
        own = typed(capsys, "token", "create", "acme", "-s", "read", "--for", "acme", "--token", TOKEN).strip()
        assert "no runs" in typed(capsys, "list", "--namespace", "acme", "--token", own)
        assert "namespace" in complaint(capsys, "list", "--token", own, code=1)
    assert "transport" in complaint(capsys, "list", "--token", TOKEN, code=1)


@direct
def test_what_is_typed_wrongly(url: str, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no database" in complaint(capsys, "list")
    asyncio.run(_make(url))
    assert "no runs" in typed(capsys, "list")
    complaint(capsys, "show", "nonsense", code=1)
    assert "there is no run" in complaint(capsys, "show", NOBODY, code=1)
    assert "there is no run" in complaint(capsys, "tail", NOBODY, code=1)
    complaint(capsys, "why", NOBODY, code=1)
    complaint(capsys, "flows", NOBODY, code=1)
    complaint(capsys, "flows", "nonsense")
    complaint(capsys, "list", "--tag", "nothing")
    assert "completed" in complaint(capsys, "list", "--state", "done")
    complaint(capsys, "list", "--limit", "0")
    complaint(capsys, "events", "nothing")
    complaint(capsys, "approve", "nonsense", "not json")
    complaint(capsys, "approve", "nonsense", "true", code=1)
    complaint(capsys, "priority", NOBODY, "high")
    complaint(capsys, "schedules", "pause", "nothing", code=1)
    assert 'Did you mean "show"?' in complaint(capsys, "shwo", NOBODY)
    assert 'Did you mean "pause"?' in complaint(capsys, "lanes", "puase", "default")
    assert "--state" in complaint(capsys, "list", "--stat", "failed")
    monkeypatch.delenv("FF_URL")
    assert "FF_URL" in complaint(capsys, "list")


def test_what_is_not_foreseen_is_one_sentence_too(url: str, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    from flowfabric.cli import finding

    def explode(*_: object, **__: object) -> None:
        raise RuntimeError("boom")

    asyncio.run(_make(url))
    monkeypatch.setattr(finding, "found", explode)
    assert "RuntimeError: boom" in complaint(capsys, "list", code=1)
    monkeypatch.setenv("FF_TRACEBACK", "1")
    with pytest.raises(RuntimeError, match="boom"):
        typed(capsys, "list")
