"""For those who look after the whole: who they are, where there is work, how it goes, what needs a person."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from flowfabric import __version__
from flowfabric.model.errors import EngineError
from flowfabric.model.limits import MAX_PAGE
from flowfabric.model.overview import FlowSearchPage, Pulse
from flowfabric.model.results import WorkerPage
from flowfabric.model.states import BlockingReason, LaneState
from flowfabric.server.access import ANYBODY, Scope
from flowfabric.server.answers import NO_STORE, Answer, plain
from flowfabric.server.operations import Call, Operation
from flowfabric.server.routes.search import Limit, PlacesQuery, namespaces_of, states_of
from flowfabric.server.sampling import BudgetLevel, Series

#: The longest window of charts: a day.
MAX_WINDOW_MS = 86_400_000
#: Work that has waited this long without anybody who could take it is stuck.
STUCK_MS = 60_000
#: A budget that is this full is worth a look.
NEARLY = 0.9
#: How many of a kind are looked at.
LOOKED_AT = 250
#: Suspensions that end when a person says so.
PEOPLE = (BlockingReason.WAITING_FOR_APPROVAL, BlockingReason.WAITING_FOR_BUDGET)


class Me(Struct, frozen=True):
    """Who calls, and what they may do. ``namespaces`` is ``None`` for all of them."""

    signed_in: bool
    #: Whether this server asks for no credential.
    open: bool
    name: str
    scopes: tuple[Scope, ...]
    namespaces: tuple[str, ...] | None
    version: str
    store: str
    now: int


class Namespaces(Struct, frozen=True):
    """Names of namespaces."""

    namespaces: tuple[str, ...]


class OverviewQuery(Struct, kw_only=True):
    """How far back."""

    window_ms: Annotated[int, Meta(ge=60_000, le=MAX_WINDOW_MS)] = 900_000


class OverviewAnswer(Struct, frozen=True):
    """How it goes now, and how it went."""

    now: Pulse
    budgets: tuple[BudgetLevel, ...]
    series: Series


class Matter(Struct, frozen=True):
    """Something that needs a person: of which kind, about what, and how many of it."""

    kind: str
    subject: str
    sentence: str
    count: int
    since_ms: int | None = None


class Matters(Struct, frozen=True):
    """What needs a person now."""

    matters: tuple[Matter, ...]


class FlowsQuery(Struct, kw_only=True):
    """What fits: ``state`` may name several with commas between."""

    namespace: str | None = None
    state: str | None = None
    kind: str | None = None
    cursor: str | None = None
    limit: Limit = 100


async def me(call: Call) -> Answer:
    """Who calls. Whoever has no good credential is told that, and nothing else."""
    who = await call.server.gate.principal(call.headers.get(b"authorization"))
    if who is None:
        return plain(Me(False, False, "", (), (), "", "", 0), headers=NO_STORE)
    own = None if who.namespaces is None else tuple(sorted(who.namespaces))
    scopes = tuple(sorted(who.scopes))
    now = await call.engine.now_ms()
    found = Me(True, who is ANYBODY, who.name, scopes, own, __version__, call.engine.backend_label, now)
    return plain(found, headers=NO_STORE)


async def namespaces(call: Call) -> Answer:
    """Those that can be seen."""
    own = call.principal.namespaces
    if own is not None:
        return plain(Namespaces(tuple(sorted(own))))
    return plain(Namespaces(tuple(sorted({"default", *await call.engine.list_namespaces(limit=MAX_PAGE)}))))


async def overview(call: Call) -> Answer:
    """Charts."""
    sample = await call.server.sampler.latest()
    series = call.server.sampler.series(call.query.window_ms, await call.engine.now_ms())
    return plain(OverviewAnswer(sample.pulse, sample.budgets, series))


async def search_flows(call: Call) -> Answer:
    """Flows, newest first."""
    query: FlowsQuery = call.query
    return plain(
        await call.engine.search_flows(
            namespaces=namespaces_of(call, query.namespace),
            states=states_of(query.state),
            flow_kind=query.kind,
            cursor=query.cursor,
            limit=query.limit,
        )
    )


async def search_workers(call: Call) -> Answer:
    """Who is alive, wherever."""
    query: PlacesQuery = call.query
    own = namespaces_of(call, query.namespace)
    return plain(await call.engine.search_workers(namespaces=own, cursor=query.cursor, limit=query.limit))


async def attention(call: Call) -> Answer:
    """What needs a person now."""
    own = namespaces_of(call, None)
    waiting = await call.engine.search_suspended(reasons=PEOPLE, namespaces=own, limit=LOOKED_AT)
    found = []
    if waiting.executions:
        count, more = len(waiting.executions), "" if waiting.next_cursor is None else " or more"
        questions = "question waits" if count == 1 else f"questions{more} wait"
        oldest = min(each.created_at for each in waiting.executions)
        found.append(Matter("asks", "", f"{count} {questions} for an answer", count, oldest))
    if own is None:
        found += await _stuck(call)
        found += await _budgets(call)
        found += await _lost(call)
    return plain(Matters(tuple(found)))


def _waits(count: int) -> str:
    return "1 waits" if count == 1 else f"{count} wait"


async def _stuck(call: Call) -> list[Matter]:
    """Lanes whose work nobody takes."""
    pulse = (await call.server.sampler.latest()).pulse
    found = []
    for queue in pulse.queues:
        lane = await call.engine.describe_lane(queue.lane_id)
        state = LaneState.ACTIVE if lane is None else lane.state
        if state in (LaneState.PAUSED, LaneState.DISABLED):
            text = f"lane {queue.lane_id} is {state.value} while {_waits(queue.waiting)} in it"
            found.append(Matter("lane", queue.lane_id, text, queue.waiting, pulse.at_ms - queue.oldest_age_ms))
        elif queue.oldest_age_ms >= STUCK_MS:
            text = f"nobody takes the work in lane {queue.lane_id}: {_waits(queue.waiting)}"
            found.append(Matter("lane", queue.lane_id, text, queue.waiting, pulse.at_ms - queue.oldest_age_ms))
    return found


async def _budgets(call: Call) -> list[Matter]:
    sample = await call.server.sampler.latest()
    return [
        Matter(
            "budget",
            each.budget_id,
            f"budget {each.scope_id or each.budget_id} is {'used up' if each.level >= 1 else 'nearly used up'}: "
            f"{each.level:.0%} of its {each.dimension}",
            1,
        )
        for each in sample.budgets
        if each.level >= NEARLY
    ]


async def _lost(call: Call) -> list[Matter]:
    """Workers that hold leases past their time."""
    try:
        page = await call.engine.list_expired_leases(limit=LOOKED_AT)
    except EngineError:
        return []
    by_worker: dict[str, list[int]] = {}
    for each in page.entries:
        by_worker.setdefault(each.worker_instance_id, []).append(each.expires_at_ms)
    return [
        Matter("worker", worker, f"worker {worker} is gone and held {len(times)}", len(times), min(times))
        for worker, times in sorted(by_worker.items())
    ]


OPERATIONS = (
    Operation(
        name="me",
        method="GET",
        path="/v1/me",
        scope=None,
        summary="Who calls, and what they may do",
        handler=me,
        answers={200: Me},
    ),
    Operation(
        name="list_namespaces",
        method="GET",
        path="/v1/namespaces",
        scope=Scope.READ,
        summary="Namespaces that can be seen",
        handler=namespaces,
        answers={200: Namespaces},
    ),
    Operation(
        name="overview",
        method="GET",
        path="/v1/overview",
        scope=Scope.READ,
        summary="How much there is of what, now and over a window of time",
        handler=overview,
        query=OverviewQuery,
        everywhere=True,
        answers={200: OverviewAnswer},
    ),
    Operation(
        name="attention",
        method="GET",
        path="/v1/attention",
        scope=Scope.READ,
        summary="What needs a person now",
        handler=attention,
        answers={200: Matters},
    ),
    Operation(
        name="search_flows",
        method="GET",
        path="/v1/search/flows",
        scope=Scope.READ,
        summary="Flows by namespace, kind and state, newest first",
        handler=search_flows,
        query=FlowsQuery,
        answers={200: FlowSearchPage},
    ),
    Operation(
        name="search_workers",
        method="GET",
        path="/v1/search/workers",
        scope=Scope.READ,
        summary="Live workers of one namespace or of all, by namespace and instance",
        handler=search_workers,
        query=PlacesQuery,
        answers={200: WorkerPage},
    ),
)
