"""Starting tasks, and what becomes of their runs, on every store. Workers are played by hand."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from flowfabric import (
    App,
    BadArguments,
    BadOptions,
    BadSignature,
    Budget,
    EngineError,
    IdConflict,
    Limit,
    NotOpen,
    Rate,
    ResultTimeout,
    Retry,
    Run,
    RunCancelled,
    RunExpired,
    RunFailed,
    RunStatus,
    UnknownRun,
    UnknownTask,
    ValidationKind,
    days,
    hours,
    minutes,
    seconds,
)
from flowfabric.model.ownership import shown_id
from flowfabric.model.records.executions import Binding, Execution
from flowfabric.sdk.definitions.tasks import Step, Task, Workflow
from flowfabric.sdk.runs.start import TIMEOUT_SLACK_MS
from tests.contract.probe import START_MS, ManualClock, Probe, shared_stores_only
from tests.sdk.doing import claim, fail_one, run_one
from tests.sdk.serving import direct


@dataclass
class Doc:
    url: str
    tenant: str = "acme"


async def stored(app: App, run: Run[Any]) -> tuple[Execution, dict[str, Any], dict[str, Any]]:
    """A run's row, its raw fields and its policy."""
    probe = Probe(app.engine)
    row = await probe.execution(run.id)
    return row, await probe.raw_fields(run.id), msgspec.json.decode(row.policy or "{}")


async def test_a_started_run_is_an_execution(still_app: App) -> None:
    app = still_app

    @app.task
    def add(a: int, b: int = 2) -> int:
        return a + b

    run = await add.start(1)
    row, raw, policy = await stored(app, run)
    assert (row.namespace, row.lane_id, row.priority, row.delay_until_ms, row.deadline_at_ms) == (
        "default", "default", 0, None, None,
    )  # fmt: skip
    assert (raw["execution_kind"], raw["tags"], raw["payload_encoding"]) == ("add", {}, "json")
    assert row.payload == b'{"a":1}'
    assert policy["retry_policy"]["max_retries"] == 0
    assert await run.status() is RunStatus.WAITING
    assert await run_one(app) == 3
    assert await run.result() == 3
    assert await run.status() is RunStatus.COMPLETED


async def test_options_of_the_task(still_app: App) -> None:
    app = still_app

    @app.task(
        name="named",
        retry=Retry(5, first=seconds(2), jitter=False),
        timeout=minutes(2),
        deadline=hours(1),
        priority=7,
        lane="side",
        needs={"net", "gpu"},
        tags={"team": "docs"},
        retention=days(3),
    )
    async def task(doc: Doc) -> None: ...

    run = await task.start(Doc("u"))
    row, raw, policy = await stored(app, run)
    assert (row.lane_id, row.priority, row.required_capabilities) == ("side", 7, ("gpu", "net"))
    assert row.deadline_at_ms == START_MS + 3_600_000
    assert raw["execution_kind"] == "named"
    assert raw["tags"] == {"user.team": "docs"}
    assert policy["timeout_policy"]["attempt_timeout_ms"] == 120_000 + TIMEOUT_SLACK_MS
    assert policy["retry_policy"]["max_retries"] == 5
    assert policy["retry_policy"]["backoff"]["initial_delay_ms"] == 2_000
    assert policy["stream_policy"]["retention_ttl_ms"] == 3 * 86_400_000


async def test_options_of_one_start_go_before_those_of_the_task(still_app: App) -> None:
    app = still_app

    @app.task(priority=7, lane="side", tags={"team": "docs", "a": "1"}, deadline=days(1))
    async def task(n: int) -> None: ...

    special = task.using(priority=9, lane="fast", delay=minutes(1), deadline=hours(1), tags={"team": "ops"})
    assert isinstance(special, Task)
    run = await special.start(1)
    row, raw, _ = await stored(app, run)
    assert (row.lane_id, row.priority) == ("fast", 9)
    assert (row.delay_until_ms, row.deadline_at_ms) == (START_MS + 60_000, START_MS + 3_600_000)
    assert raw["tags"] == {"user.team": "ops", "user.a": "1"}
    assert await run.status() is RunStatus.DELAYED
    # The task itself is as it was.
    row, _, _ = await stored(app, await task.start(2))
    assert (row.lane_id, row.priority, row.delay_until_ms) == ("side", 7, None)


@direct
async def test_namespaces_and_lanes_of_the_app(store_url: str) -> None:
    async with App(store_url, namespace="acme", lane="own") as app:

        @app.task(id="x")
        def task() -> None: ...

        run = await task.start()
        row, _, _ = await stored(app, run)
        assert (row.namespace, row.lane_id) == ("acme", "own")
        [binding] = await Probe(app.engine).select(Binding, namespace="acme", idempotency_key="x")
        assert binding.uuid == run.id[-36:]


@direct
async def test_workflows_start_like_tasks(app: App) -> None:
    @app.workflow(id="review:{doc.url}", version="1")
    async def review(doc: Doc) -> str:
        return doc.url

    assert isinstance(review, Workflow)
    run = await review.start(Doc("u"))
    _, raw, _ = await stored(app, run)
    assert (raw["execution_kind"], raw["idempotency_key"]) == ("review", "review:u")


# -- ids ---------------------------------------------------------------------------------------------------------------


async def test_an_id_leads_to_the_first_run(still_app: App, clock: ManualClock) -> None:
    app = still_app

    @app.task(id="doc:{doc.tenant}:{doc.url}")
    async def task(doc: Doc) -> int: ...

    first = await task.start(Doc("u"))
    assert await task.start(Doc("u")) == first
    assert await task.start(Doc("u", "other")) != first
    clock.advance(30 * 86_400_000)
    assert await task.start(Doc("u")) == first
    other = await task.using(id="special").start(Doc("u"))
    assert other != first
    assert await task.using(id="special").start(Doc("v")) == other


async def test_an_id_may_be_refused(app: App) -> None:
    @app.task(id="one", reuse="reject")
    async def task() -> None: ...

    first = await task.start()
    with pytest.raises(IdConflict, match="exists") as caught:
        await task.start()
    assert (caught.value.code, caught.value.run_id, caught.value.ids["id"]) == ("id_conflict", first.id, "one")
    assert await task.using(reuse="existing").start() == first


async def test_an_id_of_another_task_is_told(app: App) -> None:
    """Whoever gets a run of another task would read its result by the wrong type."""

    @app.task(id="n:{n}")
    async def one(n: int) -> int: ...

    @app.task(id="n:{n}")
    async def other(n: int) -> str: ...

    first = await one.start(5)
    with pytest.raises(IdConflict, match="belongs to a run of 'one'") as caught:
        await other.start(5)
    assert caught.value.run_id == first.id
    with pytest.raises(IdConflict, match="belongs to a run of 'one'"):
        await other.start_many([6, 5])


async def test_an_id_may_be_used_again_after_the_end(app: App) -> None:
    @app.task(id="one", reuse="after_completion")
    async def task() -> int:
        return 5

    first = await task.start()
    assert await task.start() == first
    await run_one(app)
    runs = await asyncio.gather(*(task.start() for _ in range(10)))
    assert len({run.id for run in runs}) == 1
    assert runs[0] != first
    await runs[0].cancel()
    assert (await task.start_many([()]))[0] not in (first, runs[0])
    assert await first.result() == 5


@pytest.mark.parametrize("template", ["{", "{}", "{0}", "{doc!r}", "{doc.url:>5}", "{doc[0]}"])
def test_ids_hold_nothing_but_paths(template: str) -> None:
    app = App("memory://")
    with pytest.raises(BadOptions, match="id: "):

        @app.task(id=template)
        async def task(doc: Doc) -> None: ...

    assert app.definitions == {}


def test_paths_are_checked_where_they_are_written() -> None:
    app = App("memory://")

    async def task(doc: Doc) -> None: ...

    with pytest.raises(BadOptions, match="Doc has no 'link'"):
        app.task(id="x:{doc.link}")(task)
    with pytest.raises(BadOptions, match="does not begin with a parameter"):
        app.task(limits=[Limit(1, key="tenant")])(task)
    with pytest.raises(BadOptions, match="does not begin with a parameter"):
        app.task(task).using(id="{nope}")


def test_braces_in_ids() -> None:
    app = App("memory://")

    @app.task(id="{{{n}}}")
    async def task(n: int) -> None: ...

    from flowfabric.sdk.runs.start import id_of

    assert id_of(task, task.options.id, {"n": 5}) == "{5}"


# -- many --------------------------------------------------------------------------------------------------------------


async def test_many_in_one_call(app: App) -> None:
    calls = 0
    create = app.engine.create_executions

    async def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return await create(*args, **kwargs)

    app.engine.create_executions = counted  # type: ignore[method-assign]

    @app.task(id="n:{n}")
    async def task(n: int, text: str = "x") -> str:
        return f"{n}{text}"

    runs = await task.using(priority=3).start_many([1, (2,), (3, "y"), task.bind(4, text="z"), 1])
    assert calls == 1
    assert len({run.id for run in runs}) == 4
    assert runs[0] == runs[4]
    for _ in range(4):
        await run_one(app)
    assert [await run.result() for run in runs] == ["1x", "2x", "3y", "4z", "1x"]
    assert await task.start_many([]) == []


@direct
async def test_many_or_none(app: App) -> None:
    @app.task(id="n:{n}")
    async def task(n: int) -> None: ...

    with pytest.raises(BadArguments, match="task: n: "):
        await task.start_many([1, "2"])
    with pytest.raises(BadOptions, match="one by one"):
        await task.using(reuse="reject").start_many([1])
    assert await Probe(app.engine).select(Binding, namespace="default") == []


# -- results -----------------------------------------------------------------------------------------------------------


async def test_a_result_is_awaited(app: App) -> None:
    @app.task
    async def task(doc: Doc) -> list[Doc]:
        return [doc, doc]

    runs = await task.start_many([Doc("a"), Doc("b"), Doc("c")])
    waiting = asyncio.gather(*(run.result() for run in runs), runs[0].result(timeout=minutes(1)))
    await asyncio.sleep(0)
    for _ in runs:
        await run_one(app)
    results = await waiting
    assert results == [[Doc("a")] * 2, [Doc("b")] * 2, [Doc("c")] * 2, [Doc("a")] * 2]


async def test_results_arrive_by_the_subscription(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """No waiter may depend on its own safety look."""
    monkeypatch.setattr("flowfabric.sdk.runs.results.SAFETY_S", 3600.0)

    @app.task
    async def task(n: int) -> int:
        return n

    runs = await task.start_many(range(20))
    waiting = [asyncio.create_task(run.result()) for run in runs]
    for _ in runs:
        await run_one(app)
    assert await asyncio.wait_for(asyncio.gather(*waiting), 60) == list(range(20))


@shared_stores_only
async def test_results_of_another_process(app: App, store_url: str) -> None:
    @app.task
    async def task() -> str:
        return "done"

    run = await task.start()
    async with App(store_url) as other:
        other.task(name="task")(task.function)
        waiting = asyncio.create_task(other.run(run.id).result())
        await run_one(app)
        assert await waiting == "done"


async def test_a_result_that_takes_too_long(app: App) -> None:
    @app.task
    async def task() -> str: ...

    run = await task.start()
    with pytest.raises(ResultTimeout, match="is waiting after") as caught:
        await run.result(timeout=seconds(0.05))
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.ids == {"run": run.id}
    assert app.completions._waiting == {}


async def test_failures(app: App) -> None:
    @app.task
    async def task() -> str: ...

    run = await task.start()
    error = {"type": "mod.Boom", "message": "no", "traceback": "Traceback …", "category": "handler_error"}
    await fail_one(app, "Boom: no", msgspec.json.encode(error))
    with pytest.raises(RunFailed, match="Boom: no") as caught:
        await run.result()
    failed = caught.value
    assert (failed.run_id, failed.reason, failed.error_type) == (run.id, "Boom: no", "mod.Boom")
    assert (failed.traceback, failed.category, failed.code) == ("Traceback …", "handler_error", "run_failed")
    # An attempt that left nothing in its stream still has its reason.
    run = await task.start()
    await fail_one(app, "Boom: no")
    with pytest.raises(RunFailed) as caught:
        await run.result()
    assert (caught.value.error_type, caught.value.traceback) == ("Boom", "")


async def test_cancelling_and_starting_over(app: App) -> None:
    @app.task
    async def task() -> str:
        return "x"

    run = await task.start()
    waiting = asyncio.create_task(run.result())
    await run.cancel("not needed")
    with pytest.raises(RunCancelled, match="not needed") as caught:
        await waiting
    assert caught.value.reason == "not needed"
    run = await task.start()
    await fail_one(app, "Boom: no")
    with pytest.raises(RunFailed):
        await run.result()
    await run.replay()
    await run_one(app)
    assert await run.result() == "x"


async def test_deadlines(still_app: App, clock: ManualClock) -> None:
    app = still_app

    @app.task(deadline=minutes(1))
    async def task() -> str: ...

    run = await task.start()
    clock.advance(60_001)
    await app.engine.run_due()
    with pytest.raises(RunExpired, match="deadline"):
        await run.result()


async def test_looking_at_a_run(app: App) -> None:
    @app.task(tags={"team": "docs"})
    async def task() -> str: ...

    run = await task.start()
    info = await run.info()
    assert (info.public_state, info.tags) == (RunStatus.WAITING, {"user.team": "docs"})
    assert "worker" in (await run.explain()).sentence
    same = app.run(run.id, task)
    assert same == run
    assert hash(same) == hash(run)
    assert run.id in repr(run)


async def test_runs_by_id(app: App) -> None:
    @app.task
    async def task() -> Doc:
        return Doc("u")

    run = await task.start()
    await run_one(app)
    assert await app.run(run.id, task).result() == Doc("u")
    assert await app.run(run.id).result() == {"url": "u", "tenant": "acme"}
    missing = app.run(f"{{fp:0}}:{run.id[-36:-1]}{'0' if run.id[-1] != '0' else '1'}")
    for look in (missing.status(), missing.info(), missing.result()):
        with pytest.raises(UnknownRun):
            await look


async def test_what_the_engine_refuses_is_passed_on(app: App) -> None:
    @app.task
    async def task(text: str) -> None: ...

    with pytest.raises(EngineError) as caught:
        await task.start("x" * 2_000_000)
    assert caught.value.code == ValidationKind.PAYLOAD_TOO_LARGE


# -- limits and budgets ------------------------------------------------------------------------------------------------


@direct
async def test_keyed_limits_are_quotas(app: App) -> None:
    @app.task(limits=[Limit(4, key="doc.tenant"), Rate(60, per=minutes(2), key="doc.tenant")])
    async def task(doc: Doc) -> None: ...

    runs = [await task.start(Doc("u", tenant)) for tenant in ("a", "b", "a")]
    ids = [(await stored(app, run))[2]["quota_policy_id"] for run in runs]
    assert ids[0] == ids[2] != ids[1]
    limits = await app.engine.read_quota_policy_limits(shown_id(ids[0]), app.namespace)
    assert limits is not None
    assert (limits.active_concurrency_cap, limits.max_requests_per_window, limits.requests_per_window_seconds) == (
        4, 60, 120,
    )  # fmt: skip


async def test_a_limit_holds(app: App) -> None:
    @app.task(limits=[Limit(2, key="tenant")])
    async def task(tenant: str, n: int) -> None: ...

    await task.start_many([("a", n) for n in range(5)] + [("b", 0)])
    held = [await claim(app) for _ in range(3)]
    assert await app.engine.claim("default", policy=msgspec.structs.replace(claim_policy(), max_wait=None)) is None
    for handle in held:
        await app.engine.complete(handle, b"null")
    assert len({(await claim(app)).execution_id for _ in range(2)}) == 2
    assert await app.engine.claim("default", policy=msgspec.structs.replace(claim_policy(), max_wait=None)) is None


def claim_policy() -> Any:
    from tests.sdk.doing import WORKER

    return WORKER


async def test_quotas_are_created_once_per_process(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    created = []
    create = app.engine.create_quota_policy

    async def counted(**arguments: Any) -> Any:
        created.append(arguments["quota_policy_id"])
        return await create(**arguments)

    monkeypatch.setattr(app.engine, "create_quota_policy", counted)
    monkeypatch.setattr("flowfabric.sdk.runs.limits.MAX_KNOWN", 2)

    @app.task(limits=[Limit(2, key="n")])
    async def task(n: int) -> None: ...

    @app.task(limits=[Limit(1)])
    async def single() -> None: ...

    for n in (1, 1, 2, 1, 2):
        await task.start(n)
    assert len(created) == 2
    await single.start()
    await single.start()
    assert len(created) == len(set(created)) == 3
    await task.start(1)  # forgotten, made known again: which changes nothing
    assert len(created) == 4


@direct
async def test_budgets(app: App) -> None:
    whole = Budget("company", usd=1000)
    budget = Budget("tenant:acme", usd=20, tokens=1_000, every=days(1), on_breach="ask", under=whole)

    @app.task
    async def task() -> None: ...

    @app.task(budget=whole)
    async def other() -> None: ...

    run = await task.using(budget=budget).start()
    again = await task.using(budget=Budget("tenant:acme")).start()
    third = await other.using(budget=[budget]).start()
    first, second, both = [(await stored(app, each))[2]["budget_ids"] for each in (run, again, third)]
    assert first == second
    assert len(both) == 2
    assert both[1] == first[0]
    status = await app.engine.get_budget_status(shown_id(first[0]), app.namespace)
    assert status.hard_limits == {"usd": 20_000_000, "tokens": 1_000}
    assert (status.on_hard_limit, status.scope_id, status.parent_budget_id) == ("ask", "tenant:acme", shown_id(both[0]))
    assert status.next_reset_at is not None


# -- calling and defining ----------------------------------------------------------------------------------------------


async def test_a_task_is_still_a_function() -> None:
    app = App("memory://")

    @app.task(retry=3)
    async def greet(name: str, loud: bool = False) -> str:
        """Say hello."""
        return name.upper() if loud else name

    @app.task
    def plain(n: int) -> int:
        return n + 1

    @app.step
    def step(n: int) -> int:
        return n + 2

    assert isinstance(step, Step)
    assert await greet("a", loud=True) == "A"
    assert await plain(1) == 2
    assert await step(1) == 3
    assert greet.__doc__ == "Say hello."
    assert (greet.__name__, greet.kind, repr(greet)) == ("greet", "greet", "<task greet>")
    with pytest.raises(BadArguments, match="missing"):
        await greet()  # type: ignore[call-arg]


def test_what_cannot_be_defined() -> None:
    app = App("memory://")
    with pytest.raises(BadSignature, match="a workflow must be async"):

        @app.workflow  # type: ignore[arg-type]
        def flow() -> int:
            return 5

    with pytest.raises(BadSignature, match="returns its result"):

        @app.task
        async def pieces() -> Any:
            yield 1

    step = app.step(name="s")(lambda: 1)
    with pytest.raises(BadOptions, match="takes only key="):
        step.using(priority=5)
    assert step.using(key="a").start_options.key == "a"
    assert app.definitions == {}


async def test_an_app_that_is_not_open(store_url: str) -> None:
    app = App(store_url)

    @app.task
    async def task() -> None: ...

    with pytest.raises(NotOpen, match="async with app"):
        await task.start()
    async with app, app:
        run = await task.start()
        async with app:
            pass
        assert await run.status() is RunStatus.WAITING
        waiting = asyncio.create_task(run.result())
        await asyncio.sleep(0.05)
    with pytest.raises(NotOpen):
        await waiting
    with pytest.raises(NotOpen):
        await run.status()


def test_unknown_tasks_are_named() -> None:
    app = App("memory://")
    app.task(name="known")(lambda: None)
    with pytest.raises(UnknownTask, match=r"no task or workflow 'nope'.*Known: known"):
        app.definition("nope")


async def test_closing_leaves_no_task_behind(store_url: str) -> None:
    """Whoever waits when the app closes must not make it listen again."""
    app = App(store_url)

    @app.task
    async def task() -> None: ...

    async with app:
        run = await task.start()
        waiting = [asyncio.create_task(run.result()) for _ in range(3)]
        await asyncio.wait(waiting, timeout=0.05)
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(answer) for answer in answers] == [NotOpen] * 3
    with pytest.raises(NotOpen):
        await run.result()
    assert [each.get_name() for each in asyncio.all_tasks() if each.get_name() == "flowfabric-completions"] == []
    assert app.completions._task is None
