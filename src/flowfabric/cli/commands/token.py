"""``flowfabric token``: credentials for those who call a server."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from cyclopts import App as Commands, Parameter
from rich.markup import escape

from flowfabric.cli.application import OK, OPERATING, application, command, examples
from flowfabric.cli.filters import milliseconds
from flowfabric.cli.store_option import NOWHERE, Where, on_store
from flowfabric.cli.terminal import age, err, moment, say, say_json, show_table, told
from flowfabric.model.operations.access import CredentialInfo, Scope
from flowfabric.model.operations.executions import AlreadySatisfied
from flowfabric.sdk.app import App
from flowfabric.sdk.paging import pages

token = Commands(
    name="token",
    help="Credentials for the callers of a server: create, list, revoke.",
    help_epilogue=examples("flowfabric token create ci --scope submit --scope read", "flowfabric token list"),
    group=OPERATING,
    group_commands="Commands",
)
application.command(token)

_SCOPES = ", ".join(each.value for each in Scope)


@command(
    token,
    shows=(
        "flowfabric token create ci --scope submit --scope read --for acme --expires 90d",
        "export FF_API_TOKEN=$(flowfabric token create me --scope admin)",
    ),
)
def create(
    name: Annotated[str, Parameter(help="The owner's name, for lists and the audit log.")],
    /,
    *,
    scope: Annotated[
        tuple[str, ...],
        Parameter(name=("--scope", "-s"), help=f"May be repeated: {_SCOPES}.", negative=(), show_default=False),
    ],
    for_namespace: Annotated[
        tuple[str, ...],
        Parameter(name="--for", help="Limit it to this namespace; may be repeated.", negative=(), show_default=False),
    ] = (),
    expires: Annotated[str | None, Parameter(help="Valid for this long: 12h, 90d.")] = None,
    where: Where = NOWHERE,
) -> int:
    """Create a credential and print its token, which is shown only once."""
    lasts = None if expires is None else milliseconds(expires, "--expires")

    async def make(app: App) -> Any:
        until = None if lasts is None else await app.engine.server_time_ms() + lasts
        return await app.engine.create_credential(
            name=name, scopes=scope, namespaces=for_namespace or None, expires_at=until
        )

    made = on_store(where, make, create=True)
    if where.json:
        say_json({"token": made.token.reveal(), "credential": _document(made.credential)})
        return OK
    say(escape(made.token.reveal()))
    err().print(f"[dim]{escape(made.credential.credential_id)}: save the token, it is not shown again[/dim]")
    return OK


@command(token, "list", shows=("flowfabric token list", "flowfabric token list --json"))
def list_tokens(*, where: Where = NOWHERE) -> int:
    """List credentials, including revoked ones, without their secrets."""

    async def read(app: App) -> list[CredentialInfo]:
        listing = pages(lambda cursor: app.engine.list_credentials(cursor, 500))
        return [each async for page in listing for each in page.credentials]

    found = on_store(where, read)
    if where.json:
        say_json([_document(each) for each in found])
        return OK
    show_table(
        ("id", "name", "scopes", "namespaces", "created", "state"),
        (
            (
                escape(each.credential_id),
                escape(each.name),
                ", ".join(each.scopes),
                "all" if each.namespaces is None else escape(", ".join(each.namespaces)),
                f"{age(each.created_at_ms)} ago",
                _state(each),
            )
            for each in found
        ),
        "no credentials: create one with `flowfabric token create NAME --scope read`",
        keep="id",
    )
    return OK


@command(token, shows=("flowfabric token revoke 4f1c…",))
def revoke(
    credential: Annotated[str, Parameter(help="The credential's id, as `token list` shows it.")],
    /,
    *,
    where: Where = NOWHERE,
) -> int:
    """Revoke a credential: every server refuses it within a second and ends its open requests."""
    answer = on_store(where, lambda app: app.engine.revoke_credential(credential))
    again = isinstance(answer, AlreadySatisfied)
    sentence = f"{escape(credential)}: " + ("it was revoked already" if again else "revoked")
    return told(sentence, {"credential_id": credential, "revoked": True, "already": again}, where.json)


def _document(each: CredentialInfo) -> Any:
    return msgspec.to_builtins(each, enc_hook=str)


def _state(each: CredentialInfo) -> str:
    if each.revoked_at_ms is not None:
        return f"[yellow]revoked {moment(each.revoked_at_ms)}[/yellow]"
    return "good" if each.expires_at_ms is None else f"valid until {moment(each.expires_at_ms)}"
