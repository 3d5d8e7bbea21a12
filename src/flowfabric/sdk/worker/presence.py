"""A worker in the registry: registered, kept alive, its kinds announced again, and taken out in the end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from flowfabric.engine import Engine
from flowfabric.model.errors import EngineError
from flowfabric.model.limits import GATE_KNOWN_MS
from flowfabric.model.operations.executions import NotRegistered
from flowfabric.sdk.definitions.announce import Definitions, announce, announced
from flowfabric.sdk.definitions.tasks import Startable
from flowfabric.sdk.runs.limits import stated

if TYPE_CHECKING:
    from flowfabric.sdk.worker.worker import Worker

#: How often a worker announces again what it runs, so that its kinds stay known however long it runs.
ANNOUNCE_S = 86_400.0


class Presence:
    """See the module's text."""

    def __init__(self, worker: Worker, liveness_ms: int) -> None:
        self._worker = worker
        self._liveness_ms = liveness_ms
        self._kinds: Definitions = {}
        self._announced_at = 0.0

    @property
    def chores(self) -> list[tuple[float, Callable[[Engine], Awaitable[None]]]]:
        """What is to be done, and every how many seconds."""
        return [
            (self._liveness_ms / 3000, self._heartbeat),
            (ANNOUNCE_S / 24, self._announce_again),
            (GATE_KNOWN_MS / 1000, self._state_limits),
        ]

    async def register(self, engine: Engine) -> None:
        """Say that it is there."""
        worker = self._worker
        await engine.register_worker(
            worker_id=worker.name,
            worker_instance_id=worker.instance,
            lanes=list(worker.lanes),
            capabilities=worker.offered(worker.knows_processes()),
            liveness_ttl_ms=self._liveness_ms,
            namespace=worker.app.namespace,
            slots=worker.concurrency,
        )

    async def announced(self) -> None:
        """Announce what it runs."""
        self._kinds, self._announced_at = await announced(self._worker.app), time.monotonic()

    async def leave(self, engine: Engine) -> None:
        """Say that it has stopped."""
        with contextlib.suppress(EngineError):
            await engine.mark_worker_dead(
                worker_instance_id=self._worker.instance, namespace=self._worker.app.namespace, reason="stopped"
            )

    async def _heartbeat(self, engine: Engine) -> None:
        answer = await engine.heartbeat_worker(
            worker_instance_id=self._worker.instance, namespace=self._worker.app.namespace
        )
        if isinstance(answer, NotRegistered):
            await self.register(engine)

    async def _announce_again(self, engine: Engine) -> None:
        if time.monotonic() - self._announced_at >= ANNOUNCE_S:
            self._announced_at = time.monotonic()
            await announce(engine, self._worker.app.namespace, self._kinds)

    async def _state_limits(self, engine: Engine) -> None:
        """Limits of what is started elsewhere, by schedules and people, have the numbers of the code that runs it."""
        app = self._worker.app
        for each in app.definitions.values():
            if not isinstance(each, Startable) or "policy" not in self._kinds.get(each.kind, ()):
                continue
            limits = each.options.limits
            if limits and limits[0].key is None:
                await engine.create_quota_policy(**stated(app.namespace, each, None, kept=True))
