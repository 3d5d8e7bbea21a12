"""What importing loads, and what it does not."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import flowfabric
import flowfabric.stores
from flowfabric import Transport
from flowfabric.engine import Engine
from flowfabric.stores.migration_plan import plan

#: What no client needs: stores, servers and what users may not have.
HEAVY = ("asyncpg", "libvalkey", "pydantic", "psycopg", "sqlalchemy", "fastapi", "starlette", "uvicorn", "cronsim",
         "opentelemetry", "flowfabric.stores", "flowfabric.server", "flowfabric.console", "flowfabric.cli")  # fmt: skip


def loaded_by(program: str) -> set[str]:
    """The modules that a program has loaded when it ends."""
    shown = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(shown.stdout.split())


def within(modules: set[str], *names: str) -> set[str]:
    return {module for module in modules for name in names if module == name or module.startswith(name + ".")}


def test_the_package_alone_loads_little() -> None:
    modules = loaded_by("import flowfabric")
    assert not within(modules, *HEAVY, "flowfabric.sdk", "flowfabric.engine", "flowfabric.core")


def test_an_app_loads_no_engine_before_it_opens() -> None:
    modules = loaded_by(
        "from flowfabric import App, Retry, minutes\n"
        "app = App('postgresql://nowhere/x')\n"
        "@app.task(retry=Retry(3), timeout=minutes(1))\n"
        "def task(a: int, b: list[str]) -> dict[str, int]: ...\n"
        "@app.workflow(id='x:{a}')\n"
        "async def flow(a: int) -> None: ...\n"
    )
    assert not within(modules, *HEAVY, "flowfabric.engine", "flowfabric.sdk.worker")


def test_an_app_on_sqlite_loads_no_other_store() -> None:
    modules = loaded_by(
        "import asyncio\n"
        "from flowfabric import App\n"
        "app = App('memory://')\n"
        "@app.task\n"
        "def task() -> None: ...\n"
        "async def main():\n"
        "    async with app:\n"
        "        await task.start()\n"
        "asyncio.run(main())\n"
    )
    others = ("asyncpg", "libvalkey", "flowfabric.stores.postgres", "flowfabric.stores.valkey")
    assert not within(modules, *others, "pydantic", "fastapi", "flowfabric.server")


def test_every_name_is_there() -> None:
    assert len(set(flowfabric.__all__)) == len(flowfabric.__all__)
    for name in flowfabric.__all__:
        assert getattr(flowfabric, name) is not None
        assert name in dir(flowfabric)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = flowfabric.Nothing


def test_type_checkers_see_the_same_names() -> None:
    stub = ast.parse(Path(flowfabric.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    homes = {
        alias.asname: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }
    assert homes == {name: f"flowfabric.{module}" for name, module in flowfabric._HOMES.items()}  # type: ignore[attr-defined]


def forget_store(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nothing of a store had been imported yet, until the test ends."""
    for module in within(set(sys.modules), f"flowfabric.stores.{name}"):
        monkeypatch.delitem(sys.modules, module)
    # The package also remembers its parts as attributes; those of a second import must not outlive the test.
    monkeypatch.delattr(flowfabric.stores, name, raising=False)


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [("postgresql://nowhere/x", "asyncpg", "postgres"), ("valkey://nowhere/0", "libvalkey", "valkey")],
)
async def test_a_store_whose_package_is_missing_says_how_to_get_it(
    url: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_store(extra, monkeypatch)
    monkeypatch.setitem(sys.modules, package, None)
    sentence = re.escape(f"the package {package} is not installed; install it with: pip install 'flowfabric[{extra}]'")
    with pytest.raises(Transport, match=sentence):
        await Engine.open(url)
    with pytest.raises(Transport, match=sentence):
        await plan(url)


async def test_any_other_module_that_is_missing_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_store("valkey", monkeypatch)
    monkeypatch.setitem(sys.modules, "flowfabric.stores.valkey.keys", None)
    with pytest.raises(ModuleNotFoundError, match="keys"):
        await Engine.open("valkey://nowhere/0")
