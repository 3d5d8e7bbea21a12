"""Every operation that changes something, at every door, with a process that is killed around each of its commits, an
answer that is lost, a repetition through a second server, and a store that is away for a moment: what is stored in the
end is what an undisturbed call would have stored, and what the caller is told is so.

The cases are made from the table of operations: one that has neither a case nor a place among those that only read
fails here.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
import pytest

from flowfabric.engine.operation_table import OPERATIONS
from flowfabric.model.errors import EngineError
from flowfabric.sdk.backoff import Patience
from flowfabric.sdk.errors import ServerRefused
from flowfabric.server.http import idempotency
from tests.disturbed.cases import CASES, SPACE, Doing, operation_of
from tests.disturbed.conftest import Places
from tests.disturbed.doors import BY_NAME, ENGINE, HTTP, MANY, PARKED, PARKING, REMOTE, Unknown, World, doors_of, opened
from tests.disturbed.reading import FOLLOWING, OF_THE_MOMENT, READING
from tests.disturbed.stored import Stored, compared, differences, ids_in, plainly, rows
from tests.server.access.test_roles import request_of, things
from tests.server.routes.test_remote import arguments_of

#: Calls that are made again before it is given up.
MOST_TRIES = 5
CHANGING = [(name, door) for name in CASES for door in doors_of(name)]


#: What is told of something that has been done before, where that is not what was told the first time. A request with
#: an ``Idempotency-Key`` is always told the same, but for those that say how far something is.
AGAIN = {
    "create_execution": "Duplicate",
    "create_executions": "Duplicate",
    "deliver_signal": "Duplicate",
    "settle_reservation": "AlreadyApplied",
    "release_reservation": r"freed=\{\}",
    "register_worker": "Refreshed",
    "mark_worker_dead": "NotRegistered",
    "announce_kinds": "written=0",
    "give_back": "AlreadySatisfied",
    "set_lane_state": "AlreadySatisfied",
    "set_lane_fairness": "AlreadySatisfied",
    "create_budget": "AlreadySatisfied",
    "create_quota_policy": "AlreadySatisfied",
    "put_schedule": "Unchanged",
    "pause_schedule": "AlreadySatisfied",
    "resume_schedule": "AlreadySatisfied",
    "delete_schedule": "AlreadySatisfied",
    "revoke_credential": "AlreadySatisfied",
    # The ids are the same; how many frames there are is told as it is by then.
    "append_frames": "AppendFrameOutcome",
    **dict.fromkeys(PARKING, PARKED),
}
AGAIN_WITH_KEY = {
    "cancel_flow": "Cancelled",
    "give_answer": '"repeated":true',
    "answer_link": '"repeated":true',
    # Each of the calls is told of as by itself; how many of them share a commit is not said.
    "remote_calls": "AlreadySatisfied|Duplicate",
}
#: What a repetition adds, and should: another renewal, another look at a secret, and a priority that is set is an event
#: whatever it was before.
ADDED = {
    "renew": ("ff_lease_event",),
    "remote_renew": ("ff_lease_event",),
    "make_link": ("ff_audit",),
    "read_waitpoint_token": ("ff_audit",),
    "change_priority": ("ff_audit", "ff_operator_event"),
}
#: Ids that a remote engine makes for one call. Whoever calls it again asks for something else.
MINTED = frozenset({"create_execution", "create_executions", "deliver_signal"})
READ = [(name, door) for name in sorted(READING) for door in doors_of(name)]


class Disturbance(NamedTuple):
    """What happens to the first process."""

    kill_before: int = 0
    kill_after: int = 0
    away_at: int = 0
    loses: bool = False
    proxied: bool = False
    twice: bool = False


CALM = Disturbance()


class Run(NamedTuple):
    """What a call came to."""

    said: str | None
    before: Stored
    stored: Stored
    ids: set[str]
    commits: int
    calls: int


@pytest.fixture(autouse=True)
def _no_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits between two tries."""
    monkeypatch.setattr(Patience, "next_s", lambda _: 0.0)


def may_repeat(name: str, door: str, doing: Doing) -> bool:
    """Whether whoever calls at this door may call again when no answer came."""
    operation = OPERATIONS[operation_of(name)]
    if door == REMOTE and name in MINTED:
        return False
    if door != HTTP:
        return operation.may_repeat({**doing.arguments, **({} if door == REMOTE else doing.own)})
    route = BY_NAME[operation_of(name)]
    return route.kept or route.method == "GET" or operation.may_repeat(doing.body or {})


async def run(places: Places, name: str, door: str, what: Disturbance = CALM) -> Run:
    """Make a call that is disturbed, again if need be and allowed."""
    async with opened(places()) as world:
        doing = await CASES[name](world.scene(door))
        before = compared(await rows(world.engines[1].store)) if what is CALM else {}
        world.store.restart(kill_before=what.kill_before, kill_after=what.kill_after, away_at=what.away_at)
        world.loses, world.proxied = what.loses, what.proxied
        said = await _said(world, name, door, doing, what)
        found = await rows(world.engines[1].store)
        ids = {each for table in found.values() for row in table for each in ids_in(row)}
        return Run(said, before, compared(found), ids, world.store.commits, world.store.calls)


async def _said(world: World, name: str, door: str, doing: Doing, what: Disturbance) -> str | None:
    place = 0
    for tries in range(MOST_TRIES):
        try:
            said = await world.call(door, name, doing, place, tries)
        except Unknown:
            if not may_repeat(name, door, doing):
                return None
            place = int(not what.away_at)
            continue
        if what.twice and may_repeat(name, door, doing):
            world.wire.place = 1
            return await world.call(door, name, doing, 1, 1)
        return said
    raise AssertionError(f"{name} is not answered")


@pytest.mark.parametrize(("name", "door"), CHANGING, ids=[f"{name}-{door}" for name, door in CHANGING])
async def test_it_is_done_once_and_told_as_it_is(places: Places, name: str, door: str, full: bool) -> None:
    calm = await run(places, name, door)
    assert calm.said is not None
    check_told(name, calm, calm)
    commits, calls = calm.commits, calm.calls
    disturbances = [
        *(Disturbance(kill_before=each) for each in range(1, commits + 1)),
        *(Disturbance(kill_after=each) for each in range(1, commits + 1)),
        *(Disturbance(away_at=each) for each in (range(1, calls + 1) if full else sorted({1, calls} - {0}))),
        *([Disturbance(loses=True), Disturbance(proxied=True)] if door != ENGINE else []),
        Disturbance(twice=True),
    ]
    for each in disturbances:
        found = await run(places, name, door, each)
        expected = calm.before if found.said is None and not was_done(each, commits) else calm.stored
        if what_was_taken_went_back(name, each):
            expected = found.stored
        wrong = [row for row in differences(expected, found.stored) if not is_added(name, row)]
        wrong = [row for row in wrong if not is_another_account(name, each, row)]
        assert not wrong, "\n".join((str(each), *wrong))
        if found.said is not None:
            check_told(name, calm, found)
            said, first = plainly(found.said), plainly(calm.said)
            assert said == first or is_told_again(name, door, each, said), f"{each}\n{said}\n{first}"


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
@pytest.mark.parametrize("name", [name for name in CASES if HTTP in doors_of(name)])
async def test_it_is_done_once_also_if_no_answer_is_kept(
    places: Places, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers beyond a size are not kept, so the ids that a request does not give have to follow from its key."""
    monkeypatch.setattr(idempotency, "MAX_KEPT_BYTES", 0)
    calm = await run(places, name, HTTP)
    found = await run(places, name, HTTP, Disturbance(twice=True))
    wrong = [row for row in differences(calm.stored, found.stored) if not is_added(name, row)]
    assert not wrong, "\n".join(wrong)


def what_was_taken_went_back(name: str, what: Disturbance) -> bool:
    """Whether leases were given back because what they are for could not be read; taken again, they are others."""
    return name == "remote_claim" and what.away_at > 0


def is_added(name: str, row: str) -> bool:
    """Whether a row is one that a repetition adds."""
    return any(row.startswith(f"{each}, too many: ") for each in ADDED.get(operation_of(name), ()))


def is_another_account(name: str, what: Disturbance, row: str) -> bool:
    """Whether a row is the account of a request that could do only some of what it is made of."""
    return name.partition("~")[0] in MANY and what.away_at > 0 and row.startswith("ff_audit, ")


def is_told_again(name: str, door: str, what: Disturbance, said: str) -> bool:
    """Whether this is what is told of something that was done before."""
    again = AGAIN_WITH_KEY if door == HTTP else AGAIN
    words = again.get(name, again.get(operation_of(name)))
    return what.kill_before != 1 and words is not None and re.search(words, said) is not None


def was_done(what: Disturbance, commits: int) -> bool:
    """Whether everything was committed before nobody was told of it."""
    return what.loses or what.proxied or what.kill_after == commits


def check_told(name: str, calm: Run, found: Run) -> None:
    """Whatever ids are told are stored."""
    assert found.said is not None
    assert ids_in(found.said) <= found.ids, name


# -- what only reads --------------------------------------------------------------------------------------------------


def test_every_operation_is_disturbed() -> None:
    """A new one needs a case, or a place among those that only read."""
    changing = {operation_of(name) for name in CASES}
    assert changing | READING | FOLLOWING == OPERATIONS.keys()
    assert not changing & (READING | FOLLOWING)


async def _reading(world: World, name: str, door: str) -> Doing | tuple[str, dict[str, Any]]:
    """A read of something that is there, as its door takes it."""
    about = await things(world.engines[0], SPACE)
    if door == HTTP:
        return request_of(BY_NAME[name], about)
    named = {"execution_id": about.execution, "flow_id": about.flow, "budget_id": about.budget}
    return Doing(await arguments_of(name, world.engines[0], "", {**named, "namespace": SPACE}))


async def _read(world: World, name: str, door: str, asked: Any, place: int) -> str:
    if door == HTTP:
        path, options = asked
        body = None if "json" not in options else msgspec.json.encode(options["json"])
        headers = {"content-type": "application/json"}
        answer = await world.ask(place, BY_NAME[name].method, path, body, headers, options.get("params"))
        if answer.status_code >= 500:
            raise Unknown(answer.text)
        return f"{answer.status_code} {answer.text}"
    try:
        return await world.call(door, name, asked, place, 0)
    except (EngineError, ServerRefused) as error:
        return f"{type(error).__name__} {error}"


@pytest.mark.parametrize(("name", "door"), READ, ids=[f"{name}-{door}" for name, door in READ])
async def test_what_is_read_is_right_or_not_told(places: Places, name: str, door: str) -> None:
    """Nothing is told as if it were not there only because the store was away."""
    async with opened(places()) as world:
        asked = await _reading(world, name, door)
        await _read(world, name, door, asked, 0)
        world.store.restart()
        calm = await _read(world, name, door, asked, 0)
        assert world.store.commits == 0, "it changes something"
        for place in range(1, world.store.calls + 1):
            world.store.restart(away_at=place)
            with suppress(Unknown):
                said = await _read(world, name, door, asked, 0)
                assert said == calm or name in OF_THE_MOMENT or world.store.calls < place, (place, said, calm)
        world.store.restart()
        assert await _read(world, name, door, asked, 0) == calm or name in OF_THE_MOMENT
