"""What an examination of a store finds: promises that its rows break, and what that means."""

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


_STUCK = "Cancel it and start it anew"
_REPORT = "report it with the store's events of this execution"
_TIMERS = "Start a worker or a server, whose timers move it on; if it is still so after a minute, cancel it"
_LEDGER = "Start a worker or a server, whose timers put counters right, and look again; if it is still so, report it"

#: By the names that ``Violation.invariant`` has.
PROMISES: dict[str, Promise] = {
    "I1": Promise("an execution is given to one worker at a time", f"Revoke its lease; then {_REPORT}"),
    "I2": Promise("each lease has a higher epoch than the one before", f"{_STUCK}, and {_REPORT}"),
    "I3": Promise("an execution has an owner if and only if it runs", f"Revoke its lease, or cancel it, and {_REPORT}"),
    "I8": Promise(
        "an execution ends once, unless it is replayed", f"Whoever acts on ends may have acted twice; {_REPORT}"
    ),
    "I10": Promise("only what has completed has a result", f"Replay it if its result matters, and {_REPORT}"),
    "I11": Promise("attempts are numbered without gaps and within their limits", f"{_STUCK}, and {_REPORT}"),
    "I12": Promise(
        "the states of an execution fit together", f"{_STUCK}; if nobody changed the database by hand, {_REPORT}"
    ),
    "I13": Promise("every execution stands in exactly one place", f"{_STUCK}, and {_REPORT}"),
    "I18": Promise("nothing happens in the future", "Compare the clock of the database's machine with others"),
    "I19": Promise(
        "events are numbered in the order they happened, each above all that were read before it",
        "After a restored backup, set the counter of the event numbers above the highest one; else report it",
    ),
    "I20": Promise(
        "the log of events tells of every change, as it was",
        "Whoever follows events was not told: tell them, or let them read the executions; then report it",
    ),
    "I22": Promise(
        "nothing runs before what it depends on has ended",
        f"Unless an edge was resolved by hand, cancel its flow and {_REPORT}",
    ),
    "I23": Promise("what waited moves on when the last of its parents ends", _TIMERS),
    "I24": Promise("the counts of a flow are those of its members", f"{_TIMERS} with its flow"),
    "I26": Promise("a flow has no cycle, and edges are decided when a parent ends", _TIMERS),
    "I27": Promise("what is suspended holds no worker", f"{_STUCK}, and {_REPORT}"),
    "I28": Promise("a signal that was accepted is kept and counted", f"Send the signal again, and {_REPORT}"),
    "I29": Promise("a suspension ends once", f"{_STUCK}, and {_REPORT}"),
    "I30": Promise("what a budget has reserved is what holders have reserved", _LEDGER),
    "I31": Promise("what a budget has spent is what was recorded", _LEDGER),
    "I32": Promise("a quota has as many slots taken as there are holders", _LEDGER),
    "I33": Promise(
        "a stream has the frames and the summary that its head tells of",
        "What was shown of its output may be incomplete; if nobody changed the database by hand, report it",
    ),
    "I34": Promise(
        "no event is missing from the log",
        "Whoever follows events has missed some: let them read the executions anew; then report it",
    ),
    "store": Promise("the pages of the database are whole", "Stop everything and restore the last good backup"),
}
