"""Restart frames: output that starts over says so, in a frame of its own.

A restart frame is written by the engine, never by a caller: its `frame_type` is `restart` and its `source` is `engine`.
It stands before the first frame of the output that replaces what was emitted earlier. Readers then forget every earlier
frame of the run that has the same `step` (or none, if it names none).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec
from msgspec import Struct

from flowfabric.model.errors import Validation, ValidationKind

RESTART_FRAME: Final = "restart"
#: Who writes frames; a restart frame that a caller made up is an ordinary frame.
BY_WORKER: Final = "worker"
BY_ENGINE: Final = "engine"


class RestartReason(StrEnum):
    """Why output starts over."""

    #: The attempt, or the step, failed and is tried again.
    RETRY = "retry"
    #: The worker died or lost its lease.
    WORKER_LOST = "worker_lost"
    #: The worker was told to stop and gave the run back, or an operator took it away.
    GIVEN_BACK = "given_back"
    #: The run had stepped back to wait for something, and its function runs again.
    RESUMED = "resumed"
    #: The run had ended and was replayed.
    REPLAYED = "replayed"


class Restart(Struct, frozen=True, gc=False):
    """What a restart frame says. Attempts count from 1; without a step it is about what no step emitted."""

    attempt: int
    step: str | None
    reason: RestartReason

    def forgets(self, step: str | None) -> bool:
        """Whether earlier frames of this step no longer count."""
        return step == self.step


def is_restart(fields: Mapping[str, str]) -> bool:
    """Whether the fields of a stored frame are those of a restart."""
    return fields.get("frame_type") == RESTART_FRAME and fields.get("source") == BY_ENGINE


def write_restart(restart: Restart) -> bytes:
    """The payload of a restart frame."""
    return msgspec.json.encode(restart)


def read_restart(payload: str | bytes) -> Restart:
    """What the payload of a restart frame says."""
    try:
        return msgspec.json.decode(payload, type=Restart)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise Validation(ValidationKind.CORRUPTION, f"a restart frame cannot be read: {error}") from error
