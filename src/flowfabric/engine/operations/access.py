"""Callers from outside: credentials with scopes, answers that are given again, an account of acts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from flowfabric.core.access import CreateCredential, KeepAnswer, RecordAct, RevokeCredential, shown
from flowfabric.core.documents import UNREADABLE
from flowfabric.engine.base import EngineBase
from flowfabric.engine.checks import values
from flowfabric.engine.credential_tokens import is_its_secret, mint, parse
from flowfabric.model.decisions import Get
from flowfabric.model.errors import Validation
from flowfabric.model.limits import MAX_PAGE
from flowfabric.model.operations.access import (
    AuditEntry,
    AuditPage,
    Credential,
    CredentialCreated,
    CredentialInfo,
    CredentialPage,
    CredentialRevoked,
    KeptAnswer,
    Scope,
)
from flowfabric.model.operations.executions import AlreadySatisfied
from flowfabric.model.quoting import quoted
from flowfabric.model.waitpoint_tokens import revealed
from flowfabric.stores.questions import ListAudit, ListCredentials

# -- who may call from outside: credentials with scopes, for some namespaces or for all ------------------------------

#: Namespaces one credential may name.
MAX_NAMESPACES = 100


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
        """Let somebody call from outside. The token is given this once (``token.reveal()``); only its digest is kept.

        Without ``namespaces`` it is good for all of them.
        """
        minted = mint()
        own = None if namespaces is None else _namespaces(namespaces)
        wanted = Credential(
            minted.credential_id,
            values.text(name, "name", empty=False),
            minted.digest,
            ",".join(_scopes(scopes)),
            None if own is None else msgspec.json.encode(own).decode(),
            0,
            values.optional_time_ms(expires_at, "expires_at"),
        )
        stored: Credential = await self._submit(CreateCredential(wanted))
        return CredentialCreated(minted.token, shown(stored))

    async def revoke_credential(self, credential_id: str) -> CredentialRevoked | AlreadySatisfied:
        """Take a credential away: servers of this process refuse it at once, others within a second."""
        answer: CredentialRevoked | AlreadySatisfied = await self._submit(
            RevokeCredential(values.text(credential_id, "credential_id", empty=False))
        )
        return answer

    async def list_credentials(self, after: str | None = None, limit: int = 100) -> CredentialPage:
        """Credentials by id, revoked ones too, without their secrets."""
        size = values.integer(limit, "limit", 1, MAX_PAGE)
        found = await self._ask(ListCredentials(values.optional_text(after, "after"), size + 1))
        page = tuple(map(_listed, found[:size]))
        return CredentialPage(page, page[-1].credential_id if len(found) > size else None)

    async def verify_credential(self, token: str) -> CredentialInfo | None:
        """Whose token this is; ``None`` if it is nobody's, or not any more."""
        return (await self.verify_credentials([token]))[0]

    async def verify_credentials(self, tokens: Iterable[str]) -> list[CredentialInfo | None]:
        """Whose tokens these are, in one read."""
        parts = [parse(values.text(revealed(each), "token")) for each in values.sequence(tokens, "tokens")]
        self._check_open()
        if self._credential_watchers:
            self._listen()
        needs = {found[0]: Get(Credential, found[0]) for found in parts if found is not None}
        if not needs:
            return [None] * len(parts)
        view = await self._view(*needs.values())
        found = [None if each is None else _genuine(view.get(Credential, each[0]), each[1]) for each in parts]
        if any(each is not None and each.expires_at_ms is not None for each in found):
            now = await self.now_ms()
            found = [None if each is None or _is_over(each, now) else each for each in found]
        return [None if each is None else shown(each) for each in found]

    def watch_credentials(self, watcher: Callable[[Credential | None], None]) -> None:
        """Call ``watcher`` with each credential that is made or taken away through this engine, right after the commit
        and before anybody is answered; and with ``None`` whenever another process may have done so."""
        if not callable(watcher):
            raise values.invalid(f"watcher: expected a function, got {type(watcher).__name__}")
        self._credential_watchers.append(watcher)


def _genuine(found: Credential | None, secret: str) -> Credential | None:
    good = found is not None and is_its_secret(secret, found.digest) and found.revoked_at_ms is None
    return found if good else None


def _is_over(found: Credential, now: int) -> bool:
    return found.expires_at_ms is not None and found.expires_at_ms <= now


def _namespaces(value: Any) -> list[str]:
    own = sorted({values.text(each, "namespaces") for each in values.sequence(value, "namespaces")})
    if not 0 < len(own) <= MAX_NAMESPACES:
        raise values.invalid(f"namespaces: from 1 to {MAX_NAMESPACES}, or None for all; got {len(own)}")
    return own


def _scopes(value: Any) -> list[str]:
    known = [each.value for each in Scope]
    given = []
    for each in values.sequence(value, "scopes"):
        if not isinstance(each, str) or str.__str__(each) not in known:
            raise values.invalid(f"scopes: {quoted(each)} is not one of {', '.join(known)}")
        given.append(str.__str__(each))
    if not given:
        raise values.invalid(f"scopes: expected at least one of {', '.join(known)}")
    return sorted(set(given))


def _listed(stored: Credential) -> CredentialInfo:
    try:
        return shown(stored)
    except Validation:
        times = (stored.created_at_ms, stored.expires_at_ms, stored.revoked_at_ms)
        return CredentialInfo(stored.credential_id, f"{stored.name} {UNREADABLE}", (), (), *times)


# -- answers that are given again, and an account of acts -----------------------------------------------------------

#: How long an answer is given again.
KEPT_MS = 24 * 3600 * 1000


def act_entropy() -> bytes:
    """What tells acts of one millisecond apart and keeps them in the order in which they were told."""
    return time.monotonic_ns().to_bytes(8, "big") + os.urandom(4)


class Doors(EngineBase):
    """The part of the engine that doors lean on."""

    async def keep_answer(
        self,
        *,
        owner: str,
        idempotency_key: str,
        fingerprint: str,
        status: int,
        media: str,
        body: bytes | None,
        kept_ms: int = KEPT_MS,
    ) -> KeptAnswer:
        """Remember the answer to a request; the one that was remembered first holds and is returned."""
        answer: KeptAnswer = await self._submit(
            KeepAnswer(
                KeptAnswer(
                    values.text(owner, "owner"),
                    values.text(idempotency_key, "idempotency_key", empty=False),
                    values.text(fingerprint, "fingerprint"),
                    values.integer(status, "status", 100, 599),
                    values.text(media, "media"),
                    values.payload(body, "body"),
                    0,
                ),
                values.time_ms(kept_ms, "kept_ms"),
            )
        )
        return answer

    async def find_answer(self, owner: str, idempotency_key: str) -> KeptAnswer | None:
        """The answer that was remembered, while its time lasts."""
        key = (values.text(owner, "owner"), values.text(idempotency_key, "idempotency_key", empty=False))
        found = (await self._view(Get(KeptAnswer, key))).get(KeptAnswer, key)
        return None if found is None or found.expires_at_ms <= await self.now_ms() else found

    async def record_act(self, *, who: str, act: str, subject: Mapping[str, str], status: int) -> AuditEntry:
        """Write down who has done what to whom."""
        if not isinstance(subject, Mapping):
            raise values.invalid(f"subject: expected a mapping, got {type(subject).__name__}")
        facts = {values.text(name, "subject"): values.text(value, "subject") for name, value in subject.items()}
        answer: AuditEntry = await self._submit(
            RecordAct(
                values.text(who, "who"),
                values.text(act, "act", empty=False),
                msgspec.json.encode(facts).decode(),
                values.integer(status, "status", 100, 599),
                act_entropy(),
            )
        )
        return answer

    async def list_audit(self, after: str | None = None, limit: int = 100) -> AuditPage:
        """Acts, the one that was committed last first, behind the ``audit_id`` of one of them."""
        size = values.integer(limit, "limit", 1, MAX_PAGE)
        found = await self._ask(ListAudit(values.optional_text(after, "after"), size + 1))
        page = tuple(found[:size])
        return AuditPage(page, page[-1].audit_id if len(found) > size else None)
