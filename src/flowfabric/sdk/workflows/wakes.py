"""How many children must end until the code of a workflow can go on: what its tasks wait for tells.

A call that the code awaits itself lets it go on when it ends. Calls that are gathered, or stand in a task group, let it
go on when the last of them has ended, or the first has failed. What nobody waits for yet lets nothing go on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from flowfabric.model.operations.workflows import ChildWait

if TYPE_CHECKING:
    from flowfabric.sdk.workflows.children import Child

Calling = Collection[asyncio.Task[Any]]


def waited_for(children: Mapping[str, Child], calls: Calling, until_ms: int | None) -> ChildWait:
    """What to wait for. ``calls`` are the tasks that make one call and nothing else."""
    sizes: Counter[int] = Counter()
    awaited: list[str] = []
    alone = failures = False
    for execution_id, child in children.items():
        waiting = _waiting(child.task, calls)
        if not waiting:
            continue
        awaited.append(execution_id)
        for each in waiting:
            if each is None:
                alone = True
            else:
                together, fails = each
                failures = failures or fails
                sizes[together] += 1
    if not awaited:
        # Nobody seems to wait for any of them: then any may be the one.
        awaited, alone = list(children), bool(children)
    if not awaited:
        return ChildWait((), 0, until_ms)
    return ChildWait(tuple(awaited), 1 if alone else min(sizes.values()), until_ms, failures and not alone)


def _waiting(task: asyncio.Task[Any] | None, calls: Calling) -> list[tuple[int, bool] | None]:
    """Who waits for a call: each is a number of those that wait for several calls together, and whether they go on
    when one fails; or nothing, for one that waits for this call alone."""
    if task is None or task not in calls:
        return [None]
    # asyncio has no other name for what happens when a task ends.
    callbacks = getattr(task, "_callbacks", None)
    if callbacks is None:
        return [] if hasattr(task, "_callbacks") else [None]
    return [_together(each) for each, _ in callbacks if not _is_ours(each)]


def _is_ours(callback: Any) -> bool:
    function = getattr(callback, "__func__", None)
    return function is not None and function.__module__ == "flowfabric.sdk.workflows.one_pass"


def _together(callback: Any) -> tuple[int, bool] | None:
    group = getattr(callback, "__self__", None)
    if isinstance(group, asyncio.TaskGroup):
        return id(group), True
    names = getattr(getattr(callback, "__code__", None), "co_freevars", ())
    if getattr(callback, "__module__", "") != "asyncio.tasks" or not {"outer", "return_exceptions"}.issubset(names):
        return None
    closed = dict(zip(names, callback.__closure__, strict=True))
    try:
        return id(closed["outer"].cell_contents), not closed["return_exceptions"].cell_contents
    except ValueError:
        return None
