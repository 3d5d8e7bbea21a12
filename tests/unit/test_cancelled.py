"""Small parts whose caller is cancelled, or whose other side never answers."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from flowfabric.sdk.remote.http_client import MAX_WAITING_BYTES, Chunks
from flowfabric.server import serving
from flowfabric.server.changes import Changes
from flowfabric.server.operations import given_up
from flowfabric.stores.postgres.store import _PostgresTransaction
from flowfabric.stores.wakeups import Wakeups

SOURCE = Path(serving.__file__).parents[1]


class Slow:
    """A call that takes its time to end after it was cancelled."""

    def __init__(self) -> None:
        self.begun, self.ending, self.may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def __call__(self, *_: Any) -> Any:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ending.set()
            await self.may_end.wait()


async def _cancelled_while_it_ends(leaving: asyncio.Task[None], slow: Slow) -> None:
    """Assert that a task that waits for another one's end still hears that it is cancelled itself."""
    async with asyncio.timeout(20):
        await slow.ending.wait()
        leaving.cancel()
        await asyncio.sleep(0)
        slow.may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await leaving


async def test_leaving_the_changes_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    changes, slow, go = Changes(None), Slow(), asyncio.Event()  # type: ignore[arg-type]

    async def place() -> dict[str, str]:
        return {}

    monkeypatch.setattr(changes, "place", place)
    monkeypatch.setattr(changes, "_look", slow)

    async def listen() -> None:
        async with changes.listening():
            await go.wait()

    listening = asyncio.create_task(listen())
    await slow.begun.wait()
    go.set()
    await _cancelled_while_it_ends(listening, slow)


async def test_a_listener_that_never_began_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = Changes(None)  # type: ignore[arg-type]

    async def away() -> dict[str, str]:
        raise OSError("away")

    monkeypatch.setattr(changes, "place", away)
    with pytest.raises(OSError, match="away"):
        async with changes.listening():
            pass
    assert (changes._listeners, changes._task) == (0, None)


async def test_closing_wake_ups_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowfabric.stores.wakeups.SENDER_GRACE_S", 0)
    wakeups, slow = Wakeups(), Slow()
    monkeypatch.setattr(wakeups, "_deliver", slow)
    monkeypatch.setattr(wakeups, "_hang_up", lambda: None)
    wakeups.publish(["topic"])
    await slow.begun.wait()
    await _cancelled_while_it_ends(asyncio.create_task(wakeups.close()), slow)


async def test_a_sample_that_never_ends_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "SAMPLING_GRACE_S", 0)

    async def sample() -> None:
        await asyncio.Event().wait()

    sampling = asyncio.create_task(sample())
    async with asyncio.timeout(20):
        await serving._end(sampling)
    assert sampling.cancelled()


async def test_a_transaction_that_may_have_begun_is_rolled_back() -> None:
    class Connection:
        async def execute(self, statement: str) -> None:
            raise asyncio.CancelledError

    transaction = _PostgresTransaction(None, Connection(), False)  # type: ignore[arg-type]
    with pytest.raises(asyncio.CancelledError):
        await transaction._begin()
    assert transaction.begun


async def test_an_answer_that_nobody_takes_is_not_read_further() -> None:
    class Transport:
        paused = 0

        def pause_reading(self) -> None:
            self.paused += 1

        def resume_reading(self) -> None:
            self.paused -= 1

    chunks, transport = Chunks(), Transport()
    piece = b"x" * (MAX_WAITING_BYTES // 4)
    for count in range(1, 7):
        chunks.put(piece, transport)  # type: ignore[arg-type]
        assert transport.paused == (count > 4)
    for left in range(5, -1, -1):
        assert await chunks.get() == piece
        assert transport.paused == (left > 2)
    chunks.put(None)
    assert await chunks.get() is None


async def test_what_a_request_waits_for_is_given_up_and_the_request_hears_of_its_own_cancel() -> None:
    slow = Slow()

    async def leave() -> None:
        task = asyncio.create_task(slow())
        await slow.begun.wait()
        await given_up(task)

    await _cancelled_while_it_ends(asyncio.create_task(leave()), slow)


async def test_the_end_of_what_was_given_up_is_nobodys_business() -> None:
    async def fails() -> None:
        raise OSError("away")

    task = asyncio.create_task(fails())
    await asyncio.wait((task,))
    await given_up(task)
    del task  # it would complain now


def test_no_wait_loses_a_cancel_that_comes_as_it_ends() -> None:
    """``asyncio.wait_for`` does before Python 3.12, and awaiting what one has cancelled loses one's own cancel."""
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        assert "asyncio.wait_for(" not in text, f"{path}: use asyncio.timeout"
        assert not re.search(r"suppress\([^)]*CancelledError", text), f"{path}: cancel, then asyncio.wait"
