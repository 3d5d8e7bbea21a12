"""Finding executions by what they are, newest first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

import msgspec

from flowfabric.engine.base import EngineBase
from flowfabric.engine.checks import values
from flowfabric.engine.checks.values import sorted_namespaces
from flowfabric.engine.reads.search_text import Sought, sought, tag_names
from flowfabric.model.failures import grouped
from flowfabric.model.ids import ExecutionId, FlowId, canonical_uuid
from flowfabric.model.limits import MAX_PAGE
from flowfabric.model.reads.search import (
    MAX_SHOWN,
    ExecutionSummary,
    FailureGroups,
    QueueDepth,
    SearchPage,
    StateCounts,
)
from flowfabric.model.states import PublicState, canonical_public_state, stored_public_states
from flowfabric.stores.questions import (
    CountExecutions,
    CountStates,
    ListNamespaces,
    ListPlace,
    QueueDepths,
    SearchEdge,
    SearchExecutions,
    SummaryRow,
)
from flowfabric.stores.sql.search import MOST_MERGED

#: As many executions are looked at for one page of a search in texts, and for counts.
WINDOW = 10_000
#: As many failures are grouped.
MOST_FAILURES = 5_000
#: Comes before all others.
_FIRST_UUID = str(UUID(int=0))
_FAILURES = (PublicState.FAILED, PublicState.EXPIRED)


class Searching(EngineBase):
    """The part of the engine that finds."""

    async def search_executions(
        self,
        *,
        namespaces: Iterable[str] | None = None,
        lane_id: str | None = None,
        states: Iterable[PublicState | str] = (),
        execution_kind: str | None = None,
        tag: tuple[str, str] | None = None,
        flow_id: FlowId | str | None = None,
        created_from: int | None = None,
        created_before: int | None = None,
        parent: ExecutionId | str | None = None,
        query: str = "",
        roots: bool = False,
        ended_from: int | None = None,
        ended_before: int | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> SearchPage:
        """Executions that fit all that is given, newest first. Naming one namespace makes it quick in a large store
        with very many of them, and so does naming the flow of a ``parent``, which started them.

        ``query`` is a search as people type it: ``charge tag:team=red error:"timed out" since:2h``. A tag without a dot
        in its name is also found as ``user.`` and that name. ``roots`` leaves out what others started.

        Those that were created in one millisecond are in the order of their ids, which ascend unless callers give
        them. A cursor stays good, and nothing is shown twice. What is created meanwhile comes before the first page,
        except what falls into the millisecond that the cursor stands at, or is committed late: that may come behind it.

        What is sought in texts (part of a kind, an error, a worker) and by its end is sought among ``WINDOW``
        executions for each page, which may be short or empty therefore and still have a cursor.
        """
        size = values.integer(limit, "limit", 1, MAX_PAGE)
        said = await self._said(query)
        search = await self._search(
            said,
            size + 1,
            cursor,
            namespaces,
            states=states,
            flow_id=flow_id,
            parent=parent,
            lane_id=None if lane_id is None else values.lane(lane_id),
            kind=values.optional_text(execution_kind, "execution_kind"),
            tags=_tag(tag),
            roots=values.flag(roots, "roots"),
            created=(created_from, created_before),
            ended=(ended_from, ended_before),
        )
        if search is None:
            return SearchPage((), None)
        edge = await self._edge(search) if _is_walked(search) else None
        found: list[SummaryRow] = await self._ask(msgspec.structs.replace(search, down_to=edge))
        page = tuple(map(_summary, found[:size]))
        if len(found) > size:
            last = found[size - 1]
            edge = (last.created_at_ms, last.uuid, last.partition)
        return SearchPage(page, cursor_at(edge))

    async def count_states(
        self,
        *,
        namespaces: Iterable[str] | None = None,
        query: str = "",
        roots: bool = False,
        created_from: int | None = None,
        created_before: int | None = None,
        ended_from: int | None = None,
        ended_before: int | None = None,
    ) -> StateCounts:
        """How many executions that fit are in each state, of the newest ``WINDOW``."""
        search = await self._search(
            await self._said(query),
            1,
            None,
            namespaces,
            roots=values.flag(roots, "roots"),
            created=(created_from, created_before),
            ended=(ended_from, ended_before),
        )
        if search is None:
            return StateCounts({}, 0, None)
        edge = None if _is_small(search) else await self._edge(search)
        counts: dict[str, int] = {}
        for text, count in await self._ask(CountStates(msgspec.structs.replace(search, down_to=edge))):
            state = canonical_public_state(text).value
            counts[state] = counts.get(state, 0) + count
        shown: dict[str, int] = {each.value: counts[each.value] for each in PublicState if each.value in counts}
        return StateCounts(shown, sum(shown.values()), None if edge is None else edge[0])

    async def group_failures(
        self,
        *,
        namespaces: Iterable[str] | None = None,
        query: str = "",
        created_from: int | None = None,
        created_before: int | None = None,
        limit: int = 100,
    ) -> FailureGroups:
        """Executions that failed or expired by kind and error, the largest group first. Numbers and ids in a message do
        not make it another error. Of the newest ``WINDOW`` executions at most ``MOST_FAILURES`` failures count."""
        size = values.integer(limit, "limit", 1, MAX_PAGE)
        search = await self._search(
            await self._said(query),
            MOST_FAILURES + 1,
            None,
            namespaces,
            states=_FAILURES,
            created=(created_from, created_before),
        )
        if search is None:
            return FailureGroups((), 0, None)
        edge = None if _is_small(search) else await self._edge(search)
        rows: list[SummaryRow] = await self._ask(msgspec.structs.replace(search, down_to=edge))
        looked_at = [_summary(each) for each in rows[:MOST_FAILURES]]
        oldest = None if edge is None else edge[0]
        if len(rows) > MOST_FAILURES:
            oldest = looked_at[-1].created_at
        return FailureGroups(grouped(looked_at)[:size], len(looked_at), oldest)

    async def _said(self, query: Any) -> Sought:
        return sought(query, await self.now_ms()) if query else sought(query, 0)

    async def _search(
        self,
        said: Sought,
        limit: int,
        cursor: str | None,
        namespaces: Iterable[str] | None,
        *,
        states: Iterable[PublicState | str] = (),
        flow_id: FlowId | str | None = None,
        parent: ExecutionId | str | None = None,
        lane_id: str | None = None,
        kind: str | None = None,
        tags: tuple[tuple[tuple[str, ...], str], ...] = (),
        roots: bool = False,
        created: tuple[Any, Any] = (None, None),
        ended: tuple[Any, Any] = (None, None),
    ) -> SearchExecutions | None:
        """What is asked of the store; ``None`` if nothing can fit."""
        wanted = tuple(dict.fromkeys(values.public_state(each) for each in values.few(states, "states")))
        given_flow = None if flow_id is None else values.flow_id(flow_id)
        given_parent = None if parent is None else values.execution_id(parent, "parent")
        said_parent = None if said.parent is None else values.execution_id(said.parent, "query: parent")
        own: tuple[str | None, ...] | None = sorted_namespaces(namespaces)
        after = place(cursor)
        times = [values.optional_time_ms(each, name) for each, name in zip((*created, *ended), _TIMES, strict=True)]
        if said.states is not None:
            wanted = tuple(each for each in said.states if not wanted or each in wanted)
            if not wanted:
                return None
        if said.namespace is not None:
            own = (said.namespace,) if own is None or said.namespace in own else ()
        pairs = ((lane_id, said.lane_id), (given_flow, said.flow_id), (given_parent, said_parent))
        if any(one is not None and other is not None and one != other for one, other in pairs):
            return None
        flow = given_flow or said.flow_id
        started_by = given_parent or said_parent
        partitions = said.id and (range(self.partitions.flow) if said.id[0] is None else (said.id[0],))
        if own is None and flow is None and said.id is None:
            # Each namespace has its own order; a few of them are read side by side.
            known = await self._ask(ListNamespaces(None, MOST_MERGED))
            own = (None, *known) if len(known) < MOST_MERGED else None
        ids = None if said.id is None or not partitions else (tuple(partitions), said.id[1], said.id[2])
        id_end = None
        if ids is not None and said.id_end is not None and not await self._ask(SearchExecutions(1, ids=ids)):
            # Ids that begin with the time look alike: people tell them apart by their ends.
            ids, id_end = None, said.id_end
        lows = [each for each in (times[0], said.created_from) if each is not None]
        highs = [each for each in (times[1], said.created_before) if each is not None]
        return SearchExecutions(
            limit,
            after,
            own,
            lane_id or said.lane_id,
            tuple(text for each in wanted for text in stored_public_states(PublicState(each))),
            kind,
            (*tags, *said.tags),
            None if flow is None else (self._flow_partition(flow), flow),
            max(lows, default=None),
            min(highs, default=None),
            None if started_by is None else (started_by.partition, started_by.uuid_text),
            roots,
            ids,
            said.kind_parts,
            said.errors,
            said.workers,
            times[2],
            times[3],
            id_end=id_end,
        )

    async def _edge(self, search: SearchExecutions) -> ListPlace | None:
        """How far a search looks that no index answers."""
        found: ListPlace | None = await self._ask(SearchEdge(search, WINDOW))
        return found

    async def count_executions(
        self,
        *,
        namespaces: Iterable[str] | None = None,
        lane_id: str | None = None,
        states: Iterable[PublicState | str] = (),
        execution_kind: str | None = None,
        tags: Mapping[str, str] | None = None,
        leaving_out: str = "",
    ) -> int:
        """How many executions fit all that is given, counted by the store. Kinds that begin with ``leaving_out`` are
        left out."""
        wanted = dict.fromkeys(values.public_state(each) for each in values.few(states, "states"))
        search = SearchExecutions(
            1,
            None,
            sorted_namespaces(namespaces),
            None if lane_id is None else values.lane(lane_id),
            tuple(text for each in wanted for text in stored_public_states(PublicState(each))),
            values.optional_text(execution_kind, "execution_kind"),
            tuple(((key,), value) for key, value in (values.tags(tags) or {}).items()),
        )
        found: int = await self._ask(CountExecutions(search, values.text(leaving_out, "leaving_out")))
        return found

    async def queue_depths(self, *, namespaces: Iterable[str] | None = None) -> tuple[QueueDepth, ...]:
        """What can be claimed in each lane, of these namespaces or of all; lanes where nothing waits are left out."""
        found = await self._ask(QueueDepths(sorted_namespaces(namespaces)))
        now = await self.now_ms()
        return tuple(QueueDepth(lane, count, max(now - oldest, 0)) for lane, count, oldest in found)


_TIMES = ("created_from", "created_before", "ended_from", "ended_before")


def _is_small(search: SearchExecutions) -> bool:
    """Whether a search looks only at relatives, or at what has a certain id."""
    return search.flow is not None or search.parent is not None or search.ids is not None


def _is_walked(search: SearchExecutions) -> bool:
    """Whether it may have to look at very many to find a few."""
    inside = search.kind_parts or search.errors or search.workers or search.id_end
    ended = search.ended_from_ms is not None or search.ended_before_ms is not None
    return not _is_small(search) and (ended or bool(inside))


def _tag(value: Any) -> tuple[tuple[tuple[str, ...], str], ...]:
    if value is None:
        return ()
    if not isinstance(value, tuple) or len(value) != 2:
        raise values.invalid("tag: expected a key and a value")
    return ((tag_names(values.text(value[0], "tag", empty=False)), values.text(value[1], "tag")),)


def cursor_at(place: ListPlace | None) -> str | None:
    """The cursor that stands at a place of a list."""
    return None if place is None else "{}.{}.{}".format(*place)


def place(cursor: Any) -> ListPlace | None:
    """Where a cursor stands.

    Earlier releases listed what was created in one millisecond by partition, and their cursors have the id at the end.
    Such a cursor begins that millisecond again: some may come twice, none is left out.
    """
    found = _parts(cursor)
    if found is None:
        return None
    at, uuid, partition, former = found
    return (at + 1, _FIRST_UUID, 0) if former else (at, uuid, partition)


def waiting_place(cursor: Any) -> ListPlace | None:
    """Where a cursor stands among executions that are suspended. Earlier releases listed these by their creation."""
    found = _parts(cursor)
    if found is not None and found[3]:
        raise values.invalid("cursor: it was made by an earlier release, whose order was another; begin at the start")
    return None if found is None else found[:3]


def _parts(cursor: Any) -> tuple[int, str, int, bool] | None:
    """Time, UUID and partition of a cursor, and whether it was made by an earlier release."""
    if cursor is None:
        return None
    at, first, second, *more = [*values.text(cursor, "cursor").split("."), "", ""]
    former = _is_number(first)
    partition, uuid = (first, canonical_uuid(second)) if former else (second, canonical_uuid(first))
    if more != ["", ""] or uuid is None or not _is_number(at) or not _is_number(partition):
        raise values.invalid("cursor: not a valid cursor; pass the next_cursor of a page unchanged")
    return values.time_ms(int(at), "cursor"), uuid, values.partition(int(partition)), former


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20


def _summary(row: SummaryRow) -> ExecutionSummary:
    return ExecutionSummary(
        ExecutionId.of(row.partition, row.uuid),
        row.namespace or "",
        row.lane_id,
        row.execution_kind or "",
        canonical_public_state(row.public_state),
        row.priority,
        row.created_at_ms,
        row.started_at_ms,
        row.terminal_at_ms,
        row.attempt_index,
        None if row.flow_id is None else FlowId(row.flow_id),
        row.blocking_reason or None,
        _shown(row.error),
        _shown(row.cancellation_reason),
        _tags(row.tags),
        None if row.parent is None else ExecutionId.of(row.partition, row.parent),
    )


def _shown(text: str | None) -> str | None:
    return text[:MAX_SHOWN] if text else None


def _tags(text: str | None) -> dict[str, str]:
    try:
        found = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, str)} if isinstance(found, dict) else {}
