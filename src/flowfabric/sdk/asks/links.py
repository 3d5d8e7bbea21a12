"""Links with which approvers answer: one text that names the question, the waitpoint and its token."""

from __future__ import annotations

import base64
import binascii

from flowfabric.model.errors import EngineError
from flowfabric.model.ids import ExecutionId
from flowfabric.model.waitpoint_tokens import revealed
from flowfabric.sdk.errors import BadAnswer


def make_link(execution_id: str, waitpoint: str, token: str) -> str:
    """A link: anyone who has it can answer at this waitpoint."""
    return base64.urlsafe_b64encode(f"{execution_id} {waitpoint} {revealed(token)}".encode()).decode().rstrip("=")


def read_link(link: str) -> tuple[ExecutionId, str, str]:
    """The question, the waitpoint and the token of a link; whether the token is good shows when it is used."""
    try:
        padded = link + "=" * (-len(link) % 4)
        execution_id, waitpoint, token = base64.urlsafe_b64decode(padded.encode()).decode().split(" ")
        return ExecutionId.parse(execution_id), waitpoint, token
    except (ValueError, UnicodeError, binascii.Error, EngineError):
        raise BadAnswer("the link is not valid; copy all of it", ask="") from None
