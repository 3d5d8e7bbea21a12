"""Which kinds of stores there are: how their addresses begin, and the packages that only some of them need."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from flowfabric.model.errors import Transport, TransportKind, Validation, ValidationKind

#: How the address of each kind may begin.
SCHEMES = {
    "memory": ("memory:",),
    "sqlite": ("sqlite:", "file:"),
    "postgres": ("postgresql:", "postgres:"),
    "valkey": ("valkey:", "valkeys:"),
}
#: The package that a kind is written with. The extra that brings it has the name of the kind.
PACKAGES = {"postgres": "asyncpg", "valkey": "libvalkey"}


def kind_of(url: str) -> str:
    """``memory``, ``sqlite``, ``postgres`` or ``valkey``."""
    if not url:
        raise _refused("expected sqlite:///file, postgresql://host/database, valkey://host or memory://")
    found = next((kind for kind, schemes in SCHEMES.items() if url.startswith(schemes)), None)
    if found is None:
        raise _refused(f"{url.partition(':')[0]!r} is not a store; use sqlite:, postgresql:, valkey: or memory:")
    return found


def _refused(sentence: str) -> Validation:
    return Validation(ValidationKind.INVALID_INPUT, f"store URL: {sentence}")


@contextlib.contextmanager
def needed(kind: str) -> Iterator[None]:
    """Around the import of a store: if its package is missing, say how to get it. Anything else missing is a bug."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = PACKAGES[kind]
        if error.name != package:
            raise
        raise Transport(
            kind,
            TransportKind.PROTOCOL,
            f"the package {package} is not installed; install it with: pip install 'flowfabric[{kind}]'",
        ) from None
