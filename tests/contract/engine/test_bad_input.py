"""What cannot be meant is refused at the door: every public method, every argument, a typed error and no trace."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from flowfabric import (
    AnyOf,
    CompletionPayload,
    Contention,
    EngineError,
    Every,
    ExecutionId,
    FlowGraph,
    Frame,
    Fresh,
    Handle,
    NotFound,
    Outgoing,
    PendingWaitpoint,
    State,
    SuspendArgs,
    Unavailable,
    UsageDimensions,
    Validation,
    ValidationKind,
)
from flowfabric.conditions import Single
from flowfabric.engine import Engine
from flowfabric.model.operations.executions import ResumeGrant, ResumeToken
from flowfabric.model.records.flows import Flow
from tests.contract.bad_samples import BAD_SAMPLES, PULSE
from tests.contract.bad_steps import BAD_STEPS
from tests.contract.bad_values import BAD as PLAIN_BAD, Bad
from tests.contract.bad_waits import BAD_WAITS
from tests.contract.probe import START_MS, Probe, claimed, create, fence_of, id_of, policy, unchanged
from tests.contract.seeding import flow_of, seed

UUID = "33333333-3333-4333-8333-333333333333"
BAD = PLAIN_BAD | BAD_SAMPLES | BAD_STEPS | BAD_WAITS


class World(NamedTuple):
    """Something real to be wrong about."""

    fresh: ExecutionId
    handle: Handle
    flow: Flow
    waitpoint: PendingWaitpoint

    @property
    def held(self) -> ExecutionId:
        return id_of(self.handle)


class Method(NamedTuple):
    """Arguments that pass, and what each of them may not be."""

    good: Callable[[World], dict[str, Any]]
    #: Argument -> name of a list of bad values.
    bad: dict[str, str]


def _named(world: World) -> dict[str, Any]:
    return {"execution_id": world.held, "attempt_index": 0, "fence": fence_of(world.handle)}


def _worker(world: World) -> dict[str, Any]:
    return {"execution_id": world.fresh, "worker_id": "w1", "worker_instance_id": "w1-i1", "lane_id": "default"}


def _one(world: World) -> dict[str, Any]:
    return {"execution_id": world.fresh}


def _held(world: World) -> dict[str, Any]:
    return {"handle": world.handle}


def _flow(world: World) -> dict[str, Any]:
    return {"flow_id": world.flow.flow_id}


def _waits(world: World) -> dict[str, Any]:
    return {"args": SuspendArgs(waitpoints=[Fresh(waitpoint_key="k")], resume_condition=Single("k"))}


def _point(world: World) -> dict[str, Any]:
    return {"execution_id": world.held, "waitpoint_id": world.waitpoint.waitpoint_id}


def _token(**changes: Any) -> ResumeToken:
    grant = {"execution_id": f"{{fp:0}}:{UUID}", "partition_key": "{fp:0}", "grant_key": "k", "expires_at_ms": 2**62}
    return ResumeToken(ResumeGrant(**{**grant, "lane_id": "default", **changes}), "w1", "w1-i1", 1_000)


def _edge(world: World) -> dict[str, Any]:
    ends = {"upstream_execution_id": world.fresh, "downstream_execution_id": world.held}
    return {**_flow(world), "edge_id": UUID, **ends}


EDGE = {"flow_id": "uuid", "edge_id": "uuid", "upstream_execution_id": "id", "downstream_execution_id": "id"}
FENCED = {"execution_id": "id", "attempt_index": "index", "fence": "fence"}
GRANTED = {"execution_id": "id", "worker_id": "name+", "worker_instance_id": "name+", "lane_id": "lane"}
NOTED = {"capability_hash": "name?", "route_snapshot_json": "text?", "admission_summary": "text?"}
CREATION = {
    "execution_id": "id?", "namespace": "name", "lane_id": "lane", "execution_kind": "name", "input_payload": "bytes?",
    "payload_encoding": "name?", "priority": "number", "creator_identity": "name", "idempotency_key": "name?",
    "tags": "tags?", "policy": "policy", "delay_until": "time?", "execution_deadline_at": "time?", "now": "time?",
    "key_reuse": "key reuse",
}  # fmt: skip
ONE = {"execution_id": "id"}
SUBSCRIPTION = {"cursor": "event cursor", "filter": "event filter", "on_gap": "callable?", "strict": "flag"}
FILTER = {"partition": "partition?", "lane": "lane?"}

METHODS: dict[str, Method] = {
    # the engine itself
    "drain": Method(lambda w: {"grace_ms": 1_000}, {"grace_ms": "time"}),
    "shutdown_prepare": Method(lambda w: {"grace_ms": 1_000}, {"grace_ms": "time"}),
    "limited_to": Method(lambda w: {"namespaces": ["a"]}, {"namespaces": "names?"}),
    # intake
    "create_execution": Method(lambda w: {}, CREATION),
    "create_executions": Method(lambda w: {"executions": []}, {"executions": "creations"}),
    "set_execution_tag": Method(lambda w: {**_one(w), "key": "a.b", "value": "v"},
                                {**ONE, "key": "key", "value": "text"}),
    "set_execution_tags": Method(lambda w: {**_one(w), "tags": {"a.b": "v"}}, {**ONE, "tags": "tags"}),
    "get_execution_tag": Method(lambda w: {**_one(w), "key": "a.b"}, {**ONE, "key": "key"}),
    "set_flow_tag": Method(lambda w: {**_flow(w), "key": "a.b", "value": "v"},
                           {"flow_id": "uuid", "key": "key", "value": "text"}),
    "set_flow_tags": Method(lambda w: {**_flow(w), "tags": {"a.b": "v"}}, {"flow_id": "uuid", "tags": "tags"}),
    "get_flow_tag": Method(lambda w: {**_flow(w), "key": "a.b"}, {"flow_id": "uuid", "key": "key"}),
    # flows
    "create_flow": Method(lambda w: {}, {"flow_id": "uuid?", "flow_kind": "name", "namespace": "name",
                                         "budget_ids": "uuids", "now": "time?"}),
    "add_execution_to_flow": Method(lambda w: {"flow_id": UUID, **_one(w)}, {"flow_id": "uuid", **ONE, "now": "time?"}),
    "stage_dependency_edge": Method(lambda w: {**_edge(w), "expected_graph_revision": 0},
                                    {**EDGE, "dependency_kind": "name", "data_passing_ref": "name?",
                                     "expected_graph_revision": "revision", "now": "time?"}),
    "apply_dependency_to_child": Method(lambda w: {**_edge(w), "downstream_execution_id": f"{{fp:0}}:{UUID}"},
                                        {**EDGE, "graph_revision": "revision", "dependency_kind": "name",
                                         "data_passing_ref": "name?", "now": "time?"}),
    "set_edge_group_policy": Method(lambda w: {**_flow(w), "downstream_execution_id": w.fresh, "policy": AnyOf()},
                                    {"flow_id": "uuid", "downstream_execution_id": "id", "policy": "edge policy"}),
    "submit_flow": Method(lambda w: {"graph": FlowGraph({"a": {}})}, {"graph": "graph"}),
    "resolve_dependency": Method(lambda w: {**_edge(w), "upstream_outcome": "success"},
                                 {**EDGE, "upstream_outcome": "name+"}),
    "cascade_completion": Method(lambda w: {"completion": CompletionPayload(w.fresh)}, {"completion": "completion"}),
    "describe_flow": Method(_flow, {"flow_id": "uuid", "namespaces": "names?"}),
    "get_flow_summary": Method(_flow, {"flow_id": "uuid"}),
    "read_flow_tree": Method(_flow, {"flow_id": "uuid", "parent": "id?", "namespaces": "names?",
                                     "cursor": "search cursor?", "limit": "count"}),
    "list_flows": Method(lambda w: {"partition": 0}, {"partition": "partition", "cursor": "uuid?", "limit": "page"}),
    "list_edges": Method(lambda w: {**_flow(w), "direction": Outgoing(w.fresh)},
                         {"flow_id": "uuid", "direction": "direction", "namespaces": "names?"}),
    "describe_edge": Method(lambda w: {**_flow(w), "edge_id": UUID}, {"flow_id": "uuid", "edge_id": "uuid"}),
    # claiming
    "claim": Method(lambda w: {"lane": "none", "policy": policy()},
                    {"lane": "lane", "capabilities": "capabilities", "policy": "claim policy", "namespaces": "names?"}),
    "claim_many": Method(lambda w: {"lane": "none", "policy": policy()},
                         {"lane": "lane", "capabilities": "capabilities", "policy": "claim policy", "limit": "count",
                          "namespaces": "names?"}),
    "claim_from_lanes": Method(lambda w: {"lanes": {"none": 1}, "policy": policy()},
                               {"lanes": "weighted lanes", "capabilities": "capabilities", "policy": "claim policy",
                                "limit": "count", "namespaces": "names?"}),
    "claim_for_worker": Method(lambda w: {"lane_id": "none", "worker_id": "w", "worker_instance_id": "i"},
                               {"lane_id": "lane", "worker_id": "name+", "worker_instance_id": "name+",
                                "worker_capabilities": "capabilities", "grant_ttl_ms": "ttl", "namespaces": "names?"}),
    "issue_claim_grant": Method(_worker, {**GRANTED, **NOTED, "worker_capabilities": "capabilities",
                                          "grant_ttl_ms": "ttl"}),
    "verify_grant": Method(lambda w: {"grant_key": "x", "worker_id": "w", "worker_instance_id": "i"},
                           {"grant_key": "text", "worker_id": "name+", "worker_instance_id": "name+"}),
    "claim_execution": Method(lambda w: {**_worker(w), "lease_id": UUID, "attempt_id": UUID, "lease_ttl_ms": 1_000},
                              {**GRANTED, "lease_id": "uuid", "attempt_id": "uuid", "lease_ttl_ms": "ttl",
                               "attempt_policy_json": "json", "attempt_timeout_ms": "time?",
                               "execution_deadline_at": "time?"}),
    "claim_resumed_execution": Method(lambda w: {**_worker(w), "lease_id": UUID, "lease_ttl_ms": 1_000},
                                      {**GRANTED, "lease_id": "uuid", "lease_ttl_ms": "ttl",
                                       "remaining_attempt_timeout_ms": "time?"}),
    "claim_from_resume_grant": Method(lambda w: {"token": _token()}, {"token": "token"}),
    "issue_grant_and_claim": Method(lambda w: {**_one(w), "lane_id": "default", "lease_duration_ms": 1_000},
                                    {**ONE, "lane_id": "lane", "lease_duration_ms": "ttl"}),
    "issue_reclaim_grant": Method(_worker, {**GRANTED, **NOTED, "worker_capabilities": "capabilities",
                                            "grant_ttl_ms": "ttl"}),
    "reclaim_execution": Method(lambda w: {**_worker(w), "lease_id": UUID, "attempt_id": UUID, "lease_ttl_ms": 1_000},
                                {**GRANTED, "lease_id": "uuid", "attempt_id": "uuid", "lease_ttl_ms": "ttl",
                                 "attempt_policy_json": "json", "max_reclaim_count": "index?"}),
    # holding and ending
    "renew": Method(_held, {"handle": "handle"}),
    "renew_lease": Method(lambda w: {**_named(w), "lease_ttl_ms": 1_000}, {**FENCED, "lease_ttl_ms": "ttl"}),
    "progress": Method(lambda w: {**_held(w), "percent": 5},
                       {"handle": "handle", "percent": "percent", "message": "text?"}),
    "append_frame": Method(lambda w: {**_held(w), "frame": Frame(b"x")}, {"handle": "handle", "frame": "frame"}),
    "append_frames": Method(lambda w: {**_held(w), "frames": [Frame(b"x")]}, {"handle": "handle", "frames": "frames"}),
    "delay": Method(lambda w: {**_held(w), "delay_until": START_MS}, {"handle": "handle", "delay_until": "time"}),
    "delay_execution": Method(lambda w: {**_named(w), "delay_until": START_MS},
                              {**FENCED, "delay_until": "time", "source": "name"}),
    "wait_children": Method(_held, {"handle": "handle"}),
    "decline": Method(lambda w: {**_held(w), "reason": "unknown"}, {"handle": "handle", "reason": "text"}),
    "move_to_waiting_children": Method(_named, {**FENCED, "source": "name"}),
    "complete": Method(_held, {"handle": "handle", "payload": "bytes?"}),
    "complete_execution": Method(_named, {**FENCED, "result_payload": "bytes?", "source": "name"}),
    "fail": Method(lambda w: {**_held(w), "reason": "boom"},
                   {"handle": "handle", "reason": "text", "failure_class": "name", "detail": "detail"}),
    "fail_execution": Method(lambda w: {**_named(w), "failure_reason": "boom"},
                             {**FENCED, "failure_reason": "text", "failure_category": "name", "source": "name",
                              "retry_policy_json": "retry json"}),
    "cancel": Method(_held, {"handle": "handle", "reason": "text"}),
    "renew_many": Method(lambda w: {"handles": [w.handle]}, {"handles": "handles"}),
    "give_back": Method(_held, {"handle": "handle", "reason": "text"}),
    "derived_keys": Method(lambda w: {"purpose": "x"}, {"purpose": "name+"}),
    # waiting
    "suspend": Method(lambda w: {**_held(w), **_waits(w)}, {"handle": "handle", "args": "waits"}),
    "suspend_by_triple": Method(lambda w: {"execution_id": w.held, "fence": fence_of(w.handle), **_waits(w)},
                                {"execution_id": "id", "fence": "fence", "args": "waits"}),
    "create_waitpoint": Method(lambda w: {**_held(w), "waitpoint_key": "k", "expires_in": 1_000},
                               {"handle": "handle", "waitpoint_key": "waitpoint key", "expires_in": "time"}),
    "close_waitpoint": Method(_point, {**ONE, "waitpoint_id": "uuid", "reason": "name", "now": "time?"}),
    "read_waitpoint_token": Method(lambda w: {"partition": 0, "waitpoint_id": UUID},
                                   {"partition": "partition", "waitpoint_id": "uuid", "execution_id": "id?",
                                    "closed": "flag"}),
    "list_pending_waitpoints": Method(_one, {**ONE, "after": "uuid?", "limit": "number"}),
    "observe_signals": Method(_held, {"handle": "handle"}),
    # durable functions
    "cancel_child": Method(lambda w: {**_held(w), **_one(w)}, {"handle": "handle", **ONE, "reason": "text"}),
    "advance": Method(_held, {"handle": "handle", "steps": "steps", "known_steps": "number?", "children": "children",
                              "wait": "child wait?", "cancel_known": "flag"}),
    "read_steps": Method(_one, {**ONE, "names": "step names?"}),
    "list_steps": Method(_one, {**ONE, "after": "step place?", "limit": "page"}),
    "remembered_bytes": Method(lambda w: {**_one(w), "names": ["one"]}, {**ONE, "names": "step names"}),
    "list_live_steps": Method(lambda w: {}, {"after": "live step?", "limit": "page"}),
    "read_ends": Method(lambda w: {"execution_ids": [w.fresh]}, {"execution_ids": "ids", "namespaces": "names?"}),
    "fork_execution": Method(_one, {**ONE, "at": "name?", "new_execution_id": "id?", "input_payload": "bytes?"}),
    "deliver_signal": Method(lambda w: {**_point(w), "waitpoint_token": w.waitpoint.hmac_token, "signal_name": "s"},
                             {**ONE, "waitpoint_id": "uuid", "waitpoint_token": "waitpoint token", "signal_id": "uuid?",
                              "signal_name": "name", "signal_category": "name", "source_type": "name",
                              "source_identity": "name", "payload": "signal bytes", "payload_encoding": "name",
                              "correlation_id": "name?", "idempotency_key": "name?", "target_scope": "name",
                              "created_at": "time?", "dedup_ttl_ms": "time", "resume_delay_ms": "time",
                              "max_signals_per_execution": "page?", "signal_maxlen": "page", "now": "time?"}),
    "deliver_approval_signal": Method(lambda w: {**_point(w), "lane_id": "lane-of-one", "signal_name": "s",
                                                 "idempotency_suffix": "1"},
                                      {**ONE, "waitpoint_id": "uuid", "lane_id": "lane", "signal_name": "name+",
                                       "idempotency_suffix": "name+", "signal_dedup_ttl_ms": "time", "maxlen": "page?",
                                       "max_signals_per_execution": "page?"}),
    "resume_execution": Method(_one, {**ONE, "trigger_type": "trigger", "resume_delay_ms": "time", "now": "time?"}),
    "seed_waitpoint_hmac_secret": Method(lambda w: {"kid": "k1", "secret_hex": "ab" * 32},
                                         {"kid": "kid", "secret_hex": "seed secret"}),
    "rotate_waitpoint_hmac_secret_all": Method(lambda w: {"new_kid": "k2", "new_secret_hex": "ab"},
                                               {"new_kid": "kid", "new_secret_hex": "secret", "grace_ms": "grace"}),
    # operators
    "request_cancel": Method(_one, {**ONE, "reason": "text"}),
    "cancel_execution": Method(_one, {**ONE, "reason": "text", "source": "name", "lease_epoch": "time?",
                                                   "now": "time?"}),
    "revoke_lease": Method(_one, {**ONE, "worker_instance_id": "name", "expected_lease_id": "name?",
                                               "reason": "text"}),
    "change_priority": Method(lambda w: {**_one(w), "new_priority": 1}, {**ONE, "new_priority": "number",
                                                                         "now": "time?"}),
    "replay_execution": Method(_one, {**ONE, "states": "states?", "now": "time?"}),
    "block_execution_for_admission": Method(lambda w: {**_one(w), "reason": "paused_by_operator"},
                                            {**ONE, "reason": "blocking reason", "detail": "text"}),
    "block_route": Method(_one, {**ONE, "detail": "text"}),
    "unblock_execution": Method(_one, {**ONE, "expected_blocking_reason": "name"}),
    "cancel_flow_header": Method(lambda w: {**_flow(w), "cancellation_policy": "x"},
                                 {"flow_id": "uuid", "reason": "text", "cancellation_policy": "name", "now": "time?"}),
    "ack_cancel_member": Method(lambda w: {**_flow(w), **_one(w)}, {"flow_id": "uuid", "execution_id": "id"}),
    "await_flow_cancelled": Method(lambda w: {"flow_id": UUID, "wait_ms": 0}, {"flow_id": "uuid", "wait_ms": "time?"}),
    "cancel_flow": Method(_flow, {"flow_id": "uuid", "policy": "flow policy", "wait_ms": "time?",
                                  "reason": "text"}),
    "register_worker": Method(lambda w: {"worker_id": "w", "worker_instance_id": "i", "lanes": ["a"]},
                              {"worker_id": "name+", "worker_instance_id": "name+", "lanes": "lanes",
                               "capabilities": "capabilities", "liveness_ttl_ms": "ttl", "namespace": "name",
                               "slots": "page?"}),
    "heartbeat_worker": Method(lambda w: {"worker_instance_id": "i"},
                               {"worker_instance_id": "name+", "namespace": "name"}),
    "mark_worker_dead": Method(lambda w: {"worker_instance_id": "i"},
                               {"worker_instance_id": "name+", "namespace": "name", "reason": "short"}),
    "seed_lanes": Method(lambda w: {"lane_ids": ["new"]}, {"lane_ids": "lanes"}),
    "set_lane_state": Method(lambda w: {"lane_id": "new", "state": "paused"},
                             {"lane_id": "lane", "state": "lane state", "reason": "text", "now": "time?"}),
    "set_lane_fairness": Method(lambda w: {"lane_id": "new", "by": "namespace"}, {"lane_id": "lane", "by": "fair by"}),
    "describe_lane": Method(lambda w: {"lane_id": "default"}, {"lane_id": "lane", "namespaces": "names?"}),
    "list_workers": Method(lambda w: {"namespace": "default"},
                           {"namespace": "name?", "after": "name?", "limit": "page?"}),
    # budgets and quotas
    "create_budget": Method(lambda w: {"budget_id": UUID, "dimensions": ["a"], "hard_limits": [1], "soft_limits": [0]},
                            {"budget_id": "uuid", "scope_type": "name", "scope_id": "name", "enforcement_mode": "name",
                             "on_hard_limit": "name", "on_soft_limit": "name", "reset_interval_ms": "interval",
                             "dimensions": "dimensions", "hard_limits": "amount list", "soft_limits": "amount list",
                             "parent_budget_id": "uuid?", "namespace": "name?", "now": "time?"}),
    "set_budget_limits": Method(lambda w: {"budget_id": UUID},
                                {"budget_id": "uuid", "hard_limits": "amounts?", "soft_limits": "amounts?",
                                 "namespace": "name?"}),
    "report_usage": Method(lambda w: {**_held(w), "budget_id": UUID, "usage": UsageDimensions()},
                           {"handle": "handle", "budget_id": "uuid", "usage": "usage"}),
    "report_usage_admin": Method(lambda w: {"budget_id": UUID, "dimensions": ["a"], "deltas": [1]},
                                 {"budget_id": "uuid", "dimensions": "dimensions", "deltas": "amount list",
                                  "dedup_key": "name?", "namespace": "name?", "now": "time?"}),
    "record_spend": Method(lambda w: {"budget_id": UUID, **_one(w), "deltas": {"a": 1}},
                           {"budget_id": "uuid", **ONE, "deltas": "amounts", "idempotency_key": "name?",
                            "now": "time?"}),
    "release_budget": Method(lambda w: {"budget_id": UUID, **_one(w)}, {"budget_id": "uuid", **ONE, "now": "time?"}),
    "reset_budget": Method(lambda w: {"budget_id": UUID}, {"budget_id": "uuid", "namespace": "name?", "now": "time?"}),
    "reserve_budget": Method(lambda w: {**_held(w), "budget_id": UUID, "amounts": {"a": 1}},
                             {"handle": "handle", "budget_id": "uuid", "amounts": "amounts",
                              "idempotency_key": "name?"}),
    "settle_reservation": Method(lambda w: {"reservation_id": UUID, "amounts": {"a": 1}, **_held(w)},
                                 {"reservation_id": "uuid", "amounts": "amounts", "handle": "handle?",
                                  "also": "uuids"}),
    "release_reservation": Method(lambda w: {"reservation_id": UUID, **_held(w)},
                                  {"reservation_id": "uuid", "handle": "handle?"}),
    "get_budget_status": Method(lambda w: {"budget_id": UUID}, {"budget_id": "uuid", "namespace": "name?"}),
    "read_budget_usage_and_limits": Method(lambda w: {"budget_id": UUID}, {"budget_id": "uuid", "namespace": "name?"}),
    "list_budgets": Method(lambda w: {}, {"after": "uuid?", "limit": "count", "namespaces": "names?"}),
    "create_quota_policy": Method(lambda w: {"quota_policy_id": UUID},
                                  {"quota_policy_id": "uuid", "window_seconds": "interval", "now": "time?",
                                   "max_requests_per_window": "revision", "max_concurrent": "revision",
                                   "namespace": "name?"}),
    "check_admission": Method(lambda w: {"quota_policy_id": UUID, **_one(w), "window_seconds": 60},
                              {"quota_policy_id": "uuid", "dimension": "name", **ONE, "window_seconds": "interval",
                               "rate_limit": "revision", "concurrency_cap": "revision", "jitter_ms": "interval",
                               "namespace": "name?", "now": "time?"}),
    "release_admission": Method(lambda w: {"quota_policy_id": UUID, **_one(w)},
                                {"quota_policy_id": "uuid", "namespace": "name?", **ONE}),
    "read_quota_policy_limits": Method(lambda w: {"quota_policy_id": UUID},
                                       {"quota_policy_id": "uuid", "namespace": "name?"}),
    "list_quota_policies": Method(lambda w: {}, {"after": "uuid?", "limit": "count", "namespaces": "names?"}),
    # schedules
    "put_schedule": Method(lambda w: {"schedule_id": "s", "spec": Every(1_000), "execution_kind": "op"},
                           {"schedule_id": "name+", "spec": "spec", "execution_kind": "name+", "namespace": "name",
                            "lane_id": "lane", "input_payload": "bytes?", "payload_encoding": "name?",
                            "priority": "number", "tags": "tags?", "policy": "policy", "overlap": "overlap",
                            "catch_up": "catch up", "catch_up_limit": "catch up limit", "jitter_ms": "jitter",
                            "source": "name?", "revision": "page?"}),
    **{
        name: Method(lambda w: {"schedule_id": "s"}, {"schedule_id": "name+", "namespace": "name"})
        for name in ("pause_schedule", "resume_schedule", "delete_schedule", "get_schedule")
    },
    "trigger_schedule": Method(lambda w: {"schedule_id": "s"},
                               {"schedule_id": "name+", "namespace": "name", "overlap": "overlap?"}),
    "backfill_schedule": Method(lambda w: {"schedule_id": "s", "from_ms": 0, "before_ms": 1},
                                {"schedule_id": "name+", "namespace": "name", "from_ms": "slot", "before_ms": "slot",
                                 "dry_run": "flag"}),
    "list_schedule_runs": Method(lambda w: {"schedule_id": "s"},
                                 {"schedule_id": "name+", "namespace": "name", "limit": "count"}),
    "fire_schedule": Method(lambda w: {"schedule_id": "s", "slot_ms": 0, "next_at_ms": None},
                            {"schedule_id": "name+", "namespace": "name", "slot_ms": "slot", "next_at_ms": "slot?",
                             "starts": "slots"}),
    "list_schedules": Method(lambda w: {}, {"namespace": "name", "cursor": "name?", "limit": "page"}),
    # requests
    "draft_request": Method(lambda w: {"arguments": {}}, {"arguments": "creation"}),
    "find_request": Method(_one, ONE),
    "find_execution": Method(lambda w: {"idempotency_key": "k"}, {"idempotency_key": "name+", "namespace": "name"}),
    "list_requests": Method(lambda w: {}, {"refused": "flag", "cursor": "uuid?", "limit": "page"}),
    "retry_request": Method(lambda w: {"request_id": UUID}, {"request_id": "uuid"}),
    "drop_request": Method(lambda w: {"request_id": UUID}, {"request_id": "uuid"}),
    "debounce_execution": Method(lambda w: {"debounce_key": "k", "execution": {}, "wait_ms": 5, "at_most_ms": 5},
                                 {"debounce_key": "name+", "execution": "burst", "wait_ms": "count",
                                  "at_most_ms": "count"}),
    # reads
    **{
        name: Method(_one, ONE)
        for name in (
            "read_execution_state", "read_execution_info", "describe_execution", "get_execution_result",
            "read_execution_context", "read_current_attempt_index", "read_total_attempt_count",
            "resolve_execution_flow_id", "get_execution_namespace", "evaluate_flow_eligibility",
        )
    },
    "explain": Method(lambda w: {"execution_id": w.fresh}, {"execution_id": "id", "namespaces": "names?"}),
    "read_execution_contexts": Method(lambda w: {"execution_ids": [w.fresh]},
                                      {"execution_ids": "ids", "most_bytes": "count?", "namespaces": "names?"}),
    "read_execution_kinds": Method(lambda w: {"execution_ids": [w.fresh]},
                                   {"execution_ids": "ids", "namespaces": "names?"}),
    "look_at_leases": Method(lambda w: {"handles": [w.handle]}, {"handles": "handles"}),
    "lost_leases": Method(lambda w: {"handles": [w.handle]}, {"handles": "handles"}),
    "read_exec_core_fields": Method(lambda w: {"partition": w.fresh.partition, **_one(w), "fields": ["lane_id"]},
                                    {"partition": "index", **ONE, "fields": "fields"}),
    "list_executions": Method(lambda w: {"partition": 0}, {"partition": "partition", "cursor": "id?", "limit": "page"}),
    "search_executions": Method(lambda w: {}, {"namespaces": "names?", "lane_id": "lane?", "states": "states",
                                               "execution_kind": "name?", "tag": "tag?", "flow_id": "uuid?",
                                               "created_from": "time?", "created_before": "time?", "parent": "id?",
                                               "query": "search", "roots": "flag", "ended_from": "time?",
                                               "ended_before": "time?",
                                               "cursor": "search cursor?", "limit": "count"}),
    "count_states": Method(lambda w: {}, {"namespaces": "names?", "query": "search", "roots": "flag",
                                          "created_from": "time?", "created_before": "time?",
                                          "ended_from": "time?", "ended_before": "time?"}),
    "group_failures": Method(lambda w: {}, {"namespaces": "names?", "query": "search", "created_from": "time?",
                                            "created_before": "time?", "limit": "count"}),
    "count_executions": Method(lambda w: {}, {"namespaces": "names?", "lane_id": "lane?", "states": "states",
                                              "execution_kind": "name?", "tags": "tags?", "leaving_out": "name"}),
    "keep_answer": Method(lambda w: {"owner": "o", "idempotency_key": "k", "fingerprint": "f", "status": 200,
                                     "media": "m", "body": b""},
                          {"owner": "name", "idempotency_key": "name+", "fingerprint": "name", "status": "status",
                           "media": "name", "body": "bytes?", "kept_ms": "time"}),
    "find_answer": Method(lambda w: {"owner": "o", "idempotency_key": "k"},
                          {"owner": "name", "idempotency_key": "name+"}),
    "record_act": Method(lambda w: {"who": "w", "act": "a", "subject": {}, "status": 200},
                         {"who": "name", "act": "name+", "subject": "subject", "status": "status"}),
    "list_audit": Method(lambda w: {}, {"after": "name?", "limit": "count"}),
    "record_sample": Method(lambda w: {"pulse": PULSE}, {"pulse": "pulse", "budgets": "levels?"}),
    "list_samples": Method(lambda w: {}, {"since": "time", "limit": "count"}),
    "create_credential": Method(lambda w: {"name": "n", "scopes": ["read"]},
                                {"name": "name+", "scopes": "scopes", "namespaces": "own names?",
                                 "expires_at": "time?"}),
    "revoke_credential": Method(lambda w: {"credential_id": "c"}, {"credential_id": "name+"}),
    "list_credentials": Method(lambda w: {}, {"after": "name?", "limit": "count"}),
    "verify_credential": Method(lambda w: {"token": "t"}, {"token": "name"}),
    "verify_credentials": Method(lambda w: {"tokens": ["t"]}, {"tokens": "fields"}),
    "watch_credentials": Method(lambda w: {"watcher": lambda changed: None}, {"watcher": "callable?"}),
    "queue_depths": Method(lambda w: {}, {"namespaces": "names?"}),
    "read_worker_load": Method(lambda w: {}, {"namespaces": "names?"}),
    "read_kinds": Method(lambda w: {}, {"namespaces": "names?", "window_ms": "count"}),
    "list_namespaces": Method(lambda w: {}, {"after": "name?", "limit": "count"}),
    "announce_kinds": Method(lambda w: {"namespace": "n", "definitions": {"k": {"noun": "task"}}},
                             {"namespace": "name", "definitions": "definitions"}),
    "list_kind_definitions": Method(lambda w: {}, {"namespaces": "names?", "cursor": "pair cursor?",
                                                   "limit": "count"}),
    "read_kind_definition": Method(lambda w: {"namespace": "n", "kind": "k"},
                                   {"namespace": "name", "kind": "name+"}),
    "search_flows": Method(lambda w: {}, {"namespaces": "names?", "states": "fields", "flow_kind": "name?",
                                          "cursor": "search cursor?", "limit": "count"}),
    "search_suspended": Method(lambda w: {}, {"reasons": "states", "namespaces": "names?", "flow_id": "uuid?",
                                              "cursor": "search cursor?", "limit": "count"}),
    "search_workers": Method(lambda w: {}, {"namespaces": "names?", "cursor": "pair cursor?", "limit": "count"}),
    "search_schedules": Method(lambda w: {}, {"namespaces": "names?", "cursor": "pair cursor?", "limit": "count"}),
    "examine": Method(lambda w: {}, {"cursor": "examination?", "limit": "count"}),
    "read_pulse": Method(lambda w: {}, {}),
    "count_ended": Method(lambda w: {}, {"after": "time?", "stretch_ms": "count"}),
    "preview_actions": Method(_one, ONE),
    "read_history": Method(_one, ONE),
    "read_errors": Method(_one, ONE),
    "list_flow_edges": Method(_flow, {"flow_id": "uuid", "namespaces": "names?"}),
    "list_lanes": Method(lambda w: {}, {"cursor": "name?", "limit": "page", "namespaces": "names?"}),
    "list_suspended": Method(lambda w: {"partition": 0}, {"partition": "partition", "cursor": "id?", "limit": "page"}),
    "list_expired_leases": Method(lambda w: {}, {"as_of": "time?", "after": "lease cursor", "limit": "count?",
                                                 "namespace": "name?"}),
    "scan_eligible_executions": Method(lambda w: {"lane_id": "default"},
                                       {"lane_id": "lane", "partition": "partition?", "limit": "page"}),
    # streams
    "read_stream": Method(_one, {**ONE, "attempt_index": "index", "from_cursor": "cursor",
                                              "to_cursor": "cursor", "count_limit": "count"}),
    "tail_stream": Method(_one, {**ONE, "attempt_index": "index", "after": "place", "block_ms": "wait",
                                              "count_limit": "count", "visibility": "visibility"}),
    "read_summary": Method(_one, {**ONE, "attempt_index": "index"}),
    # events
    **{
        name: Method(lambda w: {}, SUBSCRIPTION)
        for name in (
            "subscribe_completion", "subscribe_lease_history", "subscribe_signal_delivery", "subscribe_operator_event",
            "subscribe_instance_tags",
        )
    },
    "read_events": Method(lambda w: {"family": "completion"},
                          {"family": "family", "cursor": "event cursor", "filter": "event filter", "limit": "page"}),
    # timers
    "run_due": Method(lambda w: {}, {"limit": "count?"}),
    "run_timer": Method(lambda w: {"name": "intake"}, {"name": "timer", "limit": "count?"}),
    "promote_submitted": Method(lambda w: {}, {**FILTER, "limit": "count"}),
    "promote_delayed": Method(_one, ONE),
    "mark_lease_expired_if_due": Method(lambda w: {"partition": None, **_one(w)}, ONE),
    "expire_execution": Method(lambda w: {"partition": None, **_one(w), "phase": "attempt_timeout"},
                               {**ONE, "phase": "phase"}),
    "trim_retention": Method(lambda w: {}, {**FILTER, "retention_ms": "time", "batch_size": "count",
                                            "filter": "filter"}),
    "start_timers": Method(lambda w: {"intervals": {}}, {"intervals": "intervals", "filter": "filter"}),
}  # fmt: skip
NOTHING_TO_GIVE = {
    "capabilities",
    "close",
    "leave_to_parent",
    "list_waitpoint_hmac_kids",
    "next_due_ms",
    # What it is given, a server has made.
    "noting",
    "now_ms",
    "ping",
    "prepare",
    "server_time_ms",
}


async def make_world(engine: Engine) -> World:
    """Something real of every kind."""
    flow = flow_of(engine)
    await seed(engine, flow)
    await engine.register_worker(worker_id="w0", worker_instance_id="w0-i1", lanes=["default"])
    handle = await claimed(engine)
    return World(await create(engine), handle, flow, await engine.create_waitpoint(handle, "pending", 60_000))


@pytest.fixture
async def world(engine: Engine) -> World:
    return await make_world(engine)


def test_the_table_names_every_public_method() -> None:
    public = {name for name, member in inspect.getmembers(Engine, inspect.isfunction) if not name.startswith("_")}
    assert public - NOTHING_TO_GIVE == METHODS.keys()


def test_every_list_of_bad_values_is_used() -> None:
    used = {kind for method in METHODS.values() for kind in method.bad.values()}
    assert used == BAD.keys()


def _told(error: BaseException | None) -> str:
    if not isinstance(error, EngineError):
        return f"not refused: {error!r}"
    return f"{error.family} {error.kind} {error.code}"


async def call(engine: Engine, name: str, arguments: dict[str, Any]) -> Any:
    answer = getattr(engine, name)(**arguments)
    return await answer if inspect.isawaitable(answer) else answer


@pytest.mark.parametrize("name", METHODS)
async def test_bad_values_are_refused_without_a_trace(engine: Engine, probe: Probe, world: World, name: str) -> None:
    method = METHODS[name]
    good = method.good(world)
    wrong = []
    async with unchanged(probe):
        for argument, kind in method.bad.items():
            bad: Bad
            for bad in BAD[kind]:
                caught: BaseException | None = None
                try:
                    await call(engine, name, {**good, argument: bad.value})
                except Exception as error:
                    caught = error
                if _told(caught) != bad.told:
                    wrong.append(f"{argument}={bad.value!r:.80}: {_told(caught):.200}, not {bad.told}")
        assert not wrong, "\n".join(wrong)
    # It was the bad value that was refused.
    await passes_the_door(engine, name, good)


async def passes_the_door(engine: Engine, name: str, good: dict[str, Any]) -> None:
    """With good values a call passes the door, whatever it finds behind it."""
    found: EngineError | None = None
    try:
        await call(engine, name, good)
    except EngineError as error:
        found = error
    behind = isinstance(found, State | Contention | NotFound)
    assert found is None or behind or found.kind is ValidationKind.INVALID_DEPENDENCY, (name, found)


async def test_every_operation_is_answered(engine: Engine, open_engine: Callable[..., Any]) -> None:
    """On every store in every run, while lists of bad values are for the door, which comes before all of them."""
    for name, method in METHODS.items():
        # What ends an engine is told to another one.
        called = await open_engine() if name in ("drain", "shutdown_prepare") else engine
        await passes_the_door(called, name, method.good(await make_world(engine)))


async def test_a_bad_item_is_named(engine: Engine, probe: Probe) -> None:
    async with unchanged(probe):
        with pytest.raises(Validation) as caught:
            await engine.create_executions([{"lane_id": "ok"}, {"lane_id": ""}])
    assert caught.value.detail.startswith("item 1: lane_id: Empty")


async def test_workers_are_listed_by_namespace(engine: Engine) -> None:
    with pytest.raises(Unavailable):
        await engine.list_workers()


@pytest.mark.parametrize("url", ["", "nonsense", "mysql://x", "sqlite3:x"])
async def test_what_is_no_store(url: str) -> None:
    with pytest.raises(Validation) as caught:
        await Engine.open(url)
    assert caught.value.kind is ValidationKind.INVALID_INPUT
