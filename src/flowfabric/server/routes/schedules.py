"""Schedules: put, look, pause, resume, trigger, backfill, delete."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct, defstruct, structs

from flowfabric.engine.operations.schedules import MAX_RUNS_SHOWN
from flowfabric.model.limits import MAX_PAGE
from flowfabric.model.operations.executions import AlreadySatisfied
from flowfabric.model.operations.schedules import (
    BackfillResult,
    CatchUp,
    Cron,
    Every,
    FireResult,
    Overlap,
    PutScheduleResult,
    ScheduleDeleted,
    SchedulePaused,
    ScheduleResumed,
    ScheduleRuns,
    ScheduleSnapshot,
)
from flowfabric.server.http.problems import as_sent, refused
from flowfabric.server.http.request import I32, LARGE, Blob, Count, Millis, arguments
from flowfabric.server.http.response import Answer, plain, tagged
from flowfabric.server.operations import Call, Route, Variants, missing
from flowfabric.server.routes.search import PlacesQuery, namespaces_of

Limit = Annotated[int, Meta(ge=1, le=MAX_PAGE)]


class PageQuery(Struct, kw_only=True):
    """Which page of which namespace."""

    namespace: str = "default"
    cursor: str | None = None
    limit: Limit = 100


class NamespaceQuery(Struct, kw_only=True):
    """Whose schedule it is."""

    namespace: str = "default"


class PutBody(Struct, kw_only=True):
    """What to start and when: ``cron`` with ``time_zone``, or ``every_ms`` with ``anchor_ms``."""

    execution_kind: str
    cron: str | None = None
    time_zone: str = "UTC"
    every_ms: Millis | None = None
    anchor_ms: Millis = 0
    lane_id: str | None = None
    input_payload: Blob | None = None
    payload_encoding: str | None = None
    priority: I32 | None = None
    tags: dict[str, str] | None = None
    policy: dict[str, Any] | None = None
    overlap: Overlap | None = None
    catch_up: CatchUp | None = None
    catch_up_limit: Count | None = None
    jitter_ms: Millis | None = None
    source: str | None = None
    revision: Count | None = None


#: A snapshot whose rhythm is either ``{"expression", "time_zone"}`` or ``{"every_ms", "anchor_ms"}``.
ScheduleAnswer = defstruct(
    "ScheduleAnswer",
    [(each.name, dict[str, Any] if each.name == "spec" else each.type) for each in structs.fields(ScheduleSnapshot)],
)
PageAnswer = defstruct("SchedulePage", [("schedules", list[ScheduleAnswer]), ("next_cursor", str | None)])  # type: ignore[valid-type]


#: Parts of a rhythm, and the fields they come from.
_SPEC = {
    "spec.expression": "cron",
    "spec.time_zone": "time_zone",
    "spec.every_ms": "every_ms",
    "spec.anchor_ms": "anchor_ms",
}


class TriggerBody(Struct):
    """What to do if the last one still runs; as the schedule says if left out."""

    overlap: Overlap | None = None


class BackfillBody(Struct, kw_only=True):
    """From when up to when; ``dry_run`` only says how many runs that would start."""

    from_ms: Millis
    before_ms: Millis
    dry_run: bool = False


class RunsQuery(Struct, kw_only=True):
    """Whose schedule it is, and how many runs of each sort."""

    namespace: str = "default"
    limit: Annotated[int, Meta(ge=1, le=MAX_RUNS_SHOWN)] = 20


async def search_schedules(call: Call) -> Answer:
    """What starts by itself, wherever."""
    query: PlacesQuery = call.query
    own = namespaces_of(call, query.namespace)
    return plain(await call.engine.search_schedules(namespaces=own, cursor=query.cursor, limit=query.limit))


async def list_schedules(call: Call) -> Answer:
    """Schedules by name."""
    query: PageQuery = call.query
    call.check_namespace(query.namespace)
    return plain(await call.engine.list_schedules(query.namespace, query.cursor, query.limit))


def _named(call: Call) -> tuple[str, str]:
    namespace: str = call.query.namespace
    call.check_namespace(namespace)
    return call.path["schedule_id"], namespace


async def describe(call: Call) -> Answer:
    """One schedule."""
    name, namespace = _named(call)
    found = await call.engine.get_schedule(name, namespace)
    if found is None:
        raise missing("schedule", name)
    return plain(found)


async def put(call: Call) -> Answer:
    """Create or change it."""
    name, namespace = _named(call)
    body: PutBody = call.body
    spec: Cron | Every
    if body.cron is not None and body.every_ms is None:
        spec = Cron(body.cron, body.time_zone)
    elif body.every_ms is not None and body.cron is None:
        spec = Every(body.every_ms, body.anchor_ms)
    else:
        raise refused(400, "invalid_input: pass either cron or every_ms")
    given = arguments(body, "cron", "time_zone", "every_ms", "anchor_ms")
    call.told = {"spec": spec}
    with as_sent(_SPEC):
        result = await call.engine.put_schedule(name, spec=spec, namespace=namespace, **given)
    return tagged(result, 201 if isinstance(result, PutScheduleResult.Created) else 200)


async def pause(call: Call) -> Answer:
    """Start nothing."""
    return tagged(await call.engine.pause_schedule(*_named(call)))


async def resume(call: Call) -> Answer:
    """Go on."""
    return tagged(await call.engine.resume_schedule(*_named(call)))


async def delete(call: Call) -> Answer:
    """Forget it."""
    return tagged(await call.engine.delete_schedule(*_named(call)))


async def trigger(call: Call) -> Answer:
    """Start one now."""
    return tagged(await call.engine.trigger_schedule(*_named(call), call.body.overlap))


async def backfill(call: Call) -> Answer:
    """Start the past slots of a range that have no run."""
    name, namespace = _named(call)
    body: BackfillBody = call.body
    return tagged(await call.engine.backfill_schedule(name, body.from_ms, body.before_ms, namespace, body.dry_run))


async def runs(call: Call) -> Answer:
    """What became of its latest slots, and what comes next."""
    name, namespace = _named(call)
    return plain(await call.engine.list_schedule_runs(name, namespace, call.query.limit))


_ONE = "/v1/schedules/{schedule_id}"

ROUTES = (
    Route(
        name="search_schedules",
        method="GET",
        path="/v1/search/schedules",
        summary="Schedules of one namespace or of all, by namespace and name",
        handler=search_schedules,
        query=PlacesQuery,
        answers={200: PageAnswer},
    ),
    Route(
        name="list_schedules",
        method="GET",
        path="/v1/schedules",
        summary="Schedules of a namespace",
        handler=list_schedules,
        query=PageQuery,
        answers={200: PageAnswer},
    ),
    Route(
        name="get_schedule",
        method="GET",
        path=_ONE,
        summary="A schedule",
        handler=describe,
        query=NamespaceQuery,
        answers={200: ScheduleAnswer},
    ),
    Route(
        name="put_schedule",
        method="PUT",
        path=_ONE,
        summary="Create or change a schedule",
        handler=put,
        query=NamespaceQuery,
        body=PutBody,
        limit=LARGE,
        answers={
            201: Variants(PutScheduleResult.Created),
            200: Variants(PutScheduleResult.Changed, PutScheduleResult.Unchanged),
        },
    ),
    Route(
        name="delete_schedule",
        method="DELETE",
        path=_ONE,
        summary="Delete a schedule",
        handler=delete,
        query=NamespaceQuery,
        answers={200: Variants(ScheduleDeleted, AlreadySatisfied)},
    ),
    Route(
        name="pause_schedule",
        method="POST",
        path=f"{_ONE}/pause",
        summary="Pause a schedule",
        handler=pause,
        query=NamespaceQuery,
        answers={200: Variants(SchedulePaused, AlreadySatisfied)},
    ),
    Route(
        name="resume_schedule",
        method="POST",
        path=f"{_ONE}/resume",
        summary="Resume a schedule",
        handler=resume,
        query=NamespaceQuery,
        answers={200: Variants(ScheduleResumed, AlreadySatisfied)},
    ),
    Route(
        name="trigger_schedule",
        method="POST",
        path=f"{_ONE}/trigger",
        summary="Trigger a schedule now",
        handler=trigger,
        query=NamespaceQuery,
        body=TriggerBody,
        answers={200: Variants(FireResult.Started, FireResult.Skipped)},
    ),
    Route(
        name="backfill_schedule",
        method="POST",
        path=f"{_ONE}/backfill",
        summary="Start the past runs of a time range that are missing",
        handler=backfill,
        query=NamespaceQuery,
        body=BackfillBody,
        answers={200: Variants(BackfillResult.Previewed, BackfillResult.Started)},
    ),
    Route(
        name="list_schedule_runs",
        method="GET",
        path=f"{_ONE}/runs",
        summary="Past and next runs of a schedule",
        handler=runs,
        query=RunsQuery,
        answers={200: ScheduleRuns},
    ),
)
