"""Requests for executions that are left in the caller's own transaction, starts that fall together, and answers."""

from __future__ import annotations

from msgspec import Struct

from flowfabric.model.ids import ExecutionId


class EnqueueDraft(Struct, frozen=True):
    """A request that was checked and is to be written: the columns of one row of ``ff_enqueue_request``."""

    request_id: str
    #: The id the execution will have.
    execution_id: ExecutionId
    command: str


class RequestSnapshot(Struct, frozen=True):
    """A request that has not become an execution."""

    request_id: str
    execution_id: ExecutionId | None
    requested_at_ms: int
    command: str
    #: Why it was refused, if it was; then it waits for an operator.
    error: str | None
    refused_at_ms: int | None


class RequestPage(Struct, frozen=True):
    """Requests by id, and where the next page begins."""

    requests: tuple[RequestSnapshot, ...]
    next_cursor: str | None


class RequestRefused(Struct, frozen=True):
    """It was refused and is kept with the reason."""

    request_id: str
    error: str


class RequestRetried(Struct, frozen=True):
    """It is taken up again."""

    request_id: str


class RequestDropped(Struct, frozen=True):
    """It is gone."""

    request_id: str


class Debounced(Struct, frozen=True):
    """The execution of a burst, and until when it waits for more; ``first`` if this start began the burst."""

    execution_id: ExecutionId
    delay_until_ms: int
    first: bool
