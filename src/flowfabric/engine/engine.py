"""``Engine``: the whole contract, over any store."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from flowfabric.engine import checks
from flowfabric.engine.budgets import Budgets
from flowfabric.engine.bursts import Bursts
from flowfabric.engine.control import Control
from flowfabric.engine.credentials import Credentials
from flowfabric.engine.doors import Doors
from flowfabric.engine.examining import Examining
from flowfabric.engine.explaining import Explaining
from flowfabric.engine.flow_reads import FlowReads
from flowfabric.engine.flow_timers import FlowTimers
from flowfabric.engine.flows import Flows
from flowfabric.engine.lanes import Lanes
from flowfabric.engine.leases import Leases
from flowfabric.engine.overview import Overview
from flowfabric.engine.quotas import Quotas
from flowfabric.engine.reads import Reads
from flowfabric.engine.requests import Requests
from flowfabric.engine.samples import Samples
from flowfabric.engine.schedules import Schedules
from flowfabric.engine.signals import Signals
from flowfabric.engine.steps import Steps
from flowfabric.engine.streams import Streams
from flowfabric.engine.subscriptions import Subscriptions
from flowfabric.engine.suspension import Suspensions
from flowfabric.model.errors import RequiresDevMode
from flowfabric.model.limits import MAX_BATCH, MAX_QUEUE
from flowfabric.model.partitions import PartitionCounts
from flowfabric.model.results import Applied, NoOp, StoreCapabilities
from flowfabric.stores.protocol import Store

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
        reclaim_grace_ms: int | None = None,
        max_batch: int = MAX_BATCH,
        max_queue: int = MAX_QUEUE,
        **store_options: Any,
    ) -> Self:
        """Open the store behind a URL: ``sqlite:///file``, ``postgresql://…`` or ``memory://``.

        ``clock`` returns milliseconds and replaces the store's time, for tests and simulation.
        """
        store = await open_store(url, single_node=single_node, clock=clock, partitions=partitions, **store_options)
        grace = _grace_ms() if reclaim_grace_ms is None else checks.time_ms(reclaim_grace_ms, "reclaim_grace_ms")
        engine = cls(store, reclaim_grace_ms=grace, max_batch=max_batch, max_queue=max_queue)
        if timers:
            engine.start_timers()
        return engine

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


#: The public operations of the engine: what a store must carry.
OPERATIONS: tuple[str, ...] = tuple(
    name for name in dir(Engine) if not name.startswith("_") and inspect.iscoroutinefunction(getattr(Engine, name))
)


def _grace_ms() -> int:
    text = os.environ.get("FF_RECLAIM_GRACE_MS", "0")
    if not text.isdigit():
        raise checks.invalid(f"FF_RECLAIM_GRACE_MS: {text!r} is not a number of milliseconds")
    return int(text)


async def open_store(
    url: str,
    *,
    single_node: bool = False,
    clock: Callable[[], int] | None = None,
    partitions: PartitionCounts | None = None,
    **options: Any,
) -> Any:
    """The store behind a URL."""
    if not url:
        raise checks.invalid("store URL: expected sqlite:///file, postgresql://host/database or memory://")
    if url.startswith("memory:"):
        from flowfabric.stores.memory import MemoryStore

        return MemoryStore(partitions, clock)
    if url.startswith(("postgresql:", "postgres:")):
        from flowfabric.stores.postgres.store import PostgresStore

        return await PostgresStore.open(url, partitions=partitions, clock=clock, **options)
    if url.startswith(("sqlite:", "file:")):
        if not single_node and os.environ.get("FF_DEV_MODE") != "1":
            raise RequiresDevMode()
        from flowfabric.stores.sqlite.store import SqliteStore

        _log.info("SQLite runs on a single node: every process must share this machine's file system")
        return await SqliteStore.open(url, clock=clock, partitions=partitions, **options)
    scheme = url.partition(":")[0]
    raise checks.invalid(f"store URL: {scheme!r} is not a store; use sqlite:, postgresql: or memory:")
