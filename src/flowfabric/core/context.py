"""What every rule is told besides its command: the time, and the store's name in shown ids."""

from __future__ import annotations

from msgspec import Struct

from flowfabric.model.handles import BackendTag


class Context(Struct, frozen=True, gc=False):
    """``now`` is the store's time; nothing else may decide whether something is due."""

    now: int
    tag: BackendTag
    #: Prefix of lease ids and grant keys: ``sqlite``, ``pg``, ``valkey`` or ``memory``.
    store: str
    #: How long an expired lease stays reclaimable by name before the work is requeued.
    reclaim_grace_ms: int = 0
    #: How long an execution counts as fresh: its priority cannot be changed before.
    intake_ms: int = 0


def saturate(value: int) -> int:
    """Timestamps stop at the largest 64-bit integer; they never wrap."""
    return min(value, 2**63 - 1)
