"""``first``: several calls, the first that succeeds wins, the others are cancelled.

Which one has won is remembered by its name, so that code that runs again after a pause goes the same way, also if it
gives the calls in another order. The losers are cancelled before the winner is remembered: after a crash in between the
winner is found to be the only one that has succeeded. Once it is remembered the losers do nothing any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
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
    _, value = await _race([lambda call=call: asyncio.ensure_future(call) for call in calls])  # type: ignore[misc]
    return value


async def _race(starts: Sequence[Callable[[], asyncio.Future[Any]]]) -> tuple[int, Any]:
    """Which call succeeded first, and what it gave. The others are cancelled and have let go when this returns. If
    none succeeds the first call's error is raised, or that the workflow was asked to end, if one of them met that."""
    tasks = [start() for start in starts]
    ended: list[asyncio.Future[Any]] = []
    for task in tasks:
        task.add_done_callback(ended.append)
    pending = set(tasks)
    try:
        while pending:
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                if not task.cancelled() and task.exception() is None:
                    return tasks.index(task), task.result()
        for task in tasks:
            if not task.cancelled() and isinstance(error := task.exception(), CancelRequested):
                raise error
        return 0, await tasks[0]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def durable_race(workflow: Calls, call: Call, runners: Sequence[Runner]) -> Any:
    """The same in a workflow."""
    found = await workflow.remembered(call, read_won)
    if found is not None:
        return await _run_again(workflow, call, runners, found[0])
    workflow.racing += 1
    try:
        place, value = await _race([each.start for each in runners])
    finally:
        workflow.racing -= 1
    workflow.check()
    lost = [part for each in runners if each is not runners[place] for part in each.parts()]
    with workflow.work():
        await workflow.saved(NewStep(call.name, msgspec.json.encode(Won(runners[place].label, lost)), arguments=RACE))
    return value


async def _run_again(workflow: Calls, call: Call, runners: Sequence[Runner], found: Won) -> Any:
    """The winner gives what it gave; the losers have lost."""
    winner = next((each for each in runners if each.label == found.won), None)
    for each in runners:
        if each is not winner:
            await each.drop()
    if winner is None:
        raced = ", ".join(each.label for each in runners)
        await workflow.refuse(f"{call.name!r} was won by {found.won!r}, which is not among {raced}", call)
    return await winner.start()
