"""The chain of causes: what an execution waits for, what that one waits for, and so on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec import structs

from flowfabric.core.batch.graph_view import Missing
from flowfabric.core.batch.view import View
from flowfabric.core.context import Context
from flowfabric.core.explain import explain
from flowfabric.core.explain.questions import raw_fields
from flowfabric.model.decisions import Get, GetFull, Need
from flowfabric.model.errors import NotFound
from flowfabric.model.ids import ExecutionId
from flowfabric.model.reads.explain import (
    ChainLink,
    Explanation,
    Gate,
    OpenChildren,
    OpenDependencies,
    OpenSuspension,
    QueuePlace,
)
from flowfabric.model.records.executions import Execution

#: Executions on the way from one to the cause, the first and the last included.
MAX_LINKS = 16
_FOLLOWED = (Gate.CHILDREN, Gate.DEPENDENCIES)
#: Where nothing goes on before somebody does something.
_STUCK = (
    Gate.SUSPENDED,
    Gate.OPERATOR,
    Gate.LANE_PAUSED,
    Gate.LANE_DISABLED,
    Gate.LANE_STATE,
    Gate.MISSING_CAPABILITY,
    Gate.ROUTE,
    Gate.UNKNOWN,
)
#: Where it goes on by itself, at a time.
_TIMED = (Gate.DELAYED, Gate.RETRY_BACKOFF, Gate.RESUME_DELAY, Gate.ASLEEP, Gate.QUOTA, Gate.BUDGET)
_MOVING = (Gate.WAITING_FOR_WORKER, Gate.GRANTED, Gate.LEASE_EXPIRED)


def looked_at(
    found: Explanation, seen: Collection[str], view: View, context: Context, namespaces: Collection[str] | None
) -> list[Explanation]:
    """What the executions stand before that an explanation names, all of them at once. Those of other namespaces, those
    that are gone and those that were seen are left out."""
    wanted = [each for each in explain.named(found) if each not in seen]
    view.require(Get(Execution, each) for each in wanted)
    explained: list[Explanation] = []
    missing: list[Need] = []
    for each in wanted:
        execution = view.execution(each)
        if execution is None or (namespaces is not None and execution.namespace not in namespaces):
            continue
        try:
            explained.append(explain.explain(each, view, context, namespaces))
        except NotFound:
            continue
        except Missing as error:
            missing += error.needs
    if missing:
        raise Missing(*dict.fromkeys(missing))
    return explained


def telling(candidates: Iterable[Explanation]) -> Explanation | None:
    """The one among them that tells most: rather one that needs somebody than one that only needs time, and that
    rather than one that runs; the one that has waited longest."""
    return min(candidates, key=lambda each: (_rank(each), each.since_ms, each.execution_id), default=None)


def _rank(found: Explanation) -> int:
    place = found.detail
    unserved = isinstance(place, QueuePlace) and not place.capable
    if found.gate in _STUCK or unserved or (found.gate is Gate.BUDGET and found.until_ms is None):
        return 0
    for rank, gates in enumerate((_FOLLOWED, _TIMED, _MOVING, (Gate.RUNNING,)), start=1):
        if found.gate in gates:
            return rank
    return 5


def is_followed(found: Explanation) -> bool:
    """Whether it waits for others that can be looked at."""
    return found.gate in _FOLLOWED and bool(explain.named(found))


def told(chain: Sequence[Explanation], view: View, now: int) -> Explanation:
    """The explanation of the first of a chain, which says what the last one waits for."""
    first, last = chain[0], chain[-1]
    if len(chain) == 1:
        return structs.replace(first, left_out=_left_out(chain))
    view.require(GetFull(each.execution_id) for each in chain)
    links = tuple(_link(each, view) for each in chain)
    sentence = last.sentence
    if not (isinstance(last.detail, OpenSuspension) and last.detail.question is not None):
        what = links[-1].execution_kind or "another execution"
        if not what.isprintable():
            what = ascii(what)
        sentence = f"It is waiting for {what}: {sentence[:1].lower()}{sentence[1:]}"
    sentence = explain.cancelling(view.execution(first.execution_id), now) + sentence
    return structs.replace(first, sentence=sentence, chain=links, left_out=_left_out(chain))


def _link(found: Explanation, view: View) -> ChainLink:
    execution = view.execution(found.execution_id)
    kind = None if execution is None else raw_fields(view, execution).get("execution_kind")
    return ChainLink(
        ExecutionId.unchecked(found.execution_id),
        kind if isinstance(kind, str) else "",
        found.gate,
        found.sentence,
        found.lane_id,
        found.since_ms,
        found.until_ms,
        found.detail,
    )


def _left_out(chain: Sequence[Explanation]) -> str | None:
    """Which limits were reached on the way."""
    said = []
    for each in chain:
        named, count = len(explain.named(each)), _open_count(each)
        if named < count and named >= explain.MAX_NAMED:
            said.append(f"{each.execution_id} is waiting for {count} executions; {named} of them were checked.")
    if len(chain) >= MAX_LINKS and is_followed(chain[-1]):
        said.append(f"The chain is longer; its first {MAX_LINKS} links were followed.")
    return " ".join(said) or None


def _open_count(found: Explanation) -> int:
    match found.detail:
        case OpenChildren(count=count):
            return count
        case OpenDependencies(total=total, succeeded=succeeded, failed=failed, skipped=skipped):
            return total - succeeded - failed - skipped
    return 0
