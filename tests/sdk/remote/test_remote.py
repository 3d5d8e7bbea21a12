"""Apps through a server: what only there can happen. That everything else works alike is shown by all other tests."""

from __future__ import annotations

import asyncio
import pickle
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flowfabric import (
    App,
    Ask,
    BadOptions,
    Budget,
    Created,
    Ctx,
    Duplicate,
    IdConflict,
    Limit,
    RunFailed,
    ServerRefused,
    first,
)
from flowfabric.conditions import Count, CountKind, Wildcard
from flowfabric.engine import Engine
from flowfabric.model.errors import NotFound, State, Transport, Validation
from flowfabric.model.operations.executions import ClaimPolicy
from flowfabric.model.operations.schedules import Every
from flowfabric.model.operations.suspension import Accepted, Fresh, SuspendArgs
from flowfabric.model.streams.frames import DurableSummary, Frame
from flowfabric.sdk.durations import seconds
from flowfabric.sdk.remote.engine import RemoteEngine
from flowfabric.sdk.remote.http_client import Address, Response
from flowfabric.server import ServerConfig
from tests.ports import free_port
from tests.sdk.serving import serving

SOON = seconds(20)
POINT = "0bf9d4a8-7c2e-4a4b-9a55-0a7b6d2f6c11"


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with serving(f"sqlite:///{tmp_path}/ff.db") as address:
        yield address


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[str]:
    with serving(f"sqlite:///{tmp_path}/ff.db", ServerConfig(port=0, api_token="token-of-this-test")) as address:
        yield address


@pytest.mark.parametrize("body", [b"<html>One moment, please</html>", b"[]", b"{}", b'{"answers": []}'])
async def test_a_response_that_is_not_the_servers_says_nothing(
    url: str, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    """A proxy in between may say 200 and mean nothing by it. Workers go on after such an error, as after a lost one."""

    async def between(*_: Any) -> Response:
        return Response(200, body)

    async with App(url) as app:
        engine: Any = app.engine
        await engine.create_execution()
        policy = ClaimPolicy("w", "w-1", 30_000)
        handle = await engine.claim("default", (), policy)
        monkeypatch.setattr(type(engine._servers), "request", between)
        calls = (
            engine.claim_many("default", (), policy, 1),
            engine.renew(handle),
            engine.look_at_leases([handle]),
            engine.complete(handle, b""),
            RemoteEngine.open(url),
        )
        for call in calls:
            with pytest.raises(Transport, match=r"the response cannot be read|0 responses to 1 call"):
                await call


# -- tokens ----------------------------------------------------------------------------------------------------------


async def test_a_token_is_asked_for(guarded: str) -> None:
    for token in (None, "wrong"):
        with pytest.raises(ServerRefused, match="the token is missing, wrong, expired or revoked"):
            await App(guarded, token=token).open()


async def test_a_worker_of_one_namespace(guarded: str, tmp_path: Path) -> None:
    async with await Engine.open(f"sqlite:///{tmp_path}/ff.db", single_node=True) as direct:
        scopes = ["worker", "submit", "read", "operator"]
        mine = (await direct.create_credential(name="w", scopes=scopes, namespaces=["mine"])).token
        app, foreign = App(guarded, token=mine, namespace="mine"), App(guarded, token=mine, namespace="theirs")

        @app.task
        async def double(number: int) -> int:
            return 2 * number

        @app.workflow
        async def sum_up(count: int) -> int:
            return sum([await double.using(key=str(n))(n) for n in range(count)])

        other = await direct.create_execution(namespace="theirs")
        async with app, app.worker():
            assert await (await sum_up.start(3)).result(SOON) == 6
            for call in (
                app.engine.read_execution_info(other.execution_id),
                app.engine.cancel_execution(execution_id=other.execution_id),
            ):
                with pytest.raises(NotFound):
                    await call
            with pytest.raises(ServerRefused, match="no access to namespace 'theirs'"):
                await app.engine.create_execution(namespace="theirs")
            with pytest.raises(ServerRefused, match="limited to some namespaces"):
                await app.lane_control().pause()
        with pytest.raises(ServerRefused, match="no access to namespace 'theirs'"):
            async with foreign, foreign.worker():
                pass
        assert (await direct.read_execution_info(other.execution_id)).public_state == "waiting"


async def test_a_worker_gives_up_what_its_workflows_have_started(guarded: str, tmp_path: Path) -> None:
    """That is part of working: no right to cancel whatever there is has to be given for it."""
    async with await Engine.open(f"sqlite:///{tmp_path}/ff.db", single_node=True) as direct:
        scopes = ["worker", "submit", "read"]
        mine = (await direct.create_credential(name="w", scopes=scopes, namespaces=["mine"])).token
        app = App(guarded, token=mine, namespace="mine")
        given_up = asyncio.Event()

        @app.task
        async def answer(pause: float) -> str:
            try:
                await asyncio.sleep(pause)
            except asyncio.CancelledError:
                given_up.set()
                raise
            return "quick"

        @app.workflow
        async def race() -> str:
            return await first(answer.using(key="quick")(0.0), answer.using(key="slow")(60.0))

        async with app, app.worker(lease_ttl=seconds(1)):
            run = await race.start()
            assert await run.result(SOON) == "quick"
            async with asyncio.timeout(20):
                await given_up.wait()
            with pytest.raises(ServerRefused, match="lacks the scope 'operator'"):
                await run.cancel()
        assert (await direct.list_audit()).entries == (), "working is no act"


async def test_the_scope_of_workers_suffices_for_budgets_and_limits(guarded: str, tmp_path: Path) -> None:
    """A worker of one namespace creates what its runs name, the first time they do, and only there."""
    team = Budget("team", tokens=40, under=Budget("house", tokens=100))

    def defined(app: App) -> tuple[Any, Any]:
        @app.task(limits=[Limit(1, key="tenant")], budget=Budget("children", tokens=50))
        async def child(ctx: Ctx, tenant: str) -> str:
            async with ctx.spend(tokens=10):
                return tenant

        @app.workflow
        async def parent() -> list[str]:
            return [await child.using(key=name)(name) for name in ("acme", "globex")]

        @app.task
        async def spender(ctx: Ctx, tokens: int) -> int:
            async with ctx.spend(budget=team, tokens=tokens):
                return tokens

        return parent, spender

    async with await Engine.open(f"sqlite:///{tmp_path}/ff.db", single_node=True) as direct:
        token = (await direct.create_credential(name="w", scopes=["worker"], namespaces=["mine"])).token
        app, owner = App(guarded, token=token, namespace="mine"), App(f"sqlite:///{tmp_path}/ff.db", namespace="mine")
        _, refused = defined(app)
        parent, spender = defined(owner)
        async with owner, app, app.worker():
            with pytest.raises(ServerRefused, match="lacks the scope 'submit'"):
                await refused.start(1)
            assert await (await spender.start(30)).result(SOON) == 30
            with pytest.raises(RunFailed, match="no room for 30 tokens in the budget team"):
                await (await spender.start(30)).result(SOON)
            assert await (await parent.start()).result(SOON) == ["acme", "globex"]
        spent = {(each.namespace, each.scope_id): each.usage for each in (await direct.list_budgets()).budgets}
        assert spent == {
            ("mine", name): {"tokens": used} for name, used in (("team", 30), ("house", 30), ("children", 20))
        }
        assert [each.namespace for each in (await direct.list_quota_policies()).policies] == ["mine", "mine"]
        with pytest.raises(ServerRefused, match="no access to namespace 'theirs'"):
            async with App(guarded, token=token, namespace="theirs") as foreign:
                await foreign.gates.budget(team)


async def test_what_is_needed_to_start_and_to_answer(guarded: str, tmp_path: Path) -> None:
    """Each with a credential that is limited to a namespace, and has these scopes only."""

    def defined(app: App) -> tuple[Any, Any]:
        @app.task(id="order:{number}")
        async def order(number: int) -> int:
            return number

        @app.workflow
        async def deploy() -> bool:
            return await Ask("deploy?", of={"ann", "bob"}, need=2)

        return order, deploy

    async with await Engine.open(f"sqlite:///{tmp_path}/ff.db", single_node=True) as direct:

        async def app_with(*scopes: str) -> App:
            created = await direct.create_credential(name="c", scopes=scopes, namespaces=["mine"])
            return App(guarded, token=created.token, namespace="mine")

        owner = App(f"sqlite:///{tmp_path}/ff.db", namespace="mine")
        _, deploy = defined(owner)
        async with owner, owner.worker():
            run = await deploy.start()
            async with await app_with("submit") as starting:
                order, _ = defined(starting)
                assert await order.start(1) == await order.start(1)
                other = starting.task(name="other", id="order:{number}")(order.function)
                with pytest.raises(IdConflict, match="belongs to a run of 'order'"):
                    await other.start(1)
            async with await app_with("read", "signal", "operator") as trusted:
                [ask] = await trusted.asks(run.id, wait=SOON)
                link = await ask.link("bob")
                await ask.answer(True, by="ann")
            async with await app_with("read", "signal") as answering:
                [ask] = await answering.asks(run.id)
                for refused in (ask.link("bob"), ask.answer(True, by="bob")):
                    with pytest.raises(ServerRefused, match="lacks the scope 'operator'"):
                        await refused
                await answering.answer(link, True)
            assert await run.result(SOON) is True


# -- what cannot be --------------------------------------------------------------------------------------------------


async def test_no_transaction_of_ones_own(url: str) -> None:
    app = App(url)

    @app.task
    async def task() -> None: ...

    async with app:
        with pytest.raises(BadOptions, match="open the app on the store itself, or start the run after the commit"):
            await task.using(tx=sqlite3.connect(":memory:")).start()


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("http://", "is not a server URL"),
        ("https://user:secret@host", "pass the token as token="),
        ("http://a,ftp://b", "is not a server URL"),
    ],
)
async def test_addresses_that_are_none(address: str, sentence: str) -> None:
    with pytest.raises(BadOptions, match=sentence):
        await App(address).open()


def test_tokens_are_for_servers() -> None:
    with pytest.raises(BadOptions, match="only a server"):
        App("memory://", token="x")


async def test_nobody_there() -> None:
    with pytest.raises(Transport) as caught:
        await RemoteEngine.open(f"http://127.0.0.1:{free_port()}", patience_s=0.1)
    assert caught.value.retryable


# -- the engine's answers --------------------------------------------------------------------------------------------


async def test_errors_and_answers_are_the_engines_own(url: str) -> None:
    async with await RemoteEngine.open(url) as engine:
        made = await engine.create_execution(execution_kind="op")
        assert isinstance(made, Created)
        assert await engine.create_execution(execution_id=made.execution_id) == Duplicate(made.execution_id)
        with pytest.raises(State, match="execution_not_terminal"):
            await engine.replay_execution(execution_id=made.execution_id)
        with pytest.raises(Validation, match="lane"):
            await engine.create_execution(lane_id="x" * 100)
        with pytest.raises(Validation, match="cannot be sent"):
            await engine.create_execution(input_payload=object())
        handle = await engine.claim("default", policy=ClaimPolicy("w", "w-1"))
        assert handle is not None
        assert pickle.loads(pickle.dumps(handle)).envelope == handle.envelope
        [outcome] = await engine.append_frames(handle, [Frame(b"hi")])
        page = await engine.tail_stream(made.execution_id, 0)
        assert [frame.id for frame in page.frames] == [outcome.stream_id]
        await engine.complete(handle, b"\x00\xff")
        assert await engine.get_execution_result(made.execution_id) == b"\x00\xff"


async def test_large_and_many(url: str) -> None:
    async with await RemoteEngine.open(url) as engine:
        big = bytes(range(256)) * 4_000
        made = await asyncio.gather(*(engine.create_execution(input_payload=big) for _ in range(12)))
        contexts = await engine.read_execution_contexts([each.execution_id for each in made])
        assert all(context.input_payload == big for context in contexts.values())
        assert len(contexts) == 12


# -- lost connections ------------------------------------------------------------------------------------------------


class Proxy:
    """Stands between a client and a server, and cuts connections when it is told to."""

    def __init__(self, target: str) -> None:
        self._target = Address.parse(target)
        self._server: asyncio.Server | None = None
        self._pairs: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        #: Called with what the server answers; it is dropped, and the connection cut, if this says so.
        self.drops: Callable[[bytes], bool] = lambda data: False
        #: What the client gets instead of what is dropped, if the connection is not to be cut.
        self.instead = b""

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there, back = await asyncio.open_connection(self._target.host, self._target.port)
        self._pairs |= {writer, back}
        try:
            await asyncio.gather(self._copy(reader, back, False), self._copy(there, writer, True))
        finally:
            for each in (writer, back):
                each.close()
                self._pairs.discard(each)
            self._tasks.discard(task)

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, answers: bool) -> None:
        while data := await source.read(65_536):
            if answers and self.drops(data):
                if not self.instead:
                    self.cut()
                    return
                data = self.instead
            target.write(data)
            await target.drain()
        target.close()

    def cut(self) -> None:
        for each in list(self._pairs):
            each.transport.abort()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        if self._tasks:
            await asyncio.wait(set(self._tasks))


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[tuple[Proxy, str]]:
    proxy = Proxy(url)
    address = await proxy.start()
    try:
        yield proxy, address
    finally:
        await proxy.stop()


def dropping(times: int) -> Callable[[bytes], bool]:
    left = times

    def drop(data: bytes) -> bool:
        nonlocal left
        left -= 1
        return left >= 0

    return drop


async def test_a_lost_answer_creates_nothing_twice(url: str) -> None:
    async with proxied(url) as (proxy, address), await RemoteEngine.open(address) as engine:
        for delay in (None, 2**52):
            proxy.drops = dropping(2)
            made = await engine.create_execution(execution_kind="once", delay_until=delay)
            assert isinstance(made, Created), "the caller made it, whichever try that was"
            info = await engine.read_execution_info(made.execution_id)
            assert made.public_state == info.public_state
        proxy.drops = dropping(1)
        many = await engine.create_executions([{"execution_kind": "once"}, {"execution_kind": "once"}])
        assert [type(each) for each in many] == [Created, Created]
        page = await engine.search_executions(execution_kind="once")
        assert len(page.executions) == 4


async def test_a_lost_answer_to_an_end_is_asked_for_again(url: str) -> None:
    async with proxied(url) as (proxy, address), await RemoteEngine.open(address) as engine:
        await engine.create_execution()
        handle = await engine.claim("default", policy=ClaimPolicy("w", "w-1"))
        assert handle is not None
        proxy.drops = dropping(3)
        await engine.complete(handle, b"done")
        assert await engine.get_execution_result(handle.execution_id) == b"done"


async def test_what_may_not_be_repeated_says_that_it_is_not_known(url: str) -> None:
    async with proxied(url) as (proxy, address), await RemoteEngine.open(address) as engine:
        await engine.create_execution()
        handle = await engine.claim("default", policy=ClaimPolicy("w", "w-1"))
        assert handle is not None
        proxy.drops = dropping(1)
        with pytest.raises(Transport, match="the outcome is unknown"):
            await engine.append_frames(handle, [Frame(b"once")])
        page = await engine.read_stream(handle.execution_id)
        assert len(page.frames) == 1


async def test_a_lost_answer_to_a_numbered_append_doubles_no_frame(url: str) -> None:
    async with proxied(url) as (proxy, address), await RemoteEngine.open(address) as engine:
        await engine.create_execution()
        handle = await engine.claim("default", policy=ClaimPolicy("w", "w-1"))
        assert handle is not None
        told = []
        for number in range(1, 4):
            proxy.drops = dropping(2)
            frames = [Frame(b"%d%d" % (number, each)) for each in range(number)]
            told += [each.stream_id for each in await engine.append_frames(handle, frames, number)]
        proxy.drops = dropping(2)
        summary = Frame(b'{"done": 1}', mode=DurableSummary())
        told.append((await engine.append_frame(handle, summary, 4)).stream_id)
        page = await engine.read_stream(handle.execution_id)
        assert [each.id for each in page.frames] == told
        assert [each.fields["payload"] for each in page.frames[:-1]] == ["10", "20", "21", "30", "31", "32"]


async def test_a_lost_answer_to_a_signal_delivers_it_once(url: str) -> None:
    async with proxied(url) as (proxy, address), await RemoteEngine.open(address) as engine:
        await engine.create_execution()
        handle = await engine.claim("default", policy=ClaimPolicy("w", "w-1"))
        assert handle is not None
        condition = Count(2, CountKind.DISTINCT_SIGNALS, ("legal",), Wildcard())
        asked = SuspendArgs(waitpoints=[Fresh(POINT, "legal")], resume_condition=condition)
        token = (await engine.suspend(handle, asked)).details.waitpoint_token
        effects = []
        for name in ("first", "second"):
            proxy.drops = dropping(2)
            answer = await engine.deliver_signal(
                execution_id=handle.execution_id, waitpoint_id=POINT, waitpoint_token=token, signal_name=name
            )
            assert isinstance(answer, Accepted)
            effects.append(answer.effect)
        assert effects == ["appended_to_waitpoint", "resume_condition_satisfied"]
        signals = (await engine.read_history(handle.execution_id)).signals
        assert [each.signal_name for each in signals] == ["first", "second"]


FROM_A_PROXY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 14\r\n\r\n<h1>sorry</h1>"


async def test_only_what_may_be_repeated_is_repeated_after_the_answer_of_a_proxy(url: str) -> None:
    async with proxied(url) as (proxy, address), await RemoteEngine.open(address) as engine:
        await engine.put_schedule(schedule_id="tick", execution_kind="tick", spec=Every(10**9), overlap="queue")
        proxy.drops, proxy.instead = dropping(1), FROM_A_PROXY
        made, *lost = await asyncio.gather(
            engine.create_execution(execution_kind="once"),
            engine.trigger_schedule(schedule_id="tick"),
            engine.trigger_schedule(schedule_id="tick"),
            return_exceptions=True,
        )
        assert isinstance(made, Created)
        for each in lost:
            assert isinstance(each, Transport)
            assert "the answer was 503; the outcome is unknown" in str(each)
        for kind, count in (("once", 1), ("tick", 2)):
            assert len((await engine.search_executions(execution_kind=kind)).executions) == count


async def test_what_a_server_has_not_begun_is_asked_again(url: str) -> None:
    unbegun = msgspec.json.encode({"error": "later", "kind": "unavailable", "retryable": True, "started": False})
    async with proxied(url) as (proxy, address), await RemoteEngine.open(address) as engine:
        proxy.drops = dropping(2)
        proxy.instead = b"HTTP/1.1 503 Busy\r\ncontent-length: %d\r\n\r\n%b" % (len(unbegun), unbegun)
        await engine.debounce_execution("key", {"execution_kind": "once"}, wait_ms=1, at_most_ms=1)


@pytest.mark.parametrize("status", [b"", b"429 Slow Down", b"408 Too Late", b"500 Oh"])
async def test_a_lost_answer_to_a_claim_is_given_again(url: str, status: bytes) -> None:
    async with proxied(url) as (proxy, address), await RemoteEngine.open(address) as engine:
        if status:
            proxy.instead = FROM_A_PROXY.replace(b"503 Service Unavailable", status)
        for _ in range(7):
            await engine.create_execution(input_payload=b"in")
        policy = ClaimPolicy("w", "w-1", max_wait=1_000)
        taken = []
        for limit in (3, 2):
            proxy.drops = dropping(2)
            handles = await engine.claim_many("default", policy=policy, limit=limit)
            assert len(handles) == limit
            taken += handles
        proxy.drops = dropping(1)
        taken += await engine.claim_from_lanes({"default": 1, "other": 2}, policy=policy, limit=5)
        assert len({each.execution_id for each in taken}) == 7, "nothing waits for a lease that nobody knows of"
        assert all(each.payload.lease_epoch == 1 for each in taken)
        contexts = await engine.read_execution_contexts([each.execution_id for each in taken])
        assert [each.input_payload for each in contexts.values()] == [b"in"] * 7
        for handle in taken:
            await engine.complete(handle, None)


async def test_the_other_server_takes_over(url: str) -> None:
    async with proxied(url) as (first, one), proxied(url) as (second, two):
        app = App(f"{one},{two}")

        @app.task
        async def double(number: int) -> int:
            await asyncio.sleep(0.01)
            return 2 * number

        async with app, app.worker():
            for proxy in (first, second, first):
                runs = await double.start_many([(n,) for n in range(30)])
                results = asyncio.gather(*(run.result(seconds(60)) for run in runs))
                await asyncio.sleep(0.05)
                proxy.cut()
                assert await results == [2 * n for n in range(30)]


async def test_a_worker_outlives_a_server(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/ff.db"
    port = free_port()
    app = App(f"http://127.0.0.1:{port}")

    @app.task
    async def double(number: int) -> int:
        return 2 * number

    def server() -> Any:
        return serving(store, ServerConfig(port=port))

    running = server()
    await asyncio.to_thread(running.__enter__)
    async with app, app.worker():
        assert await (await double.start(1)).result(SOON) == 2
        await asyncio.to_thread(running.__exit__, None, None, None)
        starting = asyncio.create_task(double.start(2))
        await asyncio.sleep(0.2)
        running = server()
        await asyncio.to_thread(running.__enter__)
        assert await (await starting).result(SOON) == 4
    await asyncio.to_thread(running.__exit__, None, None, None)
