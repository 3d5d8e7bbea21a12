"""What commands share that look at a store or a server: which one, and how to open it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from cyclopts import Group, Parameter

from flowfabric.cli.terminal import Misused
from flowfabric.sdk.app import App

T = TypeVar("T")

#: The file that ``flowfabric dev`` makes, and that commands look at if nothing else is named.
DEFAULT_FILE = "flowfabric.db"
#: How long a person is kept waiting for a server that cannot be reached.
PATIENCE_S = 3.0
EVERYWHERE = Group("Where and how", sort_key=9)


@Parameter(name="*", group=EVERYWHERE)
@dataclass(frozen=True)
class Where:
    """The store or the server that a command is about, and how it answers."""

    url: Annotated[
        str | None,
        Parameter(
            name=("--url", "-u"),
            env_var=("FF_URL", "FF_STORE_URL"),
            help="sqlite:///file, postgresql://…, or http://… of a server; else ./flowfabric.db if it is there.",
        ),
    ] = None
    token: Annotated[
        str | None, Parameter(name="--token", env_var="FF_API_TOKEN", help="The credential, for a server.")
    ] = None
    json: Annotated[bool, Parameter(name="--json", negative=(), help="Answer as JSON.", show_default=False)] = False

    def address(self, *, create: bool = False) -> str:
        """The URL that is meant. A SQLite file that does not exist is made only by those who put something in."""
        if self.url:
            path = self.url.removeprefix("sqlite:///") if self.url.startswith("sqlite:///") else None
            if path and not create and not path.startswith((":", "file:")) and not os.path.exists(path):
                raise Misused(f"there is no database {path}; `flowfabric db migrate --url {self.url}` makes it")
            return self.url
        if create or os.path.exists(DEFAULT_FILE):
            return f"sqlite:///{DEFAULT_FILE}"
        raise Misused(
            "which store? Say --url sqlite:///work.db, postgresql://… or http://… of a server, or set FF_URL; "
            "`flowfabric dev` begins one here"
        )

    @property
    def is_server(self) -> bool:
        """Whether it is reached over HTTP."""
        return is_server(self.url)


NOWHERE = Where()


@Parameter(name="*", group=EVERYWHERE)
@dataclass(frozen=True)
class How:
    """How a command answers that is about no store."""

    json: Annotated[bool, Parameter(name="--json", negative=(), help="Answer as JSON.", show_default=False)] = False


AS_TEXT = How()

Namespace = Annotated[str, Parameter(name=("--namespace", "-n"), help="The namespace.")]
RunId = Annotated[str, Parameter(help="The run's id, {fp:…}:….")]
Reason = Annotated[str, Parameter(help="Why, for the record.", show_default=False)]


def is_server(url: str | None) -> bool:
    """Whether a URL is one of a server."""
    return bool(url) and str(url).startswith(("http://", "https://"))


def app_at(url: str, token: str | None, namespace: str = "default") -> App:
    """An app without definitions, for a store or a server."""
    if not is_server(url):
        return App(url, namespace=namespace)
    return App(url, namespace=namespace, token=token, engine_options={"patience_s": PATIENCE_S})


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
        raise Misused(f"{what} works on the store itself: say --url sqlite:///… or postgresql://…")
    return where.address(create=True)
