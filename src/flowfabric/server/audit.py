"""Who has done what: one line per act on the logger ``audit``, and one in the store. Never payloads, never tokens."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from flowfabric.server.operations import Call

_log = logging.getLogger("audit")


def record(event: str, who: str, **facts: Any) -> None:
    """Write one act to the log."""
    _log.info("%s", msgspec.json.encode({"event": event, "who": who, **facts}).decode())


async def account(call: Call, status: int) -> None:
    """Write the act of a call to the log and to the store; what only asks what would happen is none."""
    if not getattr(call.body, "dry_run", False):
        await account_for(call, call.operation.name, {**call.path, **call.told}, status)


async def account_for(call: Call, act: str, subject: Mapping[str, str], status: int) -> None:
    """Write one of the acts of a call to the log and to the store."""
    record(act, call.principal.name, status=status, **subject)
    await call.engine.record_act(who=call.principal.name, act=act, subject=dict(subject), status=status)
