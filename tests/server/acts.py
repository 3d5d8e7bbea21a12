"""A real call of every audited operation, as each door takes it, and what the audit has to say of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

from flowfabric import App, Ask, days, seconds
from flowfabric.conditions import ByName, Single
from flowfabric.engine import Engine
from flowfabric.model.ids import ExecutionId
from flowfabric.model.operations.flows import FlowGraph
from flowfabric.model.operations.schedules import Every
from flowfabric.model.operations.suspension import Fresh, SuspendArgs
from flowfabric.model.operations.workflows import NewStep
from tests.server.making import claimed

BUDGET = "00000000-0000-4000-8000-00000000000b"
QUOTA = "00000000-0000-4000-8000-00000000000c"
#: Stands wherever payloads, tokens and values of tags could slip through.
SECRET = "hush-5f3a9c"
RHYTHM = {"Every": {"every_ms": 60_000, "anchor_ms": 0}}


class Act(NamedTuple):
    """What the path names, the query and the body over HTTP; the arguments by name; what the audit tells of both.

    ``...`` stands for something that is told and not known before."""

    path: dict[str, str]
    query: dict[str, str]
    body: Any
    arguments: dict[str, Any]
    told: dict[str, Any]


class World(NamedTuple):
    """Where acts are made: a store, and what has to be closed afterwards."""

    app: App
    engine: Engine
    stack: AsyncExitStack


ACTS: dict[str, Callable[[World], Awaitable[Act]]] = {}


def act(build: Callable[[World], Awaitable[Act]]) -> Callable[[World], Awaitable[Act]]:
    """Add an act under the name of its operation."""
    ACTS[build.__name__] = build
    return build


async def _execution(engine: Engine) -> ExecutionId:
    made = await engine.create_execution(input_payload=SECRET.encode(), namespace="acme", lane_id="acts")
    return made.execution_id


async def _failed(engine: Engine) -> ExecutionId:
    identity = await _execution(engine)
    await engine.fail(await claimed(engine, "acts"), "no", "permanent")
    return identity


async def _waiting(engine: Engine) -> tuple[ExecutionId, str]:
    identity = await _execution(engine)
    wait = SuspendArgs(waitpoints=[Fresh(None, "w")], resume_condition=Single("w", ByName("go")))
    await engine.suspend(await claimed(engine, "acts"), wait)
    [point] = (await engine.list_pending_waitpoints(execution_id=identity)).entries
    return identity, point.waitpoint_id


def _one(identity: str, body: Any = None, arguments: dict[str, Any] | None = None, **told: Any) -> Act:
    named = {"execution_id": str(identity)}
    return Act({"id": str(identity)}, {}, body, {**named, **(arguments or body or {})}, {**named, **told})


# -- executions and flows --------------------------------------------------------------------------------------------


@act
async def cancel_execution(world: World) -> Act:
    return _one(await _execution(world.engine), {"reason": SECRET})


@act
async def request_cancel(world: World) -> Act:
    return _one(await _execution(world.engine), {"reason": SECRET})


@act
async def revoke_lease(world: World) -> Act:
    identity = await _execution(world.engine)
    await claimed(world.engine, "acts")
    return _one(identity)


@act
async def replay_execution(world: World) -> Act:
    return _one(await _failed(world.engine))


@act
async def resume_execution(world: World) -> Act:
    return _one((await _waiting(world.engine))[0])


@act
async def fork_execution(world: World) -> Act:
    identity = await _execution(world.engine)
    steps = [NewStep("one", SECRET.encode()), NewStep("two", b"2")]
    await world.engine.advance(await claimed(world.engine, "acts"), steps=steps)
    return _one(identity, {"at": "two"}, at="two", new_execution_id=...)


@act
async def change_priority(world: World) -> Act:
    identity = await _execution(world.engine)
    await world.engine.promote_submitted()
    return _one(identity, {"new_priority": 7}, new_priority="7")


@act
async def set_execution_tags(world: World) -> Act:
    return _one(await _execution(world.engine), {"tags": {"app.owner": SECRET}}, tags="app.owner")


@act
async def read_waitpoint_token(world: World) -> Act:
    identity, point = await _waiting(world.engine)
    named = {"waitpoint_id": point}
    return _one(identity, None, {"partition": identity.partition, **named}, **named)._replace(
        path={"id": identity, **named}
    )


@act
async def cancel_flow(world: World) -> Act:
    made = await world.engine.submit_flow(FlowGraph({"one": {"lane_id": "acts"}}))
    named = {"flow_id": str(made.flow_id)}
    body = {"reason": SECRET, "cancellation_policy": "cancel_pending"}
    arguments = {**named, "reason": SECRET, "policy": "cancel_pending"}
    return Act({"id": made.flow_id}, {}, body, arguments, {**named, "policy": "cancel_pending"})


@act
async def set_flow_tags(world: World) -> Act:
    made = await world.engine.create_flow()
    named, body = {"flow_id": str(made.flow_id)}, {"tags": {"app.owner": SECRET}}
    return Act({"id": made.flow_id}, {}, body, {**named, **body}, {**named, "tags": "app.owner"})


@act
async def cancel_executions(world: World) -> Act:
    await _execution(world.engine)
    told = {"lane_id": "acts", "done": "1"}
    return Act({}, {}, {"filter": {"lane_id": "acts"}, "reason": SECRET}, {}, told)


@act
async def replay_executions(world: World) -> Act:
    await _failed(world.engine)
    return Act({}, {}, {"filter": {"namespace": "acme"}}, {}, {"namespace": "acme", "done": "1"})


# -- questions -------------------------------------------------------------------------------------------------------


async def _asked(world: World) -> ExecutionId:
    @world.app.workflow
    async def review() -> bool:
        return await Ask("publish?", bool, of={"ann", "bob"}, within=days(3))

    await world.stack.enter_async_context(world.app.worker())
    [ask] = await world.app.asks(await review.start(), wait=seconds(60))
    return ExecutionId(ask.id)


@act
async def give_answer(world: World) -> Act:
    return _one(await _asked(world), {"value": True, "by": "ann"}, by="ann")


@act
async def make_link(world: World) -> Act:
    return _one(await _asked(world), {"by": "bob"}, by="bob")


# -- lanes, budgets, quotas ------------------------------------------------------------------------------------------


@act
async def set_lane_state(world: World) -> Act:
    named, body = {"lane_id": "acts"}, {"state": "draining", "reason": "night"}
    await world.engine.set_lane_state("acts", "paused")
    return Act(named, {}, body, {**named, **body}, {**named, **body, "previous": "paused"})


@act
async def set_lane_fairness(world: World) -> Act:
    named, body = {"lane_id": "acts"}, {"by": "namespace"}
    return Act(named, {}, body, {**named, **body}, {**named, **body})


@act
async def create_budget(world: World) -> Act:
    said = {"scope_type": "namespace", "scope_id": "acme"}
    body = {
        **said, "enforcement_mode": "strict", "on_hard_limit": "fail", "on_soft_limit": "warn", "reset_interval_ms": 0,
        "dimensions": ["tokens", "usd"], "hard_limits": [10, 5], "soft_limits": [8, 0], "budget_id": BUDGET,
    }  # fmt: skip
    told = {**said, "budget_id": BUDGET, "dimensions": "tokens, usd", "hard_limits": "10, 5", "soft_limits": "8, 0"}
    return Act({}, {}, body, body, told)


async def _budget(engine: Engine) -> dict[str, str]:
    await engine.create_budget(
        budget_id=BUDGET, scope_type="namespace", scope_id="acme", dimensions=["usd"], hard_limits=[5], soft_limits=[0]
    )
    return {"budget_id": BUDGET}


@act
async def set_budget_limits(world: World) -> Act:
    named, body = await _budget(world.engine), {"hard_limits": {"usd": 9}}
    return Act({"id": BUDGET}, {}, body, {**named, **body}, {**named, "hard_limits": "usd=9"})


@act
async def reset_budget(world: World) -> Act:
    named = await _budget(world.engine)
    return Act({"id": BUDGET}, {}, None, named, named)


@act
async def create_quota_policy(world: World) -> Act:
    body = {"window_seconds": 60, "max_requests_per_window": 9, "max_concurrent": 3, "quota_policy_id": QUOTA}
    return Act({}, {}, body, body, {name: str(value) for name, value in body.items()})


# -- schedules -------------------------------------------------------------------------------------------------------


async def _schedule(engine: Engine) -> Act:
    await engine.put_schedule("nightly", spec=Every(60_000, 0), execution_kind="etl", namespace="acme", lane_id="acts")
    named = {"schedule_id": "nightly", "namespace": "acme"}
    return Act({"schedule_id": "nightly"}, {"namespace": "acme"}, None, named, named)


@act
async def put_schedule(world: World) -> Act:
    named = {"schedule_id": "nightly", "namespace": "acme"}
    said = {"execution_kind": "etl", "lane_id": "acts"}
    payload = list(SECRET.encode())
    body = {**said, "every_ms": 60_000, "input_payload": payload, "tags": {"app.owner": SECRET}}
    arguments = {**named, **said, "spec": RHYTHM, "tags": {"app.owner": SECRET}}
    told = {**named, **said, "spec": "every 60000 ms"}
    return Act({"schedule_id": "nightly"}, {"namespace": "acme"}, body, arguments, told)


@act
async def pause_schedule(world: World) -> Act:
    return await _schedule(world.engine)


@act
async def resume_schedule(world: World) -> Act:
    found = await _schedule(world.engine)
    await world.engine.pause_schedule("nightly", "acme")
    return found


@act
async def delete_schedule(world: World) -> Act:
    return await _schedule(world.engine)


@act
async def trigger_schedule(world: World) -> Act:
    found, body = await _schedule(world.engine), {"overlap": "queue"}
    told = {**found.told, **body, "started": ...}
    return found._replace(body=body, arguments={**found.arguments, **body}, told=told)


@act
async def backfill_schedule(world: World) -> Act:
    found, body = await _schedule(world.engine), {"from_ms": 60_000, "before_ms": 180_000}
    told = {**found.told, "from_ms": "60000", "before_ms": "180000", "runs": "2"}
    return found._replace(body=body, arguments={**found.arguments, **body}, told=told)


# -- credentials and keys --------------------------------------------------------------------------------------------


@act
async def create_credential(world: World) -> Act:
    body = {"name": "ci", "scopes": ["read", "submit"], "namespaces": ["acme", "shop"]}
    told = {"name": "ci", "scopes": "read, submit", "namespaces": "acme, shop", "credential_id": ...}
    return Act({}, {}, body, body, told)


@act
async def revoke_credential(world: World) -> Act:
    made = await world.engine.create_credential(name="ci", scopes=["read"])
    named = {"credential_id": made.credential.credential_id}
    return Act(named, {}, None, named, {**named, "name": "ci", "scopes": "read", "namespaces": "all"})


@act
async def rotate_waitpoint_secret(world: World) -> Act:
    await world.engine.rotate_waitpoint_hmac_secret_all(new_kid="k8", new_secret_hex="cd" * 32)
    told = {"new_kid": "k9", "previous_kid": "k8"}
    return Act({}, {}, {"new_kid": "k9", "new_secret_hex": "ab" * 32}, {}, told)
