"""UUIDs from random bytes that the engine hands to a rule: rules have no randomness of their own."""

from __future__ import annotations


def uuid_text(entropy: bytes, index: int = 0) -> str:
    """The ``index``-th version 4 UUID of a run of random bytes, 16 bytes each."""
    number = int.from_bytes(entropy[16 * index : 16 * index + 16], "big")
    number = number & ~(0xF000 << 64) & ~(0xC000 << 48) | 4 << 76 | 0x8000 << 48
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
