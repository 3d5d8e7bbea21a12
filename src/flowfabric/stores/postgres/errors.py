"""Final refusals of a PostgreSQL server, and what to do about them: a repeated call would meet them again."""

from __future__ import annotations

from flowfabric.model.errors import Transport, TransportKind

_AUTH, _PROTOCOL = TransportKind.AUTH, TransportKind.PROTOCOL
_ACCOUNT = (
    "correct the user and the password of the store URL, and write the characters : / ? # [ ] @ % of a password "
    "percent-encoded"
)
#: By SQLSTATE.
REFUSALS: dict[str, tuple[TransportKind, str]] = {
    "28P01": (_AUTH, _ACCOUNT),
    "28000": (_AUTH, f"{_ACCOUNT}; if they are right, allow them in the server's pg_hba.conf"),
    "3D000": (_PROTOCOL, "create the database (createdb NAME), or correct its name in the store URL"),
    "42501": (
        _AUTH,
        (
            "give the account of the store URL the right (GRANT CREATE, USAGE ON SCHEMA public TO …; GRANT SELECT, "
            "INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO …), or let `flowfabric db migrate` run as the "
            "tables' owner"
        ),
    ),
}


def refusal(error: BaseException) -> Transport | None:
    """The error for what no repetition changes; ``None`` if the server may think otherwise later."""
    found = REFUSALS.get(getattr(error, "sqlstate", None) or "")
    if found is None:
        return None
    kind, advice = found
    return Transport("postgres", kind, f"{error}: {advice}")


def cannot_open(error: BaseException) -> Transport:
    """The error for a database that could not be opened."""
    return refusal(error) or Transport("postgres", TransportKind.TRANSPORT, f"cannot open the database: {error}")
