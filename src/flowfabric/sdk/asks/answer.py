"""Giving answers: each approver has one. The same answer again is told what became of the first, another is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from flowfabric.model.errors import State, StateKind
from flowfabric.model.ids import ExecutionId
from flowfabric.model.operations.budgets import APPROVED
from flowfabric.model.operations.suspension import DeliverSignalResult
from flowfabric.model.reads.overview import SignalLine
from flowfabric.sdk.asks.questions import read_answer
from flowfabric.sdk.errors import AlreadyAnswered

if TYPE_CHECKING:
    from flowfabric.engine import Engine

APPROVE: Final = "approve"
DECLINE: Final = "decline"
#: What a no to a budget's question is called; the engine takes whatever is not a yes for one.
DECLINED: Final = "declined"
#: Names of the signals that are answers, and what they say.
SAID: Final = {APPROVE: APPROVE, DECLINE: DECLINE, APPROVED: APPROVE, DECLINED: DECLINE}
#: A waitpoint takes one signal with this key: the answer of its approver. It is kept for as long as the question is.
ANSWER_KEY: Final = "flowfabric.answer"
_KEPT_MS: Final = 100 * 365 * 86_400_000
#: What makes the engine take one answer of an approver, however many arrive at once.
ONCE: Final[Mapping[str, Any]] = {"idempotency_key": ANSWER_KEY, "dedup_ttl_ms": _KEPT_MS}


class Answered(msgspec.Struct, frozen=True):
    """What became of an answer."""

    #: ``approve`` or ``decline``.
    said: str
    #: Whether the approver had given the same answer before; nothing happened then.
    repeated: bool = False
    #: When the first one was taken.
    at_ms: int | None = None


async def first_answer(engine: Engine, execution_id: str, waitpoint: str) -> SignalLine | None:
    """The answer that the approver of a waitpoint has given."""
    history = await engine.read_history(execution_id)
    key = next((each.waitpoint_key for each in history.waitpoints if each.waitpoint_id == waitpoint), None)
    given = (each for each in history.signals if each.waitpoint_key == key and each.signal_name in SAID)
    return next(given, None)


def repeated(first: SignalLine, payload: bytes | None) -> Answered:
    """What is said to an approver who has answered: what became of the first answer, or that there can be no other."""
    said = SAID[first.signal_name]
    if _canonical(first.payload) != _canonical(payload):
        raise AlreadyAnswered(
            f"{first.waitpoint_key} has already answered this question ({said}); an answer cannot be changed",
            said=said,
        )
    return Answered(said, True, first.accepted_at)


def _canonical(payload: bytes | None) -> bytes:
    """An answer in the one way to write it: 1 is not true, and the order of members means nothing."""
    return msgspec.json.encode(read_answer(payload), order="sorted")


async def send(
    engine: Engine, execution_id: ExecutionId | str, waitpoint: str, *, look: bool, said: str, **signal: Any
) -> Answered:
    """Deliver an answer. ``look`` says that the caller may know of an earlier one already; otherwise only the engine,
    which checks the token first, lets it be looked for."""
    identity, payload = str(execution_id), signal["payload"]
    if look:
        first = await first_answer(engine, identity, waitpoint)
        if first is not None:
            return repeated(first, payload)
    try:
        outcome = await engine.deliver_signal(
            execution_id=execution_id,
            waitpoint_id=waitpoint,
            **ONCE,
            **signal,
        )
    except State as error:
        if error.kind is StateKind.DUPLICATE_SIGNAL:
            raise AlreadyAnswered(error.detail or str(error)) from None
        first = await first_answer(engine, identity, waitpoint)
        if first is None:
            raise
        return repeated(first, payload)
    if isinstance(outcome, DeliverSignalResult.Duplicate):
        first = await first_answer(engine, identity, waitpoint)
        return Answered(said, True) if first is None else repeated(first, payload)
    return Answered(said)
