"""Questions of people and timers to a store: lists, pages and what is due. Answers are rows."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

#: Where something stands in a list that begins with the newest: its time, its UUID and its partition. Ids that we make
#: ascend, so that within a millisecond the newest comes first, too.
ListPlace: TypeAlias = tuple[int, str, int]


class ListExecutions(Struct, frozen=True):
    """Ids of a partition after a UUID, ascending -> ``list[execution id]``."""

    partition: int
    after: str | None
    limit: int


class SearchExecutions(Struct, frozen=True):
    """Executions that fit, newest first, behind a place -> ``list[SummaryRow]``. What is ``None`` or empty fits all.

    Namespaces are looked up in their column: rows that name theirs only in their document fit no namespace but
    ``None``.
    """

    limit: int
    after: ListPlace | None = None
    namespaces: tuple[str | None, ...] | None = None
    lane_id: str | None = None
    states: tuple[str, ...] = ()
    kind: str | None = None
    #: All of them: a value, and the names of which one has it.
    tags: tuple[tuple[tuple[str, ...], str], ...] = ()
    #: Partition and id.
    flow: tuple[int, str] | None = None
    created_from_ms: int | None = None
    created_before_ms: int | None = None
    #: Who started them: partition and UUID.
    parent: tuple[int, str] | None = None
    #: Only those that nobody started.
    roots: bool = False
    #: Partitions, and the first and the last UUID that fit.
    ids: tuple[tuple[int, ...], str, str] | None = None
    #: Texts in lower case, each of which is part of the kind, of the last failure's message, of the name of the worker
    #: of the current attempt.
    kind_parts: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    ended_from_ms: int | None = None
    ended_before_ms: int | None = None
    #: The oldest that is looked at.
    down_to: ListPlace | None = None
    #: The last digits of the UUID, at most twelve.
    id_end: str | None = None


class CountExecutions(Struct, frozen=True):
    """How many executions a search would find, page after page -> ``int``."""

    #: Its place and its limit do not matter.
    search: SearchExecutions
    #: Kinds that begin with this are left out; nothing leaves out none.
    leaving_out: str = ""


class CountStates(Struct, frozen=True):
    """How many executions a search would find in each state, as it is stored -> ``list[(state, how many)]``, in no
    order."""

    #: Its place and its limit do not matter.
    search: SearchExecutions


class SearchEdge(Struct, frozen=True):
    """The place of the last of so many executions, newest first, that a search would look at ->
    ``ListPlace``; ``None`` if there are fewer."""

    #: Only its namespaces, its place and its times of creation matter.
    search: SearchExecutions
    rows: int


class ListNamespaces(Struct, frozen=True):
    """Namespaces of executions, schedules and workers, after one, ascending -> ``list[namespace]``."""

    after: str | None
    limit: int


class SearchFlows(Struct, frozen=True):
    """Flows, newest first, behind a place -> ``list[Flow]``; of all namespaces if that is ``None``."""

    limit: int
    after: ListPlace | None = None
    namespaces: tuple[str, ...] | None = None


class SearchSuspended(Struct, frozen=True):
    """Suspended executions with one of these blocking reasons, those that were suspended last first, behind a place
    -> ``list[SummaryRow]``."""

    limit: int
    reasons: tuple[str, ...]
    after: ListPlace | None = None
    namespaces: tuple[str, ...] | None = None
    #: Only members of this one: partition and id.
    flow: tuple[int, str] | None = None


class CountUnended(Struct, frozen=True):
    """Leased, suspended, delayed, blocked and dependent executions and members still to be cancelled, each up to a
    limit -> six numbers."""

    limit: int


class CountEnded(Struct, frozen=True):
    """Ends behind an event, by stretches of time -> ``(last event id, list[(stretch, outcome, how many)])``.

    Without a place the last ``limit`` of them are looked at.
    """

    after: int | None
    stretch_ms: int
    limit: int


class SummaryRow(Struct, frozen=True):
    """What a list tells about an execution, as it is stored."""

    partition: int
    uuid: str
    namespace: str | None
    lane_id: str
    execution_kind: str | None
    public_state: str
    priority: int
    created_at_ms: int
    started_at_ms: int | None
    terminal_at_ms: int | None
    attempt_index: int
    flow_id: str | None
    blocking_reason: str | None
    #: Of the last failure.
    error: str | None
    cancellation_reason: str | None
    #: JSON.
    tags: str | None
    #: A UUID.
    parent: str | None
    #: When it was suspended last; when it was created if that is not known.
    suspended_at_ms: int


class ListCredentials(Struct, frozen=True):
    """Credentials behind an id, ascending -> ``list[Credential]``."""

    after: str | None
    limit: int


class QueueDepths(Struct, frozen=True):
    """What can be claimed in each lane -> ``list[(lane id, how many, creation time of the oldest)]``, by lane."""

    namespaces: tuple[str, ...] | None = None


class ListAudit(Struct, frozen=True):
    """Acts before the one with an id, the last first -> ``list[AuditEntry]``; none if there is no such act."""

    after: str | None
    limit: int


class ListSamples(Struct, frozen=True):
    """Samples of the minutes from a time on, ascending -> ``list[SampleRow]``."""

    since_ms: int
    limit: int


class ReadContexts(Struct, frozen=True):
    """What workers start from, for those that exist -> ``list[(execution id, payload, raw fields json, when it is
    cancelled if it was asked to, why)]``. With ``most_bytes`` those are left out, in the order given, whose payload
    begins beyond so many bytes."""

    execution_ids: tuple[str, ...]
    most_bytes: int | None = None


class ReadDocuments(Struct, frozen=True):
    """What executions are labelled with, of those that exist -> ``list[(execution id, raw fields json)]``."""

    execution_ids: tuple[str, ...]


class ListLanes(Struct, frozen=True):
    """Lanes after a name, ascending -> ``list[Lane]``. With ``namespaces`` only those in which one of them has an
    execution that has not ended, a schedule, or a worker that is alive at ``now``."""

    after: str | None
    limit: int
    namespaces: tuple[str, ...] | None = None
    now: int = 0
    #: Whether the lane called ``after`` is the first of them.
    inclusive: bool = False


class ListFlows(Struct, frozen=True):
    """Flows of a partition after an id, ascending -> ``list[(flow id, created_at_ms, public_flow_state)]``."""

    partition: int
    after: str | None
    limit: int


class ListSuspended(Struct, frozen=True):
    """Open suspensions of a partition after an execution -> ``list[(execution id, suspended_at_ms, reason)]``."""

    partition: int
    after: str | None
    limit: int
    #: When that one was suspended; without it the time is looked up, if it is suspended still.
    after_ms: int | None = None


class LiveSteps(Struct, frozen=True):
    """Remembered steps of executions that have not ended, behind one -> ``list[(execution id, step name)]``."""

    after: tuple[int, str, str] | None
    limit: int


class ListSteps(Struct, frozen=True):
    """Remembered steps of an execution behind one, in the order they were remembered, without their values; with
    ``names`` only those -> ``list[(sequence, name, bytes of the value)]``."""

    partition: int
    uuid: str
    after: tuple[int, str] | None
    limit: int
    names: tuple[str, ...] | None = None


class ListWaitpoints(Struct, frozen=True):
    """Open waitpoints of an execution after an id, ascending -> ``list[Waitpoint]``."""

    partition: int
    uuid: str
    after: str | None
    limit: int


class ListWorkers(Struct, frozen=True):
    """Workers of a namespace that are alive at ``now`` -> ``list[Worker]``."""

    namespace: str
    after: str | None
    limit: int
    now: int


class LiveWorkers(Struct, frozen=True):
    """All workers alive at ``now``, whatever their namespace -> ``list[Worker]``."""

    now: int
    limit: int


class SearchWorkers(Struct, frozen=True):
    """Workers of these namespaces, or of all, alive at ``now``, behind a namespace and instance -> ``list[Worker]``."""

    now: int
    limit: int
    namespaces: tuple[str, ...] | None = None
    after: tuple[str, str] | None = None


class GoneWorkers(Struct, frozen=True):
    """Workers of these namespaces, or of all, that have gone since, the latest first -> ``list[GoneWorker]``."""

    since_ms: int
    limit: int
    namespaces: tuple[str, ...] | None = None


class HeldLeases(Struct, frozen=True):
    """How many leases that last beyond ``now`` each worker instance holds, of the first ``limit`` on executions of
    these namespaces, or of all -> ``dict[instance, int]``."""

    now: int
    limit: int
    namespaces: tuple[str, ...] | None = None


class ListExpiredLeases(Struct, frozen=True):
    """Leases of running executions past ``as_of`` -> ``list[(Execution, Attempt)]``."""

    as_of: int
    after_ms: int | None
    after_id: str | None
    limit: int
    namespace: str | None


class ListLeases(Struct, frozen=True):
    """Leases of a worker that last beyond ``now`` -> ``list[(Execution, Attempt)]``."""

    worker_instance_id: str
    now: int
    limit: int


class ReadFrames(Struct, frozen=True):
    """Frames of a stream between two positions, inclusive -> ``list[(ts_ms, seq, fields json, mode)]``. With
    ``backwards`` the last ones, the newest first."""

    partition: int
    uuid: str
    attempt_index: int
    low: tuple[int, int]
    high: tuple[int, int]
    limit: int
    exclude_mode: str | None = None
    backwards: bool = False


class Due(Struct, frozen=True):
    """Ids of executions a timer should look at -> ``list[execution id]``. ``what`` names the timer."""

    what: str
    now: int
    limit: int
    namespace: str | None = None
    tag: tuple[str, str] | None = None
    lane_id: str | None = None
    partition: int | None = None
    #: Ids the caller knows to be stuck and does not want to see again this time.
    skip: frozenset[str] = frozenset()
    #: Only what fell due at this time or later; for timers whose rows have one.
    since: int | None = None
    #: Only those behind this one, by creation time and id: for ``unblock``, whose rows are looked at page by page.
    after: tuple[int, str] | None = None


class DueWorkers(Struct, frozen=True):
    """Workers past their time to live -> ``list[(namespace, instance)]``."""

    now: int
    limit: int


class StuckMembers(Struct, frozen=True):
    """Of the ``window`` members behind an id that wait for others: those with an unresolved edge from an ended member,
    and those with no unresolved edge at all -> ``(list[execution id], last id looked at or None at the end)``."""

    after: str | None
    window: int
    namespace: str | None = None
    tag: tuple[str, str] | None = None


class PendingGroups(Struct, frozen=True):
    """Groups whose losers are to be cancelled, longest waiting first -> ``list[(partition, flow id, downstream])``.

    ``actionable`` leaves out those whose flag is down; otherwise groups whose flag is up without a work item are
    there too."""

    actionable: bool
    limit: int


class BacklogDue(Struct, frozen=True):
    """Cancelled flows whose members may need help by now -> ``list[(partition, flow id)]``."""

    now: int
    limit: int


class BacklogMembers(Struct, frozen=True):
    """Members of a cancelled flow that nobody has acknowledged -> ``list[execution id]``."""

    partition: int
    flow_id: str
    limit: int


class OpenFlows(Struct, frozen=True):
    """The next flows behind a key that may still change, as far as the last projection knows
    -> ``list[(partition, flow id)]``."""

    after: tuple[int, str] | None
    limit: int


class EmptyFlows(Struct, frozen=True):
    """Of the ``window`` flows behind a key those without a member
    -> ``(list[(partition, flow id)], last key looked at or None at the end)``."""

    after: tuple[int, str] | None
    window: int


class CountMembers(Struct, frozen=True):
    """Members of some flows by public state -> ``dict[(partition, flow id), dict[public state, int]]``."""

    flows: tuple[tuple[int, str], ...]


class NextDue(Struct, frozen=True):
    """When the next delay, lease, timeout, suspension timeout, deadline or slot falls due -> ``int | None``."""


class ScanEligible(Struct, frozen=True):
    """Ids of a lane that a claim at ``now`` could take, in claim order -> ``list[execution id]``."""

    lane_id: str
    partition: int | None
    limit: int
    now: int
    namespaces: tuple[str, ...] | None = None


class TrimHistory(Struct, frozen=True):
    """Delete outbox rows, registry history, remembered answers, samples, kinds, expired bindings, audited acts and
    refused requests -> rows deleted."""

    events_before_ms: int
    registry_before_ms: int
    now: int
    limit: int
    samples_before_ms: int = 0
    gone_before_ms: int = 0
    kinds_before_ms: int = 0
    audit_before_ms: int = 0
    refused_before_ms: int = 0


class ListGates(Struct, frozen=True):
    """Ids of budgets or quota policies behind an id, ascending -> ``list[str]``.

    ``what`` says which: ``budgets`` and ``quotas`` are all of them, ``budget_reset`` budgets whose reset is due,
    ``quota_room`` policies whose window has room by ``now``, ``quota_drift`` policies whose slots do not add up, and
    ``blocked`` whatever keeps executions waiting for room.
    """

    what: str
    now: int
    after: str | None
    limit: int
    #: Only those that belong to one of these namespaces, of all ``budgets`` or ``quotas``.
    namespaces: frozenset[str] | None = None


class IdleGates(Struct, frozen=True):
    """Quota policies or budgets that are to be looked at by ``now``, longest waiting first, and whether anything uses
    each: a kept execution names it, or rows of others hold it -> ``list[(id, bool)]``."""

    #: ``quotas`` or ``budgets``.
    what: str
    now: int
    limit: int


#: Policies that one ``WaitedFor`` may name.
MAX_WAITED_FOR = 256


class WaitedFor(Struct, frozen=True):
    """Which of some quota policies somebody waits for -> ``list[str]``."""

    quota_policy_ids: tuple[str, ...]


class ExpiredGuards(Struct, frozen=True):
    """Quota guards past their time, from a time on, by it -> ``list[(quota policy id, execution id, its time)]``."""

    now: int
    limit: int
    since: int = 0


class TrimAdmission(Struct, frozen=True):
    """Delete window entries and keys of reports that no longer count -> rows deleted."""

    now: int
    limit: int


class ListSchedules(Struct, frozen=True):
    """Schedules of a namespace behind a name, ascending -> ``list[Schedule]``."""

    namespace: str
    after: str | None
    limit: int


class SearchSchedules(Struct, frozen=True):
    """Schedules of these namespaces, or of all, behind a namespace and name, ascending -> ``list[Schedule]``."""

    limit: int
    namespaces: tuple[str, ...] | None = None
    after: tuple[str, str] | None = None


class ListKinds(Struct, frozen=True):
    """Kinds that were announced in these namespaces, or in all, behind a namespace and name, ascending ->
    ``list[(namespace, kind, when)]``."""

    limit: int
    namespaces: tuple[str, ...] | None = None
    after: tuple[str, str] | None = None


class CountKinds(Struct, frozen=True):
    """How many kinds were announced in a namespace -> ``int``."""

    namespace: str


class DueSchedules(Struct, frozen=True):
    """Schedules whose next slot has come, longest waiting first -> ``list[Schedule]``."""

    now: int
    limit: int
    namespace: str | None = None


class PendingRequests(Struct, frozen=True):
    """Requests that wait to become executions, oldest first -> ``list[EnqueueRequest]``."""

    limit: int


class ListRequests(Struct, frozen=True):
    """Requests behind an id, ascending, all or only refused ones -> ``list[EnqueueRequest]``."""

    refused: bool
    after: str | None
    limit: int


class Integrity(Struct, frozen=True):
    """Whether the pages of the database are whole -> ``list[str]``, what is wrong with them; databases that see to it
    themselves answer with an empty list."""


class CountRows(Struct, frozen=True):
    """How many executions are in each phase, for invariants and people -> ``dict[phase, int]``."""


class OddEnds(Struct, frozen=True):
    """Executions whose ends the outbox does not plainly tell of -> ``list[(execution id, events, time of the last)]``.

    Left out are those that ended before ``since_ms`` without an event, and those with one event, at the time they
    ended. Takes as long as looking at every execution.
    """

    since_ms: int
    limit: int


class CountFrames(Struct, frozen=True):
    """What is stored of the streams of some executions -> ``list[StoredStream]``."""

    execution_ids: tuple[str, ...]


class StoredStream(Struct, frozen=True):
    """The stored frames of one stream."""

    execution_id: str
    attempt_index: int
    frames: int
    #: Those that are deltas of the summary.
    deltas: int
    #: Time and number of the newest.
    newest: tuple[int, int]
