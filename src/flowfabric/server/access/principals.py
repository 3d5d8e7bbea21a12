"""Who may do what: principals, and how a request says who it comes from."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import time
from collections.abc import AsyncGenerator
from contextvars import Context
from typing import TYPE_CHECKING

from msgspec import Struct

from flowfabric.model.errors import EngineError
from flowfabric.model.operations.access import Credential, CredentialInfo, Scope

if TYPE_CHECKING:
    from flowfabric.engine import Engine

__all__ = ["ANYBODY", "HOLDER", "KNOWN_S", "Gate", "Principal", "Scope", "Standing"]

#: How long a credential that was looked up is taken for good, and how often those that somebody waits with are looked
#: up again: a revocation by another process whose hint is lost takes as long to arrive.
KNOWN_S = 1.0
#: However many hints come, this long passes between two looks.
PAUSE_S = 0.02
#: Credentials that are remembered.
MAX_KNOWN = 10_000


class Principal(Struct, frozen=True):
    """Who calls: what they may do, and in which namespaces; ``None`` means in all of them."""

    name: str
    scopes: frozenset[Scope] = frozenset(Scope)
    namespaces: frozenset[str] | None = None
    #: The stored credential that was shown, if it was one.
    credential_id: str | None = None

    def owns(self, namespace: str | None) -> bool:
        """Whether what lies in this namespace can be seen at all."""
        return self.namespaces is None or namespace in self.namespaces


#: The caller of a server that asks for no credential.
ANYBODY = Principal("anybody")
#: The holder of the token of the configuration.
HOLDER = Principal("api-token")

_SCHEME = b"Bearer "
_log = logging.getLogger("flowfabric.server")


class Standing:
    """A credential that somebody waits or listens with. ``gone`` is done once it is good no more."""

    __slots__ = ("gone", "holders", "principal", "token")

    def __init__(self, token: bytes | None, principal: Principal) -> None:
        self.token = token
        self.principal = principal
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.holders = 0

    @property
    def fell(self) -> bool:
        """Whether it is good no more."""
        return self.gone.done()

    def fall(self) -> None:
        """Send everybody home who waits with it."""
        if not self.gone.done():
            self.gone.set_result(None)


class Gate:
    """Finds out who calls: by the token of the configuration, or by a credential that is stored.

    Where there is neither, everybody may do everything, unless credentials are required: such a server listens on
    loopback. The first credential that is stored ends that.

    What is taken away through this engine is gone before the call is answered. What others take away is gone when
    their hint arrives, and within ``KNOWN_S`` without it.
    """

    def __init__(self, engine: Engine, api_token: str | None, required: bool) -> None:
        self._engine = engine
        self._token = api_token.encode() if api_token else None
        self._required = required or self._token is not None
        self._looked_at = -KNOWN_S
        #: By the digest of the token, so that no token lies about in memory.
        self._known: dict[bytes, tuple[float, Principal]] = {}
        #: How often credentials may have changed: what was read before is not remembered after.
        self._changes = 0
        #: Those that somebody waits with, by token; ``None`` for those who show none.
        self._standing: dict[bytes | None, Standing] = {}
        self._hint = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None
        engine.watch_credentials(self._changed)

    async def principal(self, authorization: bytes | None) -> Principal | None:
        """Who calls; ``None`` if the credential is missing or wrong."""
        given = _bearer(authorization)
        if given is None:
            return None if await self._is_required() else ANYBODY
        if self._token is not None and hmac.compare_digest(given, self._token):
            return HOLDER
        return await self._stored(given)

    def forget(self) -> None:
        """Look everything up again."""
        self._changes += 1
        self._known.clear()
        self._looked_at = -KNOWN_S

    # -- those who wait ------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def holding(self, authorization: bytes | None, principal: Principal) -> AsyncGenerator[Standing, None]:
        """Wait or listen with a credential for as long as it is good."""
        given = _bearer(authorization)
        standing = self._standing.get(given)
        if standing is None or standing.fell:
            standing = self._standing[given] = Standing(given, principal)
        standing.holders += 1
        if self._watch is None:
            self._watch = asyncio.create_task(self._keep_looking(), name="flowfabric-credentials", context=Context())
        try:
            # It may have gone between being shown and being waited with.
            await self.stands(standing)
            yield standing
        finally:
            standing.holders -= 1
            if not standing.holders and self._standing.get(given) is standing:
                del self._standing[given]
            if not self._standing and self._watch is not None:
                self._watch.cancel()
                self._watch = None

    async def stands(self, standing: Standing) -> bool:
        """Whether a credential that is waited with is good now."""
        if not standing.fell:
            given = standing.token
            if await self.principal(None if given is None else _SCHEME + given) != standing.principal:
                standing.fall()
        return not standing.fell

    async def _keep_looking(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KNOWN_S):
                    await self._hint.wait()
            self._hint.clear()
            try:
                await self._look()
            except EngineError as error:
                # A store that is away cannot say, and has nothing to hand out either.
                _log.debug("credentials could not be read: %s", error)
            except Exception:
                _log.exception("reading credentials failed")
            await asyncio.sleep(PAUSE_S)

    async def _look(self) -> None:
        """Look up all that somebody waits with, in one read."""
        stored = {each.token: each for each in self._standing.values() if each.principal.credential_id is not None}
        found = await self._engine.verify_credentials([token.decode() for token in stored if token is not None])
        for standing, info in zip(stored.values(), found, strict=True):
            if info is None or _principal(info) != standing.principal:
                standing.fall()
        nobody = self._standing.get(None)
        if nobody is not None:
            self._looked_at = -KNOWN_S
            await self.stands(nobody)

    def _changed(self, credential: Credential | None) -> None:
        """A credential was made or taken away here, or perhaps elsewhere."""
        self.forget()
        if credential is None:
            self._hint.set()
            return
        self._required = True
        for standing in self._standing.values():
            revoked = credential.revoked_at_ms is not None
            if standing.principal is ANYBODY or (
                revoked and standing.principal.credential_id == credential.credential_id
            ):
                standing.fall()

    # -- what is stored ------------------------------------------------------------------------------------------

    async def _is_required(self) -> bool:
        if not self._required and time.monotonic() - self._looked_at >= KNOWN_S:
            began, changes = time.monotonic(), self._changes
            found = await self._engine.list_credentials(limit=1)
            if found.credentials:
                self._required = True
            if changes == self._changes:
                self._looked_at = began
        if self._required and (nobody := self._standing.get(None)) is not None:
            nobody.fall()
        return self._required

    async def _stored(self, given: bytes) -> Principal | None:
        digest = hashlib.sha256(given).digest()
        known = self._known.get(digest)
        if known is not None and time.monotonic() - known[0] < KNOWN_S:
            return known[1]
        self._known.pop(digest, None)
        if not given.startswith(b"ff_") or not given.isascii() or len(given) > 128:
            return None
        began, changes = time.monotonic(), self._changes
        found = await self._engine.verify_credential(given.decode())
        if found is None:
            # A call waiting with it hears of it no later than the call that asks.
            if (standing := self._standing.get(given)) is not None:
                standing.fall()
            return None
        principal = _principal(found)
        if changes == self._changes:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[digest] = (began, principal)
        return principal


def _bearer(authorization: bytes | None) -> bytes | None:
    """The token that was shown."""
    if authorization is None or not authorization.startswith(_SCHEME):
        return None
    return authorization[len(_SCHEME) :]


def _principal(found: CredentialInfo) -> Principal:
    own = None if found.namespaces is None else frozenset(found.namespaces)
    return Principal(f"{found.name} ({found.credential_id})", frozenset(found.scopes), own, found.credential_id)
