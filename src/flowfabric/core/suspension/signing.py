"""Signing keys: the current one signs waitpoint tokens and grants, former ones verify until their grace is over.

A token is ``<kid>:<HMAC-SHA256>`` over the execution and the waitpoint, so it fits exactly one waitpoint. A bad
one reveals nothing: a waitpoint that does not exist answers like one whose token is wrong.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import ClassVar

from msgspec import Struct

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context, saturate
from flowfabric.model.decisions import Act, Decision, Drop, Get, Need, Select, change, insert
from flowfabric.model.errors import Conflict, ConflictKind, Validation, ValidationKind
from flowfabric.model.operations.suspension import AlreadySeeded, RotateSecret, Seeded
from flowfabric.model.records.executions import SigningKey, Waitpoint
from flowfabric.model.secrets import Discreet
from flowfabric.model.waitpoint_tokens import Token, parse_token

#: The id of the key an embedded engine makes for itself the first time one is needed.
FIRST_KID = "k1"
#: Random bytes of a first key.
SECRET_BYTES = 32
#: What a rule that signs will certainly need.
CURRENT_KEY = Select(SigningKey, ("active",), (True,))
_FORMER_KEYS = Select(SigningKey, ("active",), (False,))


def current_key(view: View) -> SigningKey | None:
    """The key that signs."""
    keys = view.select(SigningKey, active=True)
    return max(keys, key=lambda key: (key.rotated_at_ms, key.kid), default=None)


def verifies(key: SigningKey, now: int) -> bool:
    """Whether what this key has signed is good: it signs still, or its grace is not over."""
    return key.active or key.expires_at_ms is None or key.expires_at_ms > now


def signing_key(view: View, entropy: bytes, now: int) -> tuple[SigningKey, tuple[Act, ...]]:
    """The current key; a store without any gets its first one here, made of random bytes."""
    key = current_key(view)
    if key is not None:
        return key, ()
    if view.select(SigningKey, active=False):
        raise Validation(ValidationKind.INVALID_INPUT, "hmac_secret_not_initialized")
    first = SigningKey(FIRST_KID, entropy[:SECRET_BYTES], now, True)
    return first, (insert(first),)


# -- tokens ----------------------------------------------------------------------------------------------------------


def minted(key: SigningKey, execution_id: str, waitpoint_id: str) -> Token:
    """The token of one waitpoint."""
    return Token(f"{key.kid}:{_digest(key, execution_id, waitpoint_id)}")


def _digest(key: SigningKey, execution_id: str, waitpoint_id: str) -> str:
    message = f"{key.kid}:{execution_id}:{waitpoint_id}"
    return hmac.new(key.secret, message.encode(), hashlib.sha256).hexdigest()


def authenticated(
    view: View, token: str, execution_id: str, waitpoint: Waitpoint | None, wanted: str, now: int
) -> None:
    """Refuse a token that does not fit the waitpoint ``wanted``, in a way that tells nothing about the waitpoint.

    Whether the key is known and has expired is judged first, because it has nothing to do with the waitpoint.
    """
    if not token:
        raise Validation(ValidationKind.INVALID_TOKEN, "missing_token")
    parts = parse_token(token)
    key = view.get(SigningKey, parts.kid) if parts is not None else None
    if parts is None or key is None:
        raise _refused()
    if not verifies(key, now):
        raise Validation(ValidationKind.INVALID_TOKEN, "token_expired")
    genuine = hmac.compare_digest(parts.digest, _digest(key, execution_id, wanted))
    if waitpoint is None or not genuine:
        raise _refused()


def _refused() -> Validation:
    return Validation(ValidationKind.INVALID_TOKEN, "invalid_token")


# -- the key store ---------------------------------------------------------------------------------------------------


class SeedSecret(Discreet, Struct, gc=False):
    """Give an empty store its first key."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"secret"})

    kid: str
    secret: bytes

    def needs(self) -> tuple[Need, ...]:
        return (Get(SigningKey, self.kid), CURRENT_KEY)


def seed_secret(command: SeedSecret, view: View, context: Context) -> Decision:
    """Never overwrites: a key that is there stays, and a second one has to be rotated in."""
    stored = view.get(SigningKey, command.kid)
    if stored is not None:
        same = hmac.compare_digest(stored.secret, command.secret)
        return Decision(AlreadySeeded(command.kid, same))
    current = current_key(view)
    if current is not None:
        raise Validation(
            ValidationKind.INVALID_INPUT, f"key {current.kid!r} already signs; use rotate_waitpoint_hmac_secret_all"
        )
    return Decision(Seeded(command.kid), (insert(SigningKey(command.kid, command.secret, context.now, True)),))


class RotateKey(Discreet, Struct, gc=False):
    """Let a new key sign, and the previous one verify for a while."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"secret"})

    kid: str
    secret: bytes
    grace_ms: int

    def needs(self) -> tuple[Need, ...]:
        return (Get(SigningKey, self.kid), CURRENT_KEY, _FORMER_KEYS)


def rotate_key(command: RotateKey, view: View, context: Context) -> Decision:
    """Each former key keeps its own expiry; those whose time is over are gone."""
    stored = view.get(SigningKey, command.kid)
    if stored is not None:
        if not hmac.compare_digest(stored.secret, command.secret):
            raise Conflict(ConflictKind.ROTATION_CONFLICT, kid=command.kid)
        return Decision(RotateSecret.Noop(command.kid))
    current = current_key(view)
    until = saturate(context.now + command.grace_ms)
    acts: list[Act] = [change(key, active=False, expires_at_ms=until) for key in view.select(SigningKey, active=True)]
    over = [
        key
        for key in view.select(SigningKey, active=False)
        if key.expires_at_ms is not None and key.expires_at_ms <= context.now
    ]
    acts += [Drop(key) for key in over]
    # Two rotations within a millisecond still have an order.
    at = context.now if current is None else max(context.now, current.rotated_at_ms + 1)
    acts.append(insert(SigningKey(command.kid, command.secret, at, True)))
    answer = RotateSecret.Rotated(None if current is None else current.kid, command.kid, len(over))
    return Decision(answer, tuple(acts))
