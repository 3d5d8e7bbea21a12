"""Every command and the rule that decides it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flowfabric.core import (
    admission,
    cancel,
    claim,
    create,
    finish,
    flow_cancel,
    grants,
    holding,
    operator,
    reclaim,
    retention,
    streams,
    tags,
    timers,
    workers,
)
from flowfabric.core.context import Context
from flowfabric.core.view import View
from flowfabric.model.changes import Decision

Rule = Callable[[Any, View, Context], Decision]

RULES: Mapping[type, Rule] = {
    create.CreateExecution: create.create_execution,
    create.CreateExecutions: create.create_executions,
    claim.Claim: claim.claim,
    claim.ClaimExecution: claim.claim_execution,
    claim.ClaimResumedExecution: claim.claim_resumed_execution,
    claim.ClaimFromResumeGrant: claim.claim_from_resume_grant,
    claim.IssueGrantAndClaim: claim.issue_grant_and_claim,
    grants.IssueClaimGrant: grants.issue_claim_grant,
    grants.ClaimForWorker: grants.claim_for_worker,
    grants.SweepGrants: grants.sweep_grants,
    reclaim.IssueReclaimGrant: reclaim.issue_reclaim_grant,
    reclaim.ReclaimExecution: reclaim.reclaim_execution,
    holding.Renew: holding.renew,
    holding.RenewLease: holding.renew_lease,
    holding.Progress: holding.progress,
    holding.Delay: holding.delay,
    holding.WaitChildren: holding.wait_children,
    streams.AppendFrame: streams.append_frame,
    finish.Complete: finish.complete,
    finish.CompleteExecution: finish.complete_execution,
    finish.Fail: finish.fail,
    finish.FailExecution: finish.fail_execution,
    cancel.CancelExecution: cancel.cancel_execution,
    cancel.CancelHeld: cancel.cancel_held,
    operator.RevokeLease: operator.revoke_lease,
    operator.ChangePriority: operator.change_priority,
    operator.ReplayExecution: operator.replay_execution,
    flow_cancel.CancelFlowHeaderCommand: flow_cancel.cancel_flow_header,
    flow_cancel.AckCancelMember: flow_cancel.ack_cancel_member,
    flow_cancel.CancelFlow: flow_cancel.cancel_flow,
    timers.PromoteSubmitted: timers.promote_submitted,
    timers.PromoteDelayed: timers.promote_delayed,
    timers.MarkLeaseExpired: timers.mark_lease_expired,
    timers.ExpireExecution: timers.expire_execution,
    admission.BlockExecution: admission.block_execution,
    admission.UnblockExecution: admission.unblock_execution,
    workers.RegisterWorker: workers.register_worker,
    workers.HeartbeatWorker: workers.heartbeat_worker,
    workers.MarkWorkerDead: workers.mark_worker_dead,
    workers.SweepWorker: workers.sweep_worker,
    tags.SetExecutionTags: tags.set_execution_tags,
    tags.SetFlowTags: tags.set_flow_tags,
    retention.TrimExecution: retention.trim_execution,
}
