"""Starts that fall together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowfabric.core.bursts import DebounceExecution
from flowfabric.engine import checks
from flowfabric.engine.intake import Intake
from flowfabric.model.requests import Debounced

_MAX_MS = 2**53
#: What a start that shares its execution with others cannot say.
_OWN = ("execution_id", "idempotency_key", "delay_until")


class Bursts(Intake):
    """The part of the engine that waits for quiet."""

    async def debounce_execution(
        self, debounce_key: str, execution: Mapping[str, Any], *, wait_ms: int, at_most_ms: int
    ) -> Debounced:
        """Start an execution once nobody has started one under the key for ``wait_ms``, at the latest ``at_most_ms``
        after the first start. Starts that fall together share one execution; the payload of the last one counts.

        ``execution`` holds arguments of ``create_execution``; those of the first start count, the payload apart.
        """
        key = checks.text(debounce_key, "debounce_key", empty=False)
        wait = checks.integer(wait_ms, "wait_ms", 1, _MAX_MS)
        most = checks.integer(at_most_ms, "at_most_ms", 1, _MAX_MS)
        creation = self._creation_of(execution)
        for name in _OWN:
            if execution.get(name) is not None:
                raise checks.invalid(f"execution.{name}: debounced starts share one execution; leave this out")
        answer: Debounced = await self._submit(DebounceExecution(key, wait, most, creation))
        return answer
