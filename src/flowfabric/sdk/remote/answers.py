"""What a server answers to a remote engine: what it is, claimed work, and leases that are gone."""

from __future__ import annotations

import logging
from typing import ClassVar

import msgspec
from msgspec import Struct

from flowfabric.engine.wire.protocol import PROTOCOL
from flowfabric.model.secrets import Discreet
from flowfabric.sdk.errors import BadOptions

_log = logging.getLogger("flowfabric.remote")


class Partitions(Struct):
    flow: int
    budget: int
    quota: int


class Hello(Struct):
    version: str
    store: str
    backend: str
    partitions: Partitions
    protocol: int = 0
    oldest_protocol: int = 0


class Work(Discreet, Struct):
    HIDDEN: ClassVar[frozenset[str]] = frozenset({"handle"})
    handle: str
    execution_id: str
    execution_kind: str
    input_payload: bytes
    tags: dict[str, str]
    cancel_at: int | None = None
    cancel_reason: str = ""
    replays: int = 0


class Claimed(Struct):
    work: list[Work]


class LostLeases(Struct):
    lost: list[int]
    cancelling: list[int] = []


HELLO = msgspec.json.Decoder(Hello)
CLAIMED = msgspec.json.Decoder(Claimed)
LOST = msgspec.json.Decoder(LostLeases)


def check_protocol(hello: Hello) -> None:
    """Refuse a server that does not understand this release any more, and say if it may not yet."""
    if hello.oldest_protocol > PROTOCOL:
        raise BadOptions(
            f"the server (flowfabric {hello.version}) understands protocol {hello.oldest_protocol} and later, and this "
            f"release speaks protocol {PROTOCOL}: upgrade flowfabric here",
            option="url",
        )
    if hello.protocol < PROTOCOL:
        _log.warning(
            "the server (flowfabric %s) is older than this release: upgrade servers first; what it does not "
            "understand is retried",
            hello.version,
        )
