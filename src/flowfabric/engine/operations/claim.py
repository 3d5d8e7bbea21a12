"""Claiming work: the next executions of a lane, or of several, now or as soon as there are some."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from flowfabric.ascending import ascending_bytes
from flowfabric.core.admission.admit import Unfinished
from flowfabric.core.executions.operator import RevokeLease
from flowfabric.core.leases.claim import Claim, ClaimFromLanes, LanesClaimed, reissued
from flowfabric.engine.base import EngineBase
from flowfabric.engine.checks import values
from flowfabric.engine.waiters import FOUND, Where
from flowfabric.model.handles import Handle, shown_lease
from flowfabric.model.limits import MAX_CLAIM
from flowfabric.model.operations.executions import ClaimPolicy, Granted
from flowfabric.stores.questions import ListLeases

#: How often waiting claims look again although nothing woke them: one of those who wait for the same.
SAFETY_POLL_S = 1.0
#: Leases of one worker that are looked through for those of a claim, and how long the key of a claim has to be.
MAX_LEASES = 10_000
MIN_KEY = 16
_MAX_WAIT_MS = 24 * 3600 * 1000


class Claiming(EngineBase):
    """The part of the engine that hands work out."""

    def __init__(self, store: Any, **options: Any) -> None:
        super().__init__(store, **options)
        self._rotations = Rotations()

    async def claim(
        self,
        lane: str,
        capabilities: Iterable[str] | None = None,
        policy: ClaimPolicy | None = None,
        namespaces: Iterable[str] | None = None,
    ) -> Handle | None:
        """The next execution of a lane this worker can run, or ``None``; waits up to ``policy.max_wait``. With
        ``namespaces`` only executions of those are taken."""
        handles = await self.claim_many(lane, capabilities, policy, 1, namespaces)
        return handles[0] if handles else None

    async def claim_many(
        self,
        lane: str,
        capabilities: Iterable[str] | None = None,
        policy: ClaimPolicy | None = None,
        limit: int = 1,
        namespaces: Iterable[str] | None = None,
    ) -> list[Handle]:
        """Up to ``limit`` executions in claim order, in one transaction."""
        policy = values.claim_policy(policy)
        lane_id = values.lane(lane, "lane")
        able = values.capabilities(capabilities)
        limit = values.integer(limit, "limit", 1, MAX_CLAIM)
        worker_id = values.text(policy.worker_id, "worker_id", empty=False)
        instance = values.text(policy.worker_instance_id, "worker_instance_id", empty=False)
        ttl_ms = values.ttl_ms(policy.lease_ttl_ms, "lease_ttl_ms")
        wait_ms = _milliseconds(policy.max_wait)
        within = values.namespaces(namespaces)
        entropy = _entropy(policy, limit)
        if policy.again and (known := await self._handed_out(instance, ttl_ms, limit, entropy(), within)):
            return known

        def command() -> Claim:
            return Claim(lane_id, able, worker_id, instance, ttl_ms, limit, entropy(), within)

        if not wait_ms:
            handles: list[Handle] = await self._claim_timed(command, lane_id)
            return handles
        return await self._claim_waiting(
            ((lane_id,), able, within), lambda: self._claim_timed(command, lane_id), wait_ms
        )

    async def _claim_timed(self, command: Callable[[], Any], lane_id: str) -> Any:
        if self.observer is None:
            return await self._claim_now(command)
        began = time.perf_counter()
        answer = await self._claim_now(command)
        if answer if isinstance(answer, list) else isinstance(answer, Granted):
            self.observer.claimed((lane_id,), time.perf_counter() - began)
        return answer

    async def _claim_now(self, command: Callable[[], Any]) -> Any:
        """The answer to a claim, which may have to make its way past many that are not admitted."""
        answer = await self._submit(command(), self._give_back)
        while type(answer) is Unfinished:
            answer = await self._submit(command(), self._give_back)
        return answer

    async def claim_from_lanes(
        self,
        lanes: Mapping[str, int],
        capabilities: Iterable[str] | None = None,
        policy: ClaimPolicy | None = None,
        limit: int = 1,
        namespaces: Iterable[str] | None = None,
    ) -> list[Handle]:
        """Up to ``limit`` executions of several lanes, in one transaction. A lane is served as often as its weight
        says among those that have work, so that none starves; waits up to ``policy.max_wait`` for all of them."""
        policy = values.claim_policy(policy)
        weighted = values.weighted_lanes(lanes)
        able = values.capabilities(capabilities)
        limit = values.integer(limit, "limit", 1, MAX_CLAIM)
        worker_id = values.text(policy.worker_id, "worker_id", empty=False)
        instance = values.text(policy.worker_instance_id, "worker_instance_id", empty=False)
        ttl_ms = values.ttl_ms(policy.lease_ttl_ms, "lease_ttl_ms")
        wait_ms = _milliseconds(policy.max_wait)
        within = values.namespaces(namespaces)
        entropy = _entropy(policy, limit)
        if policy.again and (known := await self._handed_out(instance, ttl_ms, limit, entropy(), within)):
            return known
        rotation = self._rotations.of(weighted)

        async def once() -> LanesClaimed:
            began = rotation.begin()
            answer: LanesClaimed | None = None
            try:
                answer = await self._submit(
                    ClaimFromLanes(weighted, began[0], able, worker_id, instance, ttl_ms, limit, entropy(), within),
                    self._give_back,
                )
            finally:
                rotation.end(began, answer)
            return answer

        async def look() -> list[Handle]:
            began = time.perf_counter()
            answer = await once()
            while answer.unfinished and not answer.handles:
                answer = await once()
            if self.observer is not None and answer.handles:
                served = {handle.payload.lane_id for handle in answer.handles}
                self.observer.claimed(sorted(served), time.perf_counter() - began)
            return answer.handles

        if not wait_ms:
            return await look()
        where = (tuple(lane_id for lane_id, _ in weighted), able, within)
        return await self._claim_waiting(where, look, wait_ms)

    async def _handed_out(
        self, instance: str, ttl_ms: int, limit: int, entropy: bytes, namespaces: frozenset[str] | None
    ) -> list[Handle]:
        """What the claim with these random bytes was given, as far as its leases stand."""
        now = await self.now_ms()
        leases = await self._ask(ListLeases(instance, now, MAX_LEASES))
        return reissued(leases, entropy, limit, instance, ttl_ms, namespaces, self.store.tag, now)

    async def _claim_waiting(
        self, where: Where, look: Callable[[], Awaitable[list[Handle]]], wait_ms: int
    ) -> list[Handle]:
        lane_ids = where[0]
        self._listen()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        hearsay = False
        while True:
            waiter = self._lanes.park(*where)
            try:
                handles = await look()
                remaining = deadline - loop.time()
                if handles and (hearsay or waiter.future.done()):
                    # There may be more than what this claim was woken for, or was served with when it was woken:
                    # others must look at that.
                    self._stir(lane_ids)
                if handles or remaining <= 0:
                    return handles
                if waiter.counted_on:
                    continue  # somebody else was quicker, and nobody will wake this one any more
                self._lanes.rounds.keep(SAFETY_POLL_S)
                await asyncio.wait((waiter.future,), timeout=remaining)
                hearsay = waiter.hearsay
            except asyncio.CancelledError:
                if waiter.future.done() or waiter.counted_on:
                    # The wake-up meant for this claim must not be lost with it.
                    self._stir(lane_ids)
                raise
            finally:
                self._lanes.leave(waiter)

    def _give_back(self, answer: Any) -> None:
        """A claim whose caller has stopped waiting leaves no lease behind: its work goes back to the queue."""
        handles = answer.handles if isinstance(answer, LanesClaimed) else answer
        for handle in handles if isinstance(handles, list) else ():
            held = handle.payload
            shown = shown_lease(self.store.shown, held)
            self._go_on(
                RevokeLease(
                    held.execution_id, shown, held.worker_instance_id, "its caller has stopped waiting", held.lease_id
                )
            )

    def _stir(self, lane_ids: tuple[str, ...]) -> None:
        for lane_id in lane_ids:
            self._lanes.stir(lane_id, FOUND)


def _entropy(policy: ClaimPolicy, limit: int) -> Callable[[], bytes]:
    """The ids of a claim's leases, as bytes: the same ones for the same key."""
    again, key = values.flag(policy.again, "again"), values.optional_text(policy.key, "key")
    if key is None:
        if again:
            raise values.invalid("again: pass the key of the claim whose answer was lost")
        return lambda: ascending_bytes(2 * limit)
    if len(key) < MIN_KEY:
        raise values.invalid(f"key: expected at least {MIN_KEY} random characters")
    digest = hashlib.shake_256(f"{policy.worker_instance_id}\0{key}".encode())
    return lambda: digest.digest(32 * limit)


def _milliseconds(wait: Any) -> int:
    if wait is None:
        return 0
    if hasattr(wait, "total_seconds"):
        wait = int(wait.total_seconds() * 1000)
    return values.integer(wait, "max_wait", 0, _MAX_WAIT_MS)


# -- whose turn it is among the lanes that one engine serves together ------------------------------------------------

#: Sets of lanes whose credits an engine remembers.
MAX_ROTATIONS = 1_000


class Rotation:
    """The credits of some lanes. Claims that are under way are counted as if they found what they look for, so that
    those who come meanwhile look elsewhere; what they really found replaces the guess."""

    def __init__(self, lanes: tuple[tuple[str, int], ...]) -> None:
        self._weights = [weight for _, weight in lanes]
        self._credits = [0] * len(lanes)

    def begin(self) -> tuple[tuple[int, ...], int]:
        """The credits to claim with, and the lane that is guessed to be served."""
        credits = tuple(self._credits)
        guess = max(range(len(credits)), key=lambda n: (credits[n] + self._weights[n], -n))
        self._turn(guess, 1)
        return credits, guess

    def end(self, began: tuple[tuple[int, ...], int], answer: LanesClaimed | None) -> None:
        """What came of it; ``None`` if nothing did."""
        credits, guess = began
        self._turn(guess, -1)
        if answer is not None:
            for n, (before, after) in enumerate(zip(credits, answer.credits, strict=True)):
                self._credits[n] += after - before

    def _turn(self, served: int, sign: int) -> None:
        for n, weight in enumerate(self._weights):
            self._credits[n] += sign * weight
        self._credits[served] -= sign * sum(self._weights)


class Rotations:
    """Rotations by lanes and weights; the ones used longest ago are forgotten."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str, int], ...], Rotation] = {}

    def of(self, lanes: tuple[tuple[str, int], ...]) -> Rotation:
        """The rotation of these lanes."""
        found = self._known.pop(lanes, None) or Rotation(lanes)
        self._known[lanes] = found
        if len(self._known) > MAX_ROTATIONS:
            del self._known[next(iter(self._known))]
        return found


def claimed_under(
    engine: Claiming, policy: ClaimPolicy, limit: int, namespaces: Iterable[str] | None
) -> Awaitable[list[Handle]]:
    """What a claim with this policy and its key was given, as far as its leases stand; nothing is claimed."""
    policy = values.claim_policy(policy)
    limit = values.integer(limit, "limit", 1, MAX_CLAIM)
    instance = values.text(policy.worker_instance_id, "worker_instance_id", empty=False)
    ttl_ms = values.ttl_ms(policy.lease_ttl_ms, "lease_ttl_ms")
    entropy = _entropy(replace(policy, again=True), limit)
    return engine._handed_out(instance, ttl_ms, limit, entropy(), values.namespaces(namespaces))
