"""The head of a stream beside its counters: the last numbered append, and which parts have emitted."""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

from flowfabric.model.handles import HandlePayload
from flowfabric.model.records.streams import StreamHead

#: Parts that a head remembers: the latest ones.
MOST_PARTS = 128


class Parts(NamedTuple):
    """The parts that have emitted into one stream, by the epoch they last began under, the latest one last.

    ``unknown`` is the lowest epoch of those that are not told; 0 if all are.
    """

    known: tuple[tuple[str, int], ...] = ()
    unknown: int = 0

    @classmethod
    def read(cls, text: str) -> Parts:
        """From what a head remembers."""
        first, *others = text.split(",")
        pairs = [each.split(":") for each in others]
        return cls(tuple((name, int(epoch)) for name, epoch in pairs), int(first or 0))

    def __str__(self) -> str:
        first = str(self.unknown) if self.unknown else ""
        return ",".join((first, *(f"{name}:{epoch}" for name, epoch in self.known)))

    def epoch(self, step: str | None, before: int) -> int | None:
        """The epoch that a part last began under, if it has emitted. One that may have been forgotten counts if
        that was under another lease than the one with the epoch ``before``."""
        name = _name(step)
        found = next((epoch for known, epoch in self.known if known == name), None)
        if found is None and 0 < self.unknown < before:
            return self.unknown
        return found

    def opened(self, step: str | None, epoch: int) -> Parts:
        """With a part that begins now."""
        name = _name(step)
        parts = [*(each for each in self.known if each[0] != name), (name, epoch)]
        forgotten = parts[:-MOST_PARTS]
        lowest = [each[1] for each in forgotten] + ([self.unknown] if self.unknown else [])
        return Parts(tuple(parts[-MOST_PARTS:]), min(lowest, default=0))


def _name(step: str | None) -> str:
    """Short, and the same for few others: two steps of one name only share an unneeded restart."""
    return "" if step is None else f"{crc32(step.encode('utf-8', 'replace')):08x}"


class Numbered(NamedTuple):
    """An append that carried a number: under which lease, which number, the id of its last frame, and how many they
    were. Only the last one is remembered, because numbers rise. With it goes what has emitted into the stream."""

    lease_epoch: int
    number: int
    ts_ms: int
    seq: int
    frames: int
    lease_id: str = ""
    parts: Parts = Parts()

    @classmethod
    def read(cls, text: str) -> Numbered:
        """From what a head remembers. One that does not tell the lease id belongs to its epoch; one that does not tell
        the parts may have had any."""
        told = text.split(".")
        lease_epoch, number, ts_ms, seq, frames = map(int, told[:5])
        lease_id = told[5] if len(told) > 5 else ""
        parts = Parts.read(told[6]) if len(told) > 6 else Parts((), lease_epoch)
        return cls(lease_epoch, number, ts_ms, seq, frames, lease_id, parts)

    def belongs_to(self, handle: HandlePayload) -> bool:
        """Whether it was made under the lease of a handle."""
        return self.lease_epoch == handle.lease_epoch and self.lease_id in ("", handle.lease_id)

    def __str__(self) -> str:
        return ".".join(map(str, self))


def parts_of(head: StreamHead | None) -> Parts:
    """What has emitted into a stream. Appends without a number open nothing."""
    if head is None or head.last_numbered is None:
        return Parts()
    return Numbered.read(head.last_numbered).parts
