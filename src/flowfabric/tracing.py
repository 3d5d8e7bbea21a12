"""The trace that the code running now belongs to: what is created meanwhile carries it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextvars import ContextVar

from flowfabric.model.trace import TraceContext

_active: ContextVar[TraceContext | None] = ContextVar("flowfabric_trace", default=None)


def current_trace() -> TraceContext | None:
    """The trace of the code that runs now: OpenTelemetry's current span if there is one, else what was made active."""
    telemetry = sys.modules.get("opentelemetry.trace")
    # Without that import there cannot be a span.
    if telemetry is not None:
        span = telemetry.get_current_span().get_span_context()
        if span.is_valid:
            parent = f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags):02x}"
            return TraceContext(parent, span.trace_state.to_header())
    return _active.get()


@contextlib.contextmanager
def trace_context(trace: TraceContext | None) -> Iterator[None]:
    """While the block lasts, what is created belongs to this trace."""
    token = _active.set(trace)
    try:
        yield
    finally:
        _active.reset(token)
