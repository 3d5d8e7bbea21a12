"""Connections to a Valkey server, and calls of the functions we keep there.

`libvalkey` reads what the server sends; the rest is asyncio. Full clients spend 1.3 to 3 times the processor time
on a call (``bench/valkey_clients.py``) and hide what has to be known here: whether a command was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import ssl
from collections.abc import Callable
from typing import Any, Self, cast

import libvalkey

from flowfabric.model.errors import TransportKind
from flowfabric.stores.protocol import Conflict, Outdated
from flowfabric.stores.valkey.address import Address, tls_settings
from flowfabric.stores.valkey.errors import checked, lost, misfit, refusal, unknown

_log = logging.getLogger("flowfabric.stores.valkey")
#: Functions came with 7.0, WAITAOF and the first Valkey with 7.2.
OLDEST_SERVER = (7, 2)
CONNECT_TIMEOUT_S = 10.0
CALL_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 2.0
#: How long a server may take to read its data before a call gives up on it, and how often it is asked.
LOADING_TIMEOUT_S, LOADING_POLL_S = 30.0, 0.05
#: Calls under way at the same time, each on a connection of its own. Reads have a limit of their own, so that many
#: long ones never hold up a commit.
WRITERS, READERS = 8, 8
#: Seconds until a silent connection is probed, between probes, and how many of them: a machine that has lost its
#: power says no goodbye.
KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}

#: Words of a command.
Command = tuple[bytes | str | int, ...]
#: A server's ``run_id``, which is new with every start, and ``master_replid``, which is new with every promotion.
Identity = tuple[str, str]
#: Answers of a server that is no longer the primary.
_DEMOTED = ("READONLY", "MASTERDOWN", "UNBLOCKED")
_NOT_YET = object()
_LIBRARY_NAME = re.compile(r"#!lua name=(\w+)\s")


class Wire(asyncio.Protocol):
    """One connection, used by one task at a time. ``push`` gets what comes without having been asked for."""

    def __init__(self, push: Callable[[Any], None] | None = None) -> None:
        self._reader = libvalkey.Reader(notEnoughData=_NOT_YET)
        self._transport: asyncio.Transport | None = None
        self._push = push
        self._asked: asyncio.Future[list[Any]] | None = None
        self._answers: list[Any] = []
        self._due = 0
        self._unasked: Any = None
        self._aborted = False
        #: Which server this is; see ``Connection.identity``.
        self.identity: Identity | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def usable(self) -> bool:
        """Whether it was not lost, as far as is known."""
        if self._transport is None or self._aborted or self.closed.done():
            return False
        return not self._transport.is_closing()

    async def connect(self, address: Address) -> Self:
        """Connect and say who we are. A connection that fails is given up."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await asyncio.get_running_loop().create_connection(
                    lambda: self, address.host, address.port, ssl=tls_settings(address)
                )
                await self._greet(address)
        except ssl.SSLEOFError:
            raise  # a lost connection, not a refused one
        except ssl.SSLError as error:
            raise misfit(
                f"no encrypted connection to {address.shown}: {error}; name the server's authority with tls_ca and "
                "your certificate with tls_cert, or write valkey:// for a server without TLS"
            ) from error
        except TimeoutError as error:
            also = "; check the port, and whether the server uses TLS" if address.tls else ""
            raise TimeoutError(f"the server did not respond within {CONNECT_TIMEOUT_S:g} s{also}") from error
        finally:
            if self._transport is None:
                self._end()
        return self

    async def _greet(self, address: Address) -> None:
        commands: list[Command] = [("CLIENT", "SETNAME", "flowfabric")]
        if address.db:
            commands.insert(0, ("SELECT", address.db))
        if address.user is not None or address.password is not None:
            account = (address.password or "",) if address.user is None else (address.user, address.password or "")
            commands.insert(0, ("AUTH", *account))
        *answers, named = await self.ask(*commands)
        # An account need not have the right to name a connection.
        checked(answers if str(named).startswith("NOPERM") else [*answers, named])

    async def ask(self, *commands: Command, timeout_s: float = CALL_TIMEOUT_S) -> list[Any]:
        """Send commands together and wait for all answers, errors among them. The wire is given up if that fails."""
        if self._transport is None or not self.usable:
            raise ConnectionResetError("the connection is closed")
        self._answers, self._due = [], len(commands)
        loop = asyncio.get_running_loop()
        self._asked = loop.create_future()
        late = TimeoutError(f"the server did not respond within {timeout_s:g} s")
        deadline = loop.call_later(timeout_s, self._fail, late)
        try:
            for command in commands:
                self._transport.write(libvalkey.pack_command(command))
            return await self._asked
        except BaseException:
            self.abort()
            raise
        finally:
            deadline.cancel()

    def abort(self) -> None:
        """Give the connection up at once."""
        self._aborted = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of asyncio's protocol."""
        self._transport = cast("asyncio.Transport", transport)
        if self._aborted:
            self._transport.abort()
        connected = transport.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def data_received(self, data: bytes) -> None:
        """Part of asyncio's protocol."""
        try:
            self._reader.feed(data)
            while (answer := self._reader.gets()) is not _NOT_YET:
                self._take(answer)
        except libvalkey.ProtocolError:
            self._fail(ConnectionAbortedError("the server is not Valkey; check the host and port of the store URL"))
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Part of asyncio's protocol."""
        # A server that turns somebody away says why, perhaps before it is asked anything, and closes.
        said = _error([self._unasked]) or _error(self._answers)
        self._fail(refusal(said) if said else error or ConnectionResetError("the server closed the connection"))
        self._end()

    def _take(self, answer: Any) -> None:
        if self._due:
            self._answers.append(answer)
            self._due -= 1
            if not self._due and self._asked is not None and not self._asked.done():
                self._asked.set_result(self._answers)
        elif self._push is not None:
            self._push(answer)
        else:
            self._unasked = answer

    def _end(self) -> None:
        if not self.closed.done():
            self.closed.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._asked is not None and not self._asked.done():
            self._asked.set_exception(error)


class Connection:
    """A few wires to one server, opened when they are needed. Open with ``Connection.open``."""

    def __init__(self, address: Address, library: str, functions_prefix: str) -> None:
        named = _LIBRARY_NAME.match(library)
        if named is None:
            raise ValueError("the library's text must begin with '#!lua name=' and its name")
        self.address = address
        #: Called when another server answers than before, or the same one after a restart, before it is believed.
        self.on_change: Callable[[], None] = lambda: None
        #: Who answered when a wire was last opened.
        self.identity: Identity | None = None
        self.server_version = ""
        self._library, self._library_name = library, named[1]
        self._functions_prefix = functions_prefix
        self._idle: list[Wire] = []
        self._wires: set[Wire] = set()
        self._writers, self._readers = asyncio.Semaphore(WRITERS), asyncio.Semaphore(READERS)
        self._closed = False

    @classmethod
    async def open(
        cls,
        address: Address,
        library: str,
        *,
        functions_prefix: str = "",
        on_change: Callable[[], None] = lambda: None,
    ) -> Self:
        """Connect, check the server and bring it the library of functions.

        The library's name should tell its text from that of any other release, and so should the names of its
        functions, which begin with ``functions_prefix``: libraries of several releases live side by side.
        """
        connection = cls(address, library, functions_prefix)
        connection.on_change = on_change
        try:
            connection._idle.append(await connection._opened())
        except OSError as error:
            raise lost(f"cannot connect to {address.shown}: {error}") from error
        finally:
            if not connection._idle:
                await connection.close()
        return connection

    # -- calls ---------------------------------------------------------------------------------------------------

    async def call(
        self,
        name: str,
        keys: list[bytes],
        arguments: list[bytes],
        *,
        read_only: bool,
        then: tuple[Command, ...] = (),
        timeout_s: float = CALL_TIMEOUT_S,
        under: Identity | None = None,
    ) -> Any:
        """Call a function. With ``then``, commands that follow on the same wire, all answers come in one list.

        A call that reads is made again if its connection is lost. One that writes raises ``Conflict`` if it was
        surely not sent, and says that the outcome is unknown if it was sent and not answered. It is not sent to
        another server than the one it is meant for, if ``under`` names one.
        """
        function = self._functions_prefix + name
        commands = (("FCALL_RO" if read_only else "FCALL", function, len(keys), *keys, *arguments), *then)
        if read_only:
            answers = checked(await self._read(commands, timeout_s))
        else:
            answers = _written(await self._write(commands, timeout_s, under))
        return answers if then else answers[0]

    async def command(self, *parts: bytes | str | int, read_only: bool = True) -> Any:
        """A plain command. One that reads is given again if its connection is lost."""
        (answer,) = await self.commands(parts, read_only=read_only)
        return answer

    async def commands(
        self, *commands: Command, read_only: bool = True, timeout_s: float = CALL_TIMEOUT_S
    ) -> list[Any]:
        """Plain commands, one behind the other on one wire."""
        send = self._read if read_only else self._write
        return checked(await send(commands, timeout_s))

    async def close(self) -> None:
        """Let go of every wire. Calls under way fail."""
        self._closed = True
        self._idle.clear()
        for wire in list(self._wires):
            wire.abort()
        if self._wires:
            await asyncio.wait([wire.closed for wire in self._wires], timeout=CLOSE_TIMEOUT_S)

    async def _read(self, commands: tuple[Command, ...], timeout_s: float) -> list[Any]:
        async with self._readers:
            try:
                with contextlib.suppress(ConnectionError, ssl.SSLError):
                    return await self._asked(await self._wire(), commands, timeout_s)
                # Other idle wires may have been lost with this one, and nobody has noticed yet.
                return await self._asked(await self._opened(), commands, timeout_s)
            except OSError as error:
                raise lost(error) from error

    async def _write(self, commands: tuple[Command, ...], timeout_s: float, under: Identity | None = None) -> list[Any]:
        async with self._writers:
            try:
                wire = await self._wire()
            except OSError as error:
                raise Conflict(f"cannot connect: {error}") from error
            if under is not None and wire.identity != under:
                self._idle.append(wire)
                raise Conflict("another server has taken over")
            try:
                return await self._asked(wire, commands, timeout_s)
            except OSError as error:
                raise unknown(error) from error

    async def _asked(self, wire: Wire, commands: tuple[Command, ...], timeout_s: float) -> list[Any]:
        kept = False
        try:
            answers = await wire.ask(*commands, timeout_s=timeout_s)
            if _error(answers).startswith("ERR Function not found"):
                await self._load(wire)
                answers = await wire.ask(*commands, timeout_s=timeout_s)
            if wire.identity != self.identity:
                raise ConnectionResetError("another server has taken over")
            # One that was the primary is given up: who is that now is found out by connecting again.
            kept = wire.usable and not self._closed and not _error(answers).startswith(_DEMOTED)
            return answers
        finally:
            if kept:
                self._idle.append(wire)
            else:
                wire.abort()

    # -- wires ---------------------------------------------------------------------------------------------------

    def doubt(self) -> None:
        """Ask again who answers, before anything else is asked."""
        while self._idle:
            self._idle.pop().abort()

    async def _wire(self) -> Wire:
        while self._idle:
            wire = self._idle.pop()
            if wire.usable and wire.identity == self.identity:
                return wire
            wire.abort()
        return await self._opened()

    async def _opened(self) -> Wire:
        if self._closed:
            raise lost("the connection is closed")
        wire = Wire()
        self._wires.add(wire)
        wire.closed.add_done_callback(lambda _: self._forget(wire))
        try:
            await wire.connect(self.address)
            facts = await self._examine(wire)
            await self._load_if_absent(wire)
        except BaseException:
            wire.abort()
            raise
        wire.identity = (facts.get("run_id", ""), facts.get("master_replid", ""))
        before, self.identity = self.identity, wire.identity
        if before not in (None, self.identity):
            _log.warning("%s has restarted, or another server answers there", self.address.shown)
            for other in self._wires:
                if other.identity == before:
                    other.abort()
            self.on_change()
        return wire

    def _forget(self, wire: Wire) -> None:
        self._wires.discard(wire)
        if wire in self._idle:
            self._idle.remove(wire)

    async def _examine(self, wire: Wire) -> dict[str, str]:
        """Refuse a server that cannot do; wait for one that cannot yet."""
        deadline = asyncio.get_running_loop().time() + LOADING_TIMEOUT_S
        while True:
            facts = info_facts(*checked(await wire.ask(("INFO",))))
            if facts.get("loading", "0") == "0":
                break
            if asyncio.get_running_loop().time() > deadline:
                raise refusal("LOADING")
            await asyncio.sleep(LOADING_POLL_S)
        self.server_version = suitable_version(facts)
        if facts.get("role") != "master":
            raise refusal("READONLY")
        return facts

    async def _load_if_absent(self, wire: Wire) -> None:
        (found,) = await wire.ask(("FUNCTION", "LIST", "LIBRARYNAME", self._library_name))
        # An account may lack the right to list functions, and somebody else may have loaded them for it.
        if not found:
            await self._load(wire)

    async def _load(self, wire: Wire) -> None:
        (answer,) = await wire.ask(("FUNCTION", "LOAD", self._library))
        # Another process may have been quicker.
        if (said := _error([answer])) and not said.startswith("ERR Library"):
            raise refusal(answer)


def _written(answers: list[Any]) -> list[Any]:
    """The answers of a function that writes and of what follows it, unless one is an error."""
    for place, answer in enumerate(answers):
        if isinstance(answer, libvalkey.ReplyError):
            error = refusal(answer)
            raise unknown(error.detail) if place or error.half_way else error
    return answers


def _error(answers: list[Any]) -> str:
    """What the first answer says, if that is an error."""
    return str(answers[0]) if answers and isinstance(answers[0], libvalkey.ReplyError) else ""


def info_facts(text: bytes) -> dict[str, str]:
    """What INFO says, by name."""
    lines = (line.partition(":") for line in text.decode("utf-8", "replace").splitlines())
    return {name: value for name, colon, value in lines if colon}


def suitable_version(facts: dict[str, str]) -> str:
    """The server's version, if it is a Valkey that can do all we need."""
    version = facts.get("valkey_version")
    if version is None and facts.get("server_name") == "valkey":
        version = facts.get("redis_version")
    needed = ".".join(map(str, OLDEST_SERVER))
    if version is None:
        found = f"Redis {facts['redis_version']}" if "redis_version" in facts else "something else"
        raise misfit(f"the server is {found}; FlowFabric needs Valkey {needed} or newer")
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST_SERVER:
        sentence = f"the server is Valkey {version}; FlowFabric needs {needed} or newer"
        raise Outdated("valkey", TransportKind.PROTOCOL, sentence)
    return version
