"""A real call of every operation that changes something, as each door takes it.

A case may have variants: ``suspend``, ``suspend~keyed``. The cases of audited operations that have none here are the
acts of ``tests/server/acts.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

from flowfabric import Ask, days
from flowfabric.conditions import AnyOf, ByName, Count, CountKind, Single
from flowfabric.engine import Engine
from flowfabric.model.handles import Handle
from flowfabric.model.ids import ExecutionId, FlowId
from flowfabric.model.operations.budgets import Reserved
from flowfabric.model.operations.executions import ClaimPolicy
from flowfabric.model.operations.flows import FlowGraph
from flowfabric.model.operations.schedules import Every
from flowfabric.model.operations.suspension import Fresh, SuspendArgs, SuspensionReason
from flowfabric.model.operations.workflows import ChildWait, NewStep
from flowfabric.model.streams.frames import Frame
from flowfabric.sdk.asks.answer import APPROVE, DECLINE
from flowfabric.sdk.asks.ask import waitpoint_of
from flowfabric.sdk.asks.links import make_link
from tests.contract.probe import ManualClock
from tests.server.acts import ACTS

SPACE, LANE = "acme", "acts"
BUDGETS = ("00000000-0000-4000-8000-00000000000b", "00000000-0000-4000-8000-00000000000d")
EDGE = "00000000-0000-4000-8000-00000000000e"
POINT = "00000000-0000-4000-8000-00000000000a"
WORKER = {"worker_id": "w", "worker_instance_id": "w-1"}


class Scene(NamedTuple):
    """Where a case is set up: the engine of the first process, and whoever holds leases at the door in question."""

    engine: Engine
    user: Any
    remote: Any
    clock: ManualClock

    async def create(self, **options: Any) -> ExecutionId:
        """One more execution."""
        made = await self.engine.create_execution(
            **{"namespace": SPACE, "lane_id": LANE, "execution_kind": "op", "input_payload": b"in", **options}
        )
        return made.execution_id

    async def take(self) -> Any:
        """A lease on the next one."""
        handle = await self.user.claim(LANE, policy=ClaimPolicy("w", "w-1"))
        assert handle is not None
        return handle

    async def hold(self, **options: Any) -> Any:
        """A lease on a new one."""
        await self.create(**options)
        return await self.take()


class Doing(NamedTuple):
    """One call: its arguments by name, and what its path, query and body say over HTTP."""

    arguments: Mapping[str, Any] = {}
    path: Mapping[str, str] = {}
    query: Mapping[str, str] = {}
    body: Any = None
    #: What a caller of the engine itself has to give, so that it may call again.
    own: Mapping[str, Any] = {}
    #: What a body says besides when it is sent again.
    again: Mapping[str, Any] = {}


Case = Callable[[Scene], Awaitable[Doing]]
CASES: dict[str, Case] = {}


def case(build: Case) -> Case:
    """Add a case under the name of its operation; two underscores begin the name of a variant."""
    CASES[build.__name__.replace("__", "~")] = build
    return build


def operation_of(name: str) -> str:
    """The operation that a case is about."""
    return name.partition("~")[0]


def _act(name: str) -> Case:
    async def build(scene: Scene) -> Doing:
        found = await ACTS[name](scene)  # type: ignore[arg-type]
        arguments = {**found.arguments}
        if "spec" in arguments:
            arguments["spec"] = Every(60_000, 0)
        return Doing(arguments, found.path, found.query, found.body)

    return build


def _one(identity: str, body: Any = None, **more: Any) -> Doing:
    return Doing({"execution_id": identity, **(body or {})}, {"id": str(identity)}, {}, body, **more)


# -- starting --------------------------------------------------------------------------------------------------------


@case
async def create_execution(scene: Scene) -> Doing:
    said = {"namespace": SPACE, "lane_id": LANE, "execution_kind": "op", "creator_identity": "tests", "priority": 3}
    own = {"execution_id": ExecutionId.solo(LANE, scene.engine.partitions)}
    return Doing({**said, "input_payload": b"in"}, body={**said, "input_payload": [105]}, own=own)


@case
async def create_execution__bound(scene: Scene) -> Doing:
    said = {"namespace": SPACE, "lane_id": LANE, "execution_kind": "op", "idempotency_key": "one of these"}
    return Doing(said, body={**said, "input_payload": [], "priority": 0, "creator_identity": "tests"})


@case
async def create_executions(scene: Scene) -> Doing:
    said = {"namespace": SPACE, "lane_id": LANE, "creator_identity": "tests", "priority": 0}
    several = [{**said, "execution_kind": kind} for kind in "abc"]
    named = [{**each, "execution_id": ExecutionId.solo(LANE, scene.engine.partitions)} for each in several]
    body = {"executions": [{**each, "input_payload": []} for each in several]}
    return Doing({"executions": several}, body=body, own={"executions": named})


@case
async def start_kind(scene: Scene) -> Doing:
    await scene.engine.announce_kinds(SPACE, {"send": {"noun": "task"}})
    return Doing(path={"kind": "send"}, query={"namespace": SPACE}, body={"input": {}, "lane_id": LANE})


@case
async def debounce_execution(scene: Scene) -> Doing:
    creation = {"namespace": SPACE, "lane_id": LANE, "execution_kind": "op"}
    return Doing({"debounce_key": "d", "execution": creation, "wait_ms": 1_000, "at_most_ms": 5_000})


@case
async def create_flow(scene: Scene) -> Doing:
    said = {"flow_kind": "dag", "namespace": SPACE}
    return Doing(said, body=said)


@case
async def submit_flow(scene: Scene) -> Doing:
    nodes = {name: {"lane_id": LANE, "execution_kind": name} for name in "abc"}
    edges = [{"upstream": "a", "downstream": "b"}, {"upstream": "b", "downstream": "c"}]
    return Doing(body={"namespace": SPACE, "nodes": nodes, "edges": edges})


async def _flow(scene: Scene, members: int = 0) -> tuple[str, list[ExecutionId]]:
    made = await scene.engine.create_flow(flow_id=FlowId.new(), namespace=SPACE)
    ids = [ExecutionId.for_flow(made.flow_id, scene.engine.partitions) for _ in range(members)]
    for each in ids:
        await scene.create(execution_id=each)
        await scene.engine.add_execution_to_flow(flow_id=made.flow_id, execution_id=each)
    return str(made.flow_id), ids


@case
async def add_execution_to_flow(scene: Scene) -> Doing:
    flow, _ = await _flow(scene)
    identity = ExecutionId.for_flow(flow, scene.engine.partitions)
    await scene.create(execution_id=identity)
    return Doing(path={"id": flow}, body={"execution_id": identity})


@case
async def stage_dependency_edge(scene: Scene) -> Doing:
    flow, (one, two) = await _flow(scene, 2)
    found = await scene.engine.describe_flow(flow)
    assert found is not None
    ends = {"upstream_execution_id": one, "downstream_execution_id": two}
    return Doing(path={"id": flow}, body={**ends, "expected_graph_revision": found.graph_revision})


@case
async def apply_dependency_to_child(scene: Scene) -> Doing:
    flow, (one, two) = await _flow(scene, 2)
    found = await scene.engine.describe_flow(flow)
    assert found is not None
    ends = {"upstream_execution_id": one, "downstream_execution_id": two}
    named = {"flow_id": flow, "edge_id": EDGE, **ends}
    staged = await scene.engine.stage_dependency_edge(**named, expected_graph_revision=found.graph_revision)
    return Doing(path={"id": flow}, body={**ends, "edge_id": EDGE, "graph_revision": staged.new_graph_revision})


@case
async def set_edge_group_policy(scene: Scene) -> Doing:
    flow, (one,) = await _flow(scene, 1)
    return Doing(path={"id": flow, "execution_id": one}, body={"policy": {"kind": "all_of"}})


# -- steering --------------------------------------------------------------------------------------------------------


@case
async def cancel_execution__held(scene: Scene) -> Doing:
    handle = await scene.hold()
    return _one(handle.execution_id, {"reason": "not wanted"})


@case
async def cancel_flow__several(scene: Scene) -> Doing:
    nodes = {name: {"lane_id": LANE, "namespace": SPACE} for name in "abc"}
    made = await scene.engine.submit_flow(FlowGraph(nodes))
    body = {"reason": "no", "cancellation_policy": "cancel_all"}
    arguments = {"flow_id": str(made.flow_id), "reason": "no", "policy": "cancel_all"}
    return Doing(arguments, {"id": made.flow_id}, {}, body)


@case
async def cancel_executions__several(scene: Scene) -> Doing:
    for _ in range(3):
        await scene.create()
    return Doing(body={"filter": {"lane_id": LANE}, "reason": "no"})


@case
async def replay_executions__several(scene: Scene) -> Doing:
    for _ in range(3):
        await scene.engine.fail(await _held_here(scene), "no", "permanent")
    return Doing(body={"filter": {"namespace": SPACE}})


async def _held_here(scene: Scene) -> Handle:
    """A lease that the first process holds, whatever the door."""
    await scene.create()
    handle = await scene.engine.claim(LANE, policy=ClaimPolicy("w", "w-1"))
    assert handle is not None
    return handle


# -- answering -------------------------------------------------------------------------------------------------------


async def _asked(scene: Scene) -> tuple[ExecutionId, str, str]:
    """An open question for two: it, and the waitpoint of one of them with its token."""
    names = ("ann", "bob")
    ask = Ask("publish?", bool, of=names, need=2, within=days(3))
    creation = ask.creation(SimpleNamespace(namespace=SPACE, lane=LANE), "run")  # type: ignore[arg-type]
    identity = await scene.create(**creation)
    points = {each: waitpoint_of(str(identity), creation["input_payload"], each) for each in names}
    yes = Count(2, CountKind.DISTINCT_WAITPOINTS, names, ByName(APPROVE))
    no = Count(1, CountKind.DISTINCT_WAITPOINTS, names, ByName(DECLINE))
    handle = await scene.engine.claim(LANE, policy=ClaimPolicy("w", "w-1"))
    assert handle is not None
    terms = SuspendArgs(
        waitpoints=[Fresh(point, name) for name, point in points.items()],
        resume_condition=AnyOf((yes, no)),
        reason_code=SuspensionReason.WAITING_FOR_APPROVAL,
    )
    await scene.engine.suspend(handle, terms)
    token = await scene.engine.read_waitpoint_token(identity.partition, points["ann"])
    assert token is not None
    return identity, points["ann"], token.reveal()


@case
async def give_answer(scene: Scene) -> Doing:
    identity, _, _ = await _asked(scene)
    return Doing(path={"id": identity}, body={"value": True, "by": "ann"})


@case
async def make_link_(scene: Scene) -> Doing:
    identity, _, _ = await _asked(scene)
    return Doing(path={"id": identity}, body={"by": "ann"})


CASES["make_link"] = CASES.pop("make_link_")


@case
async def answer_link(scene: Scene) -> Doing:
    identity, point, token = await _asked(scene)
    return Doing(body={"link": make_link(str(identity), point, token), "value": True})


async def _suspended(scene: Scene, holder: Any, **more: Any) -> tuple[Any, str]:
    """An execution that waits for a signal: what it was held by, and the token of its waitpoint."""
    handle = await scene.hold() if holder is scene.user else await _held_here(scene)
    outcome = await holder.suspend(handle, _waiting(**more))
    return handle, outcome.details.waitpoint_token.reveal()


def _waiting(**more: Any) -> SuspendArgs:
    return SuspendArgs(waitpoints=[Fresh(POINT, "k")], resume_condition=Single("k", ByName("go")), **more)


@case
async def deliver_signal(scene: Scene) -> Doing:
    handle, token = await _suspended(scene, scene.engine)
    said = {"waitpoint_id": POINT, "waitpoint_token": token, "signal_name": "go", "source_identity": "ann"}
    body = {**said, "signal_category": "", "source_type": "", "target_scope": "waitpoint"}
    identity = handle.execution_id
    return Doing({"execution_id": identity, **said}, {"id": identity}, body=body, own={"signal_id": EDGE})


# -- budgets ---------------------------------------------------------------------------------------------------------


async def _budgets(scene: Scene) -> None:
    for each in BUDGETS:
        await scene.engine.create_budget(
            budget_id=each, dimensions=["usd"], hard_limits=[100], soft_limits=[0], namespace=SPACE
        )


@case
async def report_usage_admin(scene: Scene) -> Doing:
    await _budgets(scene)
    return Doing(path={"id": BUDGETS[0]}, query={"namespace": SPACE}, body={"dimensions": {"usd": 7}})


@case
async def reserve_budget(scene: Scene) -> Doing:
    await _budgets(scene)
    handle = await scene.hold()
    return Doing({"handle": handle, "budget_id": BUDGETS[0], "amounts": {"usd": 7}, "idempotency_key": "call"})


@case
async def reserve_budget__asks(scene: Scene) -> Doing:
    await scene.engine.create_budget(
        budget_id=BUDGETS[0], dimensions=["usd"], hard_limits=[5], soft_limits=[0], on_hard_limit="ask", namespace=SPACE
    )
    handle = await scene.hold()
    return Doing({"handle": handle, "budget_id": BUDGETS[0], "amounts": {"usd": 7}, "idempotency_key": "call"})


async def _reserved(scene: Scene) -> tuple[Any, list[str]]:
    await _budgets(scene)
    handle = await scene.hold()
    found = [await scene.user.reserve_budget(handle, each, {"usd": 7}, each) for each in BUDGETS]
    assert all(isinstance(each, Reserved) for each in found)
    return handle, [each.reservation_id for each in found]


@case
async def settle_reservation(scene: Scene) -> Doing:
    handle, (one, _) = await _reserved(scene)
    return Doing({"reservation_id": one, "amounts": {"usd": 5}, "handle": handle})


@case
async def settle_reservation__several(scene: Scene) -> Doing:
    handle, (one, two) = await _reserved(scene)
    return Doing({"reservation_id": one, "amounts": {"usd": 5}, "handle": handle, "also": [two]})


@case
async def release_reservation(scene: Scene) -> Doing:
    handle, (one, _) = await _reserved(scene)
    return Doing({"reservation_id": one, "handle": handle})


# -- working ---------------------------------------------------------------------------------------------------------


@case
async def register_worker(scene: Scene) -> Doing:
    return Doing({**WORKER, "lanes": [LANE], "namespace": SPACE, "slots": 3})


@case
async def heartbeat_worker(scene: Scene) -> Doing:
    await scene.engine.register_worker(**WORKER, lanes=[LANE], namespace=SPACE)
    return Doing({"worker_instance_id": "w-1", "namespace": SPACE})


@case
async def mark_worker_dead(scene: Scene) -> Doing:
    await scene.engine.register_worker(**WORKER, lanes=[LANE], namespace=SPACE)
    return Doing({"worker_instance_id": "w-1", "namespace": SPACE, "reason": "stopped"})


@case
async def announce_kinds(scene: Scene) -> Doing:
    return Doing({"namespace": SPACE, "definitions": {"send": {"noun": "task"}}})


@case
async def renew(scene: Scene) -> Doing:
    handle = await scene.hold()
    scene.clock.advance(1_000)
    return Doing({"handle": handle})


@case
async def progress(scene: Scene) -> Doing:
    return Doing({"handle": await scene.hold(), "percent": 50, "message": "half of it"})


@case
async def complete(scene: Scene) -> Doing:
    return Doing({"handle": await scene.hold(), "payload": b"out"})


@case
async def complete__steps(scene: Scene) -> Doing:
    return Doing({"handle": await scene.hold(), "payload": b"out", "steps": [NewStep("one", b"1")]})


@case
async def complete__spent(scene: Scene) -> Doing:
    handle, _ = await _reserved(scene)
    return Doing({"handle": handle, "payload": b"out"})


RETRIES = {"retry_policy": {"max_retries": 2, "backoff": {"Fixed": {"delay_ms": 1_000}}}}


@case
async def fail(scene: Scene) -> Doing:
    return Doing({"handle": await scene.hold(), "reason": "no", "failure_class": "permanent"})


@case
async def fail__steps(scene: Scene) -> Doing:
    steps = [NewStep("one", b"1"), NewStep("!failed 0")]
    return Doing({"handle": await scene.hold(policy=RETRIES), "reason": "no", "steps": steps})


@case
async def cancel(scene: Scene) -> Doing:
    return Doing({"handle": await scene.hold(), "reason": "no"})


async def _child(scene: Scene, handle: Any) -> dict[str, Any]:
    parent = handle.execution_id
    identity = f"{{fp:{parent.partition}}}:00000000-0000-4000-8000-0000000000c1"
    return {"execution_id": identity, "namespace": SPACE, "lane_id": "others", "execution_kind": "child"}


@case
async def cancel_child(scene: Scene) -> Doing:
    handle = await scene.hold()
    child = await _child(scene, handle)
    await scene.user.advance(handle, children=[child])
    return Doing({"handle": handle, "execution_id": child["execution_id"], "reason": "no"})


@case
async def give_back(scene: Scene) -> Doing:
    return Doing({"handle": await scene.hold(), "reason": "stopping"})


@case
async def advance(scene: Scene) -> Doing:
    handle = await scene.hold()
    steps = [NewStep("one", b"1"), NewStep("two", b"2")]
    return Doing({"handle": handle, "steps": steps, "children": [await _child(scene, handle)]})


@case
async def advance__parks(scene: Scene) -> Doing:
    handle = await scene.hold()
    child = await _child(scene, handle)
    wait = ChildWait((child["execution_id"],), 1)
    return Doing({"handle": handle, "steps": [NewStep("one", b"1")], "children": [child], "wait": wait})


@case
async def suspend(scene: Scene) -> Doing:
    return Doing({"handle": await scene.hold(), "args": _waiting()})


@case
async def suspend__keyed(scene: Scene) -> Doing:
    return Doing({"handle": await scene.hold(), "args": _waiting(idempotency_key="once")})


@case
async def observe_signals(scene: Scene) -> Doing:
    handle, token = await _suspended(scene, scene.user)
    await scene.engine.deliver_signal(
        execution_id=handle.execution_id, waitpoint_id=POINT, waitpoint_token=token, signal_name="go"
    )
    return Doing({"handle": await scene.take()})


@case
async def append_frame(scene: Scene) -> Doing:
    return Doing({"handle": await scene.hold(), "frame": Frame(b"one", frame_type="text"), "number": 1})


@case
async def append_frames(scene: Scene) -> Doing:
    frames = [Frame(b"%d" % each, frame_type="text") for each in range(3)]
    return Doing({"handle": await scene.hold(), "frames": frames, "number": 1})


@case
async def delay(scene: Scene) -> Doing:
    return Doing({"handle": await scene.hold(), "delay_until": scene.clock.now_ms + 60_000})


@case
async def wait_children(scene: Scene) -> Doing:
    await _flow(scene, 2)
    return Doing({"handle": await scene.take()})


@case
async def decline(scene: Scene) -> Doing:
    await scene.engine.register_worker(**WORKER, lanes=[LANE], namespace=SPACE)
    return Doing({"handle": await scene.hold(), "reason": "no task of this name"})


@case
async def claim_for_worker(scene: Scene) -> Doing:
    await scene.create()
    await scene.create()
    body = {"lane_id": LANE, "worker_instance_id": "w-1", "grant_ttl_ms": 60_000}
    return Doing(path={"worker_id": "w"}, body=body)


@case
async def issue_reclaim_grant(scene: Scene) -> Doing:
    handle = await _held_here(scene)
    scene.clock.advance(3_600_000)
    body = {**WORKER, "lane_id": LANE, "grant_ttl_ms": 60_000}
    return Doing(path={"id": handle.execution_id}, body=body)


@case
async def remote_claim(scene: Scene) -> Doing:
    for _ in range(3):
        await scene.create()
    body = {**WORKER, "lanes": {LANE: 1}, "limit": 2, "key": "k" * 16}
    return Doing(body=body, again={"again": True})


@case
async def remote_renew(scene: Scene) -> Doing:
    await scene.create()
    handle = await scene.remote.claim(LANE, policy=ClaimPolicy("w", "w-1"))
    scene.clock.advance(1_000)
    return Doing(body={"handles": [handle.envelope]})


@case
async def remote_lost(scene: Scene) -> Doing:
    await scene.create()
    handle = await scene.remote.claim(LANE, policy=ClaimPolicy("w", "w-1"))
    return Doing(body={"handles": [handle.envelope]})


@case
async def remote_calls(scene: Scene) -> Doing:
    named = {"execution_id": ExecutionId.solo(LANE, scene.engine.partitions), "namespace": SPACE, "lane_id": LANE}
    calls = [
        {"op": "create_execution", "arguments": named},
        {"op": "set_lane_state", "arguments": {"lane_id": "night", "state": "paused"}},
    ]
    return Doing(body={"calls": calls})


for _name in ACTS:
    if _name not in CASES:
        CASES[_name] = _act(_name)
