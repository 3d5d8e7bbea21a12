"""What workers do: create, claim, hold, end, and take over."""

from __future__ import annotations

import uuid
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from flowfabric.model.handles import Handle, decode
from flowfabric.model.operations.executions import ResumeGrant, ResumeToken
from flowfabric.model.streams.frames import Frame
from tests.simulation.domains import (
    ABLE,
    BACK,
    CAP,
    CLASS,
    DEADLINE,
    DETAIL,
    FRAME,
    GRANT_MS,
    ITEM,
    LANE,
    LATER,
    LEASE_MS,
    LONG_GRANT_MS,
    MESSAGE,
    NEAR,
    OUTCOME,
    PERCENT,
    PICK,
    SLOTS,
    TIMEOUT,
    WORKER,
    any_handle,
    grantable,
    interrupted,
    lost,
    operation,
    promised,
    queued,
    reclaim_granted,
    released,
    running,
    some,
)
from tests.simulation.machine import Machine
from tests.simulation.model import NO_LEASE


class Work(Machine):
    """Operations of workers."""

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

    @operation("claim", 4, some(queued), lane=LANE, worker=WORKER, ttl=LEASE_MS)
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

    @operation("grant", 3, some(grantable), slot=SLOTS, able=ABLE, worker=WORKER, ttl=GRANT_MS)
    def issue_claim_grant(self, slot: int, able: Any, worker: Any, ttl: int) -> None:
        given = self.named(self.choose(slot, grantable), worker, worker_capabilities=able, grant_ttl_ms=ttl)
        self.do(
            "issue_claim_grant",
            lambda e: e.issue_claim_grant(**given),
            lambda: self.oracle.issue_claim_grant(given["execution_id"], *worker, able, ttl),
        )

    @operation(
        "grant",
        3,
        some(promised),
        slot=SLOTS,
        worker=WORKER,
        ttl=LEASE_MS,
        timeout=TIMEOUT,
        deadline=DEADLINE,
    )
    def claim_execution(self, slot: int, worker: Any, ttl: int, timeout: int | None, deadline: int | None) -> None:
        until = self.later(deadline)
        given = self.leasing(
            self.choose(slot, promised), worker, ttl, attempt_timeout_ms=timeout, execution_deadline_at=until
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
        some(interrupted),
        slot=SLOTS,
        worker=WORKER,
        ttl=LEASE_MS,
        timeout=TIMEOUT,
    )
    def claim_resumed_execution(self, slot: int, worker: Any, ttl: int, timeout: int | None) -> None:
        given = self.leasing(self.choose(slot, interrupted), worker, ttl, remaining_attempt_timeout_ms=timeout)
        self.do(
            "claim_resumed_execution",
            lambda e: e.claim_resumed_execution(**given),
            lambda: self.oracle.claim_resumed_execution(given["execution_id"], *worker, ttl, timeout),
        )

    @operation("grant", 1, some(queued), slot=SLOTS, ttl=LEASE_MS)
    def issue_grant_and_claim(self, slot: int, ttl: int) -> None:
        name = self.choose(slot, queued)
        self.do(
            "issue_grant_and_claim",
            lambda e: e.issue_grant_and_claim(execution_id=name, lane_id="red", lease_duration_ms=ttl),
            lambda: self.oracle.issue_grant_and_claim(name, ttl),
        )

    @operation("take", 2, some(released), slot=SLOTS, worker=WORKER, ttl=LEASE_MS, lasts=st.sampled_from((1, 1, 1, 0)))
    def claim_from_resume_grant(self, slot: int, worker: Any, ttl: int, lasts: int) -> None:
        name, until = self.choose(slot, released), self.oracle.now + lasts
        token = ResumeToken(ResumeGrant(name, name.partition(":")[0], "any", until, "green"), *worker, ttl)
        self.do(
            "claim_from_resume_grant",
            lambda e: e.claim_from_resume_grant(token),
            lambda: self.oracle.claim_from_resume_grant(name, *worker, ttl, until, "green"),
        )

    @operation("take", 4, some(lost), slot=SLOTS, able=ABLE, worker=WORKER, ttl=LONG_GRANT_MS)
    def issue_reclaim_grant(self, slot: int, able: Any, worker: Any, ttl: int) -> None:
        given = self.named(self.choose(slot, lost), worker, worker_capabilities=able, grant_ttl_ms=ttl)
        self.do(
            "issue_reclaim_grant",
            lambda e: e.issue_reclaim_grant(**given),
            lambda: self.oracle.issue_reclaim_grant(given["execution_id"], *worker, "red", able, ttl),
        )

    @operation("take", 6, some(reclaim_granted), slot=SLOTS, worker=WORKER, ttl=LEASE_MS, cap=CAP)
    def reclaim_execution(self, slot: int, worker: Any, ttl: int, cap: int | None) -> None:
        given = self.leasing(self.choose(slot, reclaim_granted), worker, ttl, attempt_id=str(uuid.uuid4()))
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

    @operation("hold", 1, any_handle, pick=PICK, epoch=NEAR, index=BACK)
    def forge(self, pick: int, epoch: int, index: int) -> None:
        """A handle of another epoch or attempt that nobody was given; or, if neither is another, the handle of a lease
        that the store has lost in a fail-over, after which it granted the epoch again."""
        handle, held = self.handle(pick)
        fields = {"lease_epoch": max(held.epoch + epoch, 0), "attempt_index": held.index + index}
        lease = held.lease
        if (epoch, index) == (0, 0):
            lease, fields["lease_id"] = NO_LEASE, str(uuid.uuid4())
        forged = Handle.of(handle.backend, handle.kind, replace(decode(handle.opaque)[1], **fields))
        told = held._replace(epoch=fields["lease_epoch"], index=fields["attempt_index"], lease=lease)
        self.handles.append((forged, told))

    @operation("hold", 2, any_handle, pick=PICK)
    def renew(self, pick: int) -> None:
        handle, held = self.handle(pick)
        self.do("renew", lambda e: e.renew(handle), lambda: self.oracle.renew(held))

    @operation(
        "hold",
        1,
        any_handle,
        pick=PICK,
        percent=PERCENT,
        message=MESSAGE,
    )
    def progress(self, pick: int, percent: int | None, message: str | None) -> None:
        handle, held = self.handle(pick)
        self.do(
            "progress",
            lambda e: e.progress(handle, percent, message),
            lambda: self.oracle.make_progress(held, percent, message),
        )

    @operation("hold", 2, any_handle, pick=PICK, frame=FRAME)
    def append_frame(self, pick: int, frame: Any) -> None:
        if not self.handles:
            return
        handle, held = self.handle(pick)
        mode, payload = frame
        self.do(
            "append_frame",
            lambda e: e.append_frame(handle, Frame(payload, mode=mode)),
            lambda: self.oracle.append_frame(held, payload, mode.wire, 2),
        )

    @operation("hold", 1, some(running), pick=PICK, frames=st.lists(FRAME, min_size=2, max_size=4))
    def chatter(self, pick: int, frames: list[Any]) -> None:
        """Several frames to one stream."""
        for frame in frames:
            self.append_frame(2 * pick, frame)

    @operation("end", 3, some(queued), lane=LANE, ends=st.lists(OUTCOME, min_size=1, max_size=3))
    def work(self, lane: str, ends: list[str]) -> None:
        """A worker that takes one execution after the other and ends it."""
        for end in ends:
            self.flush()
            known = len(self.handles)
            self.claim_lane(lane, ("eu", "gpu"), ("w2", "w2-a"), 5_000, 1)
            if len(self.handles) == known:
                return
            if end == "complete":
                self.complete(0, b"done")
            else:
                self.fail(0, end, "")

    @operation("end", 3, any_handle, pick=PICK, payload=st.sampled_from((None, b"", b"one", b"two")))
    def complete(self, pick: int, payload: bytes | None) -> None:
        handle, held = self.handle(pick)
        self.do("complete", lambda e: e.complete(handle, payload), lambda: self.oracle.complete(held, payload), held)

    @operation("end", 4, any_handle, pick=PICK, kind=CLASS, detail=DETAIL)
    def fail(self, pick: int, kind: str, detail: str) -> None:
        handle, held = self.handle(pick)
        self.do(
            "fail", lambda e: e.fail(handle, "no", kind, detail), lambda: self.oracle.fail(held, kind, detail), held
        )

    @operation("end", 2, any_handle, pick=PICK, until=LATER)
    def delay(self, pick: int, until: int) -> None:
        handle, held = self.handle(pick)
        moment = self.oracle.now + until
        self.do("delay", lambda e: e.delay(handle, moment), lambda: self.oracle.delay(held, moment))

    @operation("end", 1, any_handle, pick=PICK)
    def wait_children(self, pick: int) -> None:
        handle, held = self.handle(pick)
        self.do("wait_children", lambda e: e.wait_children(handle), lambda: self.oracle.wait_children(held))

    @operation("end", 1, any_handle, pick=PICK, reason=st.sampled_from(("enough", "late")))
    def cancel(self, pick: int, reason: str) -> None:
        handle, held = self.handle(pick)
        self.do("cancel", lambda e: e.cancel(handle, reason), lambda: self.oracle.cancel(held, reason), held)

    @operation("end", 3, lambda machine: bool(machine.terminal), back=st.integers(0, 3))
    def repeat(self, back: int) -> None:
        """As a caller does whose answer was lost."""
        if self.terminal:
            self.do(*self.terminal[-1 - back % len(self.terminal)])
