"""Partition arithmetic: which slice of the key space a thing belongs to.

The index of an execution is written into its id when it is minted and read from there ever after, so these functions
must never change: CRC-16/XMODEM over the flow's raw UUID bytes, the lane's name, or a budget's or quota's UUID bytes.
"""

from __future__ import annotations

from binascii import crc_hqx
from enum import StrEnum
from typing import Final, Literal, TypeAlias
from uuid import UUID

from msgspec import Struct

from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.quoting import quoted

MAX_PARTITION_INDEX: Final = 0xFFFF

_FNV_OFFSET: Final = 0xCBF29CE484222325
_FNV_PRIME: Final = 0x100000001B3
_MASK_64: Final = 0xFFFFFFFFFFFFFFFF
_WORKER_REGISTRY_PARTITIONS: Final = 256


def crc16(data: bytes) -> int:
    """CRC-16/XMODEM: polynomial 0x1021, initial value 0, no reflection, no final xor."""
    return crc_hqx(data, 0)


def fnv1a64(data: bytes) -> int:
    """FNV-1a with 64 bits."""
    value = _FNV_OFFSET
    for byte in data:
        value = ((value ^ byte) * _FNV_PRIME) & _MASK_64
    return value


def log_digest(text: str) -> str:
    """Eight hex digits that stand for a text in logs: the two halves of its FNV-1a hash, xored."""
    value = fnv1a64(text.encode("utf-8", "surrogatepass"))
    return f"{(value >> 32) ^ (value & 0xFFFFFFFF):08x}"


def worker_registry_partition(worker_instance_id: str) -> int:
    """The partition of a worker in the registry tables."""
    return fnv1a64(worker_instance_id.encode("utf-8", "surrogatepass")) % _WORKER_REGISTRY_PARTITIONS


def scan_start(text: str, count: int) -> int:
    """Where a scan over `count` partitions begins, so that several scanners do not all begin at the first."""
    return (fnv1a64(text.encode("utf-8", "surrogatepass")) & 0xFFFF) % _checked_count(count)


class PartitionCounts(Struct, frozen=True, gc=False):
    """How many partitions each family has; fixed for the life of a deployment."""

    flow: int = 256
    budget: int = 32
    quota: int = 32

    def __post_init__(self) -> None:
        for family in ("flow", "budget", "quota"):
            count = getattr(self, family)
            if not 1 <= count <= MAX_PARTITION_INDEX + 1:
                detail = f"{family} partition count must be within 1..{MAX_PARTITION_INDEX + 1}, not {count}"
                raise Validation(ValidationKind.INVALID_INPUT, detail)


def flow_partition(flow_id: UUID | str, count: PartitionCounts | int) -> int:
    """The index shared by a flow and all its members."""
    return crc16(_uuid_bytes(flow_id)) % _checked_count(count if isinstance(count, int) else count.flow)


def lane_partition(lane_id: str, count: PartitionCounts | int) -> int:
    """The index of an execution that belongs to no flow."""
    data = lane_id.encode("utf-8", "surrogatepass")
    return crc16(data) % _checked_count(count if isinstance(count, int) else count.flow)


def budget_partition(budget_id: UUID | str, count: PartitionCounts | int) -> int:
    """The index of a budget."""
    return crc16(_uuid_bytes(budget_id)) % _checked_count(count if isinstance(count, int) else count.budget)


def quota_partition(quota_policy_id: UUID | str, count: PartitionCounts | int) -> int:
    """The index of a quota policy."""
    return crc16(_uuid_bytes(quota_policy_id)) % _checked_count(count if isinstance(count, int) else count.quota)


def _uuid_bytes(value: UUID | str) -> bytes:
    if isinstance(value, UUID):
        return value.bytes
    try:
        return UUID(value).bytes
    except ValueError:
        raise Validation(ValidationKind.INVALID_INPUT, f"not a UUID: {quoted(value)}") from None


def _checked_count(count: int) -> int:
    if count < 1:
        raise Validation(ValidationKind.INVALID_INPUT, f"a partition count must be at least 1, not {count}")
    return count


class PartitionFamily(StrEnum):
    """What is partitioned. `flow` and `execution` are two names of one key space."""

    FLOW = "flow"
    EXECUTION = "execution"
    BUDGET = "budget"
    QUOTA = "quota"

    @property
    def prefix(self) -> str:
        """The tag prefix in partition keys and execution ids."""
        return _PREFIXES[self]


_PREFIXES: Final = {
    PartitionFamily.FLOW: "fp",
    PartitionFamily.EXECUTION: "fp",
    PartitionFamily.BUDGET: "b",
    PartitionFamily.QUOTA: "q",
}

_FAMILIES: Final = {"fp": PartitionFamily.FLOW, "b": PartitionFamily.BUDGET, "q": PartitionFamily.QUOTA}

PartitionKeyProblem: TypeAlias = Literal["MissingBraces", "MalformedBody", "UnknownFamilyPrefix", "InvalidIndex"]


class PartitionKeyError(ValueError):
    """A text that is no partition key; `problem` names what is wrong with it."""

    def __init__(self, problem: PartitionKeyProblem, text: str) -> None:
        super().__init__(problem, text)
        self.problem = problem
        self.text = text

    def __str__(self) -> str:
        return f"{self.problem}: {quoted(self.text)} is not a partition key such as '{{fp:7}}'"


class PartitionKey(Struct, frozen=True, gc=False):
    """The wire name of a partition: `str()` gives the tag text, `parse` reads it. Clients treat it as opaque."""

    family: PartitionFamily
    index: int

    @classmethod
    def parse(cls, text: str) -> PartitionKey:
        """Read a tag text; `{fp:N}` is always the flow family."""
        if len(text) < 2 or text[0] != "{" or text[-1] != "}":
            raise PartitionKeyError("MissingBraces", text)
        prefix, colon, digits = text[1:-1].partition(":")
        if not colon or not prefix or not digits:
            raise PartitionKeyError("MalformedBody", text)
        family = _FAMILIES.get(prefix)
        if family is None:
            raise PartitionKeyError("UnknownFamilyPrefix", text)
        index = parse_index(digits)
        if index is None:
            raise PartitionKeyError("InvalidIndex", text)
        return cls(family, index)

    def __str__(self) -> str:
        return f"{{{self.family.prefix}:{self.index}}}"


def parse_index(digits: str) -> int | None:
    """A decimal partition index (unsigned 16 bit), or None. `int()` alone would also take signs, spaces and '1_0'."""
    if not (digits.isascii() and digits.isdigit()):
        return None
    # Measured before it is converted, because converting a very long number is slow.
    if len(digits) > 5 and len(digits.lstrip("0")) > 5:
        return None
    index = int(digits)
    return index if index <= MAX_PARTITION_INDEX else None
