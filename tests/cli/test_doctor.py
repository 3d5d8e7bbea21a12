"""``flowfabric doctor`` on stores where something is wrong, and on busy ones where nothing is."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from flowfabric import App, ClaimPolicy, DurableSummary, Frame
from flowfabric.core.invariants import budgets, events, executions, flows, streams, waits
from flowfabric.engine import Engine
from flowfabric.engine.reads import examine
from flowfabric.model.reads.examine import PROMISES
from flowfabric.server import ServerConfig
from tests.cli.conftest import STORES
from tests.cli.filling import Output, complaint, fill, typed
from tests.cli.pseudo import Terminal
from tests.sdk.serving import serving


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("FF_URL", "FF_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "flowfabric.db"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{path}"
    found: str = request.getfixturevalue(STORES[request.param])
    monkeypatch.setenv("FF_URL", found)
    return found


def damage(path: Path, statement: str, *values: object) -> None:
    """Change a row behind the engine's back."""
    connection = sqlite3.connect(path)
    with connection:
        changed = connection.execute(statement, values).rowcount
    connection.close()
    assert changed > 0


def found(capsys: Output, *arguments: str) -> list[dict[str, Any]]:
    return json.loads(typed(capsys, "doctor", "--json", *arguments, code=3))["findings"]  # type: ignore[no-any-return]


def test_a_healthy_store(path: Path, capsys: Output) -> None:
    asyncio.run(fill(f"sqlite:///{path}"))
    report = json.loads(typed(capsys, "doctor", "--json"))
    assert report["ok"]
    assert report["looked"] >= 7
    assert "are consistent" in typed(capsys, "doctor")
    assert "nothing is stuck" in typed(capsys, "doctor", "--quick")


def test_rows_that_break_promises_are_named_and_explained(path: Path, capsys: Output) -> None:
    ids = asyncio.run(fill(f"sqlite:///{path}"))
    done, failed, asleep = (ids[name].rpartition(":")[2] for name in ("done", "failed", "asleep"))
    uuid = "hex(execution_id) = upper(replace(?, '-', ''))"
    if isinstance(one(path, "SELECT execution_id FROM ff_exec_core LIMIT 1"), str):
        uuid = "execution_id = ?"
    damage(path, f"UPDATE ff_exec_core SET public_state = 'waiting' WHERE {uuid}", done)
    damage(path, f"UPDATE ff_attempt SET worker_instance_id = 'ghost' WHERE {uuid}", failed)
    damage(path, f"UPDATE ff_suspension_current SET closed_at_ms = 1 WHERE {uuid}", asleep)
    findings = found(capsys)
    broken = {(each["code"], each["subject"]) for each in findings}
    assert ("I12", ids["done"]) in broken
    assert ("I3", ids["failed"]) in broken
    assert ("I27", ids["asleep"]) in broken
    assert all(each["do"] for each in findings)
    text = typed(capsys, "doctor", code=3)
    assert "Broken invariant I12: the states of an execution fit together" in text
    assert "→ Cancel it and start it again" in text
    assert ids["done"] in text


def one(path: Path, statement: str) -> Any:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(statement).fetchone()[0]
    finally:
        connection.close()


def test_one_row_that_cannot_be_read_hides_no_other(path: Path, capsys: Output) -> None:
    ids = asyncio.run(fill(f"sqlite:///{path}"))
    damage(path, "UPDATE ff_exec_core SET policy = '{' WHERE public_state = 'failed'")
    damage(path, "UPDATE ff_exec_core SET priority = -1 WHERE public_state = 'waiting'")
    broken = {(each["code"], each["subject"]) for each in found(capsys)}
    assert ("I12", ids["failed"]) in broken
    assert ("I11", ids["waiting"]) in broken


def test_ended_executions_that_nobody_deletes(path: Path, capsys: Output) -> None:
    asyncio.run(fill(f"sqlite:///{path}"))
    day_ms = 86_400_000
    for field in ("created_at_ms", "terminal_at_ms", "started_at_ms"):
        damage(path, f"UPDATE ff_exec_core SET {field} = {field} - {2 * day_ms} WHERE terminal_at_ms IS NOT NULL")
    (late,) = (each for each in found(capsys) if each["code"] == "late_retention")
    assert late["problem"].startswith("ended executions are not deleted: the oldest was due 24 h")
    assert "retention_trimmer" in late["do"]


def test_what_is_stuck(path: Path, capsys: Output) -> None:
    url = f"sqlite:///{path}"

    async def begin() -> None:
        async with await Engine.open(url, single_node=True) as engine:
            for _ in range(3):
                await engine.create_execution(execution_kind="import", lane_id="slow")
            await engine.create_execution(execution_kind="later", delay_until=await engine.now_ms() + 10_000)
            assert await engine.claim("slow", policy=ClaimPolicy("w", "w-1", 60_000)) is not None

    asyncio.run(begin())
    assert typed(capsys, "doctor")
    # An hour passes, and no process looks after anything.
    damage(path, "UPDATE ff_exec_core SET created_at_ms = created_at_ms - 3600000")
    damage(path, "UPDATE ff_exec_core SET started_at_ms = started_at_ms - 3600000 WHERE started_at_ms IS NOT NULL")
    damage(path, "UPDATE ff_attempt SET lease_expires_at_ms = lease_expires_at_ms - 3600000")
    damage(path, "UPDATE ff_exec_core SET delay_until_ms = delay_until_ms - 3600000 WHERE delay_until_ms IS NOT NULL")
    findings = found(capsys)
    assert {each["code"] for each in findings} == {"late_leases", "late_start", "unserved_lane"}
    text = typed(capsys, "doctor", code=3)
    assert "flowfabric worker module:app --lane slow" in text
    assert "2 runs waiting, the oldest for 60 min" in text
    typed(capsys, "lanes", "pause", "slow")
    assert "unserved_lane" not in {each["code"] for each in found(capsys)}, "a lane that is paused is meant to wait"


def test_torn_pages_are_reported(path: Path, capsys: Output) -> None:
    asyncio.run(fill(f"sqlite:///{path}"))
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = connection.execute("PRAGMA page_size").fetchone()[0]
    root = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'ff_lane_registry'").fetchone()[0]
    connection.close()
    data = bytearray(path.read_bytes())
    data[(root - 1) * size : root * size] = b"\xff" * size
    path.write_bytes(data)
    capsys.readouterr()
    said = complaint(capsys, "doctor", code=1) if not _reports(capsys) else "malformed"
    assert "malformed" in said


def _reports(capsys: Output) -> bool:
    """Whether the examination itself has found it; else the store has refused to go on."""
    from flowfabric.cli.application import run

    if run(["doctor", "--json"]) != 3:
        return False
    return any(each["code"] == "store" for each in json.loads(capsys.readouterr().out)["findings"])


@pytest.mark.parametrize("url", ["sqlite", "valkey"], indirect=True)
def test_a_busy_store_is_found_healthy(url: str) -> None:
    app = App(url)

    @app.task(retry=2)
    async def step(number: int) -> int:
        if number % 17 == 0:
            raise ValueError("unlucky")
        return number

    @app.workflow
    async def chain(number: int) -> int:
        return sum([await step(number * 10 + each) for each in range(1, 4)])

    async def examine() -> int:
        looked = 0
        async with await Engine.open(url, single_node=True) as engine:
            for _ in range(4):
                cursor = None
                while True:
                    page = await engine.examine(cursor, 50)
                    assert page.violations == ()
                    looked += page.looked
                    cursor = page.next_cursor
                    if cursor is None:
                        break
        return looked

    async def work() -> int:
        async with app, app.worker():
            runs = [await chain.start(number) for number in range(60)]
            looking = asyncio.ensure_future(examine())
            await asyncio.gather(*(run.result() for run in runs), return_exceptions=True)
            return await looking

    assert asyncio.run(work()) > 60


def test_a_bar_while_it_looks(path: Path, tmp_path: Path) -> None:
    async def start() -> None:
        async with App(f"sqlite:///{path}") as app:
            for _ in range(3):
                await app.engine.create_executions([{"execution_kind": "import"} for _ in range(1_000)])

    asyncio.run(start())
    with Terminal("doctor", cwd=tmp_path) as terminal:
        assert terminal.end() == 0
        assert re.search(r"examining.*━", terminal.text)
        assert "/3000" in terminal.text


def test_every_promise_that_is_checked_is_explained() -> None:
    checked = set()
    for module in (executions, flows, waits, budgets, events, streams):
        text = Path(module.__file__).read_text()
        checked |= set(re.findall(r'"(I\d+)"', text))
    # Told by two looks or by whole histories, which only tests have.
    assert checked - PROMISES.keys() == {"I4", "I6"}


def test_through_a_server(path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{path}"
    ids = asyncio.run(fill(url))
    with serving(url, ServerConfig(port=0, api_token="token-of-this-test")) as address:
        monkeypatch.setenv("FF_URL", address)
        monkeypatch.setenv("FF_API_TOKEN", "token-of-this-test")
        assert json.loads(typed(capsys, "doctor", "--json"))["ok"]
        damage(path, "UPDATE ff_exec_core SET priority = -1 WHERE public_state = 'failed'")
        assert [(each["code"], each["subject"]) for each in found(capsys)] == [("I11", ids["failed"])]


# -- the log of events and streams -----------------------------------------------------------------------------------

#: What somebody does to the database, and what the doctor says about it then.
DAMAGES = {
    "the end of one is deleted": "DELETE FROM ff_completion_event WHERE event_id = 1",
    "the end of one is told twice": (
        "INSERT INTO ff_completion_event (partition_key, execution_id, outcome, occurred_at_ms) "
        "SELECT partition_key, execution_id, outcome, occurred_at_ms FROM ff_completion_event WHERE event_id = 2"
    ),
    "another outcome": "UPDATE ff_completion_event SET outcome = 'cancelled' WHERE event_id = 3",
    "another time": "UPDATE ff_completion_event SET occurred_at_ms = occurred_at_ms + 1 WHERE event_id = 4",
    "times run backwards": (
        "UPDATE ff_lease_event SET occurred_at_ms = 1 WHERE event_id = (SELECT max(event_id) FROM ff_lease_event "
        "WHERE event_type <> 'acquired')"
    ),
    "an event without sense": "UPDATE ff_operator_event SET details = '[]'",
    "a frame is deleted": "DELETE FROM ff_stream_frame WHERE mode = 'durable'",
    "another summary": "UPDATE ff_stream_summary SET document_json = '{\"done\": 99}'",
}


def strike(url: str, *statements: str) -> None:
    """Change rows behind the engine's back."""
    if url.startswith("sqlite"):
        for each in statements:
            damage(Path(url.removeprefix("sqlite:///")), each)
        return

    async def execute() -> None:
        connection = await asyncpg.connect(url)
        try:
            for each in statements:
                assert not (await connection.execute(each)).endswith(" 0")
        finally:
            await connection.close()

    asyncio.run(execute())


@pytest.fixture
def at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody works on the store: what is wrong there is looked at as often as ever, and at once."""
    monkeypatch.setattr(examine, "_PAUSES_S", tuple(0.0 for _ in examine._PAUSES_S))


async def some_ends(url: str) -> list[str]:
    """Executions that have ended, output of one of them, and something an operator did."""
    async with await Engine.open(url, single_node=True) as engine:
        made = [str((await engine.create_execution(namespace="acme")).execution_id) for _ in range(4)]
        policy = ClaimPolicy("w", "w-1", 60_000)
        ids = []
        for _ in made:
            handle = await engine.claim("default", policy=policy)
            assert handle is not None
            ids.append(str(handle.execution_id))
            if len(ids) == 1:
                await engine.append_frame(handle, Frame(b'{"done": 1}', mode=DurableSummary()))
                await engine.append_frame(handle, Frame(b"text"))
            await engine.complete(handle, None)
        await engine.set_lane_state(lane_id="slow", state="paused")
        return ids


@pytest.mark.usefixtures("at_rest")
def test_a_damaged_log_and_damaged_streams_are_named(url: str, capsys: Output) -> None:
    ids = asyncio.run(some_ends(url))
    assert json.loads(typed(capsys, "doctor", "--json"))["ok"]
    strike(url, *DAMAGES.values())
    findings = {(each["code"], each["subject"]): each for each in found(capsys)}
    stream = f"{ids[0]} attempt 1"
    wanted = {
        ("I20", ids[0]): "its end is not announced",
        ("I8", ids[1]): "2 ends announced, 0 replays",
        ("I20", ids[2]): "is announced as cancelled",
        ("I20", ids[3]): "the last end announced was at",
        ("I19", "ff_lease_event"): "has an earlier time than event",
        ("I20", "ff_operator_event"): "cannot be read: ",
        ("I33", stream): "",
    }
    if url.startswith("sqlite"):  # numbers have no holes there
        wanted["I34", "ff_completion_event"] = "event 1 missing"
    assert findings.keys() == wanted.keys()
    for key, said in wanted.items():
        assert said in findings[key]["problem"]
        assert findings[key]["do"]
    streams = " ".join(each["problem"] for each in found(capsys) if each["subject"] == stream)
    assert "its head counts 2 frames, but 1 is stored" in streams
    assert "is the newest frame" in streams
    assert "its summary does not match its frames" in streams
    text = typed(capsys, "doctor", code=3)
    assert "Broken invariant I20: the event log records every change correctly" in text


@pytest.mark.usefixtures("at_rest")
def test_numbers_that_would_be_given_twice(url: str, capsys: Output) -> None:
    """As after a backup that was restored without its counters, and a log that is said to be deleted further than it
    ever went: whoever has read events would not see the next ones."""
    asyncio.run(some_ends(url))
    lower = "UPDATE sqlite_sequence SET seq = 1 WHERE name = 'ff_completion_event'"
    if not url.startswith("sqlite"):
        lower = "SELECT setval(pg_get_serial_sequence('ff_completion_event', 'event_id'), 1)"
    ahead = (
        "INSERT INTO ff_event_horizon (outbox, trimmed_through, trimmed_before_ms) VALUES ('ff_lease_event', 999, 0)"
    )
    strike(url, lower, ahead)
    findings = {(each["code"], each["subject"]): each["problem"] for each in found(capsys)}
    assert findings.keys() == {("I19", "ff_completion_event"), ("I19", "ff_lease_event")}
    assert "the last number handed out is 1, but there are numbers up to 4" in findings["I19", "ff_completion_event"]
    assert "there are numbers up to 999" in findings["I19", "ff_lease_event"]
