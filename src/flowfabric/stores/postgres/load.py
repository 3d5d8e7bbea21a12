"""Loading records from PostgreSQL: one statement per kind, rows locked in key order when a batch decides on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flowfabric.model.decisions import (
    SELECT_LIMIT,
    Claimable,
    Descendants,
    Downstream,
    EndedAmong,
    First,
    Get,
    GetFull,
    Key,
    Listed,
    LiveMembers,
    Misplaced,
    Need,
    Peek,
    Ranked,
    Recent,
    Select,
    Slots,
)
from flowfabric.model.errors import LimitReached
from flowfabric.model.records.executions import Attempt, Execution
from flowfabric.model.records.streams import StreamHead
from flowfabric.model.states import BLOCKED_BY_DEPENDENCIES
from flowfabric.stores.postgres import load_downstream, load_ranks, load_waits
from flowfabric.stores.postgres.codec import DIALECT, SENT
from flowfabric.stores.postgres.load_sql import (
    ANY_FORGOTTEN,
    BY_ID,
    BY_IDS,
    CLAIM_ABLE,
    CLAIM_ABLE_WITHIN,
    CLAIM_PLAIN,
    CLAIM_WITHIN,
    ENDED_AMONG,
    FORGOTTEN,
    HEADS,
    LISTS,
    LIVE_MEMBERS,
    LOCKED,
    NARROW,
    RECENTLY,
    RECENTLY_ONE_BY_ONE,
    SKIPPING,
    SLOTS_TAKEN,
    WIDE,
    kind_rows,
    select_by,
)
from flowfabric.stores.protocol import Filling
from flowfabric.stores.sql.rows import (
    ExecutionRows,
    recent_of,
    stream_head,
)
from flowfabric.stores.sql.schema import TABLES, key_values, split_wire
from flowfabric.stores.tables.executions import EXECUTION
from flowfabric.stores.tables.shape import INT, SMALL, Table

_ROWS = ExecutionRows(DIALECT)
#: What integer columns hold. Ids and handles may carry larger numbers: 16 and 32 bits, unsigned.
_HIGHEST = {SMALL: 2**15 - 1, INT: 2**31 - 1}
#: Rows looked at beyond those wanted, so that some may be locked by others; more if that was not enough.
_SLACKS = (64, 8_192)


class Loader:
    """Loads what rules ask for on one connection and remembers the version of every row."""

    def __init__(
        self,
        connection: Any,
        versions: dict[tuple[Any, Key], int],
        locked: bool,
        mark: Callable[[str], str] = str,
    ) -> None:
        self._connection = connection
        self._mark = mark
        self._versions = versions
        self._locked = locked
        #: Rows that changed while their lock was waited for: the lock brought the new row, but its old attempt.
        self._moved: list[str] = []
        #: Rows that were read without a lock and decide: the commit checks them, written or not.
        self.unlocked: list[tuple[Any, Key]] = []
        #: Those of them that nobody may be changing when they are checked.
        self.fenced: list[tuple[Any, Key]] = []
        self.claimed_alone = False

    async def _fetch(self, sql: str, *arguments: Any) -> list[Any]:
        rows: list[Any] = await self._connection.fetch(self._mark(sql), *arguments)
        return rows

    async def load(self, needs: Iterable[Need], view: Filling, now: int) -> None:
        """Executions first: their lock protects what belongs to them."""
        executions: list[str] = []
        full: list[str] = []
        records: dict[Any, list[Key]] = {}
        selects: dict[tuple[Any, tuple[str, ...]], list[Select]] = {}
        claims: list[Claimable] = []
        others: list[Need] = []
        for need in needs:
            if type(need) is Get:
                if need.kind is Execution:
                    executions.append(need.key)
                else:
                    records.setdefault(need.kind, []).append(need.key)
            elif type(need) is GetFull:
                full.append(need.execution_id)
            elif type(need) is Select:
                selects.setdefault((need.kind, need.fields), []).append(need)
            elif type(need) is Claimable:
                claims.append(need)
            else:
                others.append(need)
        executions = [each for each in executions if each not in full]
        await self._lock_both(full, executions)
        await self._executions(full, view, wide=True)
        await self._executions(executions, view, wide=False)
        await self._graph(needs, view)
        await self._fairness(needs, view)
        for claim in claims:
            await self._claimable(claim, view, now)
        for (kind, fields), asked in selects.items():
            await self._selected(kind, fields, asked, view)
        for kind, keys in records.items():
            await self._records(kind, keys, view)
        if others:
            await self._others(others, view, now)

    async def _others(self, needs: list[Need], view: Filling, now: int) -> None:
        """What budgets and quotas ask for, behind the locks that keep what is counted here from changing."""
        peeks: dict[Any, list[Key]] = {}
        for need in needs:
            if type(need) is Peek:
                peeks.setdefault(need.kind, []).append(need.key)
        for kind, keys in peeks.items():
            await self._records(kind, keys, view, locked=False)
        slots = [need.quota_policy_id for need in needs if type(need) is Slots]
        if slots:
            for name, count in await self._fetch(SLOTS_TAKEN, slots):
                view.put_slots(Slots(name), count)
        windows = [need for need in needs if type(need) is Recent]
        if windows:
            await self._recent(windows, view, now)
        for need in needs:
            if type(need) is Listed:
                await self._listed(need, view)
            elif type(need) is EndedAmong:
                await self._ended(need, view)

    async def _ended(self, need: EndedAmong, view: Filling) -> None:
        pairs = list(map(split_wire, need.execution_ids))
        rows = await self._fetch(ENDED_AMONG, [pair[0] for pair in pairs], [pair[1] for pair in pairs])
        view.put_ended(need, frozenset(f"{{fp:{partition}}}:{uuid}" for partition, uuid in rows))

    def _put(self, view: Filling, row: Any, *, wide: bool = False) -> Execution:
        execution, attempt, version, attempt_version = _ROWS.read_wide(row) if wide else _ROWS.read(row)
        key = execution.execution_id
        if wide:
            view.put_full(key, execution)
        else:
            view.put_loaded(Execution, key, execution)
        self._versions[(Execution, key)] = version
        attempt_key = (key, execution.attempt_index)
        view.put_loaded(Attempt, attempt_key, attempt)
        if attempt is not None:
            self._versions[(Attempt, attempt_key)] = attempt_version
        if self._locked and _is_newer(version, row[_ROWS.snapshot]):
            self._moved.append(key)
        return execution

    async def _read_moved(self, view: Filling, *, wide: bool = False) -> None:
        """Read rows that moved once more, now that they are locked: a new statement sees all of them as it is."""
        if not self._moved:
            return
        pairs = sorted(map(split_wire, self._moved))
        select = (WIDE if wide else NARROW) + BY_IDS
        for row in await self._fetch(select, [pair[0] for pair in pairs], [pair[1] for pair in pairs]):
            self._put(view, row, wide=wide)
        self._moved.clear()

    async def _lock_both(self, full: list[str], narrow: list[str]) -> None:
        """Lock what two statements will read in one order, everybody's, or batches could wait for each other."""
        if not (self._locked and full and narrow):
            return
        pairs = sorted(pair for pair in set(map(split_wire, (*full, *narrow))) if pair[0] <= _HIGHEST[SMALL])
        await self._fetch(
            "SELECT FROM ff_exec_core e" + BY_IDS + LOCKED, [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        )

    async def _executions(self, wires: list[str], view: Filling, *, wide: bool) -> None:
        if not wires:
            return
        select = WIDE if wide else NARROW
        lock = LOCKED if self._locked else ""
        if len(wires) == 1:
            partition, uuid = split_wire(wires[0])
            rows = await self._fetch(select + BY_ID + lock, partition, uuid) if partition <= _HIGHEST[SMALL] else ()
        else:
            pairs = sorted(pair for pair in set(map(split_wire, wires)) if pair[0] <= _HIGHEST[SMALL])
            rows = await self._fetch(select + BY_IDS + lock, [pair[0] for pair in pairs], [pair[1] for pair in pairs])
        missing = set(wires)
        for row in rows:
            missing.discard(self._put(view, row, wide=wide).execution_id)
        await self._read_moved(view, wide=wide)
        for wire in missing:
            if wide:
                view.put_full(wire, None)
            else:
                view.put_loaded(Execution, wire, None)

    def _claiming(self, sql: str) -> str:
        return sql if self._locked else sql.removesuffix(SKIPPING)

    async def _claimable(self, need: Claimable, view: Filling, now: int) -> None:
        fetch = self._fetch
        within = need.namespaces
        if need.capabilities or (within is not None and len(within) != 1):
            able = sorted(need.capabilities)
            more = () if within is None else (sorted(within),)
            statement = self._claiming(CLAIM_ABLE if within is None else CLAIM_ABLE_WITHIN)
            for slack in _SLACKS:
                rows = await fetch(statement, need.lane_id, able, need.limit + slack, need.limit, now, *more)
                if len(rows) == need.limit or not self._locked:
                    break
        elif within is not None:
            rows = await fetch(self._claiming(CLAIM_WITHIN), need.lane_id, need.limit, now, *within)
        else:
            rows = await fetch(self._claiming(CLAIM_PLAIN), need.lane_id, need.limit, now)
        found = [self._put(view, row) for row in rows]
        forgotten = rows[0][-1] if rows else await fetch(ANY_FORGOTTEN.format("$1") + " LIMIT 1", now)
        if forgotten:
            for row in await fetch(self._claiming(FORGOTTEN), need.lane_id, now):
                execution = self._put(view, row)
                if need.capabilities.issuperset(execution.required_capabilities) and (
                    within is None or execution.namespace in within
                ):
                    found.append(execution)
            found.sort(key=lambda each: (-each.priority, each.fair_rank, each.created_at_ms, each.uuid))
        await self._read_moved(view)
        view.put_claimable(need, [each.execution_id for each in found[: need.limit]])

    async def _fairness(self, needs: Iterable[Need], view: Filling) -> None:
        ranked = [need for need in needs if type(need) is Ranked]
        if ranked:
            await load_ranks.load_ranked(self._fetch, ranked, view)
        for need in needs:
            if type(need) is Misplaced:
                found = await load_ranks.misplaced(self._fetch, need)
                await self._executions([execution_id for execution_id, _ in found], view, wide=False)
                view.put_misplaced(need, found)

    async def _graph(self, needs: Iterable[Need], view: Filling) -> None:
        ends = [need for need in needs if type(need) is Downstream]
        if ends:
            await self._downstream(ends, view)
        for need in needs:
            if type(need) is Descendants:
                await self._descendants(need, view)
            elif type(need) is First:
                await self._first(need, view)
            elif type(need) is LiveMembers:
                rows = await self._fetch(
                    LIVE_MEMBERS + (LOCKED if self._locked else ""), *need[:2], need.after or None, need.limit
                )
                view.put_selected(need, await self._put_all(rows, view))

    async def load_unlocked(self, needs: Iterable[Need], view: Filling, now: int, alone: bool) -> list[Need]:
        """Load what need not be locked, on a first try; what is left to be loaded.

        A single claim is not locked either while this process seems ``alone`` with the work. Edges, groups and children
        that wait are written by the batch that decides upon them, and every write is guarded by its row's version.
        A child that does not wait may go unwritten, so its state must be held still.
        """
        left = list(needs)
        if alone and (claim := _lone_claim(left)) is not None:
            await self._claim_alone(claim, view, now)
            left = [need for need in left if need is not claim]
        three = load_waits.asked(left)
        if three is not None:
            await self._waiting(three, view)
            left = [need for need in left if need not in three]
        ends = [need for need in left if type(need) is Downstream]
        if not ends:
            return left
        self._locked = False
        all_wait = await self._downstream(ends, view)
        self._locked = True
        return [need for need in left if type(need) is not Downstream] if all_wait else left

    async def _claim_alone(self, claim: Claimable, view: Filling, now: int) -> None:
        """What is found may be taken by somebody else before it is written; the commit finds out."""
        self._locked = False
        before = len(self._versions)
        await self._claimable(claim, view, now)
        self._locked = True
        self.claimed_alone = True
        self.unlocked += list(self._versions)[before:]

    async def _waiting(self, three: load_waits.Asked, view: Filling) -> None:
        """What a lone signal is judged by."""
        self._locked = False
        versions = await load_waits.load(self._fetch, three, view, self._put)
        self._locked = True
        self._versions.update(versions)
        self.fenced += [key for key in ((Execution, three.execution.key), *versions) if key in self._versions]

    async def _downstream(self, needs: list[Downstream], view: Filling) -> bool:
        """Load what waits for some members; whether all of it really waits."""
        keys: dict[Downstream, list[Key]] = {need: [] for need in needs}
        waiting = True
        for row in await self._fetch(load_downstream.downstream(self._locked), *map(list, zip(*needs, strict=True))):
            execution = self._put(view, row)
            waiting = waiting and execution.eligibility_state == BLOCKED_BY_DEPENDENCIES
            edge, group = load_downstream.read(row)
            for record, version in (
                (edge, row[load_downstream.EDGE_VERSION]),
                (group, row[load_downstream.GROUP_VERSION]),
            ):
                view.put_loaded(type(record), record.key, record)
                self._versions[(type(record), record.key)] = version
            keys[Downstream(execution.partition, edge.flow_id, edge.upstream)].append(edge.key)
        await self._read_moved(view)
        for need, found in keys.items():
            view.put_selected(need, sorted(found))
        return waiting

    async def _first(self, need: First, view: Filling) -> None:
        if need.kind is Execution:
            rows = await self._by_fields(need.fields, need.values, need.limit)
            view.put_first(need, await self._put_all(rows, view))
            return
        decoder = kind_rows(need.kind)
        found: list[Key] = []
        if _fits(decoder.table, need.fields, need.values):
            sql = select_by(need.kind, need.fields, self._locked, need.limit)
            for row in await self._fetch(sql, *([value] for value in need.values)):
                record = decoder.read(row)
                view.put_loaded(need.kind, record.key, record)
                self._versions[(need.kind, record.key)] = row[decoder.width]
                found.append(record.key)
        view.put_first(need, found)

    async def _by_fields(self, fields: tuple[str, ...], values: tuple[Any, ...], limit: int) -> list[Any]:
        order = f"ORDER BY e.partition_key, e.execution_id LIMIT {limit}"
        lock = LOCKED if self._locked else ""
        return await self._fetch(f"{NARROW} WHERE {_where(EXECUTION, fields, 'e')} {order}{lock}", *values)

    async def _put_all(self, rows: list[Any], view: Filling) -> list[str]:
        found = [self._put(view, row).execution_id for row in rows]
        await self._read_moved(view)
        return found

    async def _descendants(self, need: Descendants, view: Filling) -> None:
        rows = await self._fetch(load_downstream.DESCENDANTS, *need)
        view.put_descendants(need, frozenset(row[0] for row in rows))

    async def _selected(self, kind: Any, fields: tuple[str, ...], asked: list[Select], view: Filling) -> None:
        found: dict[tuple[Any, ...], list[Key]] = {need.values: [] for need in asked}
        if kind is Execution:
            for need in asked:
                rows = await self._by_fields(fields, need.values, SELECT_LIMIT + 1)
                found[need.values] = await self._put_all(rows, view)
        else:
            decoder = kind_rows(kind)
            fitting = [need.values for need in asked if _fits(decoder.table, fields, need.values)]
            for row in await self._matching(kind, fields, fitting) if fitting else ():
                record = decoder.read(row)
                view.put_loaded(kind, record.key, record)
                self._versions[(kind, record.key)] = row[decoder.width]
                found[tuple(getattr(record, field) for field in fields)].append(record.key)
        for need in asked:
            keys = found[need.values]
            if len(keys) > SELECT_LIMIT:
                raise LimitReached("SELECT_LIMIT", SELECT_LIMIT)
            view.put_selected(need, keys)

    async def _matching(self, kind: Any, fields: tuple[str, ...], wanted: list[tuple[Any, ...]]) -> list[Any]:
        """The rows of several sets of values, and one more than the limit of any that has more."""
        columns = [list(column) for column in zip(*wanted, strict=True)]
        rows = await self._fetch(select_by(kind, fields, self._locked, SELECT_LIMIT + 1), *columns)
        if len(rows) <= SELECT_LIMIT or len(wanted) == 1:
            return rows
        # The statement's limit is for all together and has cut off some that are within their own.
        return [row for each in wanted for row in await self._matching(kind, fields, [each])]

    async def _listed(self, need: Listed, view: Filling) -> None:
        lock = SKIPPING if self._locked else ""
        rows = await self._fetch(LISTS[need.what] + lock, need.name, need.limit)
        keys = [self._put(view, row).execution_id for row in rows]
        await self._read_moved(view)
        view.put_listed(need, keys)

    async def _recent(self, needs: list[Recent], view: Filling, now: int) -> None:
        wanted = [(*need[:3], now - need.window_ms) for need in needs]
        counted: dict[int, int] = {}
        uneven = [position for position, need in enumerate(needs) if need.one_by_one]
        if uneven:
            columns = map(list, zip(*(wanted[position] for position in uneven), strict=True))
            counted = dict(map(tuple, await self._fetch(RECENTLY_ONE_BY_ONE, uneven, *columns)))
        columns = map(list, zip(*wanted, strict=True))
        for position, *ends in await self._fetch(RECENTLY, list(range(len(needs))), *columns):
            view.put_recent(needs[position], *recent_of(ends, counted.get(position)))

    async def _records(self, kind: Any, keys: list[Key], view: Filling, *, locked: bool | None = None) -> None:
        locked = self._locked if locked is None else locked
        put = view.put_loaded if locked or not self._locked else view.put_peeked
        for key in keys:
            put(kind, key, None)
        table = TABLES[kind]
        wanted = [values for values in (key_values(kind, key) for key in keys) if _fits(table, table.key, values)]
        if not wanted:
            return
        columns = [list(column) for column in zip(*wanted, strict=True)]
        if kind is StreamHead:
            for row in await self._fetch(HEADS, *columns):
                wire = f"{{fp:{row[0]}}}:{row[1]}"
                head = stream_head(wire, row[0], row[1], row[2], row[3:11])
                view.put_loaded(kind, (wire, row[2]), head)
                if head is not None and head.stored:
                    self._versions[(kind, head.key)] = row[11]
            return
        decoder = kind_rows(kind)
        for row in await self._fetch(select_by(kind, decoder.table.key, locked), *columns):
            record = decoder.read(row)
            put(kind, record.key, record)
            if locked:
                self._versions[(kind, record.key)] = row[decoder.width]


def _lone_claim(needs: list[Need]) -> Claimable | None:
    """The claim among the needs, if it is one of one."""
    claims = [need for need in needs if type(need) is Claimable]
    return claims[0] if len(claims) == 1 and claims[0].limit == 1 else None


def _fits(table: Table, fields: tuple[str, ...], values: tuple[Any, ...]) -> bool:
    """Whether the columns can hold the values; a row that cannot exist need not be looked for."""
    columns = map(table.column, fields)
    return all(
        column is None or column.type not in _HIGHEST or value <= _HIGHEST[column.type]
        for column, value in zip(columns, values, strict=True)
    )


def _where(table: Table, fields: tuple[str, ...], alias: str) -> str:
    return " AND ".join(
        f"{alias}.{column.name} = ${n}::{SENT[column.type]}"
        for n, field in enumerate(fields, 1)
        if (column := table.column(field)) is not None
    )


def _is_newer(version: int, snapshot: str) -> bool:
    """Whether a row was written by a transaction that a snapshot (``oldest:next:running,…``) does not see."""
    oldest, following, running = snapshot.split(":")
    if _precedes(version, int(oldest)):
        return False
    return not _precedes(version, int(following)) or any(
        version == int(each) & 0xFFFFFFFF for each in running.split(",") if each
    )


def _precedes(version: int, transaction: int) -> bool:
    """Row versions are the low 32 bits of transaction numbers, which go round in a circle."""
    return (version - transaction) & 0x80000000 != 0
