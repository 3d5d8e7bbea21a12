"""Whatever a commit was decided upon must still be so when it arrives, and nothing but the server can tell.

In each of these, somebody else commits at the worst moment: when everything is decided, and nothing sent yet.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from flowfabric import Contention, Created, Duplicate, ExecutionId, Seeded, Validation
from flowfabric.core.batch.view import View
from flowfabric.core.suspension.signing import CURRENT_KEY
from flowfabric.engine import Engine
from flowfabric.engine.record_cache import HeldRecords
from flowfabric.model.decisions import Decision, Select, Slots, insert
from flowfabric.model.operations.workflows import Step
from flowfabric.model.records.executions import Lane
from flowfabric.stores.protocol import Conflict
from tests.contract.probe import ManualClock, Probe, claimed, id_of
from tests.contract.seeding import bare_execution, seed
from tests.valkey_rows import contents, wrong_indexes

QUOTA = "22222222-2222-4222-8222-222222222222"
Rivals = tuple[Engine, Engine]


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[Rivals]:
    """Two engines, as two processes would be."""
    clock = ManualClock()
    async with await Engine.open(url, clock=clock) as one, await Engine.open(url, clock=clock) as two:
        yield one, two


@pytest.fixture
async def rivals(valkey_url: str) -> AsyncIterator[Rivals]:
    """Two of them on a fresh store."""
    async with opened(valkey_url) as engines:
        yield engines


def meanwhile(engine: Engine, act: Callable[[], Awaitable[Any]]) -> list[Any]:
    """Let somebody act before the engine's next commit is sent; what that answered."""
    store: Any = engine.store
    commit = store._commit
    answers: list[Any] = []

    async def late(message: Any) -> None:
        store._commit = commit
        answers.append(await act())
        await commit(message)

    store._commit = late
    return answers


async def test_a_record_that_was_changed(rivals: Rivals) -> None:
    one, two = rivals
    handle = await claimed(one)
    cancelled = meanwhile(one, lambda: two.cancel_execution(execution_id=id_of(handle), reason="not wanted"))
    with pytest.raises(Contention):
        await one.complete(handle, b"done")
    assert len(cancelled) == 1
    assert await Probe(one).completions(id_of(handle)) == ["cancelled"]
    assert await wrong_indexes(one.store) == []


async def test_a_record_that_appeared(rivals: Rivals) -> None:
    one, two = rivals
    name = ExecutionId.solo("lane", one.partitions)
    given: dict[str, Any] = {"execution_id": name, "lane_id": "lane", "priority": 1}
    created = meanwhile(one, lambda: two.create_execution(**{**given, "priority": 2}))
    assert await one.create_execution(**given) == Duplicate(name)
    assert isinstance(created[0], Created)
    assert (await Probe(one).execution(name)).priority == 2
    assert await wrong_indexes(one.store) == []


async def decided(engine: Engine, need: Any, act: Callable[[], Awaitable[Any]]) -> None:
    """A commit that writes something else, and was decided upon what it has loaded before somebody acts."""
    store: Any = engine.store
    view = View()
    async with store.transaction() as transaction:
        await transaction.load([need], view)
        await act()
        view.fold(Decision(None, (insert(Lane("another", 0, "test")),)))
        await transaction.commit(view.writes(), HeldRecords())


async def test_a_range_that_has_another_entry(rivals: Rivals) -> None:
    """The steps of an execution: none of those that were read has changed, there is one more."""
    one, two = rivals
    handle = await claimed(one)
    own = (id_of(handle).partition, id_of(handle).uuid_text)
    steps = Select(Step, ("partition", "uuid"), own)
    for number in range(3):
        step = Step(*own, f"step {number}", number + 1, 0, 1, "ok", b"", 0)
        with pytest.raises(Conflict, match="other entries"):
            await decided(one, steps, lambda step=step: seed(two, step))
    assert "another" not in (await contents(one.store, Lane))[Lane]
    await decided(one, steps, one.ping)


async def test_a_signing_key_that_was_replaced(rivals: Rivals) -> None:
    """No token is made with a key that nobody accepts any more."""
    one, two = rivals
    await one.seed_waitpoint_hmac_secret(kid="k1", secret_hex="ab" * 32)
    secret = {"new_secret_hex": "cd" * 32, "grace_ms": 0}
    await decided(one, CURRENT_KEY, one.ping)
    with pytest.raises(Conflict):
        await decided(one, CURRENT_KEY, lambda: two.rotate_waitpoint_hmac_secret_all(new_kid="k2", **secret))
    handle = await claimed(one)
    rotated = meanwhile(one, lambda: two.rotate_waitpoint_hmac_secret_all(new_kid="k3", **secret))
    waitpoint = await one.create_waitpoint(handle, waitpoint_key="wp:open", expires_in=60_000)
    assert len(rotated) == 1
    assert waitpoint.hmac_token.reveal().startswith("k3:")


async def test_two_who_seed_the_first_key(rivals: Rivals) -> None:
    one, two = rivals
    first = meanwhile(one, lambda: two.seed_waitpoint_hmac_secret(kid="theirs", secret_hex="ab" * 32))
    with pytest.raises(Validation, match="'theirs' already signs"):
        await one.seed_waitpoint_hmac_secret(kid="ours", secret_hex="cd" * 32)
    assert isinstance(first[0], Seeded)


async def test_a_number_of_entries(rivals: Rivals) -> None:
    """How many hold a slot of a quota is counted, and written nowhere else."""
    one, two = rivals
    slots = Slots(QUOTA)
    for _ in range(2):
        holder = bare_execution(two, ExecutionId.solo("lane", two.partitions), quota_policy_id=QUOTA, admitted_at_ms=1)
        with pytest.raises(Conflict, match="another count"):
            await decided(one, slots, lambda holder=holder: seed(two, holder))
    await decided(one, slots, one.ping)


async def test_an_entry_that_was_taken_out(rivals: Rivals) -> None:
    one, _ = rivals
    handle = await claimed(one)
    await one.complete(handle, b"done")
    assert await wrong_indexes(one.store) == []
