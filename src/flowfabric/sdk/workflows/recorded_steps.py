"""What a workflow remembers, by name.

A call's name is the function's, with its key in brackets and, from the second call of the same name on, a number:
``summarize``, ``summarize[fr]``, ``summarize#2``. The name is taken when the call is made, so it does not matter in
which order parallel calls end, and code between the calls may change freely.

An error is remembered for the trial that met it: when the workflow goes on after a pause the same error is raised
again; when it has failed and is retried, by its retry or by a replay, the call is made again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from flowfabric.model.operations.workflows import CANCEL_MARK, NewStep, StepRecord

#: What marks that the workflow has failed; no call has such a name.
_FAILED = "!failed "
#: What marks that the children of calls which were told of a request to cancel have been given up.
_GIVEN_UP = "!given_up "
#: Calls that one mark of a request to cancel names.
_CALLS_PER_MARK = 500


class Told(msgspec.Struct):
    """Calls that were told of a request to cancel, and the children that they stood for."""

    calls: list[str]
    children: list[str]


_decode_told = msgspec.json.Decoder(Told).decode


class Memory:
    """The remembered steps of one execution, as this attempt may use them."""

    def __init__(self, steps: Iterable[StepRecord], *, asked: bool = False) -> None:
        """``asked`` if the execution was asked to cancel."""
        self._steps = {step.name: step for step in steps}
        #: How often the workflow has failed before.
        self._trial = sum(name.startswith(_FAILED) for name in self._steps)
        self._calls: Counter[str] = Counter()
        #: How many steps are remembered.
        self.count = max((step.sequence for step in self._steps.values()), default=0)
        #: Whether calls of this trial were told of the request to cancel; which, and what they leave to be given up.
        self.told = False
        self.cut: set[str] = set()
        self.left_behind: list[str] = []
        self._cut_before: set[str] = set()
        self._read_marks(asked)

    def _read_marks(self, asked: bool) -> None:
        marks = [step for step in self._steps.values() if step.name.startswith(CANCEL_MARK)]
        given_up = f"{_GIVEN_UP}{self._trial}" in self._steps
        for mark in marks:
            found = _decode_told(mark.value or b"")
            if not (asked and mark.name.startswith(f"{CANCEL_MARK}{self._trial}.")):
                self._cut_before.update(found.calls)
                continue
            self.told = True
            self.cut.update(found.calls)
            if not given_up:
                self.left_behind += found.children

    def __contains__(self, name: str) -> bool:
        return name in self._steps

    def name(self, base: str, key: str | None) -> str:
        """The name of one more call."""
        name = base if key is None else f"{base}[{key}]"
        self._calls[name] += 1
        number = self._calls[name]
        return name if number == 1 else f"{name}#{number}"

    def find(self, name: str) -> StepRecord | None:
        """What a call gave before, or the error it met in this trial."""
        return self._steps.get(name) or self._steps.get(self.error_name(name))

    def error_name(self, name: str) -> str:
        """Where an error that the call meets in this trial is remembered."""
        return f"{name}!{self._trial}"

    def failure(self) -> NewStep:
        """Marks the end of this trial."""
        return NewStep(f"{_FAILED}{self._trial}")

    def marks(self, calls: list[str], children: list[str]) -> list[NewStep]:
        """Say that these calls are told of the request to cancel, and which children they give up."""
        size = _CALLS_PER_MARK
        return [
            NewStep(
                f"{CANCEL_MARK}{self._trial}.{part}",
                msgspec.json.encode(Told(calls[start : start + size], children[start : start + size])),
            )
            for part, start in enumerate(range(0, max(len(calls), len(children)), size))
        ]

    def given_up(self) -> NewStep:
        """Say that these children have been given up."""
        return NewStep(f"{_GIVEN_UP}{self._trial}")

    def generation(self, name: str) -> str:
        """What tells the child of a call from the children of the same call that failed in earlier trials."""
        failed = any(f"{name}!{earlier}" in self._steps for earlier in range(self._trial))
        failed = failed or name in self._cut_before
        return self.error_name(name) if failed else name

    def add(self, step: StepRecord) -> None:
        """A step has been remembered."""
        self._steps[step.name] = step
        self.count = max(self.count, step.sequence)
