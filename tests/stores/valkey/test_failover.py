"""A server that takes over, or comes back, without the last commits that were acknowledged: nobody is misled by it.

The tests run on two ways to lose commits: a replica that was cut off and is promoted, and a file whose end never
reached the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from flowfabric import Contention, EngineError, Handle, NotFound, StreamDisconnected, StreamGap, Transport
from flowfabric.engine import Engine
from flowfabric.engine.reads import examine, subscriptions
from flowfabric.model.events import CompletionEvent, LeaseEvent
from flowfabric.model.reads.subscriptions import cursor_at
from flowfabric.model.records.executions import Execution
from flowfabric.stores.questions import CountEnded
from flowfabric.stores.valkey import losses as losing
from flowfabric.stores.valkey.keys import breaks_of, log_field
from tests import valkey_rows
from tests.conftest import full_run
from tests.contract.probe import Probe, claimed, create, id_of, payload_of, policy
from tests.contract.reads.test_examine import examined
from tests.contract.subscribing import finished, now, rest, take
from tests.forwarder import Forwarder
from tests.servers import LOOPBACK, Valkey

LANE = "lane-of-one"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else works here: what is wrong is wrong at the first look."""
    monkeypatch.setattr(examine, "_PAUSES_S", (0.0,))


class Place:
    """A store that can be made to forget: what is committed after ``cut`` is gone after ``replace``."""

    url: str

    async def cut(self) -> None:
        """Whatever is acknowledged from now on will be lost."""
        raise NotImplementedError

    async def replace(self) -> None:
        """Another server, or the same one again, answers at the same address, without what is to be lost."""
        raise NotImplementedError


class Replicated(Place):
    """Two servers; the second one follows the first until it is cut off."""

    def __init__(self, primary: Valkey, replica: Valkey, link: Forwarder, door: Forwarder) -> None:
        self.primary, self.replica, self.link, self.door = primary, replica, link, door
        self.url = f"valkey://{LOOPBACK}:{door.port}/0"

    async def cut(self) -> None:
        await self.in_step()
        await self.link.switch(None)

    async def replace(self) -> None:
        self.primary.kill9()
        await asked(self.replica, "REPLICAOF", "NO", "ONE")
        await self.door.switch(self.replica.port)

    async def in_step(self) -> None:
        async with asyncio.timeout(30):
            while True:
                here, there = [await asked(each, "INFO", "replication") for each in (self.primary, self.replica)]
                offsets = [_fact(here, "master_repl_offset"), _fact(there, "slave_repl_offset")]
                if _fact(there, "master_link_status") == "up" and offsets[0] == offsets[1]:
                    return
                await asyncio.sleep(0.01)


class Restarted(Place):
    """One server that leaves it to the system when its file reaches the disk."""

    def __init__(self, server: Valkey) -> None:
        self.server = server
        self.url = server.url
        self._size = 0

    @property
    def file(self) -> Path:
        [found] = (self.server.directory / "appendonlydir").glob("*.incr.aof")
        return found

    async def cut(self) -> None:
        # Every command is in the file, though perhaps not on the disk, before it is answered.
        self._size = self.file.stat().st_size

    async def replace(self) -> None:
        self.server.kill9()
        with self.file.open("r+b") as file:
            file.truncate(self._size)
        self.server.start()


async def asked(server: Valkey, *words: str) -> bytes:
    """What a server answers to one command."""
    reader, writer = await asyncio.open_connection(LOOPBACK, server.port)
    try:
        writer.write(" ".join(words).encode() + b"\r\n")
        line = await reader.readline()
        if not line.startswith(b"$"):
            return line
        return await reader.readexactly(int(line[1:]) + 2)
    finally:
        writer.transport.abort()


def _fact(info: bytes, name: str) -> str:
    found = [line.partition(":")[2] for line in info.decode().splitlines() if line.startswith(f"{name}:")]
    return found[0] if found else ""


@contextlib.asynccontextmanager
async def replicated() -> AsyncIterator[Replicated]:
    # Else it would wait for more replicas to come.
    with Valkey("--repl-diskless-sync", "no") as primary:
        async with Forwarder(primary.port) as link, Forwarder(primary.port) as door:
            with Valkey("--repl-diskless-load", "swapdb") as replica:
                # Said to one that runs, it happens at once.
                await asked(replica, "REPLICAOF", LOOPBACK, str(link.port))
                found = Replicated(primary, replica, link, door)
                await found.in_step()
                yield found


@contextlib.asynccontextmanager
async def restarted() -> AsyncIterator[Restarted]:
    with Valkey("--appendfsync", "no") as server:
        yield Restarted(server)


PLACES: dict[str, Callable[[], contextlib.AbstractAsyncContextManager[Place]]] = {
    "replica": replicated,
    "file": restarted,
}


#: For what does not depend on how commits were lost.
one_way = pytest.mark.parametrize("place", ["file"], indirect=True)


@pytest.fixture(params=PLACES)
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    """A place that forgets, in each way."""
    async with PLACES[request.param]() as found:
        yield found


@pytest.fixture
async def engines(place: Place) -> AsyncIterator[list[Engine]]:
    """Two processes there."""
    opened = [await Engine.open(place.url) for _ in range(2)]
    yield opened
    for engine in opened:
        await engine.close()


async def replaced(place: Place, *engines: Engine) -> None:
    """The other server answers, and these processes know."""
    await place.replace()
    for engine in engines:
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(Transport):
                    await engine.ping()
                    break


async def refused(engine: Engine, handle: Handle) -> list[EngineError]:
    """Everything that a holder can do is refused."""
    calls = (engine.renew(handle), engine.complete(handle, b"first"), engine.fail(handle, "no"))
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(each, Contention | NotFound) for each in found), found
    return [each for each in found if isinstance(each, EngineError)]


async def whole(engine: Engine) -> None:
    """Rows, indexes and log fit together; that something was lost is all that is to be said."""
    assert [each for each in (await examined(engine))[1] if each.invariant != "lost"] == []
    assert await valkey_rows.wrong_indexes(engine.store) == []


# -------------------------------------------------------------------------------------------------------------- leases


async def test_a_holder_whose_claim_was_lost_is_refused_for_ever(place: Place, engines: list[Engine]) -> None:
    one, two = engines
    execution_id = await create(one, lane_id=LANE)
    await place.cut()
    first = await one.claim(LANE, (), policy("first"))
    assert first is not None
    assert one._held.find(Execution, execution_id)[1]
    await replaced(place, one, two)
    assert one._held.find(Execution, execution_id) == (None, False), "what is held is of another server"
    await refused(one, first)
    second = await two.claim(LANE, (), policy("second"))
    assert second is not None
    assert payload_of(second).lease_epoch == payload_of(first).lease_epoch, "the epoch alone does not tell"
    for engine in engines:
        told = await refused(engine, first)
        assert all("this lease was lost" in each.detail for each in told)
    await two.renew(second)
    await two.complete(second, b"second")
    for engine in engines:
        assert all("this lease was lost" in each.detail for each in await refused(engine, first))
    probe = Probe(one)
    assert await probe.completions(execution_id) == ["success"]
    assert (await probe.execution(execution_id)).result == b"second"
    await two.complete(second, b"second")  # whoever did it may ask again
    await whole(one)


async def test_an_end_that_was_lost_comes_again(place: Place, engines: list[Engine]) -> None:
    """The lease that ended is back, and its holder may use it: it is the same lease."""
    one, _ = engines
    handle = await claimed(one)
    await place.cut()
    await one.complete(handle, b"once")
    await replaced(place, *engines)
    assert (await Probe(one).execution(id_of(handle))).result is None
    await one.complete(handle, b"again")
    probe = Probe(one)
    assert await probe.completions(id_of(handle)) == ["success"]
    assert (await probe.execution(id_of(handle))).result == b"again"
    await whole(one)


async def test_what_was_listed_is_listed_again(place: Place, engines: list[Engine]) -> None:
    """A process knows that a namespace and a lane are listed; the other server does not."""
    one, _ = engines
    await create(one)
    await place.cut()
    await create(one, namespace="new", lane_id="new")
    await one.complete(await claimed(one, namespace="new", lane_id="new"), b"")
    await replaced(place, *engines)
    again = await create(one, namespace="new", lane_id="new")
    await one.cancel_execution(execution_id=again, reason="to list it among the ended")
    assert [each.execution_id for each in (await one.search_executions(namespaces=["new"])).executions] == [again]
    await whole(one)


async def test_work_goes_on_while_servers_change(place: Place, engines: list[Engine]) -> None:
    """Calls under way get an answer or a passing error, and what is acknowledged on the new server stays."""
    kept: list[str] = []
    lost: list[str] = []
    is_over = False

    async def work(engine: Engine, number: int) -> None:
        while not is_over:
            after = len(lost_at) > 0
            try:
                made = await create(engine, lane_id=f"lane-{number}")
            except (Transport, Contention):
                await asyncio.sleep(0.01)
                continue
            (kept if after else lost).append(made)

    lost_at: list[bool] = []
    await place.cut()
    working = [asyncio.create_task(work(engine, number)) for engine in engines for number in range(4)]
    async with asyncio.timeout(30):
        while len(lost) < 40:  # noqa: ASYNC110 (they count for themselves)
            await asyncio.sleep(0.01)
        await place.replace()
        lost_at.append(True)
        while len(kept) < 40:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    is_over = True
    await asyncio.gather(*working)
    found = await valkey_rows.contents(engines[0].store, Execution)
    assert set(kept) <= found[Execution].keys()
    await whole(engines[0])


# -------------------------------------------------------------------------------------------------------------- events


async def test_followers_are_told_of_events_that_were_lost(place: Place, engines: list[Engine]) -> None:
    one, two = engines
    begin = await now(one, "completion")
    before = await finished(one)
    quick, slow = await one.subscribe_completion(begin), await two.subscribe_completion(begin)
    [first] = await take(quick, 1)
    await take(slow, 1)
    await place.cut()
    lost = [await finished(one) for _ in range(3)]
    seen = await take(quick, 3)
    assert [event.execution_id for event in seen] == lost
    await replaced(place, one, two)
    with pytest.raises(StreamGap) as caught:
        await take(quick, 1)
    assert (caught.value.requested, caught.value.oldest) == (seen[-1].cursor, first.cursor)
    # As many events as were lost, and more: none of them has the number of one that was.
    later = [await finished(one) for _ in range(5)]
    assert [event.execution_id for event in await take(slow, 5)] == later
    again = await two.subscribe_completion(caught.value.oldest)
    found = await take(again, 5)
    assert [event.execution_id for event in found] == later
    assert {event.cursor for event in found}.isdisjoint({event.cursor for event in seen})
    for cursor in (event.cursor for event in seen):
        subscription = await two.subscribe_completion(cursor)
        with pytest.raises(StreamGap):
            await take(subscription, 1)
        with pytest.raises(StreamGap) as caught:
            await two.read_events("completion", cursor)
        assert caught.value.oldest == first.cursor
    assert [event.execution_id for event in await rest(two, "completion", begin)] == [before, *later]
    assert [event.execution_id for event in await rest(two, "completion", found[-1].cursor)] == []
    await whole(one)


async def test_a_follower_that_was_away_is_told(place: Place, engines: list[Engine]) -> None:
    """Its cursor is all that tells of the loss: no process has noticed it."""
    one, _ = engines
    await place.cut()
    await finished(one)
    cursor = await now(one, "completion")
    for engine in engines:
        await engine.close()
    await place.replace()
    async with await Engine.open(place.url) as later:
        made = [await finished(later) for _ in range(3)]
        with pytest.raises(StreamGap) as caught:
            await later.read_events("completion", cursor)
        assert [each.execution_id for each in await rest(later, "completion", caught.value.oldest)] == made
        await whole(later)
        assert await later.store.losses() == []


@one_way
async def test_numbers_are_never_given_out_twice(place: Place, engines: list[Engine]) -> None:
    """Also when a server that had lost commits is lost in turn, and what it had numbered with it."""
    one, _ = engines
    await finished(one)
    await place.cut()
    used: set[int] = set()
    for _ in range(4):
        await finished(one)
        own = await valkey_rows.events(one.store, {LeaseEvent: 0, CompletionEvent: 0})
        fresh = {number for rows in own.values() for number, _ in rows} - {1, 2}
        assert fresh
        assert fresh.isdisjoint(used)
        used |= fresh
        await replaced(place, *engines)
    await whole(one)


@one_way
async def test_a_clock_that_is_wrong(place: Place, engines: list[Engine]) -> None:
    """Numbers rise all the same, by a step that is large enough for what a moment can lose."""
    one, _ = engines
    await finished(one)
    last = 10**16 // 2  # beyond what the clock says
    await one.store.connection.command("HSET", one.store.keys.meta, log_field(LeaseEvent, "last"), last)
    await place.cut()
    await replaced(place, *engines)
    await finished(one)
    [(end, start)] = breaks_of(
        await one.store.connection.command("HGET", one.store.keys.meta, log_field(LeaseEvent, "breaks"))
    )
    assert (end, start) == (last, last + losing._STEP)


@one_way
async def test_breaks_are_bounded(place: Place, engines: list[Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those whose events are gone are not kept; of others the newest are, and what lies below counts as deleted."""
    monkeypatch.setattr(losing, "_MOST_BREAKS", 2)
    one, _ = engines
    store = one.store
    begin = await now(one, "completion")
    for _ in range(4):
        await finished(one)
        # As if another server answered each time.
        store._histories._settled = None
        await store.connection.command("HSET", store.keys.meta, "history", "another", read_only=False)
    last = await finished(one)
    facts = await store.connection.command("HGET", store.keys.meta, log_field(CompletionEvent, "breaks"))
    assert len(breaks_of(facts)) == 2
    with pytest.raises(StreamGap) as caught:
        await one.read_events("completion", begin)
    found = await rest(one, "completion", caught.value.oldest)
    assert len(found) == 3
    assert found[-1].execution_id == last
    await whole(one)


# -------------------------------------------------------------------------------------------------- what can be said


async def test_processes_say_what_they_miss(
    place: Place, engines: list[Engine], caplog: pytest.LogCaptureFixture
) -> None:
    one, two = engines
    await finished(one)
    await place.cut()
    for _ in range(2):
        await finished(one)
    await claimed(two)
    before = one.store.connection.identity[0]
    with caplog.at_level(logging.WARNING, "flowfabric.stores.valkey"):
        await replaced(place, one, two)
        await create(one)
        await create(two)
    after = one.store.connection.identity[0]
    said = [each.getMessage() for each in caplog.records if "missing" in each.getMessage()]
    # Each lease begins and ends. One has not seen the claim of the other, who has not seen ends and knows the numbers.
    assert [each.partition("at least ")[2] for each in said] == [
        "6 events (2 completion, 4 lease) of 4 acknowledged commits are missing",
        "5 events (5 lease) of 1 acknowledged commit are missing",
    ]
    for engine in engines:
        [text] = await engine.store.losses()
        assert f"server {before[:12]} was replaced by {after[:12]}: at least 7 events (2 completion, 5 lease)" in text
        assert text.endswith("of 5 acknowledged commits are missing")
        assert text.startswith("at 2")
        violations = (await engine.examine()).violations
        assert [(each.invariant, each.detail) for each in violations] == [("lost", text)]


@one_way
async def test_whoever_only_reads_misses_events_too(place: Place, engines: list[Engine]) -> None:
    one, two = engines
    events = await two.subscribe_completion(cursor_at(0))
    await place.cut()
    await finished(one)
    await take(events, 1)
    await one.close()
    await replaced(place, two)
    with pytest.raises(StreamGap):
        await take(events, 1)
    [text] = await two.store.losses()
    assert "at least 1 event (1 completion) is missing" in text


@one_way
async def test_old_losses_are_not_told_for_ever(place: Place, engines: list[Engine], monkeypatch: Any) -> None:
    monkeypatch.setattr(losing, "_MOST_LOSSES", 2)
    one, _ = engines
    store = one.store
    for number in range(4):
        note = losing.Loss("a", f"b{number}", 1, {"lease": 1})
        arguments = [note.after.encode(), losing.msgspec.json.encode(note), b"2"]
        await store.connection.call("miss", [store.keys.losses], arguments, read_only=False)
    assert len(await store.losses()) == 2
    monkeypatch.setattr(losing, "_TOLD_FOR_S", -10)
    assert await store.losses() == []


# ----------------------------------------------------------------------------------------- a restart that loses nothing


async def test_a_server_that_was_killed_and_forces_its_file_loses_nothing() -> None:
    with Valkey() as server:
        async with await Engine.open(server.url) as engine:
            begin = await now(engine, "completion")
            events = await engine.subscribe_completion(begin)
            made = [await finished(engine) for _ in range(3)]
            handle = await claimed(engine)
            await take(events, 2)
            server.kill9()
            server.start()
            await engine.ping()
            await engine.complete(handle, b"")
            made += [id_of(handle), await finished(engine)]
            assert [event.execution_id for event in await take(events, 3)] == made[2:]
            assert [event.execution_id for event in await rest(engine, "completion", begin)] == made
            assert (await examined(engine))[1] == []
            first = await engine.examine()
            assert first.events == 5 + 2 * 5, "numbers that were passed over are no events"
            for limit in (1, 2, 3, 100):
                _, counted = await engine.store.query(CountEnded(None, 60_000, limit))
                assert sum(count for _, _, count in counted) == min(limit, 5), "the last so many, on both sides"
            # What is missing on either side of a break is found all the same.
            ask, keys = engine.store.connection.command, engine.store.keys
            [(end, start)] = breaks_of(await ask("HGET", keys.meta, log_field(LeaseEvent, "breaks")))
            first, before = start + 1, f"events {end} to {start + 1} missing"
            for number, said in ((first, f"event {first} missing"), (end, before)):
                await ask("XDEL", keys.log(LeaseEvent), f"{number}-0", read_only=False)
                [violation] = (await examined(engine))[1]
                assert (violation.invariant, violation.detail) == ("I34", said)


async def test_what_a_replica_has_confirmed_survives_its_promotion() -> None:
    async with replicated() as place, await Engine.open(f"{place.url}?durability=replicated") as engine:
        events = await engine.subscribe_completion(cursor_at(0))
        made = [await finished(engine) for _ in range(5)]
        handle = await claimed(engine)
        await take(events, 5)
        await place.replace()
        await engine.close()
        async with await Engine.open(place.url) as later:
            assert [event.execution_id for event in await rest(later, "completion", cursor_at(0))] == made
            await later.complete(handle, b"")
            assert (await examined(later))[1] == []
            assert await valkey_rows.wrong_indexes(later.store) == []


async def test_a_commit_that_was_torn_is_there_wholly_or_not_at_all() -> None:
    """Whatever part of a commit has reached the file."""
    async with restarted() as place:
        server = place.server
        async with await Engine.open(place.url) as engine:
            await finished(engine)
            handles = [await claimed(engine) for _ in range(3)]
            await place.cut()
            first, small = place._size, await contents(engine)
            await asyncio.gather(*(engine.complete(handle, b"result") for handle in handles))
            last, large = place.file.stat().st_size, await contents(engine)
        server.kill9()
        saved = server.directory / "saved"
        shutil.copytree(place.file.parent, saved)
        found = []
        for size in [*range(first, last, max((last - first) // (200 if full_run() else 8), 1)), last]:
            shutil.rmtree(place.file.parent)
            shutil.copytree(saved, server.directory / "appendonlydir")
            place._size = size
            await place.replace()
            async with await Engine.open(place.url) as engine:
                found.append(await contents(engine))
                await whole(engine)
        assert found[0] == small
        assert found[-1] == large
        assert all(each in (small, large) for each in found)


async def contents(engine: Engine) -> Any:
    """Every record and event."""
    records = await valkey_rows.contents(engine.store)
    events = await valkey_rows.events(engine.store, {LeaseEvent: 0, CompletionEvent: 0})
    return records, events


# ----------------------------------------------------------------------------------------------------- a flushed server


async def test_a_database_that_is_emptied_under_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "RETRIES", 2)
    with Valkey() as server:
        async with await Engine.open(server.url) as engine, await Engine.open(server.url) as other:
            await finished(engine)
            handle = await claimed(engine)
            events = await engine.subscribe_completion(cursor_at(0))
            await take(events, 1)
            await asked(server, "FLUSHALL")
            calls: list[Callable[[], Any]] = [
                lambda: create(engine),
                lambda: engine.complete(handle, b""),
                lambda: engine.claim(LANE, (), policy()),
                lambda: engine.describe_execution(id_of(handle)),
                lambda: engine.list_executions(0),
                lambda: engine.read_events("completion", cursor_at(0)),
                lambda: engine.list_schedules("default"),
                engine.list_lanes,
                engine.list_credentials,
                engine.list_waitpoint_hmac_kids,
                engine.ping,
                engine.examine,
            ]
            for call in calls:
                with pytest.raises(Transport, match=r"emptied or replaced .* restore it, or restart this process"):
                    await call()
            with pytest.raises(StreamDisconnected):
                await take(events, 1)
            assert await asked(server, "DBSIZE") == b":0\r\n"
            # Somebody begins anew there: that is still not the store that this process knows.
            async with await Engine.open(server.url) as fresh:
                made = await create(fresh, lane_id=LANE)
                for call in calls:
                    with pytest.raises(Transport, match="emptied or replaced"):
                        await call()
                with pytest.raises(Transport, match="emptied or replaced"):
                    await other.claim(LANE, (), policy())
                assert (await fresh.claim(LANE, (), policy())) is not None
                assert await Probe(fresh).completions(made) == []


async def test_the_data_of_another_server_is_noticed_at_the_commit() -> None:
    """A server that was a replica for a moment has other data, and its old connections."""
    with Valkey() as server:
        async with await Engine.open(server.url) as engine:
            await finished(engine)
            store = engine.store
            await store.connection.command("HSET", store.keys.meta, "history", "another", read_only=False)
            made = await finished(engine)
            assert await Probe(engine).completions(made) == ["success"]
            found = await valkey_rows.events(store, {CompletionEvent: 0})
            assert [number > 10**15 for number, _ in found[CompletionEvent]] == [False, True]
            await whole(engine)
