"""Claims that are repeated because their answer was lost: what they were given is given to them again."""

from __future__ import annotations

from collections.abc import Iterable

from flowfabric.core.minting import uuid_text
from flowfabric.model import literals as lit
from flowfabric.model.handles import BackendTag, Handle, HandleKind, HandlePayload
from flowfabric.model.records import Attempt, Execution


def lease_ids(entropy: bytes, position: int) -> tuple[str, str]:
    """The lease ids that a claim's random bytes hold for its ``position``-th execution: of one that begins, and of one
    that goes on after an interruption. The other one of the two becomes the id of the attempt, so a lease tells which
    it was."""
    return uuid_text(entropy, 2 * position), uuid_text(entropy, 2 * position + 1)


def reissued(
    leases: Iterable[tuple[Execution, Attempt]],
    entropy: bytes,
    limit: int,
    worker_instance_id: str,
    lease_ttl_ms: int,
    namespaces: frozenset[str] | None,
    tag: BackendTag,
    now: int,
) -> list[Handle]:
    """Handles of those leases that stand and were given by the claim with these random bytes, in its order."""
    begun = {lease_ids(entropy, position)[0]: position for position in range(limit)}
    resumed = {lease_ids(entropy, position)[1]: position for position in range(limit)}
    found: list[tuple[int, str, Handle]] = []
    for execution, attempt in leases:
        position = begun.get(attempt.lease_id or "", resumed.get(attempt.lease_id or ""))
        if (
            position is None
            or attempt.worker_instance_id != worker_instance_id
            or execution.ownership_state != lit.LEASED
            or execution.attempt_index != attempt.attempt_index
            or (attempt.lease_expires_at_ms or 0) <= now
            or (namespaces is not None and execution.namespace not in namespaces)
        ):
            continue
        payload = HandlePayload(
            execution.execution_id,
            attempt.attempt_index,
            attempt.attempt_id or "",
            attempt.lease_id or "",
            attempt.lease_epoch,
            lease_ttl_ms,
            execution.lane_id,
            worker_instance_id,
        )
        kind = HandleKind.FRESH if attempt.lease_id in begun else HandleKind.RESUMED
        found.append((position, execution.execution_id, Handle.of(tag, kind, payload)))
    return [handle for _, _, handle in sorted(found, key=lambda each: each[:2])][:limit]
