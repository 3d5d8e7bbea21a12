"""The oracle's suspensions: waitpoints with their tokens, signals, and the three ways to go on."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import Counter
from typing import Any

from tests.simulation.coordination import conditions
from tests.simulation.coordination.model import Signal, Suspension, Waitpoint
from tests.simulation.coordination.oracle_flows import Flows
from tests.simulation.model import ANY, Held, Refused, Row

WEEK = 604_800_000
BLOCKING = {
    "waiting_for_signal": "waiting_for_signal",
    "waiting_for_approval": "waiting_for_approval",
    "waiting_for_operator_review": "paused_by_operator",
    "paused_by_budget": "waiting_for_budget",
    "manual_pause": "paused_by_operator",
    "something_else": "waiting_for_signal",
}
#: Why waitpoints close when their execution ends so. Those of a holder that just ends are left open.
CLOSING = {"cancelled": "cancelled", "expired": "expired", "skipped": "skipped"}


class Signals(Flows):
    """Suspended executions. Secrets are given by the machine, so tokens are foreseen."""

    def __init__(self, shown: str, now: int, grace: int) -> None:
        super().__init__(shown, now, grace)
        #: ``kid -> (secret, until when it verifies)``; the current one has no end.
        self.keys: dict[str, tuple[bytes, int | None]] = {}
        self.current = ""
        self.waitpoints: dict[str, Waitpoint] = {}
        self.suspensions: dict[str, Suspension] = {}
        self.signals: dict[str, list[Signal]] = {}
        #: How many signals each execution got in this life.
        self.heard: Counter[str] = Counter()
        self.known_keys: dict[tuple[str, str], tuple[str, int]] = {}
        self.told: dict[tuple[str, str], tuple[Any, int]] = {}
        self.resume_delays: set[str] = set()
        self.closing: str | None = None

    # -- keys and tokens -----------------------------------------------------------------------------------------

    def seed_key(self, kid: str, secret: bytes) -> Any:
        if kid in self.keys:
            return ("AlreadySeeded", {"kid": kid, "same_secret": self.keys[kid][0] == secret})
        if self.current:
            raise Refused("Validation", "invalid_input")
        self.keys[kid], self.current = (secret, None), kid
        return ("Seeded", {"kid": kid})

    def rotate_key(self, kid: str, secret: bytes, grace: int) -> Any:
        if kid in self.keys:
            if self.keys[kid][0] != secret:
                raise Refused("Conflict", "rotation_conflict")
            return ("Noop", {"kid": kid})
        before, over = self.current, [each for each in self.keys if self._over(each)]
        for each in over:
            del self.keys[each]
        if before:
            self.keys[before] = (self.keys[before][0], self.now + grace)
        self.keys[kid], self.current = (secret, None), kid
        return ("Rotated", {"previous_kid": before or None, "new_kid": kid, "gc_count": len(over)})

    def _over(self, kid: str) -> bool:
        until = self.keys[kid][1]
        return until is not None and until <= self.now

    def kids(self) -> tuple[str, list[tuple[str, int | None]]]:
        former = [(kid, until) for kid, (_, until) in self.keys.items() if kid != self.current and not self._over(kid)]
        return self.current, sorted(former)

    def token(self, kid: str, execution_id: str, waitpoint_id: str) -> str:
        message = f"{kid}:{execution_id}:{waitpoint_id}".encode()
        return f"{kid}:{hmac.new(self.keys[kid][0], message, hashlib.sha256).hexdigest()}"

    def authenticate(self, token: str, execution_id: str, waitpoint_id: str) -> Waitpoint:
        """Before anything is said about what there is."""

        def refuse(why: str) -> Refused:
            self.met[f"refused: {why}"] += 1
            return Refused("Validation", f"invalid_token {why}")

        if not token:
            raise refuse("missing_token")
        kid, _, digest = token.partition(":")
        waitpoint = self.waitpoints.get(waitpoint_id)
        if not kid or not re.fullmatch("[0-9a-f]{64}", digest):
            raise refuse("invalid_token")
        if kid not in self.keys:
            raise refuse("invalid_token")
        if self._over(kid):
            # Said of waitpoints that are not there as well: nobody learns from it which ones are.
            raise refuse("token_expired")
        if waitpoint is None or waitpoint.execution_id != execution_id:
            raise refuse("invalid_token")
        if token != self.token(kid, execution_id, waitpoint_id):
            raise refuse("invalid_token")
        return waitpoint

    def _waitpoint(self, row: Row, waitpoint_id: str, key: str, state: str, expires: int | None) -> Waitpoint:
        token = self.token(self.current, row.id, waitpoint_id)
        made = Waitpoint(waitpoint_id, row.id, key, row.index, self.current, token, state, self.now, expires)
        self.waitpoints[waitpoint_id] = made
        return made

    def create_waitpoint(self, handle: Held, waitpoint_id: str, key: str, expires_in: int) -> Any:
        row, _ = self.held(handle)
        made = self._waitpoint(row, waitpoint_id, key, "pending", self.now + expires_in)
        return ("PendingWaitpoint", {"waitpoint_id": waitpoint_id, "hmac_token": made.token})

    def close_waitpoint(self, execution_id: str, waitpoint_id: str, reason: str) -> None:
        waitpoint = self.waitpoints.get(waitpoint_id)
        if waitpoint is None or waitpoint.execution_id != execution_id:
            raise Refused("Contention", "waitpoint_not_found")
        if waitpoint.open:
            self._close(waitpoint, reason)

    def _close(self, waitpoint: Waitpoint, why: Any, state: str = "closed") -> None:
        waitpoint.state, waitpoint.closed, waitpoint.why = state, self.now, why

    def owned(self, execution_id: str) -> list[Waitpoint]:
        return [each for each in self.waitpoints.values() if each.execution_id == execution_id]

    # -- suspending ----------------------------------------------------------------------------------------------

    def suspend(self, handle: Held, given: dict[str, Any]) -> Any:
        """``given``: id, fresh ``[(id, key)]``, pending id, condition, timeout, behavior, delay, reason, key."""
        if handle.kind == "Suspended":
            raise Refused("State", "already_suspended")
        known = (handle.execution_id, given["key"])
        if given["key"] and known in self.told and self.told[known][1] > self.now:
            return self.told[known][0]
        row, attempt = self.held(handle)
        pending = self._pending(row, given["pending"]) if given["pending"] else None
        keys = [pending.key] if pending else []
        keys += [key for _, key in given["fresh"]]
        if set(conditions.all_keys(given["condition"])) - set(keys):
            raise Refused("Validation", "invalid_input")
        if len(keys) > 1 and set(keys) - set(conditions.all_keys(given["condition"])):
            raise Refused("Validation", "invalid_input")
        if any(each in self.waitpoints for each, _ in given["fresh"]):
            raise Refused("Conflict", "waitpoint_already_exists")
        bound = [pending] if pending else []
        bound += [self._waitpoint(row, *each, "active", None) for each in given["fresh"]]
        heard = [each for each in self.signals.get(row.id, []) if pending and each.waitpoint == pending.id]
        suspension = self.suspensions[row.id] = Suspension(
            given["id"],
            row.index,
            given["condition"],
            [each.id for each in bound],
            self.now,
            given["timeout"],
            given["behavior"],
            given["delay"],
            heard,
            given["reason"],
        )
        details = {
            "suspension_id": given["id"],
            "waitpoint_id": bound[0].id,
            "waitpoint_key": bound[0].key,
            "waitpoint_token": bound[0].token,
            "additional_waitpoints": [
                ("WaitpointCredential", {"waitpoint_id": each.id, "waitpoint_key": each.key, "waitpoint_token": ANY})
                for each in bound[1:]
            ],
        }
        if conditions.holds(given["condition"], heard):
            for each in bound:
                self._close(each, "resumed")
            suspension.over = "resumed"
            self.met["early signals were enough"] += 1
            answer = ("AlreadySatisfied", {"details": ("SuspendOutcomeDetails", details), "handle": handle})
        else:
            if heard:
                self.met["early signals were not enough"] += 1
            if pending:
                pending.state, pending.expires = "active", None
            self.lease_event(row, "revoked", row.index, attempt.epoch, ANY)
            attempt.take("attempt_interrupted")
            row.state("suspended", "unowned", "not_applicable", "attempt_interrupted", "suspended")
            row.blocking, row.delay = BLOCKING[given["reason"]], None
            parked = handle._replace(kind="Suspended", epoch=attempt.epoch)
            answer = ("Suspended", {"details": ("SuspendOutcomeDetails", details), "handle": parked})
        if given["key"]:
            self.told[known] = (answer, self.now + WEEK)
        return answer

    def _pending(self, row: Row, waitpoint_id: str) -> Waitpoint:
        waitpoint = self.waitpoints.get(waitpoint_id)
        if waitpoint is None:
            raise Refused("Contention", "waitpoint_not_found")
        if waitpoint.execution_id != row.id or waitpoint.index != row.index:
            raise Refused("Validation", "invalid_waitpoint_for_execution")
        if waitpoint.state != "pending":
            raise Refused("State", "waitpoint_not_pending")
        if waitpoint.expires is not None and waitpoint.expires <= self.now:
            raise Refused("State", "pending_waitpoint_expired")
        return waitpoint

    # -- signals -------------------------------------------------------------------------------------------------

    def deliver_signal(self, execution_id: str, waitpoint_id: str, token: str, given: dict[str, Any]) -> Any:
        """``given``: id, name, source, key, ttl, delay, most."""
        row = self.row(execution_id)
        waitpoint = self.authenticate(token, execution_id, waitpoint_id)
        known, until = self.known_keys.get((waitpoint_id, given["key"]), ("", 0))
        if given["key"] and given["ttl"] and until > self.now:
            return ("Duplicate", {"existing_signal_id": known})
        recorded = self.signals.setdefault(execution_id, [])
        if any(each.id == given["id"] for each in recorded):
            return ("Duplicate", {"existing_signal_id": given["id"]})
        if row.over:
            raise Refused("State", "target_not_signalable")
        late = waitpoint.state == "pending" and waitpoint.expires is not None and waitpoint.expires <= self.now
        if waitpoint.state == "expired" or late:
            raise Refused("State", "pending_waitpoint_expired")
        if waitpoint.state == "closed":
            raise Refused("State", "waitpoint_closed")
        if given["most"] and self.heard[execution_id] >= given["most"]:
            raise Refused("Validation", "signal_limit_exceeded")
        said = (given["name"], given["source"], self.now)
        signal = Signal(given["id"], waitpoint_id, waitpoint.key, *said, "buffered_for_pending_waitpoint")
        if waitpoint.state == "active":
            suspension = self.suspensions[execution_id]
            signal.effect = conditions.effect(suspension.condition, suspension.heard, signal)
            suspension.heard.append(signal)
        recorded.append(signal)
        self.heard[execution_id] += 1
        self.met[f"signal: {signal.effect}"] += 1
        waitpoint.signals += 1
        if given["key"] and given["ttl"]:
            self.known_keys[(waitpoint_id, given["key"])] = (given["id"], self.now + given["ttl"])
        about = (row.uuid, given["id"], waitpoint_id, signal.effect, self.now, row.namespace)
        self.events.append(("signal", *about))
        if signal.effect == "resume_condition_satisfied":
            self.resume(row, given["delay"] or self.suspensions[execution_id].delay or 0)
        return ("Accepted", {"signal_id": given["id"], "effect": signal.effect})

    def approve(self, execution_id: str, waitpoint_id: str, lane: str, given: dict[str, Any]) -> Any:
        row = self.row(execution_id)
        if row.lane != lane:
            raise Refused("Validation", "invalid_input")
        waitpoint = self.waitpoints.get(waitpoint_id)
        if waitpoint is None or waitpoint.execution_id != execution_id:
            raise Refused("NotFound", "waitpoint")
        name, _, suffix = given["key"].partition(" ")
        said = {**given, "name": name, "source": ("operator", ""), "key": f"approval:{name}:{suffix}", "delay": 0}
        return self.deliver_signal(execution_id, waitpoint_id, waitpoint.token, said)

    def observe(self, handle: Held) -> list[str]:
        """What woke the handle's attempt, or was waited for, in order."""
        self.held(handle)
        suspension = self.suspensions.get(handle.execution_id)
        if suspension is None or suspension.index != handle.index:
            return []
        return [
            each.name if each.key == "__timeout__" else each.id
            for each in suspension.heard
            if each.key == "__timeout__" or conditions.matched(suspension.condition, each)
        ]

    # -- going on ------------------------------------------------------------------------------------------------

    def resume(self, row: Row, delay: int, why: str = "resumed") -> None:
        suspension = self.suspensions[row.id]
        suspension.over = why
        for each in suspension.waitpoints:
            if self.waitpoints[each].state == "active":
                self._close(self.waitpoints[each], why)
        if delay:
            row.state("runnable", "unowned", "not_eligible_until_time", "attempt_interrupted", "delayed")
            row.blocking, row.delay = "waiting_for_resume_delay", self.now + delay
            self.resume_delays.add(row.id)
        else:
            row.state("runnable", "unowned", "eligible_now", "attempt_interrupted", "resumable")
            row.blocking = "waiting_for_worker"

    def resume_execution(self, execution_id: str, delay: int) -> Any:
        row = self.row(execution_id)
        if row.phase != "suspended":
            raise Refused("State", "execution_not_suspended")
        self.resume(row, delay)
        return ("Resumed", {"public_state": row.public})

    def promote_delayed(self, row: Row) -> bool:
        done = super().promote_delayed(row)
        if done and row.id in self.resume_delays:
            row.public = "resumable"
            self.resume_delays.discard(row.id)
        return done

    def _gate(self, row: Row) -> None:
        super()._gate(row)
        self.resume_delays.discard(row.id)

    def block_execution(self, execution_id: str, reason: str) -> Any:
        answer = super().block_execution(execution_id, reason)
        if answer[0] == "Blocked":
            self.resume_delays.discard(execution_id)
        return answer

    def lease(self, row: Row, *given: Any, **terms: Any) -> Held:
        self.resume_delays.discard(row.id)
        return super().lease(row, *given, **terms)

    def suspension_timeout(self) -> int:
        """The timer of suspensions that waited long enough."""
        done = 0
        ends = {"fail": "failed", "cancel": "cancelled", "expire": "expired"}

        def shown(row: Row) -> bool:
            """Whether the engine met this one before any other could take it along, by how it ended."""
            suspension = self.suspensions.get(row.id)
            return suspension is not None and self.observed.get(row.id) == ends.get(suspension.behavior or "")

        for row in sorted(self.rows.values(), key=lambda row: not shown(row)):
            if not shown(row):
                self.settle()
            suspension = self.suspensions.get(row.id)
            if row.phase != "suspended" or suspension is None or suspension.timeout is None:
                continue
            if suspension.timeout <= self.now:
                self._time_out(row, suspension)
                done += 1
        return done

    def _time_out(self, row: Row, suspension: Suspension) -> None:
        behavior = suspension.behavior
        self.met[f"timed out: {behavior}"] += 1
        if behavior == "escalate":
            suspension.timeout = suspension.behavior = None
            suspension.reason = "waiting_for_operator_review"
            row.blocking = "paused_by_operator"
        elif behavior == "auto_resume_with_timeout_signal":
            said = ("timeout", ("system", "suspension_timeout"), self.now, "timeout")
            made_up = Signal("timeout", "", "__timeout__", *said)
            suspension.heard.append(made_up)
            self.signals.setdefault(row.id, []).append(made_up)
            self.heard[row.id] += 1
            self.resume(row, 0, "timed_out_auto_resume")
        else:
            self.closing = f"timed_out_{behavior}"
            outcome = {"fail": "failed", "cancel": "cancelled", "expire": "expired"}[behavior or "fail"]
            row.attempts[row.index].take(outcome, self.now)
            if behavior == "cancel":
                self.cancel_row(row, "suspension_timeout:cancel", "suspension_timeout")
            else:
                self.end(row, outcome, outcome)
            self.closing = None

    def expire_waitpoints(self) -> int:
        due = [each for each in self.waitpoints.values() if each.state == "pending" and (each.expires or 0) <= self.now]
        for each in due:
            self._close(each, "never_committed", "expired")
        return len(due)

    def run_timer(self, name: str) -> int:
        if name == "suspension_timeout":
            return self.suspension_timeout()
        return self.expire_waitpoints() if name == "pending_wp_expiry" else super().run_timer(name)

    def end(self, row: Row, public: str, outcome: str) -> None:
        """No suspension and no open waitpoint outlives its execution."""
        suspended = row.phase == "suspended"
        super().end(row, public, outcome)
        self.suspensions.pop(row.id, None)
        self.resume_delays.discard(row.id)
        for each in self.owned(row.id):
            if each.open:
                self.met[f"{outcome} with a waitpoint {each.state}"] += 1
                self._close(each, self.closing or (CLOSING[outcome] if suspended else ANY))

    def replay_execution(self, execution_id: str) -> Any:
        answer = super().replay_execution(execution_id)
        del self.heard[execution_id]
        return answer

    def due(self) -> list[int]:
        found = super().due()
        found += [each.expires for each in self.waitpoints.values() if each.state == "pending" and each.expires]
        found += [each.timeout for each in self.suspensions.values() if each.timeout and each.over is None]
        return found + [until for _, until in self.keys.values() if until is not None]
