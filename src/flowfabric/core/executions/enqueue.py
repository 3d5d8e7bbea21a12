"""Requests that callers leave in transactions of their own: each becomes one execution by the ordinary rule."""

from __future__ import annotations

from msgspec import Struct

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.core.executions.create import CreateExecution, create_execution
from flowfabric.model.decisions import Decision, Drop, Get, Need, change
from flowfabric.model.errors import EngineError, NotFound
from flowfabric.model.operations.enqueue import RequestDropped, RequestRefused, RequestRetried
from flowfabric.model.operations.executions import AlreadySatisfied, CreateResult
from flowfabric.model.records.starts import EnqueueRequest


class AcceptRequest(Struct, gc=False):
    """Make an execution of a request; without a creation, what is wrong with it."""

    request_id: str
    creation: CreateExecution | None
    error: str = ""

    def needs(self) -> tuple[Need, ...]:
        own = Get(EnqueueRequest, self.request_id)
        return (own,) if self.creation is None else (own, *self.creation.needs())


def accept_request(command: AcceptRequest, view: View, context: Context) -> Decision:
    """The execution, and the request gone, in one commit. What is refused is kept with the reason; ``None`` if
    somebody else was here."""
    request = view.get(EnqueueRequest, command.request_id)
    if request is None or request.refused_at_ms is not None:
        return Decision(None)
    error = command.error
    if command.creation is not None:
        try:
            created = create_execution(command.creation, view, context)
        except EngineError as refusal:
            error = f"{refusal.code}: {refusal.detail}"
        else:
            created.acts += (Drop(request),)
            return created
    refused = change(request, error=error, refused_at_ms=context.now)
    return Decision(RequestRefused(request.request_id, error), (refused,))


class AcceptRequests(Struct, gc=False):
    """Make executions of several requests, in order."""

    items: tuple[AcceptRequest, ...]

    def needs(self) -> tuple[Need, ...]:
        return tuple(need for each in self.items for need in each.needs())


def accept_requests(command: AcceptRequests, view: View, context: Context) -> Decision:
    """Each as ``accept_request`` decides it, later ones seeing the earlier; their answers."""
    results: list[CreateResult | RequestRefused | None] = []
    for each in command.items:
        decision = accept_request(each, view, context)
        view.fold(decision)
        results.append(decision.result)
    return Decision(results)


class RetryRequest(Struct, gc=False):
    """Take a refused request up again."""

    request_id: str

    def needs(self) -> tuple[Need, ...]:
        return (Get(EnqueueRequest, self.request_id),)


def retry_request(command: RetryRequest, view: View, context: Context) -> Decision:
    """Waiting again."""
    request = view.get(EnqueueRequest, command.request_id)
    if request is None:
        raise NotFound("enqueue_request", command.request_id)
    if request.refused_at_ms is None:
        return Decision(AlreadySatisfied("request_is_pending"))
    return Decision(RequestRetried(request.request_id), (change(request, error=None, refused_at_ms=None),))


class DropRequest(Struct, gc=False):
    """Forget a request."""

    request_id: str

    def needs(self) -> tuple[Need, ...]:
        return (Get(EnqueueRequest, self.request_id),)


def drop_request(command: DropRequest, view: View, context: Context) -> Decision:
    """Gone; repeated, it is gone already."""
    request = view.get(EnqueueRequest, command.request_id)
    if request is None:
        return Decision(AlreadySatisfied("request_is_gone"))
    return Decision(RequestDropped(request.request_id), (Drop(request),))
