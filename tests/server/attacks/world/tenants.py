"""Two tenants on one server, everything that a call can name of each, and a look at whether one of them was touched."""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import httpx
import msgspec

from flowfabric import ClaimPolicy, FlowGraph
from flowfabric.engine import Engine
from flowfabric.model.errors import NotFound, Validation
from flowfabric.model.handles import Handle
from flowfabric.model.ids import ExecutionId
from flowfabric.model.operations.access import Scope
from flowfabric.model.operations.budgets import Reserved
from flowfabric.model.operations.workflows import NewStep
from flowfabric.model.partitions import PartitionCounts
from flowfabric.model.records.budgets import Budget, QuotaPolicy
from flowfabric.server import ServerConfig, create_app
from flowfabric.server.app import Server
from tests.contract.probe import ManualClock, Probe, forged
from tests.contract.reads.test_examine import overwrite
from tests.server.attacks.world.planting import HOUR_MS, Planted, Planter
from tests.server.conftest import client_of

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
#: Signed texts: handles and tokens of waitpoints.
_SIGNED = re.compile(r"k1\.[\w=-]+\.[\w=-]+|k1:[0-9a-f]{64}")
#: One partition, so that whatever can meet does.
ONE_PARTITION = PartitionCounts(1, 1, 1)
#: Budgets and quotas of a namespace, those that it had before ids had owners, and the operator's.
WHOSE = ("own", "old", "operator's")
#: What a server keeps about the calls themselves; it belongs to the caller.
_OF_CALLS = ("ff_audit", "ff_credential")


class Tenant(NamedTuple):
    """A namespace and what calls can name of it, by what it is: roles of executions and names of other things."""

    namespace: str
    things: dict[str, str]
    handle: Handle


class World(NamedTuple):
    """Tenant a, who calls with all scopes, and tenant b, who has things of the same kinds."""

    engine: Engine
    server: Server
    a: Tenant
    b: Tenant
    client: httpx.AsyncClient
    other: httpx.AsyncClient


@contextlib.asynccontextmanager
async def opened(url: str = "memory://", whose: str = "own") -> AsyncIterator[World]:
    """Both tenants on a new store. ``whose`` are the budgets and quotas that b works with; see ``WHOSE``."""
    clock = ManualClock()
    async with await Engine.open(url, clock=clock, new_partitions=ONE_PARTITION, single_node=True) as engine:
        server = create_app(engine, ServerConfig(require_credential=True))
        tenants = []
        for mark in ("own-a", "canary-b"):
            namespace = f"{mark}-namespace"
            # Twice, so that every list has more than one page of one.
            await Planter(engine, f"{mark}2", namespace).plant()
            planted = await Planter(engine, f"{mark}1", namespace).plant()
            tenants.append(await furnished(engine, server, planted, whose if mark == "canary-b" else "own"))
        clock.advance(1_000)
        await engine.run_timer("flow_projector")
        await engine.promote_submitted()
        a, b = tenants
        tokens = [await token_of(engine, each) for each in tenants]
        async with client_of(server, tokens[0]) as client, client_of(server, tokens[1]) as other:
            yield World(engine, server, a, b, client, other)


async def token_of(engine: Engine, tenant: Tenant, scopes: Sequence[Scope] = tuple(Scope)) -> str:
    """A credential with some scopes, or all, that is limited to a tenant."""
    made = await engine.create_credential(name="tenant", scopes=list(scopes), namespaces=[tenant.namespace])
    return made.token.reveal()


async def furnished(engine: Engine, server: Server, planted: Planted, whose: str) -> Tenant:
    """A planted tenant with budgets, a quota, a graph and work in hand."""
    namespace = planted.namespace
    things = {**planted.names, **planted.executions}
    things |= await _gates(engine, namespace, whose)
    things |= await _graph(engine, namespace)
    policy = {"budget_ids": [things["budget_id"]], "quota_policy_id": things["quota_policy_id"]}
    gated = await engine.create_execution(namespace=namespace, lane_id=f"{namespace}-gated", policy=policy)
    things["gated"] = str(gated.execution_id)
    held, handle = await _held(engine, namespace, {"budget_ids": [things["budget_id"]]})
    things |= held
    await server.performer.envelopes.ready()
    things["handle"] = server.performer.envelopes.seal(handle, [namespace])
    things |= {
        "lane_id": f"{namespace}-gated", "kind": planted.text("kind"),
        "worker_instance_id": planted.text("registered-instance"), "worker_id": planted.text("registered"),
    }  # fmt: skip
    partition = ExecutionId(things["suspended"]).partition
    point = await engine.read_waitpoint_token(partition, things["waitpoint_id"])
    assert point is not None
    things["waitpoint_token"] = point.reveal()
    return Tenant(namespace, things, handle)


async def _gates(engine: Engine, namespace: str, whose: str) -> dict[str, str]:
    budget, above, quota, another = (str(uuid.uuid4()) for _ in range(4))
    owner = namespace if whose == "own" else None
    for each, parent, limit in ((above, None, 100), (budget, above, 10)):
        await engine.create_budget(
            budget_id=each, namespace=owner, dimensions=["usd"], hard_limits=[limit], soft_limits=[0],
            parent_budget_id=parent,
        )  # fmt: skip
    for each in (quota, another):
        await engine.create_quota_policy(quota_policy_id=each, max_concurrent=1, namespace=owner)
    if whose == "old":
        for kind, each in ((Budget, above), (Budget, budget), (QuotaPolicy, quota), (QuotaPolicy, another)):
            await overwrite(engine, kind, each, namespace=namespace)
        owner = namespace
    key = f"{namespace}-charge"
    await engine.report_usage_admin(budget_id=budget, namespace=owner, dimensions=["usd"], deltas=[1], dedup_key=key)
    return {"budget_id": budget, "parent_budget_id": above, "quota_policy_id": quota, "dedup_key": key}


async def _graph(engine: Engine, namespace: str) -> dict[str, str]:
    node = {"namespace": namespace, "lane_id": f"{namespace}-graph"}
    graph = FlowGraph(nodes={"up": node, "down": node, "side": node}, edges=[("up", "down")], namespace=namespace)
    made = await engine.submit_flow(graph)
    flow, members = made.flow_id, made.execution_ids
    edge = str(uuid.uuid4())
    found = await engine.describe_flow(flow)
    assert found is not None
    staged = await engine.stage_dependency_edge(
        flow_id=flow, edge_id=edge, upstream_execution_id=members["up"], downstream_execution_id=members["side"],
        expected_graph_revision=found.graph_revision,
    )  # fmt: skip
    loose = ExecutionId.for_flow(flow, engine.partitions)
    await engine.create_execution(execution_id=loose, **node)
    return {
        **{name: str(each) for name, each in members.items()}, "loose": str(loose), "flow_id": str(flow),
        "edge_id": edge, "revision": str(staged.new_graph_revision),
    }  # fmt: skip


async def _held(engine: Engine, namespace: str, policy: dict[str, Any]) -> tuple[dict[str, str], Handle]:
    """Work in hand, with a reservation, a waitpoint to suspend on, a step and children."""
    lane = f"{namespace}-held"
    made = await engine.create_execution(namespace=namespace, lane_id=lane, policy=policy)
    handle = await engine.claim(lane, (), ClaimPolicy(f"{namespace}-w", f"{namespace}-wi", HOUR_MS))
    assert handle is not None
    reserved = await engine.reserve_budget(handle, policy["budget_ids"][0], {"usd": 1}, f"{namespace}-reservation")
    assert isinstance(reserved, Reserved)
    pending = await engine.create_waitpoint(handle, f"{namespace}-pending", HOUR_MS)
    child, ended = (str(ExecutionId.of(made.execution_id.partition, str(uuid.uuid4()))) for _ in range(2))
    creation = {"namespace": namespace, "lane_id": f"{namespace}-children"}
    await engine.advance(
        handle, steps=[NewStep("one", b"1"), NewStep("two", b"2")],
        children=[{**creation, "execution_id": child}, {**creation, "execution_id": ended}],
    )  # fmt: skip
    await engine.cancel_execution(execution_id=ended)
    payload = handle.payload
    return {
        "held": str(made.execution_id), "child": child, "ended child": ended, "pending": pending.waitpoint_id,
        "reservation_id": reserved.reservation_id, "lease_id": payload.lease_id, "attempt_id": payload.attempt_id,
        "reservation key": f"{namespace}-reservation", "claim key": f"{namespace}-claim-key",
        "debounce_key": f"{namespace}-burst",
    }, handle  # fmt: skip


def unknown(world: World, role: str, value: str) -> str:
    """A name that nobody has, right beside one of b's, so that nothing lies between them."""
    if role != "handle":
        return beside(value)
    handle = forged(world.b.handle, execution_id=beside(world.b.things["held"]))
    return world.server.performer.envelopes.seal(handle, [world.b.namespace])


def beside(text: str) -> str:
    """A text that differs in its last letter or digit, or in the last of an identity."""
    found = list(UUID.finditer(text))
    at = found[-1].end() - 1 if found else max(at for at, each in enumerate(text) if each.isalnum())
    other = {"f": "e", "9": "8", "z": "y"}.get(text[at], chr(ord(text[at]) + 1))
    other = "a" if other == ":" else other
    return text[:at] + other + text[at + 1 :]


# -- what is answered --------------------------------------------------------------------------------------------------


def plainly(response: httpx.Response, sent: str) -> str:
    """Status, headers and body; what was sent stands as ``?``, and identities that were made anew by their order."""
    headers = sorted(
        (key, each) for key, each in response.headers.items() if key not in ("x-request-id", "content-length")
    )
    text = f"{response.status_code} {headers} {response.text}"
    for each in {sent, json.dumps(sent)[1:-1]}:
        text = text.replace(each, "?")
    # An error about part of an identity names that part alone.
    text = text.replace(sent.rpartition(":")[2], "?") if UUID.search(sent) else text
    known: dict[str, str] = {}
    text = UUID.sub(lambda found: known.setdefault(found[0], f"<{len(known)}>"), text)
    return _SIGNED.sub("<signed>", text)


def assert_silent(world: World, text: str) -> None:
    """No answer to a tells anything of b."""
    for value in (*world.b.things.values(), "canary-b"):
        if UUID.search(value) or "canary" in value:
            assert value not in text, value


# -- what is touched ---------------------------------------------------------------------------------------------------


async def belongings(world: World) -> set[str]:
    """Every row and event in which anything of b's stands: counters, slots, leases, waitpoints and the rest."""
    return of_b(world, await rows(world.engine))


def of_b(world: World, found: Iterable[str]) -> set[str]:
    """Those rows in which anything of b's stands."""
    traces = set(_traces(world.b))
    return {row for row in found if any(each in row for each in traces)}


async def assert_untouched(world: World, before: set[str], said: str = "") -> None:
    """All that b had is there as it was, and nothing of b's has been added; in rows of a stands what a has said."""
    check_untouched(world, before, await belongings(world), said)


def check_untouched(world: World, before: set[str], after: set[str], said: str = "") -> None:
    """The same of rows that were read before."""
    assert before <= after, before - after
    ids = [found[0] for found in UUID.finditer(said)]
    texts = {said, *(form for each in ids for form in _forms(each))} - {""}
    for row in after - before:
        rest = row
        for each in texts:
            rest = rest.replace(each, "")
        assert not _is_of(world.b, rest), row


def _is_of(tenant: Tenant, row: str) -> bool:
    return any(each in row for each in _traces(tenant))


def _traces(tenant: Tenant) -> Iterator[str]:
    yield tenant.namespace.removesuffix("-namespace")
    for each in tenant.things.values():
        for found in UUID.finditer(each):
            yield from _forms(found[0])


def _forms(identity: str) -> tuple[str, ...]:
    """An identity as rows show it; the last is SQLite's way."""
    return identity, identity.replace("-", ""), repr(uuid.UUID(identity).bytes)[2:-1]


async def rows(engine: Engine) -> list[str]:
    """Everything that is stored, as texts; what a server keeps about calls apart."""
    found_rows = []
    for table, found in (await Probe(engine).snapshot()).items():
        if table.startswith(_OF_CALLS):
            continue
        if table == "others":  # a Valkey's indexes and large fields: each has many entries
            found_rows += [f"{key!r} {each!r}" for key, entries in found.items() for each in entries]
            continue
        for each in found.values() if isinstance(found, dict) else found:
            text = msgspec.json.encode(each, enc_hook=repr).decode() if isinstance(each, msgspec.Struct) else str(each)
            found_rows.append(f"{table} {text}")
    return found_rows


async def work_on(world: World, budget_id: str) -> None:
    """Tenant a goes on with whatever it has started, and tries to spend."""
    a, engine = world.a, world.engine.limited_to({world.a.namespace})
    with contextlib.suppress(NotFound):
        await engine.trigger_schedule(a.things["schedule_id"], a.namespace)
    for lane in ("lane", "default", f"{a.namespace}-graph"):
        policy = ClaimPolicy("a", "a-i", HOUR_MS)
        for handle in await engine.claim_many(lane, (), policy, 10, [a.namespace]):
            with contextlib.suppress(NotFound, Validation):
                await engine.reserve_budget(handle, budget_id, {"usd": 1})
            await engine.complete(handle, None)


async def assert_alive(world: World) -> None:
    """Tenant b's work can still be claimed, takes its only slot, and is charged to its budget."""
    policy = ClaimPolicy("b", "b-i", HOUR_MS)
    lane = f"{world.b.namespace}-gated"
    handle = await world.engine.claim(lane, (), policy, namespaces=[world.b.namespace])
    assert handle is not None
    assert str(handle.execution_id) == world.b.things["gated"]
    assert isinstance(await world.engine.reserve_budget(handle, world.b.things["budget_id"], {"usd": 8}), Reserved)
