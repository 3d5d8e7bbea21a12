"""The names of everything we keep. All of them carry one hash tag, so that whatever a commit touches lives together."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from flowfabric.model.events import CompletionEvent, InstanceTagEvent, LeaseEvent, OperatorEvent, SignalEvent
from flowfabric.stores.keyed.entries import CLAIM, CREATED, ENDED, GATED, RANK
from flowfabric.stores.valkey.codec import shape_of
from flowfabric.stores.valkey.sort_keys import REMEMBERED_NAMES, encode, encoded_name

_LOGS = {
    LeaseEvent: b"lease",
    CompletionEvent: b"completion",
    OperatorEvent: b"operator",
    SignalEvent: b"signal",
    InstanceTagEvent: b"instance_tag",
}
#: Families whose runs are listed by name, for good once they are: there are as many as namespaces or lanes.
LASTING = frozenset({CREATED, ENDED})
#: Families whose runs are listed by name while they have entries.
_PASSING = frozenset({GATED, CLAIM, RANK})


def log_name(kind: Any) -> str:
    """The name of a log."""
    return _LOGS[kind].decode()


def log_field(kind: Any, what: str) -> bytes:
    """Where the numbers of a log stand among the facts of the store."""
    return _LOGS[kind] + b":" + what.encode()


def breaks_of(text: bytes | None) -> tuple[tuple[int, int], ...]:
    """The breaks of a log, as they stand among the facts of the store."""
    pairs = (each.split(b"-") for each in (text or b"").split())
    return tuple((int(end), int(start)) for end, start in pairs)


class Keys:
    """Names below one prefix."""

    def __init__(self, prefix: str) -> None:
        self._tag = b"{" + prefix.encode() + b"}:"
        #: Facts of the store: its id, its partition counts, the numbers of its events.
        self.meta = self._tag + b"meta"
        #: What processes miss since another server has taken over.
        self.losses = self._tag + b"losses"
        #: Where nothing stays: a hash, a sorted set, a set and a stream.
        self.rehearsal = [self._tag + b"rehearsal:" + each for each in (b"hash", b"sorted", b"set", b"stream")]
        self._run = lru_cache(maxsize=REMEMBERED_NAMES)(self._named_run)

    def rows(self, kind: Any) -> bytes:
        """The hash of all records of a kind."""
        return self._tag + shape_of(kind).name

    def wide(self, kind: Any, field: str) -> bytes:
        """The hash of a field that is kept apart."""
        return self.rows(kind) + b":" + field.encode()

    def run(self, family: Any, name: Any) -> bytes:
        """The sorted set of a run."""
        return self._run(family, name)

    def _named_run(self, family: Any, name: Any) -> bytes:
        return self._tag + b"i:" + encoded_name(family, name)

    def names(self, family: Any) -> bytes:
        """The set of the names of a family's runs."""
        return self._tag + b"n:" + encoded_name(family, None)

    def log(self, kind: Any) -> bytes:
        """The stream of a kind of event."""
        return self._tag + b"log:" + _LOGS[kind]

    def every(self) -> bytes:
        """A pattern that fits every name."""
        escaped = b"".join(b"\\" + bytes([each]) if each in b"*?[]\\^" else bytes([each]) for each in self._tag)
        return escaped + b"*"


def is_passing(family: Any, name: Any) -> bool:
    """Whether a run leaves the list of its family's names with its last entry. The plain queue of a lane is in no list:
    everybody looks there."""
    first = family[0] if isinstance(family, tuple) else family
    return first in _PASSING and not (first == CLAIM and name == ())


def encoded_run_name(name: Any) -> bytes:
    """A name as the list of names has it."""
    return encode((name,))
