"""The output of a run and of everything it has started, as one stream.

Frames of one run come in their order. Between runs the order is that of time, as far as frames are there when they are
looked at: a later reader, when all has ended, always gets the same order.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from flowfabric.model.streams.frames import StreamFrame
from flowfabric.sdk.errors import ENDED
from flowfabric.sdk.runs.frames import OUR_FRAMES, place_of

if TYPE_CHECKING:
    from flowfabric.engine import Engine

#: How long to wait when there is nothing to read, at first and at most; how often to look for new children.
FIRST_PAUSE_S, LAST_PAUSE_S = 0.05, 1.0
LOOK_S = 0.5
#: Streams that are read side by side, streams that are waited at, and frames that are held for all of them.
AT_ONCE, WAITED_AT, HELD = 16, 8, 2_000
_CHILDREN_PAGE = 200

#: Where a frame stands among those of all runs: its time, then when its run was created and which it is.
Place: TypeAlias = tuple[int, tuple[int, str]]


class Found(NamedTuple):
    """A frame, and where it was found."""

    run_id: str
    attempt_index: int
    frame: StreamFrame

    @property
    def place(self) -> str:
        """Its id among the frames of its run."""
        return f"{self.attempt_index + 1}:{self.frame.id}"


class Member:
    """One run of the family, and how far its stream was read."""

    def __init__(self, run_id: str, order: tuple[int, str], after: str | int = 0) -> None:
        self.run_id = run_id
        self.order = order
        self.index, self.cursor = place_of(after)
        #: The last frame that was given.
        self.place = after
        #: Frames that were read and not given yet, with their times.
        self.held: deque[tuple[int, Found]] = deque()
        #: Whether there may be more to read at once; whether the attempt is over; whether nothing can follow.
        self.more = self.closed = self.over = False
        self._last_ms = 0

    async def fill(self, engine: Engine, count: int) -> None:
        """Read on, over the ends of attempts."""
        self.more = False
        while len(self.held) < count:
            wanted = count - len(self.held)
            page = await engine.tail_stream(self.run_id, self.index, after=self.cursor, count_limit=wanted)
            for frame in page.frames:
                self.cursor = frame.id
                if frame.fields.get("frame_type") not in OUR_FRAMES:
                    # A clock that went back between attempts does not change the order.
                    self._last_ms = max(self._last_ms, int(frame.id.partition("-")[0]))
                    self.held.append((self._last_ms, Found(self.run_id, self.index, frame)))
            if len(page.frames) == wanted:
                self.more = True
                return
            self.closed = page.is_closed()
            if not self.closed or not await self._next_attempt(engine):
                return

    async def _next_attempt(self, engine: Engine) -> bool:
        # The state is looked at first: of what has ended, the current attempt is the last.
        ended = await engine.read_execution_state(self.run_id) in ENDED
        if await engine.read_current_attempt_index(self.run_id) > self.index:
            self.index, self.cursor, self.closed = self.index + 1, "0-0", False
            return True
        self.over = ended
        return False

    def up_to(self, horizon: Place | None) -> Iterator[tuple[Place, Found]]:
        """Take out what stands before a place of the whole family, or there."""
        while self.held and (horizon is None or (self.held[0][0], self.order) <= horizon):
            at_ms, found = self.held.popleft()
            self.place = found.place
            yield (at_ms, self.order), found


class Children:
    """Finds what a run has started, and what those have."""

    def __init__(self, engine: Engine, run_id: str) -> None:
        self._engine = engine
        self._run_id = run_id
        self._flow: str | None = None
        self._namespace = ""
        self._is_root = True
        self._known: set[str] = {run_id}

    async def new(self) -> list[tuple[int, str]]:
        """When they were created, and their ids: those that were not found before, oldest first. Questions emit
        nothing."""
        if self._flow is None:
            about = await self._engine.describe_execution(self._run_id)
            if about is None or about.flow_id is None:
                return []
            self._flow, self._namespace = about.flow_id, about.namespace
            self._is_root = "ff.run" not in about.tags
        found: list[tuple[int, str]] = []
        if self._is_root:
            await self._search(found, tag=("ff.run", self._run_id))
        else:
            for parent in tuple(self._known):
                await self._search(found, parent=parent)
        return sorted(found)

    async def _search(self, found: list[tuple[int, str]], **question: Any) -> None:
        cursor: str | None = None
        while True:
            page = await self._engine.search_executions(
                namespaces=[self._namespace], flow_id=self._flow, cursor=cursor, limit=_CHILDREN_PAGE, **question
            )
            new = [each for each in page.executions if str(each.execution_id) not in self._known]
            for each in new:
                self._known.add(str(each.execution_id))
                if not each.execution_kind.startswith("$"):
                    found.append((each.created_at, str(each.execution_id)))
            cursor = page.next_cursor
            if cursor is None or not new:
                return


class Family:
    """A run and its children. ``after`` names the last frame that was seen of each; of children that it does not name
    and that were created before ``since_ms``, all was seen."""

    def __init__(
        self,
        engine: Engine,
        run_id: str,
        after: Mapping[str, str | int] | None = None,
        *,
        children: bool = True,
        since_ms: int = 0,
        held: int = HELD,
    ) -> None:
        self._engine = engine
        self._run_id = run_id
        self._after = dict(after or {})
        self._children = Children(engine, run_id) if children else None
        self._since_ms = since_ms
        self._held = held
        self._members = {run_id: Member(run_id, (0, ""), self._after.get(run_id, 0))}

    @property
    def places(self) -> dict[str, str | int]:
        """The last frame that was given of each run that may emit more; and of the newest ones, in any case."""
        newest = self.known_ms
        return {
            each.run_id: each.place
            for each in self._members.values()
            if each.run_id == self._run_id or each.held or not each.over or each.order[0] >= newest
        }

    @property
    def known_ms(self) -> int:
        """When the newest child that is known was created."""
        return max(self._since_ms, *(each.order[0] for each in self._members.values()))

    async def rounds(self) -> AsyncGenerator[list[Found], None]:
        """Frames, some at a time and in order, until the run has ended."""
        loop = asyncio.get_running_loop()
        pause, looked_at = FIRST_PAUSE_S, float("-inf")
        while True:
            # Looked at before the streams: what was written before the run ended is then certain to be read.
            state = await self._engine.read_execution_state(self._run_id)
            ended = state is None or state in ENDED
            if ended or loop.time() - looked_at >= LOOK_S:
                looked_at = loop.time()
                await self._look_for_children()
            live = [each for each in self._members.values() if not each.over or each.held]
            await self._read([each for each in live if not each.held and not each.over], len(live))
            found = _in_order(live)
            if found:
                yield found
                pause = FIRST_PAUSE_S
            elif ended and not any(each.more for each in live):
                return
            elif not any(each.more for each in live):
                await _news(self._engine, [each for each in live if not each.closed][:WAITED_AT], pause)
                pause = min(2 * pause, LAST_PAUSE_S)

    async def _look_for_children(self) -> None:
        while self._children is not None and (new := await self._children.new()):
            for order in new:
                created_ms, run_id = order
                if run_id in self._after or created_ms >= self._since_ms:
                    self._members[run_id] = Member(run_id, order, self._after.get(run_id, 0))

    async def _read(self, members: list[Member], live: int) -> None:
        count = max(1, self._held // max(live, 1))
        for start in range(0, len(members), AT_ONCE):
            await asyncio.gather(*(each.fill(self._engine, count) for each in members[start : start + AT_ONCE]))


def _in_order(members: list[Member]) -> list[Found]:
    """What can be given now: nothing that comes behind what may be there and has not been read."""
    horizon = min(((each.held[-1][0], each.order) for each in members if each.more and each.held), default=None)
    merged = heapq.merge(*(each.up_to(horizon) for each in members), key=lambda item: item[0])
    return [found for _, found in merged]


async def _news(engine: Engine, members: list[Member], pause: float) -> None:
    """Wait until one of the streams has a frame, or for a while."""
    tails = [
        asyncio.ensure_future(
            engine.tail_stream(
                each.run_id, each.index, after=each.cursor, block_ms=max(int(pause * 1000), 1), count_limit=1
            )
        )
        for each in members
    ]
    try:
        done = (await asyncio.wait(tails, timeout=pause, return_when=asyncio.FIRST_COMPLETED))[0] if tails else set()
        if not tails or any(each.exception() is not None for each in done):
            await asyncio.sleep(pause)
    finally:
        for tail in tails:
            tail.cancel()
        await asyncio.gather(*tails, return_exceptions=True)
