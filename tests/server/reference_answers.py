"""What clients of the reference decode, by route.

The fields, their kinds and the variants are those of the reference's types: the results and states of its crate
``ff-core``, the responses of its ``ff-server`` routes, and those of the admin client in ``ff-sdk``. Fields that are not
named here are ignored by them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from tests.server.reference_requests import I32, I64, U16, U32, U64, ExecutionId

PartitionKey = Annotated[str, Meta(pattern=r"^\{(fp|b|q):\d{1,5}\}$")]
PublicState = Literal[
    "waiting", "delayed", "rate_limited", "waiting_children", "active", "suspended", "resumable",
    "completed", "failed", "cancelled", "expired", "skipped",
]  # fmt: skip


def record(name: str, **fields: Any) -> Any:
    """Fields that an answer must have; those that may be null may be left out."""
    optional = {each for each, kind in fields.items() if type(None) in getattr(kind, "__args__", ())}
    return msgspec.defstruct(
        name, [(each, kind, None) if each in optional else (each, kind) for each, kind in fields.items()], kw_only=True
    )


class Problem(Struct):
    """What is decoded of every refusal."""

    error: str
    kind: str | None = None
    retryable: bool | None = None


class Granted(Struct, tag_field="status", tag="granted"):
    execution_id: str
    partition_key: PartitionKey
    grant_key: str
    expires_at_ms: U64
    lane_id: str


class NotReclaimable(Struct, tag_field="status", tag="not_reclaimable"):
    execution_id: str
    detail: str


class ReclaimCapExceeded(Struct, tag_field="status", tag="reclaim_cap_exceeded"):
    execution_id: str
    reclaim_count: U32


STATE_VECTOR = record(
    "StateVector",
    lifecycle_phase=Literal["submitted", "runnable", "active", "suspended", "terminal"],
    ownership_state=Literal["unowned", "leased", "lease_expired_reclaimable", "lease_revoked"],
    eligibility_state=Literal[
        "eligible_now", "not_eligible_until_time", "blocked_by_dependencies", "blocked_by_budget", "blocked_by_quota",
        "blocked_by_route", "blocked_by_lane_state", "blocked_by_operator", "not_applicable",
    ],
    blocking_reason=Literal[
        "none", "waiting_for_worker", "waiting_for_retry_backoff", "waiting_for_resume_delay", "waiting_for_delay",
        "waiting_for_signal", "waiting_for_approval", "waiting_for_callback", "waiting_for_tool_result",
        "waiting_for_children", "waiting_for_budget", "waiting_for_quota", "waiting_for_capable_worker",
        "waiting_for_locality_match", "paused_by_operator", "paused_by_policy", "paused_by_flow_cancel",
    ],
    terminal_outcome=Literal["none", "success", "failed", "cancelled", "expired", "skipped"],
    attempt_state=Literal[
        "none", "pending_first_attempt", "running_attempt", "attempt_interrupted", "pending_retry_attempt",
        "pending_replay_attempt", "attempt_terminal",
    ],
    public_state=PublicState,
)  # fmt: skip
EXECUTION_INFO = record(
    "ExecutionInfo",
    execution_id=ExecutionId,
    namespace=str,
    lane_id=str,
    priority=I32,
    execution_kind=str,
    state_vector=STATE_VECTOR,
    public_state=PublicState,
    created_at=str,
    started_at=str | None,
    completed_at=str | None,
    current_attempt_index=U32,
    flow_id=str | None,
    blocking_detail=str,
)
WAITPOINT = record(
    "PendingWaitpointInfo",
    waitpoint_id=UUID,
    waitpoint_key=str,
    state=str,
    required_signal_names=list[str],
    created_at=I64,
    activated_at=I64 | None,
    expires_at=I64 | None,
    execution_id=ExecutionId,
    token_kid=str,
    token_fingerprint=str,
)
FRAMES = record(
    "ReadStreamResponse",
    frames=list[record("StreamFrame", id=str, fields=dict[str, str])],  # type: ignore[misc]
    count=U64,
    closed_at=I64 | None,
    closed_reason=str | None,
)
BUDGET_STATUS = record(
    "BudgetStatus",
    budget_id=str,
    scope_type=str,
    scope_id=str,
    enforcement_mode=str,
    usage=dict[str, U64],
    hard_limits=dict[str, U64],
    soft_limits=dict[str, U64],
    breach_count=U64,
    soft_breach_count=U64,
    last_breach_at=str | None,
    last_breach_dim=str | None,
    next_reset_at=str | None,
    created_at=str | None,
)
_STATED = record("Stated", execution_id=ExecutionId, public_state=PublicState)
_EXECUTION = record("OneExecution", execution_id=ExecutionId)
_FLOW = record("OneFlow", flow_id=UUID)
_BUDGET = record("OneBudget", budget_id=UUID)
_QUOTA = record("OneQuota", quota_policy_id=UUID)
_MEMBERS = {"cancellation_policy": str, "member_execution_ids": list[str]}
_BREACH = {"dimension": str, "current_usage": U64}

#: What is decoded, by route. Several names are variants: an object has one of them as its only field, and those that
#: hold nothing are plain texts.
ANSWERS: dict[str, Any] = {
    "GET /v1/executions": record("Page", executions=list[ExecutionId], next_cursor=ExecutionId | None),
    "POST /v1/executions": {"Created": _STATED, "Duplicate": _EXECUTION},
    "GET /v1/executions/{id}": EXECUTION_INFO,
    "GET /v1/executions/{id}/state": PublicState,
    "GET /v1/executions/{id}/pending-waitpoints": list[WAITPOINT],
    "GET /v1/executions/{id}/waitpoints/{waitpoint_id}/token": record("WaitpointToken", token=str),
    "POST /v1/executions/{id}/cancel": {"Cancelled": _STATED},
    "POST /v1/executions/{id}/signal": {
        "Accepted": record("Accepted", signal_id=UUID, effect=str),
        "Duplicate": record("Duplicate", existing_signal_id=UUID),
    },
    "PUT /v1/executions/{id}/priority": {"Changed": _EXECUTION},
    "POST /v1/executions/{id}/replay": {"Replayed": record("Replayed", public_state=PublicState)},
    "POST /v1/executions/{id}/revoke-lease": {
        "Revoked": record("Revoked", lease_id=str, lease_epoch=str),
        "AlreadySatisfied": record("AlreadySatisfied", reason=str),
    },
    "POST /v1/executions/{id}/reclaim": Granted | NotReclaimable | ReclaimCapExceeded,
    "POST /v1/workers/{worker_id}/claim": record(
        "ClaimGrant", execution_id=str, partition_key=PartitionKey, grant_key=str, expires_at_ms=U64
    ),
    "GET /v1/executions/{id}/attempts/{idx}/stream": FRAMES,
    "GET /v1/executions/{id}/attempts/{idx}/stream/tail": FRAMES,
    "POST /v1/flows": {"Created": _FLOW, "AlreadySatisfied": _FLOW},
    "POST /v1/flows/{id}/members": {
        "Added": record("Added", execution_id=ExecutionId, new_node_count=U32),
        "AlreadyMember": record("AlreadyMember", execution_id=ExecutionId, node_count=U32),
    },
    "POST /v1/flows/{id}/cancel": {
        "Cancelled": record("Cancelled", **_MEMBERS),
        "CancellationScheduled": record("CancellationScheduled", member_count=U32, **_MEMBERS),
        "PartiallyCancelled": record("PartiallyCancelled", failed_member_execution_ids=list[str], **_MEMBERS),
    },
    "POST /v1/flows/{id}/edges": {"Staged": record("Staged", edge_id=UUID, new_graph_revision=U64)},
    "POST /v1/flows/{id}/edges/apply": {"Applied": record("Applied", unsatisfied_count=U32), "AlreadyApplied": None},
    "POST /v1/budgets": {"Created": _BUDGET, "AlreadySatisfied": _BUDGET},
    "GET /v1/budgets/{id}": BUDGET_STATUS,
    "POST /v1/budgets/{id}/usage": {
        "Ok": None,
        "AlreadyApplied": None,
        "SoftBreach": record("SoftBreach", soft_limit=U64, **_BREACH),
        "HardBreach": record("HardBreach", hard_limit=U64, **_BREACH),
    },
    "POST /v1/budgets/{id}/reset": {"Reset": record("Reset", next_reset_at=I64)},
    "POST /v1/quotas": {"Created": _QUOTA, "AlreadySatisfied": _QUOTA},
    "POST /v1/admin/rotate-waitpoint-secret": record("Rotated", rotated=U16, failed=list[U16], new_kid=str),
    "GET /healthz": record("Health", status=str),
}


def decoded(answer: Any, kind: Any) -> Any:
    """An answer as a client reads it; an error if it cannot."""
    if not isinstance(kind, dict):
        return msgspec.convert(answer, kind)
    if isinstance(answer, str):
        assert kind[answer] is None, answer
        return answer
    [(name, content)] = answer.items()
    return msgspec.convert(content, kind[name])
