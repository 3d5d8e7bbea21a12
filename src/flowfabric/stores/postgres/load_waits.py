"""Loads what one signal is judged by, in one statement: an execution, its wait, the waitpoint that was named.

One statement is one moment, so a refusal needs no lock; what is written is guarded by the versions read here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from flowfabric.model.decisions import Get, Key, Need
from flowfabric.model.records.executions import Execution, Suspension, Waitpoint
from flowfabric.stores.postgres.codec import DIALECT
from flowfabric.stores.protocol import Filling
from flowfabric.stores.sql.rows import ExecutionRows, KindRows, execution_select
from flowfabric.stores.sql.schema import split_wire

_WAITPOINTS, _SUSPENSIONS = KindRows(Waitpoint, DIALECT, "w"), KindRows(Suspension, DIALECT, "s")
_WAITPOINT = ExecutionRows(DIALECT).width
_SUSPENSION = _WAITPOINT + _WAITPOINTS.width + 1

#: What the column holds; ids may carry larger numbers.
_HIGHEST_PARTITION = 2**15 - 1

_COLUMNS, _SOURCE = execution_select(DIALECT).split(" FROM ff_exec_core e", 1)
SELECT = (
    f"{_COLUMNS}, {_WAITPOINTS.select_list}, {_SUSPENSIONS.select_list} FROM ff_exec_core e{_SOURCE} "
    "LEFT JOIN ff_waitpoint_pending w ON w.partition_key = e.partition_key AND w.waitpoint_id = $3 "
    "LEFT JOIN ff_suspension_current s ON s.partition_key = e.partition_key AND s.execution_id = e.execution_id "
    "WHERE e.partition_key = $1 AND e.execution_id = $2"
)


class Asked(NamedTuple):
    """The three records of a lone signal."""

    execution: Get
    waitpoint: Get
    suspension: Get


def asked(needs: Iterable[Need]) -> Asked | None:
    """The three, if exactly one execution is asked for together with them."""
    found: dict[Any, Get] = {}
    for need in needs:
        if type(need) is Get and need.kind in (Execution, Waitpoint, Suspension):
            if need.kind in found:
                return None
            found[need.kind] = need
    if len(found) < len(Asked._fields):
        return None
    three = Asked(found[Execution], found[Waitpoint], found[Suspension])
    partition, uuid = split_wire(three.execution.key)
    if partition > _HIGHEST_PARTITION:
        return None
    same = three.suspension.key == (partition, uuid) and three.waitpoint.key[0] == partition
    return three if same else None


async def load(
    fetch: Callable[..., Any], three: Asked, view: Filling, put: Callable[[Filling, Any], Execution]
) -> dict[tuple[Any, Key], int]:
    """Bring the three; the versions of waitpoint and suspension, as far as they and the execution exist."""
    rows = await fetch(SELECT, *split_wire(three.execution.key), three.waitpoint.key[1])
    versions: dict[tuple[Any, Key], int] = {}
    if rows:
        put(view, rows[0])
    else:
        view.put_loaded(Execution, three.execution.key, None)
    others = ((three.waitpoint, _WAITPOINTS, _WAITPOINT), (three.suspension, _SUSPENSIONS, _SUSPENSION))
    for need, decoder, start in others:
        version = rows[0][start + decoder.width] if rows else None
        if version is None:
            view.put_loaded(need.kind, need.key, None)
            continue
        view.put_loaded(need.kind, need.key, decoder.read(rows[0][start : start + decoder.width]))
        versions[(need.kind, need.key)] = version
    return versions
