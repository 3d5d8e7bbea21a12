"""``Engine``: the whole contract, over any store."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from flowfabric.core.batch.notes import Note, Remembered
from flowfabric.core.ownership.limited_callers import FromOutside
from flowfabric.engine.batcher import Abandoned
from flowfabric.engine.checks import values
from flowfabric.engine.operations.access import Credentials, Doors
from flowfabric.engine.operations.budgets import Budgets
from flowfabric.engine.operations.create import Bursts
from flowfabric.engine.operations.enqueue import Requests
from flowfabric.engine.operations.flows import Flows
from flowfabric.engine.operations.kinds import KindDefinitions
from flowfabric.engine.operations.lanes import Lanes
from flowfabric.engine.operations.leases import Leases
from flowfabric.engine.operations.operator import Control
from flowfabric.engine.operations.quotas import Quotas
from flowfabric.engine.operations.schedules import Schedules
from flowfabric.engine.operations.signals import Signals
from flowfabric.engine.operations.suspension import Suspensions
from flowfabric.engine.operations.workflows import Steps
from flowfabric.engine.reads.examine import Examining
from flowfabric.engine.reads.executions import Reads
from flowfabric.engine.reads.explain import Explaining
from flowfabric.engine.reads.flows import FlowReads
from flowfabric.engine.reads.overview import Overview
from flowfabric.engine.reads.samples import Samples
from flowfabric.engine.reads.streams import Streams
from flowfabric.engine.reads.subscriptions import Subscriptions
from flowfabric.engine.timers.flows import FlowTimers
from flowfabric.model.errors import RequiresDevMode
from flowfabric.model.limits import INTAKE_MS, MAX_BATCH, MAX_QUEUE
from flowfabric.model.operations.executions import Applied, NoOp, StoreCapabilities
from flowfabric.model.partitions import PartitionCounts
from flowfabric.stores.kinds import kind_of, needed
from flowfabric.stores.protocol import Store

if TYPE_CHECKING:
    from flowfabric.stores.valkey.durability import Durability

_log = logging.getLogger("flowfabric.engine")


class Engine(
    Requests,
    Bursts,
    Schedules,
    Lanes,
    FlowTimers,
    Steps,
    Flows,
    FlowReads,
    Budgets,
    Quotas,
    Leases,
    Suspensions,
    Signals,
    Control,
    Reads,
    Overview,
    Credentials,
    Doors,
    Samples,
    KindDefinitions,
    Explaining,
    Examining,
    Streams,
    Subscriptions,
):
    """Runs executions on a store. Open one with ``Engine.open``; the object is the same whatever the store.

    ``Engine.open`` alone starts no timers: workers and servers do, and so does ``timers=True``.
    """

    def __init__(self, store: Store, **options: Any) -> None:
        super().__init__(store, **options)
        self._poison = {}

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        single_node: bool = False,
        timers: bool = False,
        clock: Callable[[], int] | None = None,
        partitions: PartitionCounts | None = None,
        new_partitions: PartitionCounts | None = None,
        reclaim_grace_ms: int | None = None,
        max_batch: int = MAX_BATCH,
        max_queue: int = MAX_QUEUE,
        **store_options: Any,
    ) -> Self:
        """Open the store behind a URL: ``sqlite:///file``, ``postgresql://…``, ``valkey://…`` or ``memory://``.

        ``clock`` returns milliseconds and replaces the store's time, for tests and simulation. ``partitions`` are what
        the store must have, ``new_partitions`` what it gets if it is new and nothing else was said.
        """
        # A wrong setting is refused before there is a store to close again.
        grace = values.optional_time_ms(reclaim_grace_ms, "reclaim_grace_ms")
        grace = _milliseconds("FF_RECLAIM_GRACE_MS", 0) if grace is None else grace
        intake_ms = _milliseconds("FF_INTAKE_INTERVAL_MS", INTAKE_MS)
        store = await open_store(
            url,
            single_node=single_node,
            clock=clock,
            partitions=partitions,
            new_partitions=new_partitions,
            **store_options,
        )
        engine = cls(store, reclaim_grace_ms=grace, intake_ms=intake_ms, max_batch=max_batch, max_queue=max_queue)
        if timers:
            engine.start_timers()
        return engine

    def limited_to(self, namespaces: Iterable[str]) -> Engine:
        """This engine for a caller who is limited to some namespaces: whatever a call names must belong to one of
        them, which is checked in the commit, and what does not looks as if it were not there. The caller of a read
        still has to name those namespaces."""
        own = values.namespaces(namespaces)
        if own is None:
            raise values.invalid("namespaces: pass the namespaces the caller is limited to")
        return CallersEngine(self, own)

    def noting(self, note: Note) -> Engine:
        """This engine for one call of a server: what the note says is stored in the call's own commit, and a call that
        was made before under the note's key gives its result again."""
        return CallersEngine(self, self._within, note)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def backend_label(self) -> str:
        """``sqlite``, ``postgres``, ``valkey`` or ``memory``."""
        label: str = self.store.label
        return label

    @property
    def durability(self) -> Durability | None:
        """What a commit survives, where the store depends on how a server was set up."""
        found: Durability | None = getattr(self.store, "durability", None)
        return found

    async def ping(self) -> None:
        """Fail if the store does not answer."""
        await self.store.ping()

    async def server_time_ms(self) -> int:
        """The time that decides."""
        return await self.now_ms()

    async def prepare(self) -> NoOp | Applied:
        """Bring the schema up to date. ``Engine.open`` does so by itself; repeating it changes nothing."""
        versions = await self.store.prepare()
        if not versions:
            return NoOp()
        return Applied("migrations " + ", ".join(f"{version:04}" for version in versions))

    async def shutdown_prepare(self, grace_ms: int = 30_000) -> int:
        """Stop the timers and finish what is queued, within the grace; how many tasks had to be abandoned."""
        return await self.drain(grace_ms)

    async def capabilities(self) -> StoreCapabilities:
        """What the store is. Every store offers every operation."""
        return StoreCapabilities(
            self.backend_label, await self.store.server_version(), "stable", dict.fromkeys(OPERATIONS, True)
        )


class CallersEngine(Engine):
    """An engine for a caller from outside. It shares everything with the one it was made from."""

    __slots__ = ("_note", "_within")

    def __init__(self, engine: Engine, within: frozenset[str] | None, note: Note | None = None) -> None:
        self.__dict__ = engine.__dict__
        self._within = within
        self._note = note

    async def _submit(self, command: Any, abandoned: Abandoned | None = None) -> Any:
        note = self._note
        answer = await super()._submit(FromOutside(command, self._within, note), abandoned)
        if note is None:
            return answer
        note.remembered = is_remembered = isinstance(answer, Remembered)
        if note.changed or answer is not None:
            # What a call does in further commits was noted in its first. ``None`` says that it has to look again.
            self._note = None
        return note.receipt.read(answer.data) if is_remembered and note.receipt is not None else answer

    async def _submit_many(self, commands: Sequence[Any]) -> list[Any]:
        return await super()._submit_many([FromOutside(each, self._within) for each in commands])


#: The public operations of the engine: what a store must carry.
OPERATIONS: tuple[str, ...] = tuple(
    name for name in dir(Engine) if not name.startswith("_") and inspect.iscoroutinefunction(getattr(Engine, name))
)


def _milliseconds(variable: str, default: int) -> int:
    text = os.environ.get(variable, str(default))
    if not text.isdigit():
        raise values.invalid(f"{variable}: {text!r} is not a number of milliseconds")
    return int(text)


async def open_store(
    url: str,
    *,
    single_node: bool = False,
    clock: Callable[[], int] | None = None,
    partitions: PartitionCounts | None = None,
    new_partitions: PartitionCounts | None = None,
    **options: Any,
) -> Any:
    """The store behind a URL."""
    kind = kind_of(url)
    if kind == "memory":
        from flowfabric.stores.memory import MemoryStore

        return MemoryStore(partitions or new_partitions, clock)
    if kind == "postgres":
        with needed(kind):
            from flowfabric.stores.postgres.store import PostgresStore

        return await PostgresStore.open(
            url, clock=clock, partitions=partitions, new_partitions=new_partitions, **options
        )
    if kind == "valkey":
        with needed(kind):
            from flowfabric.stores.valkey.store import ValkeyStore

        return await ValkeyStore.open(url, clock=clock, partitions=partitions, new_partitions=new_partitions, **options)
    if not single_node and os.environ.get("FF_DEV_MODE") != "1":
        raise RequiresDevMode()
    from flowfabric.stores.sqlite.store import SqliteStore

    _log.info("SQLite runs on a single node: every process must share this machine's file system")
    return await SqliteStore.open(url, clock=clock, partitions=partitions, new_partitions=new_partitions, **options)
