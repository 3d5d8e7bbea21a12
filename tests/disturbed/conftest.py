"""Fresh stores, as many as a test wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from tests.conftest import prepared_sqlite_url, valkey_place
from tests.contract.conftest import STORES

Places = Callable[[], str]


@pytest.fixture(params=STORES)
def store_url(request: pytest.FixtureRequest) -> str:
    """The kind of store."""
    kind: str = request.param
    return kind


@pytest.fixture
def places(store_url: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Places]:
    """Gives the address of a new, empty store of the kind each time."""
    numbers = count()
    with ExitStack() as stack:

        def place() -> str:
            if store_url == "sqlite":
                return prepared_sqlite_url(request.getfixturevalue("sqlite_template"), tmp_path / str(next(numbers)))
            if store_url == "postgres":
                return str(stack.enter_context(request.getfixturevalue("new_postgres_database")()))
            if store_url == "valkey":
                return stack.enter_context(valkey_place(request.getfixturevalue("valkey_server").url))
            return "memory://"

        yield place
