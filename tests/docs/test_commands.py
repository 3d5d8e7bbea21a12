"""docs/commands.md says what the commands say about themselves.

``./dev run python -m tests.docs.test_commands`` writes its reference anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flowfabric.cli.application import loaded

PAGE = Path(__file__).resolve().parents[2] / "docs" / "commands.md"
BEGIN = "<!-- made from the commands: ./dev run python -m tests.docs.test_commands -->\n"
SHARED = ("--url", "--token", "--json")


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that can be typed, with its path."""
    yield from _below((), loaded())


def _below(path: tuple[str, ...], home: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    if path and home.default_command is not None:
        yield path, home
    for name in sorted(home):
        if not name.startswith("-"):
            yield from _below((*path, name), home[name])


def reference() -> str:
    """Every command: what it does, what it takes, examples."""
    parts = []
    for path, command in commands():
        parts.append(f"### `flowfabric {' '.join(path)}`\n")
        parts.append(" ".join(_help(command).split()) + "\n")
        rows = list(_rows(command))
        if rows:
            parts.append("| | |\n|---|---|\n" + "\n".join(rows) + "\n")
        parts.append("```console\n" + "\n".join(_examples(command)) + "\n```\n")
    return "\n".join(parts)


def _help(command: Any) -> str:
    text: str = command.default_command.__doc__ or command.help
    return text


def _rows(command: Any) -> Iterator[str]:
    for argument in command.assemble_argument_collection():
        names = [name for name in argument.names if not name.startswith("--no-")] or [argument.name]
        if not argument.show or names[0] in SHARED:
            continue
        typed = ", ".join(f"`{name}`" for name in names)
        yield f"| {typed} | {argument.parameter.help}{_default(argument)} |"


def _default(argument: Any) -> str:
    default = argument.field_info.default
    if default in (None, False, (), "") or default is argument.field_info.empty or default is True:
        return ""
    return f" Default: `{default}`."


def _examples(command: Any) -> Iterator[str]:
    for line in (command.help_epilogue or "").splitlines():
        if line.startswith("  "):
            yield f"$ {line.strip()}"


def test_the_page_says_what_the_commands_say() -> None:
    _, begin, found = PAGE.read_text().partition(BEGIN)
    assert begin
    assert found == "\n" + reference(), "write it anew: ./dev run python -m tests.docs.test_commands"


if __name__ == "__main__":
    head, begin, _ = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(head + BEGIN + "\n" + reference())
