"""``flowfabric show``: the whole story of a run."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.markup import escape
from rich.table import Table

from flowfabric.cli import filters
from flowfabric.cli.application import LOOKING, OK, application, command
from flowfabric.cli.run_ids import short
from flowfabric.cli.store_option import NOWHERE, RunId, Where, on_store
from flowfabric.cli.terminal import age, coloured, moment, out, print_trimmed, say_json, shortened, shown, span
from flowfabric.model.errors import EngineError
from flowfabric.model.operations.workflows import StepRecord, called
from flowfabric.model.reads.overview import FRAMES_OF_OTHERS
from flowfabric.sdk.app import App
from flowfabric.sdk.errors import ENDED

_CHILDREN = 50


@command(application, group=LOOKING, shows=("flowfabric show 7:1f0c…", "flowfabric show RUN --json"))
def show(run: RunId, /, *, where: Where = NOWHERE) -> int:
    """Show everything about a run.

    Its state and the reason, attempts, steps, open waits, signals, spending and children.
    """
    story = on_store(where, lambda app: read(app, run))
    if where.json:
        say_json(story)
        return OK
    _print(story)
    return OK


async def read(app: App, run: str) -> dict[str, Any]:
    """Everything there is to tell, as plain values."""
    one = app.run(run)
    info = await one.info()
    context = await app.engine.read_execution_context(run)
    why = await one.explain()
    history = await app.engine.read_history(run)
    story: dict[str, Any] = msgspec.to_builtins(info, enc_hook=str) | {
        "execution_kind": context.execution_kind,
        "input": shown(context.input_payload, 10_000),
        "explanation": msgspec.to_builtins(why, enc_hook=str),
        "steps": [_plain_step(each) for each in await one.steps()],
        "attempts": msgspec.to_builtins(history.attempts, enc_hook=str),
        "errors": msgspec.to_builtins((await app.engine.read_errors(run)).errors),
        "suspension": msgspec.to_builtins(history.suspension, enc_hook=str),
        "waits": msgspec.to_builtins(history.waitpoints, enc_hook=str),
        "signals": [
            msgspec.to_builtins(each, enc_hook=str) | {"payload": shown(each.payload)} for each in history.signals
        ],
        "usage": msgspec.to_builtins(history.spends, enc_hook=str),
        "policy": history.policy,
        "started_at": history.started_at,
        "ended_at": history.ended_at,
        "cancelled_by": history.cancelled_by,
        "children": await _children(app, run, info.flow_id, info.namespace),
        "result": None,
        "error": None,
    }
    if info.public_state.value == "completed":
        story["result"] = shown(await app.engine.get_execution_result(run), 10_000)
    elif info.public_state in ENDED:
        try:
            await one.result()
        except Exception as error:
            story["error"] = str(error)
    return story


def _plain_step(step: StepRecord) -> dict[str, Any]:
    value = "" if step.value is None else step.value.decode("utf-8", "replace")
    return msgspec.structs.asdict(step) | {"value": value}


async def _children(app: App, run: str, flow_id: str | None, namespace: str) -> list[dict[str, Any]]:
    """What it has started: those of its flow that name it as their run."""
    if flow_id is None:
        return []
    try:
        question = {"flow_id": flow_id, "namespaces": [namespace], "tag": ("ff.run", run)}
        found = [each async for each in filters.found(app, question, _CHILDREN, builtin=True)]
    except EngineError:
        return []
    return [msgspec.to_builtins(each, enc_hook=str) for each in reversed(found)]


def _print(story: dict[str, Any]) -> None:
    console = out()
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, text in _facts(story):
        facts.add_row(name, text)
    console.print(
        f"[bold]{escape(story['execution_kind'])}[/bold]  {escape(short(story['execution_id']))}", soft_wrap=True
    )
    print_trimmed(console, facts)
    errors = {each["attempt_index"]: each for each in story["errors"]}
    for title, lines in (
        ("attempts", [_attempt(each, errors.get(each["attempt_index"])) for each in story["attempts"]]),
        ("steps", [_step(each) for each in story["steps"] if not each["name"].startswith("!")]),
        ("waiting for", [_wait(each) for each in story["waits"] if each["closed_at"] is None]),
        ("signals", [_signal(each) for each in story["signals"]]),
        ("spent", [_spend(each) for each in story["usage"]]),
        ("started", [_child(each) for each in story["children"]]),
    ):
        if lines:
            console.print(f"\n[bold]{title}[/bold]")
            for line in lines:
                console.print(f"  {line}", soft_wrap=True)
    for error in story["errors"]:
        if not error["traceback"]:
            continue
        which = f" of attempt {error['attempt_index'] + 1}" if len(story["attempts"]) > 1 else ""
        console.print(f"\n[bold]traceback{which}[/bold]")
        own = error["traceback"].partition(f"\n{FRAMES_OF_OTHERS}\n")[0]
        console.print(own.rstrip(), markup=False, style="dim", soft_wrap=True)


def _facts(story: dict[str, Any]) -> list[tuple[str, str]]:
    lease, why = story["current_lease"], story["explanation"]
    found = [
        ("state", coloured(story["public_state"])),
        ("why", escape(why["sentence"])),
        ("created", f"{moment(story['created_at'])}  ({age(story['created_at'])} ago)"),
        ("changed", f"{moment(story['last_mutation_at'])}  ({age(story['last_mutation_at'])} ago)"),
        ("lane", escape(f"{story['lane_id']}, namespace {story['namespace']}")),
    ]
    if story["ended_at"] is not None:
        took = span(story["ended_at"] - (story["started_at"] or story["created_at"]))
        found.append(("ended", f"{moment(story['ended_at'])}  (took {took})"))
    if lease:
        found.append(("worker", escape(f"{lease['worker_instance_id']}, lease until {moment(lease['expires_at'])}")))
    if story["tags"]:
        found.append(("tags", escape("  ".join(f"{key}={value}" for key, value in story["tags"].items()))))
    if story["input"]:
        found.append(("input", escape(story["input"])))
    if story["result"] is not None:
        found.append(("result", f"[green]{escape(story['result'])}[/green]"))
    if story["error"]:
        found.append(("error", f"[red]{escape(story['error'])}[/red]"))
    return found


def _step(step: dict[str, Any]) -> str:
    mark = "[green]✓[/green]" if step["outcome"] == "ok" else "[red]✗[/red]"
    text = escape(shortened(step["value"], 120))
    return f"{mark} [dim]{moment(step['recorded_at_ms'])}[/dim]  {escape(called(step['name']))}  {text}"


def _attempt(attempt: dict[str, Any], error: dict[str, Any] | None) -> str:
    began, ended = attempt["started_at"], attempt["ended_at"]
    outcome = attempt["outcome"] or ("running" if attempt["worker_instance_id"] else "given back")
    outcome = outcome.removeprefix("attempt_")
    colour = {"success": "green", "failed": "red", "running": "cyan"}.get(outcome, "yellow")
    took = "" if began is None or ended is None else f"  took {span(ended - began)}"
    worker = attempt["worker_instance_id"] or attempt["worker_id"]
    by = f"  by {escape(worker)}" if worker else ""
    again = f"  retry at {moment(attempt['retry_at'])}" if attempt["retry_at"] else ""
    shown_at = f"[dim]{moment(began)}[/dim]"
    line = f"{attempt['attempt_index'] + 1}  {shown_at}  [{colour}]{escape(outcome)}[/{colour}]{took}{by}{again}"
    if error is None:
        return line
    return f"{line}\n     {escape(shortened(_error(error), 200))}"


def _error(error: dict[str, Any]) -> str:
    return f"{error['type']}: {error['message']}" if error["message"] else str(error["type"])


def _wait(wait: dict[str, Any]) -> str:
    until = f", until {moment(wait['expires_at'])}" if wait["expires_at"] else ""
    heard = f", {wait['signal_count']} received" if wait["signal_count"] else ""
    return f"{escape(wait['waitpoint_key'])}  [dim]{escape(wait['waitpoint_id'])}{until}{heard}[/dim]"


def _signal(signal: dict[str, Any]) -> str:
    source = " ".join(filter(None, (signal["source_type"], signal["source_identity"])))
    payload = escape(shortened(signal["payload"], 100))
    return (
        f"[dim]{moment(signal['accepted_at'])}[/dim]  {escape(signal['signal_name'])}  {payload}"
        f"  [dim]{escape(source)}, {escape(signal['effect'])}[/dim]"
    )


def _spend(spend: dict[str, Any]) -> str:
    whose = f" of {escape(spend['namespace'])}" if spend["namespace"] else ""
    return f"{spend['amount']:,} {escape(spend['dimension'])}  [dim]of budget {escape(spend['budget_id'])}{whose}[/dim]"


def _child(child: dict[str, Any]) -> str:
    ended = child["completed_at"]
    took = f"  took {span(ended - child['created_at'])}" if ended else f"  {age(child['created_at'])}"
    state, kind = coloured(child["public_state"]), escape(child["execution_kind"])
    return f"{state}  {kind}[dim]{took}  {escape(short(child['execution_id']))}[/dim]"
