"""Callers from outside: their credentials, answers that are given to them again, and an account of their acts."""

from __future__ import annotations

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context, saturate
from flowfabric.model.decisions import Decision, Get, Need, change, insert
from flowfabric.model.errors import NotFound, Validation, ValidationKind
from flowfabric.model.operations.access import (
    RESULT,
    AuditEntry,
    Credential,
    CredentialInfo,
    CredentialRevoked,
    KeptAnswer,
    Scope,
)
from flowfabric.model.operations.executions import AlreadySatisfied

# -- credentials of callers from outside: made, and taken away -------------------------------------------------------


class CreateCredential(Struct, gc=False):
    """A new credential; when it was made is filled in here."""

    wanted: Credential

    def needs(self) -> tuple[Need, ...]:
        return (Get(Credential, self.wanted.credential_id),)


def create_credential(command: CreateCredential, view: View, context: Context) -> Decision:
    """One row."""
    credential = replace(command.wanted, created_at_ms=context.now)
    return Decision(credential, (insert(credential),))


class RevokeCredential(Struct, gc=False):
    """A credential is not to be good for anything any more."""

    credential_id: str

    def needs(self) -> tuple[Need, ...]:
        return (Get(Credential, self.credential_id),)


def revoke_credential(command: RevokeCredential, view: View, context: Context) -> Decision:
    """The row stays, so that people can see who it was."""
    found = view.get(Credential, command.credential_id)
    if found is None:
        raise NotFound("credential", command.credential_id)
    if found.revoked_at_ms is not None:
        return Decision(AlreadySatisfied("revoked"))
    was = shown(found)
    answer = CredentialRevoked(was.credential_id, was.name, was.scopes, was.namespaces)
    return Decision(answer, (change(found, revoked_at_ms=context.now),))


_names = msgspec.json.Decoder(list[str])


def shown(stored: Credential) -> CredentialInfo:
    """A credential without its secret."""
    try:
        scopes = tuple(map(Scope, stored.scopes.split(",")))
        own = None if stored.namespaces is None else tuple(_names.decode(stored.namespaces))
    except (ValueError, msgspec.DecodeError, RecursionError):
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


# -- keeping answers for those who repeat their request, and an account of acts --------------------------------------


class KeepAnswer(Struct, gc=False):
    """An answer that is to be given again for ``kept_ms``."""

    wanted: KeptAnswer
    kept_ms: int

    def needs(self) -> tuple[Need, ...]:
        return (Get(KeptAnswer, self.wanted.key),)


def keep_answer(command: KeepAnswer, view: View, context: Context) -> Decision:
    """The first answer stays until its time is over; it takes the place of the result it was made of."""
    wanted = command.wanted
    wanted.expires_at_ms = saturate(context.now + command.kept_ms)
    stored = view.get(KeptAnswer, wanted.key)
    if stored is None:
        return Decision(wanted, (insert(wanted),))
    is_result = stored.status == RESULT and stored.fingerprint == wanted.fingerprint
    if stored.expires_at_ms > context.now and not is_result:
        return Decision(stored)
    fields = {name: getattr(wanted, name) for name in ("fingerprint", "status", "media", "body", "expires_at_ms")}
    return Decision(wanted, (change(stored, **fields),))


class RecordAct(Struct, gc=False):
    """Somebody has done something."""

    who: str
    act: str
    subject: str
    status: int
    entropy: bytes

    def needs(self) -> tuple[Need, ...]:
        return ()


def record_act(command: RecordAct, view: View, context: Context) -> Decision:
    """One row."""
    entry = AuditEntry(
        f"{context.now:015d}-{command.entropy.hex()}",
        context.now,
        command.who,
        command.act,
        command.subject,
        command.status,
    )
    return Decision(entry, (insert(entry),))
