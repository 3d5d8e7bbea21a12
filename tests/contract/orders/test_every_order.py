"""Every path that creates, lists, pages or picks, under a clock that stands still: at one engine on every store, and at
two by turns whose clocks differ. Nothing is in an order by chance, and no page skips or repeats."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import httpx
import pytest

from flowfabric import App, BackfillResult, Every, ExecutionId, FlowGraph, FlowId, Frame, Scope, SuspendArgs
from flowfabric.ascending import ascending_uuid
from flowfabric.engine import Engine
from flowfabric.model.operations.suspension import SuspensionReason
from flowfabric.model.operations.workflows import NewStep
from flowfabric.model.partitions import flow_partition
from flowfabric.model.reads.samples import SAMPLE_MS
from flowfabric.model.reads.subscriptions import cursor_at, event_id_of
from flowfabric.model.records.starts import EnqueueRequest
from flowfabric.server import ServerConfig, create_app
from tests.contract import seeding
from tests.contract.conftest import STORES
from tests.contract.probe import START_MS, ManualClock, create, id_of, policy
from tests.contract.suspending import asking
from tests.server.making import creation

LANE = "lane"
HOUR = 3_600_000
#: How far two processes are apart.
BEHIND_MS = 50
SIZES = (1, 3, 100)
#: More than one round of a batch takes.
MANY = 40

Made = list[tuple[int, ExecutionId]]


class Site:
    """Engines on one store that are called by turns, each with the time it has."""

    def __init__(self, clock: ManualClock, *engines: Engine) -> None:
        self.clock = clock
        self.engines = engines
        self._calls = 0

    @property
    def next(self) -> Engine:
        self._calls += 1
        return self.engines[self._calls % len(self.engines)]

    def time_of(self, engine: Engine) -> int:
        return self.clock() - BEHIND_MS * self.engines.index(engine)

    def __getattr__(self, name: str) -> Any:
        """An operation at the engine whose turn it is."""
        return getattr(self.next, name)


@pytest.fixture(params=["memory", "sqlite", "postgres", "valkey", "two on postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def site(kind: str, request: pytest.FixtureRequest, tmp_path: Any, clock: ManualClock) -> AsyncIterator[Site]:
    url = STORES[kind.rpartition(" ")[2]](request, tmp_path)
    async with await Engine.open(url, single_node=True, clock=clock) as engine:
        if not kind.startswith("two"):
            yield Site(clock, engine)
            return
        async with await Engine.open(url, single_node=True, clock=lambda: clock() - BEHIND_MS) as behind:
            yield Site(clock, engine, behind)


# -- creating ----------------------------------------------------------------------------------------------------------


async def one_by_one(site: Site) -> Made:
    made = []
    for number in range(2 * len(SIZES) + 6):
        engine = site.next
        made.append((site.time_of(engine), await create(engine, lane_id=LANE, namespace=f"n{number % 3}")))
    return made


async def all_at_once(site: Site) -> Made:
    made: Made = []
    for _ in range(2):
        engine = site.next
        found = await asyncio.gather(*(create(engine, lane_id=LANE) for _ in range(MANY)))
        made += [(site.time_of(engine), each) for each in found]
    return made


async def in_bulk(site: Site) -> Made:
    made: Made = []
    for _ in range(3):
        engine = site.next
        answers = await engine.create_executions([{"lane_id": LANE}] * MANY)
        made += [(site.time_of(engine), each.execution_id) for each in answers]
    return made


async def by_task(site: Site) -> Made:
    made: Made = []
    for _ in range(2):
        engine = site.next
        app = await App("memory://", lane=LANE).open_on(engine)
        runs = await app.task(name="work")(_work).start_many(range(MANY))
        made += [(site.time_of(engine), ExecutionId.parse(each.id)) for each in runs]
    return made


async def _work(number: int) -> None: ...


async def over_http(site: Site) -> Made:
    made: Made = []
    for _ in range(2):
        engine = site.next
        transport = httpx.ASGITransport(create_app(engine, ServerConfig()))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            body = {"executions": [creation(lane_id=LANE)] * MANY}
            answer = (await client.post("/v1/executions/bulk", json=body)).raise_for_status().json()
        made += [
            (site.time_of(engine), ExecutionId.parse(each["Created"]["execution_id"])) for each in answer["results"]
        ]
    return made


async def flows(site: Site) -> Made:
    made: Made = []
    for number in range(4):
        engine = site.next
        names = [f"node {(each * 7 + number) % 10}" for each in range(10)]
        submitted = await engine.submit_flow(FlowGraph({name: {"lane_id": LANE} for name in names}, []))
        made += [(site.time_of(engine), submitted.execution_ids[name]) for name in names]
    return made


async def joined(site: Site) -> Made:
    """Created one by one for a flow, then added to it."""
    engine = site.next
    flow = (await engine.create_flow()).flow_id
    made: Made = []
    for _ in range(8):
        own = ExecutionId.for_flow(flow, engine.partitions)
        made.append((site.time_of(engine), await create(engine, execution_id=own, lane_id=LANE)))
        await engine.add_execution_to_flow(flow_id=flow, execution_id=own)
        engine = site.next
    return made


async def children(site: Site) -> Made:
    engine = site.next
    await create(engine, lane_id="parents")
    handle = await engine.claim("parents", policy=policy())
    assert handle is not None
    ids = [ExecutionId.of(id_of(handle).partition, ascending_uuid()) for _ in range(12)]
    for some in (ids[:5], ids[5:]):
        await engine.advance(handle, children=[{"execution_id": each, "lane_id": LANE} for each in some])
    return [(site.time_of(engine), each) for each in ids]


async def forks(site: Site) -> Made:
    engine = site.next
    origin = await create(engine, lane_id=LANE)
    handle = await engine.claim(LANE, policy=policy())
    assert handle is not None
    await engine.complete(handle, b"")
    found = [(await engine.fork_execution(execution_id=origin)).execution_id for _ in range(6)]
    return [(site.time_of(engine), each) for each in found]


async def slots(site: Site) -> Made:
    engine = site.next
    await engine.put_schedule("s", spec=Every(HOUR), execution_kind="op", lane_id=LANE, overlap="queue")
    answer = await engine.backfill_schedule("s", START_MS - 20 * HOUR, START_MS)
    assert isinstance(answer, BackfillResult.Started)
    return [(site.time_of(engine), each) for each in answer.execution_ids]


async def missed_slots(site: Site) -> Made:
    options: dict[str, Any] = {"overlap": "queue", "catch_up": "all", "catch_up_limit": 20}
    await site.next.put_schedule("s", spec=Every(HOUR), execution_kind="op", lane_id=LANE, **options)
    site.clock.advance(15 * HOUR)
    engine = site.next
    await engine.run_timer("schedules")
    past = (await engine.list_schedule_runs("s")).past
    return [(site.time_of(engine), each.execution_id) for each in reversed(past) if each.execution_id is not None]


async def requests(site: Site) -> Made:
    """Made by several processes, and taken up in one go."""
    engine = site.next
    drafts = [site.draft_request({"lane_id": LANE}) for _ in range(MANY)]
    for draft in drafts:
        row = EnqueueRequest(draft.request_id, START_MS, draft.execution_id, draft.command)
        await seeding.seed(engine, row)
    assert await engine.run_timer("enqueue_requests") == MANY
    return [(site.time_of(engine), draft.execution_id) for draft in drafts]


CREATORS: dict[str, Callable[[Site], Awaitable[Made]]] = {
    each.__name__: each
    for each in (
        one_by_one, all_at_once, in_bulk, by_task, over_http, flows, joined, children, forks, slots, missed_slots,
        requests,
    )
}  # fmt: skip


@pytest.mark.parametrize("creator", CREATORS)
async def test_what_is_created_first_is_told_and_taken_first(site: Site, creator: str) -> None:
    """By its creator's clock, then in the order of the calls."""
    made = await CREATORS[creator](site)
    expected = [each for _, each in sorted(made, key=lambda one: one[0])]
    for size in SIZES[1:]:
        found = await through(site, "search_executions", size, lane_id=LANE, states=["waiting"])
        assert [each.execution_id for each in found] == expected[::-1]
    assert list(await site.scan_eligible_executions(LANE, limit=1_000)) == expected
    taken = [await site.claim(LANE, (), policy()) for _ in range(3)]
    taken += await site.claim_many(LANE, (), policy(), 4)
    while more := await site.claim_from_lanes({LANE: 5}, (), policy(), 5):
        taken += more
    assert list(map(id_of, taken)) == expected
    for _, each in made:
        row = await site.read_execution_info(each)
        assert row.created_at <= row.started_at


# -- pages -------------------------------------------------------------------------------------------------------------


class Paged(NamedTuple):
    """An operation that gives a long list in parts."""

    #: What a page holds.
    items: Callable[[Any], Iterable[Any]]
    #: By what the items ascend; none is like another.
    key: Callable[[Any], Any]
    #: Whether the last comes first.
    newest_first: bool = False
    #: What is asked besides.
    more: Callable[[dict[str, Any]], dict[str, Any]] = lambda scene: {}
    #: How the place behind a page is called, and where it is found.
    place: str = "cursor"
    behind: Callable[[Any], Any] = lambda page: page.next_cursor
    size: str = "limit"


def _last(page: Any) -> Any:
    return page[-1] if page else None


def _by_name(*names: str) -> Callable[[Any], Any]:
    return lambda each: tuple(getattr(each, name) for name in names)


def _created(each: Any) -> Any:
    return (each.created_at, each.execution_id.uuid_text, each.execution_id.partition)


PAGED = {
    "search_executions": Paged(lambda page: page.executions, _created, True),
    "read_flow_tree": Paged(lambda page: page.members, _created, True, lambda scene: {"flow_id": scene["flow"]}),
    "search_flows": Paged(lambda page: page.flows, lambda each: (each.created_at, str(each.flow_id)), True),
    "search_suspended": Paged(
        lambda page: page.executions, lambda each: (each.suspended_at, each.execution_id.uuid_text), True
    ),
    "list_suspended": Paged(
        lambda page: page.entries,
        lambda each: (each.suspended_at_ms, each.execution_id.uuid_text),
        more=lambda scene: {"partition": scene["partition"]},
    ),
    "list_executions": Paged(
        lambda page: page.executions,
        lambda each: each.uuid_text,
        more=lambda scene: {"partition": scene["partition"]},
    ),
    "list_flows": Paged(
        lambda page: page.flows,
        lambda each: str(each.flow_id),
        more=lambda scene: {"partition": scene["flow_partition"]},
    ),
    "list_expired_leases": Paged(
        lambda page: page.entries,
        lambda each: (each.expires_at_ms, str(each.execution_id)),
        more=lambda scene: {"as_of": scene["now"] + 10 * HOUR},
        place="after",
        behind=lambda page: page.cursor,
    ),
    "list_audit": Paged(lambda page: page.entries, lambda each: each.number, True, place="after"),
    "list_requests": Paged(lambda page: page.requests, _by_name("request_id")),
    "list_pending_waitpoints": Paged(
        lambda page: page.entries,
        _by_name("waitpoint_id"),
        more=lambda scene: {"execution_id": scene["asker"]},
        place="after",
    ),
    "list_steps": Paged(
        lambda page: page,
        _by_name("sequence", "name"),
        more=lambda scene: {"execution_id": scene["worker"]},
        place="after",
        behind=_last,
    ),
    "list_live_steps": Paged(
        lambda page: page, lambda each: (str(each.execution_id), each.name), place="after", behind=_last
    ),
    "tail_stream": Paged(
        lambda page: page.frames,
        lambda each: tuple(map(int, each.id.split("-"))),
        more=lambda scene: {"execution_id": scene["worker"]},
        place="after",
        behind=lambda page: page.frames[-1].id if page.frames else None,
        size="count_limit",
    ),
    "read_events": Paged(
        lambda page: page.events,
        lambda each: event_id_of(each.cursor),
        more=lambda scene: {"family": "lease_history", "cursor": cursor_at(0)},
        behind=lambda page: page.cursor if page.more else None,
    ),
    "list_samples": Paged(
        lambda page: page.samples, lambda each: each.pulse.at_ms, place="since", behind=lambda page: page.next_since
    ),
    # By their names or ids.
    "list_namespaces": Paged(lambda page: page, lambda each: each.encode(), place="after", behind=_last),
    "list_lanes": Paged(lambda page: page.lanes, lambda each: each.encode()),
    "list_budgets": Paged(lambda page: page.budgets, _by_name("budget_id"), place="after"),
    "list_quota_policies": Paged(lambda page: page.policies, _by_name("quota_policy_id"), place="after"),
    "list_credentials": Paged(lambda page: page.credentials, _by_name("credential_id"), place="after"),
    "list_kind_definitions": Paged(lambda page: page.kinds, _by_name("namespace", "kind")),
    "list_schedules": Paged(lambda page: page.schedules, _by_name("schedule_id")),
    "search_schedules": Paged(lambda page: page.schedules, _by_name("namespace", "schedule_id")),
    "list_workers": Paged(
        lambda page: page.entries,
        _by_name("worker_instance_id"),
        more=lambda scene: {"namespace": "n0"},
        place="after",
        behind=lambda page: page.cursor,
    ),
    "search_workers": Paged(
        lambda page: page.entries, _by_name("namespace", "worker_instance_id"), behind=lambda page: page.cursor
    ),
}
#: What has a limit and gives no pages: it picks, counts, or looks as far as it says.
UNPAGED = {
    *("claim_many", "claim_from_lanes", "scan_eligible_executions", "promote_submitted", "run_due", "run_timer"),
    *("group_failures", "list_schedule_runs", "examine", "read_stream"),
}


async def test_every_operation_that_pages_is_here() -> None:
    limits = {"limit", "count_limit"}
    known = {
        name
        for name, method in inspect.getmembers(Engine, inspect.isfunction)
        if not name.startswith("_") and limits & set(inspect.signature(method).parameters)
    }
    assert known == PAGED.keys() | UNPAGED


async def through(site: Site, name: str, size: int, **asked: Any) -> list[Any]:
    """Everything there is, page by page, at the engines by turns."""
    way = PAGED[name]
    found: list[Any] = []
    while True:
        page = await getattr(site.next, name)(**asked, **{way.size: size})
        own = list(way.items(page))
        assert len(own) <= size
        found += own
        assert len(found) < 1_000, f"{name} goes round in circles"
        behind = way.behind(page)
        if behind is None:
            return found
        asked[way.place] = behind


async def filled(site: Site) -> dict[str, Any]:
    """Some of everything, made at the engines by turns within one millisecond each had, but for what needs several."""
    flow = (await site.submit_flow(FlowGraph({f"m{n}": {"lane_id": "members"} for n in range(7)}, []))).flow_id
    partition = ExecutionId.solo(LANE, site.next.partitions).partition
    for number in range(9):
        namespace = f"n{number % 4}"
        await create(site.next, lane_id=LANE, namespace=namespace)
        await create(site.next, lane_id=f"lane {number}", namespace=namespace)
        await site.create_flow(flow_id=beside(flow, site))
        await site.record_act(who="ann", act=str(number), subject={}, status=200)
        await site.create_budget(budget_id=ascending_uuid())
        await site.create_quota_policy(quota_policy_id=ascending_uuid(), max_concurrent=1)
        await site.create_credential(name="c", scopes=[Scope.READ])
        await site.announce_kinds(namespace, {f"kind {number}": {"noun": "task"}})
        await site.put_schedule(f"s{number}", spec=Every(HOUR), execution_kind="op", namespace=namespace)
        await site.put_schedule(f"s{number}", spec=Every(HOUR), execution_kind="op")
        draft = site.draft_request({"lane_id": LANE})
        row = EnqueueRequest(draft.request_id, START_MS, draft.execution_id, draft.command)
        await seeding.seed(site.next, row)
        for space in ("n0", namespace):
            await site.register_worker(
                worker_id="w", worker_instance_id=f"i{number}", lanes=[LANE], namespace=space, liveness_ttl_ms=HOUR
            )
    scene: dict[str, Any] = {"flow": flow, "partition": partition}
    scene["flow_partition"] = ExecutionId.for_flow(flow, site.next.partitions).partition
    engine = site.next
    held = await engine.claim_many(LANE, (), policy(ttl_ms=HOUR), 9)
    for each in (held[5], held[1], held[6], held[2]):
        await site.suspend(each, questioned())
    worker = held[0]
    await engine.advance(worker, steps=[NewStep(f"step {n * 5 % 9}", b"1") for n in range(9)])
    for _ in range(9):
        await engine.append_frame(worker, Frame(b"x"))
    scene["worker"] = id_of(worker)
    asker = held[3]
    for number in range(9):
        await engine.create_waitpoint(asker, f"k{number}", HOUR)
    scene["asker"] = id_of(asker)
    site.clock.advance(SAMPLE_MS - site.clock() % SAMPLE_MS)
    for _ in range(5):
        await engine.record_sample(pulse=await engine.read_pulse())
        site.clock.advance(SAMPLE_MS)
    scene["now"] = site.clock()
    return scene


def beside(flow: FlowId, site: Site) -> FlowId:
    """The id of a new flow in the partition of another one."""
    count = site.next.partitions
    while flow_partition(found := FlowId.new(), count) != flow_partition(flow, count):
        pass
    return found


def questioned() -> SuspendArgs:
    return asking(reason_code=SuspensionReason.WAITING_FOR_APPROVAL)


async def test_pages_of_any_size_are_one_list(site: Site) -> None:
    """In an order that leaves nothing to chance."""
    scene = await filled(site)
    for name, way in PAGED.items():
        asked = way.more(scene)
        lists = [await through(site, name, size, **asked) for size in SIZES]
        keys = [[way.key(each) for each in found] for found in lists]
        assert len(keys[0]) > 3, f"{name}: there is nothing to page through"
        assert keys[0] == keys[1] == keys[2], name
        ascending = keys[0][::-1] if way.newest_first else keys[0]
        assert all(one < other for one, other in pairwise(ascending)), name


async def test_a_page_goes_on_where_it_was(site: Site) -> None:
    """Whatever is created, suspended or recorded meanwhile: nothing comes twice, and what was there is not left out."""
    await filled(site)
    for name in ("search_executions", "search_flows", "search_suspended", "list_audit"):
        way = PAGED[name]
        before = [way.key(each) for each in await through(site, name, 100)]
        found: list[Any] = []
        asked: dict[str, Any] = {}
        while True:
            page = await getattr(site.next, name)(limit=2, **asked)
            found += [way.key(each) for each in way.items(page)]
            await create(site.next, lane_id=f"lane {len(found) % 9}")
            await site.create_flow()
            await site.record_act(who="ann", act="more", subject={}, status=200)
            handle = await site.claim(f"lane {len(found) % 9}", (), policy())
            assert handle is not None
            await site.suspend(handle, questioned())
            if way.behind(page) is None:
                break
            asked[way.place] = way.behind(page)
        assert len(found) == len(set(found)), name
        assert [each for each in found if each in set(before)] == before, name
