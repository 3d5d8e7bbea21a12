"""Remembered steps of a durable function, and the answer when it moves on."""

from __future__ import annotations

import re
from enum import StrEnum

from msgspec import Struct

from flowfabric.model.ids import ExecutionId
from flowfabric.model.states import PublicState

#: How the names of steps begin that say which calls of a durable function were told of a request to cancel. Whatever is
#: remembered behind the first of them was done because of it.
CANCEL_MARK = "!cancel "


#: What stands before the names of calls that a branch of a function makes: ``approve#2>``. It has the names of
#: functions, with keys and numbers, or the digest of a long path.
_BRANCHES = re.compile(r"^(?:(?:\w+(?:\([^()>]*\))?(?:#\d+)?|\([0-9a-f]{24}\))>)+")


def without_branch(name: str) -> str:
    """The name of a call without the branch that makes it."""
    return _BRANCHES.sub("", name)


def called(name: str) -> str:
    """What code and people call a step: its name without the mark of the trial that met its error (``ship!0``)."""
    call, _, trial = name.rpartition("!")
    return call if call and trial.isascii() and trial.isdigit() else name


class StepOutcome(StrEnum):
    """How a step ended."""

    OK = "ok"
    ERROR = "error"


class Step(Struct, gc=False):
    """One remembered step of an execution (``ff_step``): written once, under the lease that ran it."""

    partition: int
    uuid: str
    name: str
    #: Its place in the order of remembering, from 1.
    sequence: int
    attempt_index: int
    lease_epoch: int
    outcome: str
    value: bytes | None
    recorded_at_ms: int
    #: What the call is recognised by beside its name; nobody but those who call looks into it.
    arguments: str | None = None

    @property
    def key(self) -> tuple[int, str, str]:
        return (self.partition, self.uuid, self.name)


class NewStep(Struct, frozen=True, gc=False):
    """A step that has ended and is to be remembered."""

    name: str
    value: bytes | None = None
    outcome: str = StepOutcome.OK
    arguments: str | None = None


class StepRecord(Struct, frozen=True, gc=False):
    """A remembered step."""

    name: str
    sequence: int
    outcome: StepOutcome
    value: bytes | None
    attempt_index: int
    recorded_at_ms: int
    arguments: str | None = None


class StepPlace(Struct, frozen=True, gc=False):
    """Where a remembered step stands, and how many bytes its value has."""

    sequence: int
    name: str
    size: int


class LiveStep(Struct, frozen=True, gc=False):
    """A step that an execution which has not ended remembers."""

    execution_id: ExecutionId
    name: str


class ChildWait(Struct, frozen=True, gc=False):
    """What a durable function waits for: enough of its children to end, a time, or both.

    ``wake_after`` of the ``awaited`` executions must have ended; 0 waits for the time alone. With ``or_failure`` the
    first that ends otherwise than completed is enough, and so is any that has ended before the function is parked.
    """

    awaited: tuple[str, ...] = ()
    wake_after: int = 0
    until_ms: int | None = None
    or_failure: bool = False


class Advanced(Struct, frozen=True, gc=False):
    """What came of moving on: the steps as they stand remembered, and whether the execution is parked now.

    ``ended`` names the awaited executions that had ended already; an execution that is not parked keeps its lease.
    ``cancelling`` says that the execution was asked to cancel. A holder that did not know it is not parked.
    """

    steps: tuple[StepRecord, ...]
    parked: bool
    ended: tuple[ExecutionId, ...] = ()
    cancelling: bool = False


class Ended(Struct, frozen=True, gc=False):
    """How one execution stands: its state, and its result or failure once it has ended."""

    execution_id: ExecutionId
    state: PublicState
    result: bytes | None
    failure_reason: str | None
    cancellation_reason: str | None
    #: When it ended, if it has.
    ended_at_ms: int | None = None


class Forked(Struct, frozen=True, gc=False):
    """A new execution that remembers what another had done before a step."""

    execution_id: ExecutionId
    steps: int
