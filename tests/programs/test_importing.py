"""The import: run twice, and killed in the middle. A full run imports 10,000 items and is killed on every store."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowfabric import App
from tests.conftest import full_run
from tests.programs.outside import Call, Outside
from tests.programs.running import Program, kill

ITEMS = 10_000 if full_run() else 240
SUPPLIERS = 7
PER_SUPPLIER = 4
#: The warehouse is busy the first times it is asked for this one,
FLAKY = "sku-17"
BUSY_TIMES = 2
#: and never takes this one.
UNWANTED = "sku-23"

STORES = ("sqlite", "postgres", "valkey") if full_run() else ("sqlite",)
#: Long enough for a machine that is busy with many items.
LEASE_S = "30" if full_run() else "3"


class Warehouse:
    """Takes each item once per key, as services with idempotency keys do."""

    def __init__(self) -> None:
        self.taken: dict[str, str] = {}
        self.busy = Counter[str]()
        self._lock = threading.Lock()

    def take(self, call: Call) -> tuple[int, str]:
        sku = call.body["sku"]
        with self._lock:
            if sku == UNWANTED:
                return 422, "nobody wants it"
            if sku == FLAKY and self.busy[sku] < BUSY_TIMES:
                self.busy[sku] += 1
                return 503, "later"
            assert self.taken.setdefault(sku, call.key) == call.key, "every attempt has the same key"
            return 200, "thanks"


@pytest.fixture
def warehouse() -> Warehouse:
    return Warehouse()


@pytest.fixture
def outside(warehouse: Warehouse) -> Outside:
    return Outside({"stock": warehouse.take})


@pytest.fixture
def importing(request: pytest.FixtureRequest, outside: Outside, tmp_path: Path) -> Iterator[Program]:
    lines = [f"sku-{number},supplier-{number % SUPPLIERS},{number % 10}" for number in range(ITEMS)]
    (tmp_path / "items.csv").write_text("\n".join(["sku,supplier,count", *lines]))
    urls = {"postgres": "postgres_dsn", "valkey": "valkey_url"}
    store = {"STORE_URL": request.getfixturevalue(urls[request.param])} if request.param in urls else {}
    with (
        outside.serving() as address,
        Program("importing.py", tmp_path, SERVICES_URL=address, LEASE_S=LEASE_S, **store) as found,
    ):
        yield found


def expected() -> str:
    pieces = sum(number % 10 for number in range(ITEMS) if f"sku-{number}" != UNWANTED)
    return f"{ITEMS - 1} items loaded, {pieces} pieces"


@pytest.mark.parametrize("importing", ["sqlite"], indirect=True)
def test_it_runs_twice(importing: Program, outside: Outside, warehouse: Warehouse) -> None:
    first = importing.run("items.csv").splitlines()
    assert first[-1] == expected()
    assert sorted(first[:-1]) == sorted(
        [*(f"{quarter * ITEMS // 4} of {ITEMS}" for quarter in (1, 2, 3, 4)), "failed: Refused: nobody wants it"]
    )
    assert len(outside.calls) == ITEMS + BUSY_TIMES
    assert len(warehouse.taken) == ITEMS - 1

    assert importing.run("items.csv").splitlines()[-1] == expected()
    assert len(outside.calls) == ITEMS + BUSY_TIMES, "nothing is loaded twice"


def ended(importing: Program) -> int:
    """How many runs have ended, as the store knows."""

    async def read() -> int:
        async with App(importing.variables.get("STORE_URL", f"sqlite:///{importing.path.parent}/import.db")) as app:
            return sum([await app.runs(name="load", state=state).count() for state in ("completed", "failed")])

    return asyncio.run(read())


@pytest.mark.parametrize("importing", STORES, indirect=True)
def test_it_goes_on_when_it_was_killed(importing: Program, outside: Outside, warehouse: Warehouse) -> None:
    outside.get_stuck(lambda _: len(warehouse.taken) > ITEMS // 3)
    process = importing.start("items.csv")
    outside.wait_until_stuck(SUPPLIERS * PER_SUPPLIER)  # there is room for no more
    kill(process)
    assert list(outside.most_at_once.values()) == [PER_SUPPLIER] * SUPPLIERS
    before = len(outside.calls)
    missing = ITEMS - ended(importing)
    assert ITEMS // 2 < missing < ITEMS

    outside.recover()
    assert importing.run("items.csv").splitlines()[-1] == expected()
    again = Counter(call.body["sku"] for call in outside.calls[before:])
    assert len(again) == missing, "what had ended is not done again, and everything else is"
    assert {sku for sku, times in again.items() if times > 1} <= {FLAKY}
    assert len(warehouse.taken) == ITEMS - 1
