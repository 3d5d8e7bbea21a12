"""What the doors of the engine remember: answers that are given again, and acts that people account for."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from flowfabric.model.discreet import Discreet


class KeptAnswer(Discreet, Struct, gc=False):
    """The answer to a request that carried a key, for whoever repeats it (``ff_kept_answer``)."""

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
    """Who has done what (``ff_audit``). Ids ascend with time."""

    audit_id: str
    at_ms: int
    who: str
    act: str
    #: What it was done to, as a JSON object.
    subject: str
    status: int

    @property
    def key(self) -> str:
        return self.audit_id


class AuditPage(Struct, frozen=True):
    """Acts, newest first."""

    entries: tuple[AuditEntry, ...]
    next_cursor: str | None
