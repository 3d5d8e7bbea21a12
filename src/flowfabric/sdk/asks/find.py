"""Finding the questions that wait for an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from flowfabric.model.ids import ExecutionId
from flowfabric.model.states import BlockingReason, PublicState
from flowfabric.sdk.asks.ask import ASK_KIND, OpenAsk
from flowfabric.sdk.asks.budget_asks import budget_question
from flowfabric.sdk.durations import duration
from flowfabric.sdk.errors import ENDED
from flowfabric.sdk.paging import pages

if TYPE_CHECKING:
    from flowfabric.sdk.app import App
    from flowfabric.sdk.runs.run import Run

#: What executions wait for that ask a person.
_QUESTIONS = (BlockingReason.WAITING_FOR_APPROVAL, BlockingReason.WAITING_FOR_BUDGET)
_PAGE = 200
#: How long to wait between looks for a question that is not there yet: at first, and at most.
_FIRST_LOOK_S, _LAST_LOOK_S = 0.02, 0.5


async def open_asks(app: App, run: Run[Any] | str | None = None) -> list[OpenAsk]:
    """Questions that wait, the newest first: those of a run, or all of the app's namespace."""
    wanted = None if run is None else str(getattr(run, "id", run))
    found: list[OpenAsk] = []
    async for lines in _waiting(app) if wanted is None else _waiting_in(app, wanted):
        contexts = await app.engine.read_execution_contexts([execution_id for execution_id, _ in lines])
        for execution_id, reason in lines:
            context = contexts.get(execution_id)
            if context is None:
                continue
            if wanted is not None and wanted not in (execution_id, context.tags.get("ff.run")):
                continue
            if reason == BlockingReason.WAITING_FOR_BUDGET:
                asked = await budget_question(app, str(execution_id), context)
                if asked is not None:
                    found.append(asked)
            elif context.execution_kind == ASK_KIND:
                found.append(OpenAsk(app, str(execution_id), context.input_payload, context.tags))
    return found


async def wait_for_asks(app: App, run: Run[Any] | str | None, wait: timedelta) -> list[OpenAsk]:
    """The same as soon as there is one; empty-handed when the time is over, or the run: that asks nothing any more."""
    most_s = duration(wait, "wait", zero=True).total_seconds()
    deadline = asyncio.get_running_loop().time() + most_s
    pause = _FIRST_LOOK_S
    while True:
        # Before the look: a run that ends behind it may have asked in between.
        ended = await _has_ended(app, run)
        found = await open_asks(app, run)
        rest = deadline - asyncio.get_running_loop().time()
        if found or ended or rest <= 0:
            return found
        await asyncio.sleep(min(pause, rest))
        pause = min(pause * 2, _LAST_LOOK_S)


async def _has_ended(app: App, run: Run[Any] | str | None) -> bool:
    if run is None:
        return False
    return await app.engine.read_execution_state(str(getattr(run, "id", run))) in ENDED


#: Executions that are suspended, and what for.
_Lines: TypeAlias = list[tuple[ExecutionId, str]]


async def _waiting(app: App) -> AsyncIterator[_Lines]:
    """Whatever waits for an answer in the app's namespace."""
    async for page in pages(
        lambda cursor: app.engine.search_suspended(
            reasons=_QUESTIONS, namespaces=(app.namespace,), cursor=cursor, limit=_PAGE
        )
    ):
        if page.executions:
            yield [(line.execution_id, line.blocking_reason or "") for line in page.executions]


async def _waiting_in(app: App, run: str) -> AsyncIterator[_Lines]:
    """Whatever is suspended in a run's flow, where its questions are; the run itself, if it has none."""
    engine = app.engine
    identity = ExecutionId.parse(run)
    flow_id = await engine.resolve_execution_flow_id(identity)
    if flow_id is None:
        info = await engine.read_execution_info(identity)
        if info is not None and info.public_state is PublicState.SUSPENDED:
            yield [(identity, info.state_vector.blocking_reason)]
        return
    async for page in pages(
        lambda cursor: engine.search_suspended(
            reasons=tuple(BlockingReason), flow_id=flow_id, cursor=cursor, limit=_PAGE
        )
    ):
        if page.executions:
            yield [(line.execution_id, line.blocking_reason or "") for line in page.executions]
