"""Handles as a remote worker holds them: what they say can be read, and their envelope is what the server trusts."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.handles import Handle, HandleKind, decode

_KINDS = tuple(HandleKind)


class RemoteHandle(Handle):
    """A handle with the envelope it came in."""

    __slots__ = ("envelope",)

    envelope: str

    def __reduce__(self) -> tuple[Any, ...]:
        return unsealed, (self.envelope,)


def unsealed(envelope: str) -> RemoteHandle:
    """The handle in an envelope. Nothing is verified here: the server refuses a changed envelope."""
    try:
        content = base64.urlsafe_b64decode(envelope.split(".")[1].encode())
        size = int.from_bytes(content[1:5], "big")
        opaque = content[5 + size :]
        tag, payload = decode(opaque)
        kind = _KINDS[content[0]]
    except (IndexError, binascii.Error, ValueError):
        raise Validation(ValidationKind.CORRUPTION, "handle: the envelope cannot be read") from None
    handle = RemoteHandle.__new__(RemoteHandle)
    handle._backend, handle._kind, handle._opaque, handle._payload = tag, kind, opaque, payload
    handle.envelope = envelope
    return handle


def sealed(handle: Handle) -> str:
    """The envelope of a handle."""
    if not isinstance(handle, RemoteHandle):
        raise Validation(ValidationKind.INVALID_INPUT, "handle: this execution was not claimed through a server")
    return handle.envelope
