"""The commands of operators, as they are typed, on a store with something in it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sqlite3
from pathlib import Path

import pytest

from flowfabric import App, Ctx, Retry, seconds
from flowfabric.cli import filters
from flowfabric.cli.run_ids import short
from flowfabric.conditions import Single
from flowfabric.engine import Engine
from flowfabric.server import ServerConfig
from flowfabric.stores.migrate import watched
from tests.cli.conftest import TOKEN
from tests.cli.filling import Output, complaint, fill, typed
from tests.sdk.serving import serving

NOBODY = "{fp:1}:00000000-0000-4000-8000-000000000000"


direct = pytest.mark.parametrize("url", ["store"], indirect=True)


def test_output_that_starts_over(url: str, capsys: Output) -> None:
    async def work() -> str:
        app = App(url)

        @app.task(retry=Retry(1, first=seconds(0), jitter=False))
        async def write(ctx: Ctx) -> None:
            await ctx.emit("a ")
            await ctx.emit("b ")
            if ctx.attempt == 1:
                raise OSError("no")
            await ctx.emit("c")

        async with app, app.worker():
            run = await write.start()
            await run.result(timeout=seconds(30))
        return run.id

    run = asyncio.run(work())
    line = "— output starts over: attempt 2 after a failure —"
    assert typed(capsys, "tail", run) == f"a b \n{line}\na b c\n"
    frames = [json.loads(each) for each in typed(capsys, "tail", run, "--json").splitlines()]
    assert [each["text"] for each in frames] == ["a ", "b ", "", "a ", "b ", "c"]
    assert [each["attempt"] for each in frames] == [1, 1, 2, 2, 2, 2]
    assert [each.get("restart") for each in frames] == [None, None, "retry", None, None, None]
    assert typed(capsys, "tail", run, "--after", frames[2]["id"]) == "a b c\n"


def test_logs_of_all_attempts(url: str, capsys: Output) -> None:
    async def work() -> str:
        app = App(url)

        @app.step
        async def check(ctx: Ctx) -> None:
            ctx.log.warning("in a step")

        @app.workflow(retry=Retry(1, first=seconds(0), jitter=False))
        async def talk(ctx: Ctx) -> None:
            ctx.log.info("begun")
            await check()
            if ctx.attempt == 1:
                raise OSError("no")
            ctx.log.info("done")

        async with app, app.worker():
            run = await talk.start()
            await run.result(timeout=seconds(30))
        return run.id

    run = asyncio.run(work())
    shown = typed(capsys, "logs", run).splitlines()
    assert [line.split(maxsplit=2)[2] for line in shown] == [
        "INFO     begun",
        "WARNING  [check] in a step",
        "2 —",
        "INFO     done",
    ]
    assert shown[2] == "— attempt 2 —"
    lines = [json.loads(each) for each in typed(capsys, "logs", run, "--follow", "--json").splitlines()]
    assert [(each["level"], each["text"], each["attempt"], each.get("step")) for each in lines] == [
        ("INFO", "begun", 1, None),
        ("WARNING", "in a step", 1, "check"),
        ("INFO", "done", 2, None),
    ]
    assert "there is no run" in complaint(capsys, "logs", "{fp:0}:00000000-0000-4000-8000-000000000000", code=1)


def test_output_of_children(url: str, capsys: Output) -> None:
    async def work() -> tuple[str, str]:
        app = App(url)

        @app.task
        async def write(ctx: Ctx) -> str:
            await ctx.emit("the child")
            return ctx.run_id

        @app.step
        async def begin(ctx: Ctx) -> None:
            await ctx.emit("the parent")

        @app.workflow
        async def ask() -> str:
            await begin()
            return await write()

        async with app, app.worker():
            run = await ask.start()
            return run.id, await run.result(timeout=seconds(30))

    run, child = asyncio.run(work())
    assert typed(capsys, "tail", run) == "the parent\n"
    shown = typed(capsys, "tail", run, "--children")
    assert shown == f"the parent\n— run {short(child)} —\nthe child\n"
    frames = [json.loads(each) for each in typed(capsys, "tail", run, "--children", "--json").splitlines()]
    assert [(each["run"], each["text"]) for each in frames] == [(run, "the parent"), (child, "the child")]
    assert "use --after or --children" in complaint(capsys, "tail", run, "--children", "--after", frames[0]["id"])


@pytest.mark.parametrize("url", ["server"], indirect=True)
def test_lanes_as_a_limited_credential_sees_them(url: str, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with await Engine.open(url, single_node=True) as engine:
            for namespace in ("acme", "acme", "other"):
                await engine.create_execution(namespace=namespace, lane_id="shared")
            await engine.create_execution(namespace="other", lane_id="hidden")
            await engine.set_lane_state("hidden", "paused", "their affair")

    asyncio.run(work())
    token = typed(capsys, "token", "create", "ci", "--scope", "read", "--for", "acme").strip()
    assert [each["lane_id"] for each in json.loads(typed(capsys, "lanes", "--json"))] == ["hidden", "shared"]
    monkeypatch.setenv("FF_API_TOKEN", token)
    [lane] = json.loads(typed(capsys, "lanes", "--json"))
    assert (lane["lane_id"], lane["queue"]["waiting"], lane["registered_at_ms"]) == ("shared", 2, None)
    shown = typed(capsys, "lanes")
    assert "2 runs" in shown
    assert "their affair" not in shown


def test_a_tour(url: str, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = asyncio.run(fill(url))
    listed = typed(capsys, "list")
    assert all(short(ids[name]) in listed for name in ("done", "failed", "asking", "asleep", "waiting"))
    assert short(ids["ask"]) not in listed, "what the SDK starts for itself is left out"
    assert "an answer" in listed
    assert "the end of its sleep until" in listed
    assert "a worker" in listed
    assert [each["execution_id"] for each in json.loads(typed(capsys, "list", "--state", "failed", "--json"))] == [
        ids["failed"]
    ]
    assert short(ids["done"]) in typed(capsys, "list", "--tag", "team=docs")
    assert short(ids["done"]) in typed(capsys, "list", "--query", f"{ids['done'].split(':')[-1][:8]} tag:team=docs")
    assert short(ids["done"]) in typed(capsys, "list", "--since", "1h")
    assert "no matches" in typed(capsys, "list", "--before", "1h")
    assert len(json.loads(typed(capsys, "list", "--limit", "2", "--json"))) == 2
    assert "no matches" in typed(capsys, "list", "--kind", "nothing")
    assert re.match(
        r"It is sleeping until \d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)? UTC\. asleep, since ",
        typed(capsys, "why", ids["asleep"]),
    )
    sentence, asking, ask = typed(capsys, "why", ids["asking"]).splitlines()
    assert sentence == "It is waiting for ann to answer 'publish?'."
    assert asking.startswith(f"  review  {short(ids['asking'])}  waiting_for_children, since ")
    assert ask.startswith(f"  question  {short(ids['ask'])}  suspended, since ")
    chain = json.loads(typed(capsys, "why", ids["asking"], "--json"))["chain"]
    assert [each["execution_id"] for each in chain] == [ids["asking"], ids["ask"]]
    assert json.loads(typed(capsys, "why", ids["waiting"], "--json"))["gate"] == "waiting_for_worker"
    assert typed(capsys, "result", ids["done"]) == "42\n"
    assert "no good" in complaint(capsys, "result", ids["failed"], code=1)
    assert "is suspended" in complaint(capsys, "result", ids["asleep"], "--no-wait", code=1)
    late = complaint(capsys, "result", ids["asleep"], "--timeout", "1ms", code=1)
    asleep = short(ids["asleep"])
    assert late.startswith(f"result_timeout: run {asleep} is suspended and did not end within 1ms; it continues")
    assert f"flowfabric why {short(ids['asleep'])}" in late
    with monkeypatch.context() as patched:
        patched.setattr(filters, "milliseconds", lambda *_: 1)
        late = complaint(capsys, "result", ids["asleep"], code=1)
    assert "did not end within 5min (the default of --timeout)" in late, "the limit that nobody asked for is named"
    assert "expected a duration such as" in complaint(capsys, "result", ids["asleep"], "--timeout", "soon")
    assert typed(capsys, "tail", ids["done"]) == "working hard\n"
    frames = [json.loads(line) for line in typed(capsys, "tail", ids["done"], "--json").splitlines()]
    assert [each["text"] for each in frames] == ["working ", "hard"]
    assert typed(capsys, "tail", ids["done"], "--after", frames[0]["id"]) == "hard\n"
    assert "publish?" in typed(capsys, "asks")
    assert "publish?" in typed(capsys, "asks", ids["asking"])
    assert "no open question with this id" in complaint(capsys, "approve", ids["done"], "true")
    assert "answered" in typed(capsys, "approve", ids["link"], "true")
    assert "no open questions" in typed(capsys, "asks")
    asked = typed(capsys, "cancel", ids["asleep"], "--reason", "enough")
    assert asked == f"cancelling {short(ids['asleep'])}\n"
    assert "It was asked to cancel" in typed(capsys, "why", ids["asleep"])
    assert "cancelled" not in typed(capsys, "list", "--state", "cancelled")
    assert "cancelled" in typed(capsys, "cancel", ids["asleep"], "--now")
    assert "cancelled" in typed(capsys, "list", "--state", "cancelled")
    assert "replayed" in typed(capsys, "replay", ids["failed"])
    assert "priority 9" in typed(capsys, "priority", ids["waiting"], "9")
    assert "paused" in typed(capsys, "lanes", "pause", "default", "--reason", "tea")
    lanes = typed(capsys, "lanes")
    assert "paused" in lanes
    assert "tea" in lanes
    assert "its lane (paused)" in typed(capsys, "list")
    assert "active" in typed(capsys, "lanes", "resume", "default")
    assert "3 runs" in typed(capsys, "lanes")
    assert "no worker" in typed(capsys, "workers")
    assert "no schedules" in typed(capsys, "schedules")
    assert "no budgets" in typed(capsys, "budgets")
    ends = [json.loads(line) for line in typed(capsys, "events").splitlines()]
    assert {each["execution_id"] for each in ends} >= {ids["done"], ids["failed"], ids["asleep"]}
    assert len(typed(capsys, "events", "--limit", "1").splitlines()) == 1


def test_a_file_that_cannot_be_made(tmp_path: Path, capsys: Output) -> None:
    said = complaint(capsys, "db", "migrate", "--url", f"sqlite:///{tmp_path}/nowhere/ff.db", code=1)
    assert said.startswith("other: sqlite: ")
    assert "create its folder, and let the account of this process write there" in said


def test_the_story_of_a_run(url: str, capsys: Output) -> None:
    ids = asyncio.run(fill(url))
    shown = typed(capsys, "show", ids["asking"])
    assert shown.startswith(f"review  {short(ids['asking'])}\n")
    for line in (
        "state    suspended",
        'input    {"page":7}',
        "✓",
        "steps",
        "started",
        "completed  double",
        "attempts",
    ):
        assert line in shown
    assert not any(line.endswith(" ") for line in shown.splitlines())
    failed = typed(capsys, "show", ids["failed"])
    assert "ValueError: no good" in failed
    assert "attempts\n  1  20" in failed, "people count from 1"
    assert "traceback" in failed
    assert 'raise ValueError("no good")' in failed
    story = json.loads(typed(capsys, "show", ids["done"], "--json"))
    assert (story["result"], story["public_state"], story["tags"]["user.team"]) == ("42", "completed", "docs")
    steps = json.loads(typed(capsys, "show", ids["asking"], "--json"))["steps"]
    assert (steps[0]["name"], steps[0]["value"]) == ("double", "14")
    waiting = typed(capsys, "show", ids["ask"])
    assert "waiting for" in waiting
    typed(capsys, "approve", ids["link"], "true")
    told = typed(capsys, "show", ids["ask"])
    assert "signals" in told
    assert "approver" in told
    assert [each["outcome"] for each in json.loads(typed(capsys, "show", ids["failed"], "--json"))["attempts"]] == [
        "failed"
    ]


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
    assert short(ids["waiting"]) in preview
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
    assert "open waitpoints: paid" in complaint(capsys, "signal", run, "paid", "--waitpoint", "other")
    complaint(capsys, "signal", run, "paid", "not json")
    answer = json.loads(typed(capsys, "signal", run, "paid", '{"amount": 12}', "--source", "shop", "--json"))
    assert answer["effect"] == "resume_condition_satisfied"
    assert "not waiting for a signal" in complaint(capsys, "signal", run, "paid")


def test_credentials(url: str, capsys: Output) -> None:
    asyncio.run(_make(url))
    assert "no credentials" in typed(capsys, "token", "list")
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
    assert "not one of" in complaint(capsys, "token", "create", "x", "--scope", "everything", code=1)
    complaint(capsys, "token", "revoke", "nobody", code=1)
    complaint(capsys, "token", "create", "x")


def test_ids_need_no_quoting(url: str, capsys: Output) -> None:
    """What is printed can be typed, in any shell: there are no braces in it."""
    ids = asyncio.run(fill(url))
    listed = {line.split()[1]: line.split()[-1] for line in typed(capsys, "list").splitlines()[1:]}
    assert not any(set("{}*?$'") & set(each) for each in listed.values())
    [ask] = [line.split()[-1] for line in typed(capsys, "asks", short(ids["asking"])).splitlines()[1:]]
    assert ask == short(ids["ask"])
    done = short(ids["done"])
    assert typed(capsys, "show", done).startswith(f"double  {done}\n")
    assert typed(capsys, "result", done) == "42\n"
    assert typed(capsys, "tail", done) == "working hard\n"
    assert typed(capsys, "why", short(ids["waiting"])) == typed(capsys, "why", ids["waiting"])
    assert f"for {short(ids['waiting'])}" in typed(capsys, "priority", short(ids["waiting"]), "9")
    assert short(ids["asking"]) in typed(capsys, "flows", short(ids["asking"]))
    assert "replayed" in typed(capsys, "replay", short(ids["failed"]))
    assert typed(capsys, "cancel", short(ids["asleep"]), "--now") == f"cancelled {short(ids['asleep'])}\n"
    assert json.loads(typed(capsys, "cancel", short(ids["asleep"]), "--json")) == {"cancelled": [ids["asleep"]]}
    assert "answered" in typed(capsys, "approve", ask, "true")


async def _make(url: str) -> None:
    async with App(url):
        pass


@direct
def test_the_database(url: str, tmp_path: Path, capsys: Output) -> None:
    assert "pending" in typed(capsys, "db", "plan", code=3)
    assert "CREATE TABLE" in typed(capsys, "db", "plan", "--sql", code=3)
    assert not (tmp_path / "ff.db").exists(), "a plan makes nothing"
    assert "there is no database" in complaint(capsys, "db", "check")
    assert "0001_engine" in typed(capsys, "db", "migrate")
    assert "nothing" in typed(capsys, "db", "migrate")
    assert "nothing to do" in typed(capsys, "db", "plan")
    assert json.loads(typed(capsys, "db", "plan", "--json"))["pending"] == []
    assert json.loads(typed(capsys, "db", "check", "--json"))["store"] == "sqlite"
    assert "events may be missing" in typed(capsys, "db", "restored")
    (tmp_path / "empty.db").write_bytes(b"")
    empty = f"sqlite:///{tmp_path}/empty.db"
    assert "migrations are missing" in typed(capsys, "db", "check", "--url", empty, code=3)
    for asked in (("list",), ("doctor",), ("lanes", "pause", "default"), ("token", "create", "ci", "--scope", "read")):
        assert "no FlowFabric tables yet; create them with `flowfabric db migrate`" in complaint(
            capsys, *asked, "--url", empty, code=1
        )
    with contextlib.closing(sqlite3.connect(tmp_path / "empty.db")) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,), "a command makes no tables"
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
    said = complaint(capsys, "db", "plan", "--url", nobody, code=1)
    assert "create the database" in said
    assert said.startswith("protocol: postgres: "), "the code is said once"
    assert "create the database" in complaint(capsys, "list", "--url", nobody, code=1)


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
    assert "flowfabric list" in complaint(capsys, "show", "nonsense"), "it says where ids are found"
    assert f"there is no run {short(NOBODY)}" in complaint(capsys, "show", NOBODY, code=1)
    assert "there is no run" in complaint(capsys, "tail", NOBODY, code=1)
    complaint(capsys, "why", NOBODY, code=1)
    complaint(capsys, "flows", NOBODY, code=1)
    complaint(capsys, "flows", "nonsense")
    complaint(capsys, "list", "--tag", "nothing")
    assert "completed" in complaint(capsys, "list", "--state", "done")
    assert "unknown word 'colour:'" in complaint(capsys, "list", "--query", "colour:red", code=1)
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
    from flowfabric.cli import filters

    def explode(*_: object, **__: object) -> None:
        raise RuntimeError("boom")

    asyncio.run(_make(url))
    monkeypatch.setattr(filters, "found", explode)
    assert "RuntimeError: boom" in complaint(capsys, "list", code=1)
    monkeypatch.setenv("FF_TRACEBACK", "1")
    with pytest.raises(RuntimeError, match="boom"):
        typed(capsys, "list")
