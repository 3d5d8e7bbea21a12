"""What is done from outside: by operators, by time, by the registry; and looking."""

from __future__ import annotations

import json
import uuid
from typing import Any

from hypothesis import strategies as st

from flowfabric.model.ids import LeaseFence
from tests.simulation.domains import (
    ABLE,
    BACK,
    EPOCH,
    EXPECTED,
    INSTANCE,
    LANE,
    LATER,
    LEASE_MS,
    MOMENT,
    NEAR,
    PICK,
    PRIORITY,
    REASON,
    RETRY,
    SERVED,
    SLOTS,
    SPACE,
    TAG,
    TIMERS,
    WORKER,
    any_worker,
    blocked,
    ended,
    lost,
    operation,
    promised,
    queued,
    running,
    some,
    waiting,
)
from tests.simulation.machine import Machine
from tests.simulation.model import DAY, HOUR, NO_LEASE
from tests.simulation.world import differences


class Control(Machine):
    """Operations of operators, timers and readers."""

    # -- by id and fence -----------------------------------------------------------------------------------------

    def fence(self, name: str, epoch: int | None, back: int) -> tuple[dict[str, Any], tuple[str, int, int | None, int]]:
        """Arguments for the engine and for the oracle; without an epoch an operator overrides. Before the first attempt
        there is none to go back to: then it is the fence of a lease that the store has lost."""
        row = self.oracle.rows.get(name)
        index = max((row.index if row else 0) - back, 0)
        attempt = row.attempts.get(index) if row else None
        shown = None if epoch is None else max((attempt.epoch if attempt else 1) + epoch, 0)
        given: dict[str, Any] = {"execution_id": name, "attempt_index": index}
        lease, lease_id = NO_LEASE, str(uuid.uuid4())
        if attempt is not None and not (back and index == row.index):
            lease, lease_id = attempt.lease, self.before[name][1][index].lease_id
        if shown is None:
            given["source"] = "operator_override"
        else:
            given["fence"] = LeaseFence(lease_id, shown, str(uuid.uuid4()))
        return given, (name, index, shown, lease)

    @operation(
        "fence",
        1,
        some(running),
        slot=SLOTS,
        epoch=NEAR,
        back=BACK,
        ttl=LEASE_MS,
    )
    def renew_lease(self, slot: int, epoch: int, back: int, ttl: int) -> None:
        given, asked = self.fence(self.choose(slot, running), epoch, back)
        self.do(
            "renew_lease",
            lambda e: e.renew_lease(**given, lease_ttl_ms=ttl),
            lambda: self.oracle.renew_lease(*asked, ttl),
        )

    @operation("fence", 1, some(running), slot=SLOTS, epoch=EPOCH, back=BACK)
    def complete_execution(self, slot: int, epoch: int | None, back: int) -> None:
        given, asked = self.fence(self.choose(slot, running), epoch, back)
        self.do(
            "complete_execution",
            lambda e: e.complete_execution(**given, result_payload=b"by id"),
            lambda: self.oracle.complete_execution(*asked, b"by id"),
        )

    @operation("fence", 1, some(running), slot=SLOTS, epoch=EPOCH, back=BACK, policy=RETRY)
    def fail_execution(self, slot: int, epoch: int | None, back: int, policy: dict[str, Any] | None) -> None:
        given, asked = self.fence(self.choose(slot, running), epoch, back)
        text = "" if policy is None else json.dumps(policy)
        self.do(
            "fail_execution",
            lambda e: e.fail_execution(**given, failure_reason="no", failure_category="c", retry_policy_json=text),
            lambda: self.oracle.fail_execution(*asked, "c", policy),
        )

    @operation("fence", 1, some(running), slot=SLOTS, epoch=EPOCH, until=LATER)
    def delay_execution(self, slot: int, epoch: int | None, until: int) -> None:
        given, asked = self.fence(self.choose(slot, running), epoch, 0)
        moment = self.oracle.now + until
        self.do(
            "delay_execution",
            lambda e: e.delay_execution(**given, delay_until=moment),
            lambda: self.oracle.delay_execution(*asked, moment),
        )

    # -- operators -----------------------------------------------------------------------------------------------

    @operation("operator", 1, slot=SLOTS, source=st.sampled_from(("operator_override", "lease_holder")), epoch=EPOCH)
    def cancel_execution(self, slot: int, source: str, epoch: int | None) -> None:
        given, (name, _, shown, lease) = self.fence(self.choose(slot, running), epoch, 0)
        lease_id = None if shown is None else given["fence"].lease_id
        self.do(
            "cancel_execution",
            lambda e: e.cancel_execution(
                execution_id=name, reason="stop", source=source, lease_epoch=shown, lease_id=lease_id
            ),
            lambda: self.oracle.cancel_execution(name, "stop", source, shown, lease),
        )

    @operation(
        "operator",
        2,
        some(running),
        slot=SLOTS,
        instance=INSTANCE,
        expected=EXPECTED,
    )
    def revoke_lease(self, slot: int, instance: str, expected: int | None) -> None:
        name, index, epoch, _ = self.fence(self.choose(slot, running), expected, 0)[1]
        lease_id = None if epoch is None else f"{self.oracle.shown}:{name.rpartition(':')[2]}:{index}:{epoch}"
        self.do(
            "revoke_lease",
            lambda e: e.revoke_lease(execution_id=name, worker_instance_id=instance, expected_lease_id=lease_id),
            lambda: self.oracle.revoke_lease(name, instance, lease_id),
        )

    @operation("operator", 2, some(queued), slot=SLOTS, priority=PRIORITY)
    def change_priority(self, slot: int, priority: int) -> None:
        name = self.choose(slot, queued)
        self.do(
            "change_priority",
            lambda e: e.change_priority(execution_id=name, new_priority=priority),
            lambda: self.oracle.change_priority(name, priority),
        )

    @operation("operator", 3, some(ended), slot=SLOTS)
    def replay_execution(self, slot: int) -> None:
        name = self.choose(slot, ended)
        self.do(
            "replay_execution",
            lambda e: e.replay_execution(execution_id=name),
            lambda: self.oracle.replay_execution(name),
        )

    @operation(
        "block",
        2,
        some(waiting),
        slot=SLOTS,
        reason=REASON,
    )
    def block_execution(self, slot: int, reason: str) -> None:
        name = self.choose(slot, waiting)
        self.do(
            "block_execution",
            lambda e: e.block_execution_for_admission(execution_id=name, reason=reason),
            lambda: self.oracle.block_execution(name, reason),
        )

    @operation(
        "block",
        2,
        some(blocked),
        slot=SLOTS,
        expected=st.sampled_from(("", "paused_by_operator", "waiting_for_budget")),
    )
    def unblock_execution(self, slot: int, expected: str) -> None:
        name = self.choose(slot, blocked)
        self.do(
            "unblock_execution",
            lambda e: e.unblock_execution(execution_id=name, expected_blocking_reason=expected),
            lambda: self.oracle.unblock_execution(name, expected),
        )

    @operation("block", 2, some(blocked))
    def look_for_workers(self) -> None:
        """As the timer does that lets work go which some worker can do."""
        self.run_timer("unblock")

    @operation(
        "operator",
        1,
        slot=SLOTS,
        key=TAG,
        value=st.sampled_from(("a", "b")),
    )
    def set_tag(self, slot: int, key: str, value: str) -> None:
        name = self.choose(slot)
        self.do(
            "set_tag", lambda e: e.set_execution_tag(name, key, value), lambda: self.oracle.set_tag(name, key, value)
        )

    # -- time ----------------------------------------------------------------------------------------------------

    @operation("time", 1, milliseconds=MOMENT)
    def advance(self, milliseconds: int) -> None:
        self.flush()
        self.oracle.now = self.world.clock.advance(milliseconds)
        self.compare(True)

    @operation("time", 4, early=st.sampled_from((0, 0, 0, 1)))
    def until_due(self, early: int) -> None:
        """To the moment when the next thing falls due, or just before it."""
        self.jump(self.oracle.due(), early)

    @operation("take", 3, some(running), early=st.sampled_from((0, 0, 0, 1)))
    def until_lease_ends(self, early: int) -> None:
        """To the moment when the next lease runs out, whatever else falls due before."""
        rows = self.oracle.rows.values()
        self.jump([row.current.expires for row in rows if row.current and row.current.expires], early)

    @operation("grant", 2, some(promised), early=st.sampled_from((0, 0, 0, 1)))
    def until_promise_ends(self, early: int) -> None:
        """To the moment when the next grant runs out."""
        self.jump([grant.expires for row in self.oracle.rows.values() for grant in row.grants], early)

    def jump(self, moments: list[int], early: int) -> None:
        """To the next of these moments, or just before it."""
        self.flush()
        ahead = min((moment - early for moment in moments if moment - early > self.oracle.now), default=self.oracle.now)
        self.oracle.now = self.world.clock.advance(ahead - self.oracle.now)
        self.compare(True)

    @operation("time", 2, timer=st.sampled_from(TIMERS))
    def run_timer(self, timer: str) -> None:
        self.alone(f"timer {timer}", lambda e: e.run_timer(timer), lambda: self.oracle.run_timer(timer))

    @operation("time", 3)
    def run_timers(self) -> None:
        """Everything that is due, in the order of the engine's own loop."""
        for timer in TIMERS:
            self.run_timer(timer)

    @operation("time", 3, some(lost), slot=SLOTS)
    def mark_lease_expired(self, slot: int) -> None:
        name = self.choose(slot, lost)
        self.do(
            "mark_lease_expired",
            lambda e: e.mark_lease_expired_if_due(None, name),
            lambda: ("ExpiryMark", {"status": self.oracle.mark_lease_expired(self.oracle.rows.get(name))}),
        )

    @operation("time", 1, slot=SLOTS, cause=st.sampled_from(("attempt_timeout", "execution_deadline")))
    def expire_execution(self, slot: int, cause: str) -> None:
        name = self.choose(slot)
        self.do(
            f"expire {cause}",
            lambda e: e.expire_execution(None, name, cause),
            lambda: self.oracle.expire_execution(name, cause),
        )

    @operation("purge", 1, some(ended), retention=st.sampled_from((0, HOUR, DAY)), batch=st.sampled_from((1, 20)))
    def trim(self, retention: int, batch: int) -> None:
        self.flush()
        ends = [row.ended for row in self.oracle.rows.values() if row.ended is not None]
        size = batch if len(set(ends)) == len(ends) else 20
        there = set(self.oracle.rows)
        self.do(
            "trim",
            lambda e: e.trim_retention(retention_ms=retention, batch_size=size),
            lambda: self.oracle.trim(retention, size),
        )
        for slot in range(5):
            # An id is not used again: its old handles would fit a new execution of the same name.
            self.lives[slot] += self.name(slot) in there - self.oracle.rows.keys()

    # -- workers -------------------------------------------------------------------------------------------------

    @operation("block", 2, space=SPACE, worker=WORKER, lanes=SERVED, able=ABLE, ttl=LEASE_MS, stranger=st.booleans())
    def register_worker(self, space: str, worker: Any, lanes: Any, able: Any, ttl: int, stranger: bool) -> None:
        by = "w9" if stranger else worker[0]
        self.alone(
            "register_worker",
            lambda e: e.register_worker(
                worker_id=by,
                worker_instance_id=worker[1],
                lanes=lanes,
                capabilities=able,
                liveness_ttl_ms=ttl,
                namespace=space,
            ),
            lambda: self.oracle.register_worker(space, worker[1], by, lanes, able, ttl),
        )

    @operation("block", 1, any_worker, space=SPACE, worker=WORKER, dead=st.booleans())
    def sign_of_life(self, space: str, worker: Any, dead: bool) -> None:
        given = {"worker_instance_id": worker[1], "namespace": space}
        if dead:
            self.do(
                "mark_worker_dead",
                lambda e: e.mark_worker_dead(**given, reason="gone"),
                lambda: self.oracle.mark_worker_dead(space, worker[1]),
            )
        else:
            self.do(
                "heartbeat_worker",
                lambda e: e.heartbeat_worker(**given),
                lambda: self.oracle.heartbeat_worker(space, worker[1]),
            )

    # -- looking -------------------------------------------------------------------------------------------------

    @operation("look", 1, lane=LANE, space=SPACE)
    def look(self, lane: str, space: str) -> None:
        """Lists and pages."""
        self.flush()
        looks = (
            lambda e: e.scan_eligible_executions(lane),
            lambda e: e.list_expired_leases(),
            lambda e: e.list_workers(namespace=space),
            lambda e: e.list_lanes(),
        )
        eligible, expired, workers, lanes = self.world.call(self.engine, looks)
        found = {
            "eligible": [str.__str__(each) for each in eligible],
            "expired": [
                (str.__str__(each.execution_id), each.attempt_index, each.lease_epoch) for each in expired.entries
            ],
            "workers": [
                (each.worker_instance_id, each.worker_id, each.lanes, each.capabilities, each.registered_at_ms)
                for each in workers.entries
            ],
            "lanes": list(lanes.lanes),
        }
        wanted = {
            "eligible": self.oracle.eligible(lane),
            "expired": self.oracle.expired_leases(),
            "workers": self.oracle.list_workers(space),
            "lanes": sorted(self.oracle.lanes),
        }
        self.expect(differences(found, wanted), "lists differ")

    @operation("look", 1, pick=PICK)
    def look_closer(self, pick: int) -> None:
        """One execution, as people see it."""
        self.flush()
        if not self.oracle.rows:
            return
        row = list(self.oracle.rows.values())[pick % len(self.oracle.rows)]
        looks = (
            lambda e: e.describe_execution(row.id),
            lambda e: e.read_execution_info(row.id),
            lambda e: e.get_execution_result(row.id),
            lambda e: e.read_stream(row.id, row.index),
            lambda e: e.read_summary(row.id, row.index),
        )
        described, info, result, stream, summary = self.world.call(self.engine, looks)
        lease = described.current_lease
        found = {
            "public": str(described.public_state),
            "consistent": info.state_vector.is_consistent(),
            "lease": lease and (lease.lease_epoch, lease.worker_instance_id, lease.expires_at, lease.attempt_index),
            "total": described.total_attempt_count,
            "tags": described.tags,
            "result": result,
            "frames": [frame.id for frame in stream.frames],
            "summary": summary and (summary.version, json.loads(summary.document_json)),
        }
        current = row.current
        wanted = {
            "public": {"running": "active"}.get(row.public, row.public),
            "consistent": True,
            "lease": (current.epoch, current.instance, current.expires, row.index) if current and row.leased else None,
            "total": row.total,
            "tags": row.tags,
            "result": row.result,
            "frames": [f"{moment}-{seq}" for moment, seq in row.frames.get(row.index, [])],
            "summary": row.summaries.get(row.index),
        }
        self.expect(differences(found, wanted), f"{row.id} looks different")
