"""Credentials: make, list, revoke."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from flowfabric.model.limits import MAX_PAGE
from flowfabric.model.operations.access import CredentialInfo, CredentialPage, CredentialRevoked
from flowfabric.model.operations.executions import AlreadySatisfied
from flowfabric.model.secrets import Discreet
from flowfabric.server.access.principals import Scope
from flowfabric.server.http.request import Millis, arguments
from flowfabric.server.http.response import Answer, plain, tagged
from flowfabric.server.operations import Call, Route, Variants


class CreateBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Who it is for, what for, and in which namespaces; in all of them, if they are left out."""

    name: str
    scopes: list[Scope]
    namespaces: list[str] | None = None
    expires_at: Millis | None = None


class CredentialCreated(Discreet, Struct, frozen=True):
    """The credential is stored. Its token is shown this once."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"token"})

    token: str
    credential: CredentialInfo


class PageQuery(Struct, kw_only=True):
    """Which page."""

    after: str | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100


async def create(call: Call) -> Answer:
    """Make one. Its token is shown this once."""
    made = await call.engine.create_credential(**arguments(call.body))
    return plain(CredentialCreated(made.token.reveal(), made.credential), 201)


async def list_all(call: Call) -> Answer:
    """Who may call."""
    return plain(await call.engine.list_credentials(call.query.after, call.query.limit))


async def revoke(call: Call) -> Answer:
    """Take one away."""
    return tagged(await call.engine.revoke_credential(call.path["credential_id"]))


ROUTES = (
    Route(
        name="create_credential",
        method="POST",
        path="/v1/admin/credentials",
        summary="Create a credential; its token is shown only once",
        handler=create,
        body=CreateBody,
        answers={201: CredentialCreated},
        kept=False,
    ),
    Route(
        name="list_credentials",
        method="GET",
        path="/v1/admin/credentials",
        summary="Credentials without their secrets",
        handler=list_all,
        query=PageQuery,
        answers={200: CredentialPage},
    ),
    Route(
        name="revoke_credential",
        method="DELETE",
        path="/v1/admin/credentials/{credential_id}",
        summary="Revoke a credential",
        handler=revoke,
        answers={200: Variants(CredentialRevoked, AlreadySatisfied)},
    ),
)
