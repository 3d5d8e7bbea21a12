"""Callers from outside: what is stored and told about their credentials, their answers and their acts."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Final

from msgspec import UNSET, Struct, UnsetType

from flowfabric.model.secrets import Discreet
from flowfabric.model.waitpoint_tokens import Token

# -- credentials: what is stored of them, and what is told about them ------------------------------------------------


class Scope(StrEnum):
    """What a credential may be good for."""

    SUBMIT = "submit"
    WORKER = "worker"
    SIGNAL = "signal"
    OPERATOR = "operator"
    READ = "read"
    ADMIN = "admin"


class Credential(Discreet, Struct, gc=False):
    """Who may call from outside (``ff_credential``)."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"digest"})

    credential_id: str
    name: str
    #: SHA-256 of the secret, in hexadecimal.
    digest: str
    #: With commas between.
    scopes: str
    #: JSON list; ``None`` means all of them.
    namespaces: str | None
    created_at_ms: int
    expires_at_ms: int | None = None
    revoked_at_ms: int | None = None

    @property
    def key(self) -> str:
        return self.credential_id


class CredentialInfo(Struct, frozen=True):
    """A credential without its secret."""

    credential_id: str
    name: str
    scopes: tuple[Scope, ...]
    namespaces: tuple[str, ...] | None
    created_at_ms: int
    expires_at_ms: int | None
    revoked_at_ms: int | None


class CredentialCreated(Struct, frozen=True):
    """The credential is stored. Its token is given this once: ``token.reveal()``."""

    token: Token
    credential: CredentialInfo


class CredentialRevoked(Struct, frozen=True):
    """The credential is good for nothing any more; this is what it was good for."""

    credential_id: str
    name: str
    scopes: tuple[Scope, ...]
    namespaces: tuple[str, ...] | None


class CredentialPage(Struct, frozen=True):
    """Credentials by id."""

    credentials: tuple[CredentialInfo, ...]
    next_cursor: str | None


# -- answers that are given again, and acts that people account for -------------------------------------------------


#: The status of a ``KeptAnswer`` whose body is the result of what was done, until the answer made of it is known.
RESULT: Final = 102


class KeptAnswer(Discreet, Struct, gc=False):
    """The answer to a request that carried a key, for its repetition (``ff_kept_answer``)."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"body"})

    owner: str
    idempotency_key: str
    #: Digest of the request, so that a key is not taken for another one.
    fingerprint: str
    status: int
    media: str
    body: bytes | None
    expires_at_ms: int

    @property
    def key(self) -> tuple[str, str]:
        return (self.owner, self.idempotency_key)


class AuditEntry(Struct, gc=False):
    """Who has done what (``ff_audit``)."""

    audit_id: str
    at_ms: int
    who: str
    act: str
    #: What it was done to, as a JSON object.
    subject: str
    status: int
    #: Rises from act to act as they are committed, whichever process commits them; the store gives it.
    number: int | UnsetType = UNSET

    @property
    def key(self) -> str:
        return self.audit_id


class AuditPage(Struct, frozen=True):
    """Acts, newest first."""

    entries: tuple[AuditEntry, ...]
    next_cursor: str | None
