"""Who may call from outside: credentials with scopes, for some namespaces or for all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from flowfabric.core.credentials import CreateCredential, RevokeCredential
from flowfabric.engine import checks
from flowfabric.engine.base import EngineBase
from flowfabric.model.changes import Get
from flowfabric.model.credentials import (
    Credential,
    CredentialCreated,
    CredentialInfo,
    CredentialPage,
    CredentialRevoked,
    Scope,
)
from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.limits import MAX_PAGE
from flowfabric.model.results import AlreadySatisfied
from flowfabric.security import tokens
from flowfabric.stores.questions import ListCredentials

#: Namespaces one credential may name.
MAX_NAMESPACES = 100
_names = msgspec.json.Decoder(list[str])


class Credentials(EngineBase):
    """The part of the engine that knows who may call."""

    async def create_credential(
        self,
        *,
        name: str,
        scopes: Iterable[Scope | str],
        namespaces: Iterable[str] | None = None,
        expires_at: int | None = None,
    ) -> CredentialCreated:
        """Let somebody call from outside. The token is shown this once; only its digest is kept.

        Without ``namespaces`` it is good for all of them.
        """
        minted = tokens.mint()
        own = None if namespaces is None else _namespaces(namespaces)
        wanted = Credential(
            minted.credential_id,
            checks.text(name, "name", empty=False),
            minted.digest,
            ",".join(_scopes(scopes)),
            None if own is None else msgspec.json.encode(own).decode(),
            0,
            checks.optional_time_ms(expires_at, "expires_at"),
        )
        stored: Credential = await self._submit(CreateCredential(wanted))
        return CredentialCreated(minted.token, _info(stored))

    async def revoke_credential(self, credential_id: str) -> CredentialRevoked | AlreadySatisfied:
        """Take a credential away; whoever uses it is refused within seconds."""
        answer: CredentialRevoked | AlreadySatisfied = await self._submit(
            RevokeCredential(checks.text(credential_id, "credential_id", empty=False))
        )
        return answer

    async def list_credentials(self, after: str | None = None, limit: int = 100) -> CredentialPage:
        """Credentials by id, revoked ones too, without their secrets."""
        size = checks.integer(limit, "limit", 1, MAX_PAGE)
        found = await self._ask(ListCredentials(checks.optional_text(after, "after"), size + 1))
        page = tuple(map(_info, found[:size]))
        return CredentialPage(page, page[-1].credential_id if len(found) > size else None)

    async def verify_credential(self, token: str) -> CredentialInfo | None:
        """Whose token this is; ``None`` if it is nobody's, or not any more."""
        parts = tokens.parse(checks.text(token, "token"))
        self._check_open()
        if parts is None:
            return None
        identity, secret = parts
        found = (await self._view(Get(Credential, identity))).get(Credential, identity)
        if found is None or not tokens.is_its_secret(secret, found.digest) or found.revoked_at_ms is not None:
            return None
        if found.expires_at_ms is not None and found.expires_at_ms <= await self.now_ms():
            return None
        return _info(found)


def _namespaces(value: Any) -> list[str]:
    own = sorted({checks.text(each, "namespaces") for each in checks.sequence(value, "namespaces")})
    if not 0 < len(own) <= MAX_NAMESPACES:
        raise checks.invalid(f"namespaces: from 1 to {MAX_NAMESPACES}, or None for all; got {len(own)}")
    return own


def _scopes(value: Any) -> list[str]:
    known = [each.value for each in Scope]
    given = []
    for each in checks.sequence(value, "scopes"):
        if not isinstance(each, str) or str.__str__(each) not in known:
            raise checks.invalid(f"scopes: {each!r:.80} is none of {', '.join(known)}")
        given.append(str.__str__(each))
    if not given:
        raise checks.invalid(f"scopes: at least one of {', '.join(known)}")
    return sorted(set(given))


def _info(stored: Credential) -> CredentialInfo:
    try:
        scopes = tuple(map(Scope, stored.scopes.split(",")))
        own = None if stored.namespaces is None else tuple(_names.decode(stored.namespaces))
    except (ValueError, msgspec.DecodeError):
        raise Validation(ValidationKind.CORRUPTION, f"ff_credential: {stored.credential_id}") from None
    return CredentialInfo(
        stored.credential_id,
        stored.name,
        scopes,
        own,
        stored.created_at_ms,
        stored.expires_at_ms,
        stored.revoked_at_ms,
    )
