"""Log lines of a run: they stand among the frames of its attempt, in frames of a type of their own, so that they are
stored, followed and deleted with the run. Readers of output never see them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from msgspec import Struct

#: The type of frames that hold log lines.
LOG_FRAME: Final = "ff.log"
#: Characters of one line, lines and characters of one lease that are stored.
MAX_LINE: Final = 4_000
MAX_LINES: Final = 1_000
MAX_LOG: Final = 262_144


class LogLine(Struct, frozen=True, gc=False, omit_defaults=True):
    """One line. ``at_ms`` is the time of the worker's clock; ``step`` names the step of a workflow that wrote it."""

    at_ms: int
    level: str
    text: str
    step: str | None = None


_decode = msgspec.json.Decoder(list[LogLine]).decode


def is_log(fields: Mapping[str, str]) -> bool:
    """Whether the fields of a stored frame are those of log lines."""
    return fields.get("frame_type") == LOG_FRAME


def read_lines(payload: str | bytes) -> list[LogLine]:
    """The lines of a frame; none if it cannot be read, because somebody else has written it."""
    try:
        return _decode(payload)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return []


def packed(lines: list[LogLine], largest: int) -> Iterator[bytes]:
    """The payloads of frames that hold these lines, none above ``largest`` bytes."""
    parts: list[bytes] = []
    size = 2
    for line in lines:
        part = msgspec.json.encode(line)
        if parts and size + len(part) + 1 > largest:
            yield b"[" + b",".join(parts) + b"]"
            parts, size = [], 2
        parts.append(part)
        size += len(part) + 1
    if parts:
        yield b"[" + b",".join(parts) + b"]"
