"""Bugs planted in the memory of workflows: the tests that are there for them must find each. One that finds none proves
nothing."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric import App
from flowfabric.sdk.definitions.signature import Signature
from flowfabric.sdk.errors import BadStep, SdkError
from flowfabric.sdk.workflows import calls, children, conductor, run_step, runner
from flowfabric.sdk.workflows.branches import Branch, Runner
from flowfabric.sdk.workflows.one_pass import OnePass
from flowfabric.sdk.workflows.recorded_steps import Memory
from tests.sdk.workflows import (
    test_memory as memory,
    test_parking as parking,
    test_plain_steps as steps,
    test_time_limits as limits,
)
from tests.simulation.workflows import test_alike as alike

Plant = Callable[[pytest.MonkeyPatch], None]
Test = Callable[[App, pytest.MonkeyPatch], Awaitable[None]]
FOUND = (AssertionError, pytest.fail.Exception, SdkError, TimeoutError)


def one_scope_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Branch, "inner", lambda self, name: Branch(self.path))


def recognised_by_place(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Memory.call
    monkeypatch.setattr(Memory, "call", lambda self, path, base, key, arguments: call(self, path, base, key, None))


def nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Memory, "misfit", lambda self, call: None)


def refusals_can_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def until_it_fits(self: OnePass, call: Any) -> None:
        raise BadStep(f"{call.name} does not fit")

    monkeypatch.setattr(OnePass, "_until_it_fits", until_it_fits)


def trials_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_memory", lambda job, steps: Memory(steps, asked=job.asked))


def winners_by_place(monkeypatch: pytest.MonkeyPatch) -> None:
    named = calls.runners

    def by_place(*args: Any) -> list[Runner]:
        found = named(*args)
        for place, each in enumerate(found):
            each.label = str(place)
        return found

    monkeypatch.setattr(calls, "runners", by_place)


def losers_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def drop(self: Runner) -> None:
        if not asyncio.iscoroutine(self.call):
            return
        self.call.close()

    monkeypatch.setattr(Runner, "parts", lambda self: [self.label])
    monkeypatch.setattr(Runner, "drop", drop)


def sleeps_before_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conductor, "in_order", lambda due: (-due[1], due[0]))


def arguments_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step gets what the workflow goes on with."""
    given: dict[bytes, Any] = {}
    pack, unpack = Signature.pack, Signature.unpack

    def packed(self: Signature, args: Any, kwargs: Any) -> bytes:
        data = pack(self, args, kwargs)
        given[data] = self.bind(args, kwargs)
        return data

    monkeypatch.setattr(Signature, "pack", packed)
    monkeypatch.setattr(Signature, "unpack", lambda self, data: given.get(data) or unpack(self, data))


def steps_are_durable_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    class Left:
        def set(self, value: Any) -> None: ...
        def reset(self, token: Any) -> None: ...

    monkeypatch.setattr(run_step, "CURRENT", Left())


def errors_as_they_are_the_first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    met: dict[str, BaseException] = {}
    step = calls.error_step

    def seen(name: str, error: BaseException, arguments: str | None = None) -> Any:
        met[name] = error
        return step(name, error, arguments)

    monkeypatch.setattr(calls, "error_step", seen)
    monkeypatch.setattr(calls, "remembered_error", lambda name, step: met[step.name])


def questions_fail_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Never(Exception): ...

    monkeypatch.setattr(children, "AskTimedOut", Never)
    monkeypatch.setattr(children, "AskClosed", Never)


def parked_into_the_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowfabric.sdk.workflows.branches.Parked", asyncio.InvalidStateError)


def every_end_wakes(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = conductor.waited_for

    def one(*args: Any) -> Any:
        found = wait(*args)
        return type(found)(found.awaited, min(1, found.wake_after), found.until_ms)

    monkeypatch.setattr(conductor, "waited_for", one)


def failures_wake_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = conductor.waited_for

    def all_of_them(*args: Any) -> Any:
        found = wait(*args)
        return type(found)(found.awaited, found.wake_after, found.until_ms)

    monkeypatch.setattr(conductor, "waited_for", all_of_them)


def limits_of_asyncio_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conductor, "limit_around", lambda *args: None)


def nobody_waits_for_plain_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conductor, "PLAIN_WAIT_S", 0.0)


async def simulated(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    for begin in (0, 100):
        await alike.test_workflows_do_what_plain_code_does(begin, monkeypatch)


CASES: dict[str, tuple[Plant, Test]] = {
    "1: one scope for all": (one_scope_for_all, lambda app, _: memory.test_branches_ask_for_themselves(app)),
    "1: one scope for all, simulated": (one_scope_for_all, simulated),
    "1: one scope for equal questions": (
        one_scope_for_all,
        lambda app, _: steps.test_who_comes_first_does_not_matter(app),
    ),
    "2: recognised by place": (
        recognised_by_place,
        lambda app, _: memory.test_calls_are_recognised_by_their_arguments(app),
    ),
    "2: nothing is refused": (
        nothing_is_refused,
        lambda app, _: memory.test_other_arguments_do_not_take_the_memory_of_these(app),
    ),
    "3: refusals can be caught": (
        refusals_can_be_caught,
        lambda app, _: memory.test_other_arguments_do_not_take_the_memory_of_these(app),
    ),
    "4: trials are one": (trials_are_one, lambda app, _: memory.test_a_later_trial_calls_what_it_has_not_called(app)),
    "5: winners by place": (winners_by_place, lambda app, _: memory.test_the_winner_is_known_by_its_name(app)),
    "5: losers go on": (losers_go_on, lambda app, _: memory.test_losers_do_nothing_after_the_race(app)),
    "5: sleeps before ends": (sleeps_before_ends, lambda app, _: steps.test_what_ended_first_wins_late(app)),
    "6: arguments are shared": (arguments_are_shared, lambda app, _: steps.test_a_step_changes_its_copy(app)),
    "6: arguments are shared, simulated": (arguments_are_shared, simulated),
    "6: steps are durable inside": (
        steps_are_durable_inside,
        lambda app, _: steps.test_what_a_step_calls_is_plain(app),
    ),
    "7: errors as they are": (
        errors_as_they_are_the_first_time,
        lambda app, _: steps.test_an_error_is_the_same_each_time(app),
    ),
    "8: questions fail unseen": (
        questions_fail_unseen,
        lambda app, _: memory.test_a_question_that_nobody_answered_is_asked_again(app),
    ),
    "parked into the body": (
        parked_into_the_body,
        lambda app, _: parking.test_the_code_never_holds_the_end_of_its_pass(app, "gather"),
    ),
    "every end wakes": (
        every_end_wakes,
        lambda app, _: parking.test_one_of_several_children_has_ended(app, "flat"),
    ),
    "failures wake nobody": (failures_wake_nobody, lambda app, _: parking.test_the_first_failure_wakes(app, "gather")),
    "limits of asyncio are taken": (
        limits_of_asyncio_are_taken,
        lambda app, _: limits.test_limits_of_asyncio_around_a_durable_wait_are_refused(app, "timeout", "child"),
    ),
    "nobody waits for plain code": (
        nobody_waits_for_plain_code,
        lambda app, _: memory.test_what_is_left_over_may_come_behind_a_plain_wait(app, "a future"),
    ),
}


# What a bug leaves half-done complains when it is thrown away.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("case", CASES)
async def test_it_is_found(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, test = CASES[case]
    with monkeypatch.context() as planted:
        plant(planted)
        with pytest.raises(FOUND):
            async with asyncio.timeout(60):
                await test(App("memory://"), planted)
    # Thrown away here, or another test would hear the complaints.
    gc.collect()


async def test_without_a_bug_they_find_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for test in {id(test): test for _, test in CASES.values() if test is not simulated}.values():
        with monkeypatch.context() as nothing:
            await test(App("memory://"), nothing)
