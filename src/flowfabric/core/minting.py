"""UUIDs from random bytes that the engine hands to a rule: rules have no randomness of their own."""

from __future__ import annotations


def uuid_text(entropy: bytes, index: int = 0) -> str:
    """The ``index``-th version 4 UUID of a run of random bytes, 16 bytes each."""
    start = 16 * index
    text = entropy[start : start + 16].hex()
    variant = "89ab"[entropy[start + 8] & 3]
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{variant}{text[17:20]}-{text[20:]}"
