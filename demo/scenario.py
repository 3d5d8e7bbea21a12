"""What happens beside the work: more of it, a kill, a ghost, a cancellation, a replay, a submission sent twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from demo import jobs
from demo.board import Board
from demo.plan import ARRIVALS, BACKLOG, FEATURED, JOBS, LOCKED, NIGHTLY_AFTER_MS, RUNAWAY, STUCK, Job
from demo.rows import Rows
from demo.worker import Worker
from flowfabric import CancelSource, Created, Duplicate, EngineError, ExecutionId, Handle, PublicState
from flowfabric.engine import Engine

ENDED = frozenset({"completed", "failed", "cancelled", "expired", "skipped"})
LOOK_EVERY_S = 0.05
ARRIVALS_EVERY_S = 0.9

FLEET: tuple[tuple[str, frozenset[str], int], ...] = (
    ("heron", frozenset({"text"}), 3),
    ("kite", frozenset({"text"}), 3),
    ("swift", frozenset({"gpu"}), 3),
    ("wren", frozenset({"gpu"}), 3),
    ("lark", frozenset({"net"}), 4),
)


class Story:
    """Runs everything once, from the first submission to the last end."""

    def __init__(self, engine: Engine, board: Board, rows: Rows) -> None:
        self.engine = engine
        self.board = board
        self.rows = rows
        self.ids: dict[Job, ExecutionId] = {}
        self.board.workers = [Worker(engine, board, *member) for member in FLEET]
        #: What the killed worker was told when it came back; nothing means that it was let in.
        self.ghost_refused: str | None = None
        self.duplicates = 0

    async def run(self) -> None:
        """The whole story. Returns when every execution has ended and every worker has stopped."""
        await self._submit(BACKLOG)
        self.board.say(f"{len(BACKLOG)} executions submitted in one transaction", "bold")
        for worker in self.board.workers:
            worker.start()
        async with asyncio.TaskGroup() as group:
            for part in (
                self._arrivals(),
                self._follow(FEATURED),
                self._submit_again(),
                self._kill_a_worker(),
                self._cancel(RUNAWAY),
                self._watch_timeout(STUCK),
                self._replay(LOCKED),
            ):
                group.create_task(part)
        await self._until(self._all_ended)
        await asyncio.gather(*(worker.stop() for worker in self.board.workers))
        self.board.say(f"all {len(JOBS)} executions have ended", "bold")

    # -- submitting ----------------------------------------------------------------------------------------------

    async def _submit(self, batch: Sequence[Job]) -> list[Created | Duplicate]:
        now_ms = await self.engine.server_time_ms()
        answers = await self.engine.create_executions(job.creation(now_ms) for job in batch)
        for job, answer in zip(batch, answers, strict=True):
            self.ids.setdefault(job, answer.execution_id)
        return answers

    async def _arrivals(self) -> None:
        for batch in ARRIVALS:
            await asyncio.sleep(ARRIVALS_EVERY_S)
            await self._submit(batch)
        self.board.say(f"{sum(map(len, ARRIVALS))} more came in while the workers were busy")

    async def _submit_again(self) -> None:
        """A client that never heard the answer sends its batch once more."""
        await asyncio.sleep(0.8)
        answers = await self._submit(BACKLOG)
        self.duplicates = sum(isinstance(answer, Duplicate) for answer in answers)
        self.board.say(f"the first batch submitted again: {self.duplicates} duplicates, nothing new")
        await asyncio.sleep(NIGHTLY_AFTER_MS / 1000 - 0.8)
        self.board.say(f"{sum(bool(job.delay_ms) for job in BACKLOG)} delayed executions fall due")

    # -- watching ------------------------------------------------------------------------------------------------

    async def _follow(self, job: Job) -> None:
        """Read a stream while it is written, from the first frame to the end of the attempt."""
        cursor, closed = "0-0", False
        while not closed:
            page = await self.engine.tail_stream(self.ids[job], 0, after=cursor, block_ms=1_000)
            for frame in page.frames:
                self.board.tail.append((frame.fields["correlation_id"], frame.fields["payload"]))
                cursor = frame.id
            closed = page.is_closed() and not page.frames
        self.board.say(f"the stream of {job.title} is closed after {len(self.board.tail)} lines", "cyan")

    async def _watch_timeout(self, job: Job) -> None:
        await self._until(self._is(job, PublicState.EXPIRED))
        self.board.say(f"{job.title} hung and ran into its timeout: expired", "red")

    # -- what goes wrong, and what an operator does about it -----------------------------------------------------

    async def _kill_a_worker(self) -> None:
        """The worker that holds the featured execution dies in the middle of it."""
        await self._until(lambda: len(self.board.tail) >= 4 and self._holders(FEATURED))
        victim, handle = self._holders(FEATURED)[0]
        victim.kill()
        others = len(victim.attempts) - 1
        more = f" and {others} more" if others else ""
        self.board.say(f"{victim.name} is killed while it holds {FEATURED.title}{more}", "bold red")

        async def taken_over() -> bool:
            found = await self.engine.describe_execution(self.ids[FEATURED])
            lease = found.current_lease if found else None
            return lease is not None and lease.worker_instance_id != victim.instance

        await self._until(taken_over)
        await asyncio.sleep(0.5)
        try:
            await self.engine.complete(handle, b"late and wrong")
        except EngineError as refused:
            self.ghost_refused = refused.code
            self.board.say(f"{victim.name} wakes up, wants to complete {FEATURED.title}: {refused.code}", "bold yellow")

    def _holders(self, job: Job) -> list[tuple[Worker, Handle]]:
        return [
            (worker, handle)
            for worker in self.board.workers
            for handle in worker.attempts
            if handle.execution_id == self.ids[job]
        ]

    async def _cancel(self, job: Job) -> None:
        await self._until(self._is(job, PublicState.ACTIVE))
        await asyncio.sleep(3.2)
        await self.engine.cancel_execution(
            execution_id=self.ids[job], reason="it would never end", source=CancelSource.OPERATOR_OVERRIDE
        )
        self.board.say(f"an operator cancels {job.title}", "bold magenta")

    async def _replay(self, job: Job) -> None:
        await self._until(self._is(job, PublicState.FAILED))
        await asyncio.sleep(5.5)
        jobs.repaired.set()
        await self.engine.replay_execution(execution_id=self.ids[job])
        self.board.say(f"the password is renewed; an operator replays {job.title}", "bold magenta")
        await self._until(self._is(job, PublicState.COMPLETED))
        self.board.say(f"{job.title} completed in its second run", "green")

    # -- waiting -------------------------------------------------------------------------------------------------

    def _is(self, job: Job, state: PublicState) -> Callable[[], Awaitable[bool]]:
        async def reached() -> bool:
            return await self.engine.read_execution_state(self.ids[job]) is state

        return reached

    def _all_ended(self) -> bool:
        counts = self.rows.counts()
        return sum(counts.values()) == len(JOBS) and counts.keys() <= ENDED

    async def _until(self, reached: Callable[[], Any]) -> None:
        while True:
            answer = reached()
            if await answer if asyncio.iscoroutine(answer) else answer:
                return
            await asyncio.sleep(LOOK_EVERY_S)
