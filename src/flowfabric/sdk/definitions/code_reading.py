"""The calls that a workflow's code may make, read from its source without running it.

Names come from compiled code, which is always there. Where calls stand and which types questions have comes from the
source, as far as it can be had; what cannot be told from it is left out, so that nothing is claimed that is not so.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import inspect
import textwrap
import types
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from flowfabric.model.operations.workflows import without_branch
from flowfabric.sdk.asks.ask import Ask
from flowfabric.sdk.definitions.tasks import Definition, Workflow
from flowfabric.sdk.workflows.durable import first, sleep

#: What stands before the trial of an error, the number of a question asked again, and that of a repeated call.
_BEFORE_NUMBERS = "!~#"
ASK = "ask:"
#: How deep helper functions of a workflow are followed.
MOST_LEVELS = 8
#: What a type may be written with; anything else may do something when it is worked out.
_TYPE_NODES = (
    ast.Name, ast.Attribute, ast.Subscript, ast.BinOp, ast.BitOr, ast.Constant, ast.Tuple, ast.List, ast.Load,
)  # fmt: skip


def base_name(step: str) -> str:
    """The name of a call without its branch, key, numbers and trial."""
    step = without_branch(step)
    for mark in _BEFORE_NUMBERS:
        name, found, number = step.rpartition(mark)
        if found and number.isdecimal():
            step = name
    # A key stands in brackets, and may have some in it.
    return step.partition("[")[0] if step.endswith("]") else step


def names_of(workflow: Workflow[..., Any]) -> set[str]:
    """The names a workflow may call: those of definitions its code mentions, and of its helper functions'.

    A question whose text is written out counts by its text; one whose text is worked out counts for every question.
    """
    return {"first", "sleep", "now()", "uuid()", "random()"} | _called(workflow.function)


def definitions_of(workflow: Workflow[..., Any]) -> dict[str, Definition[..., Any]]:
    """What a workflow may call, by name."""
    return {
        value.name: value
        for function, code in _codes(workflow.function)
        for value in _mentioned(function, code)
        if isinstance(value, Definition)
    }


def _called(function: Callable[..., Any]) -> set[str]:
    names: set[str] = set()
    for owner, code in _codes(function):
        asks = False
        for value in _mentioned(owner, code):
            if isinstance(value, Definition):
                names.add(value.name)
            elif value is Ask:
                asks = True
        written = Source(owner).questions() if asks else None
        if written is not None:
            names |= written
        elif asks:
            texts = [each for each in code.co_consts if isinstance(each, str)]
            names.update(f"{ASK}{text[:200]}" for text in texts)
            if not texts or _works_texts_out(code):
                names.add(ASK)
    return names


def _codes(function: Callable[..., Any]) -> Iterator[tuple[Any, types.CodeType]]:
    """A function's code with that of the functions inside it and of plain functions it mentions."""
    seen: set[types.CodeType] = set()
    level: list[Any] = [function]
    for _ in range(MOST_LEVELS):
        following: list[Any] = []
        for each in level:
            inner = getattr(each, "__wrapped__", each)
            code = getattr(inner, "__code__", None)
            if code is None or code in seen:
                continue
            stack = [code]
            while stack:
                part = stack.pop()
                seen.add(part)
                yield inner, part
                stack += [const for const in part.co_consts if isinstance(const, types.CodeType)]
                mentioned = _mentioned(inner, part)
                following += [value for value in mentioned if isinstance(value, types.FunctionType)]
        level = following


def _mentioned(function: Any, code: types.CodeType) -> list[Any]:
    """What the names in a piece of code stand for, as far as can be told without running it."""
    scope = function.__globals__
    found = [scope[name] for name in code.co_names if name in scope]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        if name in (*code.co_freevars, *code.co_names):
            try:
                found.append(cell.cell_contents)
            except ValueError:
                continue
    # Attributes of modules and objects: ``tasks.fetch(…)``.
    holders = list(found)
    found += [
        value
        for holder in holders
        for name in code.co_names
        if isinstance(value := getattr(holder, name, None), Definition)
    ]
    return found


def _works_texts_out(code: types.CodeType) -> bool:
    import dis

    return any(each.opname in ("BUILD_STRING", "FORMAT_VALUE", "FORMAT_SIMPLE") for each in dis.get_instructions(code))


# -- what the source tells -------------------------------------------------------------------------------------------


class Passed(Struct, frozen=True):
    """A call that is always made before some others are."""

    name: str
    line: int
    #: Who remembers one of these has passed it.
    before: frozenset[str]


class Source:
    """The source of a workflow's function, or of another one."""

    def __init__(self, function: Any) -> None:
        self._function: Any = inspect.unwrap(getattr(function, "function", function))
        self.file: str = self._function.__code__.co_filename
        closure = zip(self._function.__code__.co_freevars, self._function.__closure__ or (), strict=False)
        self._scope = {**vars(builtins), **self._function.__globals__, **dict(_filled(closure))}
        self._own = {*self._function.__code__.co_varnames, *self._function.__code__.co_cellvars}
        self._tree = _parsed(self._function)

    def answers(self) -> dict[str, Any]:
        """The types of questions whose texts are written out, by their names; those with several types are left out."""
        found: dict[str, list[Any]] = {}
        for node in ast.walk(self._tree):
            name = self._question(node)
            if name is not None:
                found.setdefault(name, []).append(self._type(node))
        return {name: kinds[0] for name, kinds in found.items() if len(kinds) == 1 and kinds[0] is not None}

    def questions(self) -> set[str] | None:
        """The names of all questions; nothing if the text of one is not written out where it is asked."""
        found = [self._question(node) for node in ast.walk(self._tree)]
        names = [each for each in found if each is not None]
        mentions = [
            node
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Name | ast.Attribute) and self._resolved(node) is Ask
        ]
        return set(names) if names and len(names) == len(mentions) else None

    def passed(self) -> list[Passed]:
        """Calls that everything behind them has made."""
        everywhere = self._names(self._tree)
        return [
            each
            for node in ast.walk(self._tree)
            for field in ("body", "orelse", "finalbody")
            if isinstance(block := getattr(node, field, None), list)
            for each in self._passed_in(block, everywhere)
        ]

    def _passed_in(self, block: list[ast.stmt], everywhere: Counter[str]) -> Iterator[Passed]:
        for place, statement in enumerate(block):
            later: Counter[str] = Counter()
            for each in block[place + 1 :]:
                later += self._names(each)
            # What is also called elsewhere may have been remembered there.
            before = frozenset(name for name, count in later.items() if everywhere[name] == count)
            for name, line in self._awaited(statement):
                if before - {name}:
                    yield Passed(name, line, before - {name})

    def _awaited(self, statement: ast.stmt) -> Iterator[tuple[str, int]]:
        """What a statement awaits whenever it is executed."""
        stack: list[ast.AST] = [statement]
        while stack:
            node = stack.pop()
            if isinstance(node, ast.Await):
                yield from ((name, node.lineno) for name in self._waited_for(node.value))
            stack += _always(node)

    def _waited_for(self, call: ast.expr) -> Iterator[str]:
        if not isinstance(call, ast.Call):
            return
        called = self._resolved(_without_options(call.func))
        question = self._question(call)
        if question is not None:
            yield question
        elif isinstance(called, Definition):
            yield called.name
        elif called is sleep or called is first:
            yield called.__name__
        elif called is asyncio.gather:
            for each in call.args:
                yield from self._waited_for(each)

    def _names(self, tree: ast.AST) -> Counter[str]:
        """What a piece of the source mentions, and how often; helper functions with all that they call."""
        names: Counter[str] = Counter()
        for node in ast.walk(tree):
            value = self._resolved(node) if isinstance(node, ast.Name | ast.Attribute) else None
            question = self._question(node)
            if question is not None:
                names[question] += 1
            elif isinstance(value, Definition):
                names[value.name] += 1
            elif value is sleep or value is first:
                names[value.__name__] += 1
            elif isinstance(value, types.FunctionType):
                names.update(_called(value))
        return names

    def _question(self, node: ast.AST) -> str | None:
        """The name of a question whose text is written out."""
        if not isinstance(node, ast.Call) or self._resolved(node.func) is not Ask:
            return None
        text = _argument(node, 0, "question")
        known = isinstance(text, ast.Constant) and isinstance(text.value, str)
        return f"{ASK}{text.value[:200]}" if known else None  # type: ignore[union-attr]

    def _type(self, node: Any) -> Any:
        """The answer's type; nothing if it cannot be told without running code."""
        written = _argument(node, 1, "answer")
        if written is None:
            return bool
        if not all(isinstance(each, _TYPE_NODES) for each in ast.walk(written)):
            return None
        if any(isinstance(each, ast.Name) and each.id in self._own for each in ast.walk(written)):
            return None
        try:
            return eval(compile(ast.Expression(written), self.file, "eval"), self._scope)
        except Exception:
            return None

    def _resolved(self, node: ast.expr) -> Any:
        """What a dotted name stands for."""
        if isinstance(node, ast.Name):
            return None if node.id in self._own else self._scope.get(node.id)
        if isinstance(node, ast.Attribute):
            holder = self._resolved(node.value)
            return None if holder is None else getattr(holder, node.attr, None)
        return None


def _filled(closure: Any) -> Iterator[tuple[str, Any]]:
    for name, cell in closure:
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue


def _parsed(function: Any) -> ast.AST:
    """A function's source with the lines of its file; nothing if it has no source."""
    try:
        lines, start = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return ast.Module([], [])
    # Decorators are no part of what the function does.
    whole = tree.body[0]
    body = whole.body if isinstance(whole, ast.FunctionDef | ast.AsyncFunctionDef) else []
    return ast.increment_lineno(ast.Module(body, []), start - 1)


def _always(node: ast.AST) -> list[ast.AST]:
    """The parts of a piece of code that are executed whenever it is."""
    if isinstance(node, ast.IfExp | ast.If | ast.While):
        return [node.test]
    if isinstance(node, ast.BoolOp):
        return [node.values[0]]
    if isinstance(node, ast.For | ast.AsyncFor):
        return [node.iter]
    if isinstance(node, ast.Match):
        return [node.subject]
    if isinstance(node, ast.With | ast.AsyncWith):
        return [each.context_expr for each in node.items]
    elsewhere = (ast.Try, ast.TryStar, ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    loops = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    return [] if isinstance(node, elsewhere + loops) else list(ast.iter_child_nodes(node))


def _without_options(called: ast.expr) -> ast.expr:
    """``fetch.using(…)`` is ``fetch``."""
    if isinstance(called, ast.Call) and isinstance(called.func, ast.Attribute) and called.func.attr == "using":
        return called.func.value
    return called


def _argument(call: ast.Call, place: int, name: str) -> ast.expr | None:
    if len(call.args) > place:
        return call.args[place]
    return next((each.value for each in call.keywords if each.arg == name), None)
