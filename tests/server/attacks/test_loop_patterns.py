"""Every regular expression of the product is known here, and takes time that grows with the text alone."""

from __future__ import annotations

import ast
import importlib
import itertools
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

import flowfabric
from flowfabric.engine.reads import search_text
from flowfabric.sdk.asks.answer_checks import check_against
from flowfabric.sdk.schemas import from_types
from flowfabric.server.http.request import Name

ROOT = Path(flowfabric.__file__).parent
#: Functions of ``re`` that take a pattern.
TAKING = {"compile", "search", "match", "fullmatch", "split", "findall", "finditer", "sub", "subn"}
CEILING_S, FLOOR_S, GROWTH = 2.0, 0.1, 2.5
#: Characters of what a pattern meets, at most: a head, a text in a body, a line of a log with a payload in it, an
#: argument of a command or what a store says of itself, a path that the parser makes of the names in our own types,
#: a search.
HEAD, BODY, LOG, TOLD, PATH, TYPED = 65_536, 16_777_216, 1_048_576, 131_072, 8_192, search_text.MAX_BYTES
#: How long the texts are with which every pattern is tried that was not written for it.
TRIED = 65_536


class Meets(NamedTuple):
    """How a pattern is used, the longest text it meets, and the beginning, middle and end of its worst one."""

    used: str
    size: int
    begin: str = ""
    middle: str = "a"
    end: str = "!"


#: Patterns that meet what others have written.
OUTSIDE: dict[str, Meets] = {
    "model/ids.py:_HYPHENATED": Meets("fullmatch", BODY, "0" * 8 + "-", "0"),
    "model/ids.py:_PLAIN": Meets("fullmatch", BODY, "", "0"),
    "model/ids.py:_TAG_KEY": Meets("fullmatch", BODY, "a", "a."),
    "model/ids.py:_FORBIDDEN_IN_CAPABILITY": Meets("search", BODY, end=""),
    "model/ids.py:_NOT_PRINTABLE": Meets("search", BODY, end=""),
    "model/waitpoint_tokens.py:_DIGEST": Meets("fullmatch", BODY, "", "0"),
    "model/trace.py:_PARENT": Meets("fullmatch", HEAD, "00-" + "0" * 32 + "-" + "0" * 16 + "-00", "-", "\n"),
    "model/streams/frames.py:_POSITION": Meets("fullmatch", BODY, "", "0"),
    "server/http/validation.py:_PLACE": Meets("search", BODY, "x", " - at `$.a", "!"),
    "server/http/validation.py:_KIND": Meets("search", BODY, "", "Expected `a", "`"),
    "server/http/validation.py:_BOUND": Meets("search", BODY, "", "Expected `a` >= ", " "),
    "server/http/validation.py:_LENGTH": Meets("search", BODY, "", "Expected `a` of length ", " "),
    "server/http/validation.py:_PATTERN": Meets("search", BODY, "", "Expected `str` matching ", "\n"),
    "server/http/validation.py:_FIELD": Meets("fullmatch", BODY, "Object contains unknown field `", "`", "!"),
    "server/http/validation.py:_STEP": Meets("sub", PATH, "", "[a", "!"),
    "server/http/request.py:Name": Meets("search", BODY, "", "a", "\n"),
    "server/http/exchange.py:_CHUNK": Meets("fullmatch", HEAD, "0", " ", "\x00"),
    "server/routes/live/run_events.py:_PLACE": Meets("fullmatch", HEAD, "1:", "0"),
    "server/routes/live/run_events.py:_RUN": Meets("fullmatch", HEAD, "0" * 36 + "@1:", "0"),
    "server/http/head.py:_FIRST": Meets("fullmatch", HEAD, "GET ", "a", " HTTP/2.0"),
    "server/http/head.py:_HEADERS": Meets("fullmatch", HEAD, "", "a:\r\n", "a"),
    "server/http/head.py:_LENGTH": Meets("fullmatch", HEAD, "", "0"),
    "telemetry/logs.py:_SECRETS": Meets("sub", LOG, "", "a:", "0"),
    "engine/reads/search_text.py:_ID": Meets("fullmatch", TYPED, "0:", "0"),
    "engine/reads/search_text.py:_PART": Meets("findall", TYPED, "", '"a'),
    "engine/reads/search_text.py:_SPAN": Meets("fullmatch", TYPED, "0", " "),
    "engine/reads/search_text.py:_bare": Meets("match", TYPED),
    "engine/reads/search_text.py:_parent": Meets("fullmatch", TYPED, "0:", "a", "\n"),
    "model/failures.py:_CHANGING": Meets("sub", BODY, "", "a0"),
    "model/failures.py:common": Meets("split", BODY, "", "\0"),
    "engine/checks/waits.py:_HEX": Meets("fullmatch", BODY, "", "0"),
    "core/leases/grant_keys.py:_TAG": Meets("fullmatch", BODY, "{fp:", "0"),
    "core/leases/grant_keys.py:_DIGEST": Meets("fullmatch", BODY, "", "0"),
    "core/leases/grant_keys.py:_TIME": Meets("fullmatch", BODY, "", "0"),
    "engine/credential_tokens.py:_FORM": Meets("fullmatch", HEAD, "ff_", "0"),
    "cli/filters.py:_DURATION": Meets("fullmatch", TOLD, "", "0"),
    "stores/environment.py:_valkey_url": Meets("fullmatch", TOLD, "", "a", "/"),
    "stores/valkey/address.py:_PREFIX": Meets("fullmatch", TOLD),
    "stores/valkey/connection.py:suitable_version": Meets("findall", TOLD, "", "0.", "x"),
    "stores/postgres/codec.py: ^[0-9]{1,9}$": Meets("search", LOG, "", "0", "x"),
    # Browsers: what people type or follow, and what answers hold.
    "app.js: ^#\\/?": Meets("sub", HEAD, "#", "/"),
    "api.js: [.!?…]$": Meets("search", LOG, "", "."),
    "listing.js: ^\\{fp:(\\d+)\\}:(.+)$": Meets("search", LOG, "{fp:0}:", "a", "\n"),
    "schemacheck.js: (Z|[+-]\\d\\d:\\d\\d)$": Meets("search", LOG, "", "+00:00"),
    "schemacheck.js: ^((25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)(\\.(?!$)|$)){4}$": Meets("search", LOG, "", "1."),
    "schemacheck.js: ^([+-]?)(\\d*)(?:\\.(\\d*))?(?:[eE]([+-]?\\d+))?$": Meets("search", LOG, "", "0"),
    "schemacheck.js: ^([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,6})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)?$": Meets(
        "search", LOG, "00:00:00.", "0"
    ),
    "schemacheck.js: ^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$": Meets("search", LOG, "", "aaaa"),
    "schemacheck.js: ^(\\d{4})-(\\d\\d)-(\\d\\d)$": Meets("search", LOG, "", "0"),
    "schemacheck.js: ^-?P(?=\\d|T\\d)(\\d{1,6}D)?(T(?=\\d)(\\d{1,6}H)?(\\d{1,6}M)?(\\d{1,6}(\\.\\d{1,6})?S)?)?$": Meets(
        "search", LOG, "P", "0"
    ),
    "schemacheck.js: ^0+(?=.)": Meets("sub", LOG, "", "0", ""),
    "schemacheck.js: ^[+-]?(\\d+(\\.\\d*)?|\\.\\d+)([eE][+-]?\\d{1,3})?$": Meets("search", LOG, "", "0"),
    "schemacheck.js: ^[0-9a-f:.]+$": Meets("search", LOG, "", "0"),
    "schemacheck.js: ^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$": Meets("search", LOG, "0" * 8, "-0000"),
    "schemadraft.js: ^\\d\\d:\\d\\d(:\\d\\d)?$": Meets("search", LOG, "", "0"),
    "schemadraft.js: ^\\d{4,6}-\\d\\d-\\d\\dT\\d\\d:\\d\\d(:\\d\\d)?$": Meets("search", LOG, "", "0"),
    "schemadraft.js: ^\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d(Z|[+-]\\d\\d:\\d\\d)?$": Meets("search", LOG, "", "0"),
    "schemaform.js: ^(\\d\\d:\\d\\d(:\\d\\d)?)?$": Meets("search", LOG, "", "0"),
    "schemaform.js: ^(\\d{4}-\\d\\d-\\d\\d)?$": Meets("search", LOG, "", "0"),
    "schemaform.js: ^(\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d(:\\d\\d)?)?$": Meets("search", LOG, "", "0"),
    "schemaform.js: ^an? ": Meets("sub", LOG, "", "an "),
    "schemaform.js: ^.": Meets("sub", LOG),
    "schemaform.js: [^\\w-]": Meets("sub", LOG, "", "."),
    "schemaform.js: note|text|comment|reason|message|body": Meets("search", LOG, "", "commen"),
    "settings/keys.js: ^k(\\d+)$": Meets("search", LOG, "k", "0"),
    "executions/address.js: ^#\\/executions(\\?|$)": Meets("search", HEAD, "#/executions"),
    "audit/telling.js: ^\\d+$": Meets("search", LOG, "", "0"),
    "audit/telling.js: ^\\{fp:\\d+\\}:": Meets("search", LOG, "{fp:", "0"),
    "audit/telling.js: ^every (\\d+) ms$": Meets("search", LOG, "every ", "0"),
    "execution/data.js: ^[0-9a-f]{2}-([0-9a-f]{32})-": Meets("search", LOG, "00-", "0"),
    "execution/names.js: !\\d+$": Meets("sub", LOG, "", "!0"),
    "execution/names.js: ^(?:(?:\\w+(?:\\([^()>]*\\))?(?:#\\d+)?|\\([0-9a-f]{24}\\))>)+": Meets(
        "sub", LOG, "", "a(b)#1"
    ),
    "model/operations/workflows.py:_BRANCHES": Meets("sub", PATH, "", "a(b)#1"),
    "cli/run_ids.py:shortened": Meets("sub", TOLD, "", "{fp:0"),
    "sdk/workflows/branches.py:_NOT_IN_NAMES": Meets("sub", PATH, "", "a."),
    "sdk/workflows/recorded_steps.py:_ERROR": Meets("sub", PATH, "", "!1"),
    "sdk/asks/ask.py:_LIKE_A_NUMBER": Meets("search", PATH, "", "#1"),
    "sdk/app.py:_NOT_IN_NAMES": Meets("search", PATH),
    "executions/address.js: ^[\\w.@/=+-]+$": Meets("search", HEAD),
    'executions/filters.js: (?:^|\\s)[a-z_]+:"?$': Meets("search", HEAD, "", " a:"),
    "executions/filters.js: ^(?:\\{fp:(\\d+)\\}|(\\d{1,5})):([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$": Meets(
        "search", HEAD, "{fp:", "0"
    ),
    "executions/rows.js: ^[a-z_]+$": Meets("search", LOG),
    "executions/rows.js: ^user\\.": Meets("sub", LOG, "", "user."),
    "executions/views.js: ^#\\/executions(\\?|$)": Meets("search", HEAD, "#/executions"),
    "pages/budgets.js: ^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$": Meets("search", HEAD, "0" * 8, "-0000"),
}  # fmt: skip
#: Patterns that meet our own texts alone, and which.
OWN: dict[str, str] = {
    "server/console/__init__.py:_COMMENTS": "our own scripts and styles",
    "server/openapi.py:_PARAMETER": "paths of the table of operations",
    "stores/migrate.py:_INDEX": "the text of migrations that come with the package",
    "stores/migrate.py:_NAME": "names of files that come with the package",
    "cli/completion_values.py:_FISH_STATE": "a script that the command line has made of its own commands",
    "cli/completion_values.py:_FISH_VALUE": "a script that the command line has made of its own commands",
    "cli/completion_values.py:_WITH_VALUES": "a script that the command line has made of its own commands",
    "cli/completion_values.py:_ZSH_FIRST": "a script that the command line has made of its own commands",
    "cli/completion_values.py:_ZSH_STATE": "a script that the command line has made of its own commands",
    "cli/completion_values.py:_bash": "the text of that module",
    "stores/valkey/connection.py:_LIBRARY_NAME": "the functions that come with the package",
    "stores/valkey/functions.lua: ^%d+": "an id of a stream, which the server has made",
    "cli/run_ids.py:_SHORT": "arguments of the command line, typed by whoever runs it",
    "cli/run_ids.py:_WHOLE": "arguments of the command line, typed by whoever runs it",
    "stores/valkey/histories.lua: (%d+)-(%d+)": "numbers that the function itself has written",
    "dialogs.js: \\?$": "the title of a dialog",
    "format.js: ^(\\d+)\\.\\d": "a duration in a few words",
    "execution/why.js: \\.$": "a sentence that the server has written",
    "execution/why.js: ^It (is|was) ": "a sentence that the server has written",
    "execution/why.js: ^It was asked to cancel[^.]*\\. ": "a sentence that the server has written",
    "executions/address.js: :00\\.000Z$": "a time that the browser has written",
}
#: Scripts of others, and how many patterns they have: they meet the page's own templates, names of elements and
#: properties, and numbers and formats of the charts.
VENDORED = {"vendor/htm.js": 1, "vendor/preact.js": 4, "vendor/uplot.js": 9}
#: What has made other patterns take long before.
MIDDLES = [
    "a", "A", "0", "-", "_", ".", ":", " ", "\t", "\n", "\r\n", "/", "\\", '"', "[", "]", "{", "é", "a.", "a:", "0-",
    "a-", "a_", "ff_a_", "Bearer ", "a://a", "a://a:a", "[]", "#0", "!0", "{fp:0}:", r"\"", r"\\u0000", "a:\r\n",
    "a=b,", "00-",
]  # fmt: skip


def named(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Calls of ``re`` with the name that the pattern is bound to, or of the function that they are in."""

    def walk(node: ast.AST, name: str) -> Iterator[tuple[str, ast.Call]]:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                name = node.name
            case ast.Assign(targets=[ast.Name(id=target)]) | ast.AnnAssign(target=ast.Name(id=target)) if not name:
                name = target
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=attr)) if attr in TAKING:
                yield name, node
        for child in ast.iter_child_nodes(node):
            yield from walk(child, name)

    yield from walk(tree, "")


def given(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Patterns that a type is given, with the name of the type."""
    for node in ast.walk(tree):
        for inner in ast.walk(node) if isinstance(node, ast.Assign) else ():
            for keyword in inner.keywords if isinstance(inner, ast.Call) else ():
                if keyword.arg == "pattern":
                    yield ast.unparse(node.targets[0]), keyword.value  # type: ignore[attr-defined]


@cache
def in_python() -> tuple[tuple[str, re.Pattern[Any]], ...]:
    return tuple(_in_python())


def _in_python() -> Iterator[tuple[str, re.Pattern[Any]]]:
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            # Other ways to get at patterns would not be found below.
            if isinstance(node, ast.ImportFrom):
                assert node.module != "re", f"{path}: import re as a whole, so that its patterns are found"
        name = str(path.relative_to(ROOT))
        for bound, call in named(tree):
            assert isinstance(call.args[0], ast.Constant), f"{name}:{bound}: write the pattern where it is used"
            others = [
                each for each in (*call.args[1:], *(each.value for each in call.keywords)) if "re." in ast.unparse(each)
            ]
            flags = ast.unparse(others[0]) if others else "0"
            yield f"{name}:{bound}", re.compile(call.args[0].value, eval(flags, {"re": re}))
        for bound, value in given(tree):
            module = importlib.import_module("flowfabric." + name.removesuffix(".py").replace("/", "."))
            yield f"{name}:{bound}", re.compile(eval(ast.unparse(value), vars(module)))


#: A regular expression of a script stands where a value does.
IN_SCRIPT = re.compile(
    r"(?:(?<=[=(,:!&|?;\[])|(?<=return)|(?<==>))\s*/(?![/*])((?:\\.|\[(?:\\.|[^]\\\n])*\]|[^/\\\n[])+)/([gimsuy]*)"
)
IN_LUA = re.compile(r"string\.(?:match|gmatch|find|gsub)\([^\n]*?, '([^'\n]*)'")
IN_SQL = re.compile(r" ~\*? '([^']+)'")


def in_scripts() -> Iterator[tuple[str, re.Pattern[str]]]:
    static = ROOT / "server/console/static"
    for path in sorted(static.rglob("*.js")):
        text = path.read_text()
        assert "vendor" in path.parts or "RegExp" not in text, f"{path}: write the pattern where it is used"
        for found in IN_SCRIPT.finditer(text):
            flags = re.IGNORECASE if "i" in found[2] else re.NOFLAG
            yield f"{path.relative_to(static)}: {found[1]}", re.compile(found[1], flags)


def elsewhere() -> Iterator[tuple[str, re.Pattern[str]]]:
    for kind, spelled in (("*.lua", IN_LUA), ("*.sql", IN_SQL), ("*.py", IN_SQL)):
        for path in sorted(ROOT.rglob(kind)):
            for found in spelled.finditer(path.read_text()):
                # What stands in a text that is formatted has its braces twice.
                pattern = found[1].replace("{{", "{").replace("}}", "}")
                yield f"{path.relative_to(ROOT)}: {pattern}", re.compile(pattern.replace("%", "\\"))


@cache
def patterns() -> tuple[dict[str, re.Pattern[Any]], list[str]]:
    """All patterns of ours by where they are, and those of others. Takes seconds, and not while tests are collected."""
    found: dict[str, re.Pattern[Any]] = {}
    vendored = []
    for key, pattern in (*in_python(), *in_scripts(), *elsewhere()):
        if key.startswith("vendor/"):
            vendored.append(key)
            continue
        # Several in one function are told apart by their number.
        names = (key if number == 1 else f"{key} ({number})" for number in itertools.count(1))
        found[next(name for name in names if found.get(name, pattern) == pattern)] = pattern
    return found, vendored


def test_every_pattern_is_known() -> None:
    ours, of_others = patterns()
    assert sorted(ours) == sorted({**OUTSIDE, **OWN})
    assert not OUTSIDE.keys() & OWN.keys()
    assert Counter(each.partition(":")[0] for each in of_others) == VENDORED


def ends_loosely(pattern: str | bytes) -> bool:
    return "AT_END)" in repr(list(re._parser.parse(pattern)))  # type: ignore[attr-defined]


def test_the_end_is_the_very_end() -> None:
    """``$`` lets a newline follow."""
    for key, pattern in in_python():
        parsed = re._parser.parse(
            pattern.pattern, pattern.flags & ~re.UNICODE if isinstance(pattern.pattern, bytes) else pattern.flags
        )  # type: ignore[attr-defined]
        assert pattern.flags & re.MULTILINE or "AT_END)" not in repr(list(parsed)), f"{key}: write \\Z"
    assert "AT_END)" in repr(list(re._parser.parse("a$")))  # type: ignore[attr-defined]


def seconds(pattern: re.Pattern[Any], used: str, text: str) -> float:
    subject: Any = text.encode("latin-1", "replace") if isinstance(pattern.pattern, bytes) else text
    empty: Any = b"" if isinstance(subject, bytes) else ""
    act: Callable[[Any], Any] = getattr(pattern, used) if used != "sub" else lambda given: pattern.sub(empty, given)
    began = time.process_time()
    act(subject)
    return time.process_time() - began


@pytest.mark.parametrize("key", OUTSIDE)
def test_the_worst_text_takes_as_long_as_it_is(key: str) -> None:
    meets, pattern = OUTSIDE[key], patterns()[0][key]
    worst = (meets.begin, meets.middle, meets.end)
    others = itertools.product({"", meets.begin}, MIDDLES, {"", meets.end, "\x00"})
    # The longest text comes last: it would take hours with a pattern that is not fit for it.
    tried = [(min(meets.size, TRIED), each) for each in (worst, *others)]
    for size, (begin, middle, end) in (*tried, (meets.size, worst)):
        whole = begin + middle * (size // len(middle)) + end
        took = seconds(pattern, meets.used, whole)
        assert took < CEILING_S, (key, begin, middle, end)
        if took >= FLOOR_S and size <= TRIED:
            half = begin + middle * (size // len(middle) // 2) + end
            took = min(took, *(seconds(pattern, meets.used, whole) for _ in range(3)))
            part = min(seconds(pattern, meets.used, half) for _ in range(4))
            assert took < FLOOR_S or took < GROWTH * part, (key, begin, middle, end, part, took)


def followed() -> set[str]:
    """Patterns that our own schemas are made with; they are not matched by ``re``."""
    tree = ast.parse(Path(from_types.__file__).read_text())
    return {
        value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and key.value == "pattern" and isinstance(value, ast.Constant)
    }


@pytest.mark.parametrize("pattern", sorted(followed()))
def test_names_in_answers(pattern: str) -> None:
    for text in ("0", "1", "-", "1.", "1e"):
        began = time.process_time()
        check_against({"propertyNames": {"pattern": pattern}}, {"1" + text * (250_000 // len(text)): 1})
        assert time.process_time() - began < CEILING_S


def test_a_name_ends_where_its_text_does() -> None:
    for name, fits in (("w", True), ("w\n", False), ("w\r", False), ("w\u2028", False), ("w w", False), ("", False)):
        try:
            read = msgspec.convert(name, Name)
        except msgspec.ValidationError:
            read = None
        assert (read == name) is fits, name
