"""Hints between processes by PUBLISH and SUBSCRIBE."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Iterable
from typing import Any

import msgspec

from flowfabric.model.errors import Transport
from flowfabric.stores import wakeups
from flowfabric.stores.valkey.address import Address
from flowfabric.stores.valkey.connection import Wire
from flowfabric.stores.valkey.errors import checked


class _Message(msgspec.Struct, array_like=True):
    sender: str
    topics: list[str]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Message).decode


class Wakeups(wakeups.Wakeups):
    """Sends at once, and gathers only while the last message is under way: a message costs the server next to nothing.

    Messages reach every database of the server; those of another with the same prefix wake somebody for nothing.
    """

    errors = (OSError, Transport)
    log = logging.getLogger("flowfabric.stores.valkey")

    def __init__(self, address: Address) -> None:
        super().__init__()
        self._address = address
        self._channel = f"{address.prefix}:wake"
        #: Messages with this name are our own, and no news.
        self._name = secrets.token_hex(8)
        self._wire: Wire | None = None
        self._wires: set[Wire] = set()

    async def close(self) -> None:
        """Stop sending and listening."""
        await super().close()
        for wire in list(self._wires):
            wire.abort()
        if self._wires:
            await asyncio.wait([wire.closed for wire in self._wires], timeout=wakeups.SENDER_GRACE_S)

    def message(self, topics: Iterable[str]) -> tuple[bytes, bytes]:
        """The channel and what to send there, for somebody who sends it along with something else."""
        return self._channel.encode(), _encode(_Message(self._name, wakeups.few(topics)))

    async def _deliver(self, topics: list[str]) -> None:
        if self._wire is None or not self._wire.usable:
            self._wire = self._new_wire()
            await self._wire.connect(self._address)
        checked(await self._wire.ask(("PUBLISH", self._channel, _encode(_Message(self._name, topics)))))

    def _hang_up(self) -> None:
        if self._wire is not None:
            self._wire.abort()
            self._wire = None

    @contextlib.asynccontextmanager
    async def _listening(self, topics: asyncio.Queue[str | None]) -> AsyncIterator[None]:
        def hear(answer: Any) -> None:
            _, _, payload = answer
            for topic in self._news(payload):
                topics.put_nowait(topic)

        wire = self._new_wire(hear)
        try:
            await wire.connect(self._address)
            checked(await wire.ask(("SUBSCRIBE", self._channel)))
            wire.closed.add_done_callback(lambda _: topics.put_nowait(None))
            yield
        finally:
            wire.abort()

    def _new_wire(self, push: Any = None) -> Wire:
        wire = Wire(push)
        self._wires.add(wire)
        wire.closed.add_done_callback(lambda _: self._wires.discard(wire))
        return wire

    def _news(self, payload: bytes) -> list[str]:
        try:
            message = _decode(payload)
        except msgspec.DecodeError:
            # Of another release, or by hand: it may mean anything.
            return [wakeups.EVERYTHING]
        return [] if message.sender == self._name else message.topics
