"""Errors as status codes and bodies: ``{"error": …, "kind"?: …, "retryable"?: …}``. Never a traceback."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from flowfabric.engine.wire.error_codec import NOT_BEGUN
from flowfabric.model.errors import (
    Conflict,
    Contention,
    ContentionKind,
    Contextual,
    EngineError,
    LimitReached,
    NotFound,
    ResourceExhausted,
    State,
    StateKind,
    Transport,
    Unavailable,
    Validation,
    ValidationKind,
)
from flowfabric.server.http.reasons import REASONS
from flowfabric.server.http.response import Answer, Headers, plain

_log = logging.getLogger("flowfabric.server")

#: States that are told by name; those that say a thing was done before; all others are a conflict.
_NAMED_STATES = frozenset(
    {
        StateKind.EXECUTION_NOT_TERMINAL,
        StateKind.MAX_REPLAYS_EXHAUSTED,
        StateKind.REPLAY_NOT_ALLOWED,
        StateKind.NOT_RUNNABLE,
        StateKind.TERMINAL,
        StateKind.FLOW_ALREADY_TERMINAL,
        StateKind.BUDGET_EXCEEDED,
        StateKind.BUDGET_SOFT_EXCEEDED,
    }
)
_REPEATED_STATES = frozenset(
    {
        StateKind.ALREADY_SATISFIED,
        StateKind.DUPLICATE_SIGNAL,
        StateKind.OK_ALREADY_APPLIED,
        StateKind.ATTEMPT_ALREADY_TERMINAL,
        StateKind.STREAM_ALREADY_CLOSED,
        StateKind.LEASE_EXPIRED,
        StateKind.LEASE_REVOKED,
    }
)
#: What is wrong with a token, told by its own code.
_TOKEN_CODES = ("missing_token", "token_expired")
#: Says that nothing of what was asked was done, so that all of it may be asked again.
UNBEGUN: Mapping[str, Any] = {"started": False}
_LIMITED = (ContentionKind.RATE_LIMIT_EXCEEDED, ContentionKind.CONCURRENCY_LIMIT_EXCEEDED)


class Refused(Exception):
    """A request that the server itself turns down, with the answer it gets."""

    def __init__(self, status: int, body: dict[str, Any], headers: Headers = ()) -> None:
        super().__init__(status, body)
        self.body = body
        self.answer = plain(body, status, headers)


def refused(status: int, error: str, headers: Headers = (), **more: Any) -> Refused:
    """A refusal with a sentence."""
    return Refused(status, {"error": error, **more}, headers)


def unauthorized() -> Refused:
    """What callers without a credential, or with a wrong or expired one, are told."""
    return refused(401, "missing or invalid Authorization header", ((b"www-authenticate", b"Bearer"),))


@contextlib.contextmanager
def as_sent(names: Mapping[str, str]) -> Iterator[None]:
    """Let refusals of the engine name fields as the caller does: by the names on the right."""
    try:
        yield
    except Validation as error:
        name, colon, rest = (error.detail or "").partition(":")
        if not colon or name not in names:
            raise
        raise Validation(error.kind, f"{names[name]}:{rest}") from None


def bad_json(status: int, why: str) -> Refused:
    """A body that cannot be used, and why not: where it is wrong, never what was there."""
    return refused(status, f"invalid JSON: {REASONS[status]}: {why}")


def answer_of(error: EngineError) -> Answer:
    """The response that an error of the engine becomes."""
    status, body = told(error)
    if status >= 500:
        _log.warning("%s: %s", status, error)
    return plain(body, status)


def told(error: EngineError) -> tuple[int, dict[str, Any]]:
    """Status and body of an error."""
    while isinstance(error, Contextual):
        error = error.inner
    match error:
        case NotFound():
            return 404, {"error": f"not found: {error.entity}"}
        case Validation(kind=ValidationKind.CORRUPTION):
            return 500, _body(f"corruption: {error.detail}", "corruption", False)
        case Validation():
            return 400, {"error": _validation(error)}
        case Conflict():
            return 409, _body(f"{error.code}: {error.detail or _variant(error.code)}", error.code, False)
        case Contention():
            return _contention(error)
        case State():
            kind = _state(error.kind)
            return 409, _body(_text(kind, error), kind, False)
        case LimitReached():
            return 400, _body(f"{error.code}: {error.detail}", error.code, False)
        case ResourceExhausted():
            text = f"too many concurrent {error.pool} calls (server max: {error.maximum}); retry with backoff"
            unbegun = UNBEGUN if error.pool == NOT_BEGUN else {}
            return 429, {**_body(text, "resource_exhausted", True), **unbegun}
        case Unavailable():
            return 503, _body(f"backend op unavailable: {error.op}", "unavailable", False)
        case Transport():
            return 500, _body(f"{error.backend}: {error.code}", error.code, error.retryable)
    return 500, {"error": error.code, "retryable": False}


def _contention(error: Contention) -> tuple[int, dict[str, Any]]:
    if error.kind in _LIMITED:
        return 429, _body(_text(error.code, error), error.code, True)
    if error.kind is ContentionKind.RETRY_EXHAUSTED:
        return 503, _body(_text(error.code, error), error.code, True)
    return 409, _body(_text("contention", error), "contention", True)


def _body(text: str, kind: str, retryable: bool) -> dict[str, Any]:
    return {"error": text, "kind": kind, "retryable": retryable}


def _validation(error: Validation) -> str:
    if error.kind is ValidationKind.INVALID_TOKEN:
        # Which part of a token was wrong would help those who guess.
        return error.detail if error.detail in _TOKEN_CODES else error.code
    return f"{error.code}: {error.detail.removeprefix(f'{error.code}: ')}" if error.detail else error.code


def _state(kind: StateKind) -> str:
    if kind in _NAMED_STATES:
        return str(kind)
    return "already_satisfied" if kind in _REPEATED_STATES else "state_conflict"


def _text(code: str, error: EngineError) -> str:
    text = f"{code}: {_variant(error.code)}"
    return f"{text}: {error.detail}" if error.detail else text


def _variant(code: str) -> str:
    return "".join(word.capitalize() for word in code.split("_"))
