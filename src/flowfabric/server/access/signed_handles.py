"""Handles in the hands of others: signed, so that nobody can make one up or change it.

An envelope is ``<key id>.<content>.<signature>``, both in base64. The content says how the attempt came to its holder,
in which namespaces it was claimed, and what the handle says. The keys come from the store, so that an envelope from
one server is good on all of its replicas, and keys can be changed while work is held.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Iterable
from contextvars import Context

import msgspec

from flowfabric.engine import Engine
from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.handles import Handle, HandleKind
from flowfabric.model.waitpoint_tokens import DerivedKeys

PURPOSE = "handle envelopes"
#: How long keys are taken for good: one whose grace is over opens nothing a second later. A key that is not known is
#: looked for, but not more often than this.
KNOWN_S, LOOK_AGAIN_S = 1.0, 0.02
#: Envelopes that are remembered.
MAX_OPENED = 10_000
_KINDS = tuple(HandleKind)
_namespaces = msgspec.json.Decoder(list[str] | None)


class Envelopes:
    """Seals and opens handles with the keys of a store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._keys: DerivedKeys | None = None
        self._looked_at = 0.0
        self._looking: asyncio.Task[DerivedKeys] | None = None
        #: What was opened lately: the same lease is renewed and worked with many times.
        self._opened: dict[str, tuple[Handle, frozenset[str] | None]] = {}

    async def ready(self) -> None:
        """Have keys that are fresh enough."""
        if self._keys is None or time.monotonic() - self._looked_at > KNOWN_S:
            await self._look()

    async def _look(self) -> DerivedKeys:
        began = time.monotonic()
        keys = await self._engine.derived_keys(PURPOSE)
        if self._keys != keys:
            self._opened.clear()
        self._keys, self._looked_at = keys, began
        return keys

    async def _new_key(self, kid: str) -> bytes | None:
        """A key that another server may have made since: it is missing only if a look from now on does not find it."""
        now = time.monotonic()
        while self._looked_at <= now:
            if self._looking is None:
                self._looking = asyncio.get_running_loop().create_task(self._look_in_turn(), context=Context())
            await asyncio.shield(self._looking)
        assert self._keys is not None
        return self._keys.keys.get(kid)

    async def _look_in_turn(self) -> DerivedKeys:
        """One look for all who ask meanwhile."""
        try:
            await asyncio.sleep(max(self._looked_at + LOOK_AGAIN_S - time.monotonic(), 0))
            return await self._look()
        finally:
            self._looking = None

    def seal(self, handle: Handle, namespaces: Iterable[str] | None) -> str:
        """The envelope of a handle that was claimed within some namespaces, or within all."""
        assert self._keys is not None, "get ready first"
        within = msgspec.json.encode(None if namespaces is None else sorted(namespaces))
        head = bytes((_KINDS.index(handle.kind),)) + len(within).to_bytes(4, "big")
        content = head + within + handle.opaque
        kid = self._keys.current
        text = base64.urlsafe_b64encode(content).decode()
        return f"{kid}.{text}.{_signature(self._keys.keys[kid], text)}"

    async def open(self, envelope: str) -> tuple[Handle, frozenset[str] | None]:
        """The handle and where it was claimed; refused if it was not sealed with a key of the store."""
        await self.ready()
        known = self._opened.get(envelope)
        if known is not None:
            return known
        kid, _, rest = envelope.partition(".")
        text, _, signature = rest.partition(".")
        assert self._keys is not None
        key = self._keys.keys.get(kid) or await self._new_key(kid)
        if key is None or not hmac.compare_digest(_signature(key, text).encode(), signature.encode()):
            raise forged()
        try:
            content = base64.urlsafe_b64decode(text.encode())
            size = int.from_bytes(content[1:5], "big")
            within = _namespaces.decode(content[5 : 5 + size])
            handle = Handle(self._engine.store.tag, _KINDS[content[0]], content[5 + size :])
        except (binascii.Error, msgspec.DecodeError, IndexError, ValueError):
            raise forged() from None
        found = (handle, None if within is None else frozenset(within))
        if len(self._opened) >= MAX_OPENED:
            self._opened.clear()
        self._opened[envelope] = found
        return found


def _signature(key: bytes, text: str) -> str:
    return base64.urlsafe_b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode()


def forged() -> Validation:
    """What is answered to a handle that is not one of ours. Which part of it was wrong would help those who guess."""
    return Validation(ValidationKind.INVALID_INPUT, "handle: not issued by a server of this store; pass it unchanged")
