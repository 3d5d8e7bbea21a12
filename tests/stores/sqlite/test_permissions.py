"""The files of a SQLite database are their owner's alone, and wider ones are told of."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flowfabric.cli.application import run as main
from flowfabric.engine import Engine
from flowfabric.sdk.app import App
from flowfabric.stores.sqlite import permissions
from tests.contract.probe import claimed


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {each.name: stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()}


@pytest.mark.parametrize("mask", [0, 0o022, 0o077, 0o277])
@pytest.mark.parametrize("form", ["sqlite:///{}", "sqlite:////{}", "file:{}", "file:{}?mode=rwc"])
async def test_new_files_are_private_whatever_the_umask(tmp_path: Path, mask: int, form: str) -> None:
    with umask(mask):
        async with await Engine.open(form.format(tmp_path / "ff.db"), single_node=True) as engine:
            await claimed(engine)
            assert modes(tmp_path) == {"ff.db": 0o600, "ff.db-wal": 0o600, "ff.db-shm": 0o600}
    assert set(modes(tmp_path).values()) == {0o600}


async def test_apps_make_private_files_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with umask(0):
        async with App(f"sqlite:///{tmp_path}/app.db") as app:
            await app.engine.ping()
    assert modes(tmp_path) == {"app.db": 0o600}


def test_commands_make_private_files_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with umask(0):
        assert main(["db", "migrate", "--url", f"sqlite:///{tmp_path}/ff.db"]) == 0
        assert main(["token", "create", "ci", "--scope", "read", "--url", f"sqlite:///{tmp_path}/ff.db"]) == 0
    assert set(modes(tmp_path).values()) == {0o600}


async def test_a_wider_file_is_told_of_once_and_left_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "it's.db"
    async with await Engine.open(f"sqlite:///{path}", single_node=True):
        pass
    assert not caplog.records
    path.chmod(0o640)
    for _ in range(2):
        async with await Engine.open(f"sqlite:///{path}", single_node=True) as engine:
            await claimed(engine)
            # What is made beside it has its mode.
            assert set(modes(tmp_path).values()) == {0o640}
    [line] = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert str(path) in line
    assert f"chmod 600 '{tmp_path}/it'\"'\"'s.db'" in line
    assert permissions.exposed_files(f"sqlite:///{path}") == (str(path),)


def test_doctor_and_check_show_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, url = tmp_path / "ff.db", f"sqlite:///{tmp_path}/ff.db"
    assert main(["db", "migrate", "--url", url]) == 0
    capsys.readouterr()
    assert main(["doctor", "--json", "--url", url]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []
    path.chmod(0o604)
    assert main(["doctor", "--quick", "--json", "--url", url]) == 3
    [finding] = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["kind"], finding["code"], finding["subject"]) == ("exposed", "readable_by_others", str(path))
    assert finding["do"] == f"Run `chmod 600 {path}`"
    assert main(["db", "check", "--json", "--url", url]) == 0
    assert json.loads(capsys.readouterr().out)["readable_by_others"] == [str(path)]
    assert main(["db", "check", "--url", url]) == 0
    assert "chmod" in capsys.readouterr().out


@pytest.mark.parametrize(
    "url", ["memory://", "sqlite:///:memory:", "file:x?mode=memory&cache=shared", "postgresql://x/y"]
)
def test_what_is_no_file(url: str) -> None:
    assert permissions.exposed_files(url) == ()
