"""``Idempotency-Key``: a request that is repeated with its key gets the answer it got before, for a day."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any

from flowfabric.core.batch.notes import Receipt
from flowfabric.engine.operations.access import KEPT_MS
from flowfabric.engine.wire.codec import Shapes, result_of
from flowfabric.model.operations.access import RESULT
from flowfabric.server.http.problems import refused
from flowfabric.server.http.response import Answer, Streamed
from flowfabric.server.operations import Call

#: The header that names the key.
KEY = b"idempotency-key"
MAX_KEY_BYTES = 255
#: Answers beyond this are not remembered; repeating the request makes them again.
MAX_KEPT_BYTES = 1_048_576
REPLAYED = (b"idempotency-replayed", b"true")

Act = Callable[[Call], Awaitable[Answer | Streamed]]


async def once(call: Call, scope: MutableMapping[str, Any], data: bytes, act: Act) -> Answer | Streamed:
    """Act, unless it was done before under the same key."""
    text = call.headers.get(KEY)
    if text is None or call.route.method == "GET" or not call.route.kept:
        return await act(call)
    if not text or len(text) > MAX_KEY_BYTES or not text.isascii() or not text.decode().isprintable():
        raise refused(400, f"invalid Idempotency-Key: expected 1 to {MAX_KEY_BYTES} printable ASCII characters")
    owner, key = call.principal.name, text.decode()
    call.key = f"{owner}\x1f{key}"
    fingerprint = _fingerprint(call, scope, data)
    known = await call.engine.find_answer(owner, key)
    if known is not None and known.fingerprint != fingerprint:
        raise refused(422, "this Idempotency-Key was used for another request", kind="conflict", retryable=False)
    if known is not None and known.status != RESULT:
        return Answer(known.status, known.body or b"", known.media.encode(), (REPLAYED,))
    if call.key in call.server.keys_at_work:
        raise refused(409, "a request with this Idempotency-Key is in progress", kind="contention", retryable=True)
    call.server.keys_at_work.add(call.key)
    call.receipt = partial(_receipt, call.server.performer.shapes, owner, key, fingerprint)
    try:
        answer = await act(call)
        if isinstance(answer, Answer) and not call.unfinished and len(answer.body) <= MAX_KEPT_BYTES:
            # Not through the call's engine: what is noted there belongs to what the request does.
            await call.server.engine.keep_answer(
                owner=owner,
                idempotency_key=key,
                fingerprint=fingerprint,
                status=answer.status,
                media=answer.media.decode(),
                body=answer.body,
            )
        return answer
    finally:
        call.server.keys_at_work.discard(call.key)


def _receipt(shapes: Shapes, owner: str, key: str, fingerprint: str, operation: str, part: str = "") -> Receipt:
    """The receipt for an operation of the engine, or for one of several that a request asks for."""
    codec = shapes.codec(result_of(operation))
    own = f"{key}\x1f{part}" if part else key
    return Receipt(owner, own, fingerprint, KEPT_MS, lambda result: shapes.dump(codec.write(result)), codec.read)


def _fingerprint(call: Call, scope: MutableMapping[str, Any], data: bytes) -> str:
    digest = hashlib.sha256()
    query: bytes = scope.get("query_string", b"")
    for part in (call.route.name.encode(), *(each.encode() for each in call.path.values()), query, data):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()
