"""Quoting input in a refusal: short, on one line, and unable to pass for anything else."""

from __future__ import annotations

from typing import Final

#: Enough to recognise a slip; more would let a caller choose how long an answer or a line in a log is.
MAX_QUOTED: Final = 64


def quoted(value: object) -> str:
    """A value between quotation marks, escaped, and cut off behind 64 characters. Secrets stay what they print."""
    if isinstance(value, (str, bytes)):
        whole = str.__str__(value) if isinstance(value, str) else value
        cut, more = whole[:MAX_QUOTED], len(whole) > MAX_QUOTED
        return f"{cut!r}…" if more else repr(cut)
    if value is None or isinstance(value, float) or (isinstance(value, int) and value.bit_length() <= MAX_QUOTED):
        return repr(value)
    # Anything else may be large, or print what it holds.
    return f"<{type(value).__name__}>"
