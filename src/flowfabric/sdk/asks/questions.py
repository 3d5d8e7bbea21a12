"""Questions and answers as they are stored, and reading them safely, no matter who wrote them."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from flowfabric.model.jsontext import nests_deeper
from flowfabric.model.limits import MAX_JSON_DEPTH


class Question(msgspec.Struct, frozen=True):
    """What is asked, as it is stored."""

    question: str
    show: Any
    of: tuple[str, ...]
    need: int
    within_ms: int | None
    #: The answer's JSON Schema, for forms and for checking.
    schema: dict[str, Any]
    #: Which field says yes or no; "" means the answer itself, ``None`` that every answer is a yes.
    approves: str | None


class Given(msgspec.Struct, frozen=True):
    """One answer."""

    by: str
    value: Any
    said: str
    at_ms: int
    #: Who said so by his own account; ``by`` is proved by the token.
    identity: str = ""


class Answers(msgspec.Struct, frozen=True):
    """What became of a question: ``approved``, ``declined``, ``timed_out`` or ``closed``."""

    outcome: str
    answers: tuple[Given, ...] = ()
    #: What was taken in the place of an answer, as a plain value, once somebody has taken it.
    otherwise: Any = msgspec.UNSET


_read_question = msgspec.json.Decoder(Question).decode
read_answers = msgspec.json.Decoder(Answers).decode


#: What is shown in the place of a question that cannot be read; nothing is an answer to it.
UNREADABLE: Final = Question("(this question cannot be read)", None, (), 1, None, {"enum": []}, None)


def read_question(payload: bytes) -> Question:
    """What a stored question says. Anybody who can start an execution may have written it: one that cannot be read,
    or is nested too deep, is ``UNREADABLE``."""
    try:
        return UNREADABLE if nests_deeper(payload, MAX_JSON_DEPTH) else _read_question(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return UNREADABLE


def read_answer(payload: bytes | None) -> Any:
    """The value of a stored answer; nothing, if it cannot be read."""
    try:
        return None if nests_deeper(payload or b"", MAX_JSON_DEPTH) else msgspec.json.decode(payload or b"null")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
