"""The address of a PostgreSQL database."""

from __future__ import annotations

from flowfabric.model.errors import Validation, ValidationKind


def bad_address() -> Validation:
    """What is said of an address that cannot be read, without any part of it: that may be the password."""
    return Validation(
        ValidationKind.INVALID_INPUT,
        "store URL: not valid; write postgresql://user:password@host:port/database, with the characters "
        ": / ? # [ ] @ % of a password percent-encoded",
    )
