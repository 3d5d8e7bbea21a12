"""Handles: the cookie a worker holds while it owns an attempt.

A handle is a value: two with the same content are equal, and it may be stored and sent back. Its `opaque` bytes are a
fixed little-endian layout that must never change. There is no signature in it: what protects an execution is the epoch
inside, which only the current holder knows to be current.
"""

from __future__ import annotations

import struct
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.ids import ExecutionId, ExecutionIdError, canonical_uuid

_MAGIC: Final = 0x02
_WIRE_VERSION: Final = 0x01
_LEGACY_MAGIC: Final = 0x01

_U32 = struct.Struct("<I")
_EPOCH_AND_TTL = struct.Struct("<QQ")


class BackendTag(StrEnum):
    """The kind of store that minted a handle."""

    VALKEY = "Valkey"
    POSTGRES = "Postgres"
    SQLITE = "Sqlite"
    MEMORY = "Memory"

    @property
    def byte(self) -> int:
        """The tag byte inside the opaque buffer."""
        return _BYTES[self]


_BYTES: Final = {BackendTag.VALKEY: 1, BackendTag.POSTGRES: 2, BackendTag.SQLITE: 3, BackendTag.MEMORY: 4}
_TAGS: Final = {byte: tag for tag, byte in _BYTES.items()}
_HEADS: Final = {tag: bytes((_MAGIC, _WIRE_VERSION, byte)) for tag, byte in _BYTES.items()}


class HandleKind(StrEnum):
    """How the attempt came to its holder."""

    FRESH = "Fresh"
    RESUMED = "Resumed"
    SUSPENDED = "Suspended"
    RECLAIMED = "Reclaimed"


class HandlePayload(Struct, frozen=True, gc=False):
    """What a handle says: which attempt, under which lease, by whom. Plain texts, as the records it is held against."""

    execution_id: str
    attempt_index: int
    attempt_id: str
    lease_id: str
    lease_epoch: int
    lease_ttl_ms: int
    lane_id: str
    worker_instance_id: str


class Handle:
    """An attempt in the hands of a worker. Operations borrow it; it does not change."""

    __slots__ = ("_backend", "_kind", "_opaque", "_payload")

    _opaque: bytes | None
    _payload: HandlePayload | None

    def __init__(self, backend: BackendTag, kind: HandleKind, opaque: bytes) -> None:
        self._backend = BackendTag(backend)
        self._kind = HandleKind(kind)
        self._opaque = bytes(opaque)
        self._payload = None

    @classmethod
    def of(cls, backend: BackendTag, kind: HandleKind, payload: HandlePayload) -> Handle:
        """Mint a handle. In this process it is never decoded, and encoded only if someone looks at `opaque`."""
        handle = cls.__new__(cls)
        handle._backend = backend
        handle._kind = kind
        handle._opaque = None
        handle._payload = payload
        return handle

    @property
    def backend(self) -> BackendTag:
        """The kind of store that minted it."""
        return self._backend

    @property
    def kind(self) -> HandleKind:
        """How the attempt came to its holder."""
        return self._kind

    @property
    def opaque(self) -> bytes:
        """The bytes to store or to send."""
        opaque = self._opaque
        if opaque is None:
            assert self._payload is not None, "a handle is made from bytes or from a payload"
            opaque = self._opaque = encode(self._backend, self._payload)
        return opaque

    @property
    def payload(self) -> HandlePayload:
        """What it says: which attempt, under which lease, by whom."""
        # Not kept: whose handle it is has to be checked before its content is trusted.
        return decode(self.opaque)[1] if self._payload is None else self._payload

    @property
    def execution_id(self) -> ExecutionId:
        """The execution it is for."""
        return ExecutionId.unchecked(self.payload.execution_id)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Handle):
            return NotImplemented
        return self.backend is other.backend and self.kind is other.kind and self.opaque == other.opaque

    def __hash__(self) -> int:
        return hash((self.backend, self.kind, self.opaque))

    def __reduce__(self) -> tuple[Any, ...]:
        return Handle, (self.backend, self.kind, self.opaque)

    def __repr__(self) -> str:
        payload = self._payload
        if payload is None:
            return f"<Handle {self.backend} {self.kind} {len(self.opaque)} bytes>"
        about = f"{payload.execution_id} attempt={payload.attempt_index} epoch={payload.lease_epoch}"
        return f"<Handle {self.backend} {self.kind} {about}>"


def shown_lease(store: str, held: HandlePayload) -> str:
    """The name of a lease as operators see it."""
    uuid = held.execution_id.partition("}:")[2]
    return f"{store}:{uuid}:{held.attempt_index}:{held.lease_epoch}"


def encode(tag: BackendTag, payload: HandlePayload) -> bytes:
    """The opaque buffer, version 2."""
    execution_id = payload.execution_id.encode()
    attempt_id = payload.attempt_id.encode()
    lease_id = payload.lease_id.encode()
    lane_id = payload.lane_id.encode()
    instance = payload.worker_instance_id.encode()
    number = _U32.pack
    try:
        return b"".join((
            _HEADS[tag],
            number(len(execution_id)), execution_id,
            number(payload.attempt_index),
            number(len(attempt_id)), attempt_id,
            number(len(lease_id)), lease_id,
            _EPOCH_AND_TTL.pack(payload.lease_epoch, payload.lease_ttl_ms),
            number(len(lane_id)), lane_id,
            number(len(instance)), instance,
        ))  # fmt: skip
    except struct.error:
        raise Validation(ValidationKind.INVALID_INPUT, "a number in the handle is too large for its field") from None


CodecProblem: TypeAlias = Literal[
    "Truncated", "TrailingBytes", "BadWireVersion", "BadV1Version", "BadBackendTag", "InvalidUtf8", "ParseField"
]


def _broken(problem: CodecProblem) -> Validation:
    return Validation(ValidationKind.CORRUPTION, f"handle_codec: {problem}")


def decode(opaque: bytes) -> tuple[BackendTag, HandlePayload]:
    """Read an opaque buffer: which kind of store minted it, and what it says."""
    if not opaque:
        raise _broken("Truncated")
    if opaque[0] == _MAGIC:
        if len(opaque) < 3:
            raise _broken("Truncated")
        if opaque[1] != _WIRE_VERSION:
            raise _broken("BadWireVersion")
        tag = _TAGS.get(opaque[2])
        if tag is None:
            raise _broken("BadBackendTag")
        return tag, _decode_fields(opaque, 3)
    if opaque[0] == _LEGACY_MAGIC:
        # Version 1 knew one store only and had no tag. It is read, never written.
        return BackendTag.VALKEY, _decode_fields(opaque, 1)
    raise _broken("BadV1Version")


def _decode_fields(opaque: bytes, at: int) -> HandlePayload:
    try:
        execution_id, at = _text(opaque, at)
        (attempt_index,) = _U32.unpack_from(opaque, at)
        attempt_id, at = _text(opaque, at + 4)
        lease_id, at = _text(opaque, at)
        lease_epoch, lease_ttl_ms = _EPOCH_AND_TTL.unpack_from(opaque, at)
        lane_id, at = _text(opaque, at + 16)
        instance, at = _text(opaque, at)
    except struct.error:
        raise _broken("Truncated") from None
    except UnicodeDecodeError:
        raise _broken("InvalidUtf8") from None
    if at != len(opaque):
        raise _broken("TrailingBytes")
    try:
        execution_id = str(ExecutionId(execution_id))
    except ExecutionIdError:
        raise _broken("ParseField") from None
    attempt = canonical_uuid(attempt_id)
    lease = canonical_uuid(lease_id)
    if attempt is None or lease is None:
        raise _broken("ParseField")
    # Lanes are not checked again: what a store holds under an odd name must still be finished.
    return HandlePayload(execution_id, attempt_index, attempt, lease, lease_epoch, lease_ttl_ms, lane_id, instance)


def _text(opaque: bytes, at: int) -> tuple[str, int]:
    """The length-prefixed text at an offset, and the offset behind it."""
    (length,) = _U32.unpack_from(opaque, at)
    end = at + 4 + length
    if end > len(opaque):
        raise _broken("Truncated")
    return opaque[at + 4 : end].decode(), end


def decode_for(handle: Handle, tag: BackendTag) -> HandlePayload:
    """The first check of every handle operation: the handle is this store's, outside and inside, and can be read."""
    if handle.backend is not tag:
        raise _foreign(tag, handle.backend)
    payload = handle._payload
    if payload is not None:
        return payload
    embedded, payload = decode(handle.opaque)
    if embedded is not tag:
        raise _foreign(tag, embedded, " (embedded tag)")
    handle._payload = payload
    return payload


def _foreign(expected: BackendTag, actual: BackendTag, suffix: str = "") -> Validation:
    detail = f"expected={expected} actual={actual}{suffix}"
    return Validation(ValidationKind.HANDLE_FROM_OTHER_BACKEND, detail)
