"""Workers that die at the worst moment: an engine that lets some of a worker's calls fail, before or after the fact."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from flowfabric.model.errors import Contention, ContentionKind
from flowfabric.model.handles import Handle
from flowfabric.sdk.errors import BadOptions

#: What can be interrupted, and the operations of the engine that do it.
WRITES: dict[str, tuple[str, ...]] = {
    "complete": ("complete",),
    "fail": ("fail",),
    "cancel": ("cancel",),
    # The steps that were done last are remembered by the end.
    "step": ("advance", "complete", "fail"),
    "emit": ("append_frame", "append_frames"),
    # A workflow is suspended with what it has to say.
    "suspend": ("suspend", "advance"),
    "progress": ("progress",),
    "spend": ("reserve_budget", "settle_reservation"),
}


class Crash:
    """A worker that dies: at which write of whose runs, before or after it, and how often."""

    def __init__(self, kind: str, step: str | None, write: str, after: bool, times: int) -> None:
        self.kind = kind
        self.step = step
        self.write = write
        self.after = after
        self.times = times
        #: Whether it has happened.
        self.happened = False

    def __str__(self) -> str:
        return f"crash({self.kind}, {'after' if self.after else 'before'}={self.write!r})"

    def concerns(self, operation: str, kind: str, arguments: dict[str, Any]) -> bool:
        """Whether it happens at this call."""
        if self.times <= 0 or operation not in WRITES[self.write]:
            return False
        names = [step.name for step in arguments.get("steps", ())]
        if self.write == "step" and not names:
            return False
        if self.write == "suspend" and operation == "advance" and arguments.get("wait") is None:
            return False
        if self.step is not None:
            # A step that failed is remembered with the number of the trial.
            begins = tuple(f"{self.step}{mark}" for mark in "[#!")
            return any(name == self.step or name.startswith(begins) for name in names)
        return kind == self.kind


class _Held(NamedTuple):
    execution_id: str
    epoch: int


class FaultyEngine:
    """Forwards everything; a call that a crash concerns ends the worker's hold as if its process had died."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.crashes: list[Crash] = []
        #: Leases whose worker has died: they stand until they run out.
        self.dead: set[_Held] = set()
        self._kinds: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._engine, name)
        if not inspect.iscoroutinefunction(found):
            return found
        return self._guarded(name, found)

    def is_dead(self, execution_id: str, epoch: int) -> bool:
        """Whether the holder of a lease has died."""
        return _Held(str(execution_id), epoch) in self.dead

    def _guarded(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        async def guarded(*args: Any, **kwargs: Any) -> Any:
            handle = args[0] if args and isinstance(args[0], Handle) else kwargs.get("handle")
            if not isinstance(handle, Handle):
                return await call(*args, **kwargs)
            held = _Held(str(handle.payload.execution_id), handle.payload.lease_epoch)
            if held in self.dead:
                raise _gone(held)
            crash = await self._crash_at(name, held, kwargs) if self.crashes else None
            if crash is None:
                return await call(*args, **kwargs)
            crash.times -= 1
            crash.happened = True
            if crash.after:
                await call(*args, **kwargs)
            self.dead.add(held)
            raise _gone(held)

        return guarded

    async def _crash_at(self, name: str, held: _Held, arguments: dict[str, Any]) -> Crash | None:
        kind = self._kinds.get(held.execution_id)
        if kind is None:
            context = await self._engine.read_execution_context(held.execution_id)
            kind = self._kinds[held.execution_id] = context.execution_kind
        return next((crash for crash in self.crashes if crash.concerns(name, kind, arguments)), None)


def _gone(held: _Held) -> Contention:
    return Contention(ContentionKind.LEASE_CONFLICT, f"the test crashed the worker of {held.execution_id}")


def crash_of(target: Any, before: str | None, after: str | None, times: int) -> Crash:
    """A crash as ``Testing.crash`` describes it."""
    from flowfabric.sdk.definitions.tasks import Definition, Step

    if not isinstance(target, Definition):
        raise BadOptions(f"crash: {target!r} is not a task, step or workflow", option="crash")
    write = before or after
    if write is None or (before is not None and after is not None) or write not in WRITES:
        raise BadOptions(f"crash: pass before= or after= with one of {', '.join(WRITES)}", option="crash")
    step = target.name if isinstance(target, Step) else None
    if step is not None and write != "step":
        raise BadOptions(f"crash: a step is written once: before='step' or after='step', not {write!r}", option="crash")
    return Crash(target.name, step, write, after is not None, times)
