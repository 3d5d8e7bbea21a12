"""Waitpoint tokens as texts: how they are written, read, and shown without giving them away."""

from __future__ import annotations

import re
from typing import ClassVar, Final, NamedTuple, Self

from msgspec import Struct

from flowfabric.model.secrets import Discreet

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_FINGERPRINT: Final = 16


class Token(str):
    """A secret text that does not print itself: as a text it is its redacted form. ``reveal()`` gives the secret.

    It is equal to the secret and to no other text, so that it can be compared and looked up.
    """

    __slots__ = ("_secret",)
    _secret: str

    def __new__(cls, secret: str) -> Self:
        plain = revealed(secret)
        token = super().__new__(cls, redacted(plain) if plain else "")
        token._secret = plain
        return token

    def reveal(self) -> str:
        """The secret itself, for those allowed to have it."""
        return self._secret

    def __repr__(self) -> str:
        return str(self)

    def __eq__(self, other: object) -> bool:
        return self._secret == revealed(other) if isinstance(other, str) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return self._secret != revealed(other) if isinstance(other, str) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._secret)

    def __reduce__(self) -> tuple[type[Self], tuple[str]]:
        return type(self), (self._secret,)


def revealed(text: str) -> str:
    """The secret of a token, or a text as it is."""
    return text._secret if isinstance(text, Token) else text


class Parts(NamedTuple):
    """A well-formed token, taken apart."""

    kid: str
    digest: str


def redacted(token: str) -> str:
    """How a token may be shown: ``<kid>:<REDACTED:len=N>``."""
    kid, colon, digest = revealed(token).partition(":")
    return f"{kid}:<REDACTED:len={len(digest)}>" if colon else f"<REDACTED:len={len(kid)}>"


def parse_token(text: str) -> Parts | None:
    """Key id and digest, split at the first colon; ``None`` if the text cannot be a token."""
    kid, _, digest = revealed(text).partition(":")
    return Parts(kid, digest) if kid and _DIGEST.fullmatch(digest) else None


def fingerprint(token: str) -> str:
    """What tells tokens apart without being one: the first digits of the digest."""
    return revealed(token).partition(":")[2][:_FINGERPRINT]


class DerivedKeys(Discreet, Struct, frozen=True):
    """Keys for one purpose by key id; ``current`` is the one that signs, the others verify."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"keys"})

    current: str
    keys: dict[str, bytes]
