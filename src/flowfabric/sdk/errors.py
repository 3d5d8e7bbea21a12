"""Every way the SDK says no: each error has a stable ``code``, the ids involved, and a sentence that says what to do.

    SdkError
    ├── NotOpen            the app has no engine yet, or no longer
    ├── BlocksLoop         a blocking call where an event loop runs
    ├── BadDuration        a number or a text where a timedelta belongs
    ├── BadOptions         options that contradict each other or mean nothing
    ├── BadSignature       a function that cannot be a task, step or workflow as it is written
    ├── BadArguments       a call whose arguments do not fit the function
    ├── BadPayload         stored arguments that do not fit the function of today
    ├── BadResult          a result that does not fit the function's return annotation
    ├── BadDependency      a dependency that cannot be provided
    ├── BudgetExceeded     what ctx.spend asked for does not fit
    ├── UnknownTask        no definition of that name
    ├── UnknownSchedule    no schedule of that name
    ├── UnknownRun         no run of that id
    │   └── NotCommitted   it was asked for in a transaction that is not committed
    ├── StillPending       its transaction is committed, and no worker or server has taken it up yet
    ├── StartRefused       a run that was asked for in a transaction could not be created
    ├── IdConflict         a run with this id exists, and reuse="reject" was asked for
    ├── StepFailed         a step failed before, with an error that cannot be had again as it was
    ├── BadStep            what a workflow remembers does not fit the code of today
    ├── BadAnswer          an answer that does not fit its question, or a malformed link
    ├── AskTimedOut        a question nobody answered in time
    ├── AskClosed          a question that takes no answers
    │   └── AlreadyAnswered   the approver has given another answer
    ├── ResultTimeout      the run has not ended in time; it goes on
    └── RunEnded           the run ended without a result
        ├── RunFailed
        ├── RunCancelled
        ├── RunExpired
        └── RunSkipped

What the engine refuses (payloads that are too large, closed lanes …) stays a ``flowfabric.EngineError``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from flowfabric.model.states import PublicState


class SdkError(Exception):
    """The root. ``code`` is stable; ``ids`` names what is involved (``run``, ``task``, ``parameter`` …)."""

    code: ClassVar[str] = "sdk_error"

    def __init__(self, message: str, **ids: str) -> None:
        super().__init__(message)
        self.message = message
        self.ids = ids

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[SdkError], arguments: tuple[object, ...], state: dict[str, object]) -> SdkError:
    """An error that has travelled between processes."""
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    error.__dict__.update(state)
    return error


class ServerRefused(SdkError):
    """The server does not let this token do that: it is missing, revoked, lacks a scope, or is for other namespaces."""

    code: ClassVar[str] = "server_refused"


class NotOpen(SdkError):
    """The app has no engine yet, or no longer."""

    code = "not_open"


class BlocksLoop(SdkError):
    """A blocking call where an event loop runs; await the async one."""

    code = "blocks_loop"


class BadDuration(SdkError):
    """A number or a text where a timedelta belongs."""

    code = "bad_duration"


class BadOptions(SdkError):
    """Options that contradict each other or mean nothing."""

    code = "bad_options"


class BadSignature(SdkError):
    """A function that cannot be a task, step or workflow as it is written."""

    code = "bad_signature"


class BadArguments(SdkError):
    """A call whose arguments do not fit the function."""

    code = "bad_arguments"


class BadPayload(SdkError):
    """Stored arguments that do not fit the function of today."""

    code = "bad_payload"


class BadResult(SdkError):
    """A result that does not fit the function's return annotation."""

    code = "bad_result"


class BadDependency(SdkError):
    """A dependency that cannot be provided."""

    code = "bad_dependency"


class BudgetExceeded(SdkError):
    """A budget has no room. ``cancels`` if it says that the run is to be cancelled."""

    code = "budget_exceeded"

    def __init__(self, message: str, *, budget: str, dimension: str, cancels: bool = False) -> None:
        super().__init__(message, budget=budget, dimension=dimension)
        self.cancels = cancels


class UnknownTask(SdkError):
    """No definition of that name."""

    code = "unknown_task"


class UnknownSchedule(SdkError):
    """No schedule of that name."""

    code = "unknown_schedule"


class UnknownRun(SdkError):
    """No run of that id."""

    code = "unknown_run"


class NotCommitted(UnknownRun):
    """The run was asked for in a transaction that has not been committed, or was rolled back."""

    code = "not_committed"


class StillPending(SdkError):
    """The run was asked for in a transaction that is committed, and no worker or server has taken it up yet."""

    code = "still_pending"


class StartRefused(SdkError):
    """A run that was asked for in a transaction could not be created; the request waits for an operator."""

    code = "start_refused"


class IdConflict(SdkError):
    """A run with this id exists already; ``run_id`` names it."""

    code = "id_conflict"

    def __init__(self, message: str, *, run_id: str, id: str) -> None:
        super().__init__(message, run=run_id, id=id)
        self.run_id = run_id


class StepFailed(SdkError):
    """A step failed before, with an error that cannot be had again as it was; ``ids["type"]`` names its class."""

    code = "step_failed"


class BadStep(SdkError):
    """What a workflow remembers does not fit the code of today."""

    code = "bad_step"


class BadAnswer(SdkError):
    """An answer that does not fit its question, or a malformed link."""

    code = "bad_answer"


class AskTimedOut(SdkError, TimeoutError):
    """A question nobody answered in time."""

    code = "ask_timed_out"


class AskClosed(SdkError):
    """A question that takes no answers."""

    code = "ask_closed"


class AlreadyAnswered(AskClosed):
    """The approver has given another answer, and answers cannot be changed."""

    code = "already_answered"


class ResultTimeout(SdkError, TimeoutError):
    """The run has not ended in time. It goes on; ask again, or cancel it."""

    code = "result_timeout"


class CancelRequested(BaseException):
    """The workflow was asked to cancel. The call it is waiting for, or its next one, raises this, once.

    ``except Exception`` does not see it. Clean up in ``finally`` or ``except CancelRequested`` and raise it again: then
    the run ends as cancelled. ``reason`` is the one given to ``run.cancel``.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class RunEnded(SdkError):
    """The run ended without a result."""

    code = "run_ended"

    def __init__(self, message: str, *, run_id: str, reason: str = "") -> None:
        super().__init__(message, run=run_id)
        self.run_id = run_id
        self.reason = reason


class RunFailed(RunEnded):
    """The run failed for good: the type, message and traceback are those of its last error, as texts."""

    code = "run_failed"

    def __init__(
        self,
        message: str,
        *,
        run_id: str,
        reason: str = "",
        category: str = "",
        error_type: str = "",
        traceback: str = "",
    ) -> None:
        super().__init__(message, run_id=run_id, reason=reason)
        self.category = category
        self.error_type = error_type
        self.traceback = traceback


class RunCancelled(RunEnded):
    """The run was cancelled."""

    code = "run_cancelled"


class RunExpired(RunEnded):
    """The run did not end before its deadline, or an attempt that nobody ended took longer than it may."""

    code = "run_expired"


class RunSkipped(RunEnded):
    """The run was skipped, because what it depends on did not succeed."""

    code = "run_skipped"


# -- how runs end ----------------------------------------------------------------------------------------------------

#: The error that says how a run ended which did not succeed.
ENDS: Mapping[PublicState, type[RunEnded]] = {
    PublicState.FAILED: RunFailed,
    PublicState.CANCELLED: RunCancelled,
    PublicState.EXPIRED: RunExpired,
    PublicState.SKIPPED: RunSkipped,
}
#: All the ways to end.
ENDED = frozenset({PublicState.COMPLETED, *ENDS})
