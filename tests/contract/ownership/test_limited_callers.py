"""A caller who is limited to namespaces: whatever a call names must be theirs, and the rest looks as if it were not
there. The check is part of the commit, on every store and for every command."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric import (
    CancelSource,
    ContentionKind,
    Duplicate,
    EngineError,
    ExecutionId,
    FlowGraph,
    NotFound,
    SuspendArgs,
    UsePending,
    Validation,
    ValidationKind,
)
from flowfabric.conditions import OperatorOnly
from flowfabric.core.ownership.limited_callers import CHECKS
from flowfabric.core.rules import RULES
from flowfabric.engine import Engine
from flowfabric.model.operations.schedules import Every
from flowfabric.model.operations.workflows import ChildWait
from tests.contract.probe import Probe, claimed, create, id_of, policy, refused

#: Commands that are for nobody who is limited: about all namespaces, or given by the engine to itself.
NOT_FOR_LIMITED = {
    "AcceptRequest", "AcceptRequests", "CancelChildren", "CancelFlowMembers", "CancelOrphan", "CancelPending",
    "CancelSiblings", "ClaimFromResumeGrant", "CreateCredential", "DispatchCompletion", "DropRequest",
    "ExpireExecution", "ExpireWaitpoints", "FireSchedule", "ForgetBudget", "ForgetQuota", "LetBlockedGo", "LetGo",
    "MarkLeaseExpired", "PlanScheduleAgain", "ProjectFlow", "PromoteDelayed", "PromoteSubmitted", "RankAnew",
    "ReconcileBudget", "ReconcileQuota", "ReconcileSiblings", "RecordSample", "RemoveFlow", "ResolveDependency",
    "RetryRequest", "RevokeCredential", "RotateKey", "SeedLanes", "SeedSecret", "SetLaneFairness", "SetLaneState",
    "SettleDependencies", "SweepGrants", "SweepWorker", "TimeOutSuspension", "TrimExecution",
}  # fmt: skip


def test_every_command_is_checked_or_refused() -> None:
    """A new command has to be put on one side or the other."""
    assert {kind.__name__ for kind in RULES.keys() - CHECKS.keys()} == NOT_FOR_LIMITED
    assert CHECKS.keys() <= RULES.keys()


@pytest.fixture
def a(engine: Engine) -> Engine:
    return engine.limited_to({"a"})


def unknown() -> ExecutionId:
    return ExecutionId.of(0, str(uuid.uuid4()))


Act = Callable[[Engine, Any], Awaitable[Any]]

#: Acts on one execution by its id.
ON_EXECUTION: dict[str, Act] = {
    "cancel": lambda by, eid: by.cancel_execution(execution_id=eid, reason="x", source=CancelSource.OPERATOR_OVERRIDE),
    "priority": lambda by, eid: by.change_priority(execution_id=eid, new_priority=3),
    "replay": lambda by, eid: by.replay_execution(execution_id=eid),
    "revoke": lambda by, eid: by.revoke_lease(execution_id=eid),
    "resume": lambda by, eid: by.resume_execution(execution_id=eid),
    "tags": lambda by, eid: by.set_execution_tags(eid, {"team.name": "x"}),
    "fork": lambda by, eid: by.fork_execution(execution_id=eid),
}


@pytest.mark.parametrize("name", ON_EXECUTION)
async def test_foreign_executions_are_as_good_as_unknown(engine: Engine, a: Engine, probe: Probe, name: str) -> None:
    act = ON_EXECUTION[name]
    foreign = id_of(await claimed(engine, namespace="b"))
    said = []
    for eid in (foreign, unknown()):
        async with refused(probe, NotFound) as caught:
            await act(a, eid)
        said.append(str(caught.value).replace(eid, "…"))
    assert said[0] == said[1]


async def test_foreign_handles(engine: Engine, a: Engine, probe: Probe) -> None:
    handle = await claimed(engine, namespace="b")
    acts: list[Callable[[], Awaitable[Any]]] = [
        lambda: a.renew(handle),
        lambda: a.progress(handle, 5),
        lambda: a.complete(handle, b"x"),
        lambda: a.fail(handle, "x"),
        lambda: a.cancel(handle, "x"),
        lambda: a.advance(handle),
        lambda: a.reserve_budget(handle, str(uuid.uuid4()), {"usd": 1}),
    ]
    for act in acts:
        async with refused(probe, NotFound):
            await act()
    [answer] = await a.renew_many([handle])
    assert isinstance(answer, NotFound)
    await engine.complete(handle, b"done")


async def test_a_taken_foreign_id_says_only_that(engine: Engine, a: Engine, probe: Probe) -> None:
    theirs = await create(engine, namespace="b", tags={"canary.x": "canary"})
    flow = (await engine.create_flow(namespace="b")).flow_id
    own = await create(a, namespace="a")
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: a.create_execution(namespace="a", execution_id=theirs),
        lambda: a.create_executions([{"namespace": "a"}, {"namespace": "a", "execution_id": theirs}]),
        lambda: a.create_flow(namespace="a", flow_id=flow),
        lambda: a.submit_flow(FlowGraph(namespace="a", flow_id=flow, nodes={"one": {"namespace": "a"}})),
        lambda: a.fork_execution(execution_id=own, new_execution_id=theirs),
    ]
    for call in calls:
        async with refused(probe, Validation, ValidationKind.INVALID_INPUT) as caught:
            await call()
        assert "canary" not in str(caught.value)
        assert theirs not in str(caught.value)
        assert flow not in str(caught.value)
    assert await a.create_execution(namespace="a", execution_id=own) == Duplicate(own)


async def test_foreign_namespaces_are_refused(engine: Engine, a: Engine, probe: Probe) -> None:
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: a.create_execution(namespace="b"),
        lambda: a.create_executions([{"namespace": "a"}, {"namespace": "b"}]),
        lambda: a.create_flow(namespace="b"),
        lambda: a.submit_flow(FlowGraph(namespace="a", nodes={"one": {"namespace": "b"}})),
        lambda: a.submit_flow(FlowGraph(namespace="b", nodes={"one": {"namespace": "a"}})),
        lambda: a.debounce_execution("k", {"namespace": "b"}, wait_ms=1, at_most_ms=1),
        lambda: a.put_schedule("s", spec=Every(1_000), execution_kind="op", namespace="b"),
        lambda: a.delete_schedule("s", "b"),
        lambda: a.register_worker(
            worker_id="w", worker_instance_id="i", lanes=["x"], capabilities=[], liveness_ttl_ms=1_000, namespace="b"
        ),
        lambda: a.claim("default", (), policy()),
        lambda: a.claim("default", (), policy(), namespaces=["a", "b"]),
        lambda: a.set_lane_state("default", "paused"),
        lambda: a.create_credential(name="x", scopes=["admin"]),
    ]
    await create(engine, namespace="b")
    for call in calls:
        async with refused(probe, Validation, ValidationKind.UNAUTHORIZED):
            await call()


async def test_flows_take_only_ones_own(engine: Engine, a: Engine, probe: Probe) -> None:
    mine = (await a.create_flow(namespace="a")).flow_id
    theirs = (await engine.create_flow(namespace="b")).flow_id
    own = await create(a, namespace="a", execution_id=ExecutionId.for_flow(mine, engine.partitions))
    foreign = await create(engine, namespace="b", execution_id=ExecutionId.for_flow(mine, engine.partitions))
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: a.add_execution_to_flow(flow_id=theirs, execution_id=own),
        lambda: a.add_execution_to_flow(flow_id=mine, execution_id=foreign),
        lambda: a.cancel_flow(theirs, policy="cancel_all"),
        lambda: a.set_flow_tags(theirs, {"team.name": "x"}),
    ]
    for call in calls:
        async with refused(probe, NotFound):
            await call()
    await a.add_execution_to_flow(flow_id=mine, execution_id=own)
    await engine.add_execution_to_flow(flow_id=mine, execution_id=foreign)
    for upstream, downstream in ((own, foreign), (foreign, own)):
        async with refused(probe, NotFound):
            await a.stage_dependency_edge(
                flow_id=mine,
                edge_id=str(uuid.uuid4()),
                upstream_execution_id=upstream,
                downstream_execution_id=downstream,
                expected_graph_revision=2,
            )


async def test_whether_a_foreign_execution_has_ended_is_not_told(engine: Engine, a: Engine) -> None:
    """It never ends for a caller who may not see it; one's own does."""
    theirs = await claimed(engine, namespace="b", lane_id="theirs")
    mine = await claimed(engine, namespace="a", lane_id="mine")
    for each in (theirs, mine):
        await engine.complete(each, None)
    for ended, parked in ((id_of(mine), False), (id_of(theirs), True)):
        parent = await claimed(engine, namespace="a", lane_id="parents")
        answer = await a.advance(parent, wait=ChildWait((str(ended),), 1))
        assert answer.parked is parked
        assert answer.ended == (() if parked else (ended,))


async def test_a_foreign_waitpoint_is_as_good_as_an_unknown_one(engine: Engine, a: Engine, probe: Probe) -> None:
    """Nobody suspends on it, and whether it is there is not told; one of another execution of one's own is named."""
    partition = 0
    handles = [
        await claimed(engine, execution_id=ExecutionId.of(partition, str(uuid.uuid4())), namespace=namespace)
        for namespace in ("a", "a", "b")
    ]
    mine, other, theirs = handles
    points = [(await engine.create_waitpoint(each, "w", 60_000)).waitpoint_id for each in (other, theirs)]
    said = []
    for point in (*points, str(uuid.uuid4())):
        wait = SuspendArgs(waitpoints=[UsePending(point)], resume_condition=OperatorOnly())
        async with refused(probe, EngineError) as caught:
            await a.suspend(mine, wait)
        said.append(caught.value.kind)
    assert said == [
        ValidationKind.INVALID_WAITPOINT_FOR_EXECUTION,
        ContentionKind.WAITPOINT_NOT_FOUND,
        ContentionKind.WAITPOINT_NOT_FOUND,
    ]


async def test_what_is_ones_own_works(engine: Engine, a: Engine) -> None:
    eid = await create(a, namespace="a", lane_id="work")
    handle = await a.claim("work", (), policy(), namespaces=["a"])
    assert handle is not None
    await a.renew(handle)
    child = ExecutionId.of(eid.partition, str(uuid.uuid4()))
    await a.advance(handle, children=[{"namespace": "a", "lane_id": "work", "execution_id": child}])
    await a.complete(handle, b"done")
    await a.replay_execution(execution_id=eid)
    await a.cancel_execution(execution_id=child, reason="x", source=CancelSource.OPERATOR_OVERRIDE)


async def test_a_batch_of_many_callers_keeps_them_apart(engine: Engine, a: Engine) -> None:
    """Limits belong to each command, not to the batch it falls into."""
    b = engine.limited_to({"b"})
    answers = await asyncio.gather(
        *(by.create_execution(namespace=namespace) for by in (a, b, engine) for namespace in "ab"),
        return_exceptions=True,
    )
    assert [isinstance(each, Validation) for each in answers] == [False, True, True, False, False, False]
