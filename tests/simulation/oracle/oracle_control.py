"""The oracle's operators, timers, worker registry and streams."""

from __future__ import annotations

import json
from typing import Any

from flowfabric.model.limits import INTAKE_MS
from tests.simulation.model import ANY, Held, Refused, Row

BLOCKS = {
    "waiting_for_budget": ("blocked_by_budget", "rate_limited"),
    "waiting_for_quota": ("blocked_by_quota", "rate_limited"),
    "waiting_for_capable_worker": ("blocked_by_route", "waiting"),
    "paused_by_operator": ("blocked_by_operator", "waiting"),
    "paused_by_policy": ("blocked_by_lane_state", "waiting"),
}


class Control:
    """What is done to executions from outside."""

    now: int
    grace: int
    shown: str
    rows: dict[str, Row]
    bindings: dict[tuple[str, str], tuple[str, int]]
    submitted: dict[tuple[str, str], int]
    workers: dict[tuple[str, str], dict[str, Any]]

    # -- operators -----------------------------------------------------------------------------------------------

    def cancel_execution(self, execution_id: str, reason: str, source: str, epoch: int | None, lease: int) -> Any:
        row = self.row(execution_id)
        answer = ("Cancelled", {"execution_id": execution_id, "public_state": "cancelled"})
        if row.over:
            if row.public == "cancelled":
                return answer
            raise Refused("Validation", "invalid_input")
        if source != "operator_override" and row.leased:
            if epoch is None:
                raise Refused("Validation", "invalid_input")
            if (epoch, lease) != (row.attempts[row.index].epoch, row.attempts[row.index].lease):
                raise Refused("State", "stale_lease")
        self.cancel_row(row, reason, source)
        return answer

    def cancel_row(self, row: Row, reason: str, by: str) -> None:
        if row.leased:
            self.lease_event(row, "revoked", row.index, row.attempts[row.index].epoch, ANY)
            row.attempts[row.index].take("cancelled", self.now)
        self.end(row, "cancelled", "cancelled")
        row.phase, row.attempt_state = "cancelled", "cancelled"
        row.cancelled_by, row.cancel_reason = by, reason

    def revoke_lease(self, execution_id: str, instance: str, expected: str | None) -> Any:
        row = self.row(execution_id)
        if not row.leased:
            return ("AlreadySatisfied", {"reason": "no_active_lease"})
        attempt = row.attempts[row.index]
        if instance and instance != attempt.instance:
            return ("AlreadySatisfied", {"reason": "different_worker_instance_id"})
        lease_id = f"{self.shown}:{row.uuid}:{row.index}:{attempt.epoch}"
        if expected and expected != lease_id:
            return ("AlreadySatisfied", {"reason": "lease_id_mismatch"})
        self.lease_event(row, "revoked", row.index, attempt.epoch, ANY)
        attempt.take(attempt.outcome)
        row.state("runnable", "unowned", "eligible_now", "attempt_interrupted", "waiting")
        return ("Revoked", {"lease_id": lease_id, "lease_epoch": str(attempt.epoch)})

    def change_priority(self, execution_id: str, priority: int) -> Any:
        row = self.row(execution_id)
        fresh = row.phase == "submitted" and self.now - row.created < INTAKE_MS
        if fresh or not self.waits(row) or row.eligibility != "eligible_now":
            raise Refused("Contention", "execution_not_eligible")
        row.phase = "runnable"
        clamped = min(max(priority, 0), 9000)
        self.operator_event(row, "priority_changed", {"old_priority": row.priority, "new_priority": clamped})
        row.priority = clamped
        return ("PriorityChanged", {"execution_id": execution_id})

    def replay_execution(self, execution_id: str) -> Any:
        row = self.row(execution_id)
        if row.phase != "terminal":
            raise Refused("State", "execution_not_terminal")
        if row.replays >= row.max_replays:
            raise Refused("State", "max_replays_exhausted")
        row.replays += 1
        row.state("runnable", "unowned", "eligible_now", "pending_replay_attempt", "waiting")
        row.ended = row.result = row.cancelled_by = row.cancel_reason = None
        row.outcome, row.retries, row.reclaims, row.delay = "none", 0, 0, None
        if row.current is not None:
            row.current.take(None)
            row.current.ended, row.current.worker, row.current.retry_at = None, None, None
        self.operator_event(row, "replayed", {"branch": "normal"})
        return ("Replayed", {"public_state": "waiting"})

    def block_execution(self, execution_id: str, reason: str) -> Any:
        if reason not in BLOCKS:
            raise Refused("Validation", "invalid_blocking_reason")
        row = self.row(execution_id)
        if row.over:
            return ("Rejected", {"reason": "execution_not_active"})
        if not self.waits(row):
            return ("Rejected", {"reason": "execution_not_eligible"})
        eligibility, public = BLOCKS[reason]
        row.state("runnable", "unowned", eligibility, row.attempt_state, public)
        row.blocking, row.delay = reason, None
        row.drop_grants("claim")
        return ("Blocked", {"execution_id": execution_id, "eligibility_state": eligibility, "reason": reason})

    def unblock_execution(self, execution_id: str, expected: str) -> Any:
        row = self.row(execution_id)
        blocked = row.eligibility in {eligibility for eligibility, _ in BLOCKS.values()}
        if not self.waits(row) or not blocked or (expected and expected != row.blocking):
            raise Refused("Contention", "execution_not_eligible")
        row.state("runnable", "unowned", "eligible_now", row.attempt_state, "waiting")
        row.blocking = "waiting_for_worker"
        return ("Unblocked", {"execution_id": execution_id, "public_state": "waiting"})

    def set_tag(self, execution_id: str, key: str, value: str) -> None:
        row = self.row(execution_id)
        row.tags[key] = value
        if key == "cairn.instance_id":
            self.tag_event(row)

    # -- timers --------------------------------------------------------------------------------------------------

    def run_timer(self, name: str) -> int:
        """How much the timer did. What it does to one row depends on no other row."""
        if name == "worker_registry_ttl_sweep":
            return self._sweep_workers()
        if name == "unblock":
            return self._unblock_routable() + self.unblock_admissible()
        single = {
            "intake": self._promote,
            "delayed_promoter": self.promote_delayed,
            "lease_expiry": lambda row: self.mark_lease_expired(row) in ("marked", "requeued", "failed", "cleared"),
            "attempt_timeout": self._attempt_timeout,
            "execution_deadline": self._deadline,
            "grant_sweep": self._sweep_grants,
        }[name]
        return sum(int(single(row)) for row in self.rows.values())

    def _promote(self, row: Row) -> bool:
        if row.phase != "submitted":
            return False
        row.phase = "runnable"
        return True

    def promote_delayed(self, row: Row) -> bool:
        due = row.delay is not None and row.delay <= self.now
        if not self.waits(row) or row.eligibility != "not_eligible_until_time" or not due:
            return False
        row.state("runnable", "unowned", "eligible_now", row.attempt_state, "waiting")
        row.delay, row.blocking = None, "waiting_for_worker"
        return True

    def mark_lease_expired(self, row: Row | None) -> str:
        """First the lease is marked as lost; after the grace the work goes back to the queue."""
        if row is None:
            return "execution_not_found"
        if row.phase != "active":
            return "not_active"
        attempt = row.attempts[row.index]
        if attempt.expires is None or attempt.expires > self.now:
            return "not_yet_expired"
        requeue = attempt.expires + self.grace <= self.now
        if row.ownership == "leased":
            self.lease_event(row, "expired", row.index, attempt.epoch, attempt.instance)
            row.ownership, row.attempt_state = "lease_expired_reclaimable", "attempt_interrupted"
            row.blocking = "waiting_for_worker"
            if not requeue:
                return "marked"
        elif not requeue:
            return "already_expired"
        if row.reclaims >= row.reclaim_cap(None):
            self.reclaimed_too_often(row)
            return "failed"
        attempt.take("lease_expired_reclaimable")
        row.reclaims += 1
        row.state("runnable", "unowned", "eligible_now", "attempt_interrupted", "waiting")
        return "requeued"

    def expire_execution(self, execution_id: str, cause: str) -> bool:
        row = self.rows.get(execution_id)
        if row is None:
            return False
        return self._attempt_timeout(row) if cause == "attempt_timeout" else self._deadline(row)

    def _attempt_timeout(self, row: Row) -> bool:
        attempt = row.current
        if row.phase != "active" or attempt is None or attempt.timeout_at is None or attempt.timeout_at > self.now:
            return False
        if row.retries >= (row.retry_policy or {"max_retries": 0}).get("max_retries", 3):
            self._expire(row)
            return True
        self._announce_expiry(row)
        attempt.take("expired", self.now)
        row.retries += 1
        row.index += 1
        row.state("runnable", "unowned", "eligible_now", "pending_retry_attempt", "waiting")
        return True

    def _deadline(self, row: Row) -> bool:
        if row.over or row.deadline is None or row.deadline > self.now:
            return False
        self._expire(row)
        return True

    def _expire(self, row: Row) -> None:
        if row.current is not None and row.leased:
            self._announce_expiry(row)
            row.current.take("expired", self.now)
        elif row.current is not None:
            row.current.release("expired", self.now)
        self.end(row, "expired", "expired")

    def _announce_expiry(self, row: Row) -> None:
        """Once: a lease that was marked as lost has been announced."""
        if row.ownership == "leased":
            attempt = row.attempts[row.index]
            self.lease_event(row, "expired", row.index, attempt.epoch, attempt.instance)

    def _sweep_grants(self, row: Row) -> int:
        swept = row.drop_expired("claim", self.now)
        if swept and row.eligibility == "pending_claim" and row.live_grant("claim", self.now) is None:
            row.eligibility = "eligible_now"
        return swept

    def trim(self, retention: int, batch: int) -> int:
        """Purge what ended long ago, oldest first."""
        old = [row for row in self.rows.values() if row.ended is not None and row.ended <= self.now - retention]
        old.sort(key=lambda row: row.ended or 0)
        for row in old[:batch]:
            del self.rows[row.id]
            self.submitted[(row.namespace, row.lane)] -= 1
        return len(old[:batch])

    # -- workers -------------------------------------------------------------------------------------------------

    def _alive(self, worker: dict[str, Any]) -> bool:
        return worker["heartbeat"] + worker["ttl"] > self.now

    def register_worker(self, namespace: str, instance: str, worker: str, lanes: Any, able: Any, ttl: int) -> Any:
        known = self.workers.get((namespace, instance))
        alive = known is not None and self._alive(known)
        if alive and known is not None and known["worker"] != worker:
            raise Refused("Validation", "invalid_input")
        since = known["since"] if alive and known is not None else self.now
        self.workers[(namespace, instance)] = {
            "worker": worker,
            "lanes": sorted(set(lanes)),
            "able": sorted(set(able)),
            "ttl": ttl,
            "heartbeat": self.now,
            "since": since,
        }
        self._unblock_routable()
        return ("Refreshed", {"next_expiry_ms": self.now + ttl}) if alive else ("Registered", {})

    def heartbeat_worker(self, namespace: str, instance: str) -> Any:
        worker = self.workers.get((namespace, instance))
        if worker is None or not self._alive(worker):
            return ("NotRegistered", {})
        worker["heartbeat"] = self.now
        return ("Refreshed", {"next_expiry_ms": self.now + worker["ttl"]})

    def mark_worker_dead(self, namespace: str, instance: str) -> Any:
        gone = self.workers.pop((namespace, instance), None)
        return ("NotRegistered", {}) if gone is None else ("Marked", {})

    def list_workers(self, namespace: str) -> list[tuple[str, ...]]:
        found = [(key, worker) for key, worker in self.workers.items() if key[0] == namespace and self._alive(worker)]
        return [
            (key[1], worker["worker"], tuple(worker["lanes"]), tuple(worker["able"]), worker["since"])
            for key, worker in sorted(found, key=lambda each: each[0])
        ]

    def _sweep_workers(self) -> int:
        dead = [key for key, worker in self.workers.items() if not self._alive(worker)]
        for key in dead:
            del self.workers[key]
        return len(dead)

    def _unblock_routable(self) -> int:
        """Rows blocked for lack of a capable worker, while one worker of their lane has all they need."""
        alive = [worker for worker in self.workers.values() if self._alive(worker)]
        done = 0
        for row in self.rows.values():
            if row.eligibility == "blocked_by_route" and any(
                row.lane in worker["lanes"] and row.needs <= set(worker["able"]) for worker in alive
            ):
                self.unblock_execution(row.id, "waiting_for_capable_worker")
                done += 1
        return done

    def unblock_admissible(self) -> int:
        """Rows blocked for a budget or a quota; here they name none, so nothing stands in their way."""
        done = 0
        for row in self.rows.values():
            if row.eligibility in ("blocked_by_budget", "blocked_by_quota"):
                self.unblock_execution(row.id, "")
                done += 1
        return done

    # -- streams -------------------------------------------------------------------------------------------------

    def append_frame(self, handle: Held, payload: bytes, mode: str, keep: int) -> Any:
        """``keep`` is what a best-effort frame leaves of the stream."""
        row, _ = self.held(handle)
        version = None
        if mode == "summary":
            version = self._merge(row, handle.index, payload)
        frames = row.frames.setdefault(handle.index, [])
        moment = max([self.now, *(at for at, _ in frames[-1:])])
        seq = frames[-1][1] + 1 if frames and frames[-1][0] == moment else 0
        frames.append((moment, seq))
        limit = min(row.max_frames, keep) if mode == "best_effort" else row.max_frames
        del frames[: max(len(frames) - max(limit, 1), 0)]
        fields = {"stream_id": f"{moment}-{seq}", "frame_count": len(frames), "summary_version": version}
        return ("AppendFrameOutcome", fields)

    def _merge(self, row: Row, index: int, payload: bytes) -> int:
        try:
            patch = json.loads(payload)
        except ValueError:
            patch = None
        if not isinstance(patch, dict):
            raise Refused("Validation", "invalid_input")
        version, document = row.summaries.get(index, (0, {}))
        document = {**document, **patch}
        row.summaries[index] = (version + 1, {key: value for key, value in document.items() if value is not None})
        return version + 1
