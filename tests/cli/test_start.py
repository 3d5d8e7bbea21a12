"""``flowfabric run`` and ``flowfabric submit``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowfabric import App
from flowfabric.cli.run_ids import short
from flowfabric.server import ServerConfig
from tests.cli.filling import WORK, Output, complaint, typed
from tests.sdk.serving import serving


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "work.py").write_text(WORK)
    monkeypatch.chdir(tmp_path)
    for name in ("FF_URL", "FF_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    paths = list(sys.path)
    yield tmp_path
    sys.path[:] = paths
    sys.modules.pop("work", None)


@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        (["Ann"], "hello Ann"),
        (["name=Ann", "times=2"], "hello, hello Ann"),
        (["Ann", "2", "true"], "HELLO, HELLO Ann"),
        (['{"name": "Ann", "loud": true}'], "HELLO Ann"),
        (['["Ann", 3]'], "hello, hello, hello Ann"),
        (["7"], "hello 7"),
        (["name=a=b"], "hello a=b"),
        (["true"], "hello true"),
    ],
)
def test_arguments_as_they_are_typed(capsys: Output, arguments: list[str], result: str) -> None:
    assert typed(capsys, "run", "work.py", "greet", *arguments, "--here") == f'"{result}"\n'


def test_frames_and_a_result(capsys: Output) -> None:
    assert typed(capsys, "run", "work:app", "double", "21", "--here") == "working hard\n42\n"
    lines = [
        json.loads(line) for line in typed(capsys, "run", "work:app", "double", "4", "--here", "--json").splitlines()
    ]
    assert [each.get("text") for each in lines] == ["working ", "hard", None]
    assert (lines[-1]["state"], lines[-1]["result"]) == ("completed", 8)


def test_a_run_that_fails(capsys: Output) -> None:
    capsys.readouterr()
    assert "no good" in _failure(capsys, "run", "work.py", "broken", "--here")
    last = json.loads(typed(capsys, "run", "work.py", "broken", "--here", "--json", code=1).splitlines()[-1])
    assert last["state"] == "failed"
    assert "no good" in last["error"]


def _failure(capsys: Output, *arguments: str) -> str:
    from flowfabric.cli.application import run

    assert run(list(arguments)) == 1
    return capsys.readouterr().err


def test_what_is_submitted_is_there(folder: Path, capsys: Output) -> None:
    first = typed(capsys, "submit", "work.py", "greet", "Ann", "--tag", "team=docs", "--priority", "5").strip()
    again = json.loads(typed(capsys, "submit", "work.py", "greet", "Bob", "--id", "bob", "--json"))["run"]
    assert typed(capsys, "submit", "work.py", "greet", "Bob", "--id", "bob").strip() == again
    raw = typed(capsys, "submit", "double", '{"value": 5}').strip()
    pairs = typed(capsys, "submit", "double", "value=6", "--delay", "1h", "--lane", "later").strip()
    odd = typed(capsys, "submit", "--kind", "a:b", "--namespace", "other").strip()

    async def look() -> None:
        async with App("sqlite:///flowfabric.db") as app:
            engine = app.engine
            assert json.loads((await engine.read_execution_context(first)).input_payload) == {"name": "Ann"}
            assert (await engine.read_execution_context(first)).tags == {"user.team": "docs"}
            assert json.loads((await engine.read_execution_context(raw)).input_payload) == {"value": 5}
            assert json.loads((await engine.read_execution_context(pairs)).input_payload) == {"value": 6}
            info = await engine.read_execution_info(pairs)
            assert info is not None
            assert (info.public_state.value, info.lane_id) == ("delayed", "later")
            assert (await engine.read_execution_info(odd)).namespace == "other"  # type: ignore[union-attr]

    asyncio.run(look())


#: As a worker announces a task with a lane, a policy and an id of its own.
DOUBLE = {
    "noun": "task", "lane_id": "sums", "priority": 7, "tags": {"user.team": "maths"}, "id": "double:{value}",
    "policy": {"max_reclaim_count": 7},
    "input": {"type": "object", "properties": {"value": {"type": "integer"}}, "required": ["value"]},
}  # fmt: skip
KEYED = {"noun": "task", "by_code": "its limits apply to each value of 'x' by itself"}


@pytest.mark.parametrize("through", ["store", "server"])
def test_a_kind_that_was_announced_is_started_as_its_code_does(
    folder: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch, through: str
) -> None:
    """Whoever does not have the code gets the same run: the lane, the retries and the id that it declares."""

    async def announced() -> None:
        async with App("sqlite:///flowfabric.db") as app:
            strict = {**DOUBLE, "id": "strict:{value}", "reuse": "reject"}
            found = {"double": DOUBLE, "keyed": KEYED, "other": DOUBLE, "a/b c": DOUBLE, "strict": strict}
            await app.engine.announce_kinds("default", found)

    async def look(run: str) -> tuple[Any, ...]:
        async with App("sqlite:///flowfabric.db") as app:
            info = await app.engine.read_execution_info(run)
            context = await app.engine.read_execution_context(run)
            policy = json.loads((await app.engine.read_history(run)).policy or "{}")
            assert info is not None
            return info.lane_id, info.priority, info.public_state.value, context.tags, policy.get("max_reclaim_count")

    asyncio.run(announced())
    with contextlib.ExitStack() as stack:
        if through == "server":
            config = ServerConfig(port=0, api_token="token-of-this-test")
            monkeypatch.setenv("FF_URL", stack.enter_context(serving(f"sqlite:///{folder}/flowfabric.db", config)))
            monkeypatch.setenv("FF_API_TOKEN", "token-of-this-test")
        run = typed(capsys, "submit", "double", "value=5").strip()
        assert typed(capsys, "submit", "double", '{"value": 5}').strip() == run
        assert asyncio.run(look(run)) == ("sums", 7, "waiting", {"user.team": "maths"}, 7)
        given = ("--lane", "later", "--priority", "9", "--tag", "who=me", "--delay", "1h", "--id", "mine")
        own = typed(capsys, "submit", "double", "value=5", *given).strip()
        assert typed(capsys, "submit", "double", "value=5", *given).strip() == own != run
        tags = {"user.team": "maths", "user.who": "me"}
        assert asyncio.run(look(own)) == ("later", 9, "delayed", tags, 7)
        assert asyncio.run(look(typed(capsys, "submit", "--kind", "a/b c", "value=1").strip()))[0] == "sums"
        code = 1 if through == "server" else 2
        assert "value is not integer" in complaint(capsys, "submit", "double", "value=x", code=code)
        assert "only by its code: its limits" in complaint(capsys, "submit", "keyed", code=code)
        assert "belongs to an execution of 'double'" in complaint(capsys, "submit", "other", "value=5", code=1)
        first = typed(capsys, "submit", "strict", "value=1").strip()
        assert short(first) in complaint(capsys, "submit", "strict", "value=1", code=1)
        # Nobody has announced it: it is created as it is.
        unknown = typed(capsys, "submit", "unknown", "value=x").strip()
        assert asyncio.run(look(unknown)) == ("default", 0, "waiting", {}, None)


def test_through_a_server(folder: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(f"sqlite:///{folder}/flowfabric.db", ServerConfig(port=0, api_token="token-of-this-test")) as address:
        monkeypatch.setenv("FF_URL", address)
        monkeypatch.setenv("FF_API_TOKEN", "token-of-this-test")
        assert typed(capsys, "run", "work.py", "double", "21", "--here") == "working hard\n42\n"
        run = typed(capsys, "submit", "work.py", "greet", "Ann").strip()
        kind = typed(capsys, "submit", "greet", "name=Bob").strip()
        assert {each["execution_id"] for each in json.loads(typed(capsys, "list", "--kind", "greet", "--json"))} == {
            run,
            kind,
        }
        assert "FF_API_TOKEN" in complaint(capsys, "submit", "work.py", "greet", "Ann", "--token", "another", code=1)
        assert typed(capsys, "check", "work.py") == "ok  this code can continue all workflows in progress: 0\n"
    assert "transport" in complaint(capsys, "submit", "work.py", "greet", "Ann", code=1)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("run", "work.py", "nothing"), "known: broken, double, greet"),
        (("run", "work.py", "greet"), "missing: name"),
        (("run", "work.py", "double", "many"), "Expected `int`"),
        (("run", "work.py", "double", "1", "2"), "double takes value=…"),
        (("run", "work.py", "greet", "Ann", "--delay", "soon"), "90s"),
        (("submit", "work.py"), "name a task or workflow"),
        (("submit", "work.py", "greet", "Ann", "--tag", "team"), "key=value"),
        (("submit", "double", "nonsense"), "key=value"),
        (("submit", "double", "a=1", "b"), "key=value"),
        (("submit", "work.py", "greet", "--dely"), "--dely: unknown option"),
        (("submit", "double", "--dely=1h"), "--dely=1h: unknown option"),
    ],
)
def test_what_is_typed_wrongly(capsys: Output, arguments: tuple[str, ...], told: str) -> None:
    assert told in complaint(capsys, *arguments)


def test_an_app_that_cannot_be_imported(folder: Path, capsys: Output) -> None:
    (folder / "torn.py").write_text("from flowfabric import App\napp = App(\n")
    assert "SyntaxError" in complaint(capsys, "run", "torn.py", "greet")
    (folder / "hurt.py").write_text("raise ValueError('at import')\n")
    assert "ValueError: at import" in complaint(capsys, "run", "hurt.py", "greet")
