"""Errors of the engine on their way to another process: the same class, kind, detail and facts there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flowfabric.model.errors import (
    Bug,
    BugKind,
    Conflict,
    ConflictKind,
    Contention,
    ContentionKind,
    Contextual,
    EngineError,
    LimitReached,
    NotFound,
    RequiresDevMode,
    ResourceExhausted,
    State,
    StateKind,
    StreamBackpressure,
    StreamDisconnected,
    StreamGap,
    Timeout,
    Transport,
    TransportKind,
    Unavailable,
    Validation,
    ValidationKind,
)

#: The pool of a call that a server has not begun, because there was no room for its answer: it may be made again.
NOT_BEGUN = "answers"
_FACTS = ("terminal_outcome", "lease_epoch", "lifecycle_phase", "attempt_id")


def error_to_wire(error: EngineError) -> dict[str, Any]:
    """What an error says, as JSON: ``family``, ``code``, ``detail``, and the facts of its family."""
    said: dict[str, Any] = {"family": error.family, "kind": str(error.kind), "code": error.code, "detail": error.detail}
    match error:
        case Contextual():
            return {"family": error.family, "context": error.context, "inner": error_to_wire(error.inner)}
        case StreamGap():
            said |= {"requested": error.requested.hex(), "oldest": error.oldest.hex()}
        case Contention():
            said |= {name: value for name in _FACTS if (value := getattr(error, name)) is not None}
        case Conflict() if error.kid is not None:
            said["kid"] = error.kid
        case Transport():
            said["backend"] = error.backend
        case ResourceExhausted():
            said |= {"pool": error.pool, "maximum": error.maximum, "retry_after_ms": error.retry_after_ms}
        case Timeout():
            said |= {"op": error.op, "elapsed_ms": error.elapsed_ms}
        case StreamDisconnected():
            said["cursor"] = error.cursor.hex() if isinstance(error.cursor, bytes) else str(error.cursor)
    return said


def error_from_wire(said: Mapping[str, Any]) -> EngineError:
    """The error again."""
    try:
        return _MAKERS[said["family"]](said)
    except (KeyError, ValueError, TypeError) as error:
        # A newer server may know kinds that this side does not.
        return Transport("server", TransportKind.PROTOCOL, f"an unknown error: {dict(said)} ({error})")


def _validation(said: Mapping[str, Any]) -> EngineError:
    if "requested" in said:
        return StreamGap(bytes.fromhex(said["requested"]), bytes.fromhex(said["oldest"]))
    return Validation(ValidationKind(said["kind"]), said["detail"])


def _contention(said: Mapping[str, Any]) -> EngineError:
    return Contention(
        ContentionKind(said["kind"]), said["detail"], **{name: said[name] for name in _FACTS if name in said}
    )


def _transport(said: Mapping[str, Any]) -> EngineError:
    if said["code"] == "requires_dev_mode":
        return RequiresDevMode(said["detail"])
    return Transport(said["backend"], TransportKind(said["kind"]), said["detail"])


def _exhausted(said: Mapping[str, Any]) -> EngineError:
    if said["code"] == LimitReached.kind:
        return LimitReached(said["pool"], said["maximum"])
    return ResourceExhausted(said["pool"], said["maximum"], said["retry_after_ms"])


_MAKERS: Mapping[str, Callable[[Mapping[str, Any]], EngineError]] = {
    NotFound.family: lambda said: NotFound(said["kind"], said["detail"]),
    Validation.family: _validation,
    Contention.family: _contention,
    Conflict.family: lambda said: Conflict(ConflictKind(said["kind"]), said["detail"], kid=said.get("kid")),
    State.family: lambda said: State(StateKind(said["kind"]), said["detail"]),
    Bug.family: lambda said: Bug(BugKind(said["kind"]), said["detail"]),
    Transport.family: _transport,
    Unavailable.family: lambda said: Unavailable(said["detail"]),
    ResourceExhausted.family: _exhausted,
    Timeout.family: lambda said: Timeout(said["op"], said["elapsed_ms"]),
    StreamDisconnected.family: lambda said: StreamDisconnected(bytes.fromhex(said["cursor"])),
    StreamBackpressure.family: lambda said: StreamBackpressure(),
    Contextual.family: lambda said: Contextual(said["context"], error_from_wire(said["inner"])),
}
