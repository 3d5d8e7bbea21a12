"""Commands for batches, made by the engine's own front door so that they are what callers really send.

Random bytes are replaced by constant ones, so that the handle of a claim can be guessed by commands of the same batch.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any
from unittest import mock

from hypothesis import strategies as st

from flowfabric import ClaimPolicy
from flowfabric.core.context import uuid_text
from flowfabric.core.executions.due import PromoteSubmitted
from flowfabric.core.executions.retention import TrimExecution
from flowfabric.core.lanes.workers import SweepWorker
from flowfabric.core.leases.grants import SweepGrants
from flowfabric.engine import Engine
from flowfabric.model.handles import Handle, HandleKind, HandlePayload
from flowfabric.model.ids import LeaseFence
from flowfabric.model.operations.executions import ResumeGrant, ResumeToken
from flowfabric.model.streams.frames import BestEffortLive, Durable, DurableSummary, Frame
from flowfabric.stores.memory import MemoryStore
from tests.contract.probe import START_MS
from tests.simulation.domains import ABLE, LANE, POLICIES, PRIORITY, SPACE

ENTROPY = b"\x5a"
ATTEMPT = uuid_text(ENTROPY * 16)
NAMES = tuple(f"{{fp:0}}:{uuid.UUID(int=9 - n, version=4)}" for n in range(4))
NAME = st.sampled_from((*NAMES[:3], *NAMES[:3], NAMES[3]))
WORKER = st.sampled_from((("w1", "w1-a"), ("w1", "w1-a"), ("w2", "w2-a")))
TTL = st.sampled_from((1_000, 5_000))
EPOCH = st.sampled_from((1, 1, 1, 2, 2, 3))
INDEX = st.sampled_from((0, 0, 0, 1))
LATER = st.sampled_from((-1, 0, 1_000))
MODES = (Durable(), Durable(), DurableSummary(), BestEffortLive(ttl_ms=1_000, maxlen_floor=2, maxlen_ceiling=2))
REASONS = ("waiting_for_budget", "waiting_for_capable_worker", "paused_by_operator", "boredom")


class _Captured(Exception):
    pass


class _Recorder(Engine):
    """An engine that only makes commands."""

    async def _submit(self, command: Any, abandoned: Any = None) -> Any:
        raise _Captured(command)


_recorder = _Recorder(MemoryStore(clock=lambda: START_MS))


def _entropy(count: int = 1) -> bytes:
    return ENTROPY * 16 * count


def captured(call: Callable[[Engine], Any]) -> Any:
    """The command that a call would submit."""
    with (
        mock.patch("os.urandom", lambda size: ENTROPY * size),
        mock.patch("flowfabric.engine.operations.claim.ascending_bytes", _entropy),
        mock.patch("flowfabric.engine.operations.leases.ascending_bytes", _entropy),
        mock.patch("flowfabric.engine.operations.leases._jitter", return_value=1.0),
    ):
        try:
            call(_recorder).send(None)
        except _Captured as caught:
            return caught.args[0]
    raise AssertionError("the call submitted nothing")


def _by(worker: tuple[str, str]) -> dict[str, str]:
    return {"worker_id": worker[0], "worker_instance_id": worker[1]}


def made_handle(name: str, index: int, epoch: int, ttl: int) -> Handle:
    payload = HandlePayload(name, index, ATTEMPT, ATTEMPT, epoch, ttl, "red", "w1-a")
    return Handle.of(MemoryStore.tag, HandleKind.FRESH, payload)


HANDLE = st.builds(made_handle, NAME, INDEX, EPOCH, TTL)
ITEM = st.fixed_dictionaries(
    {
        "execution_id": NAME,
        "namespace": SPACE,
        "lane_id": LANE,
        "priority": PRIORITY,
        "idempotency_key": st.sampled_from((None, None, "k1", "k2")),
        "policy": st.sampled_from(POLICIES),
        "delay_until": st.sampled_from((None, None, None, START_MS + 1_000)),
        "tags": st.sampled_from((None, {"cairn.instance_id": "one"})),
    }
)


def leased(name: str, worker: tuple[str, str], ttl: int) -> dict[str, Any]:
    return {"execution_id": name, "lane_id": "red", "lease_id": ATTEMPT, "lease_ttl_ms": ttl, **_by(worker)}


def granted(name: str, worker: tuple[str, str], able: Any, ttl: int) -> dict[str, Any]:
    return {"execution_id": name, "lane_id": "red", "worker_capabilities": able, "grant_ttl_ms": ttl, **_by(worker)}


def fenced(name: str, index: int, epoch: int | None) -> dict[str, Any]:
    given: dict[str, Any] = {"execution_id": name, "attempt_index": index}
    if epoch is None:
        return {**given, "source": "operator_override"}
    return {**given, "fence": LeaseFence(ATTEMPT, epoch, ATTEMPT)}


def resume_token(name: str, worker: tuple[str, str], ttl: int) -> ResumeToken:
    return ResumeToken(ResumeGrant(name, "{fp:0}", "any", START_MS * 2, "red"), *worker, ttl)


FENCED = st.builds(fenced, NAME, INDEX, st.one_of(EPOCH, st.none()))
GRANTED = st.builds(granted, NAME, WORKER, ABLE, TTL)
LEASED = st.builds(leased, NAME, WORKER, TTL)


def _made(make: Callable[..., Any], *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Commands captured from a call with drawn arguments."""
    return st.builds(lambda *drawn: captured(lambda e: make(e, *drawn)), *arguments)


_CREATE = _made(lambda e, item: e.create_execution(**item), ITEM)
_CLAIM = _made(
    lambda e, lane, able, worker, ttl, limit: e.claim_many(lane, able, ClaimPolicy(*worker, ttl), limit),
    *(LANE, ABLE, WORKER, TTL, st.sampled_from((1, 1, 2, 5))),
)
_COMPLETE = _made(lambda e, handle, payload: e.complete(handle, payload), HANDLE, st.sampled_from((None, b"r")))
_CANCEL = _made(
    lambda e, name, source, epoch: e.cancel_execution(execution_id=name, source=source, lease_epoch=epoch),
    *(NAME, st.sampled_from(("operator_override", "lease_holder")), st.one_of(EPOCH, st.none())),
)
_FRAME = _made(
    lambda e, handle, mode: e.append_frame(handle, Frame(b'{"a":1}', mode=mode)), HANDLE, st.sampled_from(MODES)
)
_PRIORITY = _made(lambda e, name, priority: e.change_priority(execution_id=name, new_priority=priority), NAME, PRIORITY)
#: What makes the others possible.
COMMON = (_CREATE, _CLAIM)
_KINDS: tuple[st.SearchStrategy[Any], ...] = (
    _CREATE,
    _made(lambda e, items: e.create_executions(items), st.lists(ITEM, min_size=1, max_size=3)),
    _CLAIM,
    _COMPLETE,
    _CANCEL,
    _FRAME,
    _PRIORITY,
    _made(lambda e, handle: e.renew(handle), HANDLE),
    _made(lambda e, handle, percent: e.progress(handle, percent), HANDLE, st.sampled_from((None, 10, 20))),
    _made(lambda e, handle, kind: e.fail(handle, "no", kind), HANDLE, st.sampled_from(("transient", "permanent"))),
    _made(lambda e, handle, offset: e.delay(handle, START_MS + offset), HANDLE, LATER),
    _made(lambda e, handle: e.wait_children(handle), HANDLE),
    _made(lambda e, handle: e.cancel(handle, "enough"), HANDLE),
    _made(lambda e, given: e.complete_execution(**given), FENCED),
    _made(
        lambda e, given, policy: e.fail_execution(**given, failure_reason="no", retry_policy_json=policy),
        *(FENCED, st.sampled_from(("", json.dumps({"max_retries": 1})))),
    ),
    _made(lambda e, lane, given: e.claim_for_worker(**{**_without_id(given), "lane_id": lane}), LANE, GRANTED),
    _made(lambda e, given: e.issue_claim_grant(**given), GRANTED),
    _made(lambda e, given: e.claim_execution(**given, attempt_id=ATTEMPT), LEASED),
    _made(lambda e, given: e.claim_resumed_execution(**given), LEASED),
    _made(
        lambda e, name, ttl: e.issue_grant_and_claim(execution_id=name, lane_id="red", lease_duration_ms=ttl), NAME, TTL
    ),
    _made(lambda e, name, worker, ttl: e.claim_from_resume_grant(resume_token(name, worker, ttl)), NAME, WORKER, TTL),
    _made(lambda e, given: e.issue_reclaim_grant(**given), GRANTED),
    _made(lambda e, given: e.reclaim_execution(**given, attempt_id=ATTEMPT), LEASED),
    _made(lambda e, name: e.revoke_lease(execution_id=name), NAME),
    _made(lambda e, name: e.replay_execution(execution_id=name), NAME),
    _made(
        lambda e, name, reason: e.block_execution_for_admission(execution_id=name, reason=reason),
        *(NAME, st.sampled_from(REASONS)),
    ),
    _made(lambda e, name: e.unblock_execution(execution_id=name), NAME),
    _made(
        lambda e, name, key, value: e.set_execution_tag(name, key, value),
        *(NAME, st.sampled_from(("team.name", "cairn.instance_id")), st.sampled_from(("a", "b"))),
    ),
    _made(lambda e, name: e.mark_lease_expired_if_due(None, name), NAME),
    _made(
        lambda e, name, cause: e.expire_execution(None, name, cause),
        *(NAME, st.sampled_from(("attempt_timeout", "execution_deadline"))),
    ),
    _made(lambda e, name: e.promote_delayed(execution_id=name), NAME),
    _made(
        lambda e, worker, lane, able: e.register_worker(**_by(worker), lanes=[lane], capabilities=able),
        *(WORKER, LANE, ABLE),
    ),
    _made(lambda e, worker: e.heartbeat_worker(worker_instance_id=worker[1]), WORKER),
    _made(lambda e, worker: e.mark_worker_dead(worker_instance_id=worker[1]), WORKER),
    st.builds(PromoteSubmitted, NAME),
    st.builds(SweepGrants, NAME),
    st.builds(TrimExecution, NAME, st.just(0)),
    st.builds(SweepWorker, st.just("default"), st.sampled_from(("w1-a", "w2-a"))),
)


def commands(min_size: int, max_size: int) -> st.SearchStrategy[list[Any]]:
    """Commands of few kinds, so that those that can meet do."""
    kinds = st.lists(st.sampled_from(_KINDS), min_size=3, max_size=6)
    return kinds.flatmap(lambda some: st.lists(st.one_of(*some, *COMMON), min_size=min_size, max_size=max_size))


def _without_id(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name != "execution_id"}
