"""Identities. Each is a `str` that holds its own wire text, so it hashes, sorts and prints as that text.

Constructors check; `unchecked` takes text that was checked when it was stored. `msgspec` does not encode subclasses of
`str` by itself: give it `encode_hook` and `decode_hook`.
"""

from __future__ import annotations

import re
import uuid as uuids
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, Literal, Self, TypeAlias

from msgspec import Struct

from flowfabric.ascending import ascending_uuid
from flowfabric.model.errors import Validation, ValidationKind
from flowfabric.model.partitions import (
    MAX_PARTITION_INDEX,
    PartitionCounts,
    flow_partition,
    lane_partition,
    parse_index,
)
from flowfabric.model.quoting import quoted

MAX_LANE_BYTES: Final = 64
MAX_CAPABILITY_TOKENS: Final = 256
#: Tokens of a list that are looked at, however often it says the same ones.
_MOST_GIVEN: Final = 16 * MAX_CAPABILITY_TOKENS
MAX_CAPABILITY_BYTES: Final = 4096

_HYPHENATED = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_PLAIN = re.compile(r"[0-9a-f]{32}")
_TAG_KEY = re.compile(r"[a-z][a-z0-9_]*\.[a-z0-9_][a-z0-9_.]*")
_FORBIDDEN_IN_CAPABILITY = re.compile(r"[\x00-\x20\x7f\ud800-\udfff]")
_NOT_PRINTABLE = re.compile(rb"[^\x20-\x7e]")


def canonical_uuid(value: object) -> str | None:
    """The hyphenated lower-case form of a UUID, or None. Stricter than `uuid.UUID`, which drops hyphens anywhere."""
    if type(value) is str and _HYPHENATED.fullmatch(value):
        return value
    text = str(value).lower()
    if _HYPHENATED.fullmatch(text):
        return text
    return str(uuids.UUID(text)) if _PLAIN.fullmatch(text) else None


class IdError(ValueError):
    """A text that is not an identity of the type asked for."""

    def __init__(self, type_name: str, text: str) -> None:
        super().__init__(type_name, text)
        self.type_name = type_name
        self.text = text

    def __str__(self) -> str:
        return f"{quoted(self.text)} is not a {self.type_name}: a UUID is expected"


ExecutionIdProblem: TypeAlias = Literal["MissingTag", "InvalidPartitionIndex", "InvalidUuid"]


class ExecutionIdError(ValueError):
    """A text that is not an execution id; `problem` names what is wrong with it."""

    def __init__(self, problem: ExecutionIdProblem, text: str) -> None:
        super().__init__(problem, text)
        self.problem = problem
        self.text = text

    def __str__(self) -> str:
        return f"{self.problem}: {quoted(self.text)} is not an execution id such as '{{fp:7}}:<uuid>'"


class ExecutionId(str):
    """`{fp:N}:<uuid>`: the name of an execution for all its life, with its partition inside."""

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        if type(text) is cls:
            return text
        end = text.find("}:", 4)
        if not text.startswith("{fp:") or end < 0:
            raise ExecutionIdError("MissingTag", str(text))
        index = parse_index(text[4:end])
        if index is None:
            raise ExecutionIdError("InvalidPartitionIndex", str(text))
        # The type of a slice is plain `str`, which is what makes the comparison inside quick.
        tail = canonical_uuid(text[end + 2 :])
        if tail is None:
            raise ExecutionIdError("InvalidUuid", str(text))
        return str.__new__(cls, f"{{fp:{index}}}:{tail}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the wire text. The index is not compared with the deployment's partition count here."""
        return cls(text)

    @classmethod
    def unchecked(cls, text: str) -> Self:
        """Take text that is known to be in canonical form."""
        return str.__new__(cls, text)

    @classmethod
    def of(cls, partition: int, uuid: uuids.UUID | str) -> Self:
        """Put an id together from the two columns a store keeps."""
        tail = canonical_uuid(uuid)
        if tail is None:
            raise ExecutionIdError("InvalidUuid", str(uuid))
        if not 0 <= partition <= MAX_PARTITION_INDEX:
            raise ExecutionIdError("InvalidPartitionIndex", str(partition))
        return str.__new__(cls, f"{{fp:{partition}}}:{tail}")

    @classmethod
    def solo(cls, lane_id: str, partitions: PartitionCounts | int, *, uuid: uuids.UUID | str | None = None) -> Self:
        """Mint an id for an execution outside any flow; the lane decides the partition."""
        return cls.of(lane_partition(lane_id, partitions), ascending_uuid() if uuid is None else uuid)

    @classmethod
    def for_flow(
        cls, flow_id: uuids.UUID | str, partitions: PartitionCounts | int, *, uuid: uuids.UUID | str | None = None
    ) -> Self:
        """Mint an id for a member of a flow; it shares the flow's partition."""
        return cls.of(flow_partition(flow_id, partitions), ascending_uuid() if uuid is None else uuid)

    @property
    def partition(self) -> int:  # type: ignore[override]
        """The partition index N. It hides `str.partition`, which makes no sense for an id."""
        return int(self[4 : self.index("}")])

    @property
    def uuid(self) -> uuids.UUID:
        """The UUID part."""
        return uuids.UUID(self[-36:])

    @property
    def uuid_text(self) -> str:
        """The UUID part as text, hyphenated and in lower case."""
        return self[-36:]


class _UuidId(str):
    """An identity that is a UUID, in hyphenated lower-case text."""

    __slots__ = ()

    def __new__(cls, value: str | uuids.UUID) -> Self:
        if type(value) is cls:
            return value
        text = canonical_uuid(value)
        if text is None:
            raise IdError(cls.__name__, str(value))
        return str.__new__(cls, text)

    @classmethod
    def new(cls) -> Self:
        """Mint one that sorts behind all that this process has minted before."""
        return str.__new__(cls, ascending_uuid())

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the wire text."""
        return cls(text)

    @classmethod
    def unchecked(cls, text: str) -> Self:
        """Take text that is known to be in canonical form."""
        return str.__new__(cls, text)

    @property
    def uuid(self) -> uuids.UUID:
        """The same identity as a `uuid.UUID`."""
        return uuids.UUID(self)


class FlowId(_UuidId):
    """A dependency graph of executions."""

    __slots__ = ()


class LeaseId(_UuidId):
    """One granted lease."""

    __slots__ = ()


class AttemptId(_UuidId):
    """One attempt at an execution."""

    __slots__ = ()


class SignalId(_UuidId):
    """One delivered signal."""

    __slots__ = ()


class WaitpointId(_UuidId):
    """A place where signals are awaited."""

    __slots__ = ()


class SuspensionId(_UuidId):
    """One suspension of an execution."""

    __slots__ = ()


class EdgeId(_UuidId):
    """A dependency between two members of a flow."""

    __slots__ = ()


class BudgetId(_UuidId):
    """A budget."""

    __slots__ = ()


class QuotaPolicyId(_UuidId):
    """A quota policy."""

    __slots__ = ()


LaneIdProblem: TypeAlias = Literal["Empty", "TooLong", "NonPrintable"]


class LaneIdError(ValueError):
    """A text that is not a lane name; for `NonPrintable`, `index` is the position of the offending byte."""

    def __init__(self, problem: LaneIdProblem, text: str, index: int | None = None) -> None:
        super().__init__(problem, text, index)
        self.problem = problem
        self.text = text
        self.index = index

    def __str__(self) -> str:
        where = "" if self.index is None else f" at byte {self.index}"
        wanted = f"a lane name has 1 to {MAX_LANE_BYTES} printable ASCII bytes"
        return f"{self.problem}{where}: {wanted}, not {quoted(self.text)}"


class LaneId(str):
    """The name of a lane: 1 to 64 printable ASCII bytes."""

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        if type(text) is cls:
            return text
        data = text.encode("utf-8", "surrogatepass")
        if not data:
            raise LaneIdError("Empty", text)
        if len(data) > MAX_LANE_BYTES:
            raise LaneIdError("TooLong", text)
        if found := _NOT_PRINTABLE.search(data):
            raise LaneIdError("NonPrintable", text, found.start())
        return str.__new__(cls, text)

    @classmethod
    def unchecked(cls, text: str) -> Self:
        """Take an internal literal, or a stored name, as it is."""
        return str.__new__(cls, text)


class Namespace(str):
    """A tenant's scope."""

    __slots__ = ()


class WorkerId(str):
    """A pool of workers; stable over restarts and shared by many processes."""

    __slots__ = ()


class WorkerInstanceId(str):
    """One worker process; unique per boot."""

    __slots__ = ()


class CancelSource(StrEnum):
    """Who cancels. The API also takes any other text as a custom source."""

    OPERATOR_OVERRIDE = "operator_override"
    LEASE_HOLDER = "lease_holder"
    FLOW_CASCADE = "flow_cascade"
    SYSTEM_TIMEOUT = "system_timeout"


class LeaseFence(Struct, frozen=True, gc=False):
    """What proves that a caller holds the current lease. All three or none."""

    lease_id: str | None = None
    lease_epoch: int | None = None
    attempt_id: str | None = None

    @property
    def complete(self) -> bool:
        """All three are given."""
        return bool(self.lease_id) and self.lease_epoch is not None and bool(self.attempt_id)

    @property
    def partial(self) -> bool:
        """Some are given, but not all: such a fence is refused, never read as "no fence"."""
        return not self.complete and (bool(self.lease_id) or self.lease_epoch is not None or bool(self.attempt_id))


def check_capabilities(tokens: Iterable[object], side: Literal["required", "worker"]) -> tuple[str, ...]:
    """The tokens sorted and without repeats, or `Validation(InvalidCapabilities)` with detail `<side>:<problem>`."""
    if isinstance(tokens, (str, bytes, Mapping)) or not isinstance(tokens, Iterable):
        raise Validation(ValidationKind.INVALID_CAPABILITIES, f"{side}:not_array")
    distinct: set[str] = set()
    for position, token in enumerate(tokens):
        if problem := _capability_problem(token):
            raise Validation(ValidationKind.INVALID_CAPABILITIES, f"{side}:{problem}")
        distinct.add(str(token))
        if len(distinct) > MAX_CAPABILITY_TOKENS or position == _MOST_GIVEN:
            raise Validation(ValidationKind.INVALID_CAPABILITIES, f"{side}:too_many_tokens")
    ordered = tuple(sorted(distinct))
    if len(",".join(ordered).encode()) > MAX_CAPABILITY_BYTES:
        raise Validation(ValidationKind.INVALID_CAPABILITIES, f"{side}:too_many_bytes")
    return ordered


def _capability_problem(token: object) -> str | None:
    if not isinstance(token, str):
        return "non_string_token"
    if not token:
        return "empty_token"
    if "," in token:
        return "comma_in_token"
    return "control_or_whitespace" if _FORBIDDEN_IN_CAPABILITY.search(token) else None


def check_tag_key(key: str) -> None:
    """Refuse a tag key that is not lower-case words joined by at least one dot."""
    if not _TAG_KEY.fullmatch(key):
        raise Validation(ValidationKind.INVALID_INPUT, f"bad tag key {quoted(key)}")


_HOOKED: Final = (ExecutionId, _UuidId, LaneId, Namespace, WorkerId, WorkerInstanceId)


def encode_hook(value: Any) -> Any:
    """`enc_hook` for msgspec: identities are written as plain strings."""
    if isinstance(value, _HOOKED):
        return str(value)
    raise NotImplementedError(f"cannot encode {type(value).__name__}")


def decode_hook(kind: type, value: Any) -> Any:
    """`dec_hook` for msgspec: identities are checked when they are read."""
    if not issubclass(kind, _HOOKED):
        raise NotImplementedError(f"cannot decode {kind.__name__}")
    if not isinstance(value, str):
        raise TypeError("expected text")
    return kind(value)
