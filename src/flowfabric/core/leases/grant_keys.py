"""Verifying grant keys. The signature is judged before anything that is stored, so that a forged key tells nothing."""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import NamedTuple

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.core.suspension.signing import verifies
from flowfabric.model.decisions import Get
from flowfabric.model.ids import canonical_uuid
from flowfabric.model.operations.executions import GrantCheck
from flowfabric.model.records.executions import Grant, SigningKey

_TAG = re.compile(r"\{fp:(\d{1,5})\}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_TIME = re.compile(r"\d{1,19}", re.ASCII)


class GrantKey(NamedTuple):
    """The parts of a grant key."""

    reclaim: bool
    tag: str
    partition: int
    uuid: str
    expires_at_ms: int
    kid: str
    digest: str


def parse(text: str, store: str) -> GrantKey | None:
    """The parts of a key that this store may have given out. Read from the right: the tag contains a colon."""
    pieces = text.rsplit(":", 4)
    if len(pieces) != 5:
        return None
    front, uuid, expires, kid, digest = pieces
    plain, reclaim = f"{store}:", f"{store}:reclaim:"
    is_reclaim = front.startswith(reclaim)
    tag = front.removeprefix(reclaim if is_reclaim else plain)
    match = _TAG.fullmatch(tag)
    well_formed = (
        front.startswith(plain)
        and match is not None
        and canonical_uuid(uuid) == uuid
        and _TIME.fullmatch(expires) is not None
        and bool(kid)
        and _DIGEST.fullmatch(digest) is not None
    )
    if not well_formed or match is None:
        return None
    return GrantKey(is_reclaim, tag, int(match[1]), uuid, int(expires), kid, digest)


def digest(key: SigningKey, tag: str, uuid: str, worker: tuple[str, str], expires_at_ms: int, *, reclaim: bool) -> str:
    """The signature of a grant for one worker instance."""
    message = f"{key.kid}:{tag}|{uuid}|{worker[0]}|{worker[1]}|{expires_at_ms}" + "|reclaim" * reclaim
    return hmac.new(key.secret, message.encode(), hashlib.sha256).hexdigest()


def verify(grant_key: str, worker: tuple[str, str], view: View, context: Context) -> GrantCheck:
    """What a key is worth in the hands of a worker (its id and its instance's)."""
    parts = parse(grant_key, context.store)
    if parts is None:
        return GrantCheck.MALFORMED
    key = view.get(SigningKey, parts.kid)
    if key is None or not verifies(key, context.now):
        return GrantCheck.UNKNOWN_KID
    signed = digest(key, parts.tag, parts.uuid, worker, parts.expires_at_ms, reclaim=parts.reclaim)
    if not hmac.compare_digest(signed, parts.digest):
        return GrantCheck.SIGNATURE_MISMATCH
    if parts.expires_at_ms <= context.now:
        return GrantCheck.EXPIRED
    stored = (parts.partition, hashlib.sha256(grant_key.encode()).digest())
    view.require((Get(Grant, stored),))
    return GrantCheck.UNKNOWN_GRANT if view.get(Grant, stored) is None else GrantCheck.VALID
