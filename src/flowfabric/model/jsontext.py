"""JSON as it was sent: what a parser takes but not every store can keep."""

from __future__ import annotations

import re
from typing import Final

# An even number of backslashes before it is backslashes; only an odd one makes the escape of NUL.
_NUL_ESCAPE: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


def holds_nul(text: bytes | str) -> bool:
    """Whether a name or a text in a valid JSON document contains NUL, which no text column of PostgreSQL takes."""
    data = text.encode() if isinstance(text, str) else text
    return rb"\u0000" in data and _NUL_ESCAPE.search(data) is not None
