"""The oracle's grants: promises to claim, and permissions to take over."""

from __future__ import annotations

from typing import Any

from tests.simulation.model import ANY, ENDED, WAITING, Grant, Held, Refused, Row, Try


class Grants:
    """Claims by name, and what leads to them."""

    now: int
    rows: dict[str, Row]

    def claim_for_worker(self, lane: str, worker: str, instance: str, capabilities: Any, ttl: int) -> Any:
        found = self.candidates(lane, capabilities)[:1]
        if not found:
            return ("NoWork", {})
        return ("Granted", {"grant": self._promise(found[0], worker, instance, ttl)})

    def issue_claim_grant(self, execution_id: str, worker: str, instance: str, capabilities: Any, ttl: int) -> Any:
        row = self.row(execution_id)
        if row.live_grant("claim", self.now):
            raise Refused("State", "grant_already_exists")
        if not row.claimable(self.now):
            raise Refused("Contention", "execution_not_eligible")
        if not row.needs <= set(capabilities):
            raise Refused("Validation", "capability_mismatch")
        return ("GrantIssued", {"execution_id": execution_id, "grant": self._promise(row, worker, instance, ttl)})

    def _promise(self, row: Row, worker: str, instance: str, ttl: int) -> Any:
        row.drop_expired("claim", self.now)
        row.grants.append(Grant("claim", worker, instance, self.now, self.now + ttl))
        row.phase, row.eligibility = "runnable", "pending_claim"
        return ("ClaimGrant", {"execution_id": row.id, "expires_at_ms": self.now + ttl})

    def _leaseable(self, execution_id: str) -> Row:
        row = self.row(execution_id)
        if row.phase not in WAITING:
            raise Refused("Contention", "execution_not_active")
        if row.ownership != "unowned":
            raise Refused("Contention", "lease_conflict")
        if row.eligibility not in ("eligible_now", "pending_claim"):
            raise Refused("Contention", "execution_not_leaseable")
        return row

    def claim_execution(
        self, execution_id: str, worker: str, instance: str, ttl: int, timeout: int | None, deadline: int | None
    ) -> Any:
        row = self._leaseable(execution_id)
        if row.attempt_state == "attempt_interrupted":
            raise Refused("Contention", "use_claim_resumed_execution")
        grants = [grant for grant in row.grants if grant.kind == "claim"]
        if not grants or grants[-1].worker != worker:
            raise Refused("Contention", "invalid_claim_grant")
        if grants[-1].expires <= self.now:
            raise Refused("Contention", "claim_grant_expired")
        row.drop_grants("claim")
        handle = self.lease(row, worker, instance, ttl, "Fresh", timeout=timeout, lane=ANY)
        if deadline is not None:
            row.deadline = deadline
        return self._claimed(row, handle)

    def claim_resumed_execution(
        self, execution_id: str, worker: str, instance: str, ttl: int, timeout: int | None
    ) -> Any:
        row = self.row(execution_id)
        if row.phase not in WAITING or row.eligibility not in ("eligible_now", "pending_claim"):
            raise Refused("Contention", "execution_not_leaseable")
        if row.attempt_state != "attempt_interrupted":
            raise Refused("Contention", "not_a_resumed_execution")
        live = row.live_grant("claim", self.now)
        if live is not None and live.worker != worker:
            raise Refused("Contention", "invalid_claim_grant")
        row.drop_grants("claim")
        return self._claimed(
            row, self.lease(row, worker, instance, ttl, "Resumed", timeout=timeout, lane=ANY, same=True)
        )

    def _claimed(self, row: Row, handle: Held) -> Any:
        fields = {
            "execution_id": row.id,
            "lease_epoch": handle.epoch,
            "attempt_index": handle.index,
            "attempt_type": row.attempts[handle.index].type,
            "lease_expires_at": self.now + handle.ttl,
            "handle": handle,
        }
        return ("Claimed", fields)

    def issue_grant_and_claim(self, execution_id: str, ttl: int) -> Any:
        row = self._leaseable(execution_id)
        if row.live_grant("claim", self.now):
            raise Refused("State", "grant_already_exists")
        row.drop_expired("claim", self.now)
        handle = self.lease(row, "operator", "operator", ttl, "Fresh")
        shown = f"{self.shown}:{row.uuid}:{handle.index}:{handle.epoch}"
        fields = {"lease_id": shown, "lease_epoch": handle.epoch, "attempt_index": handle.index}
        return ("OperatorLease", fields)

    def claim_from_resume_grant(
        self, execution_id: str, worker: str, instance: str, ttl: int, grant_expires: int, lane: str
    ) -> Held | None:
        row = self.rows.get(execution_id)
        if row is None or not row.attempts:
            raise Refused("NotFound", "attempt")
        index = max(row.attempts)
        attempt = row.attempts[index]
        if attempt.expires is not None and attempt.expires > self.now:
            return None
        if row.phase in (*ENDED, "suspended") or grant_expires <= self.now:
            return None
        back = index != row.index
        row.index = index
        row.drop_grants("claim")
        # What an attempt is called that is taken up again after its retry was scheduled is left open.
        terms: dict[str, Any] = {"same": True, **({"type": ANY} if back else {})}
        if row.attempt_state == "running_attempt":
            terms["type"] = attempt.type
        return self.lease(row, worker, instance, ttl, "Resumed", event="reclaimed", lane=lane, **terms)

    # -- taking over ---------------------------------------------------------------------------------------------

    def issue_reclaim_grant(
        self, execution_id: str, worker: str, instance: str, lane: str, capabilities: Any, ttl: int
    ) -> Any:
        row = self.row(execution_id)
        if not row.reclaimable(self.now):
            return ("NotReclaimable", {"execution_id": execution_id})
        if row.reclaims >= row.reclaim_cap(None):
            return ("ReclaimCapExceeded", {"execution_id": execution_id, "reclaim_count": row.reclaims})
        if row.live_grant("reclaim", self.now):
            raise Refused("State", "grant_already_exists")
        if not row.needs <= set(capabilities):
            return ("NotReclaimable", {"execution_id": execution_id})
        row.drop_expired("reclaim", self.now)
        row.grants.append(Grant("reclaim", worker, instance, self.now, self.now + ttl))
        fields = {"execution_id": execution_id, "expires_at_ms": self.now + ttl, "lane_id": lane}
        return ("Granted", {"grant": ("ReclaimGrant", fields)})

    def reclaim_execution(
        self, execution_id: str, worker: str, instance: str, lane: str, ttl: int, cap: int | None
    ) -> Any:
        row = self.rows.get(execution_id)
        grants = [grant for grant in row.grants if grant.kind == "reclaim"] if row else []
        if row is None or not grants:
            return ("GrantNotFound", {"execution_id": execution_id})
        if grants[-1].worker != worker:
            raise Refused("Validation", "invalid_input")
        if grants[-1].expires <= self.now:
            row.drop_grants("reclaim")
            return ("GrantNotFound", {"execution_id": execution_id})
        if not row.reclaimable(self.now):
            return ("NotReclaimable", {"execution_id": execution_id})
        row.drop_grants("reclaim")
        if row.reclaims >= row.reclaim_cap(cap):
            self.lease_event(row, "revoked", row.index, row.attempts[row.index].epoch, ANY)
            self.reclaimed_too_often(row)
            return ("ReclaimCapExceeded", {"execution_id": execution_id, "reclaim_count": row.reclaims})
        row.attempts[row.index].release("interrupted_reclaimed", ANY)
        row.reclaims += 1
        row.index += 1
        row.attempts[row.index] = Try()
        handle = self.lease(row, worker, instance, ttl, "Reclaimed", event="reclaimed", lane=lane, type="reclaim")
        return ("Reclaimed", {"handle": handle})

    def reclaimed_too_often(self, row: Row) -> None:
        row.attempts[row.index].take("interrupted_reclaimed", ANY)
        self.end(row, "failed", "failed")
