"""Findings of an examination: promises that the rows of a store break, and their consequences."""

from __future__ import annotations

from msgspec import Struct


class Violation(Struct, frozen=True):
    """One broken promise."""

    invariant: str
    subject: str
    detail: str


class Examination(Struct, frozen=True):
    """One stretch of a store: what was looked at, what is wrong with it, and where to go on."""

    #: Executions, flows, budgets, quotas and events that were looked at this time.
    looked: int
    violations: tuple[Violation, ...]
    #: ``None`` at the end of the store.
    next_cursor: str | None
    #: How many executions there are; told with the first stretch only.
    executions: int | None = None
    #: About how many events there are; told with the first stretch only.
    events: int | None = None


class Promise(Struct, frozen=True):
    """What must hold, and what to do where it does not."""

    says: str
    advice: str


_STUCK = "Cancel it and start it again"
_REPORT = "report it with the store's events of this execution"
_TIMERS = "Start a worker or a server to run timers; if nothing changes within a minute, cancel it"
_LEDGER = "Start a worker or a server to run timers, which correct counters; if nothing changes, report it"

#: By the names that ``Violation.invariant`` has.
PROMISES: dict[str, Promise] = {
    "I1": Promise("only one worker at a time holds an execution", f"Revoke its lease; then {_REPORT}"),
    "I2": Promise("each lease has a higher epoch than the one before", f"{_STUCK}, and {_REPORT}"),
    "I3": Promise("an execution has an owner if and only if it runs", f"Revoke its lease, or cancel it, and {_REPORT}"),
    "I8": Promise(
        "an execution ends once, unless it is replayed",
        f"Programs that react to ends may have reacted twice; {_REPORT}",
    ),
    "I10": Promise("only a completed execution has a result", f"Replay it if its result matters, and {_REPORT}"),
    "I11": Promise("attempts are numbered without gaps and within their limits", f"{_STUCK}, and {_REPORT}"),
    "I12": Promise(
        "the states of an execution fit together", f"{_STUCK}; if nobody changed the database by hand, {_REPORT}"
    ),
    "I13": Promise("every execution is in exactly one state", f"{_STUCK}, and {_REPORT}"),
    "I18": Promise("nothing happens in the future", "Compare the clock of the database's machine with others"),
    "I19": Promise(
        "events are numbered in the order they happened, each above all earlier ones",
        "After a restored backup, set the counter of the event numbers above the highest one; else report it",
    ),
    "I20": Promise(
        "the event log records every change correctly",
        "Followers of events missed it: let them read the executions; then report it",
    ),
    "I22": Promise(
        "nothing runs before its dependencies end",
        f"Unless an edge was resolved by hand, cancel its flow and {_REPORT}",
    ),
    "I23": Promise("a waiting execution continues when its last parent ends", _TIMERS),
    "I24": Promise("the counts of a flow are those of its members", f"{_TIMERS} with its flow"),
    "I26": Promise("a flow has no cycle, and edges are decided when a parent ends", _TIMERS),
    "I27": Promise("a suspended execution holds no worker", f"{_STUCK}, and {_REPORT}"),
    "I28": Promise("a signal that was accepted is kept and counted", f"Send the signal again, and {_REPORT}"),
    "I29": Promise("a suspension ends once", f"{_STUCK}, and {_REPORT}"),
    "I30": Promise("what a budget has reserved is what holders have reserved", _LEDGER),
    "I31": Promise("what a budget has spent is what was recorded", _LEDGER),
    "I32": Promise("a quota has as many slots taken as there are holders", _LEDGER),
    "I33": Promise(
        "a stream has the frames and the summary that its head records",
        "Its output may have been shown incompletely; if nobody changed the database by hand, report it",
    ),
    "I34": Promise(
        "no event is missing from the log",
        "Followers of events missed some: let them read the executions again; then report it",
    ),
    "lost": Promise(
        "acknowledged writes are kept",
        "What is missing cannot be brought back: executions are as they were before it, or gone. Compare them with "
        "what others know of them, and let followers of events read them again. `appendfsync always`, and "
        "`durability=replicated` where a replica may take over, lose nothing",
    ),
    "store": Promise("the pages of the database are whole", "Stop everything and restore the last good backup"),
}
