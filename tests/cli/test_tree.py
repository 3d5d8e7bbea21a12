"""What holds for every command: JSON, help with examples, and a page that says what help says."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import pytest

from flowfabric.cli import application
from flowfabric.cli.application import run as flowfabric
from tests.docs.test_commands import commands

EVERY = list(commands())


@pytest.mark.parametrize(("path", "command"), EVERY, ids=[" ".join(path) for path, _ in EVERY])
def test_every_command(path: tuple[str, ...], command: Any) -> None:
    names = {name for argument in command.assemble_argument_collection() for name in argument.names}
    assert "--json" in names
    shown = help_of(path)
    assert command.help.strip()
    assert "Examples:" in shown
    assert f"flowfabric {' '.join(path)}" in shown.partition("Examples:")[2]
    for argument in command.assemble_argument_collection():
        assert not argument.show or argument.parameter.help, f"{argument.name} is explained"


def help_of(path: tuple[str, ...]) -> str:
    """What ``--help`` prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert flowfabric([*path, "--help"]) == 0
    return out.getvalue()


def codes() -> Iterator[tuple[str, int]]:
    for name in ("OK", "REFUSED", "MISUSED", "PROBLEMS", "INTERRUPTED"):
        yield name, getattr(application, name)


def test_exit_codes_are_few_and_different() -> None:
    assert dict(codes()) == {"OK": 0, "REFUSED": 1, "MISUSED": 2, "PROBLEMS": 3, "INTERRUPTED": 130}
