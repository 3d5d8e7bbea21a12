"""The trace that a run belongs to, as W3C trace context says it; it travels with an execution as two tags."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

PARENT_TAG = "trace.traceparent"
STATE_TAG = "trace.tracestate"
#: What a tracestate may hold at most, in characters and in members.
MAX_STATE = 512
MAX_STATE_MEMBERS = 32

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)


class TraceContext(Struct, frozen=True):
    """Whom a span is the child of. Make one with ``read``, which refuses malformed input."""

    traceparent: str
    tracestate: str = ""

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits, the same in the whole trace."""
        return self.traceparent[3:35]

    @property
    def span_id(self) -> str:
        """16 hexadecimal digits."""
        return self.traceparent[36:52]

    @property
    def sampled(self) -> bool:
        """Whether the trace is recorded."""
        return bool(int(self.traceparent[53:55], 16) & 1)

    @classmethod
    def read(cls, traceparent: str | None, tracestate: str | None = None) -> TraceContext | None:
        """The context of two headers; ``None`` if the first is malformed. A malformed second one is left out."""
        found = _PARENT.fullmatch(traceparent.strip()) if isinstance(traceparent, str) else None
        if found is None:
            return None
        version, trace, span, flags, more = found.groups()
        if version == "ff" or (version == "00" and more) or not trace.strip("0") or not span.strip("0"):
            return None
        # Later versions are passed on as the one that is known here.
        return cls(f"00-{trace}-{span}-{flags}", _state(tracestate))

    @classmethod
    def of_tags(cls, tags: Mapping[str, str]) -> TraceContext | None:
        """The context that an execution carries."""
        return cls.read(tags.get(PARENT_TAG), tags.get(STATE_TAG))

    def added_to(self, tags: Mapping[str, str] | None) -> dict[str, str]:
        """Tags that carry it; those that carry one already keep it."""
        given = dict(tags or {})
        if PARENT_TAG not in given:
            given[PARENT_TAG] = self.traceparent
            if self.tracestate:
                given[STATE_TAG] = self.tracestate
        return given


def _state(text: str | None) -> str:
    if not isinstance(text, str):
        return ""
    members = [each.strip() for each in text.split(",") if each.strip()]
    good = all("=" in each and each.isascii() and each.isprintable() for each in members)
    return ",".join(members) if good and len(text) <= MAX_STATE and len(members) <= MAX_STATE_MEMBERS else ""
