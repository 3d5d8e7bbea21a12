"""Commands that start work: run, submit; and signal, which tells a run something."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from datetime import timedelta
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter
from rich.markup import escape

from flowfabric.cli import task_arguments as typed
from flowfabric.cli.application import ACTING, OK, REFUSED, STARTING, application, command, load_app
from flowfabric.cli.commands.runs import followed
from flowfabric.cli.filters import milliseconds
from flowfabric.cli.run_ids import short
from flowfabric.cli.store_option import NOWHERE, PATIENCE_S, Namespace, RunId, Where, is_server, on_store
from flowfabric.cli.terminal import Misused, err, say_json, say_line, told
from flowfabric.model.ids import ExecutionId
from flowfabric.model.operations.executions import Duplicate
from flowfabric.sdk.app import App
from flowfabric.sdk.asks.raw_answers import check_signal
from flowfabric.sdk.definitions.announce import OnlyByCode, Unfit, creation, taken
from flowfabric.sdk.definitions.tasks import Startable
from flowfabric.sdk.errors import IdConflict, RunEnded
from flowfabric.sdk.runs.run import Run

Typed = Annotated[str, Parameter(help="Arguments: name=Ann, Ann, or all of them as JSON.", allow_leading_hyphen=True)]
Id = Annotated[str | None, Parameter(name="--id", help="An id of your own: starting it twice returns the same run.")]
Lane = Annotated[str | None, Parameter(help="Use this lane instead of the task's own.")]
Priority = Annotated[int | None, Parameter(help="From 0 to 9000; higher runs first.")]
Delay = Annotated[str | None, Parameter(help="Start after this delay: 90s, 15min, 2h, 7d.")]
Tags = Annotated[
    tuple[str, ...], Parameter(name="--tag", help="key=value; may be repeated.", negative=(), show_default=False)
]


@command(
    application,
    "run",
    group=STARTING,
    shows=(
        "flowfabric run hello.py greet Ann",
        "flowfabric run shop.tasks:app charge '{\"order\": 7}' --tag team=shop",
        "flowfabric run hello.py greet Ann --here    without any other worker",
    ),
)
def run_and_wait(
    app: Annotated[str, Parameter(help="The app: module:name, or path/to/file.py:name.")],
    name: Annotated[str, Parameter(help="The task or workflow.")],
    /,
    *arguments: Typed,
    here: Annotated[
        bool, Parameter(negative=(), help="Run a worker in this process while waiting.", show_default=False)
    ] = False,
    id: Id = None,
    lane: Lane = None,
    priority: Priority = None,
    delay: Delay = None,
    tag: Tags = (),
    where: Where = NOWHERE,
) -> int:
    """Start a run, show what it emits, and wait for its result.

    Ctrl-C stops waiting; the run continues. With --json, frames are lines of JSON and the last line is the result.
    """
    target = placed(load_app(app), where)
    definition = _startable(target, name)
    args, kwargs = definition.signature.call(typed.read(definition, arguments), {})
    using = definition.using(id=id, lane=lane, priority=priority, delay=_delay(delay), tags=_tags(tag))

    async def go() -> int:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(target)
            if here:
                await stack.enter_async_context(target.worker(lanes=[lane or definition.options.lane or target.lane]))
            run = await using.start(*args, **kwargs)
            if not where.json:
                err().print(f"[dim]started {escape(short(run.id))}[/dim]")
            hint = asyncio.ensure_future(_hint(run, where.json))
            try:
                await followed(target, run.id, where.json)
                await run.result()
            except RunEnded as error:
                if where.json:
                    state = (await run.status()).value
                    say_line({"run": run.id, "state": state, "error": str(error)})
                    return REFUSED
                raise
            finally:
                hint.cancel()
            data = await target.engine.get_execution_result(run.id)
            if where.json:
                say_line({"run": run.id, "state": "completed", "result": msgspec.Raw(data or b"null")})
            else:
                sys.stdout.write((data or b"null").decode("utf-8", "replace") + "\n")
            return OK

    return asyncio.run(go())


async def _hint(run: Run[Any], json: bool) -> None:
    """Say after a moment why nothing happens, if nothing does."""
    await asyncio.sleep(2)
    with contextlib.suppress(Exception):
        why = await run.explain()
        if why.gate.value in ("waiting_for_worker", "missing_capability", "lane_paused", "lane_disabled") and not json:
            advice = "Start a worker with `flowfabric worker`, or use --here."
            err().print(f"[yellow]waiting:[/yellow] {escape(why.sentence)} {advice}")


@command(
    application,
    group=STARTING,
    shows=(
        "flowfabric submit hello.py greet Ann",
        "flowfabric submit hello.py greet name=Ann --delay 1h --tag team=docs",
        'flowfabric submit greet \'{"name": "Ann"}\'    by its kind, without its code',
    ),
)
def submit(
    what: Annotated[str, Parameter(help="The app, then the task's name; or the kind alone.")],
    /,
    *arguments: Typed,
    kind: Annotated[
        bool, Parameter(name="--kind", negative=(), help="Read the first word as a kind, never as an app.")
    ] = False,
    id: Id = None,
    lane: Lane = None,
    priority: Priority = None,
    delay: Delay = None,
    tag: Tags = (),
    namespace: Namespace = "default",
    where: Where = NOWHERE,
) -> int:
    """Start a run and print its id, without waiting for it.

    A kind that a worker has announced gets the lane, policy and id that its code declares. Any other one is created
    as it is: in lane default, without retries, limits and budgets.
    """
    if kind or not (":" in what or what.endswith(".py")):
        return _submit_kind(what, arguments, id, lane, priority, delay, tag, namespace, where)
    target = placed(load_app(what), where)
    if not arguments:
        raise Misused(f"{what}: name a task or workflow: {', '.join(sorted(target.definitions)) or 'none'}")
    definition = _startable(target, arguments[0])
    args, kwargs = definition.signature.call(typed.read(definition, arguments[1:]), {})
    using = definition.using(id=id, lane=lane, priority=priority, delay=_delay(delay), tags=_tags(tag))

    async def go() -> str:
        async with target:
            return (await using.start(*args, **kwargs)).id

    return _started(asyncio.run(go()), where)


def _submit_kind(
    kind: str,
    arguments: tuple[str, ...],
    id: str | None,
    lane: str | None,
    priority: int | None,
    delay: str | None,
    tag: tuple[str, ...],
    namespace: str,
    where: Where,
) -> int:
    payload = typed.payload_of(arguments)
    wait = _delay(delay)

    async def go(app: App) -> str:
        until = None
        if wait is not None:
            until = await app.engine.server_time_ms() + int(wait.total_seconds() * 1000)
        given = {"lane_id": lane, "priority": priority, "tags": _tags(tag), "delay_until": until}
        started = await _start_announced(app, namespace, kind, payload, id, given)
        if started is not None:
            return started
        answer = await app.engine.create_execution(
            namespace=namespace,
            lane_id=lane or "default",
            execution_kind=kind,
            input_payload=payload,
            payload_encoding="json",
            priority=priority or 0,
            idempotency_key=id,
            tags=_tags(tag),
            delay_until=until,
        )
        return str(answer.execution_id)

    return _started(on_store(where, go, namespace, create=True), where)


async def _start_announced(
    app: App, namespace: str, kind: str, payload: bytes, id: str | None, given: dict[str, Any]
) -> str | None:
    """Start it as its code would, if a worker has announced it: with its lane, policy and id."""
    engine: Any = app.engine
    if app.is_remote:
        found: str | None = await engine.start_kind(
            namespace, kind, {"input": msgspec.Raw(payload), "idempotency_key": id, **given}
        )
        return found
    known = await app.engine.read_kind_definition(namespace, kind)
    if known is None:
        return None
    try:
        arguments = creation(known, payload, key=id, **given)
    except OnlyByCode as error:
        raise Misused(f"{kind} can be started only by its code: {error}; name the app before it") from None
    except Unfit as error:
        raise Misused(f"{kind}: invalid input: {error}") from None
    # Budgets and limits are those of its namespace, whatever it names.
    answer = await app.engine.limited_to((namespace,)).create_execution(**arguments)
    if isinstance(answer, Duplicate):
        kinds = await app.engine.read_execution_kinds([answer.execution_id])
        key = arguments["idempotency_key"] or ""
        holder = kinds.get(answer.execution_id, kind)
        why = taken(known, key, answer.execution_id, holder, given=id is not None)
        if why is not None:
            raise IdConflict(why, run_id=answer.execution_id, id=key)
    return str(answer.execution_id)


def _started(run: str, where: Where) -> int:
    if where.json:
        say_json({"run": run})
    else:
        # Programs that read it may hand it on to the server or the SDK, which take the whole id.
        sys.stdout.write((short(run) if sys.stdout.isatty() else run) + "\n")
    return OK


def placed(app: App, where: Where, *, patient: bool = False) -> App:
    """The app, on the store or server that was named instead of its own. People are not patient, workers are."""
    patience = None if patient else timedelta(seconds=PATIENCE_S)
    url = where.named
    if url is not None or (is_server(app.url) and where.token is not None):
        app.move(url or app.url, where.token, patience=patience)
    return app


def _startable(app: App, name: str) -> Startable[..., Any]:
    found = app.definitions.get(name)
    if not isinstance(found, Startable):
        known = ", ".join(sorted(app.definitions)) or "none"
        raise Misused(f"{name}: no task or workflow of this name; known: {known}")
    return found


def _delay(text: str | None) -> timedelta | None:
    return None if text is None else timedelta(milliseconds=milliseconds(text, "--delay"))


def _tags(typed: tuple[str, ...]) -> dict[str, str] | None:
    from flowfabric.sdk.options import tag_key

    found = {}
    for each in typed:
        key, equals, value = each.partition("=")
        if not equals:
            raise Misused(f"--tag {each}: expected key=value")
        found[tag_key(key)] = value
    return found or None


@command(
    application,
    group=ACTING,
    shows=(
        "flowfabric signal RUN approved",
        "flowfabric signal RUN paid '{\"amount\": 12}' --waitpoint-token k1:… --source shop",
    ),
)
def signal(
    run: RunId,
    name: Annotated[str, Parameter(help="The signal's name.")],
    payload: Annotated[str | None, Parameter(help="The payload, as JSON.")] = None,
    /,
    *,
    waitpoint: Annotated[
        str | None, Parameter(help="The waitpoint's id or key, if the run has more than one open.")
    ] = None,
    waitpoint_token: Annotated[
        str | None, Parameter(help="The waitpoint's signed token; callers who may read tokens can leave it out.")
    ] = None,
    source: Annotated[str, Parameter(help="The sender's name, kept with the signal.")] = "",
    key: Annotated[str | None, Parameter(help="A repeated signal with this key counts once.")] = None,
    where: Where = NOWHERE,
) -> int:
    """Send a signal to a waiting run."""
    if payload is not None:
        try:
            msgspec.json.decode(payload)
        except (msgspec.DecodeError, RecursionError):
            raise Misused(f"{payload}: expected the payload as JSON; write a string as '\"text\"'") from None

    async def deliver(app: App) -> Any:
        identity = ExecutionId.parse(run)
        chosen = await _waitpoint(app, identity, waitpoint)
        token = waitpoint_token or await app.engine.read_waitpoint_token(identity.partition, chosen, identity)
        if token is None:
            raise Misused(f"{chosen}: this waitpoint is no longer open")
        signal: dict[str, Any] = {
            "execution_id": identity,
            "waitpoint_id": chosen,
            "waitpoint_token": token,
            "signal_name": name,
            "payload": None if payload is None else payload.encode(),
            "idempotency_key": key,
        }
        if not where.is_server:  # a server checks for itself
            signal |= await check_signal(app.engine, **signal)
        return await app.engine.deliver_signal(**signal, source_type="operator", source_identity=source)

    answer = on_store(where, deliver)
    document = {"result": type(answer).__name__} | msgspec.to_builtins(answer, enc_hook=str)
    effect = document.get("effect")
    sentence = "it was delivered already" if document["result"] == "Duplicate" else f"delivered: {effect}"
    return told(escape(sentence), document, where.json)


async def _waitpoint(app: App, run: ExecutionId, wanted: str | None) -> str:
    page = await app.engine.list_pending_waitpoints(execution_id=run, limit=1_000)
    fitting = [each for each in page.entries if wanted in (None, each.waitpoint_id, each.waitpoint_key)]
    if len(fitting) == 1:
        return fitting[0].waitpoint_id
    if not page.entries:
        raise Misused(f"{run}: not waiting for a signal; `flowfabric why` says what it is waiting for")
    known = ", ".join(each.waitpoint_key or each.waitpoint_id for each in page.entries)
    raise Misused(f"choose one with --waitpoint; open waitpoints: {known}")
