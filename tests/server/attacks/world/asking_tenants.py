"""Calls of one tenant in which one field names something, and what may be said of it."""

from __future__ import annotations

import re

import httpx

from tests.server.attacks.world.naming import Place, call_of
from tests.server.attacks.world.tenants import Tenant, World

#: What is kept as the caller says it, and means something of the caller's own.
SAID = {
    "budget_id", "claim key", "debounce_key", "dedup_key", "idempotency_key", "kind", "lane_id", "quota_policy_id",
    "reservation key", "schedule_id", "worker_id", "worker_instance_id", "edge_id",
    "set_edge_group_policy:execution_id",
}  # fmt: skip
#: Where a list goes on.
PLACES = {"place", "lost", "waitpoint_id"}
#: All that is said of an id that is taken by somebody else.
IN_USE = re.compile(
    r"""(execution_id|flow_id): this id is in use; choose another one, or leave it out"[,}]"""
    r"""|"code":"waitpoint_already_exists","detail":"waitpoint \?"}"""
)


async def asked(client: httpx.AsyncClient, place: Place, own: Tenant, value: str | None) -> httpx.Response:
    """The answer to a call with this value in its place."""
    call = call_of(place, own, value)
    return await client.request(call.method, call.url, params=call.query, json=call.body)


async def value_of(world: World, place: Place, tenant: Tenant) -> str:
    """What a tenant names here; places in lists are asked for."""
    role = place.role()
    assert role is not None
    if role != "place":
        return tenant.things[role]
    client = world.client if tenant is world.a else world.other
    call = call_of(place, tenant, None)
    arguments = call.body["calls"][0]["arguments"] if place.door == "remote" else call.query
    del (call.body if place.door == "http" and place.part == "body" else arguments)[place.steps[-1]]
    (call.body if place.door == "http" and place.part == "body" else arguments)["limit"] = 1
    response = await client.request(call.method, call.url, params=call.query, json=call.body)
    found = response.json()
    if place.door == "remote":
        found = found["answers"][0]["ok"]
    cursor: str | None = found.get("next_cursor", found.get("cursor"))
    assert cursor is not None, "there is no second page"
    return cursor


def succeeded(response: httpx.Response) -> bool:
    if response.url.path == "/v1/remote/calls":
        return "ok" in response.json()["answers"][0]
    return response.is_success
