"""Keys of budgets and quotas: their id, and the namespace that owns them.

Two namespaces may use the same id for different things, so what belongs to a namespace is stored under the id and a
digest of the namespace: ``<uuid>@<digest>``. What belongs to the operator is stored under its id alone. Names have the
same two forms: a name with a digest means only what its namespace owns; a plain one may mean the operator's, too.
"""

from __future__ import annotations

import base64
import hashlib

import msgspec

from flowfabric.model.ids import canonical_uuid
from flowfabric.model.remembering import remembered_by_text

_UUID_LENGTH = 36
#: Short, because names stand in every row and index; whose a thing is, is also compared by the namespace itself.
_DIGEST_BYTES, _DIGEST_LENGTH = 10, 16
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz234567")


@remembered_by_text(8_192)
def owned_name(identity: str, namespace: str) -> str:
    """The name under which a namespace owns something."""
    digest = hashlib.blake2b(namespace.encode(), digest_size=_DIGEST_BYTES).digest()
    return f"{shown_id(identity)}@{base64.b32encode(digest).decode().lower()}"


def stored_name(identity: str, namespace: str | None) -> str:
    """The name under which a namespace, or the operator, owns something."""
    return identity if namespace is None else owned_name(identity, namespace)


def shown_id(name: str) -> str:
    """The id in a name, as people know it."""
    return name[:_UUID_LENGTH]


def is_owned(name: str) -> bool:
    """Whether a name means only what its namespace owns."""
    return len(name) > _UUID_LENGTH


def is_name(text: str) -> bool:
    """Whether a text names anything at all; stored texts may have been written by hand."""
    identity = shown_id(text)
    if canonical_uuid(identity) != identity:
        return False
    mark, digest = text[_UUID_LENGTH : _UUID_LENGTH + 1], text[_UUID_LENGTH + 1 :]
    return not mark or (mark == "@" and len(digest) == _DIGEST_LENGTH and set(digest) <= _LETTERS)


@remembered_by_text(8_192)
def places(name: str, namespace: str | None) -> tuple[str, ...]:
    """Where that which a name means in a namespace may be stored, the likeliest place first.

    Things of a namespace may also lie under their plain id: those that were there before ids had owners.
    """
    if namespace is None:
        return (name,)
    plain = shown_id(name)
    own = owned_name(plain, namespace)
    if name == plain:
        return (plain, own)
    return (own, plain) if name == own else ()


def is_meant(owner: str | None, name: str, namespace: str | None) -> bool:
    """Whether a name that is used in a namespace means something of this owner; the operator may name anything."""
    if namespace is None or owner == namespace:
        return True
    return owner is None and not is_owned(name)


def shown_ids(names: str | None) -> tuple[str, ...]:
    """The ids in a list of names."""
    return tuple(dict.fromkeys(shown_id(each) for each in (names or "").split(",") if each))


def shown_policy(policy: str | None) -> str | None:
    """A stored policy as it was given: with ids instead of names."""
    if policy is None or "@" not in policy:
        return policy
    try:
        document = msgspec.json.decode(policy)
    except (msgspec.DecodeError, RecursionError):
        return policy
    if isinstance(document, dict):
        if isinstance(names := document.get("budget_ids"), list):
            document["budget_ids"] = [shown_id(each) if isinstance(each, str) else each for each in names]
        if isinstance(name := document.get("quota_policy_id"), str):
            document["quota_policy_id"] = shown_id(name)
    return msgspec.json.encode(document).decode()
