"""Spans of OpenTelemetry, for programs that use it; nothing for all others."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from flowfabric.model.trace import TraceContext
from flowfabric.tracing import trace_context

NAME = "flowfabric"


def telemetry() -> Any:
    """``opentelemetry.trace``, if this program has imported it; nobody else could see a span."""
    return sys.modules.get("opentelemetry.trace")


@contextlib.contextmanager
def span(
    name: str, parent: TraceContext | None, attributes: Mapping[str, Any], *, kind: str = "INTERNAL"
) -> Iterator[Any]:
    """A span around the block, the child of a trace that came from elsewhere; what is created inside belongs to it.
    Gives OpenTelemetry's span, or ``None`` where that is not used."""
    found = telemetry()
    if found is None:
        with trace_context(parent):
            yield None
        return
    tracer = found.get_tracer(NAME)
    context = None if parent is None else _remote(found, parent)
    with (
        trace_context(parent),
        tracer.start_as_current_span(
            name, context=context, attributes=attributes, kind=getattr(found.SpanKind, kind)
        ) as opened,
    ):
        yield opened


def _remote(found: Any, parent: TraceContext) -> Any:
    state = found.TraceState.from_header([parent.tracestate]) if parent.tracestate else found.TraceState()
    remote = found.SpanContext(
        trace_id=int(parent.trace_id, 16),
        span_id=int(parent.span_id, 16),
        is_remote=True,
        trace_flags=found.TraceFlags(int(parent.traceparent[53:55], 16)),
        trace_state=state,
    )
    return found.set_span_in_context(found.NonRecordingSpan(remote))
