"""Suspending, signalling and going on."""

from __future__ import annotations

import uuid
from typing import Any

from hypothesis import strategies as st

from flowfabric import conditions as public
from flowfabric.model.decisions import Get, Select
from flowfabric.model.errors import EngineError
from flowfabric.model.operations.suspension import Fresh, ResumePolicy, SuspendArgs, UsePending
from flowfabric.model.records.executions import Signal, Suspension, Waitpoint
from flowfabric.stores.sql.schema import split_wire
from tests.simulation.coordination import conditions
from tests.simulation.coordination.domains import BEHAVIOR, CONDITION, MEMBER, SECRETS, TOKEN, WAIT_REASON, operation
from tests.simulation.coordination.machine import Machine
from tests.simulation.domains import LANE, queued, some
from tests.simulation.model import Refused, Row
from tests.simulation.world import differences

WAITPOINT = st.integers(0, 9)
SOURCE = st.sampled_from((("user", "ann"), ("user", "bob"), ("user", "ann"), ("bot", "ann")))
RESUME_DELAY = st.sampled_from((0, 0, 0, 1_000))


def condition_of(condition: conditions.Condition) -> Any:
    """The Python type of a condition."""
    kind = condition[0]
    if kind == "single":
        return public.Single(condition[1], matcher_of(condition[2]))
    if kind == "all":
        return public.AllOf(tuple(map(condition_of, condition[1])))
    if kind == "count":
        _, n, what, keys, name = condition
        return public.Count(n, public.CountKind(what), keys, None if name is None else matcher_of(name))
    return public.OperatorOnly() if kind == "operator" else public.TimeoutOnly()


def matcher_of(name: str | None) -> Any:
    return public.Wildcard() if name is None else public.ByName(name)


def suspended(row: Row, now: int) -> bool:
    return row.phase == "suspended"


def went_on(row: Row, now: int) -> bool:
    return row.phase == "suspended" or row.attempt_state == "attempt_interrupted"


def any_waitpoint(machine: Any) -> bool:
    return bool(machine.oracle.waitpoints)


def holding(machine: Any) -> bool:
    return any(machine.oracle.holds(held) for _, held in machine.handles)


class Signals(Machine):
    """Operations on suspended executions."""

    def start(self, items: Any, shape: Any, policies: Any, refs: int) -> None:
        self.minted = 0
        self.waits: dict[str, Any] = {}
        self.do(
            "seed_key",
            lambda e: e.seed_waitpoint_hmac_secret(kid="k1", secret_hex=SECRETS["k1"].hex()),
            lambda: self.oracle.seed_key("k1", SECRETS["k1"]),
        )
        super().start(items, shape, policies, refs)
        if self.theme == "signals":
            self.flush()
            self.claim_lane("red", ("eu", "gpu"), ("w1", "w1-a"), 60_000, 2)

    def mint(self) -> str:
        self.minted += 1
        return str(uuid.UUID(int=self.minted << 64, version=4))

    # -- suspending ----------------------------------------------------------------------------------------------

    @operation("wait", 3, holding, pick=WAITPOINT, key=st.sampled_from("ab"), lasts=st.sampled_from((1_000, 60_000)))
    def create_waitpoint(self, pick: int, key: str, lasts: int) -> None:
        if not self.handles:
            return
        handle, held = self.handle(pick)
        made: list[str] = []

        async def call(engine: Any) -> Any:
            answer = await engine.create_waitpoint(handle, key, lasts)
            made.append(answer.waitpoint_id)
            return answer

        self.do(
            "create_waitpoint",
            call,
            lambda: self.oracle.create_waitpoint(held, made[0] if made else "", key, lasts),
        )

    @operation("wait", 5, some(queued), lane=LANE, behavior=BEHAVIOR, condition=CONDITION)
    def park(self, lane: str, behavior: str, condition: Any) -> None:
        """A worker that claims something and suspends it."""
        self.flush()
        known = len(self.handles)
        self.claim_lane(lane, ("eu", "gpu"), ("w2", "w2-a"), 60_000, 1)
        if len(self.handles) > known:
            self.suspend(0, condition, 5_000, behavior, "waiting_for_signal", None, None, False, False)

    @operation("wait", 3, some(went_on), lane=LANE)
    def go_on(self, lane: str) -> None:
        """A worker that claims something and looks at what woke it."""
        self.flush()
        self.claim_lane(lane, ("eu", "gpu"), ("w2", "w2-a"), 60_000, 2)
        self.observe(0)

    @operation(
        "wait",
        8,
        holding,
        pick=WAITPOINT,
        condition=CONDITION,
        timeout=st.sampled_from((None, 1_000, 5_000)),
        behavior=BEHAVIOR,
        reason=WAIT_REASON,
        delay=st.sampled_from((None, None, 500)),
        key=st.sampled_from((None, None, None, "once")),
        early=st.sampled_from((True, True, False)),
        again=st.sampled_from((*[False] * 9, True)),
    )
    def suspend(
        self,
        pick: int,
        condition: Any,
        timeout: int | None,
        behavior: str,
        reason: str,
        delay: int | None,
        key: str | None,
        early: bool,
        again: bool,
    ) -> None:
        """``early`` takes a waitpoint that was made before; ``again`` one that cannot be new."""
        self.flush()
        if not self.handles:
            return
        handle, held = self.handle(pick)
        partition = split_wire(held.execution_id)[0]
        owned = [each for each in self.oracle.owned(held.execution_id) if each.state == "pending"] if early else []
        pending = owned[-1] if owned else None
        keys = conditions.all_keys(condition) or ["a"]
        fresh = [(self.mint(), each) for each in keys if pending is None or each != pending.key]
        near = [each.id for each in self.oracle.waitpoints.values() if split_wire(each.execution_id)[0] == partition]
        if again and near and fresh:
            fresh[-1] = (near[0], fresh[-1][1])
        timeout = 1_000 if condition == ("timeout",) and timeout is None else timeout
        given = {
            "id": self.mint(),
            "fresh": fresh,
            "pending": pending.id if pending else None,
            "condition": condition,
            "timeout": self.later(timeout),
            "behavior": behavior,
            "delay": delay,
            "reason": reason,
            "key": key,
        }
        first = [UsePending(pending.id)] if pending else []
        args = SuspendArgs(
            waitpoints=[*first, *(Fresh(*each) for each in fresh)],
            resume_condition=condition_of(condition),
            reason_code=reason,
            resume_policy=ResumePolicy(resume_delay_ms=delay),
            timeout_at=given["timeout"],
            timeout_behavior=behavior,
            suspension_id=given["id"],
            idempotency_key=key,
        )
        self.do("suspend", lambda e: e.suspend(handle, args), lambda: self.oracle.suspend(held, given))

    # -- signals -------------------------------------------------------------------------------------------------

    def waitpoint(self, pick: int) -> tuple[str, str, str]:
        """An execution, one of its waitpoints and the token; rather one that is open, now and then one of nobody."""
        every = list(self.oracle.waitpoints.values())
        found = [each for each in every if each.open] or every
        if pick == 9 or not found:
            return self.choose(0), str(uuid.UUID(int=1 << 100, version=4)), f"k1:{'0' * 64}"
        chosen = (every if pick > 6 else found)[-1 - pick % len(every if pick > 6 else found)]
        return chosen.execution_id, chosen.id, chosen.token

    def spoilt(self, token: str, wrong: str) -> str:
        digest = token.partition(":")[2]
        others = [each.token for each in self.oracle.waitpoints.values() if each.token != token]
        return {
            "": token,
            "missing": "",
            "prefix": token[:-2],
            "longer": token + "0",
            "flipped": token[:-1] + ("0" if token[-1] != "0" else "1"),
            "other": others[-1] if others else token,
            "foreign key": f"k9:{digest}",
        }[wrong]

    @operation(
        "signal",
        10,
        any_waitpoint,
        pick=WAITPOINT,
        wrong=TOKEN,
        name=st.sampled_from(("go", "go", "stop")),
        source=SOURCE,
        key=st.sampled_from((None, None, None, "x", "y")),
        ttl=st.sampled_from((86_400_000, 1_000, 0)),
        again=st.sampled_from((*[False] * 6, True)),
        delay=RESUME_DELAY,
        most=st.sampled_from((0, 10_000, 10_000, 2)),
    )
    def signal(
        self,
        pick: int,
        wrong: str,
        name: str,
        source: tuple[str, str],
        key: str | None,
        ttl: int,
        again: bool,
        delay: int,
        most: int,
    ) -> None:
        self.flush()
        if not self.oracle.waitpoints and pick < 8:
            return
        execution_id, waitpoint_id, token = self.waitpoint(pick)
        token = self.spoilt(token, wrong)
        known = [each for each in self.oracle.signals.get(execution_id, []) if each.key != "__timeout__"]
        signal_id = known[-1].id if again and known else self.mint()
        given = {"id": signal_id, "name": name, "source": source, "key": key, "ttl": ttl, "delay": delay, "most": most}
        details: list[str] = []

        async def call(engine: Any) -> Any:
            try:
                return await engine.deliver_signal(
                    execution_id=execution_id,
                    waitpoint_id=waitpoint_id,
                    waitpoint_token=token,
                    signal_id=signal_id,
                    signal_name=name,
                    source_type=source[0],
                    source_identity=source[1],
                    idempotency_key=key,
                    dedup_ttl_ms=ttl,
                    resume_delay_ms=delay,
                    max_signals_per_execution=most,
                )
            except EngineError as error:
                details.append(str(error.detail))
                raise

        self.do(
            "deliver_signal",
            call,
            lambda: self.why(lambda: self.oracle.deliver_signal(execution_id, waitpoint_id, token, given), details),
        )

    def why(self, model: Any, details: list[str]) -> Any:
        """What the oracle says; a bad token must be refused for the same reason."""
        try:
            return model()
        except Refused as error:
            kind, _, why = error.kind.partition(" ")
            if why:
                self.expect([] if details == [why] else [f"{details}, not {why}"], "refused for another reason")
            raise Refused(error.family, kind) from None

    @operation("signal", 1, any_waitpoint, pick=WAITPOINT, lane=st.sampled_from(("red", "red", "blue")))
    def approve(self, pick: int, lane: str) -> None:
        self.flush()
        execution_id, waitpoint_id, _ = self.waitpoint(pick)
        made: list[str] = []
        details: list[str] = []

        async def call(engine: Any) -> Any:
            try:
                answer = await engine.deliver_approval_signal(
                    execution_id=execution_id,
                    lane_id=lane,
                    waitpoint_id=waitpoint_id,
                    signal_name="go",
                    idempotency_suffix="1",
                )
            except EngineError as error:
                details.append(str(error.detail))
                raise
            made.append(getattr(answer, "signal_id", ""))
            return answer

        def model() -> Any:
            given = {"key": "go 1", "ttl": 86_400_000, "most": 10_000, "id": made[0] if made else ""}
            return self.oracle.approve(execution_id, waitpoint_id, lane, given)

        self.do("deliver_approval_signal", call, lambda: self.why(model, details))

    # -- going on ------------------------------------------------------------------------------------------------

    @operation("wait", 2, some(went_on), slot=MEMBER, delay=RESUME_DELAY)
    def resume(self, slot: int, delay: int) -> None:
        name = self.choose(slot, went_on)
        self.do(
            "resume_execution",
            lambda e: e.resume_execution(execution_id=name, resume_delay_ms=delay),
            lambda: self.oracle.resume_execution(name, delay),
        )

    @operation("wait", 1, any_waitpoint, pick=WAITPOINT)
    def close_waitpoint(self, pick: int) -> None:
        self.flush()
        execution_id, waitpoint_id, _ = self.waitpoint(pick)
        self.do(
            "close_waitpoint",
            lambda e: e.close_waitpoint(execution_id=execution_id, waitpoint_id=waitpoint_id),
            lambda: self.oracle.close_waitpoint(execution_id, waitpoint_id, "proactive_close"),
        )

    @operation("wait", 3, some(suspended), early=st.sampled_from((0, 0, 0, 1)), runs=st.booleans())
    def until_timeout(self, early: int, runs: bool) -> None:
        """To the moment when the next suspension has waited long enough."""
        found = [each.timeout for each in self.oracle.suspensions.values() if each.timeout and each.over is None]
        self.jump(found, early)
        if runs:
            self.run_timer("suspension_timeout")

    @operation("wait", 2, any_waitpoint)
    def run_waits(self) -> None:
        for timer in ("suspension_timeout", "pending_wp_expiry"):
            self.run_timer(timer)

    @operation("wait", 1, holding, pick=WAITPOINT)
    def observe(self, pick: int) -> None:
        """What woke the holder."""
        if not self.handles:
            return
        handle, held = self.handle(pick)

        async def call(engine: Any) -> Any:
            found = await engine.observe_signals(handle)
            return [each.signal_name if each.signal_category == "timeout" else each.signal_id for each in found]

        self.alone("observe_signals", call, lambda: self.oracle.observe(held))

    # -- keys ----------------------------------------------------------------------------------------------------

    @operation(
        "signal",
        1,
        kid=st.sampled_from(tuple(SECRETS)),
        wrong=st.sampled_from((False, False, False, True)),
        grace=st.sampled_from((0, 1_000, 60_000, 60_000, 60_000)),
    )
    def rotate(self, kid: str, wrong: bool, grace: int) -> None:
        secret = b"?" * 32 if wrong and kid in self.oracle.keys else SECRETS[kid]

        async def call(engine: Any) -> Any:
            found = await engine.rotate_waitpoint_hmac_secret_all(
                new_kid=kid, new_secret_hex=secret.hex(), grace_ms=grace
            )
            assert [each.partition for each in found] == [0]
            return found[0].result

        self.do("rotate", call, lambda: self.oracle.rotate_key(kid, secret, grace))

    @operation("signal", 1)
    def look_at_keys(self) -> None:
        self.flush()
        (found,) = self.world.call(self.engine, [lambda e: e.list_waitpoint_hmac_kids()])
        shown = (found.current_kid, sorted((each.kid, each.expires_at_ms) for each in found.verifying))
        current, former = self.oracle.kids()
        self.expect(differences(shown, (current, former)), "keys differ")

    # -- comparing -----------------------------------------------------------------------------------------------

    def compare_waits(self, refused: bool) -> None:
        rows = self.world.run(self.wait_rows())
        found = {each: picture_of_waits(*found) for each, found in rows.items()}
        wanted = {each: self.waits_of_oracle(each) for each in self.oracle.rows}
        self.expect(differences(found, wanted), "waits differ")
        if refused:
            self.expect([] if rows == self.waits else ["something changed"], "I15: a refusal changed a wait")
        self.waits = rows
        # I27: who is suspended waits under an open suspension, and nobody else does.
        for each, (suspension, _, _) in rows.items():
            waiting = suspension is not None and suspension.closed_at_ms is None
            phase = self.before[each][0].lifecycle_phase
            self.expect([] if waiting == (phase == "suspended") else [f"{each} is {phase}"], "I27")

    async def wait_rows(self) -> dict[str, Any]:
        needs: list[Any] = []
        for each in self.oracle.rows:
            owner = split_wire(each)
            needs += [
                Get(Suspension, owner),
                *(Select(kind, ("partition", "uuid"), owner) for kind in (Waitpoint, Signal)),
            ]
        view = await self.world.engines[0]._view(*needs)
        found = {}
        for each in self.oracle.rows:
            partition, uuid_text = split_wire(each)
            rows = [view.select(kind, partition=partition, uuid=uuid_text) for kind in (Waitpoint, Signal)]
            found[each] = (view.get(Suspension, (partition, uuid_text)), *rows)
        return found

    def waits_of_oracle(self, execution_id: str) -> dict[str, Any]:
        suspension = self.oracle.suspensions.get(execution_id)
        return {
            "suspension": suspension
            and (
                suspension.id,
                suspension.since,
                suspension.timeout,
                suspension.behavior,
                suspension.reason,
                suspension.over,
                suspension.index,
            ),
            "waitpoints": {
                each.id: (
                    each.key,
                    each.state,
                    each.token,
                    each.expires if each.state == "pending" else None,
                    each.why,
                    each.signals,
                )
                for each in self.oracle.owned(execution_id)
            },
            "signals": sorted(
                (each.id, each.key, each.name, *each.source, each.accepted, each.effect)
                for each in self.oracle.signals.get(execution_id, [])
            ),
        }


def picture_of_waits(suspension: Any, waitpoints: Any, signals: Any) -> dict[str, Any]:
    return {
        "suspension": suspension
        and (
            suspension.suspension_id,
            suspension.suspended_at_ms,
            suspension.timeout_at_ms,
            suspension.timeout_behavior,
            suspension.reason_code,
            suspension.close_reason,
            suspension.attempt_index,
        ),
        "waitpoints": {
            each.waitpoint_id: (
                each.waitpoint_key,
                each.state,
                each.token,
                each.expires_at_ms if each.state == "pending" else None,
                each.close_reason,
                each.signal_count,
            )
            for each in waitpoints
        },
        "signals": sorted(
            (
                "timeout" if each.signal_category == "timeout" else each.signal_id,
                each.waitpoint_key,
                each.signal_name,
                each.source_type,
                each.source_identity,
                each.accepted_at_ms,
                each.effect,
            )
            for each in signals
        ),
    }
