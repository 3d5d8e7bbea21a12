"""A process on a shared database: does what the test asks, one thing at a time (see ``tests/chaos/processes.py``)."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from flowfabric import (
    ClaimPolicy,
    Contention,
    ContentionKind,
    EngineError,
    ExecutionId,
    Handle,
    Reserved,
    State,
    Transport,
    cursor_from_text,
    cursor_to_text,
)
from flowfabric.engine import Engine
from flowfabric.engine.operations import claim as engine_claiming
from flowfabric.model.handles import decode
from flowfabric.stores.questions import CountRows
from tests.chaos.processes import complain, say
from tests.chaos.stored import payload_of, result_of

HANDS = 4
#: Trouble with the store or with another process, after which a caller tries again.
PASSING = (Transport, Contention)


class Peer:
    """The engine of this process and what can be asked of it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._engine: Engine | None = None
        self._errors: Counter[str] = Counter()

    @property
    def engine(self) -> Engine:
        assert self._engine is not None, "open comes first"
        return self._engine

    async def open(self, url: str) -> None:
        """Open the store, migrating it if need be, and let go of the one before."""
        if self._engine is not None:
            await self._engine.close()
        self._engine = await Engine.open(url, single_node=True)

    async def create(self, lane: str) -> dict[str, Any]:
        """One execution, and when it was there (all processes of a machine share the monotonic clock)."""
        identity = ExecutionId.solo(lane, self.engine.partitions)
        await self._create(identity, lane)
        return {"id": identity, "at": time.monotonic()}

    async def await_work(self, lane: str, wait_ms: int) -> dict[str, Any] | None:
        """Wait for an execution, woken by others only; says ``waiting`` when it has begun to."""
        engine_claiming.SAFETY_POLL_S = 3_600.0
        claim = asyncio.create_task(self.engine.claim(lane, (), self._policy(30_000, max_wait=wait_ms)))
        # By then the first look is over and, on PostgreSQL, the listener is there.
        await asyncio.wait((claim,), timeout=0.5)
        say("waiting")
        handle = await claim
        at = time.monotonic()
        return None if handle is None else {"id": decode(handle.opaque)[1].execution_id, "at": at}

    async def follow(self, cursor: str, until: int) -> None:
        """Say the cursor and the execution of every completion event behind a cursor, until there were so many. Woken
        by others only."""
        self.engine.store.event_poll_s = 3_600.0
        events = await self.engine.subscribe_completion(cursor_from_text(cursor))
        say("following")
        for _ in range(until):
            event = await anext(events)
            say([cursor_to_text(event.cursor), event.execution_id])

    async def reserve(self, budget_id: str, count: int, lane: str, ttl_ms: int) -> int:
        """Ask for ``count`` reservations of one unit at once, under leases that last so long; how many were granted."""
        for _ in range(HANDS):
            await self._create(ExecutionId.solo(lane, self.engine.partitions), lane)
        handles = await self.engine.claim_many(lane, (), self._policy(ttl_ms), HANDS)
        answers = await asyncio.gather(
            *(self.engine.reserve_budget(handles[number % HANDS], budget_id, {"a": 1}) for number in range(count))
        )
        return sum(isinstance(answer, Reserved) for answer in answers)

    async def claim_all(self, claimers: int, lane: str) -> list[list[str]]:
        """Claim until the lane looks empty, some one by one, some in handfuls; what each claimer was granted."""
        return await asyncio.gather(*(self._claim_all(number, lane) for number in range(claimers)))

    async def _claim_all(self, number: int, lane: str) -> list[str]:
        granted: list[str] = []
        policy = self._policy(600_000)
        while handles := await self.engine.claim_many(lane, (), policy, 2 + number % 9 if number % 2 else 1):
            granted += [decode(handle.opaque)[1].execution_id for handle in handles]
        return granted

    async def lifecycles(self, count: int, lane: str, expected: int, ttl_ms: int = 30_000) -> dict[str, Any]:
        """Create ``count`` executions and complete whatever there is, until ``expected`` have ended in all."""
        self._errors.clear()
        created: list[str] = []
        completed: list[str] = []
        async with asyncio.TaskGroup() as hands:
            for hand in range(HANDS):
                share = count // HANDS + (hand < count % HANDS)
                hands.create_task(self._create_many(share, lane, created))
                hands.create_task(self._complete_all(lane, expected, ttl_ms, completed))
        return {"created": created, "completed": completed, "errors": dict(self._errors)}

    async def _create_many(self, count: int, lane: str, created: list[str]) -> None:
        for _ in range(count):
            identity = ExecutionId.solo(lane, self.engine.partitions)
            await self._until_answered(lambda each=identity: self._create(each, lane))
            created.append(identity)

    async def _create(self, identity: str, lane: str) -> Any:
        return await self.engine.create_execution(
            execution_id=identity, lane_id=lane, input_payload=payload_of(identity)
        )

    async def _complete_all(self, lane: str, expected: int, ttl_ms: int, completed: list[str]) -> None:
        policy = self._policy(ttl_ms, max_wait=100)
        while await self._until_answered(self._ended) < expected:
            while (handle := await self._until_answered(lambda: self.engine.claim(lane, (), policy))) is not None:
                try:
                    completed.append(await self._complete(handle))
                except State as error:
                    # The lease ran out while the store was away; somebody will do it again.
                    self._errors[f"State({error.kind})"] += 1
            await self._until_answered(self.engine.run_due)

    async def _complete(self, handle: Handle) -> str:
        payload = decode(handle.opaque)[1]
        result = result_of(payload.execution_id, payload.lease_epoch)
        await self._until_answered(lambda: self.engine.complete(handle, result))
        return payload.execution_id

    async def _ended(self) -> int:
        phases = await self.engine._ask(CountRows())
        return sum(count for phase, count in phases.items() if phase in ("terminal", "cancelled"))

    async def _until_answered(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Repeat a call while it meets passing trouble, as a careful client would."""
        for _ in range(1_000):
            try:
                return await call()
            except PASSING as error:
                self._errors[f"{type(error).__name__}({error.kind})"] += 1
                if isinstance(error, Contention) and error.kind is not ContentionKind.RETRY_EXHAUSTED:
                    raise State(error.kind, error.detail) from error
                await asyncio.sleep(0.02)
        raise TimeoutError("no answer after a thousand tries")

    def _policy(self, ttl_ms: int, **more: Any) -> ClaimPolicy:
        return ClaimPolicy("peer", self._name, ttl_ms, **more)


async def main() -> None:
    """Answer until the test closes the line or kills the process."""
    loop = asyncio.get_running_loop()
    peer = Peer(f"peer-{time.monotonic_ns()}")
    say("ready")
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order = json.loads(line)
        try:
            say(await getattr(peer, order.pop("do"))(**order))
        except (EngineError, ExceptionGroup, TimeoutError) as error:
            complain(error)


if __name__ == "__main__":
    asyncio.run(main())
