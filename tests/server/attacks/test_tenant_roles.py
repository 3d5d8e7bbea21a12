"""The matrix of fields again, with every scope alone, and on every store.

``test_tenants`` asks with all scopes, in memory. Here tenant a has one scope. Where that does not suffice for an
operation, every name gets the same refusal and nothing happens; where it does, a foreign name is as good as an unknown
one. A full run asks for every field with every scope and on every store, a plain one for a fixed part.
"""

from __future__ import annotations

import contextlib
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from flowfabric.engine.operation_table import REMOTE, Operation
from flowfabric.model.operations.access import Scope
from tests.conftest import ExternalValkey, NewDatabase, full_run, valkey_place
from tests.server.attacks.world.asking_tenants import IN_USE, PLACES
from tests.server.attacks.world.naming import BY_ROUTE, CHOSEN, Place, places
from tests.server.attacks.world.stands import Stand, Store
from tests.servers import Valkey

NAMING = [each for each in places() if each.role() is not None]
#: One of so many fields is asked for in a plain run.
OF_REFUSED, OF_ALLOWED, FEW = 3, 5, 10
_PARTITION = re.compile(r"\{fp:\d+\}")


def operation_of(place: Place) -> Operation:
    return REMOTE[place.operation] if place.door == "remote" else BY_ROUTE[place.operation].operation


def part(found: list[Place], one_of: int) -> list[Place]:
    """A fixed part of some fields in a plain run, spread over them; all of them in a full one, or if they are few."""
    is_all = full_run() or len(found) < FEW
    return [each for each in found if is_all or zlib.crc32(str(each).encode()) % one_of == 0]


def is_forbidden(place: Place, response: httpx.Response) -> bool:
    if place.door == "remote" and response.status_code == 200:
        error = response.json()["answers"][0].get("error", {})
        return (error.get("status"), error.get("kind")) == (403, "forbidden")
    return (response.status_code, response.json().get("kind")) == (403, "forbidden")


@pytest.mark.parametrize("scope", Scope)
async def test_a_scope_that_does_not_suffice(scope: Scope) -> None:
    refused = part([each for each in NAMING if scope not in operation_of(each).scopes], OF_REFUSED)
    assert len(refused) > 20
    async with Stand(scopes=[scope]) as stand:
        for place in refused:
            answers = [await stand.ask(place, foreign=foreign) for foreign in (True, False)]
            assert all(is_forbidden(place, each) for each in answers), (place, answers[0].text)
            assert answers[0].text == answers[1].text, place
        assert await stand.is_as_it_was()


async def compare(stands: tuple[Stand, Stand], place: Place) -> None:
    """A foreign name is as good as an unknown one."""
    # Places in lists lie where the ids of one store put them.
    first, second = (stands[0], stands[0]) if place.role() in PLACES else stands
    answers = await first.told(place, foreign=True), await second.told(place, foreign=False)
    # Ids that are made anew may lie in any partition.
    foreign, absent = (_PARTITION.sub("{fp}", each) for each in answers)
    if place.found_in(CHOSEN) is not None:
        assert IN_USE.search(foreign), (place, foreign)
    else:
        assert foreign == absent, place
    for each in stands:
        await each.settle()


@pytest.mark.parametrize("scope", [each for each in Scope if each is not Scope.ADMIN])
async def test_a_scope_that_suffices(scope: Scope) -> None:
    allowed = part([each for each in NAMING if scope in operation_of(each).scopes], OF_ALLOWED)
    assert allowed
    async with Stand(scopes=[scope]) as one, Stand(scopes=[scope]) as another:
        for place in allowed:
            await compare((one, another), place)


def test_nothing_that_names_something_of_a_tenant_is_for_administrators() -> None:
    """Otherwise the test above would have to ask with their scope, too."""
    assert [str(each) for each in NAMING if Scope.ADMIN in operation_of(each).scopes] == []


# -- stores ------------------------------------------------------------------------------------------------------------

STORES = ("sqlite", "postgres", "valkey")


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Empty stores of one kind."""
    match request.param:
        case "sqlite":
            files = iter(range(1_000_000))

            @contextlib.contextmanager
            def new() -> Iterator[str]:
                yield f"sqlite:///{tmp_path}/{next(files)}.db"

            return new
        case "postgres":
            new_database: NewDatabase = request.getfixturevalue("new_postgres_database")
            return new_database
    server: Valkey | ExternalValkey = request.getfixturevalue("valkey_server")
    return lambda: valkey_place(server.url)


def kinds() -> list[Place]:
    """One field of every kind of thing that can be named, on one door or the other."""
    found: dict[str | None, Place] = {}
    for each in sorted(NAMING, key=lambda place: zlib.crc32(str(place).encode())):
        found.setdefault(each.role(), each)
    return list(found.values())


def share(store: str) -> list[Place]:
    """What is asked for on a store: its share of the kinds, or all fields in a full run."""
    return NAMING if full_run() else kinds()[STORES.index(store) :: len(STORES)]


@pytest.mark.parametrize("store", STORES, indirect=True)
async def test_a_foreign_name_on_every_store(store: Store, request: pytest.FixtureRequest) -> None:
    async with Stand(store) as one, Stand(store) as another:
        for place in share(request.node.callspec.params["store"]):
            await compare((one, another), place)
