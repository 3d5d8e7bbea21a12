"""Reading records: executions as rules see them, and records of any kind by the values of some fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from msgspec.structs import replace

from flowfabric.model.decisions import SELECT_LIMIT, Key
from flowfabric.model.records.executions import Attempt, Execution
from flowfabric.stores.keyed.entries import LAST, Group, group_family, groups_of, values_of
from flowfabric.stores.keyed.reads import All, Range, Reading, Rows, Whole, at_once, walk
from flowfabric.stores.keyed.records import wire_id

#: An execution with its current attempt.
Both = tuple[Execution | None, Attempt | None]


def executions(ids: Sequence[str], *, loose: bool = False, whole: bool = False) -> Reading[list[Both]]:
    """Executions with their current attempts, and with the epoch floors that their earlier attempts set."""
    found = yield Whole(ids) if whole else Rows(Execution, ids, loose)
    there = [each for each in found if each is not None]
    if not there:
        return [(None, None)] * len(found)
    current = [(each.execution_id, each.attempt_index) for each in there]
    earlier = [(each.execution_id, index) for each in there for index in range(each.attempt_index)]
    if earlier:
        attempts, before = yield [Rows(Attempt, current, loose), Rows(Attempt, earlier, True)]
    else:
        attempts, before = (yield Rows(Attempt, current, loose)), []
    floors: dict[str, int] = {}
    for each in before:
        if each is not None and each.lease_epoch > floors.get(each.execution_id, 0):
            floors[each.execution_id] = each.lease_epoch
    of_current = dict(zip(current, attempts, strict=True))
    return [
        (None, None) if each is None else (_raised(each, floors), of_current[(each.execution_id, each.attempt_index)])
        for each in found
    ]


def _raised(execution: Execution, floors: dict[str, int]) -> Execution:
    floor = floors.get(execution.execution_id, 0)
    return replace(execution, epoch_floor=floor) if floor else execution


@cache
def _group_for(kind: Any, fields: frozenset[str]) -> Group | None:
    """The most telling indexed equality that a select on these fields can use."""
    usable = [group for group in groups_of(kind) if fields.issuperset(group.fields)]
    return max(usable, key=lambda group: len(fields.intersection(group.fields + group.then_by)), default=None)


def matching(kind: Any, fields: tuple[str, ...], values: tuple[Any, ...], limit: int) -> Reading[list[Any]]:
    """The first records of a kind with these field values, in the order of their keys."""
    found = values_of(fields)
    wanted = dict(zip(fields, values, strict=True))

    def fitting(records: Sequence[Any]) -> list[Any]:
        return [each for each in records if each is not None and found(each) == values]

    def judge(keys: list[Key]) -> Reading[list[Any]]:
        return fitting((yield Rows(kind, keys)))

    if kind is Attempt and {"partition", "uuid"} <= wanted.keys():
        return fitting((yield from _attempts(wire_id(wanted["partition"], wanted["uuid"]))))[:limit]
    group = _group_for(kind, frozenset(field for field in fields if wanted[field] is not None))
    if group is None:
        return fitting((yield All(kind)))[:limit]
    run = Range(group_family(kind, group.fields, *group.then_by), tuple(wanted[field] for field in group.fields))
    if not group.then_by:
        return (yield from walk(run, judge, limit))
    order = tuple(wanted.get(field) for field in group.then_by)
    if None not in order:
        return (yield from walk(*in_order(kind, run, order, judge), limit))
    # The run is in another order than that of the keys, so all of it has to be seen.
    entries = yield from walk(run, at_once, SELECT_LIMIT + 1)
    return (yield from judge(sorted(entry[len(order) :] for entry in entries)))[:limit]


def in_order(
    kind: Any, run: Range, order: tuple[Any, ...], judge: Callable[[list[Key]], Reading[list[Any]]]
) -> tuple[Range, Callable[[list[Any]], Reading[list[Any]]]]:
    """The part of a run whose entries have these values before their keys, with its records, and what judges it."""
    part = run._replace(low=order, high=(*order, LAST), rows=kind, before_key=order)
    return part, lambda entries: judge([entry[len(order) :] for entry in entries])


def _attempts(execution_id: str) -> Reading[list[Any]]:
    """Every attempt of an execution: they are numbered without gaps."""
    [execution] = yield Rows(Execution, [execution_id])
    known = 0 if execution is None else execution.attempt_index + 1
    found: list[Any] = []
    while not found or found[-1] is not None:
        found += yield Rows(Attempt, [(execution_id, index) for index in range(len(found), max(known, len(found)) + 1)])
    return found
