"""Who may do what: scopes, principals, and how a request says who it comes from."""

from __future__ import annotations

import hmac
from enum import StrEnum

from msgspec import Struct


class Scope(StrEnum):
    """What a credential may be good for."""

    SUBMIT = "submit"
    WORKER = "worker"
    SIGNAL = "signal"
    OPERATOR = "operator"
    READ = "read"
    ADMIN = "admin"


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
    """Finds out who calls. Without any credential everybody may do everything: such a server listens on loopback."""

    def __init__(self, api_token: str | None) -> None:
        self._token = api_token.encode() if api_token else None

    @property
    def is_open(self) -> bool:
        """Whether requests are served without a credential."""
        return self._token is None

    async def principal(self, authorization: bytes | None) -> Principal | None:
        """Who calls; ``None`` if the credential is missing or wrong."""
        if self._token is None:
            return ANYBODY
        if authorization is None or not authorization.startswith(_SCHEME):
            return None
        return HOLDER if hmac.compare_digest(authorization[len(_SCHEME) :], self._token) else None
