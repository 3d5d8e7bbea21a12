"""JSON as it was sent: what a parser takes but not every store can keep, or every reader can follow."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Final

_WITHOUT_NESTING: Final = bytes(each for each in range(256) if each not in b'"[]{}')
#: Bytes that are looked at in one go.
BLOCK_BYTES: Final = 65_536
#: What opens is a one, what closes is a zero. Eight of them are a byte, and by that byte stands here how much deeper it
#: is behind them, and how deep it gets on the way.
_BITS: Final = bytes.maketrans(b"[{]}", b"1100")
_RISES: Final = tuple(2 * byte.bit_count() - 8 for byte in range(256))
_PEAKS: Final = tuple(
    max(accumulate((1 if bit == "1" else -1 for bit in f"{byte:08b}"), initial=0)) for byte in range(256)
)


def holds_nul(text: bytes | str) -> bool:
    """Whether a name or a text in a valid JSON document contains NUL, which no text column of PostgreSQL takes."""
    data = text.encode() if isinstance(text, str) else text
    # An even number of backslashes before it is backslashes; only an odd one makes the escape of NUL.
    return rb"\u0000" in data and rb"\u0000" in data.replace(rb"\\", b"")


def nests_deeper(data: bytes, limit: int) -> bool:
    """Whether a JSON document nests deeper than a limit. The time grows with the length alone, whatever is in it, and
    ends where the limit is passed."""
    return may_nest_deeper(data, limit) and any(map(Nesting(limit).feed, blocks_of(data)))


def may_nest_deeper(data: bytes, limit: int) -> bool:
    """Whether there is enough in a document to nest so deep."""
    return openings(data) > limit


def openings(data: bytes) -> int:
    """How many lists and objects begin in a document, at most."""
    return data.count(b"[") + data.count(b"{")


def blocks_of(data: bytes) -> Iterator[bytes]:
    """A document, a piece at a time that takes little time to look at."""
    return (data[start : start + BLOCK_BYTES] for start in range(0, len(data), BLOCK_BYTES))


class Nesting:
    """Follows how deep a JSON document nests, piece by piece, without parsing it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._depth = 0
        self._in_text = False
        self._escape = b""

    def feed(self, block: bytes) -> bool:
        """Whether it nests deeper than the limit by the end of this piece."""
        # Once escapes are gone, quotes begin and end texts in turn; half an escape belongs to the next piece.
        plain = (self._escape + block).replace(rb"\\", b"")
        self._escape = b"\\" if plain.endswith(b"\\") else b""
        marks = plain.replace(rb"\"", b"").translate(None, _WITHOUT_NESTING)
        parts = marks.split(b'"')
        brackets = b"".join(parts[self._in_text :: 2])
        self._in_text ^= len(parts) % 2 == 0
        bits = brackets.translate(_BITS)
        together = len(bits) // 8
        packed = int(bits[: 8 * together] or b"0", 2).to_bytes(together, "big")
        # The rest is filled up with what closes, and only looked at.
        last = int(bits[8 * together :].ljust(8, b"0"), 2)
        depth, limit = self._depth, self._limit
        for each in packed:
            if depth + _PEAKS[each] > limit:
                return True
            depth += _RISES[each]
        self._depth = depth + 2 * last.bit_count() - len(bits) % 8
        return depth + _PEAKS[last] > limit
