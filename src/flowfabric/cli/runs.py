"""Commands that look at runs: list, why, result, tail."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Annotated

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number
from rich.markup import escape

from flowfabric.cli import finding
from flowfabric.cli.application import LOOKING, OK, application, command
from flowfabric.cli.finding import ANY, Filter
from flowfabric.cli.stores import NOWHERE, RunId, Where, on_store
from flowfabric.cli.terminal import age, coloured, moment, say, say_json, say_line, show_table
from flowfabric.model.errors import EngineError
from flowfabric.model.explain import Gate
from flowfabric.model.ids import ExecutionId
from flowfabric.model.search import ExecutionSummary
from flowfabric.sdk.app import App

#: What a run waits for, in a few words, by the gate that it stands before.
_WORDS = {
    Gate.LEASE_EXPIRED: "its worker was lost",
    Gate.WAITING_FOR_WORKER: "a worker",
    Gate.MISSING_CAPABILITY: "a worker that can do it",
    Gate.GRANTED: "the worker it was given to",
    Gate.LANE_PAUSED: "its lane is paused",
    Gate.LANE_DISABLED: "its lane is closed",
    Gate.DELAYED: "its time",
    Gate.RETRY_BACKOFF: "its next try",
    Gate.RESUME_DELAY: "its time",
    Gate.DEPENDENCIES: "what it depends on",
    Gate.SUSPENDED: "a signal",
    Gate.CHILDREN: "what it has started",
    Gate.ASLEEP: "its time, asleep",
    Gate.BUDGET: "its budget",
    Gate.QUOTA: "its limit",
    Gate.ROUTE: "a worker that can do it",
    Gate.OPERATOR: "an operator",
    Gate.LANE_STATE: "its lane",
    Gate.FLOW_CANCELLED: "its flow is being cancelled",
}
#: Lines whose reason is looked up.
_EXPLAINED = 100


@command(
    application,
    "list",
    group=LOOKING,
    shows=(
        "flowfabric list",
        "flowfabric list --state failed --since 2h",
        "flowfabric list --kind article --tag team=docs --limit 10 --json",
    ),
)
def list_runs(
    *,
    fit: Filter = ANY,
    limit: Annotated[
        int, Parameter(name=("--limit", "-l"), help="At most so many.", validator=Number(gte=1, lte=100_000))
    ] = 50,
    where: Where = NOWHERE,
) -> int:
    """List runs, newest first."""
    question = fit.question()

    async def read(app: App) -> tuple[list[ExecutionSummary], dict[str, str]]:
        runs = [each async for each in finding.found(app, question, limit)]
        return runs, {} if where.json else await reasons(app, runs)

    found, waits = on_store(where, read, fit.namespace)
    if where.json:
        say_json(msgspec.to_builtins(found, enc_hook=str))
        return OK
    nothing = (
        f"no runs in namespace {escape(fit.namespace)} yet: start one with `flowfabric submit` or `task.start(…)`"
        if fit.is_empty
        else "no runs fit; say less to see more"
    )
    show_table(
        ("state", "what", "age", "lane", "waits for", "run"),
        (
            (
                coloured(each.public_state.value),
                escape(each.execution_kind),
                age(each.created_at),
                escape(each.lane_id),
                waits.get(str(each.execution_id), ""),
                escape(str(each.execution_id)),
            )
            for each in found
        ),
        nothing,
        keep="run",
    )
    if len(found) == limit and sys.stdout.isatty():
        say(f"[dim]the newest {limit}; --limit shows more[/dim]")
    return OK


async def reasons(app: App, found: Sequence[ExecutionSummary]) -> dict[str, str]:
    """What runs wait for, in plain words; nothing for those that run or have ended."""
    waiting = [each.execution_id for each in found if each.completed_at is None and each.public_state.value != "active"]

    async def one(run: ExecutionId) -> tuple[str, str]:
        try:
            why = await app.engine.explain(run)
        except EngineError:  # it has just been deleted
            return str(run), ""
        until = f" until {moment(why.until_ms)}" if why.until_ms else ""
        return str(run), escape(_WORDS.get(why.gate, "") + until)

    return dict(await asyncio.gather(*map(one, waiting[:_EXPLAINED])))


@command(application, group=LOOKING, shows=("flowfabric why '{fp:7}:1f0c…'",))
def why(run: RunId, /, *, where: Where = NOWHERE) -> int:
    """Why a run is not running, in one sentence."""
    found = on_store(where, lambda app: app.run(run).explain())
    if where.json:
        say_json(msgspec.to_builtins(found, enc_hook=str))
        return OK
    until = f", until {moment(found.until_ms)}" if found.until_ms else ""
    say(f"{escape(found.sentence)} [dim]{found.gate.value}, since {moment(found.since_ms)}{until}[/dim]")
    return OK


@command(application, group=LOOKING, shows=("flowfabric result '{fp:7}:1f0c…'", "flowfabric result RUN | jq .total"))
def result(
    run: RunId,
    /,
    *,
    wait: Annotated[bool, Parameter(help="Wait until it has ended.", negative=("--no-wait",))] = True,
    where: Where = NOWHERE,
) -> int:
    """What a run gave, as JSON.

    One that ended otherwise says how, with exit code 1. The answer is JSON with and without --json.
    """

    async def read(app: App) -> bytes | None:
        from datetime import timedelta

        await app.run(run).result(None if wait else timedelta(0))
        return await app.engine.get_execution_result(run)

    data = on_store(where, read)
    sys.stdout.write((data or b"null").decode("utf-8", "replace") + "\n")
    return OK


@command(
    application,
    group=LOOKING,
    shows=("flowfabric tail RUN", "flowfabric tail RUN --json | jq -r .text", "flowfabric tail RUN --after 0:17-0"),
)
def tail(
    run: RunId,
    /,
    *,
    after: Annotated[str, Parameter(help="Only what comes behind this frame; 0 begins at the first.")] = "0",
    where: Where = NOWHERE,
) -> int:
    """Follow what a run emits, live, until it ends.

    Ctrl-C stops looking; the run goes on.
    """
    on_store(where, lambda app: followed(app, run, where.json, after))
    return OK


async def followed(app: App, run: str, json: bool, after: str = "0") -> None:
    """Print frames as they come."""
    began = ended = False
    await app.run(run).info()
    async for frame in app.run(run).frames(after=0 if after == "0" else after):
        if json:
            say_line({"id": frame.id, "type": frame.type, "attempt": frame.attempt, "text": frame.text})
            continue
        sys.stdout.write(frame.text)
        sys.stdout.flush()
        began, ended = True, frame.text.endswith("\n")
    if began and not ended:
        sys.stdout.write("\n")
        sys.stdout.flush()
