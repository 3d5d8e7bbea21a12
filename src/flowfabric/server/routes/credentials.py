"""Credentials: make, list, revoke."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from flowfabric.model.credentials import CredentialCreated, CredentialPage, CredentialRevoked
from flowfabric.model.limits import MAX_PAGE
from flowfabric.model.results import AlreadySatisfied
from flowfabric.server.access import Scope
from flowfabric.server.answers import NO_STORE, Answer, plain, tagged
from flowfabric.server.operations import Call, Operation, Variants
from flowfabric.server.requests import Millis, arguments


class CreateBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Who it is for, what for, and in which namespaces; in all of them, if they are left out."""

    name: str
    scopes: list[Scope]
    namespaces: list[str] | None = None
    expires_at: Millis | None = None


class PageQuery(Struct, kw_only=True):
    """Which page."""

    after: str | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100


async def create(call: Call) -> Answer:
    """Make one. Its token is shown this once."""
    made = await call.engine.create_credential(**arguments(call.body))
    call.server.gate.forget()
    return plain(made, 201, NO_STORE)


async def list_all(call: Call) -> Answer:
    """Who may call."""
    return plain(await call.engine.list_credentials(call.query.after, call.query.limit))


async def revoke(call: Call) -> Answer:
    """Take one away."""
    revoked = await call.engine.revoke_credential(call.path["credential_id"])
    call.server.gate.forget()
    return tagged(revoked)


OPERATIONS = (
    Operation(
        name="create_credential",
        method="POST",
        path="/v1/admin/credentials",
        scope=Scope.ADMIN,
        summary="Let somebody call; the token is shown this once",
        handler=create,
        body=CreateBody,
        everywhere=True,
        answers={201: CredentialCreated},
        kept=False,
        audited=True,
    ),
    Operation(
        name="list_credentials",
        method="GET",
        path="/v1/admin/credentials",
        scope=Scope.ADMIN,
        summary="Credentials without their secrets",
        handler=list_all,
        query=PageQuery,
        everywhere=True,
        answers={200: CredentialPage},
    ),
    Operation(
        name="revoke_credential",
        method="DELETE",
        path="/v1/admin/credentials/{credential_id}",
        scope=Scope.ADMIN,
        summary="Take a credential away",
        handler=revoke,
        everywhere=True,
        answers={200: Variants(CredentialRevoked, AlreadySatisfied)},
        audited=True,
    ),
)
