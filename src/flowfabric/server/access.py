"""Who may do what: principals, and how a request says who it comes from."""

from __future__ import annotations

import hashlib
import hmac
import time
from typing import TYPE_CHECKING

from msgspec import Struct

from flowfabric.model.credentials import Scope

if TYPE_CHECKING:
    from flowfabric.engine import Engine

__all__ = ["ANYBODY", "HOLDER", "KNOWN_S", "Gate", "Principal", "Scope"]

#: How long a credential that was looked up is taken for good; a revocation by another process takes as long to arrive.
KNOWN_S = 5.0
#: Credentials that are remembered.
MAX_KNOWN = 10_000


class Principal(Struct, frozen=True):
    """Who calls: what they may do, and in which namespaces; ``None`` means in all of them."""

    name: str
    scopes: frozenset[Scope] = frozenset(Scope)
    namespaces: frozenset[str] | None = None

    def may(self, scope: Scope) -> bool:
        """Whether this scope was given."""
        return scope in self.scopes

    def owns(self, namespace: str | None) -> bool:
        """Whether what lies in this namespace can be seen at all."""
        return self.namespaces is None or namespace in self.namespaces


#: Whoever calls a server that asks for no credential.
ANYBODY = Principal("anybody")
#: Whoever holds the token of the configuration.
HOLDER = Principal("api-token")

_SCHEME = b"Bearer "


class Gate:
    """Finds out who calls: by the token of the configuration, or by a credential that is stored.

    Where there is neither, everybody may do everything, unless credentials are required: such a server listens on
    loopback. The first credential that is stored ends that.
    """

    def __init__(self, engine: Engine, api_token: str | None, required: bool) -> None:
        self._engine = engine
        self._token = api_token.encode() if api_token else None
        self._required = required or self._token is not None
        self._looked_at = 0.0
        #: By the digest of the token, so that no token lies about in memory.
        self._known: dict[bytes, tuple[float, Principal]] = {}

    async def principal(self, authorization: bytes | None) -> Principal | None:
        """Who calls; ``None`` if the credential is missing or wrong."""
        if authorization is None or not authorization.startswith(_SCHEME):
            return None if await self._is_required() else ANYBODY
        given = authorization[len(_SCHEME) :]
        if self._token is not None and hmac.compare_digest(given, self._token):
            return HOLDER
        return await self._stored(given)

    def forget(self) -> None:
        """Look credentials up again: one has been made or taken away."""
        self._known.clear()
        self._looked_at = 0.0

    async def _is_required(self) -> bool:
        if not self._required and time.monotonic() - self._looked_at > KNOWN_S:
            self._required = bool((await self._engine.list_credentials(limit=1)).credentials)
            self._looked_at = time.monotonic()
        return self._required

    async def _stored(self, given: bytes) -> Principal | None:
        digest = hashlib.sha256(given).digest()
        known = self._known.get(digest)
        if known is not None and time.monotonic() - known[0] <= KNOWN_S:
            return known[1]
        self._known.pop(digest, None)
        if not given.startswith(b"ff_") or not given.isascii() or len(given) > 128:
            return None
        found = await self._engine.verify_credential(given.decode())
        if found is None:
            return None
        own = None if found.namespaces is None else frozenset(found.namespaces)
        principal = Principal(f"{found.name} ({found.credential_id})", frozenset(found.scopes), own)
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[digest] = (time.monotonic(), principal)
        return principal
