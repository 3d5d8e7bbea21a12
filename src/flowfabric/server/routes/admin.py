"""Routes for administrators only."""

from __future__ import annotations

import asyncio
from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from flowfabric.model.errors import EngineError, ResourceExhausted, Validation, ValidationKind
from flowfabric.model.limits import MAX_PAGE
from flowfabric.model.operations.access import AuditPage
from flowfabric.model.operations.suspension import VerifyingKid
from flowfabric.model.reads.examine import Examination
from flowfabric.model.secrets import Discreet
from flowfabric.server.access import audit
from flowfabric.server.config import SECRET_DIGITS
from flowfabric.server.http.problems import refused, told
from flowfabric.server.http.response import Answer, plain
from flowfabric.server.operations import Call, Route

#: How long a rotation may take.
ROTATION_S = 120


class RotateBody(Discreet, Struct, kw_only=True):
    """The key that signs from now on."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"new_secret_hex"})

    new_kid: str
    new_secret_hex: str


class Rotated(Struct, frozen=True):
    """How many partitions use the new key, and which do not."""

    rotated: int
    failed: tuple[int, ...]
    new_kid: str


async def rotate(call: Call) -> Answer:
    """Sign with a new key; the previous one is accepted until its grace is over."""
    body: RotateBody = call.body
    try:
        with call.server.rotations.one():
            _check_length(body.new_secret_hex)
            async with asyncio.timeout(ROTATION_S):
                found = await call.engine.rotate_waitpoint_hmac_secret_all(
                    new_kid=body.new_kid, new_secret_hex=body.new_secret_hex
                )
    except ResourceExhausted as error:
        raise refused(429, told(error)[1]["error"], retryable=True) from None
    except TimeoutError:
        audit.record("waitpoint_hmac_rotation_timeout_http_504", call.principal.name, kid=body.new_kid)
        raise refused(504, f"the rotation took longer than {ROTATION_S} s; repeating it is safe") from None
    except EngineError as error:
        audit.record("waitpoint_hmac_rotation_failed", call.principal.name, kid=body.new_kid, code=error.code)
        raise
    audit.record("waitpoint_hmac_rotation_complete", call.principal.name, kid=body.new_kid)
    return plain(Rotated(len(found), (), body.new_kid))


def _check_length(secret: str) -> None:
    if len(secret) < SECRET_DIGITS:
        raise Validation(
            ValidationKind.INVALID_SECRET_HEX,
            f"new_secret_hex: expected at least {SECRET_DIGITS} hex digits, such as `openssl rand -hex 32` prints",
        )


class AuditQuery(Struct, kw_only=True):
    """Which page."""

    after: str | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100


async def list_audit(call: Call) -> Answer:
    """Who has done what."""
    return plain(await call.engine.list_audit(call.query.after, call.query.limit))


class ExamineQuery(Struct, kw_only=True):
    """Which stretch of the store."""

    cursor: str | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 500


async def examine(call: Call) -> Answer:
    """What does not hold of the stored rows."""
    return plain(await call.engine.examine(call.query.cursor, call.query.limit))


class Keys(Struct, frozen=True):
    """Names of the keys that sign and verify; secrets are never told."""

    current_kid: str | None
    verifying: tuple[VerifyingKid, ...]


async def keys(call: Call) -> Answer:
    """Which keys there are."""
    found = await call.engine.list_waitpoint_hmac_kids()
    return plain(Keys(found.current_kid, found.verifying))


ROUTES = (
    Route(
        name="examine",
        method="GET",
        path="/v1/admin/examination",
        summary="Check the next part of the store for broken invariants",
        costly=True,
        handler=examine,
        query=ExamineQuery,
        answers={200: Examination},
    ),
    Route(
        name="list_waitpoint_keys",
        method="GET",
        path="/v1/admin/waitpoint-keys",
        summary="Names of the keys that sign and verify waitpoint tokens",
        handler=keys,
        answers={200: Keys},
    ),
    Route(
        name="list_audit",
        method="GET",
        path="/v1/admin/audit",
        summary="Actions of operators, newest first",
        handler=list_audit,
        query=AuditQuery,
        answers={200: AuditPage},
    ),
    Route(
        name="rotate_waitpoint_secret",
        method="POST",
        path="/v1/admin/rotate-waitpoint-secret",
        summary="Sign waitpoint tokens with a new key",
        handler=rotate,
        body=RotateBody,
        answers={200: Rotated},
    ),
)
