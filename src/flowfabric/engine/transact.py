"""One batch: load what its commands need, let the core decide, commit once.

A lost race re-runs the batch: rules are pure, so deciding again is always safe. A command that is refused, or whose
rule fails, takes no other command with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from msgspec import Struct

from flowfabric.core.admission.admit import companions
from flowfabric.core.batch.follow_up import followers, slots_left
from flowfabric.core.batch.graph_view import Missing
from flowfabric.core.batch.newest import newest_ms, written_ms
from flowfabric.core.batch.prefetch import bound_by_creation, ending
from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.core.executions.complete import Complete, Fail
from flowfabric.core.executions.create import CreateExecution, CreateExecutions
from flowfabric.core.flows.submit import SubmitFlow
from flowfabric.core.lanes.fairness import arrive
from flowfabric.core.ownership.limited_callers import Callers, FromOutside, unwrapped
from flowfabric.core.rules import RULES
from flowfabric.core.suspension.pending_waitpoints import CreateWaitpoint
from flowfabric.core.suspension.signals import DeliverSignal
from flowfabric.core.suspension.suspend import Suspend
from flowfabric.core.workflows.steps import Advance
from flowfabric.engine import hints
from flowfabric.engine.record_cache import Assumed, HeldRecords
from flowfabric.model.decisions import Claimable, Decision, Downstream, Get, Key, Need, Writes
from flowfabric.model.errors import Bug, BugKind, Contention, ContentionKind, EngineError
from flowfabric.model.limits import MAX_ROUNDS, MAX_TRIES
from flowfabric.model.operations.workflows import Step
from flowfabric.model.records.executions import Binding, Execution, Lane, Signal, SigningKey, Waitpoint
from flowfabric.model.records.flows import Flow
from flowfabric.stores.beside import MOST_AT_ONCE, worked
from flowfabric.stores.protocol import Conflict, Store, Transaction

_log = logging.getLogger("flowfabric.engine")

#: What a holder says when it ends its execution.
ENDINGS = frozenset({Complete, Fail})


class Outcome(Struct):
    """What a committed batch gives back: one answer or error per command, and whom to wake."""

    answers: list[Any]
    fresh: dict[str, list[Execution]]
    streams: list[tuple[str, int]]
    writes: Writes | None
    #: Commands that carry on what this batch began.
    then: list[Any] = []
    #: Slots of quotas that were left.
    slots_left: dict[str, int] = {}


class Settings(Struct, frozen=True):
    """What every batch of an engine shares."""

    store: Store
    held: HeldRecords
    reclaim_grace_ms: int = 0
    intake_ms: int = 0

    def context(self, now: int) -> Context:
        """What rules are told in addition to their command."""
        return Context(now, self.store.tag, self.store.shown, self.reclaim_grace_ms, self.intake_ms)


async def run_batch(settings: Settings, commands: Sequence[Any]) -> Outcome:
    """Decide and commit, again after each lost race, within bounds."""
    store = settings.store
    commands, callers = unwrapped(commands)
    size = size_of(commands) if store.pauses else 0
    # What is decided beside the loop must not rest on records that others replace meanwhile.
    held = settings.held if size <= MOST_AT_ONCE else HeldRecords()
    for attempt in range(MAX_TRIES):
        trusting = store.holds and attempt == 0
        assumed = Assumed(held, _hoped_absent(commands) if trusting else set())
        view = View(assumed if trusting else None, arrive, hopeful=attempt == 0)
        try:
            async with store.transaction(trusting=trusting) as transaction:
                return await _decide_and_commit(settings, transaction, commands, callers, view, assumed, size)
        except Conflict as conflict:
            _log.debug("batch of %d conflicted with another writer (try %d): %s", len(commands), attempt + 1, conflict)
            settings.held.drop(view.believed())
            if store.parallel > 1 and attempt > 0:
                await asyncio.sleep(min(0.001 * 2**attempt, 0.1))
    error = Contention(ContentionKind.RETRY_EXHAUSTED, f"{MAX_TRIES} tries conflicted with other writers")
    return Outcome([error] * len(commands), {}, [], None)


async def _decide_and_commit(
    settings: Settings,
    transaction: Transaction,
    commands: Sequence[Any],
    callers: Callers,
    view: View,
    assumed: Assumed,
    size: int,
) -> Outcome:
    needs = _first_needs(view, commands)
    needs += [need for caller in callers or () if caller is not None for need in caller.needs()]
    created = bound_by_creation(commands)
    store = settings.store
    reached = 0
    for _ in range(MAX_ROUNDS):
        if needs:
            await transaction.load(_merged(needs), view)
            bound: list[Any] = [*view.newly_bound(), *created]
            while bound and (more := companions(view, bound)):
                await transaction.load(more, view)
        now = await transaction.now(written_ms(view))
        now = max(now, reached, newest_ms(view, now))
        context = settings.context(now)
        decided, needs = await worked(size, partial(_decide, view, commands, callers, context))
        needs = needs or view.unproved()
        # Held records are known only once something was decided upon them.
        reached = newest_ms(view, now)
        if not needs and reached <= now:
            break
        view.restart()
    else:
        raise Bug(BugKind.INTERNAL_ERROR, f"a batch still missed records after {MAX_ROUNDS} rounds")
    writes, fresh = await worked(size, lambda: (view.writes(), view.fresh_work()))
    streams = [stream for item in decided if isinstance(item, Decision) for stream in item.wakes]
    if topics := hints.urgent_topics(fresh, streams, writes.puts):
        if writes.events:
            topics.add(hints.event_topic(set(map(type, writes.events))))
        writes.hints = tuple(topics)
    version = await transaction.commit(writes, assumed)
    if store.holds:
        settings.held.learn(writes, version)
        _learn_loaded(settings.held, transaction, view, writes)
    answers = [item if isinstance(item, EngineError) else item.result for item in decided]
    then = [command for item in decided if isinstance(item, Decision) for command in item.then]
    if view.following:
        then += followers(view)
    left = slots_left(view) if view.following else {}
    return Outcome(answers, fresh, streams, writes, then, left)


def _learn_loaded(held: HeldRecords, transaction: Transaction, view: View, writes: Writes) -> None:
    """Hold what nearly every batch looks at and hardly any changes."""
    written = writes.puts.get(Lane, ())
    for lane in view.loaded(Lane):
        if lane.lane_id not in written:
            held.learn_lane(lane, transaction.version(Lane, lane.lane_id))
    if SigningKey not in writes.puts and SigningKey not in writes.drops:
        for key in view.loaded(SigningKey):
            held.learn_key(key, transaction.version(SigningKey, key.kid))


def size_of(commands: Sequence[Any]) -> int:
    """How many things commands are about that are about many."""
    return sum(_MANY[type(each)](each) for each in commands if type(each) in _MANY)


def is_large(command: Any) -> bool:
    """Whether a command is about so many things that it takes long."""
    inner = command.command if type(command) is FromOutside else command
    many = _MANY.get(type(inner))
    return many is not None and many(inner) > MOST_AT_ONCE


def _hoped_absent(commands: Sequence[Any]) -> set[tuple[Any, Key]]:
    """What commands of this batch are about to insert and expect not to exist. The insert proves it."""
    absent: set[tuple[Any, Key]] = set()
    for command in commands:
        brings = _BRINGS.get(type(command))
        if brings is not None:
            absent.update(brings(command))
    return absent


def _created(command: CreateExecution) -> Iterator[tuple[Any, Key]]:
    yield Execution, command.execution_id
    if command.idempotency_key:
        yield Binding, (command.namespace, command.idempotency_key)


def _all_created(commands: Iterable[CreateExecution]) -> Iterator[tuple[Any, Key]]:
    return chain.from_iterable(map(_created, commands))


def _delivered(command: DeliverSignal) -> Iterator[tuple[Any, Key]]:
    if command.new_id:
        yield Signal, (command.partition, command.uuid, command.signal_id)


def _waitpoints(command: Suspend | CreateWaitpoint) -> Iterator[tuple[Any, Key]]:
    return ((Waitpoint, (command.partition, each)) for each in command.fresh_waitpoints())


def _brought(command: Advance | Complete | Fail) -> Iterator[tuple[Any, Key]]:
    return iter(()) if command.brought is None else ((Step, key) for key in command.brought.step_keys())


#: What each kind of command is about to insert.
_BRINGS: Mapping[type, Callable[[Any], Iterable[tuple[Any, Key]]]] = {
    CreateExecution: _created,
    CreateExecutions: lambda command: _all_created(command.items),
    DeliverSignal: _delivered,
    Suspend: _waitpoints,
    CreateWaitpoint: _waitpoints,
    Advance: lambda command: chain(_brought(command), _all_created(command.children)),
    Complete: _brought,
    Fail: _brought,
    SubmitFlow: lambda command: chain(
        ((Flow, (command.flow.partition, command.flow.flow_id)),), _all_created(command.nodes)
    ),
}


#: What commands are about whose callers decide how much that is.
_MANY: Mapping[type, Callable[[Any], int]] = {
    CreateExecutions: lambda command: len(command.items),
    Advance: lambda command: len(command.children),
    SubmitFlow: lambda command: len(command.nodes) + len(command.edges),
}


def _first_needs(view: View, commands: Sequence[Any]) -> list[Need]:
    needs: list[Need] = []
    for command in commands:
        for need in command.needs():
            if type(need) is Claimable or not view.has(need):
                needs.append(need)
            elif type(command) in ENDINGS and type(need) is Get and need.kind is Execution:
                # A member that is held and about to end will want to know who waits for it.
                execution = view.get(Execution, command.handle.execution_id)
                if execution is not None and execution.flow_id is not None:
                    needs.append(Downstream(execution.partition, execution.flow_id, execution.uuid))
    return needs + ending(view, commands)


def _merged(needs: Iterable[Need]) -> list[Need]:
    """Each need once; claims of one lane and capability set ask together."""
    unique: dict[Any, Need] = {}
    for need in needs:
        if type(need) is Claimable:
            key = (need.lane_id, need.capabilities, need.namespaces)
            before = unique.get(key)
            limit = need.limit + (before.limit if isinstance(before, Claimable) else 0)
            unique[key] = need._replace(limit=limit)
        else:
            unique[need] = need
    return list(unique.values())


def _decide(
    view: View, commands: Sequence[Any], callers: Callers, context: Context
) -> tuple[list[Decision | EngineError], list[Need]]:
    decided: list[Decision | EngineError] = []
    needs: list[Need] = []
    for position, command in enumerate(commands):
        folds = view.folds
        try:
            caller = None if callers is None else callers[position]
            rule = RULES[type(command)]
            decision = rule(command, view, context) if caller is None else caller.decided(rule, view, context)
        except Missing as missing:
            needs.extend(missing.needs)
        except EngineError as error:
            # A refusal may rest on held records; the commit checks those too, and a stale one re-runs the batch.
            if view.folds != folds:
                raise Bug(BugKind.INTERNAL_ERROR, f"{type(command).__name__} refused after it had folded") from error
            decided.append(error)
        except Exception as error:
            _log.exception("rule of %s failed", type(command).__name__)
            bug = Bug(BugKind.INTERNAL_ERROR, f"{type(command).__name__}: {error!r}")
            if view.folds != folds:
                raise bug from error
            decided.append(bug)
        else:
            view.fold(decision)
            decided.append(decision)
    return decided, needs + view.unplaced()
