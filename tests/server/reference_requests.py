"""What clients of the reference send, by route.

The fields and their kinds are those of the reference's types: the arguments and policies of its crate ``ff-core``, the
bodies of its ``ff-server`` routes, and the requests of the admin client in ``ff-sdk``. There are no others.
"""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

from msgspec import UNSET, Meta, Struct, UnsetType

U16 = Annotated[int, Meta(ge=0, le=2**16 - 1)]
U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
I32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
# Whole numbers of 64 bits; which of them fit a store is for the server to say.
U64 = Annotated[int, Meta(ge=0)]
I64 = int
ExecutionId = Annotated[str, Meta(pattern=r"^\{fp:\d{1,5}\}:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
Byte = Annotated[int, Meta(ge=0, le=255)]


class Request(Struct, kw_only=True, forbid_unknown_fields=True):
    """Serialised by the client: all of it is there, unless it is left out when absent."""


class Backoff(Request):
    type: Literal["fixed", "exponential"]
    delay_ms: U64 | UnsetType = UNSET
    initial_delay_ms: U64 | UnsetType = UNSET
    max_delay_ms: U64 | UnsetType = UNSET
    multiplier: float | UnsetType = UNSET
    jitter: bool | UnsetType = UNSET


class RetryPolicy(Request):
    max_retries: U32
    backoff: Backoff
    retryable_categories: list[str]


class TimeoutPolicy(Request):
    max_reclaim_count: U32
    attempt_timeout_ms: U64 | UnsetType = UNSET
    execution_deadline_ms: U64 | UnsetType = UNSET


class SuspensionPolicy(Request):
    timeout_behavior: str
    default_timeout_ms: U64 | UnsetType = UNSET


class FallbackTier(Request):
    provider: str
    model: str
    timeout_ms: U64 | UnsetType = UNSET


class FallbackPolicy(Request):
    tiers: list[FallbackTier]


class RoutingRequirements(Request):
    required_capabilities: list[str]
    preferred_locality: str | UnsetType = UNSET
    isolation_level: str | UnsetType = UNSET


class StreamPolicy(Request):
    durability_mode: str
    retention_maxlen: U64
    retention_ttl_ms: U64 | UnsetType = UNSET


class ExecutionPolicy(Request):
    priority: I32
    max_reclaim_count: U32
    max_replay_count: U32
    budget_ids: list[UUID]
    max_signals_per_execution: U32
    delay_until: I64 | UnsetType = UNSET
    retry_policy: RetryPolicy | UnsetType = UNSET
    timeout_policy: TimeoutPolicy | UnsetType = UNSET
    suspension_policy: SuspensionPolicy | UnsetType = UNSET
    fallback_policy: FallbackPolicy | UnsetType = UNSET
    routing_requirements: RoutingRequirements | UnsetType = UNSET
    dedup_window_ms: U64 | UnsetType = UNSET
    stream_policy: StreamPolicy | UnsetType = UNSET


class CreateExecution(Request):
    execution_id: ExecutionId
    namespace: str
    lane_id: str
    execution_kind: str
    input_payload: list[Byte]
    payload_encoding: str | None
    priority: I32
    creator_identity: str
    idempotency_key: str | None
    tags: dict[str, str]
    policy: ExecutionPolicy | None
    delay_until: I64 | None
    execution_deadline_at: I64 | None
    partition_id: U16
    now: I64


class CancelExecution(Request):
    execution_id: ExecutionId
    reason: str
    source: str
    lease_id: UUID | None
    lease_epoch: U64 | None
    attempt_id: UUID | None
    now: I64


class DeliverSignal(Request):
    execution_id: ExecutionId
    waitpoint_id: UUID
    signal_id: UUID
    signal_name: str
    signal_category: str
    source_type: str
    source_identity: str
    payload: list[Byte] | None
    payload_encoding: str | None
    correlation_id: str | None
    idempotency_key: str | None
    target_scope: str
    created_at: I64 | None
    dedup_ttl_ms: U64 | None
    resume_delay_ms: U64 | None
    max_signals_per_execution: U64 | None
    signal_maxlen: U64 | None
    waitpoint_token: str
    now: I64


class ChangePriority(Request):
    new_priority: int


class IssueReclaimGrant(Request):
    worker_id: str
    worker_instance_id: str
    lane_id: str
    grant_ttl_ms: U64
    worker_capabilities: list[str]
    capability_hash: str | UnsetType = UNSET
    route_snapshot_json: str | UnsetType = UNSET
    admission_summary: str | UnsetType = UNSET


class ClaimForWorker(Request):
    lane_id: str
    worker_instance_id: str
    capabilities: list[str]
    grant_ttl_ms: U64


class CreateFlow(Request):
    flow_id: UUID
    flow_kind: str
    namespace: str
    now: I64


class AddExecutionToFlow(Request):
    flow_id: UUID
    execution_id: ExecutionId
    now: I64


class CancelFlow(Request):
    flow_id: UUID
    reason: str
    cancellation_policy: str
    now: I64


class StageDependencyEdge(Request):
    flow_id: UUID
    edge_id: UUID
    upstream_execution_id: ExecutionId
    downstream_execution_id: ExecutionId
    dependency_kind: str
    data_passing_ref: str | None
    expected_graph_revision: U64
    now: I64


class ApplyDependencyToChild(Request):
    flow_id: UUID
    edge_id: UUID
    downstream_execution_id: ExecutionId
    upstream_execution_id: ExecutionId
    graph_revision: U64
    dependency_kind: str
    data_passing_ref: str | None
    now: I64


class CreateBudget(Request):
    budget_id: UUID
    scope_type: str
    scope_id: str
    enforcement_mode: str
    on_hard_limit: str
    on_soft_limit: str
    reset_interval_ms: U64
    dimensions: list[str]
    hard_limits: list[U64]
    soft_limits: list[U64]
    now: I64


class ReportUsage(Request):
    dimensions: dict[str, U64]
    now: I64
    dedup_key: str | None


class CreateQuotaPolicy(Request):
    quota_policy_id: UUID
    window_seconds: U64
    max_requests_per_window: U64
    max_concurrent: U64
    now: I64


class RotateWaitpointSecret(Request):
    new_kid: str
    new_secret_hex: str


REQUESTS: dict[str, type[Request]] = {
    "POST /v1/executions": CreateExecution,
    "POST /v1/executions/{id}/cancel": CancelExecution,
    "POST /v1/executions/{id}/signal": DeliverSignal,
    "PUT /v1/executions/{id}/priority": ChangePriority,
    "POST /v1/executions/{id}/reclaim": IssueReclaimGrant,
    "POST /v1/workers/{worker_id}/claim": ClaimForWorker,
    "POST /v1/flows": CreateFlow,
    "POST /v1/flows/{id}/members": AddExecutionToFlow,
    "POST /v1/flows/{id}/cancel": CancelFlow,
    "POST /v1/flows/{id}/edges": StageDependencyEdge,
    "POST /v1/flows/{id}/edges/apply": ApplyDependencyToChild,
    "POST /v1/budgets": CreateBudget,
    "POST /v1/budgets/{id}/usage": ReportUsage,
    "POST /v1/quotas": CreateQuotaPolicy,
    "POST /v1/admin/rotate-waitpoint-secret": RotateWaitpointSecret,
}
