"""A worker: claim what it can do, keep the leases alive while it works, complete or fail."""

from __future__ import annotations

import asyncio

from demo.board import Board
from demo.jobs import Attempt, Trouble, perform
from demo.plan import LANE, LEASE_TTL_MS, Job, parse_job
from flowfabric import ClaimPolicy, EngineError, Handle, HandleKind, RetryScheduled
from flowfabric.engine import Engine

RENEW_EVERY_S = LEASE_TTL_MS / 3_000
WAIT_FOR_WORK_MS = 1_000
#: Executions one claim takes at most, so that a burst is shared out.
CLAIM_AT_ONCE = 2


class Worker:
    """Runs up to ``slots`` attempts at a time."""

    def __init__(self, engine: Engine, board: Board, name: str, capabilities: frozenset[str], slots: int) -> None:
        self.engine = engine
        self.board = board
        self.name = name
        self.capabilities = capabilities
        self.slots = slots
        self.attempts: dict[Handle, Attempt | None] = {}
        self.done = 0
        self.dead = False
        self._stopping = False
        self._free = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        # One name per process start, so that what an earlier one left behind can be told from this one's.
        self.instance = f"{name}-1"

    def start(self) -> None:
        """Begin to claim."""
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def stop(self) -> None:
        """Finish what is under way, then end."""
        self._stopping = True
        if self._task is not None:
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.result()

    def kill(self) -> None:
        """End in the middle of everything, as ``kill -9`` would: nothing is released, nobody is told."""
        assert self._task is not None
        self.dead = True
        self._task.cancel()

    async def _run(self) -> None:
        policy = ClaimPolicy(
            worker_id=self.name,
            worker_instance_id=self.instance,
            lease_ttl_ms=LEASE_TTL_MS,
            max_wait=WAIT_FOR_WORK_MS,
        )
        async with asyncio.TaskGroup() as group:
            while not self._stopping:
                async with self._free:
                    await self._free.wait_for(lambda: len(self.attempts) < self.slots)
                limit = min(self.slots - len(self.attempts), CLAIM_AT_ONCE)
                for handle in await self.engine.claim_many(LANE, self.capabilities, policy, limit):
                    self.attempts[handle] = None
                    group.create_task(self._attempt(handle))

    async def _attempt(self, handle: Handle) -> None:
        """One attempt from the claim to its end, or to the point where the lease is lost."""
        work = asyncio.ensure_future(self._work(handle))
        keeper = asyncio.ensure_future(self._keep(handle))
        try:
            await asyncio.wait((work, keeper), return_when=asyncio.FIRST_COMPLETED)
            await (work if work.done() else keeper)
            self.done += 1
        except EngineError as refused:
            # The lease has gone to somebody else, or the execution has ended: the result no longer counts.
            attempt = self.attempts[handle]
            self.board.say(f"{self.name} stops {attempt.job.title if attempt else handle}: {refused.code}", "yellow")
        finally:
            work.cancel()
            keeper.cancel()
            if not self.dead:
                del self.attempts[handle]
                async with self._free:
                    self._free.notify()

    async def _work(self, handle: Handle) -> None:
        context = await self.engine.read_execution_context(handle.execution_id)
        job = parse_job(context.input_payload)
        attempt = self.attempts[handle] = Attempt(self.engine, handle, job, self.name)
        if handle.kind is HandleKind.RESUMED:
            epoch = handle.payload.lease_epoch
            self.board.say(f"{self.name} takes over {job.title}, epoch {epoch}", "bold green")
        try:
            result = await perform(attempt)
        except Trouble as trouble:
            await self._fail(handle, job, trouble)
        else:
            await self.engine.complete(handle, result)
            self.board.acknowledged[handle.execution_id] = result

    async def _fail(self, handle: Handle, job: Job, trouble: Trouble) -> None:
        answer = await self.engine.fail(handle, str(trouble), trouble.failure_class)
        if isinstance(answer, RetryScheduled):
            pause_ms = answer.delay_until - await self.engine.server_time_ms()
            self.board.say_first("retry", f"{job.title} failed: {trouble}; next attempt in {pause_ms} ms", "yellow")
        else:
            self.board.say(f"{job.title} failed for good: {trouble}", "red")

    async def _keep(self, handle: Handle) -> None:
        """Renew for as long as the engine agrees."""
        while True:
            await asyncio.sleep(RENEW_EVERY_S)
            await self.engine.renew(handle)
