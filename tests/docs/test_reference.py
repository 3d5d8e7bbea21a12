"""docs/reference.md lists every option of the decorators and of workers, and all of ``Ctx``, as the code says it.

``./dev run python -m tests.docs.test_reference`` writes its lists anew.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_overloads

import asyncpg
import pytest

from flowfabric import App, Budget, Ctx, Debounce, Limit, Rate, Retry, Run
from flowfabric.sdk.context import Spending, Stream
from flowfabric.sdk.definitions.tasks import Definition, Startable
from flowfabric.sdk.options import StartOptions, TaskOptions
from flowfabric.sdk.worker.worker import Worker

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference.md"
BEGIN = "<!-- made from the code: ./dev run python -m tests.docs.test_reference -->\n"
#: A line of a docstring that describes a parameter begins so, and goes on until the next one.
DESCRIBED = re.compile(r"^``(\w+)``: ", re.MULTILINE)
#: What the package uses itself.
INTERNAL = {"load_result"}
#: What code says where the page has a link.
GUIDE = re.compile(r"docs/((\w+)\.md)")


# ------------------------------------------------------------------------------------------------------- docstrings


def docstring(thing: Any) -> str:
    """What something says about itself."""
    text = inspect.getdoc(thing)
    assert text, f"{thing} says nothing about itself"
    return text


def shown(text: str) -> str:
    """A docstring as Markdown, on one line."""
    line = " ".join(text.replace("``", "`").split())
    return GUIDE.sub(lambda found: f"[{found[2].capitalize()}]({found[1]})", line)


def prose(thing: Any) -> str:
    """What a docstring says before it describes parameters."""
    return shown(DESCRIBED.split(docstring(thing))[0])


def described(*things: Any) -> dict[str, str]:
    """What docstrings say about parameters, by name."""
    found: dict[str, str] = {}
    for thing in things:
        pieces = DESCRIBED.split(docstring(thing))[1:]
        found |= {name: shown(text) for name, text in zip(pieces[::2], pieces[1::2], strict=True)}
    return found


# ------------------------------------------------------------------------------------------------------- the lists


def cell(text: str) -> str:
    """A text that does not end its cell."""
    return text.replace("|", "\\|")


def options(function: Callable[..., Any], *sources: Any) -> Iterator[str]:
    """A table of the keywords that a function takes, with what the sources say about each."""
    texts = described(*sources)
    yield "| Option | Type | Default | |"
    yield "|---|---|---|---|"
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            assert parameter.name in texts, f"nothing describes the option {parameter.name} of {function.__qualname__}"
            default = parameter.default
            written = f"timedelta(seconds={default.seconds})" if hasattr(default, "seconds") else repr(default)
            kind = cell(str(parameter.annotation))
            yield f"| `{parameter.name}` | `{kind}` | `{written}` | {cell(texts[parameter.name])} |"
    yield ""


def with_options(decorator: Callable[..., Any]) -> Callable[..., Any]:
    """The form of a decorator that takes options."""
    [found] = [
        each
        for each in get_overloads(decorator)
        if any(parameter.kind is parameter.KEYWORD_ONLY for parameter in inspect.signature(each).parameters.values())
    ]
    return found


def members(kind: type, prefix: str) -> Iterator[str]:
    """A table of what a class offers."""
    yield "| | |"
    yield "|---|---|"
    for name, member in vars(kind).items():
        if name.startswith("_") or name in INTERNAL or not (isinstance(member, property) or inspect.isfunction(member)):
            continue
        call = arguments(member) if inspect.isfunction(member) else ""
        yield f"| `{cell(prefix + name + call)}` | {cell(prose(member))} |"
    yield ""


def arguments(function: Callable[..., Any]) -> str:
    """What a function or a class takes, as one would write it."""
    signature = inspect.signature(function)
    taken = [each for each in signature.parameters.values() if each.name != "self"]
    text = str(signature.replace(parameters=taken, return_annotation=inspect.Signature.empty))
    text = re.sub(r""": (['"])(.*?)\1(?=[,)]| = )""", r": \2", text)
    text = re.sub(r"datetime\.timedelta\(seconds=(\d+)\)", r"timedelta(seconds=\1)", text)
    return text.replace("*args: P.args, **kwargs: P.kwargs", "…")


def reference() -> str:
    """The lists of the page."""
    lines: list[str] = []
    for name in ("task", "step", "workflow"):
        decorator = getattr(App, name)
        lines += [f"## `@app.{name}`", "", prose(decorator), ""]
        lines += options(with_options(decorator), TaskOptions, decorator)
    lines += ["## `using`", "", prose(Definition.using), "", "A step takes only `key`.", ""]
    lines += options(Definition.using, StartOptions)
    lines += ["## `app.worker`", "", prose(App.worker), "", prose(App.run_worker), ""]
    lines += options(App.worker, Worker.__init__)
    lines += ["## `Ctx`", "", prose(Ctx), ""]
    lines += [
        (
            "In an `async def` its methods are awaited. In a plain `def`, which runs in a thread, the same calls block "
            'until they are done: `ctx.emit("text")`, `with ctx.spend(tokens=100) as call:`.'
        ),
        "",
    ]
    lines += members(Ctx, "ctx.")
    lines += ["`ctx.stream` is what the attempt has emitted, and `call` what `ctx.spend` returns:", ""]
    lines += ["| | |", "|---|---|", f"| `ctx.stream.text` | {prose(Stream.text)} |"]
    lines += [f"| `ctx.stream.earlier()` | {prose(Stream.earlier)} |"]
    lines += [f"| `ctx.stream.resume()` | {prose(Stream.resume)} |"]
    lines += [f"| `call.settle(**used)` | {prose(Spending.settle)} |", ""]
    lines += ["## Tasks and workflows", ""]
    lines += members(Startable, "task.")
    lines += ["## `Run`", "", prose(Run), ""]
    lines += members(Run, "run.")
    lines += ["## Values of options", ""]
    for kind in (Retry, Limit, Rate, Budget, Debounce):
        lines += [f"### `{kind.__name__}`", "", f"`{kind.__name__}{arguments(kind)}`", "", prose(kind), ""]
    return "\n".join(lines)


def test_the_page_lists_every_option() -> None:
    _, begin, found = PAGE.read_text().partition(BEGIN)
    assert begin
    assert found == "\n" + reference(), "write it anew: ./dev run python -m tests.docs.test_reference"


@pytest.mark.parametrize("options_of", [TaskOptions, StartOptions])
def test_every_option_is_described(options_of: type) -> None:
    assert list(described(options_of)) == list(options_of.__dataclass_fields__)  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------------------------- PostgreSQL


async def test_a_schema_of_its_own(prepared_postgres_dsn: str) -> None:
    """What the page says about schemas, done."""
    [sql] = re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    connection = await asyncpg.connect(prepared_postgres_dsn)
    await connection.execute(sql)
    [ending] = re.findall(r"`postgresql://[^`?]*(\?[^`]*)`", PAGE.read_text())
    joint = ending.replace("?", "&", 1) if "?" in prepared_postgres_dsn else ending
    app = App(prepared_postgres_dsn + joint)

    @app.task
    async def double(number: int) -> int:
        return 2 * number

    schema = sql.split()[-1].strip(";")
    counted = "SELECT count(*) FROM {}.ff_exec_core"
    try:
        # The database has tables in `public` too, so that the caller's own schema is another one here.
        await connection.execute(f"CREATE SCHEMA shop; SET search_path TO shop, {schema}")
        async with app, app.worker():
            assert await (await double.start(21)).result() == 42
            async with connection.transaction():
                run = await double.using(tx=connection).start(4)
            assert await run.result() == 8
        assert await connection.fetchval(counted.format(schema)) == 2
        assert await connection.fetchval(counted.format("public")) == 0
    finally:
        await connection.close()


if __name__ == "__main__":
    head, begin, _ = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(head + BEGIN + "\n" + reference())
