"""Commands that act on runs: cancel, replay, priority. The first two take a run, or a filter and a confirmation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from cyclopts import Parameter
from rich.markup import escape

from flowfabric.cli import filters
from flowfabric.cli.application import ACTING, OK, REFUSED, application, command
from flowfabric.cli.commands.runs import reasons
from flowfabric.cli.filters import ANY, Filter
from flowfabric.cli.run_ids import read, short
from flowfabric.cli.store_option import NOWHERE, Reason, RunId, Where, on_store
from flowfabric.cli.terminal import (
    Misused,
    age,
    coloured,
    confirmed,
    progress,
    say,
    say_json,
    show_table,
    told,
)
from flowfabric.model.counting import counted
from flowfabric.model.errors import EngineError
from flowfabric.model.reads.search import ExecutionSummary
from flowfabric.model.states import PublicState
from flowfabric.sdk.app import App
from flowfabric.sdk.errors import ENDED, SdkError

#: Runs that are acted upon at the same time.
_AT_ONCE = 16
#: Runs that a preview shows.
_PREVIEW = 10
_LIVE = tuple(each.value for each in PublicState if each not in ENDED)
_AGAIN = ("failed", "expired")

MaybeRun = Annotated[
    str | None, Parameter(help="The run's id; leave it out to select runs with a filter.", converter=read)
]
Yes = Annotated[bool, Parameter(name=("--yes", "-y"), negative=(), help="Skip the confirmation.", show_default=False)]
DryRun = Annotated[bool, Parameter(negative=(), help="Show what would happen; change nothing.", show_default=False)]
Now = Annotated[
    bool, Parameter(name="--now", negative=(), help="End workflows at once, without cleanup.", show_default=False)
]
All = Annotated[bool, Parameter(name="--all", negative=(), help="Every run in the namespace.", show_default=False)]


@command(
    application,
    group=ACTING,
    shows=(
        "flowfabric cancel RUN --reason 'no longer needed'",
        "flowfabric cancel RUN --now",
        "flowfabric cancel --kind import --before 2h --dry-run",
        "flowfabric cancel --tag team=docs --yes",
    ),
)
def cancel(
    run: MaybeRun = None,
    /,
    *,
    fit: Filter = ANY,
    everything: All = False,
    reason: Reason = "",
    now: Now = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    where: Where = NOWHERE,
) -> int:
    """Cancel a run and everything it started, or many runs by filter.

    A task ends at once. A workflow has its `cancel_grace` to clean up first; `--now` ends it at once. A filter selects
    runs that have not ended; it shows them and asks first.
    """

    async def one(app: App, each: str) -> bool:
        """Whether it has ended."""
        chosen = app.run(each)
        await (chosen.terminate(reason) if now else chosen.cancel(reason))
        return now or await chosen.status() in ENDED

    if run is not None:
        _no_filter(fit, everything)
        name = escape(short(run))
        how = f"cancelled {name}" if on_store(where, lambda app: one(app, run)) else f"cancelling {name}"
        return told(how, {"cancelled": [run]}, where.json)
    acts = _Acts("cancel", "cancelled", one)
    return _many(acts, _checked(fit, everything).question(_LIVE), fit.namespace, where, dry_run, yes)


@command(
    application,
    group=ACTING,
    shows=(
        "flowfabric replay RUN",
        "flowfabric replay --state failed --since 1d --dry-run",
        "flowfabric replay --kind import --yes --json",
    ),
)
def replay(
    run: MaybeRun = None,
    /,
    *,
    fit: Filter = ANY,
    everything: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    where: Where = NOWHERE,
) -> int:
    """Replay a run that has ended, or many by filter.

    A workflow resumes at the call that failed. A filter selects failed and expired runs; it shows them and asks first.
    """
    if run is not None:
        _no_filter(fit, everything)
        on_store(where, lambda app: app.run(run).replay())
        return told(f"replayed {escape(short(run))}", {"replayed": [run]}, where.json)
    question = _checked(fit, everything).question(_AGAIN)

    def again(app: App, each: str) -> Awaitable[object]:
        # It may have been replayed, and have succeeded, since it was shown.
        return app.engine.replay_execution(execution_id=each, states=question["states"])

    return _many(_Acts("replay", "replayed", again), question, fit.namespace, where, dry_run, yes)


@command(application, group=ACTING, shows=("flowfabric priority RUN 9",))
def priority(
    run: RunId,
    number: Annotated[int, Parameter(help="From 0 to 9000; higher runs first.")],
    /,
    *,
    where: Where = NOWHERE,
) -> int:
    """Change the priority of a waiting run."""
    on_store(where, lambda app: app.engine.change_priority(execution_id=run, new_priority=number))
    return told(f"priority {number} for {escape(short(run))}", {"execution_id": run, "priority": number}, where.json)


class _Acts:
    """Something that is done to many runs."""

    def __init__(self, verb: str, done: str, act: Callable[[App, str], Awaitable[object]]) -> None:
        self.verb = verb
        self.done = done
        self.act = act


def _no_filter(fit: Filter, everything: bool) -> None:
    if everything or not fit.is_empty:
        raise Misused("give a run id or a filter, not both")


def _checked(fit: Filter, everything: bool) -> Filter:
    if fit.is_empty and not everything:
        raise Misused("give a run id, or a filter such as --state, --kind or --tag; --all selects every run")
    return fit


def _many(acts: _Acts, question: dict[str, Any], namespace: str, where: Where, dry_run: bool, yes: bool) -> int:
    async def look(app: App) -> tuple[list[ExecutionSummary], dict[str, str]]:
        runs = [each async for each in filters.found(app, question)]
        return runs, {} if where.json else await reasons(app, runs[:_PREVIEW])

    found, waits = on_store(where, look, namespace)
    ids = [str(each.execution_id) for each in found]
    if dry_run or not found:
        if where.json:
            say_json({"would": acts.verb, "runs": ids, acts.done: [], "refused": {}})
        elif not found:
            say(f"no matching runs: nothing to {acts.verb}")
        else:
            _preview(found, waits)
            say(f"{counted(len(found), 'run')} would be {acts.done}")
        return OK
    if not yes and not where.json:
        _preview(found, waits)
    if not confirmed(f"{acts.verb.capitalize()} {counted(len(found), 'run')}?", yes):
        say("aborted: nothing changed")
        return REFUSED
    done, refused = on_store(where, lambda app: _act(app, acts, ids, where.json), namespace)
    if where.json:
        say_json({acts.done: done, "refused": refused})
    else:
        for each, why in list(refused.items())[:_PREVIEW]:
            say(f"[yellow]refused[/yellow]  {escape(each)}  {escape(why)}")
        left = f", {len(refused):,} refused" if refused else ""
        say(f"{acts.done} {counted(len(done), 'run')}{left}")
    return REFUSED if refused and not done else OK


async def _act(app: App, acts: _Acts, ids: list[str], json: bool) -> tuple[list[str], dict[str, str]]:
    done: list[str] = []
    refused: dict[str, str] = {}
    permits = asyncio.Semaphore(_AT_ONCE)
    with progress(f"{acts.verb}", len(ids), json) as advance:

        async def one(identity: str) -> None:
            async with permits:
                try:
                    await acts.act(app, identity)
                    done.append(identity)
                except (EngineError, SdkError) as error:
                    refused[identity] = " ".join(str(error).split())
                advance(len(done) + len(refused))

        await asyncio.gather(*map(one, ids))
    return done, refused


def _preview(found: list[ExecutionSummary], waits: dict[str, str]) -> None:
    show_table(
        ("state", "what", "age", "waiting for", "run"),
        (
            (
                coloured(each.public_state.value),
                escape(each.execution_kind),
                age(each.created_at),
                waits.get(str(each.execution_id), ""),
                escape(short(each.execution_id)),
            )
            for each in found[:_PREVIEW]
        ),
        "",
        keep="run",
    )
    if len(found) > _PREVIEW:
        say(f"[dim]… and {len(found) - _PREVIEW:,} more[/dim]")
