"""Requests to a store that keeps records by key: reading is written without saying how it is carried out.

Whatever has to be read is a generator that yields requests and is sent their answers. A store in memory answers at
once; one behind a network answers many requests of many generators in one trip. A generator that yields a list of
requests gets the list of their answers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple, TypeAlias, TypeVar

from flowfabric.model.decisions import Key
from flowfabric.model.records.executions import EXECUTION_WIDE_FIELDS

Answer = TypeVar("Answer")

#: How many entries one trip brings of a run whose length nobody knows.
CHUNK = 256
#: How many it brings once several trips have not been enough.
LARGEST_CHUNK = 2_048
#: How many entries are read ahead of runs that are read as if they were one.
_MOST_AHEAD = 2 * LARGEST_CHUNK
#: How many readings of a kind whose number nobody knows go on side by side.
SIDE_BY_SIDE = 128


class Rows(NamedTuple):
    """Records by their keys -> ``list[record | None]``."""

    kind: Any
    keys: Sequence[Key]
    #: Whether they may change before the commit unless they are written: good for looking.
    loose: bool = False
    #: Whether nobody will ask for the attempts of these executions, which are read along otherwise.
    alone: bool = False


class Whole(NamedTuple):
    """Executions with wide fields, all of them or some -> ``list[Execution | None]``."""

    execution_ids: Sequence[str]
    fields: tuple[str, ...] = EXECUTION_WIDE_FIELDS
    loose: bool = False


class Originals(NamedTuple):
    """Records that a commit is about to replace, as it was decided upon them -> ``list[record | None]``."""

    kind: Any
    keys: Sequence[Key]


class Range(NamedTuple):
    """Entries of a run from ``low`` on and before ``high``, in order -> ``list[entry]``."""

    family: Any
    name: Any = None
    low: Any = None
    high: Any = None
    limit: int = CHUNK
    #: Leaves out ``low`` itself; with ``backwards`` the entries before ``high``, the last one first.
    behind: bool = False
    backwards: bool = False
    loose: bool = False
    #: The kind of record whose key ends each entry, if those records are going to be asked for next; and what stands
    #: before the key in all of them, unless it is an execution's id.
    rows: Any = None
    before_key: tuple[Any, ...] = ()


class Count(NamedTuple):
    """How many entries of a run lie between two bounds -> ``int``."""

    family: Any
    name: Any = None
    low: Any = None
    high: Any = None
    loose: bool = False


class Names(NamedTuple):
    """The names of a family's runs that may have entries, in no order -> ``list[name]``."""

    family: Any


class All(NamedTuple):
    """Every record of a kind in the order of their keys -> ``list[record]``. For kinds that stay small."""

    kind: Any


class Size(NamedTuple):
    """How many records of a kind there are -> ``int``."""

    kind: Any


class Log(NamedTuple):
    """The first events of a kind behind a number -> ``list[(number, event)]``; ``Unreadable`` stands for an event that
    cannot be read."""

    kind: Any
    after: int
    limit: int


class LogBounds(NamedTuple):
    """How a log of events stands -> ``LogState``."""

    kind: Any


Request: TypeAlias = Rows | Whole | Originals | Range | Count | Names | All | Size | Log | LogBounds
#: A reading that ends with an answer.
Reading: TypeAlias = Generator[Any, Any, Answer]


def walk(
    run: Range,
    judge: Callable[[list[Any]], Reading[list[Any]]],
    limit: int,
    *,
    first: int | None = None,
    most: int = LARGEST_CHUNK,
) -> Reading[list[Any]]:
    """What ``judge`` makes of a run's entries, chunk by chunk, until there are ``limit`` of them or the run ends. The
    ``first`` chunk has as many entries as are wanted, unless it is said how many, and none has more than ``most``."""
    found: list[Any] = []
    size = min(max(limit, 1), CHUNK) if first is None else first
    while True:
        entries = yield run._replace(limit=size)
        found += yield from judge(entries)
        if len(found) >= limit or len(entries) < size:
            return found[:limit]
        run = run._replace(high=entries[-1]) if run.backwards else run._replace(low=entries[-1], behind=True)
        size = min(size * 2, most)


def visit(
    run: Range, look: Callable[[list[Any]], Reading[None]], *, first: int = CHUNK, most: int = LARGEST_CHUNK
) -> Reading[None]:
    """Show all of a run to ``look``, chunk by chunk."""

    def judge(entries: list[Any]) -> Reading[list[Any]]:
        yield from look(entries)
        return []

    yield from walk(run, judge, 1, first=first, most=most)


def walk_merged(
    runs: Sequence[Range], judge: Callable[[list[Any]], Reading[list[Any]]], limit: int
) -> Reading[list[Any]]:
    """As ``walk`` over several runs as if they were one."""
    if len(runs) <= 1:
        return (yield from walk(runs[0], judge, limit)) if runs else []
    merge = _Merge(runs, max(limit * 2 // len(runs), 8))
    found: list[Any] = []
    size = max(limit, 1)
    while True:
        entries = yield from merge.next(size)
        found += yield from judge(entries)
        if len(found) >= limit or not entries:
            return found[:limit]
        size = max(min(size * 2, LARGEST_CHUNK), limit)


class _Merge:
    """Several runs read side by side, each a chunk ahead."""

    def __init__(self, runs: Sequence[Range], chunk: int) -> None:
        self._most = max(_MOST_AHEAD // len(runs), 8)
        self._runs = [run._replace(limit=min(chunk, self._most)) for run in runs]
        self._backwards = runs[0].backwards
        self._ahead: list[list[Any]] = [[] for _ in runs]
        self._more = [True] * len(runs)

    def _fill(self) -> Reading[None]:
        """See that every run is ahead that has more. What is half used up by then is filled on the same trip."""
        if not any(more and not entries for more, entries in zip(self._more, self._ahead, strict=True)):
            return
        short = [
            place
            for place, entries in enumerate(self._ahead)
            if self._more[place] and len(entries) <= self._runs[place].limit // 2
        ]
        answers = yield [self._runs[place] for place in short]
        for place, entries in zip(short, answers, strict=True):
            run = self._runs[place]
            self._more[place] = len(entries) == run.limit
            if entries:
                last = entries[-1]
                run = run._replace(high=last) if run.backwards else run._replace(low=last, behind=True)
            self._runs[place] = run._replace(limit=min(run.limit * 2, self._most))
            self._ahead[place] = entries[::-1] + self._ahead[place]

    def next(self, limit: int) -> Reading[list[Any]]:
        """The next entries of all runs, at most ``limit``; none at the end."""
        yield from self._fill()
        taken: list[Any] = []
        sign = _Backwards if self._backwards else _forwards
        heads = [(sign(entries[-1]), place) for place, entries in enumerate(self._ahead) if entries]
        heapify(heads)
        while heads and len(taken) < limit:
            _, place = heappop(heads)
            entries = self._ahead[place]
            taken.append(entries.pop())
            if entries:
                heappush(heads, (sign(entries[-1]), place))
            elif self._more[place]:
                # What comes next in this run may stand before what is left of the others.
                break
        return taken


def _forwards(entry: Any) -> Any:
    return entry


class _Backwards:
    """Turns the order of entries round, for a heap."""

    __slots__ = ("entry",)

    def __init__(self, entry: Any) -> None:
        self.entry = entry

    def __lt__(self, other: _Backwards) -> bool:
        return bool(self.entry > other.entry)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Backwards) and bool(self.entry == other.entry)

    __hash__ = None  # type: ignore[assignment]


def carry_out(reading: Reading[Answer], answer: Callable[[Request], Any]) -> Answer:
    """Run a reading whose requests can be answered at once."""
    try:
        request = next(reading)
        while True:
            if type(request) is list:
                request = reading.send([answer(each) for each in request])
            else:
                request = reading.send(answer(request))
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def together(readings: Iterable[Reading[Answer]]) -> Reading[list[Answer]]:
    """What readings end with that go on side by side: whatever they ask for at one moment is one list of requests."""
    answers: list[Any] = []
    waiting: list[tuple[int, Reading[Answer], Any]] = []

    def go_on(place: int, reading: Reading[Answer], answer: Any) -> None:
        try:
            waiting.append((place, reading, reading.send(answer)))
        except StopIteration as stop:
            answers[place] = stop.value

    for place, reading in enumerate(readings):
        answers.append(None)
        go_on(place, reading, None)
    while waiting:
        now, waiting = waiting, []
        found = iter((yield [request for _, _, each in now for request in (each if type(each) is list else [each])]))
        for place, reading, each in now:
            go_on(place, reading, [next(found) for _ in each] if type(each) is list else next(found))
    return answers


def in_parts(make: Callable[[Any], Reading[Answer]], items: Sequence[Any], size: int) -> Reading[list[Answer]]:
    """What the readings end with that are made of some items, so many of them side by side."""
    answers: list[Answer] = []
    for start in range(0, len(items), size):
        answers += yield from together(map(make, items[start : start + size]))
    return answers


def at_once(value: Answer) -> Reading[Answer]:
    """A reading that needs nothing."""
    yield from ()
    return value
