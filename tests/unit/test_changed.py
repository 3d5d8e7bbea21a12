"""`./dev test --changed` finds the tests that a change could affect."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.changed import ROOT, affected, changed_files

FILES = {
    "src/flowfabric/__init__.py": "",
    "src/flowfabric/__init__.pyi": "from flowfabric.sdk.app import App as App\n",
    "src/flowfabric/sdk/__init__.py": "",
    "src/flowfabric/sdk/app.py": "from flowfabric.core import rule\n",
    "src/flowfabric/core/__init__.py": "",
    "src/flowfabric/core/rule.py": "",
    "src/flowfabric/server/__init__.py": "from flowfabric.server.routes import lanes\n",
    "src/flowfabric/server/routes/__init__.py": "",
    "src/flowfabric/server/routes/lanes.py": "",
    "src/flowfabric/server/console/static/page.js": "",
    "src/flowfabric/cli/__init__.py": "from flowfabric.cli import application\n",
    "src/flowfabric/cli/application.py": "",
    "src/flowfabric/cli/commands/lanes.py": "SHOWN = 'flowfabric lanes pause'\n",
    "tests/sdk/test_app.py": "from flowfabric import App\n",
    "tests/server/conftest.py": "from flowfabric.server import create_app\n",
    "tests/server/test_routes.py": "",
    "tests/sdk/test_remote.py": "from flowfabric.server import create_app\n",
    "tests/sdk/test_lanes.py": "from flowfabric.server.routes.lanes import state\n",
    "tests/cli/test_lanes.py": "from flowfabric.cli import run\n\nrun('lanes')\n",
    "tests/cli/test_runs.py": "from flowfabric.cli import run\n\nrun('runs')\n",
    "tests/console/test_page.py": "",
    "tests/docs/test_pages.py": "",
    "tests/words/test_words.py": "",
    "docs/page.md": "",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository of few files, with a branch beside `main`."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for command in (
        ("init", "-q", "-b", "main"),
        ("add", "."),
        ("commit", "-q", "-m", "all"),
        ("checkout", "-qb", "b"),
    ):
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e", *command], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("src/flowfabric/core/rule.py", ["sdk/test_app.py"]),
        ("tests/server/conftest.py", ["server/test_routes.py"]),
        ("tests/cli/test_runs.py", ["cli/test_runs.py"]),
        # One route: its interface, and whoever imports it by name.
        ("src/flowfabric/server/routes/lanes.py", ["sdk/test_lanes.py", "server/test_routes.py"]),
        ("src/flowfabric/cli/commands/lanes.py", ["cli/test_lanes.py"]),
        ("src/flowfabric/server/console/static/page.js", ["console/test_page.py"]),
        ("docs/page.md", ["docs/test_pages.py"]),
        ("LICENSE", []),
    ],
)
def test_what_a_change_affects(root: Path, changed: str, tests: list[str]) -> None:
    read = ["words/test_words.py"] if changed.startswith(("src/", "docs/")) else []
    assert affected([changed], root) == [f"tests/{each}" for each in [*tests, *read]]


@pytest.mark.parametrize("changed", ["dev", "pyproject.toml", "requirements.lock", "tests/conftest.py"])
def test_what_affects_everything(root: Path, changed: str) -> None:
    assert affected(["LICENSE", changed], root) == ["tests"]


def test_what_was_changed_is_committed_or_not(root: Path) -> None:
    assert changed_files(root) == []
    (root / "docs/page.md").write_text("changed")
    subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e", "commit", "-qam", "one"], cwd=root, check=True)
    (root / "LICENSE").write_text("new")
    (root / "src/flowfabric/core/rule.py").write_text("x = 1\n")
    assert changed_files(root) == ["LICENSE", "docs/page.md", "src/flowfabric/core/rule.py"]


def test_files_here_affect_their_own_tests() -> None:
    assert "tests/contract/leases/test_claim.py" in affected(["src/flowfabric/core/leases/claim.py"], ROOT)
