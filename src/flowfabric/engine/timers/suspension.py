"""Timers of suspended executions: timeouts, and waitpoints that no suspension ever used."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from flowfabric.ascending import ascending_bytes
from flowfabric.core.suspension.pending_waitpoints import ExpireWaitpoints
from flowfabric.core.suspension.resume import TimeOutSuspension
from flowfabric.engine.base import EngineBase
from flowfabric.model.decisions import Writes
from flowfabric.model.ids import ExecutionId
from flowfabric.model.records.executions import Suspension


class SuspensionTimers(EngineBase):
    """The part of the timers that looks after suspended executions."""

    _for_each: Callable[[str, int, Callable[[str], Any]], Awaitable[int]]

    async def _tick_suspension_timeout(self, limit: int) -> int:
        return await self._for_each("suspension_timeout", limit, _time_out)

    async def _tick_pending_wp_expiry(self, limit: int) -> int:
        return await self._for_each("pending_wp_expiry", limit, _expire)


def _time_out(item: str) -> TimeOutSuspension:
    identity = ExecutionId.unchecked(item)
    return TimeOutSuspension(item, identity.partition, identity.uuid_text, ascending_bytes())


def _expire(item: str) -> ExpireWaitpoints:
    identity = ExecutionId.unchecked(item)
    return ExpireWaitpoints(identity.partition, identity.uuid_text)


def brings_timeout(writes: Writes, before_ms: int) -> bool:
    """Whether a commit has brought a suspension that times out before then."""
    for key in writes.puts.get(Suspension, ()):
        suspension = writes.records[Suspension][key]
        due = None if suspension is None or suspension.closed_at_ms is not None else suspension.timeout_at_ms
        if due is not None and due < before_ms:
            return True
    return False
