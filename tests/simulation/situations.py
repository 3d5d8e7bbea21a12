"""Every situation an execution can be in, how to get there, and one command of every kind to meet it with."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from flowfabric import ClaimPolicy
from flowfabric.core.executions.due import PromoteSubmitted
from flowfabric.core.executions.retention import TrimExecution
from flowfabric.core.leases.grants import SweepGrants
from flowfabric.engine.transact import run_batch
from flowfabric.model.decisions import Get
from flowfabric.model.errors import EngineError
from flowfabric.model.records.executions import Execution
from flowfabric.model.streams.frames import BestEffortLive, Durable, DurableSummary, Frame
from tests.contract.probe import START_MS
from tests.simulation.commands import ATTEMPT, NAMES, captured, fenced, granted, leased, made_handle, resume_token
from tests.simulation.world import World

ONE, OTHER = NAMES[0], NAMES[1]
HOLDER = ("w1", "w1-a")
POLICY = ClaimPolicy(*HOLDER, 1_000)
RETRY_LATER = {"retry_policy": {"max_retries": 2, "backoff": {"type": "fixed", "delay_ms": 1_000}}}
TIMED = {"timeout_policy": {"attempt_timeout_ms": 500, "execution_deadline_ms": 4_000}, **RETRY_LATER}
CAPPED = {"max_reclaim_count": 0}
NEEDY = {"routing_requirements": {"required_capabilities": ["gpu"]}}


def _create(**more: Any) -> Any:
    return captured(lambda e: e.create_execution(**{"execution_id": ONE, "lane_id": "red", **more}))


def _claim(limit: int = 1) -> Any:
    return captured(lambda e: e.claim_many("red", ("gpu",), POLICY, limit))


def _handle(epoch: int = 1, index: int = 0) -> Any:
    return made_handle(ONE, index, epoch, 1_000)


_GRANT = captured(lambda e: e.issue_claim_grant(**granted(ONE, HOLDER, ("gpu",), 1_000)))
_MARK = captured(lambda e: e.mark_lease_expired_if_due(None, ONE))
_RECLAIM_GRANT = captured(lambda e: e.issue_reclaim_grant(**granted(ONE, HOLDER, ("gpu",), 5_000)))
_COMPLETE = captured(lambda e: e.complete(_handle(), b"r"))
_LIVE = BestEffortLive(ttl_ms=1_000, maxlen_floor=1, maxlen_ceiling=1)
_FAIL = captured(lambda e: e.fail(_handle(), "no"))

#: Commands to run one by one; a number lets so many milliseconds pass.
SITUATIONS: dict[str, list[Any]] = {
    "nothing": [],
    "submitted": [_create()],
    "bound": [_create(idempotency_key="k1")],
    "needy": [_create(policy=NEEDY, priority=5)],
    "runnable": [_create(), PromoteSubmitted(ONE)],
    "two of them": [_create(), captured(lambda e: e.create_execution(execution_id=OTHER, lane_id="red", priority=5))],
    "delayed": [_create(delay_until=START_MS + 1_000)],
    "delay over": [_create(delay_until=START_MS + 1_000), 1_000],
    "promised": [_create(), _GRANT],
    "promise over": [_create(), _GRANT, 1_000],
    "blocked": [_create(), captured(lambda e: e.block_route(execution_id=ONE))],
    "running": [_create(), _claim()],
    "running with output": [_create(), _claim(), captured(lambda e: e.append_frame(_handle(), Frame(b"{}")))],
    "lease over": [_create(), _claim(), 1_000],
    "lease over, capped": [_create(policy=CAPPED), _claim(), 1_000],
    "timed out": [_create(policy=TIMED), _claim(), 600],
    "deadline over": [_create(policy=TIMED), _claim(), 5_000],
    "marked as lost": [_create(), _claim(), 1_000, _MARK],
    "take-over granted": [_create(), _claim(), 1_000, _RECLAIM_GRANT],
    "taken over": [_create(), _claim(), 1_000, _RECLAIM_GRANT, captured(
        lambda e: e.reclaim_execution(**leased(ONE, HOLDER, 1_000), attempt_id=ATTEMPT)
    )],
    "requeued": [_create(), _claim(), 3_000, _MARK],
    "interrupted, promised": [_create(), _claim(), 3_000, _MARK, _GRANT],
    "stepped back": [_create(), _claim(), captured(lambda e: e.delay(_handle(), START_MS + 1_000))],
    "retry due": [_create(), _claim(), _FAIL],
    "retry later": [_create(policy=RETRY_LATER), _claim(), _FAIL],
    "second attempt": [_create(), _claim(), _FAIL, _claim()],
    "completed": [_create(), _claim(), _COMPLETE],
    "failed": [_create(), _claim(), captured(lambda e: e.fail(_handle(), "no", "permanent"))],
    "cancelled": [_create(), captured(lambda e: e.cancel_execution(execution_id=ONE))],
    "cancelled by its holder": [_create(), _claim(), captured(lambda e: e.cancel(_handle()))],
    "replayed": [_create(), _claim(), _COMPLETE, captured(lambda e: e.replay_execution(execution_id=ONE))],
}  # fmt: skip


def enter(world: World, situation: str) -> None:
    """Bring a fresh world into a situation."""
    for step in SITUATIONS[situation]:
        if isinstance(step, int):
            world.clock.advance(step)
        else:
            run_batch_on(world, [step])


def run_batch_on(world: World, batch: list[Any]) -> list[Any]:
    """Answers of one batch; errors in a form that can be compared."""
    engine = world.engines[0]
    outcome = world.run(world.store.run(lambda: run_batch(engine._settings, batch)))
    return [_comparable(answer) for answer in outcome.answers]


def _comparable(answer: Any) -> Any:
    if isinstance(answer, EngineError):
        return (type(answer), {name: value for name, value in vars(answer).items() if not name.startswith("__")})
    return answer


def position(world: World) -> tuple[int, int]:
    """Attempt index and epoch that the execution is at."""
    view = world.run(world.engines[0]._view(Get(Execution, ONE)))
    execution = view.execution(ONE)
    if execution is None:
        return 0, 1
    attempt = view.attempt(ONE, execution.attempt_index)
    return execution.attempt_index, attempt.lease_epoch if attempt else execution.epoch_floor


@cache
def meetings(index: int, epoch: int) -> dict[str, Any]:
    """One command of every kind, by name. What a holder does comes with the current handle and with the next one."""
    late = START_MS + 60_000
    found: dict[str, Any] = {
        "create": _create(priority=7),
        "create with a key": _create(idempotency_key="k1", policy=TIMED),
        "create another with the key": captured(
            lambda e: e.create_execution(execution_id=OTHER, lane_id="red", idempotency_key="k1")
        ),
        "create two": captured(
            lambda e: e.create_executions(
                [
                    {"execution_id": ONE, "lane_id": "red"},
                    {"execution_id": ONE, "lane_id": "blue", "idempotency_key": "k1"},
                ]
            )
        ),
        "claim": _claim(),
        "claim many": _claim(3),
        "claim without capabilities": captured(lambda e: e.claim_many("red", (), POLICY, 1)),
        "claim for worker": captured(
            lambda e: e.claim_for_worker(lane_id="red", worker_id="w2", worker_instance_id="w2-a", grant_ttl_ms=500)
        ),
        "issue claim grant": _GRANT,
        "claim execution": captured(lambda e: e.claim_execution(**leased(ONE, HOLDER, 1_000), attempt_id=ATTEMPT)),
        "claim resumed": captured(lambda e: e.claim_resumed_execution(**leased(ONE, HOLDER, 1_000))),
        "operator claim": captured(
            lambda e: e.issue_grant_and_claim(execution_id=ONE, lane_id="red", lease_duration_ms=1_000)
        ),
        "resume grant": captured(lambda e: e.claim_from_resume_grant(resume_token(ONE, HOLDER, 1_000))),
        "issue reclaim grant": _RECLAIM_GRANT,
        "reclaim": captured(lambda e: e.reclaim_execution(**leased(ONE, HOLDER, 1_000), attempt_id=ATTEMPT)),
        "cancel": captured(lambda e: e.cancel_execution(execution_id=ONE)),
        "revoke": captured(lambda e: e.revoke_lease(execution_id=ONE)),
        "change priority": captured(lambda e: e.change_priority(execution_id=ONE, new_priority=9)),
        "replay": captured(lambda e: e.replay_execution(execution_id=ONE)),
        "block": captured(lambda e: e.block_execution_for_admission(execution_id=ONE, reason="paused_by_operator")),
        "unblock": captured(lambda e: e.unblock_execution(execution_id=ONE)),
        "tag": captured(lambda e: e.set_execution_tag(ONE, "cairn.instance_id", "a")),
        "promote": PromoteSubmitted(ONE),
        "promote delayed": captured(lambda e: e.promote_delayed(execution_id=ONE)),
        "mark lease": _MARK,
        "attempt timeout": captured(lambda e: e.expire_execution(None, ONE, "attempt_timeout")),
        "deadline": captured(lambda e: e.expire_execution(None, ONE, "execution_deadline")),
        "sweep grants": SweepGrants(ONE),
        "purge": TrimExecution(ONE, 0),
        "override complete": captured(lambda e: e.complete_execution(**fenced(ONE, index, None))),
        "fail by id": captured(
            lambda e: e.fail_execution(
                **fenced(ONE, index, epoch), failure_reason="no", retry_policy_json=json.dumps({"max_retries": 1})
            )
        ),
    }
    for label, at in (("", epoch), (" next", epoch + 1)):
        handle = made_handle(ONE, index, at, 1_000)
        found |= {
            f"renew{label}": captured(lambda e, h=handle: e.renew(h)),
            f"progress{label}": captured(lambda e, h=handle: e.progress(h, 10)),
            f"frame{label}": captured(lambda e, h=handle: e.append_frame(h, Frame(b'{"a":1}', mode=Durable()))),
            f"summary{label}": captured(
                lambda e, h=handle: e.append_frame(h, Frame(b'{"a":1}', mode=DurableSummary()))
            ),
            f"live frame{label}": captured(lambda e, h=handle: e.append_frame(h, Frame(b"{}", mode=_LIVE))),
            f"complete{label}": captured(lambda e, h=handle: e.complete(h, b"r")),
            f"fail{label}": captured(lambda e, h=handle: e.fail(h, "no")),
            f"fail for good{label}": captured(lambda e, h=handle: e.fail(h, "no", "permanent")),
            f"delay{label}": captured(lambda e, h=handle: e.delay(h, late)),
            f"wait children{label}": captured(lambda e, h=handle: e.wait_children(h)),
            f"holder cancels{label}": captured(lambda e, h=handle: e.cancel(h, "enough")),
        }
    return found
