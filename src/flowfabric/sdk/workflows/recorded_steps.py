"""What a workflow remembers, and which call it belongs to.

A call is recognised by what it is: the branch that makes it, the function's name, its key, or without one its
arguments, and its place among calls that are equal in all that. It never matters when a call is made. Recorded it is
called ``summarize``, ``summarize[fr]``, ``summarize#2``, behind the branch it is made in: ``review>summarize``.

An error is remembered for the trial that met it: when the workflow goes on after a pause the same error is raised
again; when it has failed and is retried, by its retry or by a replay, the call is made again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from flowfabric.model.operations.workflows import CANCEL_MARK, NewStep, StepRecord

#: What marks where a later trial, or a fork, begins; no call has such a name.
_TRIAL = "!trial "
#: What tells which children were started.
_BEGUN = "!started "
#: What marks that the children of calls which were told of a request to cancel have been given up.
_GIVEN_UP = "!given_up "
#: Calls that one mark of a request to cancel names.
_CALLS_PER_MARK = 500
#: Characters of a call's arguments that are kept to show them.
_SHOWN = 160
_NO_ARGUMENTS = b"{}"
#: Stands for the arguments of a race.
RACE = "race"
_ERROR = re.compile(r"!\d+\Z")


class Call(NamedTuple):
    """One call that the code makes in this pass."""

    #: Under which its end is recorded.
    name: str
    #: What it is: the same in every pass, whatever was called before it.
    identity: str
    #: All calls of the same branch, name and key.
    group: str
    #: Its arguments as they are recorded: a digest, the place among equals, their beginning; empty if they do not
    #: count.
    arguments: str = ""


class Told(msgspec.Struct):
    """Calls that were told of a request to cancel, and the children that they stood for."""

    calls: list[str]
    children: list[str]


class Won(msgspec.Struct):
    """How a race has ended: which call has won, and what ended with the others."""

    won: str
    lost: list[str]


class Begun(msgspec.Struct, array_like=True):
    """A child that was started."""

    name: str
    arguments: str
    uuid: str


_decode_told = msgspec.json.Decoder(Told).decode
_decode_won = msgspec.json.Decoder(Won).decode
_decode_begun = msgspec.json.Decoder(list[Begun]).decode


class Memory:
    """The remembered steps of one execution, as this pass of the code may use them."""

    def __init__(
        self, steps: Iterable[StepRecord], *, trial: str = "", source: str | None = None, asked: bool = False
    ) -> None:
        """``trial`` tells this trial from all others, empty for the first one of a run that began with nothing;
        trials of a fork begin with ``source``. ``asked`` if the execution was asked to cancel."""
        known = sorted(steps, key=lambda each: each.sequence)
        self._steps = {step.name: step for step in known}
        #: How many steps are remembered.
        self.count = max((step.sequence for step in known), default=0)
        marks = [step.name for step in known if step.name.startswith(_TRIAL)]
        own = _TRIAL + trial
        #: What says that this trial begins, until that is recorded.
        self.beginning: NewStep | None = None
        #: Behind which step this trial began.
        self._since = 0
        self._trial = 0
        if own in marks:
            self._trial, self._since = marks.index(own) + 1, self._steps[own].sequence
        elif trial:
            self._trial, self._since = len(marks) + 1, self.count
            self.beginning = NewStep(own)
        #: Behind which step the run itself began, if it is a fork: what its source had started is not its own.
        self._own_since = 0
        if source is not None:
            own_marks = [each for each in marks if each.startswith(_TRIAL + source)]
            self._own_since = self._steps[own_marks[0]].sequence if own_marks else self._since
        #: Recorded calls, with what they are recognised by; those of this trial.
        self._known: dict[str, str | None] = {}
        self._current: set[str] = set()
        self._begun: dict[str, tuple[str, bool]] = {}
        #: Calls and branches that have lost a race, and which.
        self.lost: dict[str, str] = {}
        for step in known:
            self._read(step)
        #: What this trial has recorded and the code has not called yet, by the names that calls with other arguments
        #: have as well.
        self._left: dict[str, dict[str, str]] = {}
        self._by_arguments: dict[tuple[str, str], str] = {}
        for name, arguments in self._known.items():
            if not arguments:
                continue
            group, _, number = name.rpartition("#")
            if not (group and number.isdecimal()):
                group = name
            if name in self._current:
                self._left.setdefault(group, {})[name] = arguments
            self._by_arguments.setdefault((group, arguments.partition(" ")[0]), name)
        self._calls: dict[str, int] = {}
        self._named: set[str] = set()
        #: Numbers up to which no name is free any more.
        self._tried: Counter[str] = Counter()
        #: Whether calls of this trial were told of the request to cancel; which, and what they leave to be given up.
        self.told = False
        self.cut: set[str] = set()
        self.left_behind: list[str] = []
        self._cut_before: set[str] = set()
        self._read_marks(asked)

    def _read(self, step: StepRecord) -> None:
        current = step.sequence > self._since
        if step.name[0] == "!":
            if not step.name.startswith(_BEGUN):
                return
            for each in _decode_begun(step.value or b"[]"):
                self._know(each.name, each.arguments, current)
                if step.sequence > self._own_since:
                    self._begun[each.name] = (each.uuid, current)
        else:
            self._know(_ERROR.sub("", step.name) if "!" in step.name else step.name, step.arguments, current)
            if step.arguments == RACE:
                self.lost |= dict.fromkeys(read_won(step.value).lost, step.name)

    def _know(self, name: str, arguments: str | None, current: bool) -> None:
        if arguments is not None:
            self._known[name] = arguments
        else:
            self._known.setdefault(name)
        if current:
            self._current.add(name)

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

    # -- recognising ---------------------------------------------------------------------------------------------

    def call(self, path: str, base: str, key: str | None, arguments: bytes | None) -> Call:
        """One more call. Without arguments, or with a key, all that counts is its place among those of its name."""
        group = f"{path}{base}" if key is None else f"{path}{base}[{key}]"
        if arguments is None or key is not None:
            self._calls[group] = self._calls.get(group, 0) + 1
            name = _numbered(group, self._calls[group])
            self._take(group, name)
            return Call(name, name, group)
        digest = "" if arguments == _NO_ARGUMENTS else blake2b(arguments, digest_size=8).hexdigest()
        equal = f"{group}~{digest}" if digest else group
        place = self._calls[equal] = self._calls.get(equal, 0) + 1
        exactly = f"{digest}.{place}"
        identity = equal if place == 1 else f"{equal}#{place}"
        known = self._by_arguments.get((group, exactly))
        if known is not None:
            self._take(group, known)
            return Call(known, identity, group, self._known[known] or "")
        name = self._free(group)
        self._take(group, name)
        return Call(name, identity, group, f"{exactly} {arguments[:_SHOWN].decode('utf-8', 'replace')}")

    def was_called(self, name: str) -> bool:
        """Whether the code has made this call in this pass."""
        return name in self._named

    def steps(self) -> list[StepRecord]:
        """All that is remembered."""
        return list(self._steps.values())

    def _free(self, group: str) -> str:
        """A name for a call that nothing is known of."""
        number = self._tried[group] + 1
        while (name := _numbered(group, number)) in self._named or self._is_used(name):
            number += 1
        self._tried[group] = number
        return name

    def _is_used(self, name: str) -> bool:
        # What was recorded without its arguments belongs to the call whose turn it is.
        return self._known.get(name) is not None

    def _take(self, group: str, name: str) -> None:
        self._named.add(name)
        if (left := self._left.get(group)) is not None:
            left.pop(name, None)

    def misfit(self, call: Call) -> str | None:
        """The arguments of a remembered call that this one may stand for by mistake: there is no memory for its own
        arguments, and some of this trial is left over."""
        if not call.arguments or call.name in self._known:
            return None
        left = self._left.get(call.group)
        if not left:
            return None
        digest = _digest_of(call.arguments).partition(".")[0]
        return next((shown_arguments(each) for each in left.values() if not each.startswith(f"{digest}.")), None)

    def lost_in(self, call: Call) -> str | None:
        """The race that it has lost, or the branch that makes it."""
        name = call.name
        found = self.lost.get(name)
        return found or next(
            (race for each, race in self.lost.items() if each[-1] == ">" and name.startswith(each)), None
        )

    def forget_race(self, race: str) -> None:
        """It is not run in this trial, so nobody has lost it."""
        self.lost = {name: each for name, each in self.lost.items() if each != race}

    # -- what calls gave -----------------------------------------------------------------------------------------

    def find(self, name: str) -> StepRecord | None:
        """What a call gave before, or the error it met in this trial."""
        return self._steps.get(name) or self._steps.get(self.error_name(name))

    def given(self, name: str) -> StepRecord | None:
        """What a call gave before."""
        return self._steps.get(name)

    def error_name(self, name: str) -> str:
        """Where an error that the call meets in this trial is remembered."""
        return f"{name}!{self._trial}"

    def add(self, step: StepRecord) -> None:
        """A step has been remembered."""
        self._steps[step.name] = step
        self.count = max(self.count, step.sequence)

    # -- children ------------------------------------------------------------------------------------------------

    def begun(self, name: str) -> tuple[str, bool] | None:
        """The child that was started for a call, and whether this trial has said so."""
        found = self._begun.get(name)
        if found is not None and not found[1] and self._has_failed(name):
            return None
        return found

    def generation(self, name: str, identity: str) -> str:
        """What tells the child of a call from the children of the same call that failed in earlier trials."""
        return self.next_generation(identity) if self._has_failed(name) else identity

    def next_generation(self, identity: str) -> str:
        """The same for a child that is not to be that of earlier trials."""
        return f"{identity}!{self._trial}"

    def _has_failed(self, name: str) -> bool:
        failed = any(f"{name}!{earlier}" in self._steps for earlier in range(self._trial))
        return failed or name in self._cut_before

    def beginnings(self, children: list[Begun]) -> NewStep:
        """Say which children are started."""
        for each in children:
            self._begun[each.name] = (each.uuid, True)
        return NewStep(f"{_BEGUN}{self.count}", msgspec.json.encode(children))

    # -- a request to cancel -------------------------------------------------------------------------------------

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


def read_won(value: bytes | None) -> Won:
    """How a race has ended."""
    return _decode_won(value or b"{}")


def shown_arguments(arguments: str) -> str:
    """The arguments of a call, for people."""
    shown = arguments.partition(" ")[2]
    return shown if len(shown) < _SHOWN else f"{shown}…"


def _digest_of(arguments: str) -> str:
    return arguments.partition(" ")[0]


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}#{number}"
