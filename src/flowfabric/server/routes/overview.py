"""For those who look after the whole: who they are, where there is work, how it goes, what needs a person."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from flowfabric import __version__
from flowfabric.engine.operation_table import OPERATIONS
from flowfabric.model.counting import counted
from flowfabric.model.errors import EngineError
from flowfabric.model.limits import MAX_PAGE
from flowfabric.model.operations.executions import WorkerPage
from flowfabric.model.reads.overview import FlowSearchPage, Pulse
from flowfabric.model.states import BlockingReason, LaneState
from flowfabric.server.access.principals import ANYBODY, Scope
from flowfabric.server.http.problems import as_sent
from flowfabric.server.http.response import Answer, plain
from flowfabric.server.operations import Call, Route
from flowfabric.server.routes.search import SENT, Limit, PlacesQuery, namespaces_of, states_of
from flowfabric.server.telemetry.samples import BudgetLevel, Series, fullest_budgets

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
    """The caller and its scopes. ``namespaces`` is ``None`` for all of them."""

    signed_in: bool
    #: Whether this server asks for no credential.
    open: bool
    name: str
    scopes: tuple[Scope, ...]
    namespaces: tuple[str, ...] | None
    #: Names of the operations that this credential may call.
    operations: tuple[str, ...]
    version: str
    store: str
    now: int
    #: Where traces are looked at, with ``{trace_id}`` in it; empty means nowhere.
    trace_url: str = ""


class Namespaces(Struct, frozen=True):
    """Names of namespaces."""

    namespaces: tuple[str, ...]


class OverviewQuery(Struct, kw_only=True):
    """How far back."""

    window_ms: Annotated[int, Meta(ge=60_000, le=MAX_WINDOW_MS)] = 900_000


class AttentionQuery(Struct, kw_only=True):
    """Whose questions and budgets; without a namespace those of all that can be seen."""

    namespace: str | None = None


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
    #: Of a budget, whose it is; ``None`` means the operator's.
    namespace: str | None = None


class Matters(Struct, frozen=True):
    """What needs attention."""

    matters: tuple[Matter, ...]


class FlowsQuery(Struct, kw_only=True):
    """What fits: ``state`` may name several with commas between."""

    namespace: str | None = None
    state: str | None = None
    kind: str | None = None
    cursor: str | None = None
    limit: Limit = 100


async def me(call: Call) -> Answer:
    """Who calls. A caller without a good credential is told that, and nothing else."""
    who = await call.server.gate.principal(call.headers.get(b"authorization"))
    if who is None:
        return plain(Me(False, False, "", (), (), (), "", "", 0))
    own = None if who.namespaces is None else tuple(sorted(who.namespaces))
    scopes = tuple(sorted(who.scopes))
    now = await call.engine.now_ms()
    allowed = tuple(
        sorted(name for name, each in OPERATIONS.items() if each.is_open_to(who.scopes, limited=own is not None))
    )
    url = call.server.config.trace_url
    found = Me(True, who is ANYBODY, who.name, scopes, own, allowed, __version__, call.engine.backend_label, now, url)
    return plain(found)


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
    with as_sent(SENT):
        found = await call.engine.search_flows(
            namespaces=namespaces_of(call, query.namespace),
            states=states_of(query.state),
            flow_kind=query.kind,
            cursor=query.cursor,
            limit=query.limit,
        )
    return plain(found)


async def search_workers(call: Call) -> Answer:
    """Who is alive, wherever."""
    query: PlacesQuery = call.query
    own = namespaces_of(call, query.namespace)
    return plain(await call.engine.search_workers(namespaces=own, cursor=query.cursor, limit=query.limit))


async def attention(call: Call) -> Answer:
    """What needs attention."""
    own = namespaces_of(call, call.query.namespace)
    waiting = await call.engine.search_suspended(reasons=PEOPLE, namespaces=own, limit=LOOKED_AT)
    found = []
    if waiting.executions:
        count, more = len(waiting.executions), "" if waiting.next_cursor is None else " or more"
        questions = "question is waiting" if count == 1 else f"questions{more} are waiting"
        oldest = min(each.suspended_at for each in waiting.executions)
        found.append(Matter("asks", "", f"{count} {questions} for an answer", count, oldest))
    whole = call.principal.namespaces is None
    found += await _stuck(call, own)
    levels = (await call.server.sampler.latest()).budgets if own is None else await fullest_budgets(call.engine, own)
    found += [_spent(each) for each in levels if each.level >= NEARLY]
    if whole:
        found += await _lost(call)
    return plain(Matters(tuple(found)))


def _waits(count: int) -> str:
    return f"{count} waiting"


async def _stuck(call: Call, own: tuple[str, ...] | None) -> list[Matter]:
    """Lanes whose work nobody takes; for those who see some namespaces, of these."""
    if own is None:
        pulse = (await call.server.sampler.latest()).pulse
        queues, at_ms = pulse.queues, pulse.at_ms
    else:
        queues, at_ms = await call.engine.queue_depths(namespaces=own), await call.engine.now_ms()
    found = []
    for queue in queues:
        lane = await call.engine.describe_lane(queue.lane_id, namespaces=own)
        state = LaneState.ACTIVE if lane is None else lane.state
        if state in (LaneState.PAUSED, LaneState.DISABLED):
            text = f"lane {queue.lane_id} is {state.value} with {_waits(queue.waiting)}"
            found.append(Matter("lane", queue.lane_id, text, queue.waiting, at_ms - queue.oldest_age_ms))
        elif queue.oldest_age_ms >= STUCK_MS:
            text = f"no worker serves lane {queue.lane_id}: {_waits(queue.waiting)}"
            found.append(Matter("lane", queue.lane_id, text, queue.waiting, at_ms - queue.oldest_age_ms))
    return found


def _spent(budget: BudgetLevel) -> Matter:
    name = budget.scope_id or budget.budget_id
    whose = "" if budget.namespace is None else f" of {budget.namespace}"
    state = "used up" if budget.level >= 1 else "nearly used up"
    text = f"budget {name}{whose} is {state}: {budget.level:.0%} of its {budget.dimension}"
    return Matter("budget", budget.budget_id, text, 1, namespace=budget.namespace)


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
        Matter(
            "worker", worker, f"worker {worker} is gone; it held {counted(len(times), 'lease')}", len(times), min(times)
        )
        for worker, times in sorted(by_worker.items())
    ]


ROUTES = (
    Route(
        name="me",
        method="GET",
        path="/v1/me",
        summary="The caller and its scopes",
        handler=me,
        answers={200: Me},
    ),
    Route(
        name="list_namespaces",
        method="GET",
        path="/v1/namespaces",
        summary="Namespaces the caller can see",
        handler=namespaces,
        answers={200: Namespaces},
    ),
    Route(
        name="overview",
        method="GET",
        path="/v1/overview",
        summary="Counts and rates, now and over a time window",
        handler=overview,
        query=OverviewQuery,
        answers={200: OverviewAnswer},
    ),
    Route(
        name="attention",
        method="GET",
        path="/v1/attention",
        summary="What needs attention",
        handler=attention,
        query=AttentionQuery,
        answers={200: Matters},
    ),
    Route(
        name="search_flows",
        method="GET",
        path="/v1/search/flows",
        summary="Flows by namespace, kind and state, newest first",
        handler=search_flows,
        query=FlowsQuery,
        answers={200: FlowSearchPage},
    ),
    Route(
        name="search_workers",
        method="GET",
        path="/v1/search/workers",
        summary="Live workers of one namespace or of all, by namespace and instance",
        handler=search_workers,
        query=PlacesQuery,
        answers={200: WorkerPage},
    ),
)
