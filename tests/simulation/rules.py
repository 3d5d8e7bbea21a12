"""The rules of the machine: every operation on one execution, with arguments from small domains."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from flowfabric.model.frames import BestEffortLive, Durable, DurableSummary, Frame
from flowfabric.model.handles import Handle, HandlePayload, decode
from flowfabric.model.ids import LeaseFence
from flowfabric.model.results import ResumeGrant, ResumeToken
from tests.simulation.machine import (
    ABLE,
    GRANT_MS,
    ITEM,
    LANE,
    LATER,
    LEASE_MS,
    MOMENT,
    PICK,
    PRIORITY,
    SLOTS,
    SPACE,
    WORKER,
    Machine,
    operation,
)
from tests.simulation.model import DAY, HOUR, WAITING, Row
from tests.simulation.oracle_control import BLOCKS
from tests.simulation.world import differences

TIMERS = (
    "lease_expiry",
    "delayed_promoter",
    "intake",
    "attempt_timeout",
    "execution_deadline",
    "unblock",
    "grant_sweep",
    "worker_registry_ttl_sweep",
)
FRAMES = ((Durable(), b"out"), (DurableSummary(), b'{"a":1,"b":null}'), (DurableSummary(), b"[1]"))
BEST_EFFORT = (BestEffortLive(ttl_ms=1_000, maxlen_floor=2, maxlen_ceiling=2), b"\xff\x00")
CLASS = st.sampled_from(("transient", "transient", "infra_crash", "permanent", "timeout", "cancelled", "novel"))
DETAIL = st.sampled_from(("", "", "net", "disk"))
TIMEOUT = st.sampled_from((None, None, 2_000))
DEADLINE = st.sampled_from((None, None, 5_000))
CAP = st.sampled_from((0, 0, None, 5))
LONG_GRANT_MS = st.sampled_from((500, 60_000, 60_000))
BACK = st.sampled_from((0, 0, 1))
NEAR = st.sampled_from((0, 0, 0, -1, 1))
PERCENT = st.sampled_from((None, 0, 50))
MESSAGE = st.sampled_from((None, "", "half"))
INSTANCE = st.sampled_from(("", "", "w1-a"))
EXPECTED = st.sampled_from((None, None, 0, 1))
REASON = st.sampled_from((*BLOCKS, "waiting_for_capable_worker", "boredom"))
TAG = st.sampled_from(("team.name", "cairn.instance_id"))
#: Which epoch a caller shows: the right one, the one before, the one after, or none.
EPOCH = st.sampled_from((0, 0, 0, -1, 1, None))
RETRY = st.sampled_from((None, {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 500}}))


def _running(row: Row, now: int) -> bool:
    return row.phase == "active"


def _waiting(row: Row, now: int) -> bool:
    return row.phase in WAITING


def _queued(row: Row, now: int) -> bool:
    return row.phase in WAITING and row.eligibility == "eligible_now"


def _promised(row: Row, now: int) -> bool:
    return row.eligibility == "pending_claim"


def _blocked(row: Row, now: int) -> bool:
    return row.eligibility.startswith("blocked_by")


def _interrupted(row: Row, now: int) -> bool:
    return row.phase in WAITING and row.attempt_state == "attempt_interrupted"


def _lost(row: Row, now: int) -> bool:
    return row.reclaimable(now)


def _released(row: Row, now: int) -> bool:
    """Begun before, and without a lease that lasts."""
    return bool(row.attempts) and not row.over and (not row.leased or row.reclaimable(now))


def _reclaim_granted(row: Row, now: int) -> bool:
    return any(grant.kind == "reclaim" for grant in row.grants)


def _ended(row: Row, now: int) -> bool:
    return row.over


def some(fits: Callable[[Row, int], bool]) -> Callable[[Any], bool]:
    """Whether some execution fits."""
    return lambda machine: any(fits(row, machine.oracle.now) for row in machine.oracle.rows.values())


def _any_handle(machine: Any) -> bool:
    return bool(machine.handles)


def _any_worker(machine: Any) -> bool:
    return bool(machine.oracle.workers)


class Model(Machine):
    """See ``machine.py``."""

    # -- how calls are made --------------------------------------------------------------------------------------

    @operation("how", 2)
    def other_engine(self) -> None:
        """As if another process went on."""
        self.flush()
        engines = self.world.engines
        self.engine = engines[(engines.index(self.engine) + 1) % len(engines)]

    @operation("how", 2, size=st.integers(2, 5))
    def together(self, size: int) -> None:
        """The next calls are made at the same moment."""
        self.flush()
        self.burst = size

    # -- creating and claiming -----------------------------------------------------------------------------------

    @operation("create", 2, item=ITEM)
    def create(self, item: dict[str, Any]) -> None:
        self.create_one(item)

    @operation("create", 1, items=st.lists(ITEM, min_size=1, max_size=3))
    def create_many(self, items: list[dict[str, Any]]) -> None:
        given = [self.arguments(item) for item in items]
        self.do("create_many", lambda e: e.create_executions(given), lambda: self.oracle.create_many(given))

    @operation("claim", 4, lane=LANE, able=ABLE, worker=WORKER, ttl=LEASE_MS, limit=st.sampled_from((1, 1, 2, 3)))
    def claim(self, lane: str, able: Any, worker: Any, ttl: int, limit: int) -> None:
        self.claim_lane(lane, able, worker, ttl, limit)

    @operation("claim", 4, some(_queued), lane=LANE, worker=WORKER, ttl=LEASE_MS)
    def claim_anything(self, lane: str, worker: Any, ttl: int) -> None:
        self.claim_lane(lane, ("eu", "gpu"), worker, ttl, 1)

    @operation("grant", 2, lane=LANE, able=ABLE, worker=WORKER, ttl=GRANT_MS)
    def claim_for_worker(self, lane: str, able: Any, worker: Any, ttl: int) -> None:
        self.do(
            "claim_for_worker",
            lambda e: e.claim_for_worker(
                lane_id=lane,
                worker_id=worker[0],
                worker_instance_id=worker[1],
                worker_capabilities=able,
                grant_ttl_ms=ttl,
            ),
            lambda: self.oracle.claim_for_worker(lane, *worker, able, ttl),
        )

    @operation("grant", 2, some(_queued), slot=SLOTS, able=ABLE, worker=WORKER, ttl=GRANT_MS)
    def issue_claim_grant(self, slot: int, able: Any, worker: Any, ttl: int) -> None:
        given = self.named(self.choose(slot, _queued), worker, worker_capabilities=able, grant_ttl_ms=ttl)
        self.do(
            "issue_claim_grant",
            lambda e: e.issue_claim_grant(**given),
            lambda: self.oracle.issue_claim_grant(given["execution_id"], *worker, able, ttl),
        )

    @operation(
        "grant",
        3,
        some(_promised),
        slot=SLOTS,
        worker=WORKER,
        ttl=LEASE_MS,
        timeout=TIMEOUT,
        deadline=DEADLINE,
    )
    def claim_execution(self, slot: int, worker: Any, ttl: int, timeout: int | None, deadline: int | None) -> None:
        until = self.later(deadline)
        given = self.leasing(
            self.choose(slot, _promised), worker, ttl, attempt_timeout_ms=timeout, execution_deadline_at=until
        )
        given["attempt_id"] = str(uuid.uuid4())
        self.do(
            "claim_execution",
            lambda e: e.claim_execution(**given),
            lambda: self.oracle.claim_execution(given["execution_id"], *worker, ttl, timeout, until),
        )

    @operation(
        "grant",
        2,
        some(_interrupted),
        slot=SLOTS,
        worker=WORKER,
        ttl=LEASE_MS,
        timeout=TIMEOUT,
    )
    def claim_resumed_execution(self, slot: int, worker: Any, ttl: int, timeout: int | None) -> None:
        given = self.leasing(self.choose(slot, _interrupted), worker, ttl, remaining_attempt_timeout_ms=timeout)
        self.do(
            "claim_resumed_execution",
            lambda e: e.claim_resumed_execution(**given),
            lambda: self.oracle.claim_resumed_execution(given["execution_id"], *worker, ttl, timeout),
        )

    @operation("grant", 1, some(_queued), slot=SLOTS, ttl=LEASE_MS)
    def issue_grant_and_claim(self, slot: int, ttl: int) -> None:
        name = self.choose(slot, _queued)
        self.do(
            "issue_grant_and_claim",
            lambda e: e.issue_grant_and_claim(execution_id=name, lane_id="red", lease_duration_ms=ttl),
            lambda: self.oracle.issue_grant_and_claim(name, ttl),
        )

    @operation("take", 2, some(_released), slot=SLOTS, worker=WORKER, ttl=LEASE_MS, lasts=st.sampled_from((1, 1, 1, 0)))
    def claim_from_resume_grant(self, slot: int, worker: Any, ttl: int, lasts: int) -> None:
        name, until = self.choose(slot, _released), self.oracle.now + lasts
        token = ResumeToken(ResumeGrant(name, name.partition(":")[0], "any", until, "green"), *worker, ttl)
        self.do(
            "claim_from_resume_grant",
            lambda e: e.claim_from_resume_grant(token),
            lambda: self.oracle.claim_from_resume_grant(name, *worker, ttl, until, "green"),
        )

    @operation("take", 4, some(_lost), slot=SLOTS, able=ABLE, worker=WORKER, ttl=LONG_GRANT_MS)
    def issue_reclaim_grant(self, slot: int, able: Any, worker: Any, ttl: int) -> None:
        given = self.named(self.choose(slot, _lost), worker, worker_capabilities=able, grant_ttl_ms=ttl)
        self.do(
            "issue_reclaim_grant",
            lambda e: e.issue_reclaim_grant(**given),
            lambda: self.oracle.issue_reclaim_grant(given["execution_id"], *worker, "red", able, ttl),
        )

    @operation("take", 6, some(_reclaim_granted), slot=SLOTS, worker=WORKER, ttl=LEASE_MS, cap=CAP)
    def reclaim_execution(self, slot: int, worker: Any, ttl: int, cap: int | None) -> None:
        given = self.leasing(self.choose(slot, _reclaim_granted), worker, ttl, attempt_id=str(uuid.uuid4()))
        given["max_reclaim_count"] = cap
        self.do(
            "reclaim_execution",
            lambda e: e.reclaim_execution(**given),
            lambda: self.oracle.reclaim_execution(given["execution_id"], *worker, "red", ttl, cap),
        )

    def named(self, name: str, worker: Any, **more: Any) -> dict[str, Any]:
        by = {"worker_id": worker[0], "worker_instance_id": worker[1], "lane_id": "red"}
        return {"execution_id": name, **by, **more}

    def leasing(self, name: str, worker: Any, ttl: int, **more: Any) -> dict[str, Any]:
        return self.named(name, worker, lease_id=str(uuid.uuid4()), lease_ttl_ms=ttl, **more)

    # -- holding and ending --------------------------------------------------------------------------------------

    @operation("hold", 1, _any_handle, pick=PICK, epoch=NEAR, index=BACK)
    def forge(self, pick: int, epoch: int, index: int) -> None:
        """A handle nobody was given."""
        handle, held = self.handle(pick)
        payload = decode(handle.opaque)[1]
        fields = {name: getattr(payload, name) for name in payload.__struct_fields__}
        fields |= {"lease_epoch": max(held.epoch + epoch, 0), "attempt_index": held.index + index}
        forged = Handle.of(handle.backend, handle.kind, HandlePayload(**fields))
        if (epoch, index) != (0, 0):
            self.handles.append((forged, held._replace(epoch=fields["lease_epoch"], index=fields["attempt_index"])))

    @operation("hold", 2, _any_handle, pick=PICK)
    def renew(self, pick: int) -> None:
        handle, held = self.handle(pick)
        self.do("renew", lambda e: e.renew(handle), lambda: self.oracle.renew(held))

    @operation(
        "hold",
        1,
        _any_handle,
        pick=PICK,
        percent=st.sampled_from((None, 0, 50)),
        message=st.sampled_from((None, "", "half")),
    )
    def progress(self, pick: int, percent: int | None, message: str | None) -> None:
        handle, held = self.handle(pick)
        self.do(
            "progress",
            lambda e: e.progress(handle, percent, message),
            lambda: self.oracle.make_progress(held, percent, message),
        )

    @operation("hold", 2, _any_handle, pick=PICK, frame=st.sampled_from((*FRAMES, FRAMES[0], BEST_EFFORT)))
    def append_frame(self, pick: int, frame: Any) -> None:
        handle, held = self.handle(pick)
        mode, payload = frame
        self.do(
            "append_frame",
            lambda e: e.append_frame(handle, Frame(payload, mode=mode)),
            lambda: self.oracle.append_frame(held, payload, mode.wire, 2),
        )

    @operation("end", 3, _any_handle, pick=PICK, payload=st.sampled_from((None, b"", b"one", b"two")))
    def complete(self, pick: int, payload: bytes | None) -> None:
        handle, held = self.handle(pick)
        self.do("complete", lambda e: e.complete(handle, payload), lambda: self.oracle.complete(held, payload), held)

    @operation("end", 4, _any_handle, pick=PICK, kind=CLASS, detail=DETAIL)
    def fail(self, pick: int, kind: str, detail: str) -> None:
        handle, held = self.handle(pick)
        self.do(
            "fail", lambda e: e.fail(handle, "no", kind, detail), lambda: self.oracle.fail(held, kind, detail), held
        )

    @operation("end", 2, _any_handle, pick=PICK, until=LATER)
    def delay(self, pick: int, until: int) -> None:
        handle, held = self.handle(pick)
        moment = self.oracle.now + until
        self.do("delay", lambda e: e.delay(handle, moment), lambda: self.oracle.delay(held, moment))

    @operation("end", 1, _any_handle, pick=PICK)
    def wait_children(self, pick: int) -> None:
        handle, held = self.handle(pick)
        self.do("wait_children", lambda e: e.wait_children(handle), lambda: self.oracle.wait_children(held))

    @operation("end", 1, _any_handle, pick=PICK, reason=st.sampled_from(("enough", "late")))
    def cancel(self, pick: int, reason: str) -> None:
        handle, held = self.handle(pick)
        self.do("cancel", lambda e: e.cancel(handle, reason), lambda: self.oracle.cancel(held, reason), held)

    # -- by id and fence -----------------------------------------------------------------------------------------

    def fence(self, name: str, epoch: int | None, back: int) -> tuple[dict[str, Any], tuple[str, int, int | None]]:
        """Arguments for the engine and for the oracle; without an epoch an operator overrides."""
        row = self.oracle.rows.get(name)
        index = max((row.index if row else 0) - back, 0)
        attempt = row.attempts.get(index) if row else None
        shown = None if epoch is None else max((attempt.epoch if attempt else 1) + epoch, 0)
        given: dict[str, Any] = {"execution_id": name, "attempt_index": index}
        if shown is None:
            given["source"] = "operator_override"
        else:
            given["fence"] = LeaseFence(str(uuid.uuid4()), shown, str(uuid.uuid4()))
        return given, (name, index, shown)

    @operation(
        "fence",
        1,
        some(_running),
        slot=SLOTS,
        epoch=NEAR,
        back=BACK,
        ttl=LEASE_MS,
    )
    def renew_lease(self, slot: int, epoch: int, back: int, ttl: int) -> None:
        given, asked = self.fence(self.choose(slot, _running), epoch, back)
        self.do(
            "renew_lease",
            lambda e: e.renew_lease(**given, lease_ttl_ms=ttl),
            lambda: self.oracle.renew_lease(*asked, ttl),
        )

    @operation("fence", 1, some(_running), slot=SLOTS, epoch=EPOCH, back=BACK)
    def complete_execution(self, slot: int, epoch: int | None, back: int) -> None:
        given, asked = self.fence(self.choose(slot, _running), epoch, back)
        self.do(
            "complete_execution",
            lambda e: e.complete_execution(**given, result_payload=b"by id"),
            lambda: self.oracle.complete_execution(*asked, b"by id"),
        )

    @operation("fence", 1, some(_running), slot=SLOTS, epoch=EPOCH, back=BACK, policy=RETRY)
    def fail_execution(self, slot: int, epoch: int | None, back: int, policy: dict[str, Any] | None) -> None:
        given, asked = self.fence(self.choose(slot, _running), epoch, back)
        text = "" if policy is None else json.dumps(policy)
        self.do(
            "fail_execution",
            lambda e: e.fail_execution(**given, failure_reason="no", failure_category="c", retry_policy_json=text),
            lambda: self.oracle.fail_execution(*asked, "c", policy),
        )

    @operation("fence", 1, some(_running), slot=SLOTS, epoch=EPOCH, until=LATER)
    def delay_execution(self, slot: int, epoch: int | None, until: int) -> None:
        given, asked = self.fence(self.choose(slot, _running), epoch, 0)
        moment = self.oracle.now + until
        self.do(
            "delay_execution",
            lambda e: e.delay_execution(**given, delay_until=moment),
            lambda: self.oracle.delay_execution(*asked, moment),
        )

    # -- operators -----------------------------------------------------------------------------------------------

    @operation("operator", 1, slot=SLOTS, source=st.sampled_from(("operator_override", "lease_holder")), epoch=EPOCH)
    def cancel_execution(self, slot: int, source: str, epoch: int | None) -> None:
        name, _, shown = self.fence(self.choose(slot, _running), epoch, 0)[1]
        self.do(
            "cancel_execution",
            lambda e: e.cancel_execution(execution_id=name, reason="stop", source=source, lease_epoch=shown),
            lambda: self.oracle.cancel_execution(name, "stop", source, shown),
        )

    @operation(
        "operator",
        2,
        some(_running),
        slot=SLOTS,
        instance=st.sampled_from(("", "", "w1-a")),
        expected=st.sampled_from((None, None, 0, 1)),
    )
    def revoke_lease(self, slot: int, instance: str, expected: int | None) -> None:
        name, index, epoch = self.fence(self.choose(slot, _running), expected, 0)[1]
        lease_id = None if epoch is None else f"{self.oracle.shown}:{name.rpartition(':')[2]}:{index}:{epoch}"
        self.do(
            "revoke_lease",
            lambda e: e.revoke_lease(execution_id=name, worker_instance_id=instance, expected_lease_id=lease_id),
            lambda: self.oracle.revoke_lease(name, instance, lease_id),
        )

    @operation("operator", 2, some(_queued), slot=SLOTS, priority=PRIORITY)
    def change_priority(self, slot: int, priority: int) -> None:
        name = self.choose(slot, _queued)
        self.do(
            "change_priority",
            lambda e: e.change_priority(execution_id=name, new_priority=priority),
            lambda: self.oracle.change_priority(name, priority),
        )

    @operation("operator", 3, some(_ended), slot=SLOTS)
    def replay_execution(self, slot: int) -> None:
        name = self.choose(slot, _ended)
        self.do(
            "replay_execution",
            lambda e: e.replay_execution(execution_id=name),
            lambda: self.oracle.replay_execution(name),
        )

    @operation(
        "block",
        2,
        some(_waiting),
        slot=SLOTS,
        reason=REASON,
    )
    def block_execution(self, slot: int, reason: str) -> None:
        name = self.choose(slot, _waiting)
        self.do(
            "block_execution",
            lambda e: e.block_execution_for_admission(execution_id=name, reason=reason),
            lambda: self.oracle.block_execution(name, reason),
        )

    @operation("block", 2, some(_blocked), slot=SLOTS, expected=st.sampled_from(("", "", "paused_by_operator")))
    def unblock_execution(self, slot: int, expected: str) -> None:
        name = self.choose(slot, _blocked)
        self.do(
            "unblock_execution",
            lambda e: e.unblock_execution(execution_id=name, expected_blocking_reason=expected),
            lambda: self.oracle.unblock_execution(name, expected),
        )

    @operation(
        "operator",
        1,
        slot=SLOTS,
        key=st.sampled_from(("team.name", "cairn.instance_id")),
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
        self.flush()
        moment = min((due for due in self.oracle.due() if due > self.oracle.now), default=self.oracle.now + 1) - early
        self.oracle.now = self.world.clock.advance(max(moment - self.oracle.now, 0))
        self.compare(True)

    @operation("take", 3, some(_running), early=st.sampled_from((0, 0, 0, 1)))
    def until_lease_ends(self, early: int) -> None:
        """To the moment when the next lease runs out, whatever else falls due before."""
        self.flush()
        ends = [row.current.expires for row in self.oracle.rows.values() if row.current and row.current.expires]
        ahead = min((end - early for end in ends if end - early > self.oracle.now), default=self.oracle.now)
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

    @operation("time", 3, some(_lost), slot=SLOTS)
    def mark_lease_expired(self, slot: int) -> None:
        name = self.choose(slot, _lost)
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

    @operation("purge", 1, some(_ended), retention=st.sampled_from((0, HOUR, DAY)), batch=st.sampled_from((1, 20)))
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

    @operation("block", 2, space=SPACE, worker=WORKER, lane=LANE, able=ABLE, ttl=LEASE_MS, stranger=st.booleans())
    def register_worker(self, space: str, worker: Any, lane: str, able: Any, ttl: int, stranger: bool) -> None:
        by = "w9" if stranger else worker[0]
        self.alone(
            "register_worker",
            lambda e: e.register_worker(
                worker_id=by,
                worker_instance_id=worker[1],
                lanes=[lane],
                capabilities=able,
                liveness_ttl_ms=ttl,
                namespace=space,
            ),
            lambda: self.oracle.register_worker(space, worker[1], by, [lane], able, ttl),
        )

    @operation("block", 1, _any_worker, space=SPACE, worker=WORKER, dead=st.booleans())
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
