"""Everything a store must be."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeAlias

from flowfabric.model.decisions import Key, Need, Writes
from flowfabric.model.errors import Transport
from flowfabric.model.handles import BackendTag
from flowfabric.model.partitions import PartitionCounts
from flowfabric.stores.feeds import Feed

#: What tells a row from what it was before; made by the store, and only ever compared.
Version: TypeAlias = int | bytes


class Conflict(Exception):
    """The batch lost a race: something it was decided upon has moved. Nothing was written; decide again."""


class Outdated(Transport):
    """The server is too old; somebody may be upgrading it."""


class Filling(Protocol):
    """The part of a view that a store fills."""

    def put_loaded(self, kind: Any, key: Key, record: Any) -> None: ...
    def put_full(self, execution_id: str, record: Any) -> None: ...
    def put_selected(self, need: Any, keys: list[Key]) -> None: ...
    def put_claimable(self, need: Any, keys: list[str]) -> None: ...
    def put_first(self, need: Any, keys: list[Key]) -> None: ...
    def put_ranked(self, need: Any, ranks: list[tuple[str, int]]) -> None: ...
    def put_misplaced(self, need: Any, found: list[tuple[str, str | None]]) -> None: ...
    def put_descendants(self, need: Any, uuids: frozenset[str]) -> None: ...
    def put_peeked(self, kind: Any, key: Key, record: Any) -> None: ...
    def put_listed(self, need: Any, keys: list[str]) -> None: ...
    def put_ended(self, need: Any, ended: frozenset[str]) -> None: ...
    def put_recent(self, need: Any, count: int, oldest_ms: int | None, newest: tuple[int, int]) -> None: ...
    def put_slots(self, need: Any, count: int) -> None: ...


class Versions(Protocol):
    """Row versions of records the process decided upon without reading them in this transaction."""

    def version(self, kind: Any, key: Key) -> Any: ...

    def record(self, kind: Any, key: Key) -> Any:
        """What was decided upon; ``None`` if nothing is held."""
        ...


class Transaction(Protocol):
    """One atomic unit: what was loaded stays as it is until the commit, or the commit is refused."""

    async def now(self, written_ms: int = 0) -> int:
        """The store's time in milliseconds. ``written_ms`` is the newest time in what was loaded: a store that
        estimates the clock of its server learns from it."""
        ...

    async def load(self, needs: Iterable[Need], view: Filling) -> None:
        """Fill the view with what rules asked for, locked against other writers."""
        ...

    def version(self, kind: Any, key: Key) -> Version | None:
        """The version of a row this transaction has read."""
        ...

    async def commit(self, writes: Writes, held: Versions) -> Version | None:
        """Make it all durable at once and return the version of the rows written, or raise ``Conflict``."""
        ...


class Store(Protocol):
    """A place to keep records and events."""

    tag: BackendTag
    #: Prefix of shown lease ids and grant keys.
    shown: str
    #: ``sqlite``, ``postgres``, ``valkey`` or ``memory``.
    label: str
    counts: PartitionCounts
    #: Whether batches may be decided upon held records, checked at the commit.
    holds: bool
    #: How many batches may be under way at the same time.
    parallel: int
    #: Whether batches run on the event loop and may pause there, so that large ones are decided beside it.
    pauses: bool

    def transaction(self, *, trusting: bool = False) -> AbstractAsyncContextManager[Transaction]:
        """One atomic unit. ``trusting`` says that this is a first try: a store that checks versions at the commit may
        read without locks what is going to be written."""
        ...

    async def run(self, make: Callable[[], Coroutine[Any, Any, Any]], *, alone: bool = False) -> Any:
        """Run the coroutine that ``make`` gives where the store wants it; ``alone`` says it is a single command."""
        ...

    async def read(self, needs: Iterable[Need], view: Filling) -> None:
        """As ``Transaction.load``, without locks: committed rows, for people."""
        ...

    async def query(self, question: Any) -> Any:
        """Answer one of ``stores.questions``."""
        ...

    def feed(self, kind: Any, namespace: str | None, instance_tag: str | None) -> Feed:
        """A way through the outbox of a kind of event, narrowed to what a subscriber asks for."""
        ...

    #: Whether the numbers of events have no holes but where events were deleted, and where the store says so.
    numbers_without_breaks: bool
    #: How often a subscriber looks by itself, in seconds: a hint may be lost.
    event_poll_s: float

    async def server_time_ms(self) -> int: ...

    #: Whether a commit sends the hints that its writes name.
    sends_hints: bool

    def publish(self, topics: Iterable[str], *, urgent: bool = True) -> None:
        """Tell other processes that something was committed. A hint, nothing more; one that is not urgent may wait
        a little for company."""
        ...

    def heard(self) -> AsyncIterator[str | None]:
        """Topics other processes published; ``None`` means "may have missed some, look again"."""
        ...

    async def prepare(self) -> tuple[int, ...]:
        """Apply missing migrations; the versions applied."""
        ...

    async def server_version(self) -> str:
        """The version of what stores the rows."""
        ...

    async def ping(self) -> None: ...

    async def close(self) -> None: ...
