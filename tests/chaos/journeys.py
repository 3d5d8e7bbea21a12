"""What journeys left behind, held against what they remember."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowfabric.core.invariants.executions import check_events, check_execution
from flowfabric.core.invariants.flows import check_flow
from flowfabric.core.invariants.waits import check_waits
from flowfabric.engine import Engine
from flowfabric.model.events import CompletionEvent, LeaseEvent, OperatorEvent
from flowfabric.model.ids import ExecutionId
from flowfabric.model.operations.workflows import StepOutcome, StepRecord
from flowfabric.model.records.executions import Execution, Signal, Suspension, Waitpoint
from flowfabric.model.records.flows import Edge, EdgeGroup
from flowfabric.sdk.runs.run import Run
from tests.chaos.journey import QUESTION
from tests.contract.probe import Probe

#: What a journey does, with what each of these is given: the tokens of those before it.
_ALL = ("carry[left]", "carry[right]", "errand", "haul")
SEEN: dict[str, tuple[str, ...]] = {
    "open": (),
    "carry": ("open",),
    **dict.fromkeys(_ALL, ("open", "carry")),
    "stumble": ("open", "carry", *_ALL),
    "close": ("open", "carry", *_ALL, "stumble", "ask"),
}
#: By what name each of them is remembered.
NAMES = {name: "stumble!0" if name == "stumble" else name for name in SEEN} | {"ask": f"ask:{QUESTION}"}
REMEMBERED = {*NAMES.values(), "sleep"}
#: The workflow, its two tasks and its question.
MEMBERS = 4


@dataclass(frozen=True)
class Effect:
    """One thing that somebody did."""

    key: str
    number: int
    name: str
    token: str
    saw: tuple[str, ...]
    pid: int


def read_effects(path: Path) -> dict[tuple[int, str], list[Effect]]:
    """Everything that was done, by journey and name. A torn last line was never done."""
    found: dict[tuple[int, str], list[Effect]] = defaultdict(list)
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            facts = json.loads(line)
            effect = Effect(**{**facts, "saw": tuple(facts["saw"])})
            found[effect.number, effect.name].append(effect)
    return found


def answer_for(number: int) -> str:
    """What a journey is told when it asks."""
    return f"yes, {number}"


def _token(step: StepRecord) -> str:
    """What a remembered step gave."""
    document = json.loads(step.value or b"null")
    if step.name == NAMES["ask"]:
        return str(document["answers"][0]["value"])
    return str(document["args"][0] if step.outcome is StepOutcome.ERROR else document)


async def problems(run: Run[dict[str, str]], number: int, effects: dict[tuple[int, str], list[Effect]]) -> list[str]:
    """Whatever cannot be if every step is remembered once and whoever came too late was refused."""
    steps = await run.steps()
    names = [step.name for step in steps]
    if len(names) != len(set(names)) or set(names) != REMEMBERED:
        return [f"it remembers {names}"]
    by_name = {step.name: step for step in steps}
    tokens = {name: _token(by_name[stored]) for name, stored in NAMES.items()}
    found = [f"the result is {result}, remembered is {tokens}" for result in [await run.result()] if result != tokens]
    numbers = [step.sequence for step in await run.app.engine.read_steps(run.id)]
    if numbers != list(range(1, len(numbers) + 1)):
        found.append(f"numbered {numbers}")
    if tokens["ask"] != answer_for(number):
        found.append(f"it heard {tokens['ask']!r}")
    for name, seen in SEEN.items():
        found += _wrong_effects(name, tokens, effects[number, name], tuple(tokens[each] for each in seen))
    return [f"journey {number}, {run.id}: {text}" for text in found]


def _wrong_effects(name: str, tokens: dict[str, str], done: list[Effect], saw: tuple[str, ...]) -> Iterator[str]:
    if sum(effect.token == tokens[name] for effect in done) != 1:
        yield f"{name}: remembered is {tokens[name]}, done was {[effect.token for effect in done]}"
    if len({effect.key for effect in done}) != 1:
        yield f"{name}: keys {[effect.key for effect in done]}"
    # Nobody, a zombie neither, has ever gone on with something that is not remembered.
    for effect in done:
        if effect.saw != saw:
            yield f"{name}: process {effect.pid} was given {effect.saw}, remembered is {saw}"


# ----------------------------------------------------------------------------------------------------------- invariants


async def violations(engine: Engine, runs: list[Run[Any]]) -> list[Any]:
    """Broken promises about stored rows and events: of the runs, of all they have started, and of their flows."""
    probe, now = Probe(engine), await engine.now_ms()
    events: dict[str, list[Any]] = defaultdict(list)
    for kind in (LeaseEvent, CompletionEvent, OperatorEvent):
        for event in await probe.events(kind):
            events[event.subject if kind is OperatorEvent else event.uuid].append(event)
    found: list[Any] = []
    for run in runs:
        root = await probe.execution(run.id)
        where = {"partition": root.partition, "flow_id": root.flow_id}
        members = await probe.select(Execution, **where)
        if len(members) != MEMBERS:
            found.append(f"{run.id} has {len(members)} members")
        found += check_flow(members, await probe.select(Edge, **where), await probe.select(EdgeGroup, **where))
        for member in members:
            found += await _broken(probe, member.execution_id, events, now)
    return found


async def _broken(probe: Probe, execution_id: str, events: dict[str, list[Any]], now: int) -> list[Any]:
    identity = ExecutionId.parse(execution_id)
    own = {"partition": identity.partition, "uuid": identity.uuid_text}
    execution, attempts = await probe.execution(execution_id), await probe.attempts(execution_id)
    suspensions = await probe.select(Suspension, **own)
    waitpoints, signals = await probe.select(Waitpoint, **own), await probe.select(Signal, **own)
    return [
        *check_execution(execution, attempts, await probe.grants(execution_id), now),
        *check_events(execution, attempts, events[identity.uuid_text]),
        *check_waits(execution, attempts[-1], suspensions[0] if suspensions else None, waitpoints, signals),
    ]
