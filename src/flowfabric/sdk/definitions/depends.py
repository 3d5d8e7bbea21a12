"""Dependencies: parameters that a worker provides instead of the caller.

``http: Annotated[Client, Depends(client)]`` asks for what ``client`` provides. A provider is a function, a coroutine
function, a generator or an async generator (what follows its ``yield`` runs when its scope ends), and may itself ask
for dependencies. Two scopes: ``worker`` values are made once and kept until the worker stops; ``attempt`` values are
made for each attempt, once however often they are asked for. Generators and context managers are of the worker, plain
functions of the attempt, unless told otherwise.

Plain functions and generators run on the event loop: what takes long belongs into an async provider.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias

from flowfabric.sdk.errors import BadDependency

Scope: TypeAlias = Literal["worker", "attempt"]
Provider: TypeAlias = Callable[..., Any]


class _InjectedValue:
    """The default of a parameter that is provided; only its identity counts."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "injected"


#: Write ``ctx: Ctx = injected`` so that type checkers know that callers do not pass it.
injected: Final[Any] = _InjectedValue()


@dataclass(frozen=True)
class Depends:
    """Marks a parameter as provided: ``Annotated[X, Depends(provider)]``."""

    provider: Provider
    scope: Scope | None = None

    def __post_init__(self) -> None:
        if not callable(self.provider):
            raise BadDependency(f"Depends: {self.provider!r} cannot be called; pass the function, not its result")
        if self.scope not in (None, "worker", "attempt"):
            raise BadDependency(f"Depends: scope {self.scope!r} is neither 'worker' nor 'attempt'")


@dataclass(frozen=True)
class WantsContext:
    """A parameter that asks for the ``Ctx`` of the attempt."""


Injected: TypeAlias = WantsContext | Depends


class Overrides:
    """Providers that stand in for others, for tests."""

    def __init__(self) -> None:
        self._replacements: dict[Provider, Provider] = {}

    def get(self, provider: Provider) -> Provider:
        """Who provides in place of this one; itself, unless it is overridden."""
        return self._replacements.get(provider, provider)

    @contextmanager
    def override(self, provider: Provider, replacement: Provider) -> Any:
        """Let another function provide, as long as the block lasts."""
        if not callable(replacement):
            raise BadDependency(f"override: {replacement!r} cannot be called; write lambda: {replacement!r}")
        before = self._replacements.get(provider)
        self._replacements[provider] = replacement
        try:
            yield
        finally:
            if before is None:
                self._replacements.pop(provider, None)
            else:
                self._replacements[provider] = before


class _Values:
    """What one scope has made, and how to let go of it."""

    def __init__(self) -> None:
        self._made: dict[Provider, asyncio.Future[Any]] = {}
        self._stack = AsyncExitStack()

    async def get(self, provider: Provider, make: Callable[[AsyncExitStack], Any]) -> Any:
        """The value, made by the first who asks; others wait for it, and make it if the first gives up."""
        while (known := self._made.get(provider)) is not None:
            await asyncio.wait((known,))
            if not known.cancelled():
                return known.result()
        future = self._made[provider] = asyncio.get_running_loop().create_future()
        try:
            value = await make(self._stack)
        except BaseException as error:
            del self._made[provider]
            if isinstance(error, Exception):
                future.set_exception(error)
                future.exception()  # somebody may wait for it, or nobody
            else:
                future.cancel()
            raise
        future.set_result(value)
        return value

    async def close(self) -> None:
        self._made.clear()
        await self._stack.aclose()


class _Kept:
    """A value of the worker scope, in a task of its own: it begins and ends there, and neither the context nor a cancel
    of the attempt that was the first to ask is any business of the others."""

    def __init__(
        self, make: Callable[[AsyncExitStack], Awaitable[Any]], context: Context, made: Callable[[_Kept], None]
    ) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        self._made = made
        self.is_made = False
        self._known, self._over = asyncio.Event(), asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(
            self._keep(make), name="flowfabric-dependency", context=context.copy()
        )

    async def _keep(self, make: Callable[[AsyncExitStack], Awaitable[Any]]) -> None:
        try:
            async with AsyncExitStack() as stack:
                self.value = await make(stack)
                self.is_made = True
                self._made(self)
                self._known.set()
                await self._over.wait()
        except BaseException as error:
            # Handed on, whatever it is: some errors would end the loop.
            self.error = error
        finally:
            self._known.set()

    async def known(self) -> None:
        """Return when it is made, or cannot be."""
        await self._known.wait()

    async def end(self) -> None:
        """Let go of it, also if it is still being made. A cancel hastens that."""
        if self._known.is_set():
            self._over.set()
        else:
            self._task.cancel()
        try:
            await asyncio.wait((self._task,))
        except asyncio.CancelledError:
            self._task.cancel()
            await asyncio.wait((self._task,))
            raise
        if self.error is not None and not isinstance(self.error, asyncio.CancelledError):
            raise self.error


class _WorkerValues:
    """What was made for all attempts of a worker, in the context that the worker was started in."""

    def __init__(self) -> None:
        self._context = copy_context()
        self._kept: dict[Provider, _Kept] = {}
        self._stack = AsyncExitStack()
        self._closed = False

    async def get(self, provider: Provider, make: Callable[[AsyncExitStack], Any]) -> Any:
        """The value, made when the first asks, and again if that has failed."""
        if self._closed:
            raise asyncio.CancelledError
        kept = self._kept.get(provider)
        if kept is None:
            kept = self._kept[provider] = _Kept(make, self._context, self._made)
        await kept.known()
        if kept.error is not None:
            if self._kept.get(provider) is kept:
                del self._kept[provider]
            raise kept.error
        return kept.value

    def _made(self, kept: _Kept) -> None:
        # What it asked for was made before it, and goes after it.
        self._stack.push_async_callback(kept.end)

    async def close(self) -> None:
        """Let go of everything, last first."""
        self._closed = True
        kept, self._kept = list(self._kept.values()), {}
        async with self._stack:
            for each in kept:
                if not each.is_made:
                    self._stack.push_async_callback(each.end)


class Dependencies:
    """The worker scope. ``async with dependencies.attempt(ctx) as scope`` opens an attempt in it."""

    def __init__(self, overrides: Overrides | None = None) -> None:
        self.overrides = Overrides() if overrides is None else overrides
        self._values = _WorkerValues()

    def attempt(self, context: Any = None) -> AttemptDependencies:
        """A scope for one attempt; ``context`` is its ``Ctx``."""
        return AttemptDependencies(self, context)

    async def close(self) -> None:
        """Let go of everything that was made for the worker, last first."""
        await self._values.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AttemptDependencies:
    """The attempt scope: an async context manager."""

    def __init__(self, worker: Dependencies, context: Any) -> None:
        self._worker = worker
        self._context = context
        self._values = _Values()

    async def resolve(self, wanted: Mapping[str, Injected]) -> dict[str, Any]:
        """A value for each parameter."""
        return {name: await self._value(name, each) for name, each in wanted.items()}

    async def _value(self, name: str, wanted: Injected) -> Any:
        if isinstance(wanted, WantsContext):
            if self._context is None:
                raise BadDependency(f"{name}: there is no Ctx outside a worker; pass one: {name}=…", parameter=name)
            return self._context
        provider = self._worker.overrides.get(wanted.provider)
        is_own = self._scope(provider, wanted.scope) == "attempt"
        values: _Values | _WorkerValues = self._values if is_own else self._worker._values
        return await values.get(provider, lambda stack: self._make(provider, stack))

    def _scope(self, provider: Provider, asked: Scope | None, above: tuple[Provider, ...] = ()) -> Scope:
        """Whose a value is: nothing of the worker can be made of something that ends with an attempt."""
        if provider in above:
            names = " → ".join(_name(each) for each in (*above, provider))
            raise BadDependency(f"dependencies form a cycle: {names}")
        needs_attempt = any(
            isinstance(each, WantsContext)
            or self._scope(self._worker.overrides.get(each.provider), each.scope, (*above, provider)) == "attempt"
            for each in _wanted(provider).values()
            if isinstance(each, WantsContext) or each.scope != "worker"
        )
        if asked == "worker" and needs_attempt:
            raise BadDependency(f"{_name(provider)} has scope 'worker' but depends on something with scope 'attempt'")
        if asked is not None:
            return asked
        return "worker" if _has_end(provider) and not needs_attempt else "attempt"

    async def _make(self, provider: Provider, stack: AsyncExitStack) -> Any:
        arguments = await self.resolve(_wanted(provider))
        if inspect.isasyncgenfunction(provider):
            return await stack.enter_async_context(asynccontextmanager(provider)(**arguments))
        if inspect.isgeneratorfunction(provider):
            return stack.enter_context(contextmanager(provider)(**arguments))
        value = provider(**arguments)
        if inspect.isawaitable(value):
            value = await value
        if _has_end(provider):
            # Decorated with contextlib: what it gives is to be entered.
            if hasattr(value, "__aenter__"):
                return await stack.enter_async_context(value)
            return stack.enter_context(value)
        return value

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._values.close()


def _name(provider: Provider) -> str:
    return getattr(provider, "__qualname__", repr(provider))


def _has_end(provider: Provider) -> bool:
    """Whether there is something to do when its scope ends."""
    inner = inspect.unwrap(provider)
    return inspect.isasyncgenfunction(inner) or inspect.isgeneratorfunction(inner)


@functools.lru_cache(maxsize=1024)
def _wanted(provider: Provider) -> Mapping[str, Injected]:
    """What a provider asks for itself."""
    try:
        parameters = inspect.signature(provider).parameters
    except (TypeError, ValueError):
        return {}
    if not parameters:
        return {}
    from flowfabric.sdk.definitions.signature import injected_parameters

    found = injected_parameters(provider)
    for name, parameter in parameters.items():
        if name in found or parameter.default is not parameter.empty or parameter.kind in (2, 4):
            continue
        raise BadDependency(
            f"{_name(provider)}: nothing provides parameter {name!r}; give it a default or Annotated[…, Depends(…)]",
            parameter=name,
        )
    return found
