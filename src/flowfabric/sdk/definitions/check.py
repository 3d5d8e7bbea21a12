"""Whether the code of today fits the runs of yesterday.

Workflows remember by name. ``check`` reads what live runs were given and remember as a worker with the code of today
would, and compares the names with those the code can call, so that what does not fit is seen before a deploy rather
than after. No code of a workflow runs for it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from flowfabric.model.operations.workflows import StepOutcome, without_branch
from flowfabric.model.states import PublicState
from flowfabric.sdk.asks.ask import MOST_ASKED, Ask, UnreadAnswer
from flowfabric.sdk.definitions.code_reading import ASK, Passed, Source, base_name, definitions_of, names_of
from flowfabric.sdk.definitions.tasks import Definition, Workflow
from flowfabric.sdk.errors import ENDED, BadPayload, BadResult, SdkError
from flowfabric.sdk.paging import pages

if TYPE_CHECKING:
    from flowfabric.model.operations.executions import ExecutionContext
    from flowfabric.model.reads.search import ExecutionSummary
    from flowfabric.sdk.app import App

__all__ = ["Added", "Asked", "Failing", "Finding", "Report", "Waiting", "base_name", "check", "names_of"]

_LIVE = tuple(each for each in PublicState if each not in ENDED)
#: Runs looked at together.
_PAGE = 100


class Finding(Struct, frozen=True):
    """Something that live runs remember and the code does not know."""

    workflow: str
    step: str
    runs: int
    example: str

    def __str__(self) -> str:
        if self.step.startswith(ASK):
            advice = "If its text was changed, the new question is asked in these runs too; keep the text to avoid that"
        else:
            advice = (
                f'If it was renamed, keep its name with name="{self.step}"; if it was removed, let these runs end '
                "first, or accept that its replacement runs in them"
            )
        return (
            f"{self.workflow}: {_runs(self.runs)} in progress recorded {self.step!r} (for example {self.example}), "
            f"which the code does not call. {advice}"
        )


class Failing(Struct, frozen=True):
    """A run that would fail: its arguments, or a result it remembers, cannot be read by the code of today."""

    workflow: str
    run: str
    #: The call whose result it is; empty for the run's own arguments.
    step: str
    reason: str

    def __str__(self) -> str:
        what = f"recorded {self.step!r}: " if self.step else ""
        return f"{self.workflow}: {self.run} {what}{self.reason}"


class Waiting(Struct, frozen=True):
    """A run that waits for something the code does not call any more."""

    workflow: str
    run: str
    step: str

    def __str__(self) -> str:
        step = without_branch(self.step)
        if step.startswith(ASK):
            question = step.removeprefix(ASK)
            return (
                f"{self.workflow}: {self.run} waits for an answer to {question!r}, which the code does not ask: the "
                "answer would be lost and another question asked. Keep the text until it is answered"
            )
        return (
            f"{self.workflow}: {self.run} waits for {self.step!r}, which the code does not call: its result would be "
            f'lost. If it was renamed, keep its name with name="{base_name(self.step)}"'
        )


class Asked(Struct, frozen=True):
    """A question that would be asked again: the answer that was given does not fit its type of today."""

    workflow: str
    run: str
    step: str
    reason: str

    def __str__(self) -> str:
        question = base_name(self.step).removeprefix(ASK)
        return f"{self.workflow}: {self.run} asks {question!r} again, and does not fail: {self.reason}"


class Added(Struct, frozen=True):
    """A call before others that live runs have made already: it is made in these runs too."""

    workflow: str
    step: str
    #: Where the call stands: file and line.
    where: str
    runs: int
    example: str

    def __str__(self) -> str:
        return (
            f"{self.workflow}: {self.step!r} ({self.where}) comes before calls that {_runs(self.runs)} in progress "
            f"already made (for example {self.example}): it runs in them too when they continue"
        )


class Report(Struct, frozen=True):
    """What a check has found."""

    findings: tuple[Finding, ...]
    #: Kinds of live runs that nothing here can run.
    unknown: dict[str, int]
    runs: int
    failing: tuple[Failing, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    # What is worth knowing and hurts no run.
    asked: tuple[Asked, ...] = ()
    added: tuple[Added, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no run would fail or lose something."""
        return not (self.findings or self.unknown or self.failing or self.waiting)


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"


class _Known:
    """A workflow as the code of today has it."""

    def __init__(self, workflow: Workflow[..., Any]) -> None:
        source = Source(workflow)
        self.names = names_of(workflow)
        self.definitions = definitions_of(workflow)
        self.answers = source.answers()
        self.passed: list[Passed] = source.passed()
        self.file = source.file

    def calls(self, base: str) -> bool:
        base = base.removesuffix(".start")
        return base in self.names or (base.startswith(ASK) and ASK in self.names)


class _Memory:
    """What a run remembers, or will as soon as it goes on; and what it waits for."""

    def __init__(self) -> None:
        self.values: dict[str, bytes | None] = {}
        self.errors: set[str] = set()
        self.waiting: set[str] = set()

    def bases(self) -> set[str]:
        return {base_name(each) for each in (*self.values, *self.errors, *self.waiting)}


class _Check:
    """One look at all runs."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._known = {kind: _Known(each) for kind, each in app.definitions.items() if isinstance(each, Workflow)}
        self._runs = 0
        self._not_called: dict[tuple[str, str], list[str]] = {}
        self._added: dict[tuple[str, Passed], list[str]] = {}
        self._unknown: dict[str, int] = {}
        self._failing: list[Failing] = []
        self._waiting: list[Waiting] = []
        self._asked: list[Asked] = []

    async def look(self) -> Report:
        async for line, context in self._live():
            await self._look_at(line, context)
        added = [
            Added(kind, each.name, f"{self._known[kind].file}:{each.line}", len(runs), min(runs))
            for (kind, each), runs in self._added.items()
        ]
        return Report(
            tuple(Finding(kind, step, len(runs), min(runs)) for (kind, step), runs in sorted(self._not_called.items())),
            self._unknown,
            self._runs,
            tuple(sorted(self._failing, key=lambda each: (each.workflow, each.run))),
            tuple(sorted(self._waiting, key=lambda each: (each.workflow, each.run))),
            tuple(sorted(self._asked, key=lambda each: (each.workflow, each.run))),
            tuple(sorted(added, key=lambda each: (each.workflow, each.where))),
        )

    async def _live(self) -> AsyncIterator[tuple[ExecutionSummary, ExecutionContext]]:
        """Every run of the app that has not ended; questions and the like do not count."""
        engine = self._app.engine
        async for page in pages(
            lambda cursor: engine.search_executions(
                namespaces=(self._app.namespace,), states=_LIVE, cursor=cursor, limit=_PAGE
            )
        ):
            lines = [each for each in page.executions if not each.execution_kind.startswith("$")]
            contexts = await engine.read_execution_contexts([each.execution_id for each in lines])
            for line in lines:
                if line.execution_id in contexts:
                    yield line, contexts[line.execution_id]

    async def _look_at(self, line: ExecutionSummary, context: ExecutionContext) -> None:
        kind, run = line.execution_kind, str(line.execution_id)
        definition = self._app.definitions.get(kind)
        if definition is not None:
            self._read_arguments(definition, run, context)
        known = self._known.get(kind)
        if definition is not None and known is None:
            return  # a task remembers nothing
        memory = await self._memory(line)
        if known is None:
            if memory.bases():
                self._runs += 1
                self._unknown[kind] = self._unknown.get(kind, 0) + 1
            return
        self._runs += 1
        self._compare(kind, run, known, memory)

    def _read_arguments(self, definition: Definition[..., Any], run: str, context: ExecutionContext) -> None:
        try:
            definition.signature.unpack(context.input_payload)
        except BadPayload as error:
            self._failing.append(Failing(definition.name, run, "", f"cannot continue: {error}"))

    async def _memory(self, line: ExecutionSummary) -> _Memory:
        memory = _Memory()
        for step in await self._app.engine.read_steps(line.execution_id):
            if step.name.startswith("!"):
                continue
            if step.outcome is StepOutcome.OK:
                memory.values[step.name] = step.value
            else:
                memory.errors.add(step.name)
        if line.flow_id is not None:
            await self._add_children(line, memory)
        return memory

    async def _add_children(self, line: ExecutionSummary, memory: _Memory) -> None:
        """What was started and is not remembered yet: it has ended meanwhile, or is waited for."""
        engine = self._app.engine
        states = (*_LIVE, PublicState.COMPLETED)
        async for page in pages(
            lambda cursor: engine.search_executions(
                flow_id=line.flow_id, parent=line.execution_id, states=states, cursor=cursor, limit=_PAGE
            )
        ):
            ids = [each.execution_id for each in page.executions]
            contexts = await engine.read_execution_contexts(ids)
            names = {each: context.tags.get("ff.step", "") for each, context in contexts.items()}
            new = [each for each in ids if names.get(each) and names[each] not in memory.values]
            for end in await engine.read_ends(new):
                self._add_child(memory, names[end.execution_id], end)

    def _add_child(self, memory: _Memory, name: str, end: Any) -> None:
        if end.state is PublicState.COMPLETED:
            memory.values[name] = end.result
        elif end.state not in ENDED:
            memory.waiting.add(name)

    def _compare(self, kind: str, run: str, known: _Known, memory: _Memory) -> None:
        remembered = {base_name(each) for each in (*memory.values, *memory.errors)}
        for base in remembered:
            if not known.calls(base):
                self._not_called.setdefault((kind, base), []).append(run)
        self._waiting += [Waiting(kind, run, each) for each in memory.waiting if not known.calls(base_name(each))]
        self._failing += _unreadable(kind, run, known, memory)
        for name in memory.values:
            if without_branch(name).startswith(ASK) and not _is_asked_again(name):
                self._read_answers(kind, run, name, known.answers.get(base_name(name)), memory)
        bases = memory.bases()
        for each in known.passed:
            if each.name not in bases and each.before & remembered:
                self._added.setdefault((kind, each), []).append(run)

    def _read_answers(self, kind: str, run: str, name: str, answer: Any, memory: _Memory) -> None:
        """Go through the rounds of a question as the workflow would."""
        if answer is None:
            return
        why = ""
        for asked in range(1, MOST_ASKED + 1):
            called = name if asked == 1 else f"{name}~{asked}"
            if called not in memory.values:
                if called not in memory.waiting:
                    self._asked.append(Asked(kind, run, name, why))
                return
            why = _unread(answer, memory.values[called]) or ""
            if not why:
                return
        self._failing.append(Failing(kind, run, name, f"{why}; it was asked {MOST_ASKED} times"))


def _is_asked_again(name: str) -> bool:
    _, found, number = name.rpartition("~")
    return bool(found) and number.isdecimal()


def _unreadable(kind: str, run: str, known: _Known, memory: _Memory) -> Iterator[Failing]:
    for name, value in memory.values.items():
        definition = known.definitions.get(base_name(name))
        if definition is None:
            continue
        try:
            definition.signature.load_result(value)
        except BadResult as error:
            advice = "give the changed function another name, or keep its result compatible"
            yield Failing(kind, run, name, f"{error}; {advice}")


def _unread(answer: Any, value: bytes | None) -> str | None:
    """Why an answer does not fit a type; nothing if it does, or if there was none."""
    try:
        Ask("?", answer).read_result(value)
    except UnreadAnswer as error:
        return error.why
    except (SdkError, msgspec.MsgspecError):
        return None
    return None


async def check(app: App) -> Report:
    """Read what live runs of an open app remember as the code of today would."""
    return await _Check(app).look()
