"""The oracle: what every call must answer, and what it must leave behind.

A call gives its answer in plain values, ``("Variant", {field: value})`` where the engine answers with a struct, or
raises ``Refused``. Events it must write are appended to ``events``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.simulation.model import ANY, DAY, WAITING, Held, Refused, Row, Try, backoff_ms
from tests.simulation.oracle.oracle_control import Control
from tests.simulation.oracle.oracle_grants import Grants

RETRYABLE = ("transient", "infra_crash")
FINAL = ("permanent", "timeout", "cancelled")


class Oracle(Grants, Control):
    """A naive engine in dictionaries. ``now`` is moved from outside; ``shown`` is the store's name in lease ids."""

    def __init__(self, shown: str, now: int, grace: int) -> None:
        self.shown = shown
        self.now = now
        self.grace = grace
        self.rows: dict[str, Row] = {}
        self.bindings: dict[tuple[str, str], tuple[str, int]] = {}
        self.lanes: set[str] = set()
        self.workers: dict[tuple[str, str], dict[str, Any]] = {}
        self.events: list[tuple[Any, ...]] = []
        self.submitted: dict[tuple[str, str], int] = {}
        self.minted = 0

    # -- shared --------------------------------------------------------------------------------------------------

    def row(self, execution_id: str) -> Row:
        if execution_id not in self.rows:
            raise Refused("NotFound", "execution")
        return self.rows[execution_id]

    def lease_event(self, row: Row, kind: str, index: int, epoch: int, instance: Any) -> None:
        lease_id = f"{self.shown}:{row.uuid}:{index}:{epoch}"
        self.events.append(("lease", row.uuid, kind, lease_id, self.now, instance, row.namespace, self._tag(row)))

    def completion_event(self, row: Row, outcome: str) -> None:
        self.events.append(("completion", row.uuid, outcome, self.now, row.namespace, self._tag(row)))

    def operator_event(self, row: Row, kind: str, details: dict[str, Any]) -> None:
        self.events.append(("operator", row.uuid, kind, details, self.now, row.namespace, self._tag(row)))

    def tag_event(self, row: Row) -> None:
        if self._tag(row) is not None:
            self.events.append(("tag", row.uuid, "attached", self._tag(row), self.now, row.namespace))

    def _tag(self, row: Row) -> str | None:
        return row.tags.get("cairn.instance_id")

    def release(self, row: Row, outcome: str, *, ended: bool) -> None:
        """The holder gives its lease back."""
        attempt = row.attempts[row.index]
        attempt.release(outcome, self.now if ended else None)
        self.lease_event(row, "revoked", row.index, attempt.epoch, ANY)

    def end(self, row: Row, public: str, outcome: str) -> None:
        """The execution is over and says so."""
        row.state("terminal", "unowned", "not_applicable", "attempt_terminal", public)
        row.ended, row.outcome, row.delay = self.now, outcome, None
        row.drop_grants("claim")
        self.completion_event(row, outcome)

    def lease(self, row: Row, worker: str, instance: str, ttl: int, kind: str, **terms: Any) -> Held:
        """Give the lease on the current attempt; who may have it has been checked."""
        attempt = row.attempts.setdefault(row.index, Try())
        if attempt.epoch == 0 or row.attempt_state == "pending_replay_attempt":
            row.total += 1
        interrupted = row.attempt_state == "attempt_interrupted"
        by_state = {"pending_retry_attempt": "retry", "pending_replay_attempt": "replay"}
        attempt.type = terms.get("type") or (
            attempt.type if interrupted else by_state.get(row.attempt_state, "initial")
        )
        attempt.epoch = 1 + max(each.epoch for each in row.attempts.values())
        attempt.worker, attempt.instance, attempt.expires = worker, instance, self.now + ttl
        attempt.began, attempt.ended, attempt.outcome, attempt.retry_at = self.now, None, None, None
        timeout = terms.get("timeout") or row.attempt_timeout
        attempt.timeout_at = self.now + timeout if timeout else None
        row.state("active", "leased", "not_applicable", "running_attempt", "running")
        row.blocking, row.delay = None, None
        if row.started is None:
            row.started = self.now
        self.minted += 1
        attempt.lease = self.minted
        if not terms.get("same"):
            attempt.identity = self.minted
        self.lease_event(row, terms.get("event", "acquired"), row.index, attempt.epoch, instance)
        lane = terms.get("lane", row.lane)
        return Held(kind, row.id, row.index, attempt.epoch, ttl, lane, instance, attempt.identity, attempt.lease)

    # -- creating ------------------------------------------------------------------------------------------------

    def create(self, item: dict[str, Any]) -> Any:
        """A new row, or the one that was there; the lane is registered either way."""
        self.lanes.add(item["lane_id"])
        policy, key = item["policy"], item["idempotency_key"]
        execution_id, namespace = item["execution_id"], item["namespace"]
        if key:
            bound, until = self.bindings.get((namespace, key), ("", 0))
            if until > self.now:
                return ("Duplicate", {"execution_id": bound})
        if execution_id in self.rows:
            return ("Duplicate", {"execution_id": execution_id})
        if key:
            window = (policy or {}).get("dedup_window_ms") or DAY
            self.bindings[(namespace, key)] = (execution_id, self.now + window)
        deadline = item["execution_deadline_at"]
        after = ((policy or {}).get("timeout_policy") or {}).get("execution_deadline_ms")
        if deadline is None and after is not None:
            deadline = self.now + after
        needs = ((policy or {}).get("routing_requirements") or {}).get("required_capabilities", [])
        row = self.rows[execution_id] = Row(
            execution_id,
            namespace,
            item["lane_id"],
            frozenset(needs),
            min(max(item["priority"], 0), 9000),
            self.now,
            policy,
            deadline,
            None,
            dict(item["tags"] or {}),
        )
        if item["delay_until"] is not None and item["delay_until"] > self.now:
            row.delay, row.eligibility, row.public = item["delay_until"], "not_eligible_until_time", "delayed"
        place = (namespace, row.lane)
        self.submitted[place] = self.submitted.get(place, 0) + 1
        self.tag_event(row)
        return ("Created", {"execution_id": execution_id, "public_state": row.public})

    def create_many(self, items: Iterable[dict[str, Any]]) -> list[Any]:
        return [self.create(item) for item in items]

    # -- claiming ------------------------------------------------------------------------------------------------

    def candidates(self, lane: str, capabilities: Iterable[str]) -> list[Row]:
        """What a worker could have, in claim order."""
        able = set(capabilities)
        found = [
            row for row in self.rows.values() if row.lane == lane and row.claimable(self.now) and row.needs <= able
        ]
        return sorted(found, key=Row.order)

    def claim_many(self, lane: str, able: Iterable[str], worker: str, instance: str, ttl: int, limit: int) -> Any:
        handles = []
        for row in self.candidates(lane, able)[:limit]:
            kind = "Resumed" if row.attempt_state == "attempt_interrupted" else "Fresh"
            row.drop_expired("claim", self.now)
            handles.append(self.lease(row, worker, instance, ttl, kind))
        return handles

    # -- the gates of a holder -----------------------------------------------------------------------------------

    def held(self, handle: Held) -> tuple[Row, Try]:
        """The handle gate, check by check."""
        row = self.rows.get(handle.execution_id)
        attempt = row.attempts.get(handle.index) if row else None
        if row is None or attempt is None:
            raise Refused("NotFound", "attempt")
        if attempt.epoch != handle.epoch or row.index != handle.index:
            raise Refused("Contention", "lease_conflict")
        self._active(row)
        self._unexpired(attempt)
        if attempt.lease != handle.lease:
            raise Refused("Contention", "lease_conflict")
        return row, attempt

    def _active(self, row: Row) -> None:
        if row.phase != "active":
            raise Refused("Contention", "execution_not_active")

    def _unexpired(self, attempt: Try) -> None:
        if attempt.expires is None or attempt.expires <= self.now:
            raise Refused("State", "lease_expired")

    def _own_attempt(self, handle: Held) -> Try | None:
        """The handle's own attempt, wherever the execution is by now, if no other lease was its last."""
        row = self.rows.get(handle.execution_id)
        found = row.attempts.get(handle.index) if row else None
        own = found is not None and (found.identity, found.lease) == (handle.identity, handle.lease)
        return found if own else None

    def fenced(
        self, execution_id: str, index: int, epoch: int | None, lease: int, *, attempt_first: bool = False
    ) -> tuple[Row, Try]:
        """The gate of calls by id: an epoch with its lease, or ``None`` for an operator's override."""
        row = self.rows.get(execution_id)
        if row is not None and epoch is None:
            index = row.index
        attempt = row.attempts.get(index) if row else None

        def check_attempt() -> None:
            if attempt is None:
                raise Refused("NotFound", "attempt")
            if epoch is not None and (attempt.epoch != epoch or (row is not None and row.index != index)):
                raise Refused("State", "stale_lease")

        if attempt_first:
            check_attempt()
        if row is None:
            raise Refused("NotFound", "execution")
        self._active(row)
        check_attempt()
        assert attempt is not None
        self._unexpired(attempt)
        if epoch is not None and attempt.lease != lease:
            raise Refused("State", "stale_lease")
        return row, attempt

    # -- holding -------------------------------------------------------------------------------------------------

    def renew(self, handle: Held) -> Any:
        row, attempt = self.held(handle)
        expires = self._extend(row, attempt, handle.ttl)
        return ("LeaseRenewal", {"expires_at_ms": expires, "lease_epoch": attempt.epoch})

    def renew_lease(self, execution_id: str, index: int, epoch: int, lease: int, ttl: int) -> Any:
        row, attempt = self.fenced(execution_id, index, epoch, lease, attempt_first=True)
        return ("Renewed", {"expires_at": self._extend(row, attempt, ttl)})

    def _extend(self, row: Row, attempt: Try, ttl: int) -> int:
        assert attempt.expires is not None
        attempt.expires = max(attempt.expires, self.now + ttl)
        self.lease_event(row, "renewed", row.index, attempt.epoch, attempt.instance)
        return attempt.expires

    def make_progress(self, handle: Held, percent: int | None, message: str | None) -> None:
        row, _ = self.held(handle)
        if percent is not None:
            row.progress["progress_pct"] = percent
        if message is not None:
            row.progress["progress_message"] = message

    def delay(self, handle: Held, until: int) -> None:
        self._delay(*self.held(handle), until)

    def delay_execution(self, execution_id: str, index: int, epoch: int | None, lease: int, until: int) -> Any:
        self._delay(*self.fenced(execution_id, index, epoch, lease), until)
        return ("Delayed", {"execution_id": execution_id, "public_state": "delayed"})

    def _delay(self, row: Row, attempt: Try, until: int) -> None:
        self.release(row, "interrupted", ended=False)
        row.state("runnable", "unowned", "not_eligible_until_time", "attempt_interrupted", "delayed")
        row.delay, row.blocking = until, "waiting_for_delay"

    def wait_children(self, handle: Held) -> None:
        """There are no flows here, so nothing is open and the row is eligible at once."""
        row, _ = self.held(handle)
        self.release(row, "waiting_children", ended=False)
        row.state("runnable", "unowned", "eligible_now", "attempt_interrupted", "waiting")

    # -- ending --------------------------------------------------------------------------------------------------

    def complete(self, handle: Held, payload: bytes | None) -> None:
        try:
            row, _ = self.held(handle)
        except Refused:
            own = self._own_attempt(handle)
            if own is not None and own.epoch == handle.epoch and own.outcome == "success":
                return
            raise
        self._complete(row, payload)

    def complete_execution(
        self, execution_id: str, index: int, epoch: int | None, lease: int, payload: bytes | None
    ) -> Any:
        row, _ = self.fenced(execution_id, index, epoch, lease)
        self._complete(row, payload)
        return ("Completed", {"execution_id": execution_id, "public_state": "completed"})

    def _complete(self, row: Row, payload: bytes | None) -> None:
        self.release(row, "success", ended=True)
        self.end(row, "completed", "success")
        row.result = payload

    def fail(self, handle: Held, failure_class: str, detail: str) -> Any:
        try:
            row, _ = self.held(handle)
        except Refused:
            answer = self._failed_before(handle)
            if answer is None:
                raise
            return answer
        category = detail or (failure_class if failure_class in RETRYABLE + FINAL else "transient")
        if failure_class in FINAL:
            return self._fail(row)
        if row.retry_policy is None:
            return self._retry(row, 0)
        return self._by_policy(row, row.retry_policy, category)

    def _failed_before(self, handle: Held) -> Any:
        own = self._own_attempt(handle)
        if own is None or own.epoch != handle.epoch:
            return None
        if own.outcome == "failed":
            return ("TerminalFailed", {})
        following = self.rows[handle.execution_id].attempts.get(handle.index + 1)
        if own.outcome == "retry" and following is None:
            return ("RetryScheduled", {"delay_until": own.retry_at, "next_attempt_index": handle.index + 1})
        return None

    def fail_execution(
        self, execution_id: str, index: int, epoch: int | None, lease: int, category: str, policy: dict[str, Any] | None
    ) -> Any:
        row, _ = self.fenced(execution_id, index, epoch, lease, attempt_first=True)
        return self._fail(row) if policy is None else self._by_policy(row, policy, category)

    def _by_policy(self, row: Row, policy: dict[str, Any], category: str) -> Any:
        categories = policy.get("retryable_categories") or [category]
        if row.retries >= policy.get("max_retries", 3) or category not in categories:
            return self._fail(row)
        pause = backoff_ms(policy, row.retries)
        row.retries += 1
        return self._retry(row, pause)

    def _fail(self, row: Row) -> Any:
        self.release(row, "failed", ended=True)
        self.end(row, "failed", "failed")
        return ("TerminalFailed", {})

    def _retry(self, row: Row, pause: int) -> Any:
        self.release(row, "retry", ended=True)
        row.attempts[row.index].retry_at = self.now + pause
        row.index += 1
        if pause:
            row.state("runnable", "unowned", "not_eligible_until_time", "pending_retry_attempt", "delayed")
            row.delay, row.blocking = self.now + pause, "waiting_for_retry_backoff"
        else:
            row.state("runnable", "unowned", "eligible_now", "pending_retry_attempt", "waiting")
        return ("RetryScheduled", {"delay_until": self.now + pause, "next_attempt_index": row.index})

    def cancel(self, handle: Held, reason: str) -> Any:
        answer = ("Cancelled", {"execution_id": handle.execution_id, "public_state": "cancelled"})
        try:
            row, _ = self.held(handle)
        except Refused:
            own = self._own_attempt(handle)
            ended = own is not None and own.epoch == handle.epoch + 1 and own.outcome == "cancelled"
            if not ended or self.rows[handle.execution_id].cancelled_by != "worker":
                raise
            return answer
        self.cancel_row(row, reason, "worker")
        return answer

    # -- looking -------------------------------------------------------------------------------------------------

    def eligible(self, lane: str) -> list[str]:
        """Claimable rows of a lane, whatever they need."""
        found = [row for row in self.rows.values() if row.lane == lane and row.claimable(self.now)]
        return [row.id for row in sorted(found, key=Row.order)]

    def expired_leases(self) -> list[tuple[str, int, int]]:
        """``(execution, attempt, epoch)`` of leases past their time, oldest first."""
        found = [
            (row.current.expires, row.id, row.index, row.current.epoch)
            for row in self.rows.values()
            if row.phase == "active" and row.current and row.current.expires is not None
        ]
        return [entry[1:] for entry in sorted(found) if entry[0] <= self.now]

    def holds(self, handle: Held) -> bool:
        """Whether a handle would pass the gate now."""
        try:
            self.held(handle)
        except Refused:
            return False
        return True

    def waits(self, row: Row) -> bool:
        return row.phase in WAITING

    def due(self) -> list[int]:
        """Every moment at which something falls due."""
        found = [moment for _, moment in self.bindings.values()]
        for row in self.rows.values():
            found += [grant.expires for grant in row.grants]
            found += [each for each in (row.delay, None if row.over else row.deadline) if each is not None]
            if row.current is not None and row.current.expires is not None:
                found += [row.current.expires, row.current.expires + self.grace]
            if row.current is not None and row.current.timeout_at is not None:
                found.append(row.current.timeout_at)
        return found + [worker["heartbeat"] + worker["ttl"] for worker in self.workers.values()]
