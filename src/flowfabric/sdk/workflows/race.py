"""``first``: several calls, the first that succeeds wins, the others are cancelled.

Which one has won is remembered by its name, so that code that runs again after a pause goes the same way, also if it
gives the calls in another order. The losers are cancelled before the winner is remembered: after a crash in between the
winner is found to be the only one that has succeeded. Once it is remembered the losers do nothing any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from flowfabric.model.operations.workflows import NewStep
from flowfabric.sdk.errors import CancelRequested
from flowfabric.sdk.workflows.branches import Runner
from flowfabric.sdk.workflows.recorded_steps import RACE, Call, Won, read_won

if TYPE_CHECKING:
    from flowfabric.sdk.workflows.calls import Calls


async def race(calls: Sequence[Awaitable[Any]]) -> Any:
    """What the first call gives that succeeds."""
    _, winner = await _race([lambda call=call: asyncio.ensure_future(call) for call in calls])  # type: ignore[misc]
    return winner.result()


async def _race(
    starts: Sequence[Callable[[], asyncio.Future[Any]]], *, or_fails: bool = False
) -> tuple[int, asyncio.Future[Any]]:
    """Which call succeeded first, or failed if that counts as well. The others are cancelled and have let go when this
    returns. If none did the first call's error is raised, or that the workflow was asked to end, if one of them met
    that."""
    tasks = [start() for start in starts]
    ended: list[asyncio.Future[Any]] = []
    for task in tasks:
        task.add_done_callback(ended.append)
    pending = set(tasks)
    try:
        while pending:
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                if not task.cancelled() and _counts(task.exception(), or_fails):
                    return tasks.index(task), task
                if or_fails and task.cancelled():
                    raise asyncio.CancelledError
        for task in tasks:
            if not task.cancelled() and isinstance(error := task.exception(), CancelRequested):
                raise error
        # It raises its error.
        await tasks[0]
        return 0, tasks[0]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _counts(error: BaseException | None, or_fails: bool) -> bool:
    return error is None or (or_fails and not isinstance(error, CancelRequested))


async def durable_race(workflow: Calls, call: Call, runners: Sequence[Runner]) -> Any:
    """The same in a workflow."""
    _, winner = await _won(workflow, call, runners)
    return winner.result()


async def limited(workflow: Calls, call: Call, runners: Sequence[Runner], duration: timedelta) -> Any:
    """What becomes of the first call, if that is known before the second one, which is a time, is over."""
    place, winner = await _won(workflow, call, runners, or_fails=True)
    if place:
        raise TimeoutError(f"it took longer than {duration}")
    return winner.result()


async def _won(
    workflow: Calls, call: Call, runners: Sequence[Runner], *, or_fails: bool = False
) -> tuple[int, asyncio.Future[Any]]:
    found = await workflow.remembered(call, read_won)
    if found is not None:
        return await _run_again(workflow, call, runners, found[0])
    workflow.racing += 1
    try:
        place, winner = await _race([each.start for each in runners], or_fails=or_fails)
    finally:
        workflow.racing -= 1
    workflow.check()
    lost = [part for each in runners if each is not runners[place] for part in each.parts()]
    with workflow.work():
        await workflow.saved(NewStep(call.name, msgspec.json.encode(Won(runners[place].label, lost)), arguments=RACE))
    return place, winner


async def _run_again(
    workflow: Calls, call: Call, runners: Sequence[Runner], found: Won
) -> tuple[int, asyncio.Future[Any]]:
    """The winner gives what it gave; the losers have lost."""
    place = next((place for place, each in enumerate(runners) if each.label == found.won), None)
    for number, each in enumerate(runners):
        if number != place:
            await each.drop()
    if place is None:
        raced = ", ".join(each.label for each in runners)
        await workflow.refuse(f"{call.name!r} was won by {found.won!r}, which is not among {raced}", call)
    winner = runners[place].start()
    await asyncio.gather(winner, return_exceptions=True)
    return place, winner
