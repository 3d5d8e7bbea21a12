"""Waitpoint tokens as texts: how they are written, read, and shown without giving them away."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from msgspec import Struct

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_FINGERPRINT: Final = 16


class Token(str):
    """A waitpoint token: the text is the credential, its ``repr`` is not."""

    __slots__ = ()

    def __repr__(self) -> str:
        return redacted(self)


class Parts(NamedTuple):
    """A well-formed token, taken apart."""

    kid: str
    digest: str


def redacted(token: str) -> str:
    """How a token may be shown: ``<kid>:<REDACTED:len=N>``."""
    kid, colon, digest = token.partition(":")
    return f"{kid}:<REDACTED:len={len(digest)}>" if colon else f"<REDACTED:len={len(token)}>"


def parse_token(text: str) -> Parts | None:
    """Key id and digest, split at the first colon; ``None`` if the text cannot be a token."""
    kid, _, digest = text.partition(":")
    return Parts(kid, digest) if kid and _DIGEST.fullmatch(digest) else None


def fingerprint(token: str) -> str:
    """What tells tokens apart without being one: the first digits of the digest."""
    return token.partition(":")[2][:_FINGERPRINT]


class DerivedKeys(Struct, frozen=True):
    """Keys for one purpose by key id; ``current`` is the one that signs, the others verify."""

    current: str
    keys: dict[str, bytes]

    def __repr__(self) -> str:
        return f"<keys {', '.join(self.keys)}>"
