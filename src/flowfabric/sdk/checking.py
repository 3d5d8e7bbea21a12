"""Whether the code of today fits the runs of yesterday.

Workflows remember by name. A call that was renamed or removed is no longer found in the memory of runs under way:
whatever stands in its place runs anew. ``check`` compares the names that live runs remember with those the code can
call, so that this is seen before a deploy rather than after.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from flowfabric.model.limits import MAX_CLAIM
from flowfabric.sdk.definitions import Definition, Workflow

if TYPE_CHECKING:
    from flowfabric.model.steps import LiveStep
    from flowfabric.sdk.app import App

#: A key in brackets, the number of a repeated call, the trial of an error.
_SUFFIX = re.compile(r"(\[.*\])?(#\d+)?(!\d+)?$", re.DOTALL)
_ASK = "ask:"
#: How deep helper functions of a workflow are followed.
MOST_LEVELS = 8


class Finding(Struct, frozen=True):
    """Something that live runs remember and the code does not know."""

    workflow: str
    step: str
    runs: int
    example: str

    def __str__(self) -> str:
        count = f"{self.runs} run{'' if self.runs == 1 else 's'}"
        return (
            f"{self.workflow}: {count} under way remember {self.step!r} (for example {self.example}), which the code "
            f'does not call. If it was renamed, keep its name with name="{self.step}"; if it was removed, let these '
            "runs end first, or accept that what replaced it runs anew in them"
        )


class Report(Struct, frozen=True):
    """What a check has found."""

    findings: tuple[Finding, ...]
    #: Kinds of live runs that nothing here can run.
    unknown: dict[str, int]
    runs: int

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings and not self.unknown


def base_name(step: str) -> str:
    """The name of a call without its key, number and trial."""
    return _SUFFIX.sub("", step)


async def check(app: App) -> Report:
    """Compare what live runs of an open app remember with what its workflows call."""
    remembered: dict[tuple[str, str], set[str]] = {}
    kinds: dict[str, str] = {}
    async for page in _pages(app):
        ids = [each for each in dict.fromkeys(step.execution_id for step in page) if str(each) not in kinds]
        for start in range(0, len(ids), MAX_CLAIM):
            for each, context in (await app.engine.read_execution_contexts(ids[start : start + MAX_CLAIM])).items():
                kinds[str(each)] = context.execution_kind
        for step in page:
            kind = kinds.get(str(step.execution_id))
            if kind is not None and not step.name.startswith("!"):
                remembered.setdefault((kind, base_name(step.name)), set()).add(str(step.execution_id))
    findings = []
    unknown: dict[str, set[str]] = {}
    callable_names = {kind: names_of(each) for kind, each in app.definitions.items() if isinstance(each, Workflow)}
    for (kind, step), runs in sorted(remembered.items()):
        names = callable_names.get(kind)
        if names is None:
            unknown.setdefault(kind, set()).update(runs)
        elif step not in names and not (step.startswith(_ASK) and _ASK in names):
            findings.append(Finding(kind, step, len(runs), min(runs)))
    return Report(tuple(findings), {kind: len(runs) for kind, runs in unknown.items()}, len(kinds))


async def _pages(app: App) -> Any:
    after: LiveStep | None = None
    while page := await app.engine.list_live_steps(after):
        yield page
        after = page[-1]


def names_of(workflow: Workflow[..., Any]) -> set[str]:
    """The names a workflow may call: those of definitions its code mentions, and of its helper functions'.

    A question whose text is written out counts by its text; one whose text is worked out counts for every question.
    """
    names = {"first", "sleep"}
    for function, code in _codes(workflow.function):
        asks = False
        for value in _mentioned(function, code):
            if isinstance(value, Definition):
                names.add(value.name)
            elif getattr(value, "__name__", "") == "Ask":
                asks = True
        if asks:
            texts = [each for each in code.co_consts if isinstance(each, str)]
            names.update(f"{_ASK}{text[:200]}" for text in texts)
            if not texts or _works_texts_out(code):
                names.add(_ASK)
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
