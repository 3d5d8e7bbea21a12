"""What only commands on a Valkey do: no schema, what a commit survives, and values damaged behind the engine's back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from flowfabric import ClaimPolicy
from flowfabric.engine import Engine
from flowfabric.model.events import CompletionEvent
from flowfabric.model.records.executions import Execution, Suspension
from flowfabric.stores.valkey.codec import shape_of
from flowfabric.stores.valkey.durability import Durability
from tests.cli.filling import WORK, Output, complaint, fill, typed
from tests.cli.pseudo import Terminal
from tests.cli.test_dev import address, flowfabric as in_a_process
from tests.contract.seeding import alter, alter_attempt, overwrite
from tests.contract.subscribing import finished
from tests.servers import Valkey
from tests.stores.valkey.test_failover import Restarted, replaced

SURVIVES = "a commit is on the server's disk before it is acknowledged: it survives crashes and power failures"
NO_SCHEMA = "Valkey has no schema to migrate"


@pytest.fixture
def url(valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where commands look, with nothing in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FF_API_TOKEN", raising=False)
    monkeypatch.setenv("FF_URL", valkey_url)
    return valkey_url


def behind_its_back(url: str, act: Callable[[Engine], Awaitable[Any]]) -> None:
    """Do something to what is stored."""

    async def go() -> None:
        async with await Engine.open(url) as engine:
            await act(engine)

    asyncio.run(go())


# -- db ----------------------------------------------------------------------------------------------------------------


def test_a_place_where_no_store_was_begun(url: str, capsys: Output) -> None:
    assert typed(capsys, "db", "plan", code=3).startswith(f"{NO_SCHEMA}; there is no store there yet")
    plan = json.loads(typed(capsys, "db", "plan", "--json", code=3))
    assert (plan["dialect"], plan["applied"], len(plan["pending"])) == ("valkey", [], 1)
    assert typed(capsys, "db", "check", code=3) == "there is no store there yet; run `flowfabric db migrate`\n"
    assert json.loads(typed(capsys, "db", "check", "--json", code=3)) == {
        "up_to_date": False,
        "pending": plan["pending"],
    }
    assert json.loads(typed(capsys, "db", "plan", "--json", code=3)) == plan, "looking has begun none"
    assert typed(capsys, "db", "migrate") == f"{NO_SCHEMA}; created a store there\n"
    assert typed(capsys, "db", "migrate") == f"{NO_SCHEMA}: nothing to do\n"
    assert typed(capsys, "db", "plan") == f"{NO_SCHEMA}: nothing to do\n"
    assert json.loads(typed(capsys, "db", "plan", "--json"))["applied"] == plan["pending"]


def test_there_are_no_statements(url: str, capsys: Output) -> None:
    for arguments in ((), ("--json",)):
        said = complaint(capsys, "db", "plan", "--sql", *arguments)
        assert f"{NO_SCHEMA}, so there are no statements to print" in said
    assert capsys.readouterr().out == ""


def test_a_server_that_only_checks_begins_none(url: str, capsys: Output) -> None:
    async def check() -> None:
        await (await Engine.open(url, migrate="check")).close()

    with pytest.raises(Exception, match="holds no FlowFabric data yet; run `flowfabric db migrate` first"):
        asyncio.run(check())
    typed(capsys, "db", "migrate")
    asyncio.run(check())
    behind_its_back(url, _has_the_partitions_of_servers)


async def _has_the_partitions_of_servers(engine: Engine) -> None:
    assert (engine.partitions.flow, engine.partitions.budget, engine.partitions.quota) == (256, 32, 32)


def test_data_of_another_release(url: str, capsys: Output) -> None:
    async def other(engine: Engine) -> None:
        await engine.store.connection.command("HSET", engine.store.keys.meta, "layout", "99", read_only=False)

    behind_its_back(url, other)
    for command in (("db", "plan"), ("db", "check"), ("db", "migrate"), ("list",)):
        said = complaint(capsys, *command, code=1)
        assert "has layout 99" in said
        assert "use the release that wrote it, or another prefix" in said


def test_what_a_commit_survives(url: str, capsys: Output) -> None:
    asyncio.run(fill(url))
    said = typed(capsys, "db", "check")
    assert said.startswith("valkey ")
    for part in ("responds", SURVIVES, "appendonly yes", "appendfsync always", "maxmemory-policy noeviction",
                 "replicas 0"):  # fmt: skip
        assert part in said
    told = json.loads(typed(capsys, "db", "check", "--json"))
    assert (told["store"], told["up_to_date"], told["durability"]["sentence"]) == ("valkey", True, SURVIVES)
    assert (told["durability"]["appendonly"], told["durability"]["replicas"]) == ("yes", 0)
    healthy = typed(capsys, "doctor")
    assert "are consistent, nothing is stuck" in healthy
    assert f"{SURVIVES} (appendonly yes, appendfsync always" in healthy
    report = json.loads(typed(capsys, "doctor", "--json"))
    assert report["ok"]
    assert report["looked"] >= 7
    assert report["durability"] == told["durability"]


def test_what_a_commit_does_not_survive(tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Valkey("--appendonly", "no") as server:
        refused = complaint(capsys, "db", "migrate", "--url", server.url, code=1)
        assert "appendonly no: commits are lost when the server stops" in refused
        monkeypatch.setenv("FF_URL", f"{server.url}?durability=relaxed")
        typed(capsys, "db", "migrate")
        for command in (("db", "check"), ("doctor", "--quick")):
            assert "only in the server's memory (appendonly no): it is lost when the server stops" in typed(
                capsys, *command
            )


def test_settings_that_the_account_may_not_read_are_unknown() -> None:
    facts = Durability(None, True, None, False, "noeviction", 2).facts()
    assert facts == {
        "appendonly": "yes",
        "appendfsync": "unknown",
        "no-appendfsync-on-rewrite": "unknown",
        "maxmemory-policy": "noeviction",
        "replicas": 2,
    }


# -- addresses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("db", "plan"), ("db", "check"), ("db", "migrate"), ("doctor",), ("list",)])
def test_a_server_that_is_not_there(command: tuple[str, ...], capsys: Output) -> None:
    said = complaint(capsys, *command, "--url", "valkey://user:canary@127.0.0.1:1/0", code=1)
    assert "cannot connect to valkey://127.0.0.1:1/0" in said
    assert "canary" not in said


def test_what_is_not_an_address(capsys: Output) -> None:
    for bad in ("valkey://user:can#ary@host/0", "valkey://host/x", "valkey://host?prefix={a}"):
        for command in ("plan", "check", "migrate"):
            assert "store URL" in complaint(capsys, "db", command, "--url", bad, code=1)
    for command in ("plan", "check", "migrate"):
        for foreign in ("redis://host", "mysql://host/db", "HTTPX://host", "nothing"):
            name = foreign.partition(":")[0]
            assert f"'{name}' is neither a store nor a server; use sqlite:///file, " in complaint(
                capsys, "db", command, "--url", foreign
            )


# -- doctor ------------------------------------------------------------------------------------------------------------


def findings(capsys: Output) -> dict[tuple[str, str], dict[str, Any]]:
    found = json.loads(typed(capsys, "doctor", "--json", code=3))["findings"]
    assert all(each["do"] for each in found)
    return {(each["code"], each["subject"]): each for each in found}


def test_records_that_break_promises_are_named(url: str, capsys: Output) -> None:
    ids = asyncio.run(fill(url))

    async def damage(engine: Engine) -> None:
        await alter(engine, ids["done"], public_state="waiting")
        await alter_attempt(engine, ids["failed"], worker_instance_id="ghost")
        partition, _, uuid = ids["asleep"].removeprefix("{fp:").partition("}:")
        await overwrite(engine, Suspension, (int(partition), uuid), closed_at_ms=1)

    behind_its_back(url, damage)
    assert findings(capsys).keys() >= {("I12", ids["done"]), ("I3", ids["failed"]), ("I27", ids["asleep"])}
    text = typed(capsys, "doctor", code=3)
    assert "Broken invariant I12: the states of an execution fit together" in text
    assert SURVIVES in text


def test_a_value_that_cannot_be_read_hides_no_other(url: str, capsys: Output) -> None:
    ids = asyncio.run(fill(url))

    async def damage(engine: Engine) -> None:
        store = engine.store
        key, field = store.keys.rows(Execution), shape_of(Execution).field(ids["failed"])
        value = await store.connection.command("HGET", key, field)
        await store.connection.command("HSET", key, field, value[:40], read_only=False)
        await alter(engine, ids["waiting"], priority=-1)

    behind_its_back(url, damage)
    found = findings(capsys)
    assert "cannot be read" in found["I12", ids["failed"]]["problem"]
    assert ("I11", ids["waiting"]) in found


def test_an_event_that_is_gone_is_missed(url: str, capsys: Output) -> None:
    async def end_some(engine: Engine) -> None:
        for _ in range(3):
            made = await engine.create_execution()
            await engine.cancel_execution(execution_id=made.execution_id)
            ids.append(str(made.execution_id))

    async def damage(engine: Engine) -> None:
        store = engine.store
        assert await store.connection.command("XDEL", store.keys.log(CompletionEvent), "2-0", read_only=False) == 1

    ids: list[str] = []
    behind_its_back(url, end_some)
    assert json.loads(typed(capsys, "doctor", "--json"))["ok"]
    behind_its_back(url, damage)
    found = findings(capsys)
    assert "its end is not announced" in found["I20", ids[1]]["problem"]
    assert "event 2 missing" in found["I34", "ff_completion_event"]["problem"]
    assert len(found) == 2


def test_what_is_stuck(url: str, capsys: Output) -> None:
    async def begin(engine: Engine) -> None:
        now = await engine.now_ms()
        for _ in range(3):
            await engine.create_execution(execution_kind="import", lane_id="slow")
        later = await engine.create_execution(execution_kind="later", delay_until=now + 10_000)
        handle = await engine.claim("slow", policy=ClaimPolicy("w", "w-1", 60_000))
        assert handle is not None
        hour = 3_600_000
        # An hour passes, and no process looks after anything.
        await alter(engine, str(handle.execution_id), created_at_ms=now - hour, started_at_ms=now - hour)
        await alter_attempt(engine, str(handle.execution_id), lease_expires_at_ms=now - hour)
        await alter(engine, str(later.execution_id), created_at_ms=now - 2 * hour, delay_until_ms=now - hour)
        waiting = (await engine.search_executions(lane_id="slow", states=["waiting"])).executions
        assert len(waiting) == 2
        for each in waiting:
            await alter(engine, str(each.execution_id), created_at_ms=now - hour)

    behind_its_back(url, begin)
    assert {code for code, _ in findings(capsys)} == {"late_leases", "late_start", "unserved_lane"}
    assert "2 runs waiting, the oldest for 60 min" in typed(capsys, "doctor", code=3)


def test_commits_that_a_change_of_server_has_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    async def lose(place: Restarted) -> None:
        async with await Engine.open(place.url) as engine:
            await finished(engine)
            await place.cut()
            await finished(engine)
            await replaced(place, engine)
            await engine.create_execution()

    monkeypatch.chdir(tmp_path)
    with Valkey("--appendfsync", "no") as server:
        monkeypatch.setenv("FF_URL", server.url)
        typed(capsys, "db", "migrate")
        assert json.loads(typed(capsys, "doctor", "--json"))["ok"]
        asyncio.run(lose(Restarted(server)))
        [(code, _)], [found] = zip(*findings(capsys).items(), strict=True)
        assert code == "lost"
        assert "at least 3 events (1 completion, 2 lease) of 2 acknowledged commits are missing" in found["problem"]
        text = " ".join(typed(capsys, "doctor", code=3).split())
        assert "was replaced by" in text
        assert "3 events (1 completion, 2 lease)" in text


# -- dev ---------------------------------------------------------------------------------------------------------------


def test_development_on_valkey(url: str, tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(WORK)
    with Terminal("dev", "work.py", "--store", url, cwd=tmp_path) as terminal:
        base = address(terminal)
        terminal.until("Ctrl-C to stop")
        assert httpx.get(f"{base}/healthz").json() == {"status": "ok"}
        assert in_a_process(tmp_path, "run", "work.py", "double", "21", FF_URL=base).stdout.endswith("42\n")
        terminal.until("completed  double")
        terminal.type("\x03")
        assert terminal.end() == 0
        assert "Traceback" not in terminal.text
    assert not (tmp_path / "flowfabric.db").exists()
    assert in_a_process(tmp_path, "list", "--state", "completed", FF_URL=url).stdout.count("double") == 1
