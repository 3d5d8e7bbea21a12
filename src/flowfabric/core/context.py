"""The context of a rule beside its command: the time, and the store's name in shown ids."""

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


# -- UUIDs from random bytes that the engine hands to a rule: rules have no randomness of their own ------------------


def uuid_text(entropy: bytes, index: int = 0) -> str:
    """The ``index``-th version 4 UUID of a run of random bytes, 16 bytes each."""
    start = 16 * index
    text = entropy[start : start + 16].hex()
    variant = "89ab"[entropy[start + 8] & 3]
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{variant}{text[17:20]}-{text[20:]}"
