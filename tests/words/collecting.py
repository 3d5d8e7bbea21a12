"""Finds every sentence that people can see: in the program by its syntax tree, in the console by its texts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "flowfabric"
CONSOLE = SOURCE / "server" / "console" / "static"

#: Modules whose texts are lists of names.
_LISTS = (SOURCE / "__init__.py", SOURCE / "engine" / "operation_table.py")
#: Something of more than one word: what is shorter is a name, a unit or a code.
_PROSE = re.compile(r"\S\s+\S")
_WORD = re.compile(r"[A-Za-z]{2}")
#: Texts for machines: Lua, regular expressions, HTTP, HTML, style sheets, shells and types.
_CODE = re.compile(
    r"#!lua|\\[swdb]|\(\.[+*]\)|\[\^|\r\n|<!doctype|<tr>|\{font:|default-src|# (HELP|TYPE) |compdef|complete -c"
    r"|compgen|__fish_|2>/dev/null|^Callable\[|^asyncio\.Queue\[|charset=|\x00"
)
#: What only the stores say to their databases.
_SQL = re.compile(
    r"\b(SELECT|INSERT|UPDATE|DELETE|FROM|WHERE|JOIN|UNION|VALUES|BEGIN|COMMIT|ROLLBACK|PRAGMA|RETURNING|LIMIT|LOCKED|NOWAIT|"
    r"ORDER BY|ON CONFLICT|IS NULL|IS NOT|NOT IN|OR NOT|NOTIFY|LISTEN|SHOW|DESC|SAVEPOINT|ROW|ARRAY|CREATE|CASE)\b"
    r"| (AND|AS|IN|OR|SET) |\{\} |<= |>= |<> | < | > | = |^ff_\w+ \w$|::|\(\w+, \w+"
    r"|coalesce\(|json_extract\(|COLLATE|partition_key, "
)
#: Calls whose texts are seen even if they are a single word.
_SAYS = {"say", "told", "Misused", "show_table"}


def modules() -> list[Path]:
    """The program's modules, in the order of their names."""
    return sorted(path for path in SOURCE.rglob("*.py") if path not in _LISTS)


def sentences(path: Path) -> list[str]:
    """What a module can show, each text once: placeholders are ``{…}``, spaces and line breaks one space."""
    tree = ast.parse(path.read_text())
    is_command_line = "cli" in path.relative_to(SOURCE).parts
    silent = _silent(tree)
    spoken = _spoken(tree) if is_command_line else set()
    for_machines = (_CODE, _SQL) if "stores" in path.parts or path.name == "enqueue.py" else (_CODE,)
    found = {
        _plain(text)
        for node in ast.walk(tree)
        if id(node) not in silent and (text := _text(node)) is not None
        if (_PROSE.search(text) or id(node) in spoken) and _WORD.search(text.replace("{…}", ""))
        if not any(pattern.search(text) for pattern in for_machines)
    }
    if is_command_line:
        found |= {_plain(text) for text in _help(tree)}
    return sorted(found)


def recorded(found: dict[str, list[str]]) -> str:
    """The list as it is kept: one part for each module, one line for each sentence."""
    return "\n".join(f"# {name}\n" + "\n".join(lines) + "\n" for name, lines in found.items() if lines)


@cache
def collected() -> dict[str, list[str]]:
    """The sentences of every module."""
    return {str(path.relative_to(SOURCE)): sentences(path) for path in modules()}


def texts_of_the_console() -> Iterator[tuple[str, str]]:
    """The console's pages line by line, without comments: where it is, and the line."""
    for path in sorted([*CONSOLE.rglob("*.js"), *CONSOLE.rglob("*.html")]):
        if "vendor" in path.parts:
            continue
        source = re.sub(
            r"/\*.*?\*/|<!--.*?-->", lambda each: "\n" * each[0].count("\n"), path.read_text(), flags=re.DOTALL
        )
        for number, line in enumerate(source.splitlines(), 1):
            yield f"{path.relative_to(ROOT)}:{number}", re.sub(r"(^|\s)//.*", "", line)


def texts_of_the_documents() -> Iterator[tuple[str, str]]:
    """The guides line by line."""
    for path in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "examples" / "README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            yield f"{path.relative_to(ROOT)}:{number}", line


def _text(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else "{…}" for part in node.values)
        return "".join(str(part) for part in parts)
    return None


def _plain(text: str) -> str:
    return " ".join(text.split())


def _silent(tree: ast.Module) -> set[int]:
    """Docstrings, parts of longer texts, and types that are written as texts."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            found |= {id(part) for part in node.values}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "cast":
            found |= {id(part) for part in ast.walk(node.args[0])}
    return found


def _spoken(tree: ast.Module) -> set[int]:
    """Texts that a command prints or shows as help, however short."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "help":
            found |= {id(part) for part in ast.walk(node.value)}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _SAYS:
            shown = node.args[:1] if node.func.id == "told" else node.args
            found |= {id(part) for each in shown for part in ast.walk(each)}
    return found


def _help(tree: ast.Module) -> Iterator[str]:
    """What ``--help`` says about the commands of a module: their docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(map(_registers, node.decorator_list)):
            yield ast.get_docstring(node) or ""


def _registers(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name in ("command", "default")
