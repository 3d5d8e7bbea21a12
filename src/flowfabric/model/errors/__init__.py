"""Every way the engine says no, as one tree of exceptions.

    EngineError
    ├── NotFound             the thing named by an id does not exist
    ├── Validation           the input was refused                              kind: ValidationKind
    │   ├── StreamGap        events behind a cursor are gone
    │   └── WrongLoop        an engine was called from another event loop than its own
    ├── Contention           a race was lost or the state has moved             kind: ContentionKind
    ├── Conflict             a record that is already there stands in the way   kind: ConflictKind
    ├── State                legal, but not in the state it is in               kind: StateKind
    ├── Bug                  an invariant of the engine is broken               kind: BugKind
    ├── Transport            the store or the network failed                    kind: TransportKind
    │   └── RequiresDevMode  SQLite was opened without opting in
    ├── Unavailable          the operation is not offered
    ├── ResourceExhausted    a concurrency ceiling was reached
    │   └── LimitReached     a limit that waiting does not lift
    ├── Timeout              the operation ran past its deadline
    ├── StreamDisconnected   a subscription ended; its cursor continues it
    ├── StreamBackpressure   wake-ups were coalesced; nothing is lost
    └── Contextual           a label around Transport, Unavailable, ResourceExhausted or Timeout

Callers match on the family (the class) and on ``kind``; ``code`` is the stable text for wires and logs. A refused call
has changed nothing. An error costs no more than its arguments: the sentence is put together only when it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from flowfabric.model.errors.kinds import (
    HINT_RETRYABLE_ELSEWHERE,
    HINT_RETRYABLE_NEW_GRANT,
    SENTENCES,
    BugKind,
    ConflictKind,
    ContentionKind,
    ErrorClass,
    StateKind,
    TransportKind,
    ValidationKind,
)

__all__ = [
    "HINT_RETRYABLE_ELSEWHERE",
    "HINT_RETRYABLE_NEW_GRANT",
    "Bug",
    "BugKind",
    "Conflict",
    "ConflictKind",
    "Contention",
    "ContentionKind",
    "Contextual",
    "EngineError",
    "ErrorClass",
    "LimitReached",
    "NotFound",
    "RequiresDevMode",
    "ResourceExhausted",
    "State",
    "StateKind",
    "StreamBackpressure",
    "StreamDisconnected",
    "StreamGap",
    "Timeout",
    "Transport",
    "TransportKind",
    "Unavailable",
    "Validation",
    "ValidationKind",
    "WrongLoop",
]

_CONTENTION_HINTS: Mapping[ContentionKind, str] = {
    ContentionKind.USE_CLAIM_RESUMED_EXECUTION: HINT_RETRYABLE_ELSEWHERE,
    ContentionKind.NOT_A_RESUMED_EXECUTION: HINT_RETRYABLE_ELSEWHERE,
    ContentionKind.INVALID_CLAIM_GRANT: HINT_RETRYABLE_NEW_GRANT,
    ContentionKind.CLAIM_GRANT_EXPIRED: HINT_RETRYABLE_NEW_GRANT,
    ContentionKind.EXECUTION_NOT_ACTIVE: ErrorClass.TERMINAL,
    ContentionKind.EXECUTION_NOT_ELIGIBLE: ErrorClass.INFORMATIONAL,
    ContentionKind.EXECUTION_NOT_IN_ELIGIBLE_SET: ErrorClass.INFORMATIONAL,
    ContentionKind.EXECUTION_NOT_RECLAIMABLE: ErrorClass.INFORMATIONAL,
    ContentionKind.NO_ACTIVE_LEASE: ErrorClass.INFORMATIONAL,
}

_INFORMATIONAL_STATES = frozenset(
    {
        StateKind.EXECUTION_NOT_SUSPENDED,
        StateKind.ALREADY_SUSPENDED,
        StateKind.ALREADY_SATISFIED,
        StateKind.WAITPOINT_CLOSED,
        StateKind.WAITPOINT_NOT_OPEN,
        StateKind.WAITPOINT_NOT_PENDING,
        StateKind.PENDING_WAITPOINT_EXPIRED,
        StateKind.DUPLICATE_SIGNAL,
        StateKind.OK_ALREADY_APPLIED,
        StateKind.STREAM_ALREADY_CLOSED,
        StateKind.ATTEMPT_ALREADY_TERMINAL,
        StateKind.GRANT_ALREADY_EXISTS,
        StateKind.DEPS_NOT_SATISFIED,
        StateKind.NOT_BLOCKED_BY_DEPS,
        StateKind.BUDGET_SOFT_EXCEEDED,
    }
)

_RETRYABLE_TRANSPORTS = frozenset(
    {TransportKind.TRANSPORT, TransportKind.TIMEOUT, TransportKind.CLUSTER, TransportKind.BUSY_LOADING}
)


def _rebuild(cls: type[EngineError], members: dict[str, Any]) -> EngineError:
    """Make an unpickled or copied error again, however its arguments were spelled."""
    error = cls.__new__(cls)
    error.__dict__.update(members)
    return error


class EngineError(Exception):
    """Something the engine refused or could not do. Catch this for all of them, or a family for some."""

    family: ClassVar[str] = "engine"

    kind: str
    """The finer reason; an enum member in the families that have kinds."""

    detail: str = ""
    """Ids, names and values that say which thing it was about; may be empty."""

    @property
    def code(self) -> str:
        """Stable snake_case text for wires, logs and metrics."""
        return str(self.kind)

    @property
    def error_class(self) -> ErrorClass:
        """What a caller may do about it."""
        return ErrorClass.TERMINAL

    @property
    def hint(self) -> str:
        """A finer class for schedulers: the text of an `ErrorClass`, or one of the ``HINT_…`` texts."""
        return str(self.error_class)

    @property
    def retryable(self) -> bool:
        """Whether the same call can succeed later without being changed."""
        return self.error_class is ErrorClass.RETRYABLE

    def _happened(self) -> str:
        happened, _ = self._sentence()
        about = self._about()
        return f"{happened} ({about})" if about else happened

    def _about(self) -> str:
        """The detail without the code, which stands in front of the sentence already."""
        return "" if self.detail == self.code else self.detail.removeprefix(f"{self.code}: ")

    def _sentence(self) -> tuple[str, str]:
        """What happened and what to do; families without kinds say it themselves."""
        return SENTENCES.get(self.kind, (self.family.replace("_", " "), "See the detail."))

    def __str__(self) -> str:
        return f"{self.code}: {self._happened()}. {self._sentence()[1]}"

    def __repr__(self) -> str:
        detail = f", {self.detail!r}" if self.detail else ""
        return f"{type(self).__name__}({str(self.kind)!r}{detail})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.__dict__.copy())


class NotFound(EngineError):
    """The thing named by an id does not exist (`entity`: execution, flow, attempt, budget, …)."""

    family: ClassVar[str] = "not_found"

    def __init__(self, entity: str, identity: str = "") -> None:
        self.entity = self.kind = entity
        self.detail = identity

    @property
    def code(self) -> str:
        return f"{self.entity}_not_found"

    def _sentence(self) -> tuple[str, str]:
        return f"no such {self.entity.replace('_', ' ')}", "Check the id; it may have been removed by retention."


class Validation(EngineError):
    """The input was refused, or a stored value could not be decoded."""

    family: ClassVar[str] = "validation"
    kind: ValidationKind

    def __init__(self, kind: ValidationKind, detail: str = "") -> None:
        self.kind = kind
        self.detail = detail

    @property
    def hint(self) -> str:
        return str(ErrorClass.RETRYABLE if self.kind is ValidationKind.INVALID_OFFSET else ErrorClass.TERMINAL)


class StreamGap(Validation):
    """Events behind the cursor `requested` were deleted by age; `oldest` is the cursor before all that are left. Or the
    store has lost events before it, in a fail-over; then `oldest` is the cursor behind the last ones it still has."""

    def __init__(self, requested: bytes = b"", oldest: bytes = b"") -> None:
        super().__init__(
            ValidationKind.INVALID_INPUT,
            f"cursor_expired: StreamGap(requested={requested.hex() or 'none'}, oldest={oldest.hex() or 'none'})",
        )
        self.requested = requested
        self.oldest = oldest

    def _sentence(self) -> tuple[str, str]:
        return (
            "events after the cursor are no longer kept",
            "Subscribe with the cursor `oldest` to read what is left, or with an empty one to start now.",
        )


class WrongLoop(Validation):
    """The engine belongs to the event loop it was first used on, and was called from another one, or from a process
    that was forked off since."""

    def __init__(self, detail: str = "") -> None:
        super().__init__(ValidationKind.INVALID_INPUT, detail)

    @property
    def code(self) -> str:
        return "wrong_event_loop"

    def _sentence(self) -> tuple[str, str]:
        return (
            "the engine belongs to another event loop",
            "Open it on the loop and in the process that use it; from other threads, call it through app.sync.",
        )


class Contention(EngineError):
    """A race was lost or the state has moved: read again, or go on with other work.

    The four facts are filled for ``EXECUTION_NOT_ACTIVE``, so that a caller sees whether its own call had won.
    """

    family: ClassVar[str] = "contention"
    kind: ContentionKind

    def __init__(
        self,
        kind: ContentionKind,
        detail: str = "",
        *,
        terminal_outcome: str | None = None,
        lease_epoch: int | None = None,
        lifecycle_phase: str | None = None,
        attempt_id: str | None = None,
    ) -> None:
        self.kind = kind
        self.detail = detail
        self.terminal_outcome = terminal_outcome
        self.lease_epoch = lease_epoch
        self.lifecycle_phase = lifecycle_phase
        self.attempt_id = attempt_id

    @property
    def error_class(self) -> ErrorClass:
        return ErrorClass.RETRYABLE

    @property
    def hint(self) -> str:
        return str(_CONTENTION_HINTS.get(self.kind, ErrorClass.RETRYABLE))

    def _happened(self) -> str:
        names = ("lifecycle_phase", "terminal_outcome", "lease_epoch", "attempt_id")
        facts = [f"{name}={getattr(self, name)}" for name in names if getattr(self, name) is not None]
        about = self._about()
        told = ", ".join([about, *facts] if about else facts)
        return f"{self._sentence()[0]} ({told})" if told else self._sentence()[0]


class Conflict(EngineError):
    """A record that is already there stands in the way; `existing` is that record where the operation knows it."""

    family: ClassVar[str] = "conflict"
    kind: ConflictKind

    def __init__(self, kind: ConflictKind, detail: str = "", *, existing: Any = None, kid: str | None = None) -> None:
        self.kind = kind
        self.detail = detail if detail or kid is None else f"kid={kid}"
        self.existing = existing
        self.kid = kid


class State(EngineError):
    """The operation is legal, but not in the state the thing is in."""

    family: ClassVar[str] = "state"
    kind: StateKind

    def __init__(self, kind: StateKind, detail: str = "") -> None:
        self.kind = kind
        self.detail = detail

    @property
    def error_class(self) -> ErrorClass:
        if self.kind in _INFORMATIONAL_STATES:
            return ErrorClass.INFORMATIONAL
        return ErrorClass.COOPERATIVE if self.kind is StateKind.BUDGET_EXCEEDED else ErrorClass.TERMINAL


class Bug(EngineError):
    """An invariant of the engine is broken; please report it with the detail."""

    family: ClassVar[str] = "bug"
    kind: BugKind

    def __init__(self, kind: BugKind, detail: str = "") -> None:
        self.kind = kind
        self.detail = detail

    @property
    def error_class(self) -> ErrorClass:
        return ErrorClass.BUG


class Transport(EngineError):
    """The store or the network failed. `cause` may be the driver's exception (kept as ``__cause__``) or a text."""

    family: ClassVar[str] = "transport"
    kind: TransportKind

    def __init__(self, backend: str, kind: TransportKind, cause: BaseException | str = "") -> None:
        self.backend = backend
        self.kind = kind
        if isinstance(cause, str):
            self.detail = cause
        else:
            self.detail = f"{type(cause).__name__}: {cause}"
            self.__cause__ = cause

    @property
    def error_class(self) -> ErrorClass:
        return ErrorClass.RETRYABLE if self.kind in _RETRYABLE_TRANSPORTS else ErrorClass.TERMINAL

    def _happened(self) -> str:
        return f"{self.backend}: {super()._happened()}"


class RequiresDevMode(Transport):
    """SQLite keeps everything on one node, so opening it takes a word that this is meant."""

    def __init__(self, detail: str = "") -> None:
        super().__init__("sqlite", TransportKind.PROTOCOL, detail)

    @property
    def code(self) -> str:
        return "requires_dev_mode"

    def _sentence(self) -> tuple[str, str]:
        return (
            "SQLite is a single-node store and was not enabled",
            "Set FF_DEV_MODE=1, or pass single_node=True (server: --single-node).",
        )


class Unavailable(EngineError):
    """The operation `op` is not offered, or its pool has been closed by a shutdown."""

    family: ClassVar[str] = "unavailable"
    kind = "unavailable"

    def __init__(self, op: str) -> None:
        self.op = self.detail = op

    def _sentence(self) -> tuple[str, str]:
        return "the operation is not available", "Call it on an engine that offers it and is open."


class ResourceExhausted(EngineError):
    """A concurrency ceiling was reached: `maximum` calls of `pool` are running."""

    family: ClassVar[str] = "resource_exhausted"
    kind = "resource_exhausted"

    def __init__(self, pool: str, maximum: int, retry_after_ms: int | None = None) -> None:
        self.pool = pool
        self.maximum = maximum
        self.retry_after_ms = retry_after_ms
        self.detail = f"pool={pool} max={maximum}"

    @property
    def error_class(self) -> ErrorClass:
        return ErrorClass.RETRYABLE

    def _sentence(self) -> tuple[str, str]:
        when = "with backoff" if self.retry_after_ms is None else f"after {self.retry_after_ms} ms"
        return "too many concurrent calls", f"Try again {when}."


class LimitReached(ResourceExhausted):
    """What was asked for is more than one execution, flow or call can hold: the limit `pool` is `maximum`. It does not
    pass, so the same call is refused each time."""

    kind = "limit_reached"

    def __init__(self, limit: str, maximum: int) -> None:
        super().__init__(limit, maximum)
        self.detail = f"{limit}={maximum}"

    @property
    def error_class(self) -> ErrorClass:
        return ErrorClass.TERMINAL

    def _sentence(self) -> tuple[str, str]:
        return "a limit was reached", "Divide the work between several executions, flows or calls."


class Timeout(EngineError):
    """The operation `op` ran past its deadline; whether it took effect has to be read."""

    family: ClassVar[str] = "timeout"
    # Not "timeout": that code says a store's reply was late, which may be retried; this one may not.
    kind = "operation_timeout"

    def __init__(self, op: str, elapsed_ms: int) -> None:
        self.op = op
        self.elapsed_ms = elapsed_ms
        self.detail = f"op={op} elapsed_ms={elapsed_ms}"

    def _sentence(self) -> tuple[str, str]:
        return "the operation timed out", "Read the state to see whether it took effect."


class StreamDisconnected(EngineError):
    """A subscription ended; subscribe again with `cursor` to continue without a gap."""

    family: ClassVar[str] = "stream_disconnected"
    kind = "stream_disconnected"

    def __init__(self, cursor: Any) -> None:
        self.cursor = cursor
        self.detail = f"cursor={cursor!r}"

    def _sentence(self) -> tuple[str, str]:
        return "the subscription ended", "Subscribe again with the cursor; nothing is lost."


class StreamBackpressure(EngineError):
    """Wake-ups were coalesced because the subscriber is slow; the stream goes on and nothing is lost."""

    family: ClassVar[str] = "stream_backpressure"
    kind = "stream_backpressure"

    @property
    def error_class(self) -> ErrorClass:
        return ErrorClass.INFORMATIONAL

    def _sentence(self) -> tuple[str, str]:
        return "the subscriber is slower than the stream", "Keep reading; nothing is lost."


class Contextual(EngineError):
    """A call-site label around a transport, availability, capacity or time error; everything else is that error's."""

    family: ClassVar[str] = "contextual"

    def __init__(self, context: str, inner: EngineError) -> None:
        if not isinstance(inner, (Transport, Unavailable, ResourceExhausted, Timeout, Contextual)):
            raise TypeError(f"a {type(inner).__name__} error takes no context")
        self.context = context
        self.inner = inner
        self.kind = inner.kind
        self.detail = inner.detail
        self.__cause__ = inner

    @property
    def code(self) -> str:
        return self.inner.code

    @property
    def error_class(self) -> ErrorClass:
        return self.inner.error_class

    @property
    def hint(self) -> str:
        return self.inner.hint

    def __str__(self) -> str:
        return f"{self.code}: {self.context}: {str(self.inner).removeprefix(f'{self.code}: ')}"
