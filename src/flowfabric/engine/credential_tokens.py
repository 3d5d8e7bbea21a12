"""How a credential is written: ``ff_<id>_<secret>``. Only the digest of the secret is ever stored."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import NamedTuple

from flowfabric.model.waitpoint_tokens import Token

_FORM = re.compile(r"ff_([0-9a-f]{16})_([0-9a-f]{64})")


class Minted(NamedTuple):
    """A new credential: its id, the text that is shown once, and what is stored."""

    credential_id: str
    token: Token
    digest: str


def mint() -> Minted:
    """A credential that nobody has had before."""
    identity, secret = secrets.token_hex(8), secrets.token_hex(32)
    return Minted(identity, Token(f"ff_{identity}_{secret}"), digest_of(secret))


def parse(text: str) -> tuple[str, str] | None:
    """Id and secret; ``None`` if the text cannot be a credential."""
    found = _FORM.fullmatch(text)
    return None if found is None else (found[1], found[2])


def digest_of(secret: str) -> str:
    """What is stored for a secret. It is random and long, so that one round is enough."""
    return hashlib.sha256(secret.encode()).hexdigest()


def is_its_secret(secret: str, digest: str) -> bool:
    """Whether a secret belongs to a digest, in a time that tells nothing."""
    return hmac.compare_digest(digest_of(secret), digest)
