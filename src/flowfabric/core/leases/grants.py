"""Grants: signed permission for one worker to claim, or to take over, one execution by name."""

from __future__ import annotations

import hashlib

import msgspec
from msgspec import Struct

from flowfabric.core.batch.view import View
from flowfabric.core.context import Context, saturate
from flowfabric.core.lanes.lane_state import refuse_withholding
from flowfabric.core.leases import grant_keys
from flowfabric.core.suspension.signing import CURRENT_KEY, signing_key
from flowfabric.model import states as lit
from flowfabric.model.decisions import Act, Claimable, Decision, Drop, Get, Need, change, insert
from flowfabric.model.errors import (
    Contention,
    ContentionKind,
    NotFound,
    State,
    StateKind,
    Validation,
    ValidationKind,
)
from flowfabric.model.ids import ExecutionId
from flowfabric.model.operations.executions import ClaimGrant, GrantIssued
from flowfabric.model.records.executions import Execution, Grant, Lane


def grants_of(view: View, execution: Execution) -> list[Grant]:
    """Every grant on an execution, live or stale."""
    return view.select(Grant, partition=execution.partition, uuid=execution.uuid)


def live_grant(view: View, execution: Execution, kind: str, now: int | None) -> Grant | None:
    """The newest grant of a kind; with a time, only if it has not expired. Expiry 0 means never."""
    found = [
        grant
        for grant in grants_of(view, execution)
        if grant.kind == kind and (now is None or not grant.expires_at_ms or grant.expires_at_ms > now)
    ]
    return max(found, key=lambda grant: (grant.issued_at_ms, grant.expires_at_ms, grant.grant_id), default=None)


def stale_grants(view: View, execution: Execution, now: int, kind: str = lit.GRANT_CLAIM) -> list[Grant]:
    """Grants of a kind that have expired; the claim that takes the execution removes them in the same commit."""
    return [
        grant
        for grant in grants_of(view, execution)
        if grant.kind == kind and grant.expires_at_ms and grant.expires_at_ms <= now
    ]


def dropped_grants(view: View, execution: Execution) -> tuple[Drop, ...]:
    """Drops for every claim grant of an execution that leaves the queue otherwise than by a claim."""
    if execution.eligibility_state != lit.PENDING_CLAIM:
        return ()
    return tuple(Drop(grant) for grant in grants_of(view, execution) if grant.kind == lit.GRANT_CLAIM)


class Terms(Struct, gc=False):
    """What both kinds of grant record."""

    execution_id: str
    worker_id: str
    worker_instance_id: str
    lane_id: str | None
    worker_capabilities: tuple[str, ...]
    grant_ttl_ms: int
    capability_hash: str | None
    route_snapshot_json: str | None
    admission_summary: str | None
    #: 32 random bytes, used only if the store has no signing key yet.
    entropy: bytes


def issue(
    view: View, context: Context, execution: Execution, terms: Terms, kind: str
) -> tuple[tuple[str, int], tuple[Act, ...]]:
    """The signed key of a new grant, when it expires, and the acts that store it."""
    key, acts = signing_key(view, terms.entropy, context.now)
    expires = saturate(context.now + terms.grant_ttl_ms)
    tag = f"{{fp:{execution.partition}}}"
    reclaim = kind == lit.GRANT_RECLAIM
    worker = (terms.worker_id, terms.worker_instance_id)
    digest = grant_keys.digest(key, tag, execution.uuid, worker, expires, reclaim=reclaim)
    prefix = f"{context.store}:reclaim" if reclaim else context.store
    grant_key = f"{prefix}:{tag}:{execution.uuid}:{expires}:{key.kid}:{digest}"
    stored = Grant(
        execution.partition,
        hashlib.sha256(grant_key.encode()).digest(),
        execution.uuid,
        kind,
        terms.worker_id,
        terms.worker_instance_id,
        terms.lane_id,
        terms.capability_hash,
        msgspec.json.encode(list(terms.worker_capabilities)).decode(),
        terms.route_snapshot_json,
        terms.admission_summary,
        terms.grant_ttl_ms,
        context.now,
        expires,
    )
    return (grant_key, expires), (*acts, insert(stored))


def missing_capabilities(execution: Execution, capabilities: tuple[str, ...]) -> str:
    """Sorted, comma-joined capabilities the worker lacks; empty when it covers them all."""
    return ",".join(sorted(set(execution.required_capabilities) - set(capabilities)))


class IssueClaimGrant(Terms, gc=False):
    """A scheduler promises one execution to one worker."""

    def needs(self) -> tuple[Need, ...]:
        return _grant_needs(self.execution_id)


def issue_claim_grant(command: IssueClaimGrant, view: View, context: Context) -> Decision:
    """A stored claim grant; the row is hidden from other claims until the grant is used or expires."""
    execution = view.execution(command.execution_id)
    if execution is None:
        raise NotFound("execution")
    where = f"execution {execution.execution_id}"
    if live_grant(view, execution, lit.GRANT_CLAIM, context.now) is not None:
        raise State(StateKind.GRANT_ALREADY_EXISTS, where)
    if execution.lifecycle_phase not in lit.WAITING_PHASES or execution.eligibility_state not in lit.GRANTABLE_STATES:
        raise Contention(ContentionKind.EXECUTION_NOT_ELIGIBLE, where)
    refuse_withholding(view, execution.lane_id)
    lacking = missing_capabilities(execution, command.worker_capabilities)
    if lacking:
        raise Validation(ValidationKind.CAPABILITY_MISMATCH, lacking)
    grant, acts = promise(view, context, execution, command)
    return Decision(GrantIssued(grant.execution_id, grant), acts)


def promise(view: View, context: Context, execution: Execution, terms: Terms) -> tuple[ClaimGrant, tuple[Act, ...]]:
    """A claim grant on an eligible execution, stale grants swept away."""
    (grant_key, expires), acts = issue(view, context, execution, terms, lit.GRANT_CLAIM)
    tag = f"{{fp:{execution.partition}}}"
    grant = ClaimGrant(ExecutionId.unchecked(execution.execution_id), tag, grant_key, expires)
    hidden = change(
        execution,
        lifecycle_phase=lit.RUNNABLE,
        eligibility_state=lit.PENDING_CLAIM,
        last_mutation_at_ms=context.now,
    )
    drops = tuple(Drop(stale) for stale in stale_grants(view, execution, context.now))
    return grant, (*drops, *acts, hidden)


class ClaimForWorker(Terms, gc=False):
    """A scheduler looks for the next execution a worker could run. ``execution_id`` is filled by the choice."""

    namespaces: frozenset[str] | None = None

    def needs(self) -> tuple[Need, ...]:
        lane = self.lane_id or ""
        able = frozenset(self.worker_capabilities)
        return (Claimable(lane, able, 1, self.namespaces), Get(Lane, lane), CURRENT_KEY)


class SweepGrants(Struct, gc=False):
    """Clean up the expired claim grants of one execution."""

    execution_id: str

    def needs(self) -> tuple[Need, ...]:
        return (Get(Execution, self.execution_id),)


def sweep_grants(command: SweepGrants, view: View, context: Context) -> Decision:
    """Expired claim grants go; their row is claimable again unless a live grant stands."""
    execution = view.execution(command.execution_id)
    if execution is None:
        return Decision(0)
    stale = stale_grants(view, execution, context.now)
    if not stale:
        return Decision(0)
    acts: list[Act] = [Drop(grant) for grant in stale]
    if (
        execution.eligibility_state == lit.PENDING_CLAIM
        and live_grant(view, execution, lit.GRANT_CLAIM, context.now) is None
    ):
        acts.append(change(execution, eligibility_state=lit.ELIGIBLE_NOW, last_mutation_at_ms=context.now))
    return Decision(len(stale), tuple(acts))


def _grant_needs(execution_id: str) -> tuple[Need, ...]:
    return (Get(Execution, execution_id), CURRENT_KEY)
