"""The ``--store`` and ``--server`` options: choosing what a command talks to, and opening it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Group, Parameter

from flowfabric.cli import run_ids
from flowfabric.cli.terminal import Misused
from flowfabric.sdk.app import App
from flowfabric.stores.environment import ConfigError, store_url
from flowfabric.stores.kinds import SCHEMES
from flowfabric.stores.migrate import CHECK

if TYPE_CHECKING:
    from flowfabric.stores.valkey.durability import Durability

T = TypeVar("T")

#: The file that ``flowfabric dev`` makes, and that commands look at if nothing else is named.
DEFAULT_FILE = "flowfabric.db"
#: How long a person is kept waiting for a server that cannot be reached.
PATIENCE_S = 3.0
_IN_MEMORY = "sqlite:///:memory:"
EVERYWHERE = Group("Connection and output", sort_key=9)


@Parameter(name="*", group=EVERYWHERE)
@dataclass(frozen=True)
class Where:
    """The store or the server that a command is about, and how it answers."""

    url: Annotated[
        str | None,
        Parameter(
            name=("--url", "-u"),
            env_var=("FF_URL", "FF_STORE_URL"),
            help="sqlite:///file, postgresql://…, valkey://…, or http://… of a server; by default the store of "
            "FF_BACKEND, or ./flowfabric.db if it exists.",
        ),
    ] = None
    token: Annotated[str | None, Parameter(name="--token", env_var="FF_API_TOKEN", help="The token for a server.")] = (
        None
    )
    json: Annotated[bool, Parameter(name="--json", negative=(), help="Print JSON.", show_default=False)] = False

    def address(self, *, create: bool = False) -> str:
        """The URL that is meant. A SQLite file that does not exist is made only by those who put something in."""
        url = self.named
        if url == _IN_MEMORY and not self.url:
            raise Misused(
                "FF_BACKEND=sqlite without FF_SQLITE_PATH is a database in the memory of one process, which a command "
                "cannot open: set FF_SQLITE_PATH, or pass --url"
            )
        if url:
            _check_scheme(url)
            path = url.removeprefix("sqlite:///") if url.startswith("sqlite:///") else None
            if path and not create and not path.startswith((":", "file:")) and not os.path.exists(path):
                raise Misused(f"there is no database {path}; create it with `flowfabric db migrate --url {url}`")
            return url
        if create or os.path.exists(DEFAULT_FILE):
            return f"sqlite:///{DEFAULT_FILE}"
        raise Misused(
            "which store? Pass --url sqlite:///work.db, postgresql://…, valkey://… or http://… of a server, or set "
            "FF_URL or FF_BACKEND; `flowfabric dev` creates one here"
        )

    @property
    def named(self) -> str | None:
        """The URL that was given, or what the environment says."""
        return named_store(self.url)

    @property
    def is_server(self) -> bool:
        """Whether it is reached over HTTP."""
        return is_server(self.named)


NOWHERE = Where()


@Parameter(name="*", group=EVERYWHERE)
@dataclass(frozen=True)
class How:
    """How a command answers that is about no store."""

    json: Annotated[bool, Parameter(name="--json", negative=(), help="Print JSON.", show_default=False)] = False


AS_TEXT = How()

Namespace = Annotated[str, Parameter(name=("--namespace", "-n"), help="The namespace.")]
RunId = Annotated[str, Parameter(help="The run's id, such as 7:1f0c….", converter=run_ids.read)]
Reason = Annotated[str, Parameter(help="The reason, kept with the change.", show_default=False)]


def is_server(url: str | None) -> bool:
    """Whether a URL is one of a server."""
    return bool(url) and str(url).startswith(("http://", "https://"))


def _check_scheme(url: str) -> None:
    """Refuse what is neither a store's address nor a server's before anybody tries to reach it."""
    known = tuple(scheme for schemes in SCHEMES.values() for scheme in schemes)
    if not is_server(url) and not url.startswith(known):
        raise Misused(
            f"--url: {url.partition(':')[0]!r} is neither a store nor a server; use sqlite:///file, postgresql://…, "
            "valkey://…, or http://… of a server"
        )


def named_store(url: str | None) -> str | None:
    """A store that is named: by this URL, or in the environment."""
    try:
        return store_url(os.environ, url)
    except ConfigError as error:
        raise Misused(str(error)) from None


def app_at(url: str, token: str | None, namespace: str = "default") -> App:
    """An app without definitions, for a store or a server. It leaves the tables of a store that is there as they are:
    those who deploy bring them up to date."""
    if not is_server(url):
        return App(url, namespace=namespace, engine_options={"migrate": CHECK} if _is_there(url) else {})
    return App(url, namespace=namespace, token=token, engine_options={"patience_s": PATIENCE_S})


def _is_there(url: str) -> bool:
    """Whether there is a store at an address: a SQLite file may still have to be made."""
    if url.startswith("memory:"):
        return False
    path = url.removeprefix("sqlite:///")
    return path == url or (not path.startswith((":", "file:")) and os.path.exists(path))


def on_store(
    where: Where, act: Callable[[App], Coroutine[Any, Any, T]], namespace: str = "default", *, create: bool = False
) -> T:
    """Open the store or the server, do something there, close it."""
    app = app_at(where.address(create=create), where.token, namespace)

    async def opened() -> T:
        async with app:
            return await act(app)

    return asyncio.run(opened())


def only_store(where: Where, what: str) -> str:
    """The store's own address, for what a server does not do for others."""
    if where.is_server:
        raise Misused(f"{what} works on the store itself: pass --url sqlite:///…, postgresql://… or valkey://…")
    return where.address(create=True)


def durability_shown(durability: Durability) -> str:
    """How a store's server is set up, and what a commit survives there."""
    settings = ", ".join(f"{name} {value}" for name, value in durability.facts().items())
    return f"{durability.sentence()} ({settings})"


def durability_document(durability: Durability | None) -> dict[str, Any]:
    """The same for programs; nothing of stores that depend on no server's settings."""
    if durability is None:
        return {}
    return {"durability": {**durability.facts(), "sentence": durability.sentence()}}
