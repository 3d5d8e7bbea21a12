"""How rules and stores speak to each other: what a rule needs to see, and what it wants changed."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.model.events import Event
from flowfabric.model.records.executions import Record

Kind: TypeAlias = type[Record]
Key: TypeAlias = Any
AnyRecord = TypeVar("AnyRecord", bound=Record)


class Get(NamedTuple):
    """One record by its key. An execution brings its current attempt along."""

    kind: Any
    key: Key


class GetFull(NamedTuple):
    """One execution with every field, the wide ones included."""

    execution_id: str


#: How many records one ``Select`` may bring before it is an error rather than an answer.
SELECT_LIMIT = 100_000


class Select(NamedTuple):
    """All records of a kind whose ``fields`` equal ``values``, in key order."""

    kind: Any
    fields: tuple[str, ...]
    values: tuple[Any, ...]


class Claimable(NamedTuple):
    """The first ``limit`` executions of a lane that a worker with these capabilities could claim, in claim order;
    only those of some namespaces if any are given. Namespaces are looked up in their column."""

    lane_id: str
    capabilities: frozenset[str]
    limit: int
    namespaces: frozenset[str] | None = None


#: How many ranks a ``Ranked`` brings at first; more are asked for if this batch has taken those.
RANKED_AT_ONCE = 4


class Ranked(NamedTuple):
    """Waiting executions of a fair lane and priority: those of the lowest ranks, or of a key's highest."""

    lane_id: str
    priority: int
    fair_key: str | None
    limit: int = RANKED_AT_ONCE


class Misplaced(NamedTuple):
    """Waiting executions of a lane that are not ranked as it is set now, each with the value its key follows from."""

    lane_id: str
    fair_by: str | None
    limit: int


#: How many outgoing edges of one member a ``Downstream`` brings at once.
DOWNSTREAM_LIMIT = 512


class Downstream(NamedTuple):
    """The first unresolved edges out of a member, with their groups and the children with their current attempts."""

    partition: int
    flow_id: str
    uuid: str


class Descendants(NamedTuple):
    """The bare UUIDs of all members that can be reached from one along edges, however many steps away."""

    partition: int
    flow_id: str
    uuid: str


class First(NamedTuple):
    """The first ``limit`` records that a ``Select`` would bring."""

    kind: Any
    fields: tuple[str, ...]
    values: tuple[Any, ...]
    limit: int


class LiveMembers(NamedTuple):
    """The first ``limit`` members of a flow behind a UUID that have not ended, in the order of their UUIDs."""

    partition: int
    flow_id: str
    after: str
    limit: int


class Peek(NamedTuple):
    """One record by its key, without keeping others from changing it. Good for looking, not for writing."""

    kind: Any
    key: Key


#: What ``Listed`` can list: executions a budget or quota blocks, in claim order, and executions that name a budget and
#: wait for a worker.
BLOCKED, NAMING = "blocked", "naming"


class Listed(NamedTuple):
    """The first ``limit`` executions that something is said of by a budget's or quota's id."""

    what: str
    name: str
    limit: int


class Recent(NamedTuple):
    """How many admissions a quota's window holds now, how old the oldest is, and the time and number of the newest
    that is stored. They are counted by their numbers, or, if those may have gaps, one by one."""

    partition: int
    quota_policy_id: str
    dimension: str
    window_ms: int
    one_by_one: bool


class Slots(NamedTuple):
    """How many executions hold a slot of a quota now, by what stands on them."""

    quota_policy_id: str


class EndedAmong(NamedTuple):
    """Which of some executions have ended, as it was when they were looked at; good for looking, not for writing."""

    execution_ids: tuple[str, ...]


Need: TypeAlias = (
    Get
    | GetFull
    | Select
    | Claimable
    | Ranked
    | Misplaced
    | Downstream
    | Descendants
    | First
    | LiveMembers
    | Peek
    | Listed
    | Recent
    | Slots
    | EndedAmong
)


class Change(Struct, gc=False):
    """A record's new content; ``fields`` names what differs, ``None`` means the record is new."""

    record: Record
    fields: tuple[str, ...] | None


class Drop(Struct, gc=False):
    """A record to delete."""

    record: Record


class TrimStream(Struct, gc=False):
    """Delete the oldest frames of an attempt's stream until ``StreamHead.frame_count`` are left."""

    execution_id: str
    attempt_index: int


class PurgeExecution(Struct, gc=False):
    """Delete an ended execution with everything that belongs to it alone."""

    execution_id: str
    partition: int
    uuid: str


class MarkDispatched(Struct, gc=False):
    """Nothing that depends on the ends of an execution is left to move: its announcements say so."""

    partition: int
    uuid: str
    at_ms: int


class PurgeFlow(Struct, gc=False):
    """Delete a flow with its edges, groups and backlog; its members are gone already."""

    partition: int
    flow_id: str


Act: TypeAlias = Change | Drop | TrimStream | PurgeExecution | MarkDispatched | PurgeFlow


class Decision(Struct, gc=False):
    """What a rule decided: changes, events, the answer to the caller, and whom to wake."""

    result: Any = None
    acts: tuple[Act, ...] = ()
    events: tuple[Event, ...] = ()
    #: Streams whose readers should look again: ``(execution_id, attempt_index)``.
    wakes: tuple[tuple[str, int], ...] = ()
    #: Commands to submit as soon as this is committed. What they do is on record already, so losing them loses no
    #: work: a timer finds it again.
    then: tuple[Any, ...] = ()


def change(record: Record, /, **fields: Any) -> Change:
    """The record with some fields changed; only those are written."""
    return Change(replace(record, **fields), tuple(fields))


def insert(record: Record) -> Change:
    """A record that does not exist yet."""
    return Change(record, None)


class Writes(Struct):
    """Everything a batch writes, one entry per record, in the order of first touch."""

    #: kind -> key -> fields that changed, or ``None`` for a new record.
    puts: dict[Any, dict[Key, tuple[str, ...] | None]]
    drops: dict[Any, dict[Key, Record]]
    #: kind -> key -> current content.
    records: dict[Any, dict[Key, Any]]
    events: list[Event]
    trims: dict[tuple[str, int], None]
    purges: list[PurgeExecution]
    #: Records that were decided upon without being read in this transaction and are not written: (kind, key).
    checks: list[tuple[Any, Key]]
    dispatched: list[MarkDispatched] = []
    purged_flows: list[PurgeFlow] = []
    #: What to tell other processes as soon as it is written.
    hints: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """How many records it writes."""
        return sum(map(len, self.puts.values())) + sum(map(len, self.drops.values()))

    @property
    def empty(self) -> bool:
        changes = (self.puts, self.drops, self.events, self.trims, self.purges, self.dispatched, self.purged_flows)
        return not any(changes)
