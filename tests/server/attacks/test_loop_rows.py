"""A row that cannot be read hides no other: every list is still answered, and every answer is one that was promised."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from flowfabric import App, Ask, days, seconds
from flowfabric.engine import Engine
from flowfabric.model.operations.access import Scope
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.routes import ROUTES
from tests.schedules import every
from tests.server.access.test_roles import FOLLOWED, request_of, things
from tests.server.conftest import client_of

DAY_MS = 24 * 60 * 60 * 1_000
DEEP = "[" * 2_000 + "]" * 2_000
BAD = {
    "deep list": DEEP,
    "deep object": '{"a":' * 2_000 + "1" + "}" * 2_000,
    "object inside": '{"a":{"b":1}}',
    "no JSON": "{oops",
    "another shape": "[1]",
    "deep inside": f'{{"question":"q","show":{DEEP},"of":[],"need":1,"within_ms":null,"schema":{{}},"approves":null}}',
}
#: Reads whose paths name nothing: the lists.
LISTS = [each for each in ROUTES if each.method == "GET" and "{" not in each.path and each.name not in FOLLOWED]
READS = [each for each in ROUTES if each.method == "GET" and "{" in each.path and each.name not in FOLLOWED]


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    made = App(f"sqlite:///{tmp_path}/ff.db")

    @made.workflow
    async def review(draft: str) -> bool:
        return await Ask("publish?", bool, show={"draft": draft}, of={"ann"}, within=days(3))

    async with made:
        async with made.worker():
            for draft in ("one", "two"):
                [_] = await made.asks(await review.start(draft), wait=seconds(60))
        # What is stored from here on stays as it is: there is no worker that would take it.
        yield made


async def fill(engine: Engine) -> str:
    """Two of everything that has a list; the token of somebody who may read all."""
    for number in ("1", "2"):
        await things(engine, "default")
        await engine.create_credential(name=number, scopes=["read"], namespaces=["default"])
        await engine.put_schedule(schedule_id=number, spec=every(DAY_MS), execution_kind="x", tags={"a": number})
        await engine.set_lane_state(f"lane-{number}", "paused")
    return (await engine.create_credential(name="all", scopes=list(Scope))).token


class Stored(NamedTuple):
    """A stored document: where it is, and what it says."""

    table: str
    column: str
    keys: dict[str, Any]
    value: Any

    def write(self, database: sqlite3.Connection, value: Any) -> bool:
        """Replace it; false if the table itself keeps that out."""
        where = " AND ".join(f"{each} = ?" for each in self.keys)
        text = f"UPDATE {self.table} SET {self.column} = ? WHERE {where}"
        try:
            assert database.execute(text, (value, *self.keys.values())).rowcount == 1
        except sqlite3.IntegrityError:
            return False
        return True

    def spoil(self, database: sqlite3.Connection, name: str) -> bool:
        """Make it one of the bad ones."""
        return self.write(database, BAD[name].encode() if isinstance(self.value, bytes) else BAD[name])


def documents(database: sqlite3.Connection) -> list[Stored]:
    """A stored document of every column that holds any."""
    found = []
    tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'ff_%'").fetchall()
    for (table,) in tables:
        columns = database.execute(f"PRAGMA table_info({table})").fetchall()
        keys = [each[1] for each in columns if each[5]] or ["rowid"]
        for _, column, *_ in columns:
            if column in keys:
                continue
            text = f"SELECT {', '.join(keys)}, {column} FROM {table} WHERE {column} IS NOT NULL"
            for *row, value in database.execute(text).fetchall():
                shown = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
                if isinstance(shown, str) and shown[:1] in ("{", "[") and not shown.startswith("{fp:"):
                    found.append(Stored(table, column, dict(zip(keys, row, strict=True)), value))
                    break
    return found


def lengths(body: Any) -> dict[str, int]:
    return (
        {name: len(value) for name, value in body.items() if isinstance(value, list)} if isinstance(body, dict) else {}
    )


async def listed(client: httpx.AsyncClient) -> dict[str, dict[str, int]]:
    """How long every list is."""
    about = {"family": "operator_event"}
    found = {}
    for operation in LISTS:
        if operation.name == "metrics":
            continue
        response = await client.get(operation.path, params=about)
        assert response.status_code < 500, (operation.path, response.text)
        if operation.media == "application/json" and response.status_code == 200:
            found[operation.path] = lengths(json.loads(response.content))
    return found


async def test_no_stored_document_breaks_a_list(app: App, tmp_path: Path) -> None:
    token = await fill(app.engine)
    server = create_app(app.engine, ServerConfig(metrics=False))
    database = sqlite3.connect(tmp_path / "ff.db", isolation_level=None, timeout=60)
    async with client_of(server, token) as client:
        before = await listed(client)
        assert before["/v1/asks"] == {"asks": 2}
        assert sum(sum(each.values()) for each in before.values()) > 20
        poisoned = documents(database)
        assert {each.table for each in poisoned} >= {"ff_exec_core", "ff_flow_core", "ff_schedule", "ff_budget_policy"}
        for each in poisoned:
            for name in BAD:
                if not each.spoil(database, name):
                    continue
                after = await listed(client)
                for path, counts in before.items():
                    assert after[path] == counts, (each.table, each.column, name, path)
                assert len(await app.asks()) == 2, (each.table, each.column, name)
                each.write(database, each.value)
    database.close()


async def test_a_question_that_cannot_be_read_is_shown_as_such(app: App, tmp_path: Path) -> None:
    server = create_app(app.engine, ServerConfig())
    [first, second] = await app.asks()
    with sqlite3.connect(tmp_path / "ff.db", isolation_level=None, timeout=60) as database:
        uuid = first.id.partition(":")[2].partition(":")[2] or first.id[-36:]
        changed = database.execute(
            "UPDATE ff_exec_core SET payload = ? WHERE lower(hex(execution_id)) = ? OR execution_id = ?",
            (BAD["deep inside"].encode(), uuid.replace("-", ""), uuid),
        )
        assert changed.rowcount == 1
    async with client_of(server) as client:
        shown = {each["execution_id"]: each for each in (await client.get("/v1/asks")).json()["asks"]}
        assert shown[second.id]["question"] == "publish?"
        assert "cannot be read" in shown[first.id]["question"]
    bad = next(each for each in await app.asks() if each.id == first.id)
    assert "cannot be read" in bad.question
    for value in (True, None, {}, "x"):
        with pytest.raises(Exception, match="is not valid"):
            await bad.answer(value)


async def test_reads_of_one_thing_never_break_either(app: App, tmp_path: Path) -> None:
    """What cannot be read is corruption, said with its code; nothing fails in a way that nobody has thought of."""
    server = create_app(app.engine, ServerConfig())
    about = await things(app.engine, "default")
    [ask, _] = await app.asks()
    database = sqlite3.connect(tmp_path / "ff.db", isolation_level=None, timeout=60)
    async with client_of(server) as client:
        for each in documents(database):
            for name in ("deep list", "deep object"):
                if not each.spoil(database, name):
                    continue
                for operation in READS:
                    for identity in (about.execution, ask.id):
                        path, options = request_of(operation, about._replace(execution=identity))
                        response = await client.get(path, **options)
                        if response.status_code >= 500:
                            assert response.json()["kind"] == "corruption", (each, operation.path)
                each.write(database, each.value)
    database.close()
