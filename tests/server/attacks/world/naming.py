"""Every place in a call where something can be named, found by walking the types of bodies, queries and arguments."""

from __future__ import annotations

import copy
import re
import types
import typing
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
from msgspec import Raw, Struct, UnsetType

from flowfabric.engine.operation_table import REMOTE, Subject
from flowfabric.engine.wire.codec import body_of
from flowfabric.model.ids import ExecutionId
from flowfabric.model.policy import ExecutionPolicy
from flowfabric.server.operations import Route
from flowfabric.server.routes import ROUTES
from flowfabric.server.routes.remote import ClaimBody
from tests.server.attacks.world.tenants import Tenant

#: Streams do not end, and ``test_canary`` reads them. Links are signed. Remote calls are walked one by one.
LEFT_OUT = (
    "follow_events", "follow_changes", "follow_stream", "follow_run", "look_at_link", "answer_link", "remote_calls",
)  # fmt: skip
BY_ROUTE = {each.name: each for each in ROUTES if each.name not in LEFT_OUT}
#: Words in the names of fields that name something.
_NAMING = re.compile(
    r"(^|_)(id|ids|key|keys|parent|upstream|downstream|after|before|cursor|lanes?|namespaces?|awaited|handles?|budgets?|"
    r"quotas?|flows?|executions?|schedules?|waitpoints?|reservations?|child|children|tokens?|lease|worker|instance|"
    r"identity|scope|owner|link|ref|member|members|attempt|signal|source|target)($|_)"
)

#: What fields name: a field, one inside another or one of an operation; the most specific entry counts. The value is
#: what a tenant has by that name. ``execution`` is one in the state that the operation needs, ``place`` a cursor.
NAMES: dict[str, str] = {
    "namespace": "namespace", "namespaces": "namespace", "list_namespaces:after": "namespace",
    "lane_id": "lane_id", "lanes": "lane_id",
    "id": "execution", "execution_id": "execution", "execution_ids": "execution", "after_execution_id": "lost",
    "after.execution_id": "lost", "cancel_child:execution_id": "child", "wait.awaited": "ended child",
    "parent": "held", "upstream": "up", "downstream": "down",
    "stage_dependency_edge:upstream_execution_id": "down", "upstream_execution_id": "up",
    "downstream_execution_id": "side", "edge_id": "edge_id", "add_execution_to_flow:execution_id": "loose",
    "set_edge_group_policy:execution_id": "up", "flow_id": "flow_id",
    "children.execution_id": "waiting", "new_execution_id": "waiting",
    "budget_id": "budget_id", "budget_ids": "budget_id", "parent_budget_id": "parent_budget_id",
    "quota_policy_id": "quota_policy_id", "reservation_id": "reservation_id", "dedup_key": "dedup_key",
    "idempotency_key": "idempotency_key", "reserve_budget:idempotency_key": "reservation key",
    "debounce_key": "debounce_key", "key": "claim key",
    "schedule_id": "schedule_id", "handle": "handle", "handles": "handle",
    "waitpoint_id": "waitpoint_id", "waitpoint_token": "waitpoint_token", "UsePending.waitpoint_id": "pending",
    "list_pending_waitpoints:after": "waitpoint_id",
    "lease_id": "lease_id", "expected_lease_id": "lease_id", "attempt_id": "attempt_id",
    "worker_id": "worker_id", "worker_instance_id": "worker_instance_id", "list_workers:after": "worker_instance_id",
    "list_budgets:after": "place", "list_quota_policies:after": "place", "cursor": "place",
}  # fmt: skip

#: Fields that sound like it and name nothing of anybody.
NAMELESS = {
    # Texts that are kept as they are, for people and workers.
    "creator_identity", "source_identity", "source_type", "source", "correlation_id", "target_scope", "scope_type",
    "scope_id", "data_passing_ref", "requested_by", "execution_kind", "flow_kind", "worker_capabilities",
    "resume_target",
    # New identities inside something that is the caller's own, never looked for elsewhere.
    "signal_id", "suspension_id", "args.idempotency_key", "deliver_signal:idempotency_key",
    # Names of nodes and waitpoints within the same call; tags of the execution or flow that is named.
    "edges.upstream", "edges.downstream", "waitpoint_key", "Count.waitpoints", "get_execution_tag:key",
    "get_flow_tag:key",
    # Places in the stream of the execution that is named.
    "tail_stream:after", "from_cursor", "to_cursor",
    # How an earlier key is taken.
    "key_reuse",
    # What signals say.
    "signal_name", "signal_category",
}  # fmt: skip

#: The execution that an operation is made for, by its role.
ROLES = {
    "cancel_child": "child", "deliver_signal": "suspended", "describe_ask": "asked", "fork_execution": "completed",
    "get_execution_result": "completed", "give_answer": "asked", "issue_reclaim_grant": "lost",
    "list_pending_waitpoints": "suspended", "make_link": "asked", "read_summary": "running",
    "read_waitpoint_token": "suspended", "replay_execution": "failed", "resume_execution": "suspended",
    "revoke_lease": "held", "read_steps": "held",
}  # fmt: skip

#: Identities that a caller may choose. One that is taken by somebody else is refused in one sentence.
CHOSEN = {
    "create_execution:execution_id", "executions.execution_id", "nodes.execution_id",
    "children.execution_id", "new_execution_id", "create_flow:flow_id", "submit_flow:flow_id", "Fresh.waitpoint_id",
}  # fmt: skip


class Place(NamedTuple):
    """Where in which call something is named."""

    door: str
    operation: str
    part: str
    steps: tuple[str, ...]
    hint: Any

    def __str__(self) -> str:
        return f"{self.door} {self.operation} {self.part} {'.'.join(self.steps)}"

    def found_in(self, table: Any) -> str | None:
        """The most specific entry of a table for it."""
        leaf = self.steps[-1]
        inside = ".".join(self.steps[-2:])
        for each in (f"{self.operation}:{leaf}", inside, f"{self.steps[0]}.{leaf}", leaf):
            if each in table:
                return each
        return None

    def role(self) -> str | None:
        """What a tenant has by the name that stands here."""
        entry = self.found_in({*NAMES, *NAMELESS})
        role = None if entry is None or entry in NAMELESS else NAMES[entry]
        if self.part == "path" and self.steps == ("id",):
            subject = BY_ROUTE[self.operation].owner
            role = {Subject.FLOW: "flow_id", Subject.BUDGET: "budget_id"}.get(subject, role)  # type: ignore[arg-type]
        return ROLES.get(self.operation, "waiting") if role == "execution" else role


class Asked(NamedTuple):
    """A call as it is made."""

    method: str
    path: dict[str, str]
    query: dict[str, Any]
    body: Any
    template: str

    @property
    def url(self) -> str:
        """The address with what the path names."""
        return re.sub(r"{(\w+)}", lambda found: quote(self.path[found[1]], safe=""), self.template)


# -- finding them ------------------------------------------------------------------------------------------------------


def places() -> Iterator[Place]:
    """All of them, on both doors, in operations that are open to those who are limited to namespaces."""
    for route in (each for each in BY_ROUTE.values() if not each.operation.everywhere):
        for name in re.findall(r"{(\w+)}", route.path):
            yield Place("http", route.name, "path", (name,), str)
        for part, kind in (("query", route.query), ("body", route.body)):
            if kind is not None:
                yield from _fields(kind, Place("http", route.name, part, (), kind), ())
    # What is claimed along with remote calls.
    yield from _fields(ClaimBody, Place("along", "remote_claim", "body", (), ClaimBody), ())
    for name in (each.name for each in REMOTE.values() if not each.everywhere):
        body = body_of(name)
        at = Place("remote", name, "body", (), body.kind)
        for field in msgspec.structs.fields(body.kind):
            hint = body.by_hand.get(field.name, field.type)
            yield from _inside(hint, at._replace(steps=(field.name,)), ())


def sounds_naming(place: Place) -> bool:
    """Whether a field is one that texts stand in and whose name is that of something."""
    return bool(_NAMING.search(place.steps[-1])) and str in set(atoms(place.hint))


def _fields(kind: Any, at: Place, seen: tuple[Any, ...]) -> Iterator[Place]:
    if kind in seen:
        return
    for field in msgspec.structs.fields(kind):
        yield from _inside(field.type, at._replace(steps=(*at.steps, field.encode_name)), (*seen, kind))


def _inside(hint: Any, at: Place, seen: tuple[Any, ...]) -> Iterator[Place]:
    if at.steps[-1] == "policy" and dict in atoms(hint) and at.operation != "cancel_flow":
        yield from _fields(ExecutionPolicy, at, seen)
        return
    records = [each for each in atoms(hint) if isinstance(each, type) and issubclass(each, Struct)]
    for each in records:
        yield from _fields(each, at._replace(steps=(*at.steps, each.__name__) if len(records) > 1 else at.steps), seen)
    if not records:
        yield at._replace(hint=hint)


def atoms(hint: Any) -> Iterator[Any]:
    """The types that a value of a type is made of."""
    if isinstance(hint, type) and issubclass(hint, str):
        yield str
        return
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hasattr(hint, "__metadata__"):
        yield from atoms(hint.__origin__)
    elif origin is None or origin is typing.Literal:
        if hint not in (type(None), UnsetType, Raw, Ellipsis):
            yield hint
    else:
        if origin is dict:
            yield dict
        for each in arguments:
            yield from atoms(each)


# -- making calls ------------------------------------------------------------------------------------------------------

_CREATION = {"lane_id": "lane", "execution_kind": "op", "input_payload": [1], "priority": 0, "creator_identity": "me"}
#: What has to stand in fields that name nothing, or in which others stand.
SAMPLES: dict[str, Any] = {
    "fields": ["lane_id"], "amounts": {"usd": 1}, "from_ms": 1, "before_ms": 2, "wait_ms": 1, "at_most_ms": 1,
    "frames": [{"bytes": ""}], "frame": {"bytes": ""},
    "lanes": ["lane"], "partition": 0, "delay_until": 1_900_000_000_000,
    "new_priority": 1, "state": "paused", "tags": {"a.b": "c"}, "reasons": ["waiting_for_approval"],
    "family": "completion", "idx": "0", "credential_id": "0" * 16, "key": "a.b", "reason": "why", "limit": 2,
    "args": {"waitpoints": [{"Fresh": {"waitpoint_key": "w"}}], "resume_condition": {"type": "OperatorOnly"}},
    "wait": {"awaited": [], "wake_after": 1}, "policy": {}, "after": {"expires_at_ms": 1, "execution_id": ""},
    "claim": {"worker_id": "w", "worker_instance_id": "wi"},
    "filter": {}, "nodes": {"one": {"execution_kind": "op"}, "two": {"execution_kind": "op"}},
    "groups": {"one": {"kind": "all_of"}}, "edges": [{"upstream": "one", "downstream": "two"}],
    "cancellation_policy": "flow_only", "signal_name": "go", "signal_category": "c", "source_type": "t",
    "source_identity": "s", "target_scope": "waitpoint", "grant_ttl_ms": 1_000, "value": True, "dimensions": [],
    "hard_limits": [], "soft_limits": [], "scope_type": "namespace", "scope_id": "own", "enforcement_mode": "strict",
    "on_hard_limit": "fail", "on_soft_limit": "warn", "reset_interval_ms": 0, "window_seconds": 60,
    "max_requests_per_window": 9, "max_concurrent": 3, "flow_kind": "dag", "execution_kind": "op", "by": "me",
    "name": "n", "scopes": ["read"], "new_kid": "k9", "new_secret_hex": "ab" * 32, "percent": 1, "every_ms": 60_000,
    "spec": {"Every": {"every_ms": 60_000, "anchor_ms": 0}}, "liveness_ttl_ms": 1_000,
    "set_edge_group_policy:policy": {"kind": "all_of"}, "report_usage_admin:dimensions": {"usd": 1},
    "set_budget_limits:hard_limits": {"usd": 50}, "failure_class": "permanent", "steps": [{"name": "n"}],
    "read_kind_definition:kind": "send", "start_kind:kind": "send", "definitions": {"k": {"noun": "task"}},
    "remote_claim:lanes": {"lane": 1}, "debounce_key": "d", "payload": "AA==", "hard_limit": 1,
    **_CREATION,
}  # fmt: skip
#: Fields that are given although they need not be: what they stand for would be another namespace's.
_GIVEN = {
    "namespace", "every_ms", "report_usage_admin:dimensions", "set_budget_limits:hard_limits", "list_edges:upstream",
    "read_waitpoint_token:execution_id", "settle_reservation:handle", "release_reservation:handle",
}  # fmt: skip
#: Names that one's own must not have yet, and what is never accepted.
NEW = {
    *CHOSEN,
    "stage_dependency_edge:edge_id",
    "start_kind:idempotency_key",
    "debounce_execution:execution_id",
    "debounce_execution:idempotency_key",
    "nodes.idempotency_key",
    "children.idempotency_key",
}
#: Where a list of executions to be created stands.
_CREATIONS = {"executions": True, "children": True, "execution": False}


def call_of(place: Place, own: Tenant, value: Any) -> Asked:
    """A valid call of one's own, but for what stands in one place."""
    if place.door == "remote":
        arguments = _record(body_of(place.operation).kind, place, own)
        _put(arguments, place, own, value)
        body = {"calls": [{"op": place.operation, "arguments": arguments}]}
        return Asked("POST", {}, {}, body, "/v1/remote/calls")
    if place.door == "along":
        claim = _record(ClaimBody, place, own)
        _put(claim, place, own, value)
        body = {"calls": [{"op": "ping", "arguments": {}}], "claim": claim}
        return Asked("POST", {}, {}, body, "/v1/remote/calls")
    route: Route = BY_ROUTE[place.operation]
    path = {name: _sample(name, place._replace(part="path"), own) for name in re.findall(r"{(\w+)}", route.path)}
    query = {} if route.query is None else _record(route.query, place._replace(part="query"), own)
    body = None if route.body is None else _record(route.body, place._replace(part="body"), own)
    _put({"path": path, "query": query, "body": body}[place.part], place, own, value)
    if place.role() == "place" and body is not None:
        body["dry_run"] = True
    return Asked(route.method, path, query, body, route.path)


def _record(kind: Any, at: Place, own: Tenant) -> dict[str, Any]:
    return {
        field.encode_name: _sample(field.encode_name, at, own)
        for field in msgspec.structs.fields(kind)
        if field.required or not _GIVEN.isdisjoint({field.name, f"{at.operation}:{field.name}"})
    }


def _sample(name: str, at: Place, own: Tenant) -> Any:
    if name in _CREATIONS:
        one = {**_CREATION, "namespace": own.namespace}
        if at.door == "remote":
            one["input_payload"] = "AA=="
        if name == "children":
            one["execution_id"] = str(ExecutionId.of(0, str(uuid.uuid4())))
        return [one] if _CREATIONS[name] else one
    if name.endswith("graph_revision"):
        return int(own.things["revision"])
    specific = SAMPLES.get(f"{at.operation}:{name}")
    if specific is not None:
        return copy.deepcopy(specific)
    role = at._replace(steps=(name,)).role()
    if role is not None and role != "place" and name not in SAMPLES:
        several = name in ("execution_ids", "handles", "budget_ids", "namespaces")
        return [own.things[role]] if several else own.things[role]
    return copy.deepcopy(SAMPLES.get(name, "x"))


def _put(call: Any, place: Place, own: Tenant, value: Any) -> None:
    node: Any = call
    if place.steps[-1] == "downstream":
        call.pop("upstream", None)  # one or the other
    for step in place.steps[:-1]:
        if step[0].isupper():
            content = node.setdefault(step, {})
            for other in [each for each in node if each != step]:
                del node[other]
            node = content
        else:
            if not node.get(step):
                node[step] = _sample(step, place, own)
            node = node[step]
        node = next(iter(node.values())) if step in ("nodes", "groups") else node[0] if isinstance(node, list) else node
    node[place.steps[-1]] = _shaped(place.hint, value)


def _shaped(hint: Any, value: Any) -> Any:
    """A value as the field takes it: alone, in a list, or as a key."""
    arms = [hint.__origin__ if hasattr(hint, "__metadata__") else hint]
    if typing.get_origin(arms[0]) in (typing.Union, types.UnionType):
        arms = [each.__origin__ if hasattr(each, "__metadata__") else each for each in typing.get_args(arms[0])]
    origins = {typing.get_origin(each) for each in arms}
    if dict in origins:
        return {value: 1}
    return [value] if origins & {list, tuple, Sequence} else value
