"""Who has done what: one line per act on the logger ``audit``, never with payloads or tokens."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

_log = logging.getLogger("audit")


def record(event: str, who: str, **facts: Any) -> None:
    """Write one act down."""
    _log.info("%s", msgspec.json.encode({"event": event, "who": who, **facts}).decode())
