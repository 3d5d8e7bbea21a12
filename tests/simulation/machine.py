"""Random operations on an engine and on the oracle, side by side.

Domains are small so that operations meet: few lanes, few executions, few workers. Handles are never thrown away, so
most of them are stale. Time stands still until a rule moves it, sometimes far. Now and then several calls are gathered
and made at the same moment, so that they share a batch; on stores that last, two engines take turns.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import note, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from flowfabric import ClaimPolicy
from flowfabric.core.invariants import executions
from flowfabric.model.handles import Handle
from tests.simulation.domains import GROUPS, ITEM, LANES, NEED_HANDLES, OPERATIONS, SLOT_COUNT
from tests.simulation.model import Held, Refused, Row
from tests.simulation.oracle.oracle import Oracle
from tests.simulation.recount import recount
from tests.simulation.world import (
    Rows,
    World,
    differences,
    picture_of_event,
    picture_of_model,
    picture_of_rows,
    plain,
)

#: The families of errors an answer may be.
FAMILIES = frozenset(
    (
        "NotFound",
        "Validation",
        "Contention",
        "Conflict",
        "State",
        "Bug",
        "Transport",
        "Unavailable",
        "ResourceExhausted",
    )
)


class Disagreement(AssertionError):
    """Engine and oracle differ, or a promise is broken."""


class Machine(RuleBasedStateMachine):
    """The common part: calling both sides and comparing everything. Rules are added by ``rules.py``."""

    #: Set by whoever runs the machine.
    world: World
    #: How often each operation got each kind of answer.
    seen: Counter[tuple[str, str]]
    steps: int
    #: Something differs already: nothing more is to be learnt from this example.
    failed = False

    @initialize(
        grace=st.sampled_from((0, 0, 2_000)),
        items=st.tuples(ITEM, ITEM, ITEM),
        claims=st.booleans(),
        focus=st.lists(st.sampled_from(GROUPS), max_size=3, unique=True),
    )
    def begin(self, grace: int, items: tuple[dict[str, Any], ...], claims: bool, focus: list[str]) -> None:
        self.world.reset(grace)
        self.engine = self.world.engines[0]
        self.oracle = Oracle(self.world.store.shown, self.world.clock.now_ms, grace)
        self.handles: list[tuple[Handle, Held]] = []
        self.lives = Counter[int]()
        self.before: dict[str, Rows] = {}
        self.leases: dict[int, str | None] = {}
        self.log: list[Any] = []
        self.answers: dict[tuple[str, Held], Any] = {}
        self.waiting: list[tuple[str, Callable[[Any], Any], Callable[[], Any], Held | None]] = []
        self.burst = 1
        self.terminal: list[tuple[str, Callable[[Any], Any], Callable[[], Any], Held]] = []
        # What an example is about is done more often in it.
        self.menu = [each for each in OPERATIONS for _ in range(each.weight * (4 if each.group in focus else 1))]
        for slot, item in enumerate(items):
            self.create_one({**item, "slot": slot})
        for lane in LANES if claims else ():
            self.claim_lane(lane, ("eu", "gpu"), ("w1", "w1-a"), 5_000, 2)

    @rule(data=st.data())
    def step(self, data: Any) -> None:
        """One of the operations that have something to work on; every now and then just any."""
        whole = len(self.menu)
        number = data.draw(st.integers(0, whole + whole // 5))
        if number < whole:
            ready = [each for each in self.menu if each.ready(self)]
            chosen = ready[number * len(ready) // whole]
        else:
            chosen = self.menu[(number - whole) * 5 % whole]
            if chosen.group in NEED_HANDLES and not self.handles:
                return
        arguments = data.draw(chosen.arguments)
        note(f"{chosen.name}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})")
        getattr(self, chosen.name)(**arguments)

    def teardown(self) -> None:
        if hasattr(self, "oracle") and not self.failed:
            self.flush()
            self.check_all()

    # -- names ---------------------------------------------------------------------------------------------------

    def name(self, slot: int) -> str:
        """The execution of a slot; one that was purged leaves its slot to another."""
        bare = uuid.UUID(int=(7 - slot) * 10**6 + self.lives[slot], version=4)
        partition = 0 if self.world.label == "sqlite" else (5, 40, 7, 11, 100, 3)[slot]
        return f"{{fp:{partition}}}:{bare}"

    def choose(self, slot: int, fits: Callable[[Row, int], bool] = lambda row, now: True) -> str:
        """An execution, rather one that fits than one that does not, and now and then one that is not there."""
        if slot > SLOT_COUNT + 1 or not self.oracle.rows:
            return self.name(SLOT_COUNT)
        rows = list(self.oracle.rows.values())
        fitting = [row for row in rows if fits(row, self.oracle.now)]
        found = fitting if fitting and slot < SLOT_COUNT else rows
        return found[slot % len(found)].id

    def handle(self, pick: int) -> tuple[Handle, Held]:
        """The newest ones first; every other time one that holds its execution, if there is one."""
        live = [each for each in self.handles if self.oracle.holds(each[1])]
        found = live if live and pick % 2 == 0 else self.handles
        return found[-1 - pick // 2 % len(found)]

    def later(self, offset: int | None) -> int | None:
        return None if offset is None else self.oracle.now + offset

    def create_one(self, item: dict[str, Any]) -> None:
        arguments = self.arguments(item)
        self.do("create", lambda engine: engine.create_execution(**arguments), lambda: self.oracle.create(arguments))

    def claim_lane(self, lane: str, able: Any, worker: Any, ttl: int, limit: int) -> None:
        self.do(
            "claim",
            lambda e: e.claim_many(lane, able, ClaimPolicy(*worker, ttl), limit),
            lambda: self.oracle.claim_many(lane, able, *worker, ttl, limit),
        )

    def arguments(self, item: dict[str, Any]) -> dict[str, Any]:
        found = {key: value for key, value in item.items() if key != "slot"}
        found["execution_id"] = self.name(item["slot"])
        for key in ("delay_until", "execution_deadline_at"):
            found[key] = self.later(found[key])
        return found

    # -- both sides ----------------------------------------------------------------------------------------------

    def do(self, label: str, call: Callable[[Any], Any], model: Callable[[], Any], held: Held | None = None) -> None:
        """Make a call on both sides, at once or together with others. A call with ``held`` may be repeated."""
        if held is not None:
            self.terminal.append((label, call, model, held))
        self.waiting.append((label, call, model, held))
        if len(self.waiting) >= self.burst:
            self.flush()

    def alone(self, label: str, call: Callable[[Any], Any], model: Callable[[], Any]) -> None:
        """A call that takes several steps inside the engine and so cannot share a batch."""
        self.flush()
        self.do(label, call, model)

    def flush(self) -> None:
        waiting, self.waiting, self.burst = self.waiting, [], 1
        if not waiting:
            return
        answers = self.world.call(self.engine, [call for _, call, _, _ in waiting])
        self.answered([label for label, _, _, _ in waiting])
        refused = True
        for (label, _, model, held), answer in zip(waiting, answers, strict=True):
            found = plain(answer)
            wanted = self.ask(model)
            self.count(label, found)
            self.expect(differences(found, wanted, label), f"of {len(waiting)} calls, {label} answers differently")
            refused = refused and isinstance(wanted, tuple) and wanted[0] in FAMILIES
            self.keep(answer, wanted)
            self.same_answer_again(label, held, wanted)
        self.compare(refused)

    def answered(self, labels: list[str]) -> None:
        """The engine has answered and the oracle has not been asked yet."""

    def ask(self, model: Callable[[], Any]) -> Any:
        try:
            return model()
        except Refused as error:
            return (error.family, error.kind)

    def count(self, label: str, found: Any) -> None:
        """Remember which answers the examples have met."""
        type(self).seen[(label, mark_of(found))] += 1
        type(self).steps += 1

    def keep(self, answer: Any, wanted: Any) -> None:
        """Every handle there ever was may be used again."""
        found = answer if isinstance(answer, list) else [getattr(answer, "handle", answer)]
        self.handles += zip([each for each in found if isinstance(each, Handle)], handles_in(wanted), strict=True)

    def same_answer_again(self, label: str, held: Held | None, wanted: Any) -> None:
        """I14: a terminal call repeated gets its first answer, or a refusal."""
        if held is None or (isinstance(wanted, tuple) and wanted[0] in FAMILIES):
            return
        if (label, held) in self.answers:
            type(self).seen[(label, "again")] += 1
        first = self.answers.setdefault((label, held), wanted)
        self.expect([] if first == wanted else [f"first {first}, then {wanted}"], f"{label} answered anew")

    def expect(self, problems: list[Any], headline: str) -> None:
        if problems:
            self.failed = True
            lines = "\n  ".join(map(str, problems))
            raise Disagreement(f"{headline} at {self.oracle.now}:\n  {lines}")

    # -- comparing -----------------------------------------------------------------------------------------------

    def compare(self, refused: bool) -> None:
        """Rows, events and promises after a step."""
        oracle = self.oracle
        names = {self.name(slot) for slot in range(SLOT_COUNT + 1)} | oracle.rows.keys() | self.before.keys()
        rows, events = self.world.look(names)
        self.log += events
        pictures = {each: picture_of_rows(found) for each, found in rows.items()}
        wanted = {each: picture_of_model(row) for each, row in oracle.rows.items()}
        self.expect(differences(pictures, wanted), "stored rows differ")
        self.compare_leases(rows)
        self.compare_events(events)
        if refused:
            self.expect([] if rows == self.before and not events else ["something changed"], "I15: a refusal changed")
        broken: list[Any] = []
        for each, (execution, attempts, grants) in rows.items():
            broken += executions.check_execution(execution, attempts, grants, oracle.now)
            if each in self.before:
                broken += executions.check_transition(self.before[each][:2], (execution, attempts))
        broken += executions.check_conservation([found[0] for found in rows.values()], oracle.submitted)
        self.expect(broken, "broken promises")
        self.before = rows

    def compare_leases(self, rows: dict[str, Rows]) -> None:
        """A lease has one id as long as anybody knows of it, and no other lease has it."""
        for each, row in self.oracle.rows.items():
            for index, attempt in row.attempts.items():
                lease_id = rows[each][1][index].lease_id
                known = self.leases.setdefault(attempt.lease, lease_id)
                self.expect([] if known == lease_id else [f"{known}, then {lease_id}"], "a lease changed its id")
        used = Counter(self.leases.values())
        self.expect([lease_id for lease_id, times in used.items() if times > 1], "a lease id was used twice")

    def compare_events(self, events: list[Any]) -> None:
        found, wanted = [picture_of_event(event) for event in events], self.oracle.events
        self.oracle.events = []
        for outbox in ("lease", "completion", "operator", "tag"):
            ours, theirs = ([event for event in side if event[0] == outbox] for side in (found, wanted))
            # What one timer does to several executions may come in any order.
            same = len(ours) == len(theirs) and all(
                [event for event in ours if event[1] == each] == [event for event in theirs if event[1] == each]
                for each in {event[1] for event in ours + theirs}
            )
            self.expect([] if same else [f"engine {ours}", f"oracle {theirs}"], f"{outbox} events differ")

    def check_all(self) -> None:
        """At the end: the whole event log, the store's own counts and indexes."""
        broken: list[Any] = []
        for execution, attempts, _ in self.before.values():
            broken += executions.check_events(execution, attempts, self.log)
        self.expect(broken, "the log breaks a promise")
        phases = Counter(row.phase for row in self.oracle.rows.values())
        self.expect(differences(self.world.phases(), dict(phases)), "the store counts otherwise")
        frames = sorted(
            (row.uuid, index, *frame)
            for row in self.oracle.rows.values()
            for index, stream in row.frames.items()
            for frame in stream
        )
        self.expect(differences(self.world.frames(), frames, "frames"), "the streams differ")
        self.expect(recount(self.world), "the store's indexes differ from its rows")


def handles_in(answer: Any) -> list[Held]:
    """The handles in an answer of the oracle."""
    if isinstance(answer, Held):
        return [answer]
    if isinstance(answer, dict):
        return [held for each in answer.values() for held in handles_in(each)]
    return [held for each in answer for held in handles_in(each)] if isinstance(answer, list | tuple) else []


def mark_of(answer: Any) -> str:
    """What kind of answer it is, in a word."""
    if isinstance(answer, Held):
        return answer.kind
    if isinstance(answer, list):
        return f"{len(answer)} found"
    if isinstance(answer, tuple):
        name, more = answer
        return str(
            more if name in FAMILIES else more.get("status") or (more.get("reason") if "reason" in more else name)
        )
    return str(answer)
