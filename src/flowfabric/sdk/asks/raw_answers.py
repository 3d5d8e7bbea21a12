"""Signals sent straight to a question's waitpoint: the question takes them for answers, so they are checked as such."""

from __future__ import annotations

import hmac
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flowfabric.model.errors import EngineError, NotFound, Validation
from flowfabric.model.ids import ExecutionId, canonical_uuid
from flowfabric.model.waitpoint_tokens import revealed
from flowfabric.sdk.asks.answer import APPROVE, DECLINE, ONCE, first_answer, repeated
from flowfabric.sdk.asks.ask import ASK_KIND, checked
from flowfabric.sdk.asks.questions import read_answer, read_question
from flowfabric.sdk.errors import BadAnswer

if TYPE_CHECKING:
    from flowfabric.engine import Engine


async def check_signal(
    engine: Engine,
    *,
    execution_id: ExecutionId | str,
    waitpoint_id: str,
    waitpoint_token: str,
    signal_name: str,
    payload: bytes | None = None,
    idempotency_key: str | None = None,
) -> Mapping[str, Any]:
    """Refuse a signal that would be taken for an answer and does not fit, or is another one than its approver gave.
    A caller without the token is told nothing here and costs nothing but a look at it: the engine refuses the
    signal anyway. A signal that cannot be an answer costs no read.

    The result is what to deliver it with: an approver's answers share one idempotency key, so that of two that arrive
    at once the engine takes the first."""
    if signal_name not in (APPROVE, DECLINE) or not _may_be_a_question(waitpoint_id):
        return {}
    try:
        identity = ExecutionId.parse(str(execution_id))
        if not await holds_token(engine, identity, waitpoint_id, waitpoint_token, closed=True):
            return {}
        context = await engine.read_execution_context(identity)
        first = await first_answer(engine, str(identity), waitpoint_id)
        is_open = await open_token(engine, identity, waitpoint_id) is not None
    except EngineError:
        return {}  # the engine says what is wrong with it
    if context.execution_kind != ASK_KIND:
        return {}
    if first is not None:
        repeated(first, payload)
        return ONCE if idempotency_key else {}
    if not is_open:
        return {}
    question = read_question(context.input_payload)
    _, said = checked(question, read_answer(payload))
    if said != signal_name:
        raise BadAnswer(
            f"ask {question.question!r}: signal_name does not match: the answer says {said!r}", ask=question.question
        )
    return ONCE


def _may_be_a_question(waitpoint_id: str) -> bool:
    """Waitpoints of questions are made from what is asked, as ``waitpoint_of`` does it."""
    text = canonical_uuid(waitpoint_id)
    return text is not None and uuid.UUID(text).version == 5


async def open_token(engine: Engine, identity: ExecutionId, waitpoint: str, *, closed: bool = False) -> str | None:
    """The token of an execution's waitpoint that still takes signals; with ``closed`` also of one that does not."""
    try:
        found = await engine.read_waitpoint_token(identity.partition, waitpoint, identity, closed=closed)
    except (NotFound, Validation):
        return None
    return found.reveal() if found else None


async def holds_token(
    engine: Engine, identity: ExecutionId, waitpoint: str, token: str, *, closed: bool = False
) -> bool:
    """Whether this is the token of an open waitpoint (with ``closed``, of any one), signed with a key that is good."""
    stored, given = await open_token(engine, identity, waitpoint, closed=closed), revealed(token)
    if stored is None or not hmac.compare_digest(stored.encode(), given.encode()):
        return False
    keys = await engine.list_waitpoint_hmac_kids()
    return given.partition(":")[0] in (keys.current_kid, *(each.kid for each in keys.verifying))
