"""``flowfabric dev``: server, worker and console in one process, from zero."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from cyclopts import Parameter
from msgspec import Struct
from rich.markup import escape

from flowfabric.cli.application import OK, RUNNING, application, command, load_app
from flowfabric.cli.commands.server import needed, refused
from flowfabric.cli.commands.worker import speak
from flowfabric.cli.run_ids import short
from flowfabric.cli.store_option import AS_TEXT, DEFAULT_FILE, How, is_server, named_store
from flowfabric.cli.task_arguments import usage
from flowfabric.cli.terminal import Misused, coloured, err, out, say, say_line
from flowfabric.model.errors import EngineError
from flowfabric.model.secrets import Discreet
from flowfabric.sdk.app import App
from flowfabric.stores.environment import ConfigError
from flowfabric.stores.migrate import APPLY
from flowfabric.telemetry.logs import redacted

if TYPE_CHECKING:
    from flowfabric.engine import Engine


DEFAULT_PORT = 9090
#: A worker that is killed gives its work back after this.
LEASE = timedelta(seconds=5)
#: Set while the process restarts because files have changed.
AGAIN = "FF_DEV_AGAIN"
EXAMPLE = """\
from flowfabric import App

app = App("sqlite:///flowfabric.db")


@app.task(retry=3)
async def greet(name: str) -> str:
    return f"Hello, {name}!"


@app.workflow
async def party(names: list[str]) -> list[str]:
    return [await greet(name) for name in names]
"""


class Settings(Discreet, Struct, frozen=True):
    """What ``dev`` was told."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"url"})

    target: str | None
    url: str
    host: str
    port: int
    reload: bool
    browse: bool
    json: bool


@command(
    application,
    group=RUNNING,
    shows=(
        "flowfabric dev                 a server and its console on ./flowfabric.db",
        "flowfabric dev --example       write hello.py first, and run it",
        "flowfabric dev hello.py        … with a worker that reloads when a file changes",
    ),
)
def dev(
    app: Annotated[str | None, Parameter(help="The app to run: module:name, or path/to/file.py:name.")] = None,
    /,
    *,
    store: Annotated[
        str | None,
        Parameter(help="Use this store instead of the app's own or ./flowfabric.db (FF_STORE_URL, FF_BACKEND)."),
    ] = None,
    listen: Annotated[str | None, Parameter(help="Address and port; 127.0.0.1:9090, or the next free port.")] = None,
    example: Annotated[
        bool, Parameter(negative=(), help="Write hello.py if it does not exist, and run it.", show_default=False)
    ] = False,
    reload: Annotated[bool, Parameter(help="Reload when a Python file changes.")] = True,
    browse: Annotated[
        bool, Parameter(name="--open", negative=(), help="Open the console in a browser.", show_default=False)
    ] = False,
    verbose: Annotated[
        bool, Parameter(name=("--verbose", "-v"), negative=(), help="Print more log lines.", show_default=False)
    ] = False,
    how: How = AS_TEXT,
) -> int:
    """Run a server, a worker and the console in one process.

    Ctrl-C stops it; nothing is lost, even after a crash.
    Without an app it uses ./flowfabric.db. It serves this machine only and asks for no credential, unless FF_API_TOKEN
    is set.
    """
    try:
        import uvicorn  # noqa: F401

        import flowfabric.server.serving  # noqa: F401
    except ModuleNotFoundError as error:
        return refused(needed(error))
    if verbose:
        speak(True)
    if example:
        app = app or _write_example()
    seen = source_files(Path.cwd()) if app is not None and reload else {}
    target, broken = _loaded(app)
    url = _store(store, target)
    with _listening(listen) as door:
        host, port = door.getsockname()[:2]
        settings = Settings(app, url, host, port, reload, browse, how.json)
        try:
            again = asyncio.run(_Development(settings, target, broken, seen, door).run())
        except (ConfigError, EngineError, OSError) as error:
            return refused(str(error))
    if again:
        _begin_anew(port)
    return OK


def _begin_anew(port: int) -> None:
    """The same command in the same process, with the code as it is now."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.environ[AGAIN] = str(port)
    os.execv(sys.executable, sys.orig_argv)


def _write_example() -> str:
    path = Path("hello.py")
    if not path.exists():
        path.write_text(EXAMPLE)
    return "hello.py"


def _loaded(target: str | None) -> tuple[App | None, str | None]:
    """The app, or why it cannot be loaded: that is an error at first, and something to be mended later on."""
    if target is None:
        return None, None
    try:
        return load_app(target), None
    except Misused as error:
        if AGAIN not in os.environ:
            raise
        return None, str(error)


def _store(store: str | None, app: App | None) -> str:
    chosen = named_store(store)
    if chosen:
        if is_server(chosen):
            raise Misused(
                f"--store {redacted(chosen)}: dev runs a server of its own; name a store: sqlite:///work.db, "
                "postgresql://… or valkey://…"
            )
        return chosen
    if app is not None and not is_server(app.url):
        return app.url
    return f"sqlite:///{DEFAULT_FILE}"


def _listening(listen: str | None) -> socket.socket:
    """A socket where it was asked for, or at the first free port from 9090 on.

    It is held from now on: of two that start at the same time, each gets one of its own.
    """
    again = int(os.environ.get(AGAIN, "0"))
    if listen is None:
        first = again or DEFAULT_PORT
        for number in (*range(first, first + 100), 0):
            found = _bound("127.0.0.1", number)
            if found is not None:
                return found
        raise Misused("no free port on 127.0.0.1; choose one with --listen")
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535:
        raise Misused(f"--listen {listen}: expected an address and a port, such as 127.0.0.1:9090")
    host = host.strip("[]") or "127.0.0.1"
    if not _is_loopback(host) and not os.environ.get("FF_API_TOKEN"):
        raise Misused(f"{host} is open to other machines: set FF_API_TOKEN, or listen on 127.0.0.1")
    found = _bound(host, int(port) or again)
    if found is None:
        raise Misused(f"--listen {listen}: this port is in use; choose another one, or 0 for any free port")
    return found


def _is_loopback(host: str) -> bool:
    from flowfabric.server.config import is_loopback

    return is_loopback(host)


def _bound(host: str, port: int) -> socket.socket | None:
    """A socket that listens there, unless another one does."""
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(2048)
    except OSError:
        found.close()
        return None
    return found


class _Development:
    """One engine; a server, and perhaps a worker, on it."""

    def __init__(
        self, settings: Settings, app: App | None, broken: str | None, seen: dict[str, int], door: socket.socket
    ) -> None:
        self._settings = settings
        self._door = door
        self._app = app
        self._broken = broken
        self._seen = seen
        self._changed = False

    async def run(self) -> bool:
        """Until it is told to stop, or until files change: then ``True``."""
        from flowfabric.server.app import create_app
        from flowfabric.server.config import ServerConfig
        from flowfabric.server.http.cors import with_cors
        from flowfabric.server.serving import Running

        settings = self._settings
        async with contextlib.AsyncExitStack() as stack:
            engine = await self._open(stack)
            token = os.environ.get("FF_API_TOKEN") or None
            config = ServerConfig(
                store_url=settings.url,
                single_node=True,
                host=settings.host,
                port=settings.port,
                api_token=token,
                guard_host=token is None,
                grace_ms=3_000,
            )
            server = create_app(engine, config)
            running = Running(server, config, with_cors(server, config))
            stack.push_async_callback(running.drain)
            worker = self._worker()
            if worker is not None:
                await stack.enter_async_context(worker)
            serving = asyncio.ensure_future(running.run(self._door))
            started = asyncio.ensure_future(running.started())
            await asyncio.wait((serving, started), return_when=asyncio.FIRST_COMPLETED)
            tasks = [started]
            if not serving.done():
                self._introduce(settings.port)
                tasks += [asyncio.ensure_future(self._tell_ends(engine))]
                tasks += [asyncio.ensure_future(server.sampler.run(server.closing))]
                tasks += [asyncio.ensure_future(self._watch(running.stop))] if self._seen else []
            try:
                await serving
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                if not settings.json and not self._changed:
                    err().print("[dim]stopping: running attempts finish or are given back[/dim]")
                self._ignore_impatience()
        return self._changed

    async def _open(self, stack: contextlib.AsyncExitStack) -> Engine:
        from flowfabric.engine import Engine
        from flowfabric.server.serving import NEW_PARTITIONS

        engine = await Engine.open(self._settings.url, single_node=True, new_partitions=NEW_PARTITIONS, migrate=APPLY)
        if self._app is None:
            stack.push_async_callback(engine.close)
        else:
            self._app.move(self._settings.url)
            await self._app.open_on(engine)
            stack.push_async_callback(self._app.close)
        kids = await engine.list_waitpoint_hmac_kids()
        if kids.current_kid is None:
            # Kept in the store, so that signed links outlive this process.
            await engine.seed_waitpoint_hmac_secret(kid="k1", secret_hex=secrets.token_hex(32))
        engine.start_timers()
        return engine

    def _worker(self) -> Any:
        """A worker for everything that the app defines, whatever lane it is in and whatever it needs."""
        app = self._app
        if app is None or not app.definitions:
            return None
        lanes = dict.fromkeys([app.lane, *(each.options.lane or app.lane for each in app.definitions.values())])
        needs = {need for each in app.definitions.values() for need in each.options.needs}
        return app.worker(
            lanes=list(lanes), capabilities=sorted(needs), name="dev", lease_ttl=LEASE, drain_grace=timedelta(seconds=3)
        )

    async def _watch(self, stop: Callable[[], None]) -> None:
        which = await source_changed(Path.cwd(), self._seen)
        self._changed = True
        if not self._settings.json:
            err().print(f"[cyan]{escape(which)} changed: reloading[/cyan]")
        stop()

    async def _tell_ends(self, engine: Engine) -> None:
        """One line for every run that ends."""
        async with await engine.subscribe_completion() as subscription:
            async for event in subscription:
                found = await engine.read_execution_info(event.execution_id)
                if found is None or found.execution_kind.startswith("$"):
                    continue
                if self._settings.json:
                    say_line(
                        {"run": str(event.execution_id), "kind": found.execution_kind, "state": found.public_state}
                    )
                    continue
                state, kind = coloured(found.public_state.value), escape(found.execution_kind)
                say(f"  {state}  {kind}  [dim]{escape(short(event.execution_id))}[/dim]")

    def _ignore_impatience(self) -> None:
        """A second Ctrl-C while everything is put away ends the process at once, as one expects."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)

    # -- words ---------------------------------------------------------------------------------------------------

    def _introduce(self, port: int) -> None:
        settings = self._settings
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"http://{host}:{port}"
        kinds = sorted(self._app.definitions) if self._app is not None else []
        if settings.json:
            say_line(
                {"console": f"{address}/", "api": f"{address}/docs", "store": redacted(settings.url), "worker": kinds}
            )
        elif AGAIN in os.environ:
            say("[dim]running again[/dim]" if self._broken is None else f"[red]{escape(self._broken)}[/red]")
        else:
            self._welcome(address, kinds)
        if settings.browse and AGAIN not in os.environ:
            import webbrowser

            webbrowser.open(f"{address}/")

    def _welcome(self, address: str, kinds: list[str]) -> None:
        settings = self._settings
        say("")
        say(f"  [bold]console[/bold]  [cyan]{escape(address)}/[/cyan]")
        say(f"  [bold]API[/bold]      [cyan]{escape(address)}/docs[/cyan]")
        say(f"  [bold]store[/bold]    {escape(redacted(settings.url))}")
        if settings.target is not None:
            names = ", ".join(map(escape, kinds)) or "[yellow]the app defines no task or workflow[/yellow]"
            note = " [dim](reloads when a file changes)[/dim]" if settings.reload else ""
            say(f"  [bold]worker[/bold]   {escape(settings.target)}: {names}{note}")
            say("")
            if kinds:
                first = next(iter(self._app.definitions.values())) if self._app is not None else None
                line = f"flowfabric run {settings.target} {first.name} {usage(first)}" if first is not None else ""
                say(f"  [dim]In another terminal:[/dim] {escape(line)}")
        else:
            say("")
            say(
                "  [dim]Next: save this as hello.py and run[/dim] flowfabric dev hello.py [dim](or use --example)[/dim]"
            )
            say("")
            for line in EXAMPLE.splitlines():
                out().print(f"    {line}", markup=False, style="dim")
        say("")
        say("  [dim]Ctrl-C to stop.[/dim]")
        sys.stdout.flush()


# -- noticing that source files have changed -------------------------------------------------------------------------

_LOOK_S = 0.4
_MOST = 5_000
_FOREIGN = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "env", "build", "dist"})


def source_files(folder: Path) -> dict[str, int]:
    """The Python files below a folder, with the time each was changed. Hidden folders are left out."""
    found: dict[str, int] = {}
    for parent, folders, files in os.walk(folder):
        folders[:] = [each for each in folders if not each.startswith(".") and each not in _FOREIGN]
        for name in files:
            if not name.endswith(".py"):
                continue
            path = os.path.join(parent, name)
            try:
                found[path] = os.stat(path).st_mtime_ns
            except OSError:
                continue
            if len(found) >= _MOST:
                return found
    return found


async def source_changed(folder: Path, seen: dict[str, int]) -> str:
    """Wait until a file is another than it was, is new or is gone; its name below the folder."""
    while True:
        now = await asyncio.to_thread(source_files, folder)
        different = [path for path in seen.keys() | now.keys() if seen.get(path) != now.get(path)]
        if different:
            return min(different).removeprefix(f"{folder}{os.sep}")
        await asyncio.sleep(_LOOK_S)
