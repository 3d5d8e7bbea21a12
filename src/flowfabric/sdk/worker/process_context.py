"""The context of a function in a process of its own: facts of its attempt, and whether to stop."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from flowfabric.model.streams.logs import MAX_LINES, LogLine
from flowfabric.sdk.context import Ctx, Spending
from flowfabric.sdk.errors import BadOptions

if TYPE_CHECKING:
    from flowfabric.engine import Engine
    from flowfabric.model.trace import TraceContext
    from flowfabric.sdk.options import Amount, Budget
    from flowfabric.sdk.worker.processes import Facts


class ProcessCtx(Ctx):
    """A ``Ctx`` without an engine behind it."""

    def __init__(self, facts: Facts, stopped: threading.Event) -> None:
        self._facts = facts
        self._name = facts.task
        self._stopped = stopped
        self._log = None
        self._step = facts.step
        #: What was logged, to be stored by the worker.
        self.lines: list[LogLine] = []

    def _kept_logs(self) -> tuple[int | None, Callable[[LogLine], None]]:
        return self._facts.stored_logs, self._keep

    def _keep(self, line: LogLine) -> None:
        if len(self.lines) <= MAX_LINES:
            self.lines.append(line)

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._facts.run_id

    @property
    def attempt(self) -> int:
        """1 for the first attempt; each retry adds one."""
        return self._facts.attempt

    @property
    def tags(self) -> Mapping[str, str]:
        """The run's tags."""
        return self._facts.tags

    @property
    def idempotency_key(self) -> str:
        """The same text in every attempt of this run, or of this step in it."""
        return self._facts.idempotency_key

    @property
    def cancelled(self) -> bool:
        """Whether to stop. A function that goes on is killed some seconds later."""
        return self._stopped.is_set()

    @property
    def lease_healthy(self) -> bool:
        """Whether the worker still holds the run, as far as is known here."""
        return not self.cancelled

    def _refuse(self, what: str) -> NoReturn:
        raise BadOptions(
            f'{self._name}: ctx.{what} is not available with run_in="process", only cancelled, run_id, attempt, tags, '
            "idempotency_key and log; let it run in a thread",
            task=self._name,
        )

    @property
    def engine(self) -> Engine:
        """Not here."""
        self._refuse("engine")

    @property
    def trace(self) -> TraceContext | None:
        """Not here."""
        self._refuse("trace")

    def __getattr__(self, name: str) -> Any:
        if name == "stream":
            self._refuse(name)
        raise AttributeError(name)

    def emit(self, data: str | bytes | Any, type: str = "frame") -> Awaitable[None]:
        """Not here."""
        self._refuse("emit")

    def flush(self) -> Awaitable[None]:
        """Not here."""
        self._refuse("flush")

    def summary(self, patch: Mapping[str, Any]) -> Awaitable[None]:
        """Not here."""
        self._refuse("summary")

    def progress(self, percent: int | None = None, message: str | None = None) -> Awaitable[None]:
        """Not here."""
        self._refuse("progress")

    def spend(self, *, budget: Budget | str | None = None, **estimate: Amount) -> Spending:
        """Not here."""
        self._refuse("spend")
