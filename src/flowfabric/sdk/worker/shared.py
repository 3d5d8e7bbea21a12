"""What all attempts of a worker use."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from flowfabric.engine import Engine
from flowfabric.sdk.definitions.depends import Dependencies
from flowfabric.sdk.worker.renewal import Renewal

if TYPE_CHECKING:
    from flowfabric.sdk.app import App
    from flowfabric.sdk.worker.processes import Processes
    from flowfabric.sdk.worker.threads import Threads


class WorkerShared:
    """See the module's text."""

    def __init__(
        self,
        app: App,
        engine: Engine,
        name: str,
        instance: str,
        dependencies: Dependencies,
        threads: Threads,
        processes: Processes,
        renewal: Renewal,
        main: asyncio.Task[None],
    ) -> None:
        self.app = app
        self.engine = engine
        self.name = name
        self.instance = instance
        self.dependencies = dependencies
        self.executor = threads
        self.processes = processes
        self.renewal = renewal
        self._main = main

    @property
    def ends(self) -> bool:
        """Whether the whole worker is cancelled, as it is with the program."""
        return self._main.done() or self._main.cancelling() > 0
