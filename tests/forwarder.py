"""A door to a server: connections go to whichever port is behind it, and can be cut."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self

from tests.servers import LOOPBACK


class Forwarder:
    """Use as an async context manager. While no port is behind it, nobody is let in."""

    def __init__(self, target: int | None) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        #: Set once nothing more is carried over the connections that stand.
        self._frozen = asyncio.Event()

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def switch(self, target: int | None) -> None:
        """Cut every connection; later ones go elsewhere."""
        self._target = target
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def freeze(self) -> None:
        """Carry nothing more over the connections that stand, and do not close them: as if the machine had vanished."""
        self._frozen.set()
        self._frozen = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, LOOPBACK, 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        await self.switch(None)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            if self._target is not None:
                inner, outer = await asyncio.open_connection(LOOPBACK, self._target)
                try:
                    frozen = self._frozen
                    ways = [
                        asyncio.create_task(_carry(reader, outer, frozen)),
                        asyncio.create_task(_carry(inner, writer, frozen)),
                    ]
                    try:
                        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        for way in ways:
                            way.cancel()
                        await asyncio.gather(*ways, return_exceptions=True)
                finally:
                    outer.transport.abort()
        writer.transport.abort()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frozen: asyncio.Event) -> None:
    while data := await reader.read(65_536):
        if frozen.is_set():
            await asyncio.Event().wait()
        writer.write(data)
        await writer.drain()
