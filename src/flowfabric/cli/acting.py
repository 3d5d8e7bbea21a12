"""Commands that act on runs: cancel, replay, priority. The first two take a run, or a filter and a confirmation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from cyclopts import Parameter
from rich.markup import escape

from flowfabric.cli import finding
from flowfabric.cli.application import ACTING, OK, REFUSED, application, command
from flowfabric.cli.finding import ANY, Filter
from flowfabric.cli.runs import reasons
from flowfabric.cli.stores import NOWHERE, Reason, RunId, Where, on_store
from flowfabric.cli.terminal import (
    Misused,
    age,
    coloured,
    confirmed,
    counted,
    progress,
    say,
    say_json,
    show_table,
    told,
)
from flowfabric.model.errors import EngineError
from flowfabric.model.search import ExecutionSummary
from flowfabric.model.states import PublicState
from flowfabric.sdk.app import App
from flowfabric.sdk.ends import ENDED
from flowfabric.sdk.errors import SdkError

#: Runs that are acted upon at the same time.
_AT_ONCE = 16
#: Runs that a preview shows.
_PREVIEW = 10
_LIVE = tuple(each.value for each in PublicState if each not in ENDED)
_AGAIN = ("failed", "expired")

MaybeRun = Annotated[str | None, Parameter(help="The run's id; without one, a filter says which are meant.")]
Yes = Annotated[bool, Parameter(name=("--yes", "-y"), negative=(), help="Do not ask.", show_default=False)]
DryRun = Annotated[bool, Parameter(negative=(), help="Only show what would be done.", show_default=False)]
All = Annotated[bool, Parameter(name="--all", negative=(), help="Every run of the namespace.", show_default=False)]


@command(
    application,
    group=ACTING,
    shows=(
        "flowfabric cancel RUN --reason 'not needed any more'",
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
    dry_run: DryRun = False,
    yes: Yes = False,
    where: Where = NOWHERE,
) -> int:
    """Cancel a run with all it has started, or many by filter.

    A filter means those that have not ended; it shows them and asks first.
    """
    if run is not None:
        _no_filter(fit, everything)
        on_store(where, lambda app: app.run(run).cancel(reason))
        return told(f"cancelled {escape(run)}", {"cancelled": [run]}, where.json)
    acts = _Acts("cancel", "cancelled", lambda app, each: app.run(each).cancel(reason))
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
    """Run an ended run again, or many by filter.

    A workflow goes on from the call that failed. A filter means those that have failed or expired; it shows them and
    asks first.
    """
    if run is not None:
        _no_filter(fit, everything)
        on_store(where, lambda app: app.run(run).replay())
        return told(f"waiting again {escape(run)}", {"replayed": [run]}, where.json)
    acts = _Acts("replay", "replayed", lambda app, each: app.run(each).replay())
    return _many(acts, _checked(fit, everything).question(_AGAIN), fit.namespace, where, dry_run, yes)


@command(application, group=ACTING, shows=("flowfabric priority RUN 9",))
def priority(
    run: RunId,
    number: Annotated[int, Parameter(help="From 0 to 9000; higher goes first.")],
    /,
    *,
    where: Where = NOWHERE,
) -> int:
    """Change the priority of a run that waits."""
    on_store(where, lambda app: app.engine.change_priority(execution_id=run, new_priority=number))
    return told(f"priority {number} for {escape(run)}", {"execution_id": run, "priority": number}, where.json)


class _Acts:
    """Something that is done to many runs."""

    def __init__(self, verb: str, done: str, act: Callable[[App, str], Awaitable[None]]) -> None:
        self.verb = verb
        self.done = done
        self.act = act


def _no_filter(fit: Filter, everything: bool) -> None:
    if everything or not fit.is_empty:
        raise Misused("say which run, or a filter, not both")


def _checked(fit: Filter, everything: bool) -> Filter:
    if fit.is_empty and not everything:
        raise Misused("say which run, or a filter such as --state, --kind or --tag; --all means every run there is")
    return fit


def _many(acts: _Acts, question: dict[str, Any], namespace: str, where: Where, dry_run: bool, yes: bool) -> int:
    async def look(app: App) -> tuple[list[ExecutionSummary], dict[str, str]]:
        runs = [each async for each in finding.found(app, question)]
        return runs, {} if where.json else await reasons(app, runs[:_PREVIEW])

    found, waits = on_store(where, look, namespace)
    ids = [str(each.execution_id) for each in found]
    if dry_run or not found:
        if where.json:
            say_json({"would": acts.verb, "runs": ids, acts.done: [], "refused": {}})
        elif not found:
            say(f"no runs fit: nothing to {acts.verb}")
        else:
            _preview(found, waits)
            say(f"{counted(len(found), 'run')} would be {acts.done}")
        return OK
    if not yes and not where.json:
        _preview(found, waits)
    if not confirmed(f"{acts.verb.capitalize()} {counted(len(found), 'run')}?", yes):
        say("nothing was done")
        return REFUSED
    done, refused = on_store(where, lambda app: _act(app, acts, ids, where.json), namespace)
    if where.json:
        say_json({acts.done: done, "refused": refused})
    else:
        for each, why in list(refused.items())[:_PREVIEW]:
            say(f"[yellow]left[/yellow]  {escape(each)}  {escape(why)}")
        left = f", {len(refused):,} left as they are" if refused else ""
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
        ("state", "what", "age", "waits for", "run"),
        (
            (
                coloured(each.public_state.value),
                escape(each.execution_kind),
                age(each.created_at),
                waits.get(str(each.execution_id), ""),
                escape(str(each.execution_id)),
            )
            for each in found[:_PREVIEW]
        ),
        "",
        keep="run",
    )
    if len(found) > _PREVIEW:
        say(f"[dim]… and {len(found) - _PREVIEW:,} more[/dim]")
