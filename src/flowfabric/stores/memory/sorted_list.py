"""A sorted sequence that stays quick to change however long it grows."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Any

#: A chunk this long is cut in two, so that no change ever moves more than this many entries.
CHUNK_LIMIT = 1024


class SortedRun:
    """Distinct entries in order. Ranges are half open; ``None`` leaves an end open."""

    __slots__ = ("_chunks", "_lasts")

    def __init__(self) -> None:
        self._chunks: list[list[Any]] = []
        #: The last entry of each chunk, to find the chunk an entry belongs in.
        self._lasts: list[Any] = []

    def __len__(self) -> int:
        return sum(map(len, self._chunks))

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def add(self, entry: Any) -> None:
        """Put an entry in its place."""
        if not self._chunks:
            self._chunks.append([entry])
            self._lasts.append(entry)
            return
        position = min(bisect_left(self._lasts, entry), len(self._lasts) - 1)
        chunk = self._chunks[position]
        insort(chunk, entry)
        self._lasts[position] = chunk[-1]
        if len(chunk) > CHUNK_LIMIT:
            self._split(position)

    def _split(self, position: int) -> None:
        chunk = self._chunks[position]
        middle = len(chunk) // 2
        self._chunks.insert(position + 1, chunk[middle:])
        del chunk[middle:]
        self._lasts.insert(position, chunk[-1])

    def remove(self, entry: Any) -> None:
        """Take an entry out; ``KeyError`` if it is not there, because then an index no longer fits its records."""
        position = bisect_left(self._lasts, entry)
        if position == len(self._lasts):
            raise KeyError(entry)
        chunk = self._chunks[position]
        place = bisect_left(chunk, entry)
        if chunk[place] != entry:
            raise KeyError(entry)
        del chunk[place]
        if chunk:
            self._lasts[position] = chunk[-1]
        else:
            del self._chunks[position], self._lasts[position]

    def first(self) -> Any:
        """The smallest entry, or ``None``."""
        return self._chunks[0][0] if self._chunks else None

    def backwards(self, low: Any = None, high: Any = None) -> Iterator[Any]:
        """Entries before ``high`` and not before ``low``, the last one first. The run must not change meanwhile."""
        start = len(self._chunks) - 1 if high is None else min(bisect_left(self._lasts, high), len(self._chunks) - 1)
        for position in range(start, -1, -1):
            chunk = self._chunks[position]
            end = len(chunk) if high is None else bisect_left(chunk, high)
            begin = 0 if low is None else bisect_left(chunk, low)
            for place in range(end - 1, begin - 1, -1):
                yield chunk[place]
            if begin > 0:
                return

    def between(self, low: Any = None, high: Any = None, behind: bool = False) -> Iterator[Any]:
        """Entries from ``low`` on, or ``behind`` it, and before ``high``. The run must not change meanwhile."""
        find = bisect_right if behind else bisect_left
        start = 0 if low is None else find(self._lasts, low)
        for position in range(start, len(self._chunks)):
            chunk = self._chunks[position]
            begin = 0 if low is None or position > start else find(chunk, low)
            end = len(chunk) if high is None else bisect_left(chunk, high)
            for place in range(begin, end):
                yield chunk[place]
            if end < len(chunk):
                return

    def count(self, low: Any, high: Any) -> int:
        """How many entries ``between`` would give."""
        return max(self._rank(high) - self._rank(low), 0)

    def _rank(self, bound: Any) -> int:
        position = bisect_left(self._lasts, bound)
        before = sum(map(len, self._chunks[:position]))
        return before if position == len(self._chunks) else before + bisect_left(self._chunks[position], bound)
