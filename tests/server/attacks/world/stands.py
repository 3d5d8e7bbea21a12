"""A world of two tenants that is used again until a call has left something behind in it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, AsyncExitStack
from types import TracebackType
from typing import Self

import httpx

from flowfabric.model.operations.access import Scope
from tests.server.attacks.world.asking_tenants import SAID, asked, value_of
from tests.server.attacks.world.naming import Place
from tests.server.attacks.world.tenants import (
    World,
    assert_silent,
    check_untouched,
    of_b,
    opened,
    plainly,
    rows,
    token_of,
    unknown,
)
from tests.server.conftest import client_of

#: Gives the address of an empty store, for as long as it is used.
Store = Callable[[], AbstractContextManager[str]]


def in_memory() -> AbstractContextManager[str]:
    """A store of its own every time."""
    return contextlib.nullcontext("memory://")


class Stand:
    """Where tenant a, with some scopes alone, asks for what is b's and for what nobody has."""

    world: World
    client: httpx.AsyncClient

    def __init__(self, store: Store = in_memory, scopes: Iterable[Scope] = tuple(Scope)) -> None:
        self._store, self._scopes = store, list(scopes)
        self._stack = AsyncExitStack()
        #: What was stored at the beginning, and after the last call.
        self._first: set[str] = set()
        self._last: set[str] = set()

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _begin(self) -> None:
        url = self._stack.enter_context(self._store())
        self.world = await self._stack.enter_async_context(opened(url))
        token = await token_of(self.world.engine, self.world.a, self._scopes)
        self.client = await self._stack.enter_async_context(client_of(self.world.server, token))
        self._first = self._last = set(await rows(self.world.engine))

    async def ask(self, place: Place, *, foreign: bool) -> httpx.Response:
        """The answer to a call that names, in one place, something of b's or something of nobody's."""
        return await asked(self.client, place, self.world.a, await self._value(place, foreign))

    async def told(self, place: Place, *, foreign: bool) -> str:
        """The same in plain words, if it says nothing of b's and touches nothing of b's."""
        value = await self._value(place, foreign)
        text = plainly(await asked(self.client, place, self.world.a, value), value)
        assert_silent(self.world, text)
        before, self._last = self._last, set(await rows(self.world.engine))
        if before != self._last:
            said = value if place.role() in SAID or place.found_in(SAID) else ""
            check_untouched(self.world, of_b(self.world, before), of_b(self.world, self._last), said)
        return text

    async def _value(self, place: Place, foreign: bool) -> str:
        theirs = await value_of(self.world, place, self.world.b)
        return theirs if foreign else unknown(self.world, place.role() or "", theirs)

    async def is_as_it_was(self) -> bool:
        """Whether all calls have left nothing behind."""
        self._last = set(await rows(self.world.engine))
        return self._last == self._first

    async def settle(self) -> None:
        """Begin anew if what was told has left something behind."""
        if self._last != self._first:
            await self._stack.aclose()
            await self._begin()
