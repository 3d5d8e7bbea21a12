"""Checks of answers, shared by the routes for signals and for asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowfabric.sdk.asks.raw_answers import check_signal
from flowfabric.sdk.errors import AlreadyAnswered, SdkError
from flowfabric.server.http.problems import Refused, refused
from flowfabric.server.operations import Call

_ARGUMENTS = ("execution_id", "waitpoint_id", "waitpoint_token", "signal_name", "payload", "idempotency_key")


def unfit(error: SdkError) -> Refused:
    """An answer that its question does not take."""
    if isinstance(error, AlreadyAnswered):
        return refused(409, str(error), kind=error.code, retryable=False)
    return refused(422, str(error), kind="validation", retryable=False)


async def check_answer(call: Call, signal: Mapping[str, Any]) -> Mapping[str, Any]:
    """Refuse a signal that a question would take for an answer and that does not fit; what to deliver others with."""
    try:
        return await check_signal(call.engine, **{each: signal[each] for each in _ARGUMENTS if each in signal})
    except SdkError as error:
        raise unfit(error) from None
