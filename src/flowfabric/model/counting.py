"""Numbers with the word that fits them."""

from __future__ import annotations


def counted(number: int, word: str, plural: str | None = None) -> str:
    """``1 run``, ``2 runs``, ``1 entry``, ``2 entries``."""
    return f"{number:,} {word if number == 1 else plural or word + 's'}"
