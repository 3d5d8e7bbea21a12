"""Commands that look at runs: list, why, result, tail, logs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number
from rich.markup import escape

from flowfabric.cli import filters
from flowfabric.cli.application import LOOKING, OK, application, command
from flowfabric.cli.filters import ANY, Filter
from flowfabric.cli.run_ids import short
from flowfabric.cli.store_option import NOWHERE, RunId, Where, on_store
from flowfabric.cli.terminal import Misused, age, coloured, moment, say, say_json, say_line, shortened, show_table
from flowfabric.model.errors import EngineError
from flowfabric.model.ids import ExecutionId
from flowfabric.model.reads.explain import ChainLink, Explanation, Gate, OpenSuspension
from flowfabric.model.reads.search import ExecutionSummary
from flowfabric.sdk.app import App
from flowfabric.sdk.asks.ask import ASK_KIND
from flowfabric.sdk.errors import ResultTimeout
from flowfabric.sdk.runs.frames import RunFrame, RunRestart
from flowfabric.sdk.runs.logs import RunLog

#: What a run waits for, in a few words, by the gate that it stands before.
_WORDS = {
    Gate.LEASE_EXPIRED: "a timer: its lease expired",
    Gate.WAITING_FOR_WORKER: "a worker",
    Gate.MISSING_CAPABILITY: "a worker with the right capabilities",
    Gate.GRANTED: "its worker to claim it",
    Gate.LANE_PAUSED: "its lane (paused)",
    Gate.LANE_DISABLED: "its lane (closed)",
    Gate.DELAYED: "its start time",
    Gate.RETRY_BACKOFF: "its next retry",
    Gate.RESUME_DELAY: "its resume time",
    Gate.DEPENDENCIES: "its dependencies",
    Gate.SUSPENDED: "a signal",
    Gate.CHILDREN: "its children",
    Gate.ASLEEP: "the end of its sleep",
    Gate.BUDGET: "its budget",
    Gate.QUOTA: "its rate limit",
    Gate.ROUTE: "a worker with the right capabilities",
    Gate.OPERATOR: "an operator",
    Gate.LANE_STATE: "its lane",
    Gate.FLOW_CANCELLED: "its cancellation (with its flow)",
}
#: How long a result is waited for if nobody says so.
RESULT_LIMIT = "5min"
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
        int, Parameter(name=("--limit", "-l"), help="The most runs to show.", validator=Number(gte=1, lte=100_000))
    ] = 50,
    where: Where = NOWHERE,
) -> int:
    """List runs, newest first."""
    question = fit.question()

    async def read(app: App) -> tuple[list[ExecutionSummary], dict[str, str]]:
        runs = [each async for each in filters.found(app, question, limit)]
        return runs, {} if where.json else await reasons(app, runs)

    found, waits = on_store(where, read, fit.namespace)
    if where.json:
        say_json(msgspec.to_builtins(found, enc_hook=str))
        return OK
    nothing = (
        f"no runs in namespace {escape(fit.namespace)} yet: start one with `flowfabric submit` or `task.start(…)`"
        if fit.is_empty
        else "no matches; use fewer filters"
    )
    show_table(
        ("state", "what", "age", "lane", "waiting for", "run"),
        (
            (
                coloured(each.public_state.value),
                escape(each.execution_kind),
                age(each.created_at),
                escape(each.lane_id),
                waits.get(str(each.execution_id), ""),
                escape(short(each.execution_id)),
            )
            for each in found
        ),
        nothing,
        keep="run",
    )
    if len(found) == limit and sys.stdout.isatty():
        say(f"[dim]the newest {limit}; show more with --limit[/dim]")
    return OK


async def reasons(app: App, found: Sequence[ExecutionSummary]) -> dict[str, str]:
    """What runs wait for, in plain words; nothing for those that run or have ended."""
    waiting = [each.execution_id for each in found if each.completed_at is None and each.public_state.value != "active"]

    async def one(run: ExecutionId) -> tuple[str, str]:
        try:
            why = await app.engine.explain(run)
        except EngineError:  # it has just been deleted
            return str(run), ""
        # What runs further down is under way; then its own gate says more.
        last = why.chain[-1] if why.chain and why.chain[-1].gate in _WORDS else why
        asked = isinstance(last.detail, OpenSuspension) and last.detail.question is not None
        until = f" until {moment(last.until_ms)}" if last.until_ms else ""
        return str(run), escape(("an answer" if asked else _WORDS.get(last.gate, "")) + until)

    return dict(await asyncio.gather(*map(one, waiting[:_EXPLAINED])))


@command(application, group=LOOKING, shows=("flowfabric why 7:1f0c…",))
def why(run: RunId, /, *, where: Where = NOWHERE) -> int:
    """Explain in one sentence why a run is not running.

    If it is waiting for another run, the explanation follows the chain to the last one; the lines below show each run
    on the way.
    """
    found = on_store(where, lambda app: app.run(run).explain())
    if where.json:
        say_json(msgspec.to_builtins(found, enc_hook=str))
        return OK
    if not found.chain:
        say(f"{escape(found.sentence)} {_standing(found)}")
        return OK
    say(escape(found.sentence))
    for each in found.chain:
        what = "question" if each.execution_kind == ASK_KIND else each.execution_kind or "(no kind)"
        say(f"  {escape(shortened(what))}  {escape(short(each.execution_id))}  {_standing(each)}")
    if found.left_out:
        say(f"  [dim]{escape(found.left_out)}[/dim]")
    return OK


def _standing(at: Explanation | ChainLink) -> str:
    """The gate that a run stands before, since when, and until when."""
    until = f", until {moment(at.until_ms)}" if at.until_ms else ""
    return f"[dim]{at.gate.value}, since {moment(at.since_ms)}{until}[/dim]"


@command(application, group=LOOKING, shows=("flowfabric result 7:1f0c…", "flowfabric result RUN | jq .total"))
def result(
    run: RunId,
    /,
    *,
    wait: Annotated[
        bool,
        Parameter(help="Wait until the run ends, as by default; --no-wait answers at once.", negative=("--no-wait",)),
    ] = True,
    timeout: Annotated[
        str, Parameter(name=("--timeout", "-t"), help="Stop waiting after this long; the run goes on: 30s, 10min.")
    ] = RESULT_LIMIT,
    where: Where = NOWHERE,
) -> int:
    """Print the result of a run as JSON.

    A run that did not complete, or not in time, exits with code 1 and says why. The result is JSON
    with and without --json.
    """
    most = timedelta(milliseconds=filters.milliseconds(timeout, "--timeout") if wait else 0)

    async def read(app: App) -> bytes | None:
        try:
            await app.run(run).result(most)
        except ResultTimeout:
            state = (await app.run(run).status()).value
            default = " (the default of --timeout)" if timeout == RESULT_LIMIT else ""
            late = f"is {state} and did not end within {timeout}{default}" if wait else f"is {state}"
            do = f"wait longer with --timeout, or see `flowfabric why {short(run)}`"
            raise ResultTimeout(f"run {short(run)} {late}; it continues: {do}", run=run) from None
        return await app.engine.get_execution_result(run)

    data = on_store(where, read)
    sys.stdout.write((data or b"null").decode("utf-8", "replace") + "\n")
    return OK


@command(
    application,
    group=LOOKING,
    shows=(
        "flowfabric tail RUN",
        "flowfabric tail RUN --json | jq -r .text",
        "flowfabric tail RUN --after 1:17-0",
        "flowfabric tail RUN --children",
    ),
)
def tail(
    run: RunId,
    /,
    *,
    after: Annotated[str, Parameter(help="Only frames after this one; 0 starts at the first.")] = "0",
    children: Annotated[
        bool, Parameter(negative=(), help="Include the output of child runs; not with --after.", show_default=False)
    ] = False,
    where: Where = NOWHERE,
) -> int:
    """Follow what a run emits, live, until it ends.

    When output starts over, after a failure or a lost worker, a line says so. Ctrl-C stops following; the run
    continues.
    """
    if children and after != "0":
        raise Misused("use --after or --children, not both: the id of a frame belongs to one run")
    on_store(where, lambda app: followed(app, run, where.json, after, children))
    return OK


async def followed(app: App, run: str, json: bool, after: str = "0", children: bool = False) -> None:
    """Print frames as they come; where those of another run begin, or output starts over, a line says so."""
    ended, shown = True, run
    await app.run(run).info()
    async for frame in app.run(run).frames(after=0 if after == "0" else after, children=children):
        if json:
            say_line(_line(frame, children))
            continue
        lines = [] if frame.run_id == shown else [f"run {short(frame.run_id)}"]
        shown = frame.run_id
        if isinstance(frame, RunRestart):
            lines.append(frame.sentence)
        text = "".join(f"— {line} —\n" for line in lines)
        text = text if ended or not text else f"\n{text}"
        text += frame.text
        sys.stdout.write(text)
        sys.stdout.flush()
        ended = text.endswith("\n") if text else ended
    if not ended:
        sys.stdout.write("\n")
        sys.stdout.flush()


@command(
    application,
    group=LOOKING,
    shows=("flowfabric logs RUN", "flowfabric logs RUN --follow", "flowfabric logs RUN --json | jq -r .text"),
)
def logs(
    run: RunId,
    /,
    *,
    follow: Annotated[
        bool, Parameter(alias="-f", negative=(), help="Wait for more until the run ends.", show_default=False)
    ] = False,
    where: Where = NOWHERE,
) -> int:
    """Print what the functions of a run wrote with ctx.log, oldest first, of all attempts."""
    on_store(where, lambda app: _logged(app, run, where.json, follow))
    return OK


async def _logged(app: App, run: str, json: bool, follow: bool) -> None:
    await app.run(run).info()
    attempt = 1
    async for line in app.run(run).logs(follow=follow):
        if json:
            say_line({"at": line.at_ms, "level": line.level, "text": line.text, "attempt": line.attempt} | _step(line))
            continue
        if line.attempt != attempt:
            attempt = line.attempt
            sys.stdout.write(f"— attempt {attempt} —\n")
        step = f"[{line.step}] " if line.step else ""
        sys.stdout.write(f"{moment(line.at_ms)} {line.level:<8} {step}{line.text}\n")
        sys.stdout.flush()


def _step(line: RunLog) -> dict[str, str]:
    return {} if line.step is None else {"step": line.step}


def _line(frame: RunFrame, children: bool) -> dict[str, Any]:
    line = {"id": frame.id, "type": frame.type, "attempt": frame.attempt, "text": frame.text}
    if children:
        line["run"] = frame.run_id
    if frame.step is not None:
        line["step"] = frame.step
    if isinstance(frame, RunRestart):
        line["restart"] = frame.reason.value
    return line
